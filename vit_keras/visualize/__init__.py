"""See what a Vision Transformer looks at.

>>> import numpy as np
>>> from vit_keras import vit, visualize
>>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
>>> visualize.attention_map(model=model, image=np.zeros((120, 160, 3), "uint8")).shape
(120, 160, 3)
"""

from __future__ import annotations

from .._internal.imports import attach

_START_HERE = {
    "attention_map": "attention",
    "all_maps": "attention",
    "explorer": "explore",
    "record": "recorder",
    "record_packed": "packed",
    "animate": "animation",
    "overlay": "overlays",
    "plot_maps": "figures",
    "plot_heads": "figures",
    "plot_layers": "figures",
    "figure6": "paper_figures",
    "figure7": "paper_figures",
    "evaluate_maps": "faithfulness",
    "grid_pointing_game": "faithfulness",
    "randomization_check": "faithfulness",
}
_MAPS_OF_RECORDINGS = {
    "METHODS": "methods",
    "alti_rollout": "maps",
    "attention_rollout": "maps",
    "cls_attention": "maps",
    "grad_cam": "maps",
    "gradient_rollout": "maps",
    "legrad": "maps",
    "mass_mask": "overlays",
    "relevance_map": "maps",
}
_TOKENS_AND_WEIGHTS = {
    "attention_entropy": "analysis",
    "attention_sinks": "analysis",
    "embedding_filters": "analysis",
    "layer_cka": "analysis",
    "mean_attention_distance": "analysis",
    "outlier_tokens": "analysis",
    "patch_logit_lens": "recorder",
    "patch_similarity": "analysis",
    "position_similarity": "analysis",
    "token_norms": "analysis",
    "token_pca": "analysis",
}
_DRAWING = {
    "new_figure": "figures",
    "paper_style": "overlays",
    "plot_by_layer": "paper_figures",
    "plot_cka": "paper_figures",
    "upsample": "overlays",
    "vit_keras_style": "overlays",
}
_ALSO = {  # what the functions above return, and what few need
    "AttentionExplorer": "explore",
    "GridPointing": "faithfulness",
    "MapEvaluation": "faithfulness",
    "RandomizationCheck": "faithfulness",
    "Recorder": "recorder",
    "Recording": "recording",
}

__all__ = [*_START_HERE, *_MAPS_OF_RECORDINGS, *_TOKENS_AND_WEIGHTS, *_DRAWING]
_ALL = {**_START_HERE, **_MAPS_OF_RECORDINGS, **_TOKENS_AND_WEIGHTS, **_DRAWING, **_ALSO}
__getattr__, __dir__ = attach(__name__, sorted({"colors", "gradients", "pictures", *_ALL.values()}), _ALL)

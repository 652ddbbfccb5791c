"""See what a Vision Transformer looks at.

>>> import numpy as np
>>> from vit_keras import vit, visualize
>>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
>>> visualize.attention_map(model=model, image=np.zeros((120, 160, 3), "uint8")).shape
(120, 160, 3)
"""

from __future__ import annotations

from .._imports import attach

_START_HERE = {
    "attention_map": "attention",
    "all_maps": "attention",
    "explorer": "explorer",
    "record": "recorder",
    "AttentionMapCallback": "callback",
    "animate": "draw",
    "overlay": "draw",
    "plot_maps": "draw",
    "plot_heads": "draw",
    "plot_layers": "draw",
    "figure6": "inspect",
    "figure7": "inspect",
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
    "mass_mask": "maps",
    "relevance_map": "maps",
    "token_contributions": "maps",
}
_TOKENS_AND_WEIGHTS = {
    "attention_entropy": "inspect",
    "attention_sinks": "inspect",
    "embedding_filters": "inspect",
    "layer_cka": "inspect",
    "mean_attention_distance": "inspect",
    "outlier_tokens": "inspect",
    "patch_logit_lens": "recorder",
    "patch_similarity": "inspect",
    "position_similarity": "inspect",
    "token_norms": "inspect",
    "token_pca": "inspect",
}
_DRAWING = {
    "new_figure": "draw",
    "paper_style": "draw",
    "plot_by_layer": "inspect",
    "plot_cka": "inspect",
    "plot_embedding_filters": "inspect",
    "plot_position_similarity": "inspect",
    "upsample": "draw",
    "vit_keras_style": "draw",
}
_ALSO = {  # what the functions above return, and what few need
    "OF_A_CLASS": "methods",
    "AttentionExplorer": "explorer",
    "GridPointing": "faithfulness",
    "MapEvaluation": "faithfulness",
    "RandomizationCheck": "faithfulness",
    "Recorder": "recorder",
    "Recording": "recording",
    "attention_scores": "recorder",
    "spearman": "faithfulness",
}

__all__ = [*_START_HERE, *_MAPS_OF_RECORDINGS, *_TOKENS_AND_WEIGHTS, *_DRAWING]
__getattr__, __dir__ = attach(
    __name__,
    (
        "attention",
        "callback",
        "faithfulness",
        "gradients",
        "maps",
        "methods",
        "pictures",
        "plan",
        "recorder",
        "recording",
    ),
    {**_START_HERE, **_MAPS_OF_RECORDINGS, **_TOKENS_AND_WEIGHTS, **_DRAWING, **_ALSO},
)

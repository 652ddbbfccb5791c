"""Seeing what a Vision Transformer looks at.

>>> import numpy as np
>>> from vit_keras import vit, visualize
>>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
>>> visualize.attention_map(model=model, image=np.zeros((120, 160, 3), "uint8")).shape
(120, 160, 3)
"""

from __future__ import annotations

from .attention import METHODS, OF_A_CLASS, attention_map
from .callback import AttentionMapCallback
from .draw import (
    animate,
    new_figure,
    overlay,
    paper_style,
    plot_heads,
    plot_layers,
    plot_maps,
    upsample,
    vit_keras_style,
)
from .explorer import AttentionExplorer, explorer
from .faithfulness.removal import (
    GridPointing,
    MapEvaluation,
    RandomizationCheck,
    evaluate_maps,
    grid_pointing_game,
    randomization_check,
    spearman,
)
from .inspect import (
    attention_entropy,
    attention_sinks,
    embedding_filters,
    figure6,
    figure7,
    layer_cka,
    mean_attention_distance,
    outlier_tokens,
    patch_similarity,
    plot_by_layer,
    plot_cka,
    plot_embedding_filters,
    plot_position_similarity,
    position_similarity,
    token_norms,
    token_pca,
)
from .maps import (
    alti_rollout,
    attention_rollout,
    cls_attention,
    grad_cam,
    gradient_rollout,
    legrad,
    mass_mask,
    relevance_map,
    token_contributions,
)
from .recorder import Recorder, Recording, attention_scores, patch_logit_lens, record

__all__ = [
    "METHODS",
    "OF_A_CLASS",
    "AttentionExplorer",
    "AttentionMapCallback",
    "GridPointing",
    "MapEvaluation",
    "RandomizationCheck",
    "Recorder",
    "Recording",
    "alti_rollout",
    "animate",
    "attention_entropy",
    "attention_map",
    "attention_rollout",
    "attention_scores",
    "attention_sinks",
    "cls_attention",
    "embedding_filters",
    "evaluate_maps",
    "explorer",
    "figure6",
    "figure7",
    "grad_cam",
    "gradient_rollout",
    "grid_pointing_game",
    "layer_cka",
    "legrad",
    "mass_mask",
    "mean_attention_distance",
    "new_figure",
    "outlier_tokens",
    "overlay",
    "paper_style",
    "patch_logit_lens",
    "patch_similarity",
    "plot_by_layer",
    "plot_cka",
    "plot_embedding_filters",
    "plot_heads",
    "plot_layers",
    "plot_maps",
    "plot_position_similarity",
    "position_similarity",
    "randomization_check",
    "record",
    "relevance_map",
    "spearman",
    "token_contributions",
    "token_norms",
    "token_pca",
    "upsample",
    "vit_keras_style",
]

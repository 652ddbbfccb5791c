"""Analysis of what a model has learned and how it works inside, as NumPy arrays on the grid of patches.

>>> import numpy as np
>>> from vit_keras import vit, visualize
>>> model = vit.build_model((32, 48), 8, 2, 64, 2, "tiny", 128, classes=10)
>>> recording = visualize.record(model, np.zeros((100, 150, 3), "uint8"))
>>> mean_attention_distance(recording).shape, token_pca(recording).shape
((2, 2), (1, 4, 6, 3))
"""

from .attention import attention_entropy, attention_sinks, mean_attention_distance
from .tokens import OutlierToken, layer_cka, outlier_tokens, patch_similarity, token_norms, token_pca
from .weights import embedding_filters, position_similarity

__all__ = [
    "OutlierToken",
    "attention_entropy",
    "attention_sinks",
    "embedding_filters",
    "layer_cka",
    "mean_attention_distance",
    "outlier_tokens",
    "patch_similarity",
    "position_similarity",
    "token_norms",
    "token_pca",
]

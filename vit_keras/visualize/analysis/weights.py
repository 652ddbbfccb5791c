"""Analysis of a model's weights: filters of the patch embedding, similarity of position embeddings."""

from __future__ import annotations

import math

import keras
import numpy as np

from ..._internal.validate import positive_integer, size_pair
from ...anatomy.parts import find_vit, patch_grid
from ...layers import AddPositionEmbs, AddSinCosPositionEmbs, RotaryPositions, TransformerBlock
from ...positions import resize_position_embeddings, sincos2d
from .components import principal_components, unit

__all__ = ["embedding_filters", "position_similarity"]


def embedding_filters(model: keras.Model, n: int = 28) -> np.ndarray:
    """Return the principal components of the filters of the patch embedding (ViT paper, Figure 7 left).

    The hidden units are the samples, centered. Each component is stretched to [0, 1] by itself. The sign of a component
    is arbitrary; here its largest value by magnitude is positive.

    Args:
        model: A ViT of this package, or a model with one inside.
        n: Number of components.

    Returns:
        float32 `(n, patch_height, patch_width, channels)`, the strongest first; fewer where there are no more. Of a
        hybrid the patches are of the ResNet's output.

    Raises:
        ValueError: `n` is not positive, or there is no ViT or no patch embedding in the model.

    Example:
        >>> from vit_keras import vit
        >>> embedding_filters(vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)).shape
        (28, 8, 8, 3)
    """
    n = positive_integer(n, "n")
    kernel = _embedding_kernel(model)
    components = principal_components(kernel.reshape(-1, kernel.shape[-1]).T, n)
    low, high = components.min(axis=1, keepdims=True), components.max(axis=1, keepdims=True)
    stretched = np.divide(components - low, high - low, out=np.full_like(components, 0.5), where=high > low)
    return stretched.reshape(-1, *kernel.shape[:3]).astype("float32")


def position_similarity(model: keras.Model, grid: tuple[int, int] | None = None) -> np.ndarray:
    """Return how similar the position embeddings of any two patches are (ViT paper, Figure 7 center).

    Args:
        model: A ViT of this package, or a model with one inside, with learned position embeddings or sines and cosines.
        grid: Patches down and across to which the embeddings are resampled first; `None`: the model's own. A model
            with sines and cosines that takes images of any size needs it.

    Returns:
        float32 `(grid_h, grid_w, grid_h, grid_w)`: `[row, column]` is the map of the cosine similarities, in [-1, 1],
        of the patch there with all others. The class token's embedding is left out.

    Raises:
        ValueError: The model adds no position embeddings to its patches: it has rotary or relative positions, or none.

    Example:
        >>> from vit_keras import vit
        >>> position_similarity(vit.build_model((32, 48), 8, 2, 64, 2, "tiny", 128, classes=10)).shape
        (4, 6, 4, 6)
    """
    table, grid = _position_table(find_vit(model), None if grid is None else size_pair(grid, "grid"))
    directions = unit(table)
    return np.clip(directions @ directions.T, -1, 1).reshape(*grid, *grid).astype("float32")


def _embedding_kernel(model: keras.Model) -> np.ndarray:
    vit = find_vit(model)
    layer = next((layer for layer in vit.layers if layer.name == "embedding"), None)
    if layer is None:
        raise ValueError(f"The model {vit.name!r} has no layer 'embedding' with filters.")
    return np.asarray(keras.ops.convert_to_numpy(layer.kernel), "float64")


def _position_table(vit: keras.Model, grid: tuple[int, int] | None) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the position embeddings `(patches, hidden_size)` of the patches, and their grid."""
    for layer in vit.layers:
        if isinstance(layer, AddPositionEmbs):
            own = layer.patch_grid or patch_grid(vit)
            table = np.asarray(keras.ops.convert_to_numpy(layer.pe), "float32")
            prefix = table.shape[1] - math.prod(own)
            grid = grid or own
            table = resize_position_embeddings(table, grid, prefix_tokens=prefix, source_grid=own, method=layer.resize)
            return table[0, prefix:].astype("float64"), grid
        if isinstance(layer, AddSinCosPositionEmbs):
            if grid is None and None in vit.input_shape[1:3]:
                raise ValueError(f"The model {vit.name!r} takes images of any size. Pass grid=(down, across).")
            grid = grid or patch_grid(vit)
            return sincos2d(grid, layer.output.shape[-1])[0].astype("float64"), grid
    raise ValueError(f"The model {vit.name!r} adds no position embeddings to its patches: {_other_positions(vit)}.")


def _other_positions(vit: keras.Model) -> str:
    if any(isinstance(layer, RotaryPositions) for layer in vit.layers):
        return "its positions are rotations of queries and keys (RoPE)"
    if any(isinstance(layer, TransformerBlock) and layer.att.relative_grid for layer in vit.layers):
        return "its positions are relative, biases in the attention"
    return "it has no positions"

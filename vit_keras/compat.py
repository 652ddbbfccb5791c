"""Functions of vit-keras 0.x that nothing else here needs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .positions import resize_position_embeddings, square_grid

__all__ = ["apply_embedding_weights", "load_weights_numpy"]


def apply_embedding_weights(
    target_layer: Any, source_weights: np.ndarray, num_x_patches: int, num_y_patches: int
) -> None:
    """Assign a table of position embeddings to a layer, resampled if the grids differ.

    Args:
        target_layer: An `AddPositionEmbs`.
        source_weights: `(1, 1 + patches, hidden_size)`; the patches are a square grid.
        num_x_patches: Patches across.
        num_y_patches: Patches down.

    Raises:
        ValueError: The source is not a square grid.

    Warns:
        UserWarning: The table was resampled.
    """
    grid = (num_y_patches, num_x_patches)
    table = resize_position_embeddings(source_weights, grid)
    side = square_grid(source_weights.shape[1] - 1)[0]
    if grid != (side, side):
        message = f"Resizing position embeddings from {side}, {side} to {num_x_patches}, {num_y_patches}"
        warnings.warn(message, UserWarning, stacklevel=2)
    target_layer.set_weights([table])


def load_weights_numpy(model: Any, params_path: Any, pretrained_top: bool, num_x_patches: int, num_y_patches: int):
    """Load an .npz file of Google's into a model; see `vit_keras.checkpoints.load_weights`.

    Args:
        model: The model.
        params_path: The file.
        pretrained_top: Whether to load the head.
        num_x_patches: Ignored: read from the model.
        num_y_patches: Ignored: read from the model.

    Returns:
        A `vit_keras.checkpoints.LoadReport`.
    """
    from .checkpoints import Weights, load_weights

    return load_weights(model, Weights(params_path), include_head=bool(pretrained_top))

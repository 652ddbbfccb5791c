"""Reading images, naming classes, and what vit-keras 0.x had here besides."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .images import (
    MAX_DOWNLOAD,
    MAX_PIXELS,
    ImageInputType,
    check_pixels,
    grey,
    pixel_range,
    read,
    resize,
    to_pixels,
    to_uint8,
)
from .labels import get_imagenet_classes
from .positions import resize_position_embeddings, square_grid

__all__ = [
    "MAX_DOWNLOAD",
    "MAX_PIXELS",
    "ImageInputType",
    "apply_embedding_weights",
    "check_pixels",
    "get_imagenet_classes",
    "grey",
    "load_weights_numpy",
    "pixel_range",
    "read",
    "resize",
    "to_pixels",
    "to_uint8",
]


def apply_embedding_weights(
    target_layer: Any, source_weights: np.ndarray, num_x_patches: int, num_y_patches: int
) -> None:
    """Put a table of position embeddings into a layer, resampled if need be (vit-keras 0.x).

    Args:
        target_layer: An `AddPositionEmbs`.
        source_weights: `(1, 1 + patches, hidden_size)`, of a square grid.
        num_x_patches: Patches across.
        num_y_patches: Patches down.

    Raises:
        ValueError: The source is not a square grid.

    Warns:
        UserWarning: The table was resampled. This is no error.
    """
    grid = (num_y_patches, num_x_patches)
    table = resize_position_embeddings(source_weights, grid)
    side = square_grid(source_weights.shape[1] - 1)[0]
    if grid != (side, side):
        message = f"Resizing position embeddings from {side}, {side} to {num_x_patches}, {num_y_patches}"
        warnings.warn(message, UserWarning, stacklevel=2)
    target_layer.set_weights([table])


def load_weights_numpy(model: Any, params_path: Any, pretrained_top: bool, num_x_patches: int, num_y_patches: int):
    """Load an .npz file of Google's into a model (vit-keras 0.x; see `vit_keras.checkpoints.load_weights`).

    Args:
        model: The model.
        params_path: The file.
        pretrained_top: Whether to load the head.
        num_x_patches: Ignored: the model knows.
        num_y_patches: Ignored: the model knows.

    Returns:
        A `vit_keras.checkpoints.LoadReport`.
    """
    from .checkpoints import Weights, load_weights

    return load_weights(model, Weights(params_path), include_head=bool(pretrained_top))

"""Names of vit-keras 0.x that nothing here needs, for code that was written for it."""

from __future__ import annotations

import math
import os
from typing import Any, TypedDict

import keras
import numpy as np

from ._internal.validate import size_pair
from ._internal.warn import warn_caller
from .checkpoints.loading import LoadReport, load_weights
from .checkpoints.locate import fetch
from .checkpoints.weights import Weights
from .opening import wrong_classes
from .positions import resize_position_embeddings
from .variants import VARIANTS

ImageSizeArg = tuple[int, int] | int
"""An image size: `(height, width)`, or one integer for a square."""


class ConfigDict(TypedDict):
    """The sizes of a model as `build_model` takes them; see `ViTConfig`."""

    dropout: float
    mlp_dim: int
    num_heads: int
    num_layers: int
    hidden_size: int


CONFIG_B: ConfigDict = {"dropout": 0.1, "mlp_dim": 3072, "num_heads": 12, "num_layers": 12, "hidden_size": 768}
"""The sizes of B models, as vit-keras 0.x had them."""
CONFIG_L: ConfigDict = {"dropout": 0.1, "mlp_dim": 4096, "num_heads": 16, "num_layers": 24, "hidden_size": 1024}
"""The sizes of L models, as vit-keras 0.x had them."""

BASE_URL = "https://github.com/faustomorales/vit-keras/releases/download/dl"
"""Where vit-keras 0.x kept its copies of eight of Google's files; for scripts that fetch them by hand."""

WEIGHTS = {"imagenet21k": 21843, "imagenet21k+imagenet2012": 1000}
"""The names of weights in vit-keras 0.x, and their numbers of classes."""

SIZES = set(VARIANTS)
"""Google's names of the sizes: `"B_16"` and so on."""


def interpret_image_size(image_size_arg: ImageSizeArg) -> tuple[int, int]:
    """Read an image size, `(height, width)` or one integer for a square."""
    return size_pair(image_size_arg, "image_size")


def validate_pretrained_top(include_top: bool, pretrained: bool, classes: int | None, weights: str) -> int:
    """Check whether the pre-trained head can be used."""
    if weights not in WEIGHTS:
        raise ValueError(f"Unexpected weights: {weights}.")
    if classes != WEIGHTS[weights]:
        warn_caller(wrong_classes(weights, WEIGHTS[weights]) + " Setting manually.")
    for wanted, argument in ((include_top, "include_top"), (pretrained, "pretrained")):
        if not wanted:
            raise ValueError(f"Can only use pretrained_top with {argument}.")
    return WEIGHTS[weights]


def load_pretrained(
    size: str,
    weights: str | os.PathLike[str],
    pretrained_top: bool,
    model: keras.Model,
    image_size: ImageSizeArg,
    patch_size: int | tuple[int, int],
) -> LoadReport:
    """Load published weights into a model; see `checkpoints.load_weights`."""
    source = Weights(fetch(weights, size))
    return load_weights(model, source, include_head=pretrained_top)


def apply_embedding_weights(
    target_layer: Any, source_weights: np.ndarray, num_x_patches: int, num_y_patches: int
) -> None:
    """Assign a table of position embeddings to a layer, resampled if the grids differ."""
    grid = (num_y_patches, num_x_patches)
    table = resize_position_embeddings(source_weights, grid)
    side = math.isqrt(source_weights.shape[1] - 1)
    if grid != (side, side):
        message = f"Resizing position embeddings from {side}, {side} to {num_x_patches}, {num_y_patches}"
        warn_caller(message)
    target_layer.set_weights([table])


def load_weights_numpy(
    model: Any, params_path: Any, pretrained_top: bool, num_x_patches: int, num_y_patches: int
) -> Any:
    """Load an .npz file of Google's into a model; see `vit_keras.checkpoints.load_weights`."""
    weights = Weights(params_path)
    square = weights.grid()  # 0.x reads every table as a square, whatever the model's images are
    return load_weights(model, weights, include_head=bool(pretrained_top), source_grid=square)

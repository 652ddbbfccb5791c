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
    """The sizes of a model as `build_model` takes them; see `ViTConfig`.

    Example:
        >>> CONFIG_B["hidden_size"]
        768
    """

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
    """Read an image size, `(height, width)` or one integer for a square.

    Raises:
        ValueError: It is neither.

    Example:
        >>> interpret_image_size(224)
        (224, 224)
    """
    return size_pair(image_size_arg, "image_size")


def validate_pretrained_top(include_top: bool, pretrained: bool, classes: int | None, weights: str) -> int:
    """Check whether the pre-trained head can be used; the factories decide this by themselves (`pretrained_top=None`).

    Args:
        include_top: As for a factory; so are the others.
        pretrained: Whether to load weights.
        classes: Number of classes of the model.
        weights: Name of the weights.

    Returns:
        The number of classes of the head of `weights`.

    Raises:
        ValueError: There is no head to load, because of `include_top`, `pretrained` or `weights`.

    Warns:
        UserWarning: `classes` is another number.

    Example:
        >>> validate_pretrained_top(True, True, 1000, "imagenet21k+imagenet2012")
        1000
    """
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
    """Load published weights into a model; see `checkpoints.load_weights`.

    Args:
        size: Google's name of the architecture, such as `"B_16"`.
        weights: A published name of that architecture, the path of a file, or a URL.
        pretrained_top: Whether to load the head.
        model: The model.
        image_size: Ignored: the model knows.
        patch_size: Ignored: the model knows.

    Returns:
        A `LoadReport`.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 2, 64, 2, "small", 128, classes=3)
        >>> model.save_weights("small.weights.h5")
        >>> load_pretrained("B_16", "small.weights.h5", True, model, 32, 16).loaded == len(model.weights)
        True
    """
    source = Weights(fetch(weights, size))
    return load_weights(model, source, include_head=pretrained_top)


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

    Example:
        >>> from vit_keras.layers import AddPositionEmbs
        >>> layer = AddPositionEmbs()
        >>> layer.build((None, 10, 8))
        >>> apply_embedding_weights(layer, np.ones((1, 10, 8)), 3, 3)
        >>> layer.get_weights()[0].shape
        (1, 10, 8)
    """
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
    """Load an .npz file of Google's into a model; see `vit_keras.checkpoints.load_weights`.

    Args:
        model: The model.
        params_path: The file.
        pretrained_top: Whether to load the head.
        num_x_patches: Ignored: read from the model.
        num_y_patches: Ignored: read from the model.

    Returns:
        A `vit_keras.checkpoints.LoadReport`.

    Example:
        >>> from vit_keras import checkpoints, vit
        >>> model = vit.build_model(32, 16, 2, 64, 2, "small", 128, classes=3)
        >>> path = checkpoints.save_weights(model, "small.npz")
        >>> load_weights_numpy(model, "small.npz", True, 2, 2).loaded == len(model.weights)
        True
    """
    weights = Weights(params_path)
    square = weights.grid()  # 0.x reads every table as a square, whatever the model's images are
    return load_weights(model, weights, include_head=bool(pretrained_top), source_grid=square)

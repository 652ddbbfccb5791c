"""Names of vit-keras 0.x that nothing here needs, for code that was written for it."""

from __future__ import annotations

import os
import warnings
from typing import TypedDict

import keras

from . import checkpoints
from .config import size_pair
from .opening import wrong_classes
from .variants import VARIANTS

ImageSizeArg = tuple[int, int] | int


class ConfigDict(TypedDict):
    """The sizes of a model as `build_model` takes them; see `ViTConfig`."""

    dropout: float
    mlp_dim: int
    num_heads: int
    num_layers: int
    hidden_size: int


CONFIG_B: ConfigDict = {"dropout": 0.1, "mlp_dim": 3072, "num_heads": 12, "num_layers": 12, "hidden_size": 768}
CONFIG_L: ConfigDict = {"dropout": 0.1, "mlp_dim": 4096, "num_heads": 16, "num_layers": 24, "hidden_size": 1024}

# Where vit-keras 0.x kept its copies of eight of Google's files; for scripts that fetch them by hand.
BASE_URL = "https://github.com/faustomorales/vit-keras/releases/download/dl"
WEIGHTS = {"imagenet21k": 21843, "imagenet21k+imagenet2012": 1000}
SIZES = set(VARIANTS)


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

    Returns:
        The number of classes of the head of `weights`.

    Raises:
        ValueError: There is no head to load, because of `include_top`, `pretrained` or `weights`.

    Warns:
        UserWarning: `classes` is another number.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"Unexpected weights: {weights}.")
    if classes != WEIGHTS[weights]:
        warnings.warn(wrong_classes(weights, WEIGHTS[weights]) + " Setting manually.", UserWarning, stacklevel=2)
    for wanted, argument in ((include_top, "include_top"), (pretrained, "pretrained")):
        if not wanted:
            raise ValueError(f"Can only use pretrained_top with {argument}.")
    return WEIGHTS[weights]


def load_pretrained(
    size: str,
    weights: str | os.PathLike,
    pretrained_top: bool,
    model: keras.Model,
    image_size: ImageSizeArg,
    patch_size: int | tuple[int, int],
) -> checkpoints.LoadReport:
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
    """
    source = checkpoints.Weights(checkpoints.fetch(weights, size))
    return checkpoints.load_weights(model, source, include_head=pretrained_top)

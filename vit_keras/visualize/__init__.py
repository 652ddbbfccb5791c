"""Seeing what a Vision Transformer looks at.

>>> import numpy as np
>>> from vit_keras import vit, visualize
>>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
>>> visualize.attention_map(model=model, image=np.zeros((120, 160, 3), "uint8")).shape
(120, 160, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .. import utils
from ..layers import find_vit, patch_grid
from ..positions import resize_bilinear
from ..preprocess import GOOGLE, Preprocess
from ..vit import preprocess_inputs
from .draw import overlay
from .maps import attention_rollout
from .record import attention_scores

__all__ = ["attention_map", "attention_rollout", "attention_scores", "overlay"]


def attention_map(
    model: keras.Model,
    image: Any,
    *,
    return_map: bool = False,
    preprocess: Callable | str | None = "own",
) -> np.ndarray:
    """Show what a model looks at, by attention rollout (ViT paper, Figure 6 and appendix D.8).

    Args:
        model: A ViT of this package, or any model of one image input with one inside: `Sequential`, a fine-tuned
            model, nested to any depth.
        image: Pixels: an array `(height, width)`, `(height, width, channels)` or `(batch, height, width, channels)`
            in [0, 255], or floats in [-1, 1]; or anything that `vit_keras.utils.read` reads. It may have
            another size than the model's input, and is resized for it.
        return_map: Whether to return the map itself instead of a picture.
        preprocess: What the model's input needs, from pixels in [0, 255]. `"own"`: the ViT's own normalisation
            (`model.preprocessing`), or nothing if the model has a layer for it (`vit_keras.vit.preprocessing`); `None` for
            a model that takes pixels as they are (with a `Rescaling` layer inside).

    Returns:
        uint8 `(height, width, 3)`, the image with the map over it, of the size of `image`; or with
        `return_map` float32 `(grid_h, grid_w)`, the share of each patch in the class token. A batch gives a batch.

    Raises:
        ValueError: There is no ViT in the model or more than one, or the image does not fit it.

    Warns:
        UserWarning: A float image is not in [-1, 1]; it is read as what it looks like.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model((32, 64), 8, 2, 64, 2, "wide", 128, classes=10)
        >>> attention_map(model, np.zeros((32, 64, 3), "uint8"), return_map=True).shape
        (4, 8)
    """
    vit = find_vit(model)
    shape = tuple(getattr(model, "input_shape", None) or vit.input_shape)
    pixels, batched = _pixels(image, shape[-1])
    size = tuple(given or wanted for given, wanted in zip(shape[1:3], pixels.shape[1:3]))
    inputs = np.stack([resize_bilinear(p, size, align_corners=False) for p in pixels])
    inside = [layer.preprocessing for layer in model._flatten_layers() if isinstance(layer, Preprocess)]
    if preprocess == "own":
        preprocess = None if inside else _normalisation(vit, shape[-1])
    inputs = inputs if preprocess is None else np.asarray(preprocess(inputs))
    scores = attention_scores(model, inputs, mean_heads=True)
    maps = attention_rollout(scores, patch_grid(vit, next((p.image_size for p in inside if p.image_size), size)))
    if not return_map:
        maps = np.stack([overlay(_displayable(p), m) for p, m in zip(pixels, maps)])
    return maps if batched else maps[0]


def _normalisation(vit: keras.Model, channels: int) -> Callable:
    own = getattr(vit, "preprocessing", GOOGLE)
    return own.normalise if own.channels == channels else preprocess_inputs


def _pixels(image: Any, channels: int) -> tuple[np.ndarray, bool]:
    """Pixels in [0, 255] as a float batch, and whether they came as a batch."""
    image = image if isinstance(image, np.ndarray) else _read(image)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim not in (3, 4) or 0 in image.shape:
        raise ValueError(
            f"An image has the shape (height, width[, channels]), a batch one more axis. Received: {image.shape}"
        )
    pixels = utils.to_pixels(image)
    if image.shape[-1] == 1 and channels == 3:
        pixels = np.repeat(pixels, 3, axis=-1)
    elif image.shape[-1] == 3 and channels == 1:
        pixels = utils.grey(pixels)
    elif image.shape[-1] != channels:
        raise ValueError(f"The model takes images of {channels} channels. Received: {image.shape[-1]} channels")
    return (pixels, True) if image.ndim == 4 else (pixels[None], False)


def _read(image: Any) -> np.ndarray:
    if hasattr(image, "__array__") and not hasattr(image, "convert"):  # a tensor
        return keras.ops.convert_to_numpy(image)
    return utils.read(image, None)


def _displayable(pixels: np.ndarray) -> np.ndarray:
    if pixels.shape[-1] != 3:
        pixels = np.repeat(pixels.mean(axis=-1, keepdims=True), 3, axis=-1)
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")

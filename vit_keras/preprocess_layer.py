"""`Preprocessing` inside a graph: a Keras layer that takes raw pixels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from .images import grey
from .preprocess import GOOGLE, Preprocessing


@keras.saving.register_keras_serializable("vit_keras")
class Preprocess(keras.layers.Layer):
    """`Preprocessing` inside a graph: a batch of raw pixels of any one size becomes the model's input.

    The resampling is Pillow's own, computed as two products of matrices, so that it is the same on every backend and
    the gradient goes through (rounding to whole grey levels lets it pass unchanged). Measured against `Preprocessing`
    in NumPy and Pillow, on photographs and noise: equal to 1e-6 without resizing and for `"nearest"`; otherwise off by
    one grey level, rarely two, where a value lies half-way between two levels. That is one value in 1500 with
    `"bilinear"`, one in 300 with `"bilinear-antialias"` and one in 10 000 with the others, and up to one in 50
    between sizes whose ratio is a simple fraction. Products in less than float32 (TF32 on a GPU) can make it more.

    Args:
        preprocessing: A `Preprocessing`, or its `to_dict()`.
        image_size: Size of the output, `(height, width)` or one integer; `None` for the preprocessing's own, and where
            that has none, the pixels keep their size.

    Input shape:
        `(batch, height, width, 1 or channels)`, pixels in [0, 255] of any real dtype. Height and width may be `None`.

    Output shape:
        `(batch, *image_size, channels)`, float32.

    Example:
        >>> pixels = keras.Input((None, None, 3), dtype="uint8")
        >>> Preprocess(GOOGLE, image_size=224)(pixels).shape
        (None, 224, 224, 3)
    """

    def __init__(self, preprocessing: Any = GOOGLE, image_size: Any = None, **kwargs: Any):
        super().__init__(**{"dtype": "float32", **kwargs})
        if not isinstance(preprocessing, Preprocessing):
            if not isinstance(preprocessing, Mapping):
                raise TypeError(f"preprocessing is a Preprocessing or a dict of one. Received: {preprocessing!r}")
            preprocessing = Preprocessing.from_dict(preprocessing)
        if image_size is not None:
            preprocessing = preprocessing.replace(image_size=image_size)
        self.preprocessing = preprocessing

    def build(self, input_shape):
        channels = self.preprocessing.channels
        if len(input_shape) != 4 or input_shape[-1] not in {1, channels, 3 if channels == 1 else channels}:
            raise ValueError(
                f"Preprocess takes pixels (batch, height, width, channels) with {channels} channels, or 1. "
                f"Received the shape {tuple(input_shape)}."
            )
        self.built = True

    def call(self, pixels):
        settings = self.preprocessing
        pixels = ops.cast(pixels, "float32")
        if settings.image_size is not None:
            pixels = self._resize(pixels, settings.image_size)
        if settings.channels == 1 and pixels.shape[-1] == 3:
            pixels = ops.matmul(pixels, ops.convert_to_tensor(grey(np.eye(3)), "float32"))
        elif pixels.shape[-1] != settings.channels:
            pixels = ops.repeat(pixels, settings.channels, axis=-1)
        scale, offset = settings._affine()
        return pixels * ops.convert_to_tensor(scale, "float32") + ops.convert_to_tensor(offset, "float32")

    def _resize(self, pixels, size):
        batch, height, width, channels = ops.shape(pixels)
        if tuple(pixels.shape[1:3]) == size and self.preprocessing.crop is None:
            return pixels
        way = self.preprocessing.interpolation
        resized, origin = self.preprocessing.geometry((height, width), size)
        down, across = (_resampling_matrix(way, *axis) for axis in zip((height, width), resized, size, origin))
        pixels = ops.matmul(across, pixels)
        pixels = pixels if way == "bilinear" else _whole(pixels, way)  # Pillow rounds after each axis
        pixels = ops.matmul(down, ops.reshape(pixels, (batch, height, size[1] * channels)))
        return ops.reshape(_whole(pixels, way), (batch, *size, channels))

    def compute_output_shape(self, input_shape):
        size = self.preprocessing.image_size or input_shape[1:3]
        return (input_shape[0], *size, self.preprocessing.channels)

    def get_config(self):
        return {**super().get_config(), "preprocessing": self.preprocessing.to_dict()}


def _whole(pixels, way):
    """Whole grey levels in [0, 255]; the gradient passes as if nothing had been rounded."""
    pixels = ops.clip(pixels, 0.0, 255.0)
    rounded = ops.round(pixels) if way == "bilinear" else ops.floor(pixels + 0.5)  # NumPy's rule, Pillow's rule
    return pixels + ops.stop_gradient(rounded - pixels)


def _triangle(x, xp):
    return xp.maximum(1 - xp.abs(x), 0.0)


def _cubic(x, xp):
    """Keys' cubic with a = -1/2, as in Pillow."""
    x = xp.abs(x)
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return xp.where(x < 1, near, xp.where(x < 2, far, xp.zeros_like(x)))


def _lanczos(x, xp):
    near_zero = xp.abs(x) < 1e-9
    safe = xp.where(near_zero, xp.ones_like(x), x) * math.pi
    value = xp.where(near_zero, xp.ones_like(x), 3 * xp.sin(safe) * xp.sin(safe / 3) / (safe * safe))
    return xp.where(xp.abs(x) < 3, value, xp.zeros_like(x))


def _box(x, xp):
    return xp.where((x > -0.5) & (x <= 0.5), xp.ones_like(x), xp.zeros_like(x))


_KERNELS = {
    "bilinear": _triangle,
    "bilinear-antialias": _triangle,
    "bicubic": _cubic,
    "lanczos": _lanczos,
    "box": _box,
    "nearest": _box,
}


def _resampling_matrix(way: str, source: Any, resized: Any, size: int, start: Any):
    """`(size, source)`: the rows `start … start + size` of what resamples `source` pixels to `resized`.

    In float64, of NumPy where all sizes are known and of the backend where they come with the data.
    """
    xp = np if all(isinstance(n, int) for n in (source, resized, start)) else ops

    def as_float(n):
        return float(n) if isinstance(n, int) else ops.cast(n, "float64")

    scale = as_float(source) / as_float(resized)
    centres = (xp.arange(size, dtype="float64") + (as_float(start) + 0.5)) * scale
    pixels = xp.arange(source, dtype="float64")
    shrink = 1.0
    if way == "nearest":  # the one pixel that the centre falls on; added up as Pillow does, which decides the ties
        steps = xp.arange(start + size, dtype="float64")
        centres = xp.floor(xp.cumsum(xp.where(steps == 0, scale / 2, scale))[start:]) + 0.5
    elif way != "bilinear":
        shrink = 1 / xp.maximum(scale, 1.0)
    weights = _KERNELS[way]((pixels[None, :] - centres[:, None] + 0.5) * shrink, xp)
    if way == "box":  # Pillow's window, which decides the ties
        first, end = (xp.floor(centres + side / shrink + 0.5)[:, None] for side in (-0.5, 0.5))
        weights = xp.where((pixels >= first) & (pixels < end), weights, xp.zeros_like(weights))
    weights = weights / xp.sum(weights, axis=1, keepdims=True)
    return ops.cast(ops.convert_to_tensor(weights), "float32")

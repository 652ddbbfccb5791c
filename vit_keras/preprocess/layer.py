"""The preprocessing as a Keras layer, so that a deployed model can take raw pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from ..resampling import resampling_matrix
from . import GOOGLE, Preprocessing
from .pixels import gray, preprocess_inputs

__all__ = ["InferenceMode", "Preprocess"]

keras.saving.register_keras_serializable("vit_keras")(preprocess_inputs)  # for Lambda(preprocess_inputs) in a model


@keras.saving.register_keras_serializable("vit_keras")
class Preprocess(keras.layers.Layer):
    """Apply a `Preprocessing` inside a graph: a batch of raw pixels of any one size becomes the model's input.

    The resampling is Pillow's, computed as two products of matrices. It is therefore the same on every backend, and
    gradients pass through (rounding to whole gray levels leaves them unchanged). Measured against `Preprocessing` in
    NumPy and Pillow, on photographs and noise: equal to 1e-6 without resizing and for `"nearest"`. Otherwise values
    half-way between two gray levels can be off by one level, rarely two: one value in 1500 with `"bilinear"`, one in
    300 with `"bilinear_antialias"`, one in 10 000 with the others, and up to one in 50 between sizes whose ratio is a
    simple fraction. Products in less than float32 (TF32 on a GPU) can make it more.

    Args:
        preprocessing: A `Preprocessing`, or its `to_dict()`.
        image_size: Size of the output, `(height, width)` or one integer; `None` for the preprocessing's own. Without
            either, the pixels keep their size.

    Input shape:
        `(batch, height, width, 1 or channels)`, pixels in [0, 255] of any real dtype. Height and width may be `None`.
        A single image, `(height, width, 1 or channels)`, works too: in `dataset.map`, before images of several sizes
        are batched.

    Output shape:
        `(batch, *image_size, channels)`, float32; of a single image, without `batch`.

    Example:
        >>> pixels = keras.Input((None, None, 3), dtype="uint8")
        >>> Preprocess(GOOGLE, image_size=224)(pixels).shape
        (None, 224, 224, 3)
    """

    def __init__(self, preprocessing: Any = GOOGLE, image_size: Any = None, **kwargs: Any):
        super().__init__(**{"dtype": "float32", **kwargs})
        if not isinstance(preprocessing, Preprocessing):
            if not isinstance(preprocessing, Mapping):
                raise TypeError(f"preprocessing must be a Preprocessing or a dict of one. Received: {preprocessing!r}")
            preprocessing = Preprocessing.from_dict(preprocessing)
        if image_size is not None:
            preprocessing = preprocessing.replace(image_size=image_size)
        self.preprocessing = preprocessing

    def __call__(self, pixels: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(getattr(pixels, "shape", None), "rank", 0) is None:
            raise ValueError(
                "Preprocess must know how many axes the pixels have. Received: a tensor of unknown rank. Read files "
                f"with tf.io.decode_image(…, channels={self.preprocessing.channels}, expand_animations=False), or "
                f"tell TensorFlow the shape: tf.ensure_shape(image, (None, None, {self.preprocessing.channels}))."
            )
        return super().__call__(pixels, *args, **kwargs)

    def build(self, input_shape: Any) -> None:
        channels = self.preprocessing.channels
        axes = len(input_shape)
        if axes not in (3, 4) or input_shape[-1] not in {1, channels, 3 if channels == 1 else channels}:
            first = axes in (3, 4) and input_shape[-3] == channels
            hint = ". The channels seem to be first: move them to the end." if first else ""
            raise ValueError(
                f"Preprocess takes pixels (batch, height, width, channels) with {channels} channels, or 1. "
                f"Received: the shape {tuple(input_shape)}{hint}"
            )
        self.built = True

    def call(self, pixels: Any) -> Any:
        if len(pixels.shape) == 3:
            return self.call(pixels[None])[0]
        settings = self.preprocessing
        pixels = ops.cast(pixels, "float32")
        if settings.image_size is not None:
            pixels = self._resize(pixels, settings.image_size)
        if settings.channels == 1 and pixels.shape[-1] == 3:
            thousandths = ops.matmul(pixels, ops.convert_to_tensor(gray(1000 * np.eye(3)), "float32"))
            pixels = _whole((thousandths + 0.25) / 1000, "bilinear")  # as `gray_levels`
        elif pixels.shape[-1] != settings.channels:
            pixels = ops.repeat(pixels, settings.channels, axis=-1)
        scale, offset = settings._affine()
        return pixels * ops.convert_to_tensor(scale, "float32") + ops.convert_to_tensor(offset, "float32")

    def _resize(self, pixels, size):
        batch, height, width, channels = ops.shape(pixels)
        if tuple(pixels.shape[1:3]) == size and self.preprocessing.crop is None:
            return pixels
        name = self.preprocessing.interpolation
        resized, origin = self.preprocessing.geometry((height, width), size)
        down, across = (_matrix(*axis, name) for axis in zip((height, width), resized, size, origin))
        pixels = ops.matmul(across, pixels)
        pixels = pixels if name == "bilinear" else _whole(pixels, name)  # Pillow rounds after each axis
        pixels = ops.matmul(down, ops.reshape(pixels, (batch, height, size[1] * channels)))
        return ops.reshape(_whole(pixels, name), (batch, *size, channels))

    def compute_output_shape(self, input_shape: Any) -> Any:
        size = self.preprocessing.image_size or input_shape[-3:-1]
        return (*input_shape[:-3], *size, self.preprocessing.channels)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "preprocessing": self.preprocessing.to_dict()}


@keras.saving.register_keras_serializable("vit_keras")
class InferenceMode(keras.layers.Wrapper):
    """Run a layer or a model as in inference, also in training, so that it changes no image at random."""

    def call(self, inputs: Any) -> Any:
        return self.layer(inputs, training=False)

    def compute_output_spec(self, inputs: Any) -> Any:
        return self.layer.compute_output_spec(inputs)


def _whole(pixels, interpolation):
    """Round to whole gray levels in [0, 255]; the gradient passes as if nothing had been rounded."""
    pixels = ops.clip(pixels, 0.0, 255.0)
    rounded = (
        ops.round(pixels) if interpolation == "bilinear" else ops.floor(pixels + 0.5)
    )  # NumPy's rule, Pillow's rule
    return pixels + ops.stop_gradient(rounded - pixels)


def _matrix(source: Any, resized: Any, size: int, start: Any, interpolation: str):
    """Return rows, from `start` on, of the float32 matrix `(size, source)` that resamples pixels to `resized`."""
    # Computed in float64: by NumPy if all sizes are known, by the backend if they come with the data.
    xp = np if all(isinstance(n, int) for n in (source, resized, start)) else ops
    matrix = resampling_matrix(source, resized, interpolation, rows=(start, size), xp=xp, dtype="float64")
    return ops.cast(matrix, "float32")

"""The patch embedding, and the normalization of patches before it."""

from __future__ import annotations

import math
from typing import Any

import keras

from ..backend import ops, replicas
from ..backend.keras_internals import kernel_of
from ..preprocess import GOOGLE, Preprocessing
from ._base import Composite, Layer, LayerNormalization, grid_of, register


@register
class Conv2D(Layer, keras.layers.Conv2D):
    """The patch embedding, which also keeps what Keras' copies of a model must know of its images and classes."""

    # PyTorch computes it as one product if its windows do not overlap, in 0.4 to 0.7 of the time of Keras' convolution
    # on a CPU. The class has the name of Keras' class because the name is part of the names of weights in
    # `.weights.h5`. Whatever copies a model, such as `keras.Model(vit.input, outputs)`, drops attributes of the model,
    # and keeps the layers: `anatomy` reads `preprocessing`, and `labels` and `task` by the name of the head, from here.

    def __init__(self, filters: int, kernel_size: Any, preprocessing: Any = None, classes: Any = None, **kwargs: Any):
        super().__init__(filters, kernel_size, **{"strides": kernel_size, **kwargs})
        self.preprocessing: Preprocessing = Preprocessing.from_dict(preprocessing) if preprocessing else GOOGLE
        self.classes: dict[str, dict[str, Any]] = {head: {**known} for head, known in (classes or {}).items()}

    def call(self, inputs: Any) -> Any:
        usual = (self.kernel_size, "valid", "channels_last", (1, 1), 1)
        if (self.strides, self.padding, self.data_format, self.dilation_rate, self.groups) != usual:
            return super().call(inputs)
        x = ops.conv_of_windows(inputs, kernel_of(self), self.bias)
        if x is None and replicas.count() > 1:  # a replica may have no image, and TensorFlow then no gradient
            kernel = ops.reshape(ops.cast(self.kernel, inputs.dtype), (-1, self.filters))
            x = ops.matmul(_windows(inputs, self.kernel_size), kernel)
            x = x if self.bias is None else x + ops.cast(self.bias, x.dtype)
        if x is None:
            return super().call(inputs)
        return x if self.activation is None else self.activation(x)

    def get_config(self) -> dict[str, Any]:
        config, own = super().get_config(), self.preprocessing
        if own != GOOGLE:
            config["preprocessing"] = own.to_dict()
        # Plain dictionaries and lists: Keras wraps those that a layer holds, and opens no .h5 file with such.
        classes = {head: dict(known) for head, known in self.classes.items() if known}
        return {**config, "classes": classes} if classes else config


@register
class PatchNormalization(Composite):
    """Normalize the pixels of each patch, as vit-pytorch does before its patch embedding, and return an image."""

    patch_size: tuple[int, int]
    epsilon: float = 1e-5

    def setup(self) -> None:
        self.norm: Any = self.part(LayerNormalization, "norm", epsilon=self.epsilon)

    def build(self, input_shape: Any) -> None:
        self.norm.build((None, math.prod(self.patch_size) * input_shape[-1]))
        self.change_as_configured()

    def call(self, inputs: Any) -> Any:
        (height, width), channels = self.patch_size, inputs.shape[-1]
        down, across = (n // size for n, size in zip(grid_of(inputs), self.patch_size))
        x = self.norm(_windows(inputs, self.patch_size))
        x = ops.transpose(ops.reshape(x, (-1, down, across, height, width, channels)), (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, down * height, across * width, channels))

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, *size, channels = input_shape
        whole = (None if n is None else n // patch * patch for n, patch in zip(size, self.patch_size))
        return (batch, *whole, channels)


def _windows(images: Any, size: Any) -> Any:
    """Return the pixels of each whole patch, `(batch, down, across, pixels * channels)`."""
    (height, width), channels = size, images.shape[-1]
    down, across = (n // side for n, side in zip(grid_of(images), size))
    x = images[:, : down * height, : across * width]
    x = ops.transpose(ops.reshape(x, (-1, down, height, across, width, channels)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (-1, down, across, height * width * channels))

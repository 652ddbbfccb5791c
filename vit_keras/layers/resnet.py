"""The ResNet root of the hybrid models, whose feature map is cut into patches instead of the image.

Paper: "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1 "Hybrid Architecture" and appendix B.1. The
ResNet is that of BiT (arXiv 1912.11370): group normalization (arXiv 1803.08494) and weight standardization
(arXiv 1903.10520) instead of batch normalization.
Reference: google-research/vision_transformer, `vit_jax/models_resnet.py`.

    R+Ti/16: units ()     R26+S/32: (2, 2, 2, 2)     R50+B/16: (3, 4, 9)     R50+L/32: (3, 4, 6, 3)

The published weights are run with two sets of small constants, which change the fourth digit of a logit:
`numerics="google"` are the constants of the training, `"timm"` those of timm's models.
"""

from __future__ import annotations

from typing import Any

import keras

from .._internal.validate import one_of
from ..backend import ops
from ._base import Layer, grid_of, register

ROOT_FILTERS = 64
GROUPS = 32
GROUP_NORM_EPSILON = {"google": 1e-6, "timm": 1e-5}


@register
class StdConv2D(Layer, keras.layers.Conv2D):
    """A convolution whose kernel is standardized at every call: mean 0 and variance 1 for each filter.

    The kernel before standardization is trained and saved. Under a half-precision policy it is standardized in float32.

    Args:
        filters: Number of filters.
        kernel_size: Height and width of the kernel, or one integer for both.
        strides: Steps down and across, or one integer for both.
        numerics: `"google"` divides by the standard deviation plus 1e-5, `"timm"` by the square root of the
            variance plus 1e-8.
        **kwargs: See `keras.layers.Conv2D`; by default, the padding is `"same"` and there is no bias.

    Input shape:
        `(batch, height, width, channels)`

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), filters)`

    Raises:
        ValueError: Unknown `numerics`.

    Example:
        >>> tuple(StdConv2D(8, 3, strides=2)(np.zeros((1, 15, 16, 4), "float32")).shape)
        (1, 8, 8, 8)
    """

    def __init__(self, filters: int, kernel_size: Any, strides: Any = 1, numerics: str = "google", **kwargs: Any):
        defaults = {"padding": "same", "use_bias": False, "kernel_initializer": "lecun_normal"}
        super().__init__(filters, kernel_size, strides, **{**defaults, "data_format": "channels_last", **kwargs})
        self.numerics: str = one_of(numerics, "numerics", GROUP_NORM_EPSILON)

    def add_weight(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("name") == "kernel":  # it must reach `convolution_op` before it is rounded to half precision
            kwargs["autocast"] = False
        return super().add_weight(*args, **kwargs)

    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        return super().convolution_op(inputs, ops.cast(self.standardize(kernel), inputs.dtype))

    def standardize(self, kernel: Any) -> Any:
        """Return the kernel that is applied to the input, in float32 at least."""
        kernel = ops.cast(kernel, keras.backend.result_type(kernel.dtype, "float32"))
        kernel = kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=(0, 1, 2), keepdims=True)
        if self.numerics == "timm":
            return kernel * ops.rsqrt(variance + 1e-8)
        return kernel / (ops.sqrt(variance) + 1e-5)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "numerics": self.numerics}


@register
class GroupNorm(Layer, keras.layers.GroupNormalization):
    """Group normalization of feature maps, over height, width and the channels of a group, in float32 at least."""

    # Keras' own is 2e-5 away from the exact result on TensorFlow and PyTorch: it multiplies before it subtracts.

    def call(self, inputs: Any) -> Any:
        height, width = grid_of(inputs)
        channels = inputs.shape[3]
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        x = ops.reshape(x, (-1, height, width, self.groups, channels // self.groups))
        x = x - _mean_of_groups(x)
        x = x * ops.rsqrt(_mean_of_groups(ops.square(x)) + self.epsilon)
        x = ops.reshape(x, (-1, height, width, channels))
        return ops.cast(x * ops.cast(self.gamma, x.dtype) + ops.cast(self.beta, x.dtype), self.compute_dtype)


def _mean_of_groups(x: Any) -> Any:
    return ops.mean(ops.mean(x, axis=(2, 4), keepdims=True), axis=1, keepdims=True)


@register
class ResidualUnit(Layer):
    """A bottleneck with a residual: 1x1, 3x3 and 1x1 convolutions, each normalized, and a ReLU after the sum."""

    filters: int
    strides: Any = 1
    numerics: str = "google"

    def build(self, input_shape: Any) -> None:
        channels, wide = input_shape[-1], 4 * self.filters
        self._add("1", 1, 1, channels, self.filters)
        self._add("2", 3, self.strides, self.filters, self.filters)
        self._add("3", 1, 1, self.filters, wide)
        self.has_projection: bool = channels != wide or self.strides != 1
        if self.has_projection:
            self._add("_proj", 1, self.strides, channels, wide)

    def _add(self, suffix: str, kernel_size: int, strides: Any, channels: int, filters: int) -> None:
        options = {"numerics": self.numerics, "dtype": self.dtype_policy}
        conv = StdConv2D(filters, kernel_size, strides, name=f"conv{suffix}", **options)
        norm = _group_norm(f"gn{suffix}", **options)
        setattr(self, f"conv{suffix}", conv)
        setattr(self, f"gn{suffix}", norm)
        conv.build((None, None, None, channels))
        norm.build((None, None, None, filters))

    def call(self, inputs: Any) -> Any:
        residual = self.gn_proj(self.conv_proj(inputs)) if self.has_projection else inputs
        x = ops.relu(self.gn1(self.conv1(inputs)))
        x = ops.relu(self.gn2(self.conv2(x)))
        return ops.relu(residual + self.gn3(self.conv3(x)))

    def compute_output_shape(self, input_shape: Any) -> Any:
        return self.conv3.compute_output_shape(self.conv2.compute_output_shape(input_shape))


def resnet_root(x: keras.KerasTensor, units: tuple[int, ...], *, numerics: str = "google", dtype: Any = None) -> Any:
    """Apply the layers of the ResNet to a symbolic image.

    They are `conv_root`, `gn_root`, `relu_root`, `pool_root`, and then `block1_unit1`, `block1_unit2` …

    Args:
        x: `(batch, height, width, channels)`, such as a `keras.Input`.
        units: Number of residual units of each stage; `()` for the first convolution and pooling alone. The first stage
            keeps the size, each other halves it and doubles the channels.
        numerics: See `StdConv2D` and `ResidualUnit`.
        dtype: Dtype policy of the layers; `None` for the global one.

    Returns:
        Symbolic feature map `(batch, *output_grid((height, width), units), channels)`; the channels are 64 without any
        unit and 256, 512, 1024, 2048 after one to four stages.

    Raises:
        ValueError: Unknown `numerics`.

    Example:
        >>> tuple(resnet_root(keras.Input((224, 224, 3)), (3, 4, 9)).shape)
        (None, 14, 14, 1024)
    """
    options = {"numerics": numerics, "dtype": dtype}
    x = StdConv2D(ROOT_FILTERS, 7, 2, name="conv_root", **options)(x)
    x = _group_norm("gn_root", **options)(x)
    x = keras.layers.ReLU(name="relu_root", dtype=dtype)(x)
    pool = {"padding": "same", "data_format": "channels_last"}
    x = keras.layers.MaxPooling2D(3, 2, name="pool_root", dtype=dtype, **pool)(x)
    for stage, count in enumerate(units):
        for unit in range(count):
            strides = 2 if stage > 0 and unit == 0 else 1
            name = f"block{stage + 1}_unit{unit + 1}"
            x = ResidualUnit(ROOT_FILTERS * 2**stage, strides, name=name, **options)(x)
    return x


def _group_norm(name: str, numerics: Any, dtype: Any) -> Any:
    return GroupNorm(GROUPS, epsilon=GROUP_NORM_EPSILON[numerics], name=name, dtype=dtype)

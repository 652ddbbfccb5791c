"""Faster PyTorch versions of a block's Keras operations.

`keras.ops.reshape` takes 15 microseconds, PyTorch's one. In float32, the numbers are the same to the bit. In half
precision, sums are rounded once and not twice, and a GPU rounds the scales of normalizations too.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
from keras import ops

from ..backend import products
from ..backend.direct import give_up
from ..backend.keras_internals import values_of

_Tensor = sys.modules["torch"].Tensor if keras.backend.backend() == "torch" else None
"""PyTorch's tensor classes without subclasses, for which Keras calls the same functions after many checks."""

_KINDS = () if _Tensor is None else (_Tensor, sys.modules["torch"].nn.Parameter)


def constant(numbers: Any, like: Any) -> Any:
    """Return an array as a tensor on the device of another tensor, by a function that `torch.compile` follows."""
    if type(like) not in _KINDS:
        return ops.convert_to_tensor(numbers)
    return sys.modules["torch"].as_tensor(numbers, device=like.device)


def reshape(x: Any, shape: Any) -> Any:
    """Reshape as `keras.ops.reshape` does."""
    return x.reshape(shape) if type(x) is _Tensor else ops.reshape(x, shape)


def transpose(x: Any, axes: Any) -> Any:
    """Transpose as `keras.ops.transpose` does."""
    return x.permute(axes) if type(x) is _Tensor else ops.transpose(x, axes)


def join_tokens(parts: Any, axis: int) -> Any:
    """Return `keras.ops.concatenate` of the parts with tokens: LiteRT's XNNPACK joins no part without any."""
    parts = [x for x in parts if x.shape[axis] != 0]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=axis)


def largest(x: Any) -> Any:
    """Return the maximum along the last axis, which stays; `torch.compile` does not follow `keras.ops.max`."""
    return x.amax(-1, keepdim=True) if type(x) is _Tensor else ops.max(x, axis=-1, keepdims=True)


def linear(x: Any, kernel: Any, bias: Any, gelu: str | None = None) -> Any:
    """Return `x @ kernel + bias` computed by PyTorch (`products.linear`), or `None` if Keras must compute it."""
    # Also used in eager mode; only the tanh GELU within a product (`gelu`) differs from PyTorch's, in the last bits.
    values = _values(x, kernel, bias)
    return None if values is None else products.linear(x, values[0], values[1], gelu)


def multiply_windows(x: Any, kernel: Any, bias: Any) -> Any:
    """Return a convolution with non-overlapping windows as a product by PyTorch, or `None`; see `linear`."""
    values = _values(x, kernel, bias)
    if values is None or x.dim() != 4:
        return None
    kernel, bias = values
    height, width, channels, filters = kernel.shape
    down, across = x.shape[1] // height, x.shape[2] // width
    if not down or not across:  # Keras refuses it
        return None
    x = x[:, : down * height, : across * width].reshape(-1, down, height, across, width, channels)
    x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height * width * channels)
    return products.linear(x, kernel.reshape(-1, filters), bias).reshape(-1, down, across, filters)


def normalize(x: Any, gamma: Any, beta: Any, epsilon: Any, dtype: Any) -> Any:
    """Return layer normalization over the last axis by PyTorch, or `None`; see `linear`. Keras casts to `dtype`."""
    values = _values(x, gamma, beta, in_float32=True)
    if values is None or x.dtype is not getattr(sys.modules["torch"], dtype):
        return None
    if x.device.type != "cpu":  # whose kernels take one dtype
        values = (v if v is None else v.to(x.dtype) for v in values)
    width = x.shape[-1:] if gamma is None else tuple(gamma.shape)  # the first is a tensor where ONNX traces
    return sys.modules["torch"].layer_norm(x, width, *values, epsilon)


def gelu(x: Any, tanh: bool = False) -> Any:
    """Compute the GELU as `keras.ops.gelu` does."""
    if type(x) is not _Tensor:
        return ops.gelu(x, approximate=tanh)
    return sys.modules["torch"].nn.functional.gelu(x, approximate="tanh" if tanh else "none")


def _values(x: Any, *variables: Any, in_float32: bool = False) -> Any:
    """Return the tensors of variables if PyTorch computes the same as Keras with them and `x`, or `None`."""
    # They have the dtype of `x` or, if `in_float32`, float32, as PyTorch's layer normalization of bfloat16 takes them.
    if type(x) is not _Tensor:
        return None
    torch = sys.modules["torch"]
    if x.is_meta or torch.compiler.is_compiling():  # Keras infers shapes on "meta"
        return None
    try:
        if torch.is_autocast_enabled(x.device.type):
            return None
        values = values_of(*variables)
    except Exception as error:
        give_up(error)
        return None
    dtype, device = x.dtype, x.device
    if not dtype.is_floating_point:
        return None
    if dtype is torch.float16 and device.type == "cpu":
        return None  # Keras computes some of it in float32 there
    wanted = torch.float32 if in_float32 and values[0] is not None and values[0].dtype is torch.float32 else dtype
    for value in values:  # some hundred times an image: no function for each
        if value is not None and not (type(value) in _KINDS and value.dtype is wanted and value.device == device):
            return None
    return values

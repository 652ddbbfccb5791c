"""The operations of `keras.ops`, each as quick as the framework allows.

`keras.ops.reshape` takes 15 microseconds, PyTorch's one. In float32, the numbers are the same to the bit. In half
precision, sums are rounded once and not twice, and a GPU rounds the scales of normalizations too.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import keras

from . import products
from .direct import give_up
from .keras_internals import values_of


def __getattr__(name: str) -> Any:
    return getattr(keras.ops, name)  # looked up at each call: the trace of an export replaces these functions


_torch: Any = sys.modules["torch"] if keras.backend.backend() == "torch" else None
_Tensor = _torch and _torch.Tensor
"""PyTorch's tensor classes without subclasses, for which Keras calls the same functions after many checks."""

_KINDS = _torch and (_Tensor, _torch.nn.Parameter)


def convert_to_tensor(x: Any, dtype: Any = None, like: Any = None) -> Any:
    """Return a tensor; of an array on the device of the tensor `like`, by a function that `torch.compile` follows."""
    if type(like) not in (_KINDS or ()):
        return keras.ops.convert_to_tensor(x, dtype)
    return _torch.as_tensor(x, device=like.device)


def cast(x: Any, dtype: Any) -> Any:
    """Cast."""
    x = x.value if isinstance(x, keras.Variable) else x
    return x if type(x) in (_KINDS or ()) and x.dtype is dtype else keras.ops.cast(x, dtype)


def shape(x: Any) -> Any:
    """Return the shape, with tensors for what is known only in a graph."""
    return tuple(x.shape) if type(x) is _Tensor else keras.ops.shape(x)


def reshape(x: Any, newshape: Any) -> Any:
    """Reshape."""
    return x.reshape(newshape) if type(x) is _Tensor else keras.ops.reshape(x, newshape)


def transpose(x: Any, axes: Any) -> Any:
    """Transpose."""
    return x.permute(axes) if type(x) is _Tensor else keras.ops.transpose(x, axes)


def concatenate(xs: Any, axis: int) -> Any:
    """Concatenate the tensors that have anything along the axis: LiteRT's XNNPACK joins no part without any."""
    xs = [x for x in xs if x.shape[axis] != 0]
    if len(xs) == 1:
        return xs[0]
    return _torch.cat(xs, axis) if all(type(x) is _Tensor for x in xs) else keras.ops.concatenate(xs, axis=axis)


def broadcast_to(x: Any, shape: Any) -> Any:
    """Broadcast to a shape."""
    return x.expand(shape) if type(x) is _Tensor else keras.ops.broadcast_to(x, shape)


def max(x: Any, axis: int, keepdims: bool = False) -> Any:
    """Return the maximum along an axis, by a function that `torch.compile` follows."""
    return x.amax(axis, keepdim=keepdims) if type(x) is _Tensor else keras.ops.max(x, axis=axis, keepdims=keepdims)


def gelu(x: Any, approximate: bool = True) -> Any:
    """Compute the GELU: approximately by tanh, or exactly."""
    if type(x) is _Tensor:
        return _torch.nn.functional.gelu(x, approximate="tanh" if approximate else "none")
    if approximate or keras.backend.backend() == "torch":
        return keras.ops.gelu(x, approximate=approximate)
    # Through erf and not keras.ops.gelu, whose TensorFlow form exports to ONNX as an operator that ONNX lacks.
    return 0.5 * x * (1.0 + keras.ops.erf(x * math.sqrt(0.5)))


# What a layer of Keras computes, by PyTorch; or `None` if Keras must compute it.


def linear(x: Any, kernel: Any, bias: Any, gelu: str | None = None) -> Any:
    """Return `x @ kernel + bias` (`products.linear`) or `None`."""
    # Also used in eager mode; only the tanh GELU within a product (`gelu`) differs from PyTorch's, in the last bits.
    values = _values(x, kernel, bias)
    return None if values is None else products.linear(x, values[0], values[1], gelu)


def conv_of_windows(x: Any, kernel: Any, bias: Any) -> Any:
    """Return a convolution with non-overlapping windows, computed as one product, or `None`."""
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
    """Return layer normalization over the last axis or `None`. Keras casts to `dtype`."""
    values = _values(x, gamma, beta, in_float32=True)
    if values is None or x.dtype is not getattr(_torch, dtype):
        return None
    if x.device.type != "cpu":  # whose kernels take one dtype
        values = (v if v is None else v.to(x.dtype) for v in values)
    width = x.shape[-1:] if gamma is None else tuple(gamma.shape)  # the first is a tensor where ONNX traces
    return _torch.layer_norm(x, width, *values, epsilon)


def _values(x: Any, *variables: Any, in_float32: bool = False) -> Any:
    """Return the tensors of variables if PyTorch computes the same as Keras with them and `x`, or `None`."""
    # They have the dtype of `x` or, if `in_float32`, float32, as PyTorch's layer normalization of bfloat16 takes them.
    if type(x) is not _Tensor or x.is_meta or _torch.compiler.is_dynamo_compiling():  # Keras infers shapes on "meta"
        return None
    dtype, is_cpu = x.dtype, x.is_cpu
    if not dtype.is_floating_point or (is_cpu and dtype is _torch.float16):  # Keras computes some in float32
        return None
    try:
        if _torch.is_autocast_enabled("cpu" if is_cpu else x.device.type):
            return None
        values = values_of(*variables)
    except Exception as error:
        give_up(error)
        return None
    wanted = _torch.float32 if in_float32 and values[0] is not None and values[0].dtype is _torch.float32 else dtype
    for value in values:  # some hundred times an image: no function for each
        if value is None:
            continue
        if type(value) not in _KINDS or value.dtype is not wanted:
            return None
        if not (value.is_cpu if is_cpu else value.device == x.device):
            return None
    return values

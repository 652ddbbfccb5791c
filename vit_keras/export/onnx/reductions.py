"""Operations of Keras along axes, products of matrices, and windows over images."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .graph import OMITTED
from .trace import OPERATIONS, on

# Along axes


@on("Softmax")
def _softmax(t, op, x):
    if not isinstance(op.axis, int):
        raise ValueError(f"keras.ops.softmax is written to ONNX along one axis. Received: axis={op.axis}")
    return t.graph.add("Softmax", t.value(x), axis=op.axis % len(x.shape))


@on("LogSoftmax")
def _log_softmax(t, op, x):
    return t.graph.add("LogSoftmax", t.value(x), axis=op.axis % len(x.shape))


def _reduce(kind: str) -> Callable[..., Any]:
    def handle(t, op, x):
        x = t.value(x, t.dtype(x, float) if kind == "Mean" else None)
        if kind in ("Prod", "Sum") and x.dtype == "bool":
            x = t.graph.cast(x, "int32")
        y = t.graph.reduce(kind, x, op.axis, op.keepdims)
        initial = getattr(op, "initial", None)  # of Max and Min
        return y if initial is None else t.graph.add(kind, y, t.value(initial, y.dtype))

    return handle


OPERATIONS.update({kind: _reduce(kind) for kind in ("Max", "Mean", "Min", "Prod", "Sum")})


def _moments(t, x, axes, keepdims):
    x = t.value(x, t.dtype(x, float))
    mean = t.graph.reduce("Mean", x, axes, True)
    apart = t.graph.add("Sub", x, mean)
    variance = t.graph.reduce("Mean", t.graph.add("Mul", apart, apart), axes, keepdims)
    return mean if keepdims else t.graph.reduce("Mean", x, axes, False), variance


@on("Moments")
def _moments_op(t, op, x):
    return _moments(t, x, op.axes, op.keepdims)


@on("Var")
def _var(t, op, x):
    return _moments(t, x, op.axis, op.keepdims)[1]


@on("Std")
def _std(t, op, x):
    return t.graph.add("Sqrt", _var(t, op, x))


@on("LayerNorm")
def _layer_norm(t, op, x, gamma=None, beta=None):
    axes = sorted(axis % len(x.shape) for axis in ([op.axis] if isinstance(op.axis, int) else op.axis))
    if axes != list(range(axes[0], len(x.shape))) or op.rms_scaling:
        raise ValueError(f"Layer normalization is written to ONNX along the last axes. Received: axis={op.axis}")
    size = [x.shape[axis] for axis in axes]
    gamma = t.value(np.ones(size, "float32") if gamma is None else gamma)
    beta = [] if beta is None else [t.value(beta)]
    epsilon = 1e-7 if op.epsilon is None else float(op.epsilon)
    shape = t.value(x).shape
    return t.graph.add("LayerNormalization", t.value(x), gamma, *beta, shape=shape, axis=axes[0], epsilon=epsilon)


@on("RMSNorm", "RMSNormalization")
def _rms_norm(t, op, x, scale=None):
    x, epsilon = t.value(x), 1e-7 if op.epsilon is None else float(op.epsilon)
    mean = t.graph.reduce("Mean", t.graph.add("Mul", x, x), op.axis, True)
    root = t.graph.add("Sqrt", t.graph.add("Add", mean, t.value(epsilon, "float32")))
    x = t.graph.add("Div", x, root)
    return x if scale is None else t.graph.add("Mul", x, t.value(scale))


@on("BatchNorm")
def _batch_norm(t, op, x, mean, variance, offset=None, scale=None):
    values = [None if v is None else t.value(v) for v in (mean, variance, offset, scale)]
    if any(v is not None and v.make is None for v in values):
        raise ValueError(
            "keras.ops.batch_normalization is written to ONNX with a mean and a variance of weights alone."
        )
    mean, variance, offset, scale = (None if v is None else v.array() for v in values)
    factor = (1 if scale is None else scale) / np.sqrt(variance + op.epsilon)
    shift = (0 if offset is None else offset) - mean * factor
    shape = [-1 if axis == op.axis % len(x.shape) else 1 for axis in range(len(x.shape))]
    factor, shift = (t.graph.constant(v.reshape(shape), "float32") for v in (factor, shift))
    return t.graph.add("Add", t.graph.add("Mul", t.value(x), factor), shift)


@on("Normalize")
def _normalize(t, op, x):
    if op.order != 2:
        raise ValueError(f"keras.ops.normalize is written to ONNX with order=2. Received: {op.order}")
    x = t.value(x)
    norm = t.graph.add("Sqrt", t.graph.reduce("Sum", t.graph.add("Mul", x, x), op.axis, True))
    return t.graph.add("Div", x, t.graph.add("Max", norm, t.value(op.epsilon or 1e-7, "float32")))


@on("Cumsum")
def _cumsum(t, op, x):
    if op.axis is None and len(x.shape) > 1:
        raise ValueError("keras.ops.cumsum is written to ONNX with an axis. Received: axis=None")
    axis = t.graph.constant((op.axis or 0) % len(x.shape), "int64")
    return t.graph.add("CumSum", t.value(x), axis, shape=t.value(x).shape)


@on("Argmax", "Argmin")
def _arg(t, op, x):
    if op.axis is None:
        raise ValueError(f"keras.ops.{type(op).__name__.lower()} is written to ONNX with an axis. Received: axis=None")
    axis = op.axis % len(x.shape)
    x = t.value(x, "int32" if t.value(x).dtype == "bool" else None)
    shape = [1 if a == axis else n for a, n in enumerate(x.shape) if op.keepdims or a != axis]
    name = {"Argmax": "ArgMax", "Argmin": "ArgMin"}[type(op).__name__]
    return t.graph.add(name, x, shape=shape, dtype="int64", axis=axis, keepdims=int(op.keepdims))


@on("Sort", "Argsort")
def _sort(t, op, x):
    x, axis = t.value(x), op.axis % len(x.shape)
    return _top(t, x, x.shape[axis], axis, largest=0)[type(op).__name__ == "Argsort"]


@on("TopK")
def _top_k(t, op, x):
    x = t.value(x)
    return tuple(_top(t, x, op.k, len(x.shape) - 1, largest=1))


def _top(t, x, count, axis, largest):
    shape = tuple(count if a == axis else n for a, n in enumerate(x.shape))
    found = t.graph.add("TopK", x, t.graph.vector([count]), shape=shape, axis=axis, largest=largest, sorted=1)
    return found, t.graph.add("TopK:1", found, dtype="int64")


# Products


@on("Matmul")
def _matmul(t, op, x1, x2):
    dtype = t.dtype(x1, x2)
    x1, x2 = t.value(x1, dtype), t.value(x2, dtype)
    one = [len(x.shape) == 1 for x in (x1, x2)]
    y = t.graph.matmul(t.graph.unsqueeze(x1, [0] * one[0]), t.graph.unsqueeze(x2, [1] * one[1]))
    rank = len(y.shape)
    return t.graph.squeeze(y, [rank - 2] * one[0] + [rank - 1] * one[1])


@on("Tensordot")
def _tensordot(t, op, x1, x2):
    dtype = t.dtype(x1, x2)
    x1, x2 = t.value(x1, dtype), t.value(x2, dtype)
    r1, r2 = len(x1.shape), len(x2.shape)
    first, second = ([*range(r1 - op.axes, r1)], [*range(op.axes)]) if isinstance(op.axes, int) else op.axes
    first, second = ([first] if isinstance(first, int) else first), ([second] if isinstance(second, int) else second)
    first, second = [axis % r1 for axis in first], [axis % r2 for axis in second]
    kept1, kept2 = ([a for a in range(r) if a not in gone] for r, gone in ((r1, first), (r2, second)))
    shape = [x1.shape[a] for a in kept1] + [x2.shape[a] for a in kept2]
    inner = math.prod(n for a in second if isinstance(n := x2.shape[a], int))
    x1 = t.graph.reshape(t.graph.transpose(x1, kept1 + first), (-1, inner))
    x2 = t.graph.reshape(t.graph.transpose(x2, second + kept2), (inner, -1))
    return t.graph.reshape(t.graph.matmul(x1, x2), shape)


@on("Einsum")
def _einsum(t, op, *operands):
    values = [t.value(x, t.dtype(*operands)) for x in operands]
    subscripts = op.subscripts.replace(" ", "")
    terms, _, result = subscripts.partition("->")
    if "." in subscripts or not result:
        raise ValueError(f"keras.ops.einsum is written to ONNX as 'ab,bc->ac'. Received: {op.subscripts!r}")
    sizes = {letter: n for term, x in zip(terms.split(","), values) for letter, n in zip(term, x.shape)}
    return t.graph.add("Einsum", *values, shape=[sizes[letter] for letter in result], equation=subscripts)


@on("DotProductAttention")
def _dot_product_attention(t, op, query, key, value, bias=None, mask=None, scale=None, **_):
    g = t.graph
    query, key, value = (t.value(x) for x in (query, key, value))
    if mask is not None or op.is_causal or query.shape[2] != key.shape[2]:
        raise ValueError("keras.ops.dot_product_attention is written to ONNX without a mask, and with as many heads.")
    scale = float(query.shape[-1]) ** -0.5 if scale is None else scale
    query = g.add("Mul", g.transpose(query, (0, 2, 1, 3)), t.value(scale, query.dtype))
    scores = g.matmul(query, g.transpose(key, (0, 2, 3, 1)))
    scores = scores if bias is None else g.add("Add", scores, t.value(bias, scores.dtype))
    weights = g.add("Softmax", scores, axis=3)
    return g.transpose(g.matmul(weights, g.transpose(value, (0, 2, 1, 3))), (0, 2, 1, 3))


# Images


def _pair(value: Any) -> list[int]:
    return [int(value)] * 2 if isinstance(value, int) else [int(n) for n in value]


def _windows(t, op, operator, x, kernel, strides, spread, *more, channels=None, **attributes):
    """Slide over an image with the channels first, and return it with the channels where they were."""
    if len(x.shape) != 4:
        raise ValueError(f"keras.ops' {type(op).__name__} is written to ONNX for images. Received: {len(x.shape)} axes")
    last = op.data_format != "channels_first"
    x = t.graph.transpose(x, (0, 3, 1, 2)) if last else x
    sizes, pads = [], [[0, 0], [0, 0]]
    for axis, (size, window, stride, dilation) in enumerate(zip(x.shape[2:], kernel, strides, spread)):
        reach = dilation * (window - 1)
        span = size - (reach if op.padding == "valid" else 0) if isinstance(size, int) else None
        sizes.append(None if span is None else -(-span // stride))
        if span is not None and op.padding == "same":
            missing = max(0, (sizes[-1] - 1) * stride + reach + 1 - size)
            pads[axis] = [missing // 2, missing - missing // 2]
    if op.padding == "same" and None in sizes:
        attributes["auto_pad"] = "SAME_UPPER"
    else:  # OpenCV 5 reads `auto_pad` otherwise
        attributes["pads"] = [before for before, _ in pads] + [after for _, after in pads]
    shape = (x.shape[0], channels or x.shape[1], *sizes)
    attributes |= {"kernel_shape": kernel, "strides": strides}
    y = t.graph.add(operator, x, *more, shape=shape, **attributes)
    return t.graph.transpose(y, (0, 2, 3, 1)) if last else y


@on("Conv")
def _conv(t, op, x, kernel):
    x, kernel = t.value(x), t.value(kernel)
    if kernel.make is None or len(kernel.shape) != 4:
        raise ValueError("keras.ops.conv is written to ONNX for images and a kernel of weights alone.")
    size, dilations = list(kernel.shape[:2]), _pair(op.dilation_rate)
    channels = x.shape[1 if op.data_format == "channels_first" else 3]
    kernel = t.graph.transpose(kernel, (3, 2, 0, 1))
    options = {"dilations": dilations, "group": channels // kernel.shape[1]}
    strides = _pair(op.strides)
    return _windows(t, op, "Conv", x, size, strides, dilations, kernel, channels=kernel.shape[0], **options)


@on("MaxPool")
def _max_pool(t, op, x):
    size = _pair(op.pool_size)
    return _windows(t, op, "MaxPool", t.value(x), size, _pair(op.strides or size), (1, 1))


@on("AveragePool")
def _average_pool(t, op, x):
    size = _pair(op.pool_size)
    return _windows(t, op, "AveragePool", t.value(x), size, _pair(op.strides or size), (1, 1), count_include_pad=0)


@on("Resize")
def _resize(t, op, x):
    if op.interpolation != "bilinear" or op.crop_to_aspect_ratio or op.pad_to_aspect_ratio:
        raise ValueError(
            "A keras.layers.Resizing is written to ONNX with interpolation='bilinear' and no aspect ratio kept. "
            f"Received: {op.interpolation!r}. vit_keras' Preprocess layer resizes in other ways."
        )
    x = t.value(x, "float32")
    axes = [2, 3] if op.data_format == "channels_first" else [1, 2]
    shape = list(x.shape)
    for axis, size in zip(axes, op.size):
        shape[axis] = int(size)
    options = {"mode": "linear", "antialias": int(op.antialias), "coordinate_transformation_mode": "half_pixel"}
    # All sizes, and no `axes`: onnxruntime 1.32 forgets them when it moves a transpose across.
    return t.graph.add("Resize", x, OMITTED, OMITTED, t.graph.vector(shape), shape=shape, **options)

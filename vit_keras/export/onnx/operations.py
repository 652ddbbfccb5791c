"""What each operation of `keras.ops` is in ONNX: one table by the names of Keras' classes.

A handler takes the tracer, the operation and the arguments it was called with, and returns a value of the graph, or a
structure of values. Types are Keras' own: the operands of a sum of int64 and float32 are cast to what Keras says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...keras_internals import SymbolicTensor
from .graph import Value, broadcast

__all__ = ["OPERATIONS"]

OPERATIONS: dict[str, Callable[..., Any]] = {}


def on(*names: str) -> Callable:
    def put(handler):
        OPERATIONS.update(dict.fromkeys(names, handler))
        return handler

    return put


# Element by element


def _two(operator: str, *more: Any) -> Callable:
    """Return a handler of an operator with two operands of one type; `more` operands of Keras' rules for types."""

    def handle(t, op, x1, x2):
        dtype = t.dtype(x1, x2, *more)
        return t.graph.add(operator, t.value(x1, dtype), t.value(x2, dtype))

    return handle


def _one(operator: str, **attributes: Any) -> Callable:
    def handle(t, op, x):
        return t.graph.add(operator, t.value(x), **attributes)

    return handle


def _real(operator: str, **attributes: Any) -> Callable:
    """Return a handler of an operator whose result is real, of integers too."""

    def handle(t, op, x):
        return t.graph.add(operator, t.value(x, t.dtype(x, float)), **attributes)

    return handle


OPERATIONS.update(
    {name: _two(operator) for name, operator in {
        "Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Maximum": "Max", "Minimum": "Min", "Power": "Pow",
        "Equal": "Equal", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual", "Less": "Less",
        "LessEqual": "LessOrEqual", "LogicalAnd": "And", "LogicalOr": "Or", "BitwiseAnd": "And", "BitwiseOr": "Or",
    }.items()}
)  # fmt: skip
OPERATIONS.update(
    {name: _one(operator) for name, operator in {
        "Abs": "Abs", "Absolute": "Abs", "LogicalNot": "Not", "Negative": "Neg", "Relu": "Relu", "Sign": "Sign",
    }.items()}
)  # fmt: skip
OPERATIONS.update(
    {name: _real(operator) for name, operator in {
        "Ceil": "Ceil", "Cos": "Cos", "Erf": "Erf", "Exp": "Exp", "Floor": "Floor", "Log": "Log", "Mish": "Mish",
        "Reciprocal": "Reciprocal", "Selu": "Selu", "Sigmoid": "Sigmoid", "Sin": "Sin", "Softplus": "Softplus",
        "SoftSign": "Softsign", "Softsign": "Softsign", "Sqrt": "Sqrt", "Tanh": "Tanh", "HardSwish": "HardSwish",
        "HardSilu": "HardSwish",
    }.items()}
)  # fmt: skip
OPERATIONS["HardSigmoid"] = _real("HardSigmoid", alpha=1 / 6, beta=0.5)
OPERATIONS["Divide"] = OPERATIONS["TrueDivide"] = _two("Div", float)


@on("Identity", "StopGradient")
def _identity(t, op, x):
    return t.value(x)


@on("Cast", "ConvertToTensor")
def _cast(t, op, x):
    dtype = str(op.dtype or x.dtype)
    return t.value(x, "float32" if dtype in ("float16", "bfloat16") else dtype)


@on("NotEqual")
def _not_equal(t, op, x1, x2):
    return t.graph.add("Not", OPERATIONS["Equal"](t, op, x1, x2))


@on("Mod", "Remainder")
def _mod(t, op, x1, x2):
    dtype = t.dtype(x1, x2)
    x1, x2 = t.value(x1, dtype), t.value(x2, dtype)
    if dtype.startswith(("int", "uint")):
        return t.graph.add("Mod", x1, x2)
    quotient = t.graph.add("Floor", t.graph.add("Div", x1, x2))
    return t.graph.add("Sub", x1, t.graph.add("Mul", quotient, x2))


@on("FloorDivide")
def _floor_divide(t, op, x1, x2):
    dtype = t.dtype(x1, x2)
    x1, x2 = t.value(x1, dtype), t.value(x2, dtype)
    if dtype.startswith(("int", "uint")):  # ONNX rounds towards zero
        return t.graph.add("Div", t.graph.add("Sub", x1, t.graph.add("Mod", x1, x2)), x2)
    return t.graph.add("Floor", t.graph.add("Div", x1, x2))


@on("Square")
def _square(t, op, x):
    return t.graph.add("Mul", t.value(x), t.value(x))


@on("Rsqrt")
def _rsqrt(t, op, x):
    return t.graph.add("Reciprocal", t.graph.add("Sqrt", t.value(x)))


@on("Log1p")
def _log1p(t, op, x):
    return t.graph.add("Log", t.graph.add("Add", t.value(x), t.value(1.0, x.dtype)))


@on("Round")
def _round(t, op, x):
    if op.decimals:
        raise ValueError(f"keras.ops.round is written to ONNX with decimals=0. Received: decimals={op.decimals}")
    return t.graph.add("Round", t.value(x))


@on("Clip")
def _clip(t, op, x):
    return t.graph.add("Clip", t.value(x), t.value(op.x_min, x.dtype), t.value(op.x_max, x.dtype))


@on("Gelu")
def _gelu(t, op, x):
    return t.graph.add("Gelu", t.value(x), approximate="tanh" if op.approximate else "none")


@on("Silu", "Swish")
def _silu(t, op, x):
    return t.graph.add("Mul", t.value(x), t.graph.add("Sigmoid", t.value(x)))


@on("Relu6")
def _relu6(t, op, x):
    return t.graph.add("Clip", t.value(x), t.value(0.0, x.dtype), t.value(6.0, x.dtype))


@on("LeakyRelu")
def _leaky_relu(t, op, x):
    return t.graph.add("LeakyRelu", t.value(x), alpha=float(op.negative_slope))


@on("Elu")
def _elu(t, op, x):
    return t.graph.add("Elu", t.value(x), alpha=float(op.alpha))


@on("ReLU")
def _relu_layer(t, op, x):
    if op.threshold:
        raise ValueError(f"keras.layers.ReLU is written to ONNX with threshold=0. Received: {op.threshold}")
    y = t.value(x)
    y = t.graph.add("LeakyRelu", y, alpha=float(op.negative_slope)) if op.negative_slope else t.graph.add("Relu", y)
    return y if op.max_value is None else t.graph.add("Min", y, t.value(op.max_value, x.dtype))


@on("Where")
def _where(t, op, condition, x1, x2):
    dtype = t.dtype(x1, x2)
    return t.graph.add("Where", t.value(condition, "bool"), t.value(x1, dtype), t.value(x2, dtype))


@on("OnesLike", "ZerosLike", "FullLike")
def _full_like(t, op, x, value=None, dtype=None, **_):
    dtype = str(dtype or getattr(op, "dtype", None) or x.dtype)
    value = {"OnesLike": 1, "ZerosLike": 0}.get(type(op).__name__, value)
    return t.graph.expand(t.value(value, dtype), t.value(x).shape)


# Along axes


@on("Softmax")
def _softmax(t, op, x):
    if not isinstance(op.axis, int):
        raise ValueError(f"keras.ops.softmax is written to ONNX along one axis. Received: axis={op.axis}")
    return t.graph.add("Softmax", t.value(x), axis=op.axis % len(x.shape))


@on("LogSoftmax")
def _log_softmax(t, op, x):
    return t.graph.add("LogSoftmax", t.value(x), axis=op.axis % len(x.shape))


def _reduce(kind: str) -> Callable:
    def handle(t, op, x):
        x = t.value(x, t.dtype(x, float) if kind == "Mean" else None)
        return t.graph.reduce(kind, x, op.axis, op.keepdims)

    return handle


OPERATIONS.update({kind: _reduce(kind) for kind in ("Max", "Mean", "Min", "Prod", "Sum")})


def _moments(t, x, axes, keepdims):
    x = t.value(x)
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
    mean, variance, offset, scale = (None if v is None else t.value(v).make() for v in (mean, variance, offset, scale))
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
    axis = t.graph.constant(op.axis % len(x.shape), "int64")
    return t.graph.add("CumSum", t.value(x), axis, shape=t.value(x).shape)


@on("Argmax", "Argmin")
def _arg(t, op, x):
    axis = op.axis % len(x.shape)
    x = t.value(x)
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
    shape = [count if a == axis else n for a, n in enumerate(x.shape)]
    inputs = (x, t.graph.vector([count]))
    values, places = t.graph.add("TopK", *inputs, shapes=[shape, shape], axis=axis, largest=largest, sorted=1)
    places.dtype = "int64"
    return values, places


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
    sizes = []
    for size, window, stride, dilation in zip(x.shape[2:], kernel, strides, spread):
        span = size - (dilation * (window - 1) if op.padding == "valid" else 0) if isinstance(size, int) else None
        sizes.append(None if span is None else -(-span // stride))
    pad = "SAME_UPPER" if op.padding == "same" else "VALID"
    shape = (x.shape[0], channels or x.shape[1], *sizes)
    attributes |= {"kernel_shape": kernel, "strides": strides, "auto_pad": pad}
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
    return t.graph.add("Resize", x, None, None, t.graph.vector(op.size), shape=shape, axes=axes, **options)


# Shapes


def _sizes(t, shape: Any, x: Value | None = None) -> list:
    """Return a shape of Keras as dimensions: `None` at a place is the dimension that `x` has there."""
    return [
        x.shape[axis] if n is None else t.graph.dimension(n.value) if isinstance(n, SymbolicTensor) else int(n)
        for axis, n in enumerate(shape)
    ]


@on("Reshape")
def _reshape(t, op, x):
    x = t.value(x)
    shape = op.newshape if isinstance(op.newshape, (tuple, list)) else [op.newshape]
    return t.graph.reshape(x, _sizes(t, shape, x))


@on("Flatten")
def _flatten(t, op, x):
    x = t.value(x)
    return t.graph.reshape(x, (x.shape[0], -1))


@on("BroadcastTo")
def _broadcast_to(t, op, x):
    x = t.value(x)
    return t.graph.expand(x, broadcast([x.shape, _sizes(t, op.shape, x)]))


@on("Transpose")
def _transpose(t, op, x):
    return t.graph.transpose(t.value(x), range(len(x.shape))[::-1] if op.axes is None else op.axes)


@on("Moveaxis")
def _moveaxis(t, op, x):
    source, target = (
        [a % len(x.shape) for a in (axes if isinstance(axes, (tuple, list)) else [axes])]
        for axes in (op.source, op.destination)
    )
    perm = [axis for axis in range(len(x.shape)) if axis not in source]
    for place, axis in sorted(zip(target, source)):
        perm.insert(place, axis)
    return t.graph.transpose(t.value(x), perm)


@on("Swapaxes")
def _swapaxes(t, op, x):
    perm = list(range(len(x.shape)))
    perm[op.axis1], perm[op.axis2] = perm[op.axis2], perm[op.axis1]
    return t.graph.transpose(t.value(x), perm)


@on("ExpandDims")
def _expand_dims(t, op, x):
    axes = [op.axis] if isinstance(op.axis, int) else list(op.axis)
    return t.graph.unsqueeze(t.value(x), [axis % (len(x.shape) + len(axes)) for axis in axes])


@on("Squeeze")
def _squeeze(t, op, x):
    axes = [op.axis] if isinstance(op.axis, int) else op.axis
    axes = [a for a, n in enumerate(x.shape) if n == 1] if axes is None else [a % len(x.shape) for a in axes]
    return t.graph.squeeze(t.value(x), axes)


@on("Concatenate")
def _concatenate(t, op, xs):
    dtype = t.dtype(*xs)
    return t.graph.concat([t.value(x, dtype) for x in xs], op.axis)


@on("Stack")
def _stack(t, op, xs):
    dtype, axis = t.dtype(*xs), op.axis % (len(xs[0].shape) + 1)
    return t.graph.concat([t.graph.unsqueeze(t.value(x, dtype), [axis]) for x in xs], axis)


@on("Split")
def _split(t, op, x):
    x, axis, parts = t.value(x), op.axis % len(x.shape), op.indices_or_sections
    size = x.shape[axis]
    bounds = list(parts) if not isinstance(parts, int) else [n * (size // parts) for n in range(1, parts)]
    return [t.graph.slice(x, axis, *pair) for pair in zip([0, *bounds], [*bounds, size])]


@on("Repeat")
def _repeat(t, op, x):
    x = t.value(x)
    axis = 0 if op.axis is None else op.axis % len(x.shape)
    x = t.graph.reshape(x, (-1,)) if op.axis is None else x
    count = _sizes(t, [op.repeats])[0]
    wide = t.graph.expand(t.graph.unsqueeze(x, [axis + 1]), (*x.shape[: axis + 1], count, *x.shape[axis + 1 :]))
    return t.graph.reshape(wide, (*x.shape[:axis], -1, *x.shape[axis + 1 :]))


@on("Tile")
def _tile(t, op, x):
    counts = _sizes(t, [op.repeats] if isinstance(op.repeats, int) else op.repeats)
    x = t.value(x)
    x = t.graph.unsqueeze(x, range(max(0, len(counts) - len(x.shape))))
    counts = [1] * (len(x.shape) - len(counts)) + counts
    shape = [n if count == 1 else count if n == 1 else _times(n, count) for n, count in zip(x.shape, counts)]
    return t.graph.add("Tile", x, t.graph.vector(counts), shape=shape)


def _times(size, count):
    return size * count if isinstance(size, int) and isinstance(count, int) else None


@on("Pad")
def _pad(t, op, x, constant_values=None):
    if op.mode != "constant":
        raise ValueError(f"keras.ops.pad is written to ONNX with mode='constant'. Received: {op.mode!r}")
    x = t.value(x)
    before, after = zip(*op.pad_width)
    shape = [n + a + b if isinstance(n, int) else n if a + b == 0 else None for n, a, b in zip(x.shape, before, after)]
    if not any((*before, *after)):
        return x
    return t.graph.add("Pad", x, t.graph.vector([*before, *after]), t.value(constant_values or 0, x.dtype), shape=shape)


@on("Flip")
def _flip(t, op, x):
    axes = range(len(x.shape)) if op.axis is None else [op.axis] if isinstance(op.axis, int) else op.axis
    x = t.value(x)
    for axis in axes:
        x = t.graph.slice(x, axis % len(x.shape), None, None, -1)
    return x


@on("Arange")
def _arange(t, op, start, stop=None, step=None):
    start, stop = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    dtype = op.dtype or t.dtype(start, stop, step)
    values = [t.value(x, "int64" if dtype.startswith(("int", "float")) else dtype) for x in (start, stop, step)]
    size = None
    if step == 1:
        size = t.graph.dimension(t.graph.add("Sub", values[1], values[0]))
    return t.graph.cast(t.graph.add("Range", *values, shape=(size,)), dtype)


@on("Meshgrid")
def _meshgrid(t, op, *xs):
    values = [t.value(x) for x in xs]
    shape = [x.shape[0] for x in values]
    apart = [t.graph.reshape(x, [-1 if a == n else 1 for a in range(len(xs))]) for n, x in enumerate(values)]
    grids = [t.graph.expand(x, shape) for x in apart]
    swapped = [1, 0, *range(2, len(xs))]
    return grids if op.indexing == "ij" else [t.graph.transpose(x, swapped) for x in grids]


@on("Take")
def _take(t, op, x, indices):
    x, indices = t.value(x), t.value(indices, "int64")
    return t.graph.gather(t.graph.reshape(x, (-1,)), indices, 0) if op.axis is None else t.graph.gather(
        x, indices, op.axis % len(x.shape)
    )  # fmt: skip


@on("TakeAlongAxis")
def _take_along_axis(t, op, x, indices):
    x, indices = t.value(x), t.value(indices, "int64")
    axis = op.axis % len(x.shape)
    shape = [n if a == axis else size for a, (n, size) in enumerate(zip(indices.shape, x.shape))]
    indices = t.graph.expand(indices, shape)
    return t.graph.add("GatherElements", x, indices, shape=shape, axis=axis)


@on("GetItem")
def _get_item(t, op, x, key):
    y = t.value(x)
    key = list(key) if isinstance(key, (tuple, list)) else [key]
    taken = sum(k is not None and k is not Ellipsis for k in key)
    at = next((place for place, k in enumerate(key) if k is Ellipsis), None)
    if at is not None:
        key[at : at + 1] = [slice(None)] * (len(y.shape) - taken)
    axis = 0
    for k in key:
        if k is None:
            y = t.graph.unsqueeze(y, [axis])
            axis += 1
        elif isinstance(k, slice):
            start, stop = (n if n is None else _sizes(t, [n])[0] for n in (k.start, k.stop))
            y = t.graph.slice(y, axis, start or 0 if k.step in (None, 1) else start, stop, k.step or 1)
            axis += 1
        elif isinstance(k, (int, np.integer)):
            y = t.graph.gather(y, t.graph.constant(k, "int64"), axis)
        else:
            indices = t.value(k, "int64")
            y = t.graph.gather(y, indices, axis)
            axis += len(indices.shape)
    return y

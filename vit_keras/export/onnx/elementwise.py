"""Operations of Keras whose result at a place depends on their operands at that place alone.

Types are Keras' own: the operands of a sum of int64 and float32 are cast to what Keras says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .trace import OPERATIONS, on

# Element by element


def _two(operator: str, *more: Any) -> Callable[..., Any]:
    """Return a handler of an operator with two operands of one type; `more` operands of Keras' rules for types."""

    def handle(t, op, x1, x2):
        dtype = t.dtype(x1, x2, *more)
        own = _OF_BOOLEANS.get(operator, operator) if dtype == "bool" else operator
        return t.graph.add(own, t.value(x1, dtype), t.value(x2, dtype))

    return handle


_OF_BOOLEANS = {"Add": "Or", "Max": "Or", "BitwiseOr": "Or", "Mul": "And", "Min": "And", "BitwiseAnd": "And"}


def _one(operator: str, **attributes: Any) -> Callable[..., Any]:
    def handle(t, op, x):
        return t.graph.add(operator, t.value(x), **attributes)

    return handle


def _real(operator: str, **attributes: Any) -> Callable[..., Any]:
    """Return a handler of an operator whose result is real, of integers too."""

    def handle(t, op, x):
        return t.graph.add(operator, t.value(x, t.dtype(x, float)), **attributes)

    return handle


OPERATIONS.update(
    {name: _two(operator) for name, operator in {
        "Add": "Add", "Subtract": "Sub", "Multiply": "Mul", "Maximum": "Max", "Minimum": "Min", "Power": "Pow",
        "Equal": "Equal", "Greater": "Greater", "GreaterEqual": "GreaterOrEqual", "Less": "Less",
        "LessEqual": "LessOrEqual", "LogicalAnd": "And", "LogicalOr": "Or", "BitwiseAnd": "BitwiseAnd",
        "BitwiseOr": "BitwiseOr",
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
    y, low, high = t.value(x), t.value(op.x_min, x.dtype), t.value(op.x_max, x.dtype)
    if low.shape == high.shape == ():
        return t.graph.add("Clip", y, low, high)
    return t.graph.add("Min", t.graph.add("Max", y, low), high)


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

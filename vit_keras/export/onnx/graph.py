"""A graph of ONNX operators while it grows: values of known shapes, nodes, and constants that are read when written.

The dimensions of a shape are integers, or names where they are known only when the file runs: `"batch"`, `"height"`,
names of this graph's own, and products such as `"197*batch"`. Equal names are equal sizes. What changes nothing is not
added: a second node like the first, a reshape to the same shape, a cast to the same type.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["OMITTED", "Dimension", "Graph", "Node", "Value", "broadcast"]

Dimension = int | str

BOOLEAN = {"And", "Equal", "Greater", "GreaterOrEqual", "IsInf", "IsNaN", "Less", "LessOrEqual", "Not", "Or"}
ELEMENTWISE = BOOLEAN | {"Abs", "Add", "Cast", "Ceil", "Clip", "Cos", "Div", "Elu", "Erf", "Exp", "Floor", "Gelu"}
ELEMENTWISE |= {"HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish", "Mod", "Mul", "Neg", "Pow"}
ELEMENTWISE |= {"Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub"}
ELEMENTWISE |= {"Tanh", "Where"}
"""Operators whose result at a place depends on their inputs at that place alone."""

TO_THE_END = 2**31 - 1
"""Where a range of an axis stops that goes to its end, however long it is."""


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A tensor of the graph.

    Attributes:
        shape: Its dimensions.
        dtype: NumPy's name of its type.
        node: What computes it; `None` for inputs and constants.
        make: Returns the array of a constant; `None` for anything but a constant.
        name: Of an input; of a constant, a name that its name in the file begins with.
    """

    shape: tuple[Dimension, ...]
    dtype: str
    node: Node | None = None
    make: Callable[[], np.ndarray] | None = None
    name: str = ""

    @property
    def scalar(self) -> Any:
        """The number that a constant without axes is; `None` for anything else."""
        return self.array().item() if self.make is not None and self.shape == () else None

    @property
    def operator(self) -> str:
        """The operator that it comes from; empty for inputs and constants."""
        return self.node.operator if self.node else ""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The inputs of the node that computes it; none for inputs and constants."""
        return self.node.inputs if self.node else ()

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the node that computes it; none for inputs and constants."""
        return self.node.attributes if self.node else {}

    @property
    def sizes(self) -> tuple[int, ...]:
        """Its dimensions that are integers: all of them, for a constant."""
        return tuple(n for n in self.shape if isinstance(n, int))

    def array(self) -> np.ndarray:
        """Return the array of a constant."""
        if self.make is None:
            raise ValueError(f"A constant is needed. Received: {self.dtype} {self.shape}, which depends on the inputs.")
        return self.make()


OMITTED = Value((), "")
"""Stands for an optional input that is left out."""


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """An operator with its inputs; `OMITTED` is an optional input that is left out."""

    operator: str
    inputs: tuple[Value, ...]
    attributes: dict[str, Any]
    scope: str
    outputs: tuple[Value, ...] = ()


class Graph:
    """Inputs, nodes and outputs. The methods add a node, or find that none is needed, and return its value.

    Attributes:
        inputs: Values by name.
        outputs: Values by name.
        scope: What new nodes belong to, such as the path of a layer; their names begin with it.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.scope = ""
        self._known: dict[Any, Any] = {}  # nodes and constants that are there already
        self._sizes: dict[str, Value | tuple[Value, int]] = {}  # a size by its name: itself, or where to read it
        self._names: dict[Value, str] = {}  # the names of scalars that are sizes

    # Inputs, constants and sizes

    def input(self, name: str, shape: Iterable[Dimension], dtype: str) -> Value:
        """Add an input; its named dimensions become known."""
        value = self.inputs[name] = Value(tuple(shape), dtype, name=name)
        for axis, size in enumerate(value.shape):
            if isinstance(size, str):
                self._sizes.setdefault(size, (value, axis))
        return value

    def constant(self, array: Any, dtype: str | None = None) -> Value:
        """Return a constant. Equal small ones are one."""
        array = np.asarray(array, dtype)
        return self.lazy(lambda: array, array.shape, array.dtype.name, key=(array.shape, array.dtype, array.tobytes()))

    def lazy(self, make: Callable[[], np.ndarray], shape: Any, dtype: str, *, key: Any, name: str = "") -> Value:
        """Return a constant whose array is made when it is needed; of one `key` there is one."""
        if key not in self._known:
            self._known[key] = Value(tuple(shape), dtype, make=make, name=name)
        return self._known[key]

    def derived(self, constant: Value, function: Callable[[np.ndarray], np.ndarray], key: Any) -> Value:
        """Return the constant that a function computes from another when it is needed."""
        example = function(np.broadcast_to(np.zeros((), constant.dtype), constant.sizes))  # takes no memory
        make = constant.array
        key = ("derived", constant, key)
        return self.lazy(lambda: function(make()), example.shape, example.dtype.name, key=key, name=constant.name)

    def size(self, dimension: Dimension) -> Value:
        """Return a dimension as a scalar int64."""
        if isinstance(dimension, int) or dimension.isdigit():
            return self.constant(int(dimension), "int64")
        if dimension not in self._sizes:
            first, _, rest = dimension.partition("*")
            return self.add("Mul", self.size(first), self.size(rest))
        known = self._sizes[dimension]
        if isinstance(known, Value):
            return known
        value, axis = known
        scope, self.scope = self.scope, ""
        vector = self.add("Shape", value, shape=(1,), dtype="int64", start=axis, end=axis + 1)
        scalar = self._sizes[dimension] = self.add("Squeeze", vector, shape=())
        self.scope: str = scope
        self._names[scalar] = dimension
        return scalar

    def dimension(self, value: Value) -> Dimension:
        """Return a scalar as a dimension: an integer, or the name of the size that it is."""
        if value.make is not None:
            return int(value.scalar)
        if value not in self._names:
            name = self._names[value] = f"size_{len(self._sizes)}"
            self._sizes[name] = value
        return self._names[value]

    def vector(self, sizes: Iterable[Dimension]) -> Value:
        """Return sizes as one int64 vector."""
        sizes = list(sizes)
        if all(isinstance(size, int) for size in sizes):
            return self.constant(sizes, "int64")
        parts = [self.add("Reshape", self.size(n), self.constant([1], "int64"), shape=(1,)) for n in sizes]
        return self.add("Concat", *parts, shape=(len(sizes),), axis=0)

    # Nodes

    def add(
        self,
        operator: str,
        *inputs: Value,
        shape: Iterable[Dimension | None] | None = None,
        dtype: str | None = None,
        like: Iterable[Value] | None = None,
        **attributes: Any,
    ) -> Any:
        """Add a node of any operator.

        Args:
            operator: Its name in ONNX.
            inputs: Its inputs.
            shape: Shape of its output; `None` for what its inputs are broadcast to. A dimension `None` gets a new name.
            dtype: Type of its output; `None` for the type of the last input (`Where` has its condition first), or bool.
            like: Values with the shapes and types of its outputs, which may be several; then a list is returned.
            **attributes: Attributes of the node.

        Returns:
            The value that it computes.
        """
        several, like = like is not None, list(like or ())
        dtype = like[0].dtype if several else dtype
        if operator in ELEMENTWISE and (simpler := self._simpler(operator, inputs, dtype, attributes)):
            return [simpler] if several else simpler
        key = (operator, inputs, repr(sorted(attributes.items())))
        if key not in self._known:
            node = self._known[key] = Node(operator, inputs, attributes, self.scope)
            kinds = [(each.shape, each.dtype) for each in like]
            if not several:
                shape = broadcast(x.shape for x in inputs) if shape is None else shape
                dtype = dtype or ("bool" if operator in BOOLEAN else inputs[-1 if operator == "Where" else 0].dtype)
                kinds = [(shape, dtype)]
            node.outputs = tuple(self._output(node, *kind) for kind in kinds)
        outputs = self._known[key].outputs
        return list(outputs) if several else outputs[0]

    def _output(self, node: Node, shape: Iterable[Dimension | None], dtype: str) -> Value:
        value = Value((), dtype, node)
        for axis, size in enumerate(shape):
            if size is None:
                size = f"size_{len(self._sizes)}"
                self._sizes[size] = (value, axis)
            value.shape += (size,)
        return value

    def _simpler(
        self, operator: str, inputs: tuple[Value, ...], dtype: str | None, attributes: dict[str, Any]
    ) -> Value | None:
        """Return what an element-wise operator comes to where it need not be added as it is."""
        neutral = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1}.get(operator)
        if neutral is not None:
            pairs = (inputs, inputs[::-1]) if operator in ("Add", "Mul") else (inputs,)
            found = [x for x, y in pairs if y.scalar is not None and y.scalar == neutral]
            if found:
                return found[0]
        if operator == "Mul" and (x := _exact_gelu(*inputs)):
            return self.add("Gelu", x, approximate="none")
        if operator == "Add" and (y := self._biased(*inputs)):
            return y
        # Rows of a matrix that are tokens of images: let them be tokens.
        rows = [x for x in inputs if x is not OMITTED and (x.make is None or len(x.shape) > 1)]
        tokens = {x: whole for x in rows if (whole := self._tokens(x))}
        if not rows or any(x not in tokens for x in rows) or len({x.shape for x in tokens.values()}) > 1:
            return None
        result = self.add(operator, *(tokens.get(x, x) for x in inputs), dtype=dtype, **attributes)
        return self.reshape(result, rows[0].shape)

    def _biased(self, x: Value, bias: Value) -> Value | None:
        """Return `x + bias` where `x` is a convolution without a bias, its channels last, and `bias` one for each."""
        conv = x.inputs[0] if x.operator == "Transpose" and x.attributes["perm"] == [0, 2, 3, 1] else x
        if conv is x or conv.operator != "Conv" or len(conv.inputs) > 2 or bias.make is None:
            return None
        if bias.shape not in ((x.shape[-1],), (1, 1, 1, x.shape[-1])):
            return None
        inputs = (*conv.inputs, self.reshape(bias, (x.shape[-1],)))
        return self.transpose(self.add("Conv", *inputs, shape=conv.shape, **conv.attributes), (0, 2, 3, 1))

    def _tokens(self, x: Value) -> Value | None:
        """Return the tokens of images `(batch, ..., width)` of which `x` is the matrix of all, if it is one."""
        if x.operator != "Reshape" or len(x.shape) != 2:
            return None
        whole = x.inputs[0]
        for kept in range(2, len(whole.shape)):
            if math.prod(n if isinstance(n, int) else 0 for n in whole.shape[kept:]) == x.shape[1]:
                return self.reshape(whole, (*whole.shape[:kept], x.shape[1]))
        return None

    def cast(self, x: Value, dtype: str) -> Value:
        """Convert to another type."""
        if x.dtype == dtype:
            return x
        if x.make is not None:
            return self.derived(x, lambda array: array.astype(dtype), dtype)
        return self.add("Cast", x, dtype=dtype, to=dtype)

    def matmul(self, x: Value, y: Value) -> Value:
        """Multiply matrices, or stacks of them."""
        tokens = self._tokens(x) if y.make is not None and len(y.shape) == 2 else None
        if tokens:
            return self.reshape(self.matmul(tokens, y), (x.shape[0], y.shape[1]))
        shape = (*broadcast([x.shape[:-2], y.shape[:-2]]), x.shape[-2], y.shape[-1])
        return self.add("MatMul", x, y, shape=shape)

    def transpose(self, x: Value, perm: Iterable[int]) -> Value:
        """Permute the axes."""
        perm = [int(axis) % len(x.shape) for axis in perm]
        if x.operator == "Transpose":
            inner = x.attributes["perm"]
            return self.transpose(x.inputs[0], [inner[axis] for axis in perm])
        if perm == sorted(perm):
            return x
        if x.make is not None:
            return self.derived(x, lambda array: array.transpose(perm), ("transpose", *perm))
        return self.add("Transpose", x, shape=[x.shape[axis] for axis in perm], perm=perm)

    def reshape(self, x: Value, shape: Iterable[Dimension]) -> Value:
        """Change the shape. One dimension may be -1: what is left over."""
        given = list(shape)
        rest = _quotient(x.shape, [size for size in given if size != -1]) if -1 in given else None
        sizes: list[Any] = [rest if size == -1 else size for size in given]
        if tuple(sizes) == x.shape:
            return x
        if x.operator == "Reshape":
            return self.reshape(x.inputs[0], [-1 if size is None else size for size in sizes])
        if x.make is not None:
            return self.derived(x, lambda array: array.reshape(sizes), ("reshape", *sizes))
        # A 0 stands for the size of the input, -1 for what is left over.
        plain = [0 if isinstance(n, str) and n == old else n for n, old in zip(sizes, [*x.shape, *sizes])]
        open_ = [n for n in plain if not isinstance(n, int)]
        if len(open_) <= 1:
            target = self.constant([n if isinstance(n, int) else -1 for n in plain], "int64")
        else:
            target = self.vector(-1 if n is None else n for n in sizes)
        return self.add("Reshape", x, target, shape=sizes)

    def expand(self, x: Value, shape: Iterable[Dimension]) -> Value:
        """Repeat along axes of one cell."""
        shape = tuple(shape)
        return x if x.shape == shape else self.add("Expand", x, self.vector(shape), shape=shape)

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Add axes of one cell, counted in the result."""
        shape = list(x.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        if x.make is not None:
            return self.reshape(x, shape)
        return self.add("Unsqueeze", x, self.constant(sorted(axes), "int64"), shape=shape) if axes else x

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """Remove axes of one cell."""
        shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
        return self.add("Squeeze", x, self.constant(sorted(axes), "int64"), shape=shape) if axes else x

    def slice(
        self, x: Value, axis: int, start: Dimension | None = 0, stop: Dimension | None = None, step: int = 1
    ) -> Value:
        """Take a range of an axis, as Python does. An axis of unknown size is assumed to contain the range."""
        size = x.shape[axis]
        if isinstance(size, int) and isinstance(start, int | None) and isinstance(stop, int | None):
            places = range(*slice(start, stop, step).indices(size))
            count = len(places)
            if count == size and step == 1:
                return x
            if x.make is not None:
                index = (slice(None),) * axis + (slice(start, stop, step),)
                return self.derived(x, lambda array: array[index], ("slice", axis, start, stop, step))
            start, stop = places.start, places.stop if places.stop >= 0 else -(2**31)
        elif (start, stop, step) == (0, None, 1) or (start, stop, step) == (0, size, 1):
            return x
        elif step == 1 and start == 0 and not (isinstance(stop, int) and stop < 0):
            count = stop
        elif step == 1 and isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop:
            count = stop - start
        else:
            count = size if (start, stop, step) == (None, None, -1) else None
        first, last = (0, TO_THE_END) if step > 0 else (TO_THE_END, -(2**31))
        start, stop = first if start is None else start, last if stop is None else stop
        ranges = [self.vector([n]) for n in (start, stop, axis)]
        ranges += [self.vector([step])] if step != 1 else []
        return self.add("Slice", x, *ranges, shape=[count if a == axis else n for a, n in enumerate(x.shape)])

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Put values behind each other along an axis."""
        axis %= len(values[0].shape)
        known = [size for x in values if isinstance(size := x.shape[axis], int)]
        total = sum(known) if len(known) == len(values) else None
        shape = [total if a == axis else n for a, n in enumerate(broadcast(x.shape for x in values))]
        return values[0] if len(values) == 1 else self.add("Concat", *values, shape=shape, axis=axis)

    def gather(self, x: Value, indices: Value, axis: int) -> Value:
        """Take cells of an axis."""
        if x.make is not None and indices.make is not None:
            places = indices.make()
            return self.derived(x, lambda array: array.take(places, axis), ("gather", axis, places.tobytes()))
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        return self.add("Gather", x, indices, shape=shape, axis=axis)

    def reduce(self, kind: str, x: Value, axes: Iterable[int] | int | None, keepdims: bool) -> Value:
        """Reduce axes by `"Mean"`, `"Sum"`, `"Max"`, `"Min"` or `"Prod"`; `None` for all."""
        rank = len(x.shape)
        axes = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
        axes = sorted(int(axis) % rank for axis in axes)
        shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
        return self.add(f"Reduce{kind}", x, self.constant(axes, "int64"), shape=shape, keepdims=int(keepdims))


def broadcast(shapes: Iterable[Sequence[Dimension]]) -> tuple[Dimension, ...]:
    """Return the shape that tensors of these shapes are broadcast to.

    Example:
        >>> broadcast([("batch", 1, 8), (5, 1)])
        ('batch', 5, 8)
    """
    shapes = list(shapes)
    result = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis and shape[axis] != 1]
        result.append(next((n for n in sizes if isinstance(n, int)), sizes[0] if sizes else 1))
    return tuple(result)


def _exact_gelu(x: Value, y: Value) -> Value | None:
    """Return z if `x * y` is `0.5 z (1 + erf(z / sqrt(2)))`."""
    for half, one_more in ((x, y), (y, x)):
        if half.operator == "Mul" and one_more.operator == "Add":
            z = _other(half, 0.5)
            erf = _other(one_more, 1)
            if z and erf and erf.operator == "Erf" and (inner := erf.inputs[0]).operator in ("Mul", "Div"):
                factor = math.sqrt(0.5) if inner.operator == "Mul" else math.sqrt(2)
                if _other(inner, factor) is z:
                    return z
    return None


def _other(result: Value, number: float) -> Value | None:
    """Return the input of an operator of two whose other input is a number."""
    for x, y in (result.inputs, result.inputs[::-1]):
        if y.scalar is not None and math.isclose(y.scalar, number, rel_tol=1e-6):
            return x
    return None


def _factors(sizes: Iterable[Dimension]) -> tuple[int, Counter]:
    number, names = 1, Counter()
    for part in (part for size in sizes for part in str(size).split("*")):
        if part.isdigit():
            number *= int(part)
        else:
            names[part] += 1
    return number, names


def _quotient(sizes: Sequence[Dimension], divisors: Sequence[Dimension]) -> Dimension | None:
    """Return the product of sizes, divided by the others; `None` if it cannot be told."""
    (number, names), (divisor, gone) = _factors(sizes), _factors(divisors)
    if number % divisor or gone - names:
        return None
    left = sorted((names - gone).elements())
    if not left:
        return number // divisor
    return "*".join(left if number == divisor else [str(number // divisor), *left])

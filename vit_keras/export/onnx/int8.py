"""Quantize the products with weights in a graph to 8 bits.

Each row that meets a weight matrix, such as a token, is divided by its own range and rounded to one of 255 levels. Each
column of weights has a scale of its own. No calibration is needed, an outlier in one token costs the other tokens no
precision, and the result for an image does not depend on the other images in its batch. The graph contains
`QuantizeLinear` and `DequantizeLinear`; onnxruntime and OpenVINO run them as integer matrix multiplications.

Some channels are much larger than the others in every token, and take the levels of a row for themselves. Where their
size is known from calibration images, a layer normalization divides each channel by a factor, and the weights after it
are multiplied by that factor (SmoothQuant, arXiv 2211.10438, equation 4 with a strength of 0.5). This changes constants
alone.

x86 processors without VNNI (all before 2019, and AMD's before Zen 4) add the products of rows 2i and 2i + 1 of the
weights in 16 bits (`vpmaddubsw`) and cut off what does not fit: the same file would then compute different numbers on
different processors. A row's level is at most 2 * ROWS, so the sum fits if the weights of the same sign in such a pair
add up to at most PAIR. Weights of opposite sign cannot overflow. The scale of each column enforces this limit.
A column whose large weights have no large neighbor of the same sign keeps all 255 levels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .graph import Graph, Node, Value
from .narrow import order

__all__ = ["quantized"]

ROWS = 127
"""Rows have the levels 0 to 2 * ROWS, as unsigned bytes: onnxruntime is fast on x86 only if rows are unsigned."""
WEIGHTS = 127
"""The largest magnitude of a weight's level."""
PAIR = (2**15 - 1) // (2 * ROWS)
"""The largest sum of the levels of two neighboring weights of the same sign."""
LOWEST = {"Gelu": -0.1701, "Relu": 0.0}
"""The smallest output of an operator. Rows from it are shifted to the middle of their range, so that no level is lost
to negative numbers that do not occur."""
LARGE = 1024
"""Constants with fewer elements stay float32."""
TINY = 1e-6
"""Added to the range of a row, so that rows of zeros stay zeros."""


def quantized(graph: Graph, largest: Mapping[str, Sequence[float]] | None = None) -> Graph:
    """Return a graph that multiplies by weights in 8 bits and stores other large weights in half precision.

    Products of two tensors that both depend on the inputs, as in attention, stay float32. So do all other operations.

    `largest` is from `calibration.largest_channels`; without it, the channels of layer normalizations stay as they are.

    Example:
        >>> graph = Graph()
        >>> tokens = graph.input("tokens", ("batch", 197, 64), "float32")
        >>> graph.outputs["y"] = graph.matmul(tokens, graph.constant(np.eye(64, dtype="float32")))
        >>> " ".join(node.operator for node in order(quantized(graph)))
        'Abs ReduceMax Add Div QuantizeLinear DequantizeLinear DequantizeLinear MatMul Mul'
    """
    new = Graph()
    made: dict[Value, Value] = {x: new.input(name, x.shape, x.dtype) for name, x in graph.inputs.items()}
    factors = _factors(graph, largest or {})
    for node in order(graph):
        new.scope = node.scope
        inputs = [made.get(x, x) for x in node.inputs]
        if node.outputs[0] in factors:
            inputs[1:] = [_scaled(new, x, 1 / factors[node.outputs[0]]) for x in inputs[1:]]
        elif _is_product(node) and _whole(node.inputs[0]) in factors:
            inputs[1] = _scaled(new, inputs[1], factors[_whole(node.inputs[0])])
        if _is_product(node):
            outputs = [_product(new, *inputs)]
        else:
            halves = (_half(new, x) for x in inputs)
            outputs = new.add(node.operator, *halves, like=node.outputs, **node.attributes)
        made.update(zip(node.outputs, outputs))
    new.outputs = {name: made.get(x, x) for name, x in graph.outputs.items()}
    return new


def _is_product(node: Node) -> bool:
    """Return whether a node multiplies by weights in 8 bits."""
    return node.operator == "MatMul" and _large(node.inputs[1], ranks=(2,))


def _whole(value: Value) -> Value:
    """Return the tokens of which a value is some, with all their channels; else the value."""
    while value.operator == "Slice" and value.inputs[0].shape[-1:] == value.shape[-1:]:
        value = value.inputs[0]
    return value


def _factors(graph: Graph, largest: Mapping[str, Sequence[float]]) -> dict[Value, np.ndarray]:
    """Return what to divide each channel by, for each output of a layer normalization that only products read."""
    readers: dict[Value, list[Node | None]] = {_whole(x): [None] for x in graph.outputs.values()}
    for node in order(graph):
        for x in node.inputs:
            if node.operator != "Slice":  # who reads the part counts
                readers.setdefault(_whole(x), []).append(node)
    found = {}
    for value, nodes in readers.items():
        norm = value.node
        if norm is None or norm.operator != "LayerNormalization" or norm.scope not in largest:
            continue
        products = [node for node in nodes if node is not None and _is_product(node)]
        scaled = len(norm.inputs) == 3 and all(x.make and x.shape == value.shape[-1:] for x in norm.inputs[1:])
        if scaled and len(products) == len(nodes):
            rows = np.maximum(np.asarray(largest[norm.scope], "float32"), TINY)
            weights = np.max([np.abs(node.inputs[1].array()).max(axis=1) for node in products], axis=0)
            logarithm = (np.log(rows) - np.log(np.maximum(weights, TINY))) / 2
            found[value] = np.exp(logarithm - logarithm.mean())
    return found


def _scaled(graph: Graph, constant: Value, factors: np.ndarray) -> Value:
    """Return a constant with its first axis multiplied by factors."""
    shape = (-1, *(1 for _ in constant.shape[1:]))
    return graph.derived(constant, lambda array: array * factors.reshape(shape), ("scaled", factors.tobytes()))


def _large(x: Value, ranks: tuple[int, ...]) -> bool:
    """Return whether a value is a large constant with this number of axes."""
    constant = x.make is not None and x.dtype == "float32"
    return constant and len(x.shape) in ranks and math.prod(x.sizes) >= LARGE


def _product(graph: Graph, x: Value, weights: Value) -> Value:
    """Multiply rows by weights, both in 8 bits."""
    middle, half = _range(graph, x)
    step, zero = graph.constant(1 / ROWS, "float32"), graph.constant(ROWS, "uint8")
    rows = graph.add("Div", x if middle is None else graph.add("Sub", x, middle), half)
    rows = graph.add("QuantizeLinear", rows, step, zero, shape=x.shape, dtype="uint8")
    rows = graph.add("DequantizeLinear", rows, step, zero, shape=x.shape, dtype="float32")
    scales = graph.derived(weights, _scales, "scales")
    columns = graph.derived(weights, _levels, "int8")
    columns = graph.add("DequantizeLinear", columns, scales, shape=weights.shape, dtype="float32", axis=1)
    product = graph.add("Mul", graph.matmul(rows, columns), half)
    if middle is None:
        return product
    sums = graph.derived(weights, lambda array: _levels(array).sum(axis=0, dtype="float32") * _scales(array), "sums")
    return graph.add("Add", product, graph.add("Mul", middle, sums))


def _range(graph: Graph, x: Value) -> tuple[Value | None, Value]:
    """Return the middle of the range of each row, or `None` for zero, and half of its width."""
    tiny, lowest = graph.constant(TINY, "float32"), LOWEST.get(x.operator)
    if lowest is None:
        return None, graph.add("Add", graph.reduce("Max", graph.add("Abs", x), -1, keepdims=True), tiny)
    lowest = graph.constant(lowest, "float32")
    width = graph.add("Sub", graph.reduce("Max", x, -1, keepdims=True), lowest)
    half = graph.add("Add", graph.add("Mul", width, graph.constant(0.5, "float32")), tiny)
    return graph.add("Add", half, lowest), half


def _scales(weights: np.ndarray) -> np.ndarray:
    """Return the value of one level in each column."""
    pairs = np.pad(weights, ((0, len(weights) % 2), (0, 0))).reshape(-1, 2, weights.shape[1])
    largest = np.maximum(*(np.maximum(each, 0).sum(axis=1).max(axis=0) for each in (pairs, -pairs)))
    # Two numbers with a sum below an integer do not exceed that integer after rounding: hence less than PAIR.
    scales = np.maximum(largest / (PAIR - 0.01), np.abs(weights).max(axis=0) / WEIGHTS)
    return np.maximum(scales, np.finfo("float32").tiny).astype("float32")


def _levels(weights: np.ndarray) -> np.ndarray:
    """Return the level of each weight."""
    return np.rint(weights / _scales(weights)).clip(-WEIGHTS, WEIGHTS).astype("int8")


def _half(graph: Graph, x: Value) -> Value:
    """Return a large constant as one that is stored in half precision and read into float32, if it fits."""
    if not _large(x, ranks=(2, 3, 4)) or np.abs(x.array()).max() > np.finfo("float16").max:
        return x
    return graph.add("Cast", graph.cast(x, "float16"), dtype="float32", to="float32")

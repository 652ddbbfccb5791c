"""A graph whose products with weights are computed in 8 bits.

Every row that meets a matrix of weights, such as a token, is divided by its own largest magnitude and then rounded to
one of 211 levels; of the weights each column has its own scale, and 155 levels. So nothing is to be calibrated, a token
with large values costs no other one its precision, and a picture's answer does not depend on the others in its batch.
All is written in `QuantizeLinear` and `DequantizeLinear`, of which onnxruntime and OpenVINO make products of integers.

8 bits have 256 levels. But x86 processors without VNNI (all before 2019, and AMD's before Zen 4) add two products of
bytes in 16 bits, and cut off what does not fit: with all levels, the same file computes other numbers on them. With
these, `2 * (MIDDLE + ROWS) * WEIGHTS` fits. More levels for rows than for weights, because rows have larger outliers.
"""

from __future__ import annotations

import math

import numpy as np

from .graph import Graph, Value
from .narrow import order

__all__ = ["quantized"]

ROWS, WEIGHTS = 105, 77
"""The largest integer that rows and weights become; the least is its negative."""
MIDDLE = ROWS + 1
"""What stands for zero in rows: onnxruntime is fast on x86 for unsigned rows and signed weights alone."""
LEAST = 1024
"""Weights of a constant below which it stays as it is."""
TINY = 1e-6
"""What is added to a row's largest magnitude: rows of zeros stay zeros."""


def quantized(graph: Graph) -> Graph:
    """Return a graph that multiplies by weights in 8 bits; other large weights are stored in half precision.

    Products of two tensors that both depend on the inputs, as in attention, stay float32, and so does all in between.

    Example:
        >>> graph = Graph()
        >>> tokens = graph.input("tokens", ("batch", 197, 64), "float32")
        >>> graph.outputs["y"] = graph.matmul(tokens, graph.constant(np.eye(64, dtype="float32")))
        >>> " ".join(node.operator for node in order(quantized(graph)))
        'Abs ReduceMax Add Div QuantizeLinear DequantizeLinear DequantizeLinear MatMul Mul'
    """
    new = Graph()
    made: dict[Value, Value] = {x: new.input(name, x.shape, x.dtype) for name, x in graph.inputs.items()}
    for node in order(graph):
        new.scope = node.scope
        inputs = [x if x is None or x.make else made[x] for x in node.inputs]
        if node.operator == "MatMul" and _large(inputs[1], ranks=(2,)):
            outputs = [_product(new, *inputs)]
        else:
            halves = (_half(new, x) for x in inputs)
            outputs = new.add(node.operator, *halves, like=node.outputs, **node.attributes)
        made.update(zip(node.outputs, outputs))
    new.outputs = {name: made.get(x, x) for name, x in graph.outputs.items()}
    return new


def _large(x: Value | None, ranks: tuple[int, ...]) -> bool:
    """Return whether a value is a large constant with so many axes."""
    constant = x is not None and x.make is not None and x.dtype == "float32"
    return constant and len(x.shape) in ranks and math.prod(x.shape) >= LEAST


def _product(graph: Graph, x: Value, weights: Value) -> Value:
    """Multiply rows by weights, both of 8 bits."""
    largest = graph.reduce("Max", graph.add("Abs", x), -1, keepdims=True)
    largest = graph.add("Add", largest, graph.constant(TINY, "float32"))
    step, middle = graph.constant(1 / ROWS, "float32"), graph.constant(MIDDLE, "uint8")
    rows = graph.add("QuantizeLinear", graph.add("Div", x, largest), step, middle, shape=x.shape, dtype="uint8")
    rows = graph.add("DequantizeLinear", rows, step, middle, shape=x.shape, dtype="float32")
    scales = graph.derived(weights, _scales, "scales")
    columns = graph.derived(weights, lambda array: np.rint(array / _scales(array)).astype("int8"), "int8")
    columns = graph.add("DequantizeLinear", columns, scales, shape=weights.shape, dtype="float32", axis=1)
    return graph.add("Mul", graph.matmul(rows, columns), largest)


def _scales(weights: np.ndarray) -> np.ndarray:
    """Return what one level of each column is worth."""
    return np.maximum(np.abs(weights).max(axis=0), np.finfo("float32").tiny * WEIGHTS) / np.float32(WEIGHTS)


def _half(graph: Graph, x: Value | None) -> Value | None:
    """Return a large constant as one that is stored in half precision and read into float32, if it fits."""
    if not _large(x, ranks=(2, 3, 4)) or np.abs(x.make()).max() > np.finfo("float16").max:
        return x
    return graph.add("Cast", graph.cast(x, "float16"), dtype="float32", to="float32")

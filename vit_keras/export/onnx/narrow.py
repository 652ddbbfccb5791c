"""A graph that computes only what its outputs need.

Two things are found by looking at a whole graph. The head of most models sees one token alone: the last block then
computes its queries, its MLP and all else after its keys and values for that token. And the queries' factor belongs
into the weights that make them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .graph import ELEMENTWISE, TO_THE_END, Graph, Node, Value

__all__ = ["narrowed", "order"]


class _Range(NamedTuple):
    """Cells of an axis."""

    axis: int
    start: int
    stop: int


def order(graph: Graph) -> list[Node]:
    """Return the nodes that the outputs need, each after those that it needs itself."""
    found: dict[Node, None] = {}
    pending: list[tuple[Node, Iterator[Value]]] = []
    seen: set[Node] = set()

    def visit(value: Value) -> None:
        if value.node is not None and value.node not in seen:
            seen.add(value.node)
            pending.append((value.node, iter(value.node.inputs)))

    for output in graph.outputs.values():
        visit(output)
        while pending:
            node, inputs = pending[-1]
            following = next(inputs, None)
            if following is None:
                found[node] = None
                pending.pop()
            else:
                visit(following)
    return list(found)


def narrowed(graph: Graph) -> Graph:
    """Return a graph with the same outputs that computes only the cells which are needed.

    Example:
        >>> graph = Graph()
        >>> tokens = graph.input("tokens", ("batch", 197, 8), "float32")
        >>> graph.outputs["token"] = graph.slice(graph.add("Relu", tokens), 1, 0, 1)
        >>> [node.operator for node in order(narrowed(graph))]
        ['Slice', 'Relu']
    """
    nodes = order(graph)
    wanted = _wanted(graph, nodes)
    uses = Counter(x for node in nodes for x in node.inputs)
    uses.update(graph.outputs.values())
    new = Graph()
    made: dict[Value, Value] = {x: new.input(name, x.shape, x.dtype) for name, x in graph.inputs.items()}
    for node in nodes:
        new.scope = node.scope
        for x in node.inputs:  # constants and `OMITTED` are the same in both graphs
            made.setdefault(x, x)
        cells = wanted.get(node.outputs[0])
        picked = _picked(node)
        if cells and (below := _below(node, cells)):
            result = [_fewer(new, node, cells, below, made, wanted, uses)]
        elif picked and node.inputs[0] in wanted:
            result = [_few(new, node.inputs[0], picked, made, wanted)]
            result = [new.squeeze(result[0], [picked.axis])] if node.operator == "Gather" else result
        else:
            result = _again(new, node, [made[x] for x in node.inputs], uses)
        made.update(zip(node.outputs, result))
    new.outputs = {name: made.get(x, x) for name, x in graph.outputs.items()}
    return new


def _again(
    graph: Graph, node: Node, inputs: Sequence[Value], uses: Counter, outputs: Sequence[Value] = ()
) -> list[Value]:
    """Add a node of another graph; `outputs` are like those that it has now."""
    if scaled := _scaled_weights(graph, node, inputs, uses):
        return [scaled]
    return graph.add(node.operator, *inputs, like=outputs or node.outputs, **node.attributes)


# Weights that are multiplied once, before the file runs, instead of their products each time


def _scaled_weights(graph: Graph, node: Node, inputs: Sequence[Value], uses: Counter) -> Value | None:
    """Return what a node multiplies by a number, made of weights multiplied by it, if nothing else needs it."""
    if node.operator != "Mul" or node.inputs[1].scalar is None:
        return None
    for x, counts in ((node.inputs[0], uses), (inputs[0], Counter())):
        while x.operator in ("Transpose", "Reshape") and counts[x] <= 1:
            x = x.inputs[0]
        product = x.inputs[0] if x.operator == "Add" and x.inputs[1].make else x
        if product.operator != "MatMul" or not product.inputs[1].make or counts[x] > 1 or counts[product] > 1:
            return None
    return _times(graph, inputs[0], node.inputs[1].scalar)


def _times(graph: Graph, x: Value, factor: float) -> Value:
    if x.operator == "Transpose":
        return graph.transpose(_times(graph, x.inputs[0], factor), x.attributes["perm"])
    if x.operator == "Reshape":
        return graph.add("Reshape", _times(graph, x.inputs[0], factor), x.inputs[1], shape=x.shape)
    first, constant = x.inputs
    constant = graph.derived(constant, lambda array: array * np.float32(factor), ("times", factor))
    if x.operator == "Add":
        return graph.add("Add", _times(graph, first, factor), constant)
    return graph.matmul(first, constant)


# Cells that are needed


def _wanted(graph: Graph, nodes: Sequence[Node]) -> dict[Value, _Range]:
    """Return the cells of a value that are needed, for each of which only few are and whose node can do with them."""
    asked: dict[Value, set[_Range | None]] = defaultdict(set)
    for output in graph.outputs.values():
        asked[output].add(None)
    wanted = {}
    for node in reversed(nodes):
        cells = _hull(asked[node.outputs[0]]) if len(node.outputs) == 1 else None
        below = None if cells is None else _below(node, cells)
        if below is not None:
            wanted[node.outputs[0]] = cells
        else:
            below = [_picked(node), *[None] * (len(node.inputs) - 1)]
        for x, each in zip(node.inputs, below):
            asked[x].add(each)
    return wanted


def _hull(ranges: set[_Range | None]) -> _Range | None:
    """Return the range that holds all; `None` for whole tensors, or ranges of several axes."""
    known = [cells for cells in ranges if cells is not None]
    if len(known) < len(ranges) or len({cells.axis for cells in known}) != 1:
        return None
    axes, starts, stops = zip(*known)
    return _Range(axes[0], min(starts), max(stops))


def _picked(node: Node) -> _Range | None:
    """Return the cells that a node takes of its first input, if it is one that takes few."""
    x = node.inputs[0]
    if node.operator == "Gather" and node.inputs[1].scalar is not None and node.inputs[1].scalar >= 0:
        axis, start = node.attributes["axis"], node.inputs[1].scalar
        cells = _Range(axis, start, start + 1)
    elif node.operator == "Slice" and len(node.inputs) == 4 and all(each.make for each in node.inputs[1:]):
        start, stop, axis = (int(each.array()[0]) for each in node.inputs[1:])
        size = x.shape[axis]
        cells = _Range(axis, start, min(stop, size) if isinstance(size, int) else stop)
    else:
        return None
    size = x.shape[cells.axis]
    few = cells.stop < TO_THE_END if isinstance(size, str) else 4 * (cells.stop - cells.start) <= size
    return cells if few and 0 <= cells.start < cells.stop else None


def _below(node: Node, cells: _Range) -> list[_Range | None] | None:
    """Return the cells of its inputs that a node needs for some of its output; `None` if it cannot do with fewer."""
    output, (axis, start, stop) = node.outputs[0], cells
    rank = len(output.shape)

    def same(x: Value) -> _Range | None:
        own = axis - rank + len(x.shape)
        return _Range(own, start, stop) if own >= 0 and x.shape[own] != 1 else None

    first = node.inputs[0]
    others = [None] * (len(node.inputs) - 1)
    if node.operator in ELEMENTWISE:
        return [same(x) for x in node.inputs]
    if node.operator in ("Softmax", "LayerNormalization") and axis < node.attributes["axis"] % rank:
        return [cells, *others]
    if node.operator == "MatMul" and (axis == rank - 2 or (axis < rank - 2 and len(node.inputs[1].shape) == 2)):
        return [same(first), None]
    if node.operator == "Transpose":
        return [_Range(node.attributes["perm"][axis], start, stop)]
    if node.operator == "Reshape" and first.shape[: axis + 1] == output.shape[: axis + 1] and node.inputs[1].make:
        return [cells, None]
    if node.operator == "Slice" and (picked := _picked(node)) and picked.axis == axis:
        return [_Range(axis, picked.start + start, picked.start + stop), *others]
    if node.operator == "Concat" and node.attributes["axis"] == axis:
        within = _piece(node, cells)
        return None if within is None else [within[1] if x is within[0] else None for x in node.inputs]
    if node.operator == "Concat":
        return [cells for _ in node.inputs]
    return None


def _piece(node: Node, cells: _Range) -> tuple[Value, _Range] | None:
    """Return the one input of a concatenation that all the cells are in, and its cells."""
    at = 0
    for x in node.inputs:
        size = x.shape[cells.axis]
        if not isinstance(size, int):
            return None
        if at <= cells.start and cells.stop <= at + size:
            return x, _Range(cells.axis, cells.start - at, cells.stop - at)
        at += size
    return None


def _few(graph: Graph, x: Value, cells: _Range, made: dict[Any, Any], wanted: dict[Any, Any]) -> Value:
    """Return some cells of a value, of which the new graph may have but few already."""
    there = wanted[x].start if x in wanted else 0
    return graph.slice(made[x], cells.axis, cells.start - there, cells.stop - there)


def _fewer(
    graph: Graph,
    node: Node,
    cells: _Range,
    below: Sequence[_Range | None],
    made: dict[Any, Any],
    wanted: dict[Any, Any],
    uses: Counter,
) -> Value:
    """Add a node that computes only some cells of what it did, from some cells of its inputs (`_below`)."""
    inputs = [made[x] if own is None else _few(graph, x, own, made, wanted) for x, own in zip(node.inputs, below)]
    if node.operator == "Slice" or (node.operator == "Concat" and node.attributes["axis"] == cells.axis):
        return next(x for x, own in zip(inputs, below) if own is not None)
    count, output = cells.stop - cells.start, node.outputs[0]
    if node.operator == "Reshape":
        target = inputs[1].array().copy()
        target[cells.axis] = count
        inputs[1] = graph.constant(target)
    shape = tuple(count if axis == cells.axis else n for axis, n in enumerate(output.shape))
    return _again(graph, node, inputs, uses, [Value(shape, output.dtype)])[0]

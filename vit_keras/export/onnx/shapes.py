"""Operations of Keras that change shapes, or take and join parts of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...backend.keras_internals import SymbolicTensor
from .graph import Dimension, broadcast
from .trace import on


def _sizes(t, shape: Any, own: Sequence[Dimension] = ()) -> list[Any]:
    """Return a shape of Keras as dimensions: `None` at a place is the dimension that `own` has there."""
    return [
        own[axis] if n is None else t.graph.dimension(n.value) if isinstance(n, SymbolicTensor) else int(n)
        for axis, n in enumerate(shape)
    ]


@on("Reshape")
def _reshape(t, op, x):
    x = t.value(x)
    shape = op.newshape if isinstance(op.newshape, (tuple, list)) else [op.newshape]
    return t.graph.reshape(x, _sizes(t, shape, x.shape))


@on("Flatten")
def _flatten(t, op, x):
    x = t.value(x)
    return t.graph.reshape(x, (x.shape[0], -1))


@on("BroadcastTo")
def _broadcast_to(t, op, x):
    x = t.value(x)
    return t.graph.expand(x, broadcast([x.shape, _sizes(t, op.shape, x.shape)]))


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
    if isinstance(parts, int) and not isinstance(size, int):
        raise ValueError(f"keras.ops.split is written to ONNX along an axis of known size. Received: axis={op.axis}")
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
    if len(op.pad_width) != len(x.shape):  # the backends differ
        raise ValueError(f"keras.ops.pad is written to ONNX with a pair for each axis. Received: {op.pad_width}")
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
    whole = t.dtype(start, stop, step).startswith(("int", "uint"))
    values = [t.value(x, "int64" if whole else dtype) for x in (start, stop, step)]
    size = None
    if whole and step == 1:
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
    if op.axis is None:
        raise ValueError("keras.ops.take_along_axis is written to ONNX with an axis. Received: axis=None")
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
    if sum(not isinstance(k, (slice, int, np.integer, type(None))) for k in key) > 1:
        raise ValueError("An index is written to ONNX with one array in it. Received several: x[:, rows, columns]")
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
            indices = t.value(np.asarray(k) if isinstance(k, (list, tuple)) else k)
            if indices.dtype == "bool":
                if len(indices.shape) != 1:
                    raise ValueError(f"A mask is written to ONNX along one axis. Received: {len(indices.shape)} axes")
                indices = t.value(np.flatnonzero(indices.array()))
            indices = t.graph.cast(indices, "int64")
            y = t.graph.gather(y, indices, axis)
            axis += len(indices.shape)
    return y

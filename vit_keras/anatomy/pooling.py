"""The tokens that a model's output is computed from, and how they become one vector."""

from __future__ import annotations

import bisect
import contextlib
from typing import Any

import keras
import numpy as np

from .. import layers
from ..backend.keras_internals import flat_layers, kept, origin
from ..layers.tokens import MeanToken, PatchMap
from .outputs import outputs_of
from .parts import blocks, checked, final_norm, find_vit, has_attention, learner, prefix_names

__all__ = ["pooling", "readout", "runs", "shows_attention"]


def readout(model: keras.Model) -> list[slice]:
    """Return the tokens of the last block that the output is computed from, as slices whose means are averaged."""
    inside, prefix = flat_layers(checked(model)), prefix_names(model)
    single = [slice(layer.index, layer.index + 1) for layer in inside if isinstance(layer, layers.ExtractToken)]
    maps = [layer for layer in inside if isinstance(layer, PatchMap)]
    if "cls" in prefix and any(layer.return_prefix for layer in maps):
        single.append(slice(0, 1))
    patches = [layer for layer in inside if isinstance(layer, MeanToken)] + maps[:1]
    means = [slice(layer.prefix_tokens, None) for layer in patches]
    found = single + means
    if not found and not any(isinstance(layer, layers.AttentionPooling) for layer in inside):
        found = _read_by(pooling(model), len(prefix))
    return found or [slice(0, 1) if "cls" in prefix else slice(len(prefix), None)]


def pooling(model: keras.Model) -> keras.Model | None:
    """Return the layers that make one vector of the tokens that a ViT returns, as a functional model."""
    model = learner(model)
    vit = find_vit(model)
    last = vit if model is not vit else final_norm(vit) or blocks(vit)[-1]
    with contextlib.suppress(ValueError):  # without a graph
        return kept(model, ("pooling", id(outputs_of(model)[0])), lambda: _behind(last, model))
    return None


def runs(model: keras.Model) -> int:
    """Return how many times a model runs its ViT for a batch of images: 2 if it is siamese."""
    model = learner(model)
    vit, counted, seen = find_vit(model), 0, set()
    waiting: list[Any] = []
    if model is not vit:
        with contextlib.suppress(ValueError):  # without a graph
            waiting = outputs_of(model)
    while waiting:
        tensor = waiting.pop()
        operation, inputs = origin(tensor)
        call = (id(operation), *map(id, inputs))
        if call not in seen:
            seen.add(call)
            waiting += inputs
            if _holds(operation, vit):
                counted += runs(operation) if isinstance(operation, keras.Model) else 1
    return counted or 1


def shows_attention(model: keras.Model) -> bool:
    """Return whether a model has attention to show for an image: one ViT, with attention, that runs once."""
    return has_attention(model) and runs(model) == 1


def _behind(last: keras.layers.Layer, model: keras.Model, whole: bool = False) -> keras.Model | None:
    """Return what makes the first vector of the tokens that a layer returns or, if `whole`, the model's output."""
    tensor = output = outputs_of(model)[0]
    passed = []
    while not _holds((step := origin(tensor))[0], last):
        passed.append(tensor)
        tensor = next((x for x in step[1] if _comes_from(x, last)), None)
        if tensor is None:
            return None
    inner = step[0] if isinstance(step[0], keras.Model) else None
    if len(tensor.shape) != 3:
        return None if inner is None else _behind(last, inner, whole)
    vectors = [x for x in passed[::-1] if len(x.shape) == 2 and not _comes_from(output, tensor, without=x)]
    end = output if whole else next(iter(vectors), None)
    if end is None:
        return None
    before = None if inner is None else _behind(last, inner, whole=True)
    if end is tensor:
        return before
    after = keras.Model(tensor, end)
    return after if before is None else keras.Model(before.input, after(before.output))


def _holds(operation: Any, last: keras.layers.Layer) -> bool:
    return isinstance(operation, keras.layers.Layer) and any(layer is last for layer in flat_layers(operation))


def _comes_from(tensor: Any, source: Any, without: Any = None) -> bool:
    """Return whether a layer or a tensor is on the way to a tensor, on a way that does not lead through another one."""
    waiting, seen = [tensor], {id(without)}
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            operation, inputs = origin(each)
            if each is source or _holds(operation, source):
                return True
            waiting += inputs
    return False


def _read_by(pooled: keras.Model | None, prefix: int) -> list[slice]:
    """Return the tokens that a pooling reads, from the first to the last that changes what it returns for zeros."""
    if pooled is None:
        return []
    _, count, width = pooled.input_shape
    count = count or prefix + 4
    values = np.random.default_rng(0).normal(size=(1, count, width)).astype("float32")

    def returned(part):
        tokens = np.zeros_like(values)
        tokens[:, part] = values[:, part]
        return keras.ops.convert_to_numpy(pooled(tokens, training=False))

    nothing = returned(slice(0))
    first, after = (
        bisect.bisect_left(range(count), True, key=lambda n: bool((returned(part(n)) != nothing).any()))
        for part in (lambda n: slice(0, n + 1), lambda n: slice(count - 1 - n, None))
    )
    return [] if first == count else [slice(first, count - after if after else None)]

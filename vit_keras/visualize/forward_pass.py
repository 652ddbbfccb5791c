"""Run a model once and collect the arrays of a plan.

The layers show what they compute (`_internal.tap`), so no second model is built, and it does not matter how deep
the Vision Transformer is nested in another model. The pass is compiled once for a model and a plan.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from .._internal.tap import tap
from ..anatomy.dry_run import readout
from ..anatomy.parts import attention_blocks, final_norm, find_vit, prefix_names
from ..backend import compiled
from ..layers import AttentionPooling
from .gradients import gradients_of, logits_only, torch_gradients
from .recording import fuse_heads


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a recording, by which compiled functions are told apart."""

    layers: tuple[int, ...]  # numbers of the blocks, rising
    keep: frozenset[str] = frozenset()  # of "attention", "values", "tokens" and "normed"
    head_fusion: str | None = None
    query: str = "all"  # "all" rows of attention, or "auto": the mean of those that the output is read from
    # whether each block leaves through the rest of the model; "patches": each patch by itself
    exits: bool | str = False
    target: str | Callable[..., Any] | None = None  # what gradients are of: None, "class" or a function of the outputs


def watch(model: keras.Model, inputs: np.ndarray, classes: np.ndarray | None, plan: Plan) -> dict[str, Any]:
    """Run a model once and return the arrays of a plan, under the names of `Recording`'s fields."""
    if not model.built:
        model(inputs[:1])
    read = readout(model)
    with torch_gradients(plan.target is not None):
        tensors = [ops.convert_to_tensor(array) for array in (inputs, classes) if array is not None]
        seen = compiled.run(
            model, functools.partial(_observe, plan, read), *tensors, key=("record", plan, read.tobytes())
        )
    return {name: _array(value) for name, value in seen.items()}


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, list):
        return ops.convert_to_numpy(value)
    array = np.empty((len(value), *value[0].shape), keras.backend.standardize_dtype(value[0].dtype))
    for n in range(len(value)):  # one by one, so that not all of them are there twice
        array[n], value[n] = ops.convert_to_numpy(value[n]), None
    return array


def _observe(plan: Plan, read: np.ndarray, model: keras.Model, images: Any, classes: Any = None) -> dict[str, Any]:
    vit = find_vit(model)

    def forward(watch):
        visitor = _Visitor(model, read, plan, watch)
        with tap(visitor), contextlib.nullcontext() if callable(plan.target) else logits_only(model):
            outputs = model(images, training=False)
        visitor.check()
        score, chosen = _score(outputs, classes, plan)
        sources = [visitor.sources[n] for n in plan.layers] + [visitor.source]
        seen = {**visitor.seen, "sources": sources, "logits": _logits(outputs), "target": chosen}
        return score, visitor.watched, seen

    if plan.target is None:
        _, watched, seen = forward(lambda name, tensor: tensor)
        gradients = {name: [None] * len(tensors) for name, tensors in watched.items()}
    else:
        gradients, watched, seen = gradients_of(forward)
    count = ops.shape(seen.pop("any"))[1]
    batch = ops.shape(images)[0]
    if plan.exits is True:
        seen |= {name: seen[name][-batch:] for name in ("logits", "target") if seen[name] is not None}
    if "tokens" in seen:
        seen["tokens"] = [_float(t) for t in seen["tokens"]]
    if plan.layers[-1] == len(attention_blocks(vit)) - 1 and "tokens" in seen:
        norm, last = final_norm(vit), seen["tokens"][-1]
        seen["features"] = last if norm is None else _float(norm(last))
    sources = seen.pop("sources")
    seen |= _reduced(watched, gradients, plan, read, sources)
    if plan.exits is True:  # each exit has read its own; those of the last are kept
        seen |= {name: seen[name][-batch:] for name in _FIELDS["pooling"] if seen.get(name) is not None}
    seen["count"] = count
    return {name: value for name, value in seen.items() if value is not None}


class _Visitor:
    """Keep what the plan asks for while a model runs; tensors that need gradients go through `watch(name, tensor)`."""

    def __init__(self, model: keras.Model, read: np.ndarray, plan: Plan, watch: Callable[..., Any]):
        vit = find_vit(model)
        self.blocks = attention_blocks(vit)
        self.numbers = {id(layer): n for n, block in enumerate(self.blocks) for layer in (block, block.att)}
        self.pooling = {id(layer.att) for layer in vit.layers if isinstance(layer, AttentionPooling)}
        self.prefix = len(prefix_names(vit))
        self.model, self.read, self.plan, self.watch = model, read, plan, watch
        self.watched: dict[str, list[Any]] = {}
        self.seen: dict[str, Any] = {}
        self.exits: list[Any] = []
        self.calls: list[int] = []
        self.source = None  # which patches are in each token now, where tokens were merged
        self.sources: list[Any] = []

    def __call__(self, layer, name, tensor):
        number, plan = self.numbers.get(id(layer)), self.plan
        if name == "pooling" and id(layer) in self.pooling and "attention" in plan.keep:
            return self._keep(self.watched, name, self.watch(name, tensor))
        if number is None:
            return tensor
        if name == "tokens":
            self.calls.append(number)
            self.sources.append(self.source)
            tensor = ops.stop_gradient(tensor) if plan.exits is True else tensor
            self.seen.setdefault("any", tensor)
        if name == "merging":
            self.source = tensor if self.source is None else ops.matmul(tensor, self.source)
        if name == "sizes" and plan.exits and number == len(self.blocks) - 1:
            return ops.ones_like(self.left[..., :1])
        if name == "output":
            return self._leave(number, tensor)
        if number not in plan.layers or name not in plan.keep:
            return tensor
        if name == "attention" and plan.target is None:
            attention, _ = _reduced_attention(tensor, None, plan, self.read, self.source)
            return _computed_after(self._keep(self.watched, name, attention), tensor)
        if name in ("attention", "normed"):
            return self._keep(self.watched, name, self.watch(name, tensor))
        self._keep(self.seen, name, unmerge(tensor, self.source))
        return tensor

    def _leave(self, number, tensor):
        plan, whole = self.plan, unmerge(tensor, self.source)
        if "tokens" in plan.keep and number == plan.layers[-1]:
            self._keep(self.seen, "tokens", whole)
        if plan.exits and number in plan.layers:
            self.exits.append(whole)
        if not plan.exits or number < len(self.blocks) - 1:
            return tensor
        tokens = ops.concatenate(self.exits, axis=0)
        if plan.exits == "patches":
            patches = ops.reshape(tokens[:, self.prefix :], (-1, 1, tokens.shape[-1]))
            tokens = ops.repeat(patches, max(2, self.prefix + 1), axis=1)  # so that any pooling gives the patch
        self.left, self.source = tokens, None
        return tokens

    @staticmethod
    def _keep(where, name, tensor):
        where.setdefault(name, []).append(tensor)
        return tensor

    def check(self):
        if self.calls != list(range(len(self.blocks))):
            raise ValueError(
                f"The model {self.model.name!r} does not run each block of its Vision Transformer once, in order: it "
                f"ran {self.calls}."
            )
        for name in self.plan.keep - {"tokens"}:
            if len((self.watched | self.seen).get(name, ())) != len(self.plan.layers):
                raise ValueError(
                    f"A block of the model {self.model.name!r} has an attention of its own, which shows no {name}."
                )


def _logits(outputs: Any) -> Any:
    return _float(outputs) if ops.is_tensor(outputs) and len(outputs.shape) == 2 else None


def _score(outputs: Any, classes: Any, plan: Plan) -> tuple[Any, Any]:
    """Return the score that is explained, a sum over the images, and the explained classes."""
    if plan.target is None:
        return None, None
    if callable(plan.target):
        score = plan.target(outputs)
        if not ops.is_tensor(score) or math.prod(n or 1 for n in score.shape[1:]) != 1:
            found = f"the shape {tuple(score.shape)}" if ops.is_tensor(score) else f"a {type(score).__name__}"
            raise ValueError(f"A target function returns a tensor of one number for each image. Received: {found}")
        return ops.sum(_float(score)), None
    logits = _logits(outputs)
    if logits is None:
        raise ValueError(
            "The model has no single output of the shape (batch, classes): pass as target a function from its outputs "
            "to one number for each image."
        )
    if plan.exits:
        classes = ops.tile(classes, (len(plan.layers),))
    chosen = ops.where(classes < 0, ops.cast(ops.argmax(logits, axis=-1), classes.dtype), classes)
    chosen = ops.minimum(chosen, logits.shape[-1] - 1)  # one that does not exist is refused afterwards
    return ops.sum(ops.take_along_axis(logits, chosen[:, None], axis=-1)), chosen


_FIELDS = {
    "attention": ("attention", "gradients"),
    "normed": ("normed", "normed_gradients"),
    "pooling": ("pooling_attention", "pooling_gradients"),
}


def _reduced(
    watched: dict[Any, Any], gradients: dict[Any, Any], plan: Plan, read: np.ndarray, sources: list[Any]
) -> dict[str, Any]:
    """Return watched tensors and gradients in float32, with heads fused and rows chosen as planned."""
    # The sources (see `unmerge`) are those of each recorded block, and of the tokens after the last block.
    reduced: dict[str, Any] = {}
    for name, fields in ((n, f) for n, f in _FIELDS.items() if n in watched):
        pairs = list(zip(watched[name], gradients[name]))
        if name == "attention" and plan.target is not None:
            pairs = [_reduced_attention(*pair, plan, read, source) for pair, source in zip(pairs, sources)]
        if name == "normed":
            pairs = [(unmerge(t, s), unmerge(g, s, share_rows=True)) for (t, g), s in zip(pairs, sources)]
        if name == "pooling":
            ((attention, slope),), source = pairs, sources[-1]
            pairs = [(unmerge(attention, source, None, True), unmerge(slope, source, None, False))]
        for field, tensors in zip(fields, zip(*pairs)):
            if tensors[0] is None:
                continue
            # A MAP head is one layer with one query.
            reduced[field] = _float(tensors[0])[:, :, 0] if name == "pooling" else [_float(t) for t in tensors]
    return reduced


def _reduced_attention(attention: Any, slope: Any, plan: Plan, read: np.ndarray, source: Any) -> tuple[Any, Any]:
    """Return the attention of a block and its gradient, in float32, with heads fused and rows chosen as planned."""
    attention, slope = _float(attention), None if slope is None else _float(slope)
    attention, slope = unmerge(attention, source, False, True), unmerge(slope, source, True, False)
    if plan.head_fusion is not None:
        attention, slope = fuse_heads(attention, slope, plan.head_fusion, xp=ops), None
    if plan.query == "auto":
        attention, slope = (None if t is None else _readout_rows(t, read) for t in (attention, slope))
    return attention, slope


def _computed_after(first: Any, tensor: Any) -> Any:
    """Return the tensor, made to wait for the first: else TensorFlow keeps the attention of many blocks meanwhile."""
    if keras.backend.backend() != "tensorflow" or first is tensor:
        return tensor
    import tensorflow as tf

    with tf.control_dependencies([first]):
        return tf.identity(tensor)


def _float(tensor: Any) -> Any:
    return ops.cast(tensor, "float32")


def _readout_rows(attention: Any, read: np.ndarray) -> Any:
    return ops.einsum("q,...qk->...k", ops.cast(read, attention.dtype), attention)


def unmerge(tensor: Any, source: Any, share_rows: bool | None = False, share_columns: bool | None = None) -> Any:
    """Return tokens `(batch, …, tokens, columns)` in which each patch has the values of its merged token."""
    # `source` is `(batch, tokens, patches)`, 1 where a patch is in a token, or None. What flows into a token, such as
    # attention to it, is divided among its patches; its contents are copied to each. For gradients, it is the other way
    # round. None means that an axis (rows: the last but one) has no tokens.
    if source is None or tensor is None:
        return tensor
    source = ops.cast(source, tensor.dtype)
    source = ops.reshape(source, (-1, *[1] * (len(tensor.shape) - 3), *source.shape[1:]))
    sharing = source / ops.sum(source, axis=-1, keepdims=True)
    if share_rows is not None:
        tensor = ops.matmul(ops.swapaxes(sharing if share_rows else source, -1, -2), tensor)
    return tensor if share_columns is None else ops.matmul(tensor, sharing if share_columns else source)

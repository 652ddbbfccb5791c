"""Token merging (arXiv 2210.09461): a block passes on fewer tokens than it gets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from .._internal.tap import is_tapped, visit
from ..backend import ops
from ._base import one_or_all, register
from .bias import size_bias
from .block import TransformerBlock


@register
class MergingBlock(TransformerBlock):
    """A `TransformerBlock` that merges similar tokens between attention and MLP (ToMe, arXiv 2210.09461).

    Call arguments:
        inputs: Tokens. There is no `attention_mask`: tokens that it keeps apart could be merged.
        sizes: Number of patches in each token, `(batch, tokens, 1)`, which counts as this number of keys; `None` where
            no block before merged tokens.
        rope, return_attention_scores: See `TransformerBlock`.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        The remaining tokens, and their sizes.

    Example:
        >>> tokens, sizes = MergingBlock(num_heads=4, mlp_dim=64, merge_tokens=2)(np.zeros((1, 9, 32), "float32"))
        >>> tuple(tokens.shape), tuple(sizes.shape)
        ((1, 7, 32), (1, 7, 1))
    """

    merge_tokens: int = 0
    """Tokens that are merged into others."""
    prefix_tokens: int = 0
    """Tokens before the patches, which are not merged."""

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        return_attention_scores: bool = False,
        rope: Any = None,
        sizes: Any = None,
    ) -> Any:
        return self.compute(inputs, training, return_attention_scores, rope=rope, sizes=sizes)

    def encode(
        self, x: Any, training: bool | None, return_attention_scores: bool, sizes: Any = None, **others: Any
    ) -> Any:
        x = visit(self, "tokens", x)
        others = {**others, "return_attention_scores": return_attention_scores, "with_keys": True}
        y, *scores, keys = self.attend(x, training, bias=size_bias(sizes), **others)
        x = x + y
        if self.merge_tokens:
            x, sizes = merge(self, x, sizes, keys)
        elif sizes is None:
            sizes = ops.ones_like(x[..., :1])
        x = x + self.transform(x, training)
        return one_or_all(visit(self, "output", x), visit(self, "sizes", sizes), *scores)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, tokens, width = input_shape
        tokens = None if tokens is None else tokens - self.merge_tokens
        return (batch, tokens, width), (batch, tokens, 1)


MergingBlock.__name__ = "TransformerBlock"  # after which files name the weights: a model has one name, merged or not


def merge(block: MergingBlock, tokens: Any, sizes: Any, keys: Any) -> Any:
    """Return tokens and sizes after merging the most similar tokens (section 3: bipartite soft matching)."""
    # The tokens after the prefix go to two sets alternately. The partner of a token in the first set is the token of
    # the second set with the most similar key, `(batch, tokens, width)`. The `block.merge_tokens` most similar tokens
    # are merged into their partners, as the mean of all patches that they stand for (`sizes`, `(batch, tokens, 1)` or
    # `None`). The result has the prefix, the first set and the second set, each in its original order.
    at_least_float32 = keras.backend.result_type(tokens.dtype, "float32")
    x = ops.cast(tokens, at_least_float32)
    sizes = ops.ones_like(x[..., :1]) if sizes is None else ops.cast(sizes, at_least_float32)
    total = _merging(ops.cast(keys, at_least_float32), block.merge_tokens, block.prefix_tokens)
    if is_tapped():
        each = ops.ones_like(sizes) * ops.convert_to_tensor(np.eye(x.shape[1], dtype=at_least_float32))
        visit(block, "merging", total(each))
    merged = total(sizes)
    return ops.cast(total(x * sizes) / merged, tokens.dtype), ops.cast(merged, tokens.dtype)


def _merging(keys: Any, count: int, prefix: Any) -> Any:
    """Return a function from `(batch, tokens, width)` to fewer tokens, which adds merged tokens together."""
    even, odd = prefix + prefix % 2, prefix + 1 - prefix % 2

    def sets(x):
        return x[:, even::2], x[:, odd::2]

    length = ops.sqrt(ops.sum(keys * keys, axis=-1, keepdims=True))
    first, second = sets(keys / ops.maximum(length, 1e-6))
    similarity = ops.matmul(first, ops.transpose(second, (0, 2, 1)))
    highest = ops.max(similarity, axis=-1, keepdims=True)
    partner = ops.argmax(ops.cast(ops.equal(similarity, highest), "int32"), axis=-1)  # LiteRT takes it of integers
    order = ops.argsort(-highest[..., 0], axis=-1)
    merged, kept = order[:, :count], ops.sort(order[:, count:], axis=-1)
    picks = _one_hot(ops.concatenate([kept, merged], axis=1)[..., None], np.arange(first.shape[1]), keys.dtype)
    partners = ops.matmul(  # torch.export follows no gathering
        ops.cast(partner, keys.dtype)[:, None], ops.transpose(picks[:, -count:], (0, 2, 1))
    )
    joins = _one_hot(partners, np.arange(second.shape[1])[:, None], keys.dtype)

    def total(x):
        first, second = sets(x)
        first = ops.matmul(picks, first)  # faster than gathering rows, and quite as exact
        stay, go = first[:, :-count], first[:, -count:]
        return ops.concatenate([x[:, :prefix], stay, second + ops.matmul(joins, go)], axis=1)

    return total


def _one_hot(numbers: Any, places: Any, dtype: Any) -> Any:
    return ops.cast(
        ops.equal(ops.cast(numbers, "int32"), ops.convert_to_tensor(places.astype("int32"), like=numbers)), dtype
    )

"""Token merging (arXiv 2210.09461): a block passes on fewer tokens than it gets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from .._internal.tap import is_tapped, visit
from ._ops import constant, join_tokens, largest


def merge(block: Any, tokens: Any, sizes: Any, keys: Any) -> Any:
    """Merge the most similar tokens of a block into their partners (section 3: bipartite soft matching).

    The tokens after the prefix are assigned to two sets alternately. The partner of a token in the first set is the
    most similar token in the second set. The `block.merge_tokens` tokens that are most similar to their partners are
    merged into them. A merged token is the mean of all its patches.

    Args:
        block: A `TransformerBlock`, which has the numbers of tokens to merge and of tokens before the patches.
        tokens: `(batch, tokens, hidden_size)`.
        sizes: The number of patches in each token, `(batch, tokens, 1)`; `None`: one.
        keys: Features that are compared by cosine similarity, `(batch, tokens, width)`.

    Returns:
        Tokens and their sizes: the prefix, the first set and the second set, each in its original order.
    """
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
    highest = largest(similarity)
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
        return join_tokens([x[:, :prefix], stay, second + ops.matmul(joins, go)], axis=1)

    return total


def _one_hot(numbers: Any, places: Any, dtype: Any) -> Any:
    return ops.cast(ops.equal(ops.cast(numbers, "int32"), constant(places.astype("int32"), numbers)), dtype)

"""What is added to the attention logits: masks, sizes of merged tokens and relative positions."""

from __future__ import annotations

from typing import Any

import keras

from ..backend import ops


def sum_of(*biases: Any) -> Any:
    """Return the sum of biases, each a tensor or `None`; `None` if there is none."""
    given = [bias for bias in biases if bias is not None]
    return sum(given[1:], given[0]) if given else None


def size_bias(sizes: Any) -> Any:
    """Return the bias by which a token counts as `sizes` keys, `(batch, tokens, 1)`."""
    return None if sizes is None else ops.transpose(ops.log(sizes), (0, 2, 1))[:, None]


def mask_bias(mask: Any, query: Any, key: Any) -> Any:
    """Return the bias of a mask for queries and keys `(batch, heads, tokens, width)`, or `None` without a mask."""
    if mask is None:
        return None
    dtype, batches = query.dtype, (query.shape[0], key.shape[0])
    batch = None if None in batches else max(batches)
    allowed = boolean_mask(mask, (batch, query.shape[2], key.shape[2]))[:, None]
    # Finite: a query without any key is then still a number, as Keras' own attention has it on every backend.
    lowest = -6e4 if keras.backend.standardize_dtype(dtype) == "float16" else -3e38
    return ops.where(allowed, ops.cast(0.0, dtype), ops.cast(lowest, dtype))


def boolean_mask(mask: Any, shape: Any) -> Any:
    """Return a mask `(batch, keys)` or `(batch, queries, keys)` as booleans that broadcast to the latter."""
    # Integers count as booleans. Floats are refused: some libraries convert them to booleans, others add them to the
    # logits. `shape` is that of the logits, `(batch, queries, keys)`, with `None` for what is not fixed.
    mask = mask if hasattr(mask, "dtype") else ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype != "bool" and "int" not in dtype:
        raise TypeError(
            "attention_mask must be booleans, True where a query attends to a key. "
            f"Received: {dtype}. Pass mask == 0 for a mask that is added to the logits (0 and -inf)."
        )
    given = tuple(mask.shape)
    if len(given) == 2:
        mask = mask[:, None]
    fits = len(mask.shape) == 3 and all(
        size in (None, own) or own is None or (axis < 2 and size == 1)
        for axis, (size, own) in enumerate(zip(mask.shape, shape))
    )
    if not fits:
        batch, queries, keys = ("any" if size is None else size for size in shape)
        raise ValueError(
            f"attention_mask must have the shape ({batch}, {keys}), which keys count, or ({batch}, {queries}, {keys}), "
            f"which keys count for each query. Received: {given}"
        )
    return ops.cast(mask, "bool")

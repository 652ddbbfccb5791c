"""Spread the values of merged tokens over their patches (ToMe)."""

from __future__ import annotations

from typing import Any

from keras import ops


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

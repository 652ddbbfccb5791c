"""Spread the values of merged tokens over their patches (ToMe)."""

from __future__ import annotations

from typing import Any

from keras import ops


def unmerge(tensor: Any, source: Any, share_rows: bool | None = False, share_columns: bool | None = None) -> Any:
    """Return a tensor of tokens in which each patch has the values of the merged token that contains it.

    What flows into a token, such as attention to it, is divided among its patches; what it holds is a copy in each. Of
    gradients it is the other way round.

    Args:
        tensor: `(batch, …, tokens, columns)`, or `None`.
        source: `(batch, tokens, patches)`, 1 where a patch is in a token; `None`: nothing was merged.
        share_rows: Whether values are divided along the last axis but one. `None`: that axis has no tokens.
        share_columns: The same for the last axis.

    Example:
        >>> source = np.array([[[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
        >>> attention = np.array([[[0.4, 0.6]]], "float32")
        >>> ops.convert_to_numpy(unmerge(attention, source, share_rows=None, share_columns=True))
        array([[[0.2, 0.2, 0.6]]], dtype=float32)
    """
    if source is None or tensor is None:
        return tensor
    source = ops.cast(source, tensor.dtype)
    source = ops.reshape(source, (-1, *[1] * (len(tensor.shape) - 3), *source.shape[1:]))
    sharing = source / ops.sum(source, axis=-1, keepdims=True)
    if share_rows is not None:
        tensor = ops.matmul(ops.swapaxes(sharing if share_rows else source, -1, -2), tensor)
    return tensor if share_columns is None else ops.matmul(tensor, sharing if share_columns else source)

"""Which axis of a variable several devices divide: the one rule of `distribution` and of `cost`. Without Keras."""

from __future__ import annotations

import math
import re

__all__ = ["KINDS", "MIN_SIZE", "divided_axis"]

KINDS = ("data", "fsdp", "tensor")

MIN_SIZE = 2**20
"""Values from which on `"fsdp"` divides a variable: 4 MiB of float32."""

_COLUMNS = re.compile(r"(^|/)(query|key|value|Dense_0|Gate)/(kernel|bias)$")
"""Variables whose last axis is that of the heads, or of the neurons of the MLP."""

_ROWS = re.compile(r"(^|/)(out|Dense_1|head)/kernel$")
"""Kernels whose first axis is what the columns of those before them give."""


def divided_axis(how: str, path: str, shape: tuple[int, ...], parts: int, min_size: int = MIN_SIZE) -> int | None:
    """Return the axis of a variable that `"data"`, `"fsdp"` or `"tensor"` divides among devices, or `None`."""
    # `min_size`: with "fsdp", a variable with fewer values is not divided.
    if how == "fsdp":
        axes = [axis for axis, size in enumerate(shape) if size % parts == 0]
        return max(axes, key=shape.__getitem__, default=None) if math.prod(shape) >= min_size else None
    if how == "tensor":
        axis = len(shape) - 1 if _COLUMNS.search(path) else 0 if _ROWS.search(path) else None
        return None if axis is None or shape[axis] % parts else axis
    return None

"""Patch embeddings that are linear layers on flattened patches, `(out, down * across * in)`, of unclear channels.

A patch of 16 × 16 pixels in four channels has as many values as one of 32 × 32 pixels in one channel. The number of
channels has to be known then; with two or three channels there is only one way to read the array.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .rules import Op, Part

__all__ = ["PATCH_LINEAR", "settled"]


def _sides(inputs: int) -> dict[int, int]:
    """Return the possible sides of square patches by their number of channels: `{3: 16}` for 768 inputs."""
    sides = {channels: math.isqrt(inputs // channels) for channels in (1, 2, 3, 4)}
    return {channels: side for channels, side in sides.items() if side and side * side * channels == inputs}


def _side(inputs: int, channels: Any = None) -> tuple[int, int]:
    """Return the side of the patches and the number of their channels, of which `channels` decides where two fit."""
    sides = _sides(inputs)
    if not sides:
        raise ValueError(f"A linear patch embedding of {inputs} inputs is not for square patches of 1 to 4 channels.")
    count = next(iter(sides)) if len(sides) == 1 else channels
    if count not in sides:
        ways = " or ".join(f"channels={count} (patches of {side}×{side})" for count, side in sides.items())
        raise ValueError(
            f"A linear patch embedding of {inputs} inputs does not show the number of channels. Pass {ways}, or put "
            "the model's config.json next to the file."
        )
    return sides[count], count


def _patch_linear(channels: int | None = None) -> Op:
    def read(array: np.ndarray, _: int) -> list[np.ndarray]:
        side, count = _side(array.shape[1], channels)
        return [array.reshape(-1, side, side, count).transpose(1, 2, 3, 0)]

    return Op(read, lambda parts, heads: parts[0].transpose(3, 0, 1, 2).reshape(parts[0].shape[3], -1))


PATCH_LINEAR = _patch_linear()
"""Reads arrays with only one possible number of channels; `settled` decides the others."""


def settled(
    parts: Mapping[str, Part], shape_of: Callable[[str], tuple[int, ...]], channels: Callable[[], Any]
) -> dict[str, Part]:
    """Return the parts of a file with the number of channels decided, if the arrays leave it open."""
    # `channels` returns what is known about the number; it is called only if it is needed.
    part = parts.get("embedding/kernel")
    if part is None or part.rule.op is not PATCH_LINEAR or len(_sides(shape_of(part.source)[-1])) < 2:
        return dict(parts)
    _, count = _side(shape_of(part.source)[-1], channels())
    rule = dataclasses.replace(part.rule, op=_patch_linear(count))
    return {**parts, "embedding/kernel": part._replace(rule=rule)}

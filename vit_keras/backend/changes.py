"""The moment of the last change to a layer of this package: what was compiled before it is compiled again."""

from __future__ import annotations

import itertools
from typing import Any

_numbers = itertools.count(1)

latest: int = 0
"""Number of the last change in this process: it rises whenever an attribute of a built layer is set or deleted."""

KEPT_BY_KERAS = {"_called", "_parent_path", "_path", "_losses_override", "_torch_params", "_build_shapes_dict"}
"""Attributes that Keras sets while it builds or calls a layer, and that no output depends on."""


def note(layer: Any) -> None:
    """Give a layer that has changed the next number, as the attribute `_changed` and as `latest`."""
    global latest
    latest = layer.__dict__["_changed"] = next(_numbers)


def last_change(layers: Any) -> int:
    """Return the number of the last change to any of these layers; 0 if there was none."""
    return max((layer.__dict__.get("_changed", 0) for layer in layers), default=0)

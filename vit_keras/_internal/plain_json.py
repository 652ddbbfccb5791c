"""JSON that every parser reads: it has no numbers that are not finite. Needs no Keras and no NumPy."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["as_json"]


def as_json(value: Any, **options: Any) -> str:
    """Return plain values as JSON, with null for numbers that are not finite, which JSON cannot hold."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:  # a number that is not finite
        return json.dumps(_finite(value), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Upper bounds of the cost of a request: pixels, memory and answer, estimated before anything is computed.

The estimates are upper bounds for a Vision Transformer in float32, within a factor of about two. Where images have one
size in the model, what the model itself takes is its owner's choice and not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .engine import Engine

__all__ = ["at_once", "bytes_of_answer", "bytes_of_run", "least", "pixels_of"]

_PIXELS_AT_ONCE = 1 << 20
"""Pixels of the images that are computed together: 20 of 224 × 224. More are computed in several runs."""
_PIXEL = 36  # bytes: three channels of float32, three times, as they are cast, resized and normalized
_WEIGHT = 32  # bytes: float64, four times, of the matrices that resize
_UNKNOWN = {"stride": [16, 16], "heads": 12, "width": 768}  # of a file that takes images of any size and tells nothing
_PREFIX = 16  # tokens that are not patches, at most
_TEXT = 24  # bytes of a number in JSON


def pixels_of(engine: Engine, size: Sequence[int]) -> int:
    """Return the maximum number of pixels of an image at any step: as sent, resized across, or resized.

    Args:
        engine: The model.
        size: `(height, width)` of the image as sent.
    """
    (height, width), (down, across) = size, _model_size(engine, size)
    return max(height * width, height * across, down * across)


def bytes_of_run(engine: Engine, count: int, size: Sequence[int]) -> int:
    """Return the memory that the model needs for images.

    Args:
        engine: The model.
        count: How many there are.
        size: `(height, width)` of each.
    """
    (height, width), (down, across) = size, _model_size(engine, size)
    together = min(count, at_once(engine, size))
    found = _PIXEL * together * pixels_of(engine, size)
    if (height, width) != (down, across):
        found += _WEIGHT * (down * height + across * width)
    if _fixed_size(engine) is None:
        tokens, known = _tokens(engine, size), _known(engine)
        # Scores and their softmax; the MLP is four times as wide, before and after its activation.
        found += together * (8 * known["heads"] * tokens**2 + 40 * known["width"] * tokens)
    return found


def bytes_of_answer(engine: Engine, count: int, size: Sequence[int], outputs: Mapping[str, bool]) -> int:
    """Return the size of an answer.

    Args:
        engine: The model.
        count: How many images there are.
        size: `(height, width)` of each.
        outputs: The wanted outputs, and whether each is sent as bytes; others are sent as JSON.
    """
    tokens, found = _tokens(engine, size), 0
    for name, as_bytes in outputs.items():
        shape = engine.outputs[name][1]
        places = [axis for axis in shape[1:] if axis < 0]
        is_map = len(places) > 1 and not name.startswith("attention_")  # of patches in rows, or of all pixels
        most = math.prod(_model_size(engine, size)) if is_map else tokens ** len(places)
        numbers = count * most * math.prod(axis for axis in shape[1:] if axis >= 0)
        found += numbers * (4 if as_bytes else _TEXT)
    return found


def at_once(engine: Engine, size: Sequence[int]) -> int:
    """Return the number of images of a size that are computed together.

    Args:
        engine: The model.
        size: `(height, width)` of each.
    """
    return max(1, _PIXELS_AT_ONCE // pixels_of(engine, size))


def least(engine: Engine) -> tuple[int, int]:
    """Return the `(height, width)` of the smallest image that reaches the model: one patch, where it is not resized."""
    known = engine.metadata.get("tokens") if _fixed_size(engine) is None else None
    down, across = known["stride"] if known else (1, 1)
    return down, across


def _fixed_size(engine: Engine) -> tuple[int, int] | None:
    return None if engine.preprocessing is None else engine.preprocessing.image_size


def _model_size(engine: Engine, size: Sequence[int]) -> tuple[int, int]:
    """Return the size in which an image reaches the model. A file cuts its window out while it resizes."""
    height, width = _fixed_size(engine) or size
    return height, width


def _known(engine: Engine) -> Mapping[str, Any]:
    return {**_UNKNOWN, **(engine.metadata.get("tokens") or {})}


def _tokens(engine: Engine, size: Sequence[int]) -> int:
    stride = _known(engine)["stride"]
    return _PREFIX + math.prod(-(-pixels // step) for pixels, step in zip(_model_size(engine, size), stride))

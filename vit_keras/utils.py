"""Functions for images, their pixels and the names of classes, under one name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .labels import get_imagenet_classes
from .preprocess.drawings import example
from .preprocess.images import ImageInputType as ImageInputType  # as in vit-keras 0.x
from .preprocess.images import read, resize_image
from .preprocess.pixels import gray, to_uint8

if TYPE_CHECKING:
    from .compat import apply_embedding_weights as apply_embedding_weights
    from .compat import load_weights_numpy as load_weights_numpy

__all__ = ["example", "get_imagenet_classes", "gray", "read", "resize_image", "to_uint8"]


def __getattr__(name: str) -> Any:
    if name not in ("apply_embedding_weights", "load_weights_numpy"):  # of vit-keras 0.x; these need Keras
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import compat

    return getattr(compat, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

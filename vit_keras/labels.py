"""Names of classes."""

from __future__ import annotations

import importlib.resources
from typing import Any


def get_imagenet_classes() -> list[str]:
    """The names of the 1000 classes of ImageNet 2012, in the order of the models' outputs.

    Example:
        >>> get_imagenet_classes()[0]
        'tench, Tinca tinca'
    """
    text = importlib.resources.files(__package__).joinpath("imagenet2012.txt").read_text(encoding="utf-8")
    return text.splitlines()


def class_names(model: Any) -> tuple[str, ...] | None:
    """The names of a model's classes, one for each output, where it or its last layer knows them; 1000 are ImageNet's."""
    shape = getattr(model, "output_shape", None)
    count = shape[-1] if isinstance(shape, tuple) and len(shape) == 2 else None
    labels = getattr(model, "labels", None) or getattr((model.layers or [None])[-1], "labels", None)
    if labels == "imagenet-1k" or (labels is None and count == 1000):
        labels = get_imagenet_classes()
    return None if labels is None or isinstance(labels, str) or len(labels) != count else tuple(labels)

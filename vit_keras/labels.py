"""Names of classes."""

from __future__ import annotations

import importlib.resources


def get_imagenet_classes() -> list[str]:
    """The names of the 1000 classes of ImageNet 2012, in the order of the models' outputs.

    Example:
        >>> get_imagenet_classes()[0]
        'tench, Tinca tinca'
    """
    text = importlib.resources.files(__package__).joinpath("imagenet2012.txt").read_text(encoding="utf-8")
    return text.splitlines()

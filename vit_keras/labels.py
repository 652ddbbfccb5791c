"""Names of classes."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from typing import Any

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def get_imagenet_classes() -> list[str]:
    """The names of the 1000 classes of ImageNet 2012, in the order of the models' outputs.

    Example:
        >>> get_imagenet_classes()[0]
        'tench, Tinca tinca'
    """
    text = importlib.resources.files(__package__).joinpath("imagenet2012.txt").read_text(encoding="utf-8")
    return text.splitlines()


_LISTS = {"imagenet-1k": get_imagenet_classes, "cifar-10": lambda: CIFAR10}


def names(labels: Any) -> tuple[str, ...] | None:
    """The names of classes, given as they are or as the name of a list of them; `None` where they are not known.

    Example:
        >>> names("cifar-10")[3]
        'cat'
    """
    if isinstance(labels, str):
        return tuple(_LISTS[labels]()) if labels in _LISTS else None
    return None if labels is None else tuple(labels)


def class_names(model: Any) -> tuple[str, ...] | None:
    """The names of a model's classes, one for each output, where it or its last layer knows them; 1000 are ImageNet's."""
    shape = getattr(model, "output_shape", None)
    count = shape[-1] if isinstance(shape, tuple) and len(shape) == 2 else None
    labels = getattr(model, "labels", None) or getattr((model.layers or [None])[-1], "labels", None)
    known = names("imagenet-1k" if labels is None and count == 1000 else labels)
    return None if known is None or len(known) != count else known


def name_classes(model: Any, names: Sequence[str]) -> bool:
    """Keep the names of the classes with a model, where it has an output for each; they are saved with a `VisionTransformer`.

    Args:
        model: The model, or one with a ViT inside that is also its head.
        names: The names, in the order of the outputs.

    Returns:
        Whether they fit the model.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> name_classes(model, ("cat", "dog"))
        True
    """
    fit = tuple(getattr(model, "output_shape", ()))[1:] == (len(names),)
    if fit:
        last = model.layers[-1] if model.layers else model
        for owner in {id(m): m for m in (model, last) if hasattr(m, "layers")}.values():
            owner.labels = tuple(names)
    return fit

"""Names of classes, and classes by name."""

from __future__ import annotations

import importlib.resources
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ._internal.validate import did_you_mean, instance

__all__ = ["TASKS", "get_imagenet_classes"]

TASKS = ("single", "multi", "regression", "ordinal")
"""What the outputs of a model mean: one class of several; labels that are independent of each other; numbers; or one
number on a scale of levels, 0 for the first."""

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
"""The names of the ten classes of CIFAR-10."""

_LISTED = 10
"""Largest number of classes that an error lists."""


def get_imagenet_classes() -> list[str]:
    """Return the names of the 1000 classes of ImageNet 2012, in the order of the models' outputs.

    Example:
        >>> get_imagenet_classes()[0]
        'tench, Tinca tinca'
    """
    text = (
        importlib.resources.files(__name__.partition(".")[0]).joinpath("imagenet2012.txt").read_text(encoding="utf-8")
    )
    return text.splitlines()


_LISTS = {"imagenet-1k": get_imagenet_classes, "cifar-10": lambda: CIFAR10}


def names(labels: Any) -> tuple[str, ...] | None:
    """Return the names of classes, or `None` if they are not known."""
    if isinstance(labels, str):
        return tuple(_LISTS[labels]()) if labels in _LISTS else None
    if labels is not None and (not isinstance(labels, Iterable) or isinstance(labels, (Mapping, set, frozenset))):
        raise TypeError(f"labels must be a list of names in the order of the classes. Received: {labels!r:.100}")
    return None if labels is None else tuple(labels)


def class_named(name: str, labels: Sequence[str] | None) -> int:
    """Return the number of a class."""
    instance(name, str, "name")
    if labels is None:
        raise ValueError(f"The model knows no names of classes. Pass the number of the class. Received: {name!r}")
    labels = [str(label) for label in labels]
    wanted = name.strip().lower()
    exact = [number for number, label in enumerate(labels) if label == name]
    whole = [number for number, label in enumerate(labels) if label.lower() == wanted]
    part = [number for number, label in enumerate(labels) if wanted in _synonyms(label.lower())]
    found = exact or whole or part
    if len(found) == 1:
        return found[0]
    if found:
        listed = "; ".join(f"{number} ({labels[number]})" for number in found)
        raise ValueError(f"{len(found)} classes have the name {name!r}: {listed}. Pass the number of one.")
    alike = [label for label in labels if wanted and wanted in label.lower()][:5]
    if alike:
        hint = f" Did you mean one of these? {'; '.join(alike)}."
    else:
        hint = did_you_mean(name.strip(), (synonym for label in labels for synonym in _synonyms(label)))
        hint = hint or (f" The classes are {', '.join(labels)}." if len(labels) <= _LISTED else "")
    raise ValueError(f"No class has the name {name!r}.{hint}")


def _synonyms(label: str) -> list[str]:
    return [synonym.strip() for synonym in label.split(",")]


def class_numbers(target: Any, count: int, labels: Sequence[str] | None) -> np.ndarray:
    """Return the number of the target class of each image."""
    single = isinstance(target, str) or np.ndim(target) == 0 or not isinstance(target, Iterable)
    classes = [_class_number(t, labels) for t in ([target] * count if single else target)]
    if len(classes) != count:
        raise ValueError(
            f"There are {count} images and {len(classes)} targets. Pass one target, or one for each image."
        )
    return np.array(classes, "int32")


def check_class_numbers(labels: np.ndarray, classes: int) -> None:
    """Raise a `ValueError` unless labels are numbers of classes of a head."""
    wrong = labels[~np.isin(labels, np.arange(classes))]
    if wrong.size:
        raise ValueError(
            f"Class numbers must be from 0 to {classes - 1}. Received: {wrong[:3].tolist()}. Number classes from 0, "
            "or use a larger head."
        )


def _class_number(target: Any, labels: Sequence[str] | None) -> int:
    if isinstance(target, str):
        try:
            return -1 if target == "predicted" else class_named(target, labels)
        except ValueError:
            if not target.isdecimal():  # a number as text, which no class has as its name
                raise
            target = int(target)
    try:
        number = operator.index(target)
    except TypeError:
        raise TypeError(f"A class is a number, a name or 'predicted'. Received: {target!r}") from None
    if number < 0:
        raise ValueError(f"The number of a class is at least 0. Received: {number}")
    return number

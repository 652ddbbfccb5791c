"""What a recording is to hold."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..validate import did_you_mean, one_of
from .recording import FUSIONS, GRADIENT_FUSIONS

KEPT = ("attention", "values", "tokens", "normed")
_FORMER_ROWS = {"readout": "auto"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to record; it distinguishes one compiled function from another.

    Attributes:
        layers: Numbers of the blocks, rising.
        keep: Which of `KEPT`.
        head_fusion: How to fuse the heads, or `None`.
        query: `"all"` rows of attention, or `"auto"`: the mean of those that the output is read from.
        exits: Whether each recorded block leaves through the rest of the model; `"patches"`: each patch by itself.
        target: What gradients are of: `None`, `"class"` or a function of the outputs.
    """

    layers: tuple[int, ...]
    keep: frozenset[str] = frozenset()
    head_fusion: str | None = None
    query: str = "all"
    exits: bool | str = False
    target: Any = None

    @classmethod
    def of(cls, count: int, layers: Any, keep: Any, head_fusion: Any, query: Any, exits: Any) -> Plan:
        """Return the plan of a caller's arguments, for a model of `count` blocks.

        Raises:
            ValueError: There is no such block, nothing of that name to keep, or an argument is none of its values.
            TypeError: `layers` are no numbers.
        """
        kept = frozenset([keep] if isinstance(keep, str) else keep)
        if wrong := sorted(kept - set(KEPT)):
            raise ValueError(
                f"keep must be of {', '.join(KEPT)}.{did_you_mean(wrong[0], KEPT)} Received: {', '.join(wrong)}"
            )
        one_of(head_fusion, "head_fusion", (None, *FUSIONS, *GRADIENT_FUSIONS))
        query = one_of(_FORMER_ROWS.get(query, query), "query", ("all", "auto"))
        return cls(block_numbers(layers, count), kept, head_fusion, query, exits)

    def with_target(self, target: Any) -> Plan:
        """Return the plan for a target as `record` takes it.

        Raises:
            ValueError: There is none, and the plan needs gradients.
        """
        if target is None:
            if self.head_fusion in GRADIENT_FUSIONS or self.exits is True:
                raise ValueError("This needs gradients: pass target=, such as 'predicted' or the number of a class.")
            return self
        return dataclasses.replace(self, target=target if callable(target) else "class")


def block_numbers(layers: Any, count: int) -> tuple[int, ...]:
    """Return the numbers of blocks, rising, from one or several numbers, from the end if negative; `None` for all.

    Raises:
        ValueError: There is no such block, or none is named.
        TypeError: `layers` are no numbers.

    Example:
        >>> block_numbers([-1, 0], 12)
        (0, 11)
    """
    if layers is None:
        return tuple(range(count))
    try:
        given = [operator.index(n) for n in (layers if isinstance(layers, Iterable) else [layers])]
    except TypeError:
        raise TypeError(f"layers are numbers of blocks. Received: {layers!r}") from None
    if not given or not all(-count <= n < count for n in given):
        raise ValueError(f"The model has the blocks 0 to {count - 1}. Received: layers={layers!r}")
    return tuple(sorted({n % count for n in given}))


def class_numbers(target: Any, count: int, labels: Sequence[str] | None) -> np.ndarray:
    """Return the class of each of so many images from what a caller passed, one or a list; -1 for the predicted one."""
    single = isinstance(target, str) or not isinstance(target, Iterable) or np.ndim(target) == 0
    classes = [_class(t, labels) for t in ([target] * count if single else target)]
    if len(classes) != count:
        raise ValueError(f"There are {count} images and {len(classes)} targets: pass one for each, or one for all.")
    return np.array(classes, "int32")


def _class(target: Any, labels: Sequence[str] | None) -> int:
    if isinstance(target, str):
        return -1 if target == "predicted" else class_named(target, labels)
    try:
        number = operator.index(target)
    except TypeError:
        raise TypeError(f"A class is a number, a name or 'predicted'. Received: {target!r}") from None
    if number < 0:
        raise ValueError(f"A class has a number from 0. Received: {number}")
    return number


def class_named(name: str, labels: Sequence[str] | None) -> int:
    """Return the number of a class, by its whole name or by one of its names between commas."""
    if labels is None:
        raise ValueError(f"The model knows no names of classes: pass the number of {name!r}.")
    wanted = name.strip().lower()
    whole = [number for number, label in enumerate(labels) if label.lower() == wanted]
    part = [number for number, label in enumerate(labels) if wanted in map(str.strip, label.lower().split(","))]
    found = whole or part
    if len(found) == 1:
        return found[0]
    near = [label for label in labels if wanted in label.lower()][:5]
    hint = f" There are: {'; '.join(near)}." if near else did_you_mean(name, labels)
    raise ValueError(f"{len(found) or 'No'} class{'es have' if found else ' has'} the name {name!r}.{hint}")

"""The plain options of `finetune`, and checks of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..._internal.validate import is_number, one_of, positive_integer
from ...anatomy import NUMBERS
from .. import metrics
from ..data.folder import Labeled
from ..evaluation import Evaluation

__all__: list[str] = []

MINUTES = 12.0
"""The time limit where neither minutes nor epochs are given."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneOptions:
    """The options of `finetune` that its training needs; see there."""

    epochs: int | None
    minutes: float | None
    batch_size: int | None
    metric: str | None
    balance: bool | str
    probe: bool
    calibrate: bool
    overwrite: bool
    seed: int
    errors: str
    mistakes: int
    command: str | None
    progress: bool

    def __post_init__(self) -> None:
        one_of(self.errors, "errors", ("raise", "skip"))
        one_of(self.balance, "balance", (False, True, "weights", "prior"))
        for name, least in (("epochs", 1), ("batch_size", 1), ("seed", 0), ("mistakes", 0)):
            if (value := getattr(self, name)) is not None or least == 0:
                object.__setattr__(self, name, positive_integer(value, name, least))
        if self.minutes is not None and not (is_number(self.minutes) and self.minutes >= 0):
            raise ValueError(f"minutes must be a number of at least 0. Received: {self.minutes!r}")

    @property
    def seconds(self) -> float | None:
        """The time limit; `None` for none."""
        default = MINUTES if self.epochs is None else 0
        return 60 * (default if self.minutes is None else self.minutes) or None

    def saved(self) -> dict[str, Any]:
        """Return the options that a run which continues must have again."""
        return {name: getattr(self, name) for name in ("epochs", "metric", "balance", "probe", "seed")}


def check_options(options: FinetuneOptions, data: Labeled) -> None:
    """Check that the options fit the task, and that numbers differ from image to image.

    Raises:
        ValueError: They do not.
    """
    task = data.task
    if task == "regression" and not np.ptp(data.labels, axis=0).any():
        given = ", ".join(f"{name!r}: {value}" for name, value in zip(data.names, np.ravel(data.labels[0])))
        raise ValueError(
            f"Each column of labels has only one value ({given}), so there is nothing to learn. Choose a different "
            "column with label_column= (--label-column)."
        )
    if options.metric is not None and one_of(options.metric, "metric", metrics.NAMES) not in metrics.fitting(task):
        fitting = ", ".join(metrics.fitting(task))
        raise ValueError(f"The metric {options.metric!r} does not fit the task {task!r}, which these fit: {fitting}.")
    if options.metric == "rmsle":
        targets = np.delete(data.labels, [*data.missing], axis=0)
        scale = metrics.scale_of(data.names) if task == "ordinal" else None
        metrics.score("rmsle", targets, targets, task, scale=scale)  # refuses numbers that it cannot take
    if options.calibrate and task in NUMBERS:
        raise ValueError(f"calibrate=True is about probabilities, and the task is {task!r}. Leave it out.")
    if options.balance and (task != "single" or data.weights is not None):
        why = "the images have weights" if task == "single" else f"the task is {task!r}"
        raise ValueError(
            f"balance={options.balance!r} weighs classes, one for each image, and {why}. Pass weight_column= alone."
        )


def check_metric(options: FinetuneOptions, data: Labeled, rows: np.ndarray, part: str) -> None:
    """Check that the images of a part define the metric that chooses the epoch: it has a value if all are right.

    Raises:
        ValueError: They do not.
    """
    if options.metric is None:
        return
    labels = data.labels[rows]
    right = np.eye(len(data.names))[labels] if data.task == "single" else labels
    found = Evaluation(data.names, (), labels, right, data.task)
    if not np.isfinite(metrics.of_evaluation(options.metric, found)):
        raise ValueError(
            f"The images of {part} do not define {options.metric!r}. They are too few, or all alike: hold out more "
            "(validation_split=, --held-out, fewer folds), or pass another metric=."
        )

"""Metrics by name: scikit-learn's functions, and the arguments of each."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._internal.imports import extra
from .._internal.validate import as_array, one_of
from .._internal.warn import warn_caller

__all__ = ["NAMES", "score"]


@dataclasses.dataclass(frozen=True)
class _Metric:
    """A function of `sklearn.metrics`, what it takes for each task that it fits, and its other arguments."""

    # "decisions": class numbers, 0 and 1, levels; "levels": the same, with all between the least and the largest as
    # `labels`; "columns": one of 0 and 1 and one of probabilities for each class.

    function: str
    takes: dict[str, str]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


_CLASSES = {"single": "decisions", "ordinal": "decisions"}
_LABELS = {**_CLASSES, "multi": "decisions"}
_COLUMNS = {"single": "columns", "multi": "columns"}
_NUMBERS = {"regression": "numbers", "ordinal": "numbers"}

_METRICS = {
    "accuracy": _Metric("accuracy_score", _LABELS),
    "balanced_accuracy": _Metric("balanced_accuracy_score", _CLASSES),
    "macro_f1": _Metric("f1_score", _LABELS, options={"average": "macro", "zero_division": 0}),
    "micro_f1": _Metric("f1_score", _LABELS, options={"average": "micro", "zero_division": 0}),
    "weighted_f1": _Metric("f1_score", _LABELS, options={"average": "weighted", "zero_division": 0}),
    "roc_auc": _Metric("roc_auc_score", _COLUMNS, options={"average": "macro"}),
    "map": _Metric("average_precision_score", _COLUMNS, options={"average": "macro"}),
    "log_loss": _Metric("log_loss", {"single": "probabilities", "multi": "columns"}),
    "mcc": _Metric("matthews_corrcoef", _CLASSES),
    "quadratic_kappa": _Metric(
        "cohen_kappa_score", {"single": "levels", "ordinal": "levels"}, options={"weights": "quadratic"}
    ),
    "rmse": _Metric("root_mean_squared_error", _NUMBERS),
    "rmsle": _Metric("root_mean_squared_log_error", _NUMBERS),
    "mae": _Metric("mean_absolute_error", _NUMBERS),
    "r2": _Metric("r2_score", _NUMBERS),
}

# scikit-learn raises an error for smaller predictions, which would end a training in the middle.
_LEAST_OF_RMSLE = np.nextafter(np.float32(-1), np.float32(0))

NAMES = tuple(_METRICS)
"""The names of all metrics."""

DEFAULTS = {"single": "accuracy", "multi": "map", "regression": "rmse", "ordinal": "quadratic_kappa"}
"""The default metric of each task."""


def fitting(task: str) -> tuple[str, ...]:
    """Return the names of the metrics that fit a task."""
    one_of(task, "task", DEFAULTS)
    return tuple(name for name, metric in _METRICS.items() if task in metric.takes)


def score(
    name: str | None, targets: Any, outputs: Any, task: str = "single", *, scale: Sequence[float] | None = None
) -> float:
    """Return a metric of predictions, as scikit-learn computes it.

    Means over classes and labels are macro averages, each class against the rest. A class that no target has, or all
    have, has no ROC-AUC and no average precision: the mean is over the others, and a warning says so. Decisions are the
    most probable class, labels of a probability of at least one half, and levels rounded to whole numbers.

    Args:
        name: One of `NAMES`; `None`: the metric of the task in `DEFAULTS`.
        targets: Class numbers `(n,)` (single), 0 and 1 `(n, labels)` (multi), numbers `(n,)` or `(n, k)` (regression),
            levels as whole numbers `(n,)` (ordinal).
        outputs: Probabilities `(n, classes)` (single) or `(n, labels)` (multi), numbers like the targets (regression,
            ordinal).
        task: `"single"`, `"multi"`, `"regression"` or `"ordinal"`.
        scale: The value of each level, where these are not 0, 1, 2 …: errors (RMSE, MAE …) are on this scale. Between
            two levels, predictions have the values between theirs.

    Returns:
        The value of the metric. For RMSLE, a prediction of -1 or less, which has no logarithm, counts as the least
        float32 above -1.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: There is no such metric or task, the metric does not fit the task, or targets and outputs do not
            fit each other.

    Warns:
        UserWarning: The mean leaves out classes, because the targets do not tell them apart from the others.

    Example:
        >>> score("rmse", [1.0, 2.0], [1.0, 4.0], "regression")
        1.4142135623730951
    """
    name = DEFAULTS[one_of(task, "task", DEFAULTS)] if name is None else name
    metric = _METRICS[one_of(name, "metric", NAMES)]
    if task not in metric.takes:
        raise ValueError(
            f"The metric {name!r} does not fit the task {task!r}, which these fit: {', '.join(fitting(task))}."
        )
    targets, outputs = _checked(as_array(targets), as_array(outputs), task)
    function, options = getattr(scikit_learn_metrics(), metric.function), dict(metric.options)
    takes = metric.takes[task]
    if takes == "probabilities":
        options["labels"] = np.arange(outputs.shape[1])
    elif takes == "columns":
        targets, outputs = _columns(targets, outputs, name)
    elif takes == "numbers" and scale is not None:
        targets, outputs = (on_scale(x, scale) for x in (targets, outputs))
    elif takes != "numbers":
        if task == "single":
            outputs = outputs.argmax(axis=1)
        else:
            outputs = ((outputs >= 0.5) if task == "multi" else np.rint(outputs)).astype(int)
        if task == "multi" and targets.shape[1] == 1 and metric.function == "f1_score":
            options["labels"] = [1]  # of one column scikit-learn makes two classes
        if takes == "levels":
            levels = np.concatenate([targets, outputs])
            options["labels"] = np.arange(levels.min(), levels.max() + 1)
    if name == "rmsle":
        if (targets <= -1).any():
            raise ValueError(f"rmsle needs targets above -1. Received: {targets.min():g}. Another metric is 'rmse'.")
        outputs = np.maximum(outputs, _LEAST_OF_RMSLE)
    if name == "log_loss" and takes == "columns":  # scikit-learn's own is of one label
        return float(np.mean([function(t, p, labels=[0, 1]) for t, p in zip(targets.T, outputs.T)]))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "y_pred contains classes not in y_true")  # this is common in validation
        return float(function(targets, outputs, **options))


def scikit_learn_metrics() -> Any:
    """Return `sklearn.metrics`, or raise an `ImportError` that names the extra."""
    return extra("sklearn.metrics", "Metrics need scikit-learn")


def scale_of(names: Sequence[str]) -> tuple[float, ...] | None:
    """Return the values of levels whose names are numbers that rise; otherwise `None`."""
    with contextlib.suppress(ValueError):
        values = tuple(map(float, names))
        return values if values and all(np.diff(values) > 0) and np.isfinite(values).all() else None
    return None


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of a number of images (Wilson, "Probable Inference", 1927)."""
    z = 1.96
    center, spread = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    low, high = (center - spread) / (1 + z * z / count), (center + spread) / (1 + z * z / count)
    return max(low, 0.0), min(high, 1.0)  # which only rounding exceeds


def on_scale(ranks: Any, scale: Sequence[float]) -> np.ndarray:
    """Return the values of levels, or of numbers between them, that are counted from 0."""
    return np.interp(np.asarray(ranks, "float64"), np.arange(len(scale)), np.asarray(scale, "float64"))


def _checked(targets: np.ndarray, outputs: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Return targets and outputs in the shape that the task has, or raise what is wrong with them."""
    received = f"Received: targets {targets.shape}, outputs {outputs.shape}"
    if task in ("regression", "ordinal"):
        targets, outputs = (x[:, 0] if x.ndim == 2 and x.shape[1] == 1 else x for x in (targets, outputs))
    wanted = {"single": "(n,) and (n, classes)", "multi": "(n, labels), both", "ordinal": "(n,), both"}
    dimensions = {"single": (1, 2), "multi": (2, 2), "ordinal": (1, 1)}.get(task, (outputs.ndim,) * 2)
    if not len(targets) == len(outputs) > 0 or (targets.ndim, outputs.ndim) != dimensions:
        shapes = wanted.get(task, "the same")
        raise ValueError(f"The shapes of targets and outputs must be {shapes}, of one length. {received}")
    if task != "single" and targets.shape != outputs.shape:
        raise ValueError(f"Targets and outputs must have one shape. {received}")
    if not np.isfinite(np.asarray(outputs, "float64")).all() or not np.isfinite(np.asarray(targets, "float64")).all():
        raise ValueError("Targets and outputs must be finite numbers.")
    if task == "single":
        _check_whole(targets, "Class numbers", outputs.shape[1])
    elif task == "multi":
        _check_whole(targets, "Targets of several labels", 2)
    elif task == "ordinal":
        _check_whole(targets, "Levels", None)
    return (targets if task == "regression" else targets.astype(int)), outputs


def _check_whole(targets: np.ndarray, what: str, count: int | None) -> None:
    wrong = (targets % 1 != 0) | ((targets < 0) | (targets >= count) if count else False)
    if wrong.any():
        least = f" from 0 to {count - 1}" if count else ""
        raise ValueError(f"{what} must be whole numbers{least}. Received: {targets[wrong].flat[0]!r}")


def _columns(targets: np.ndarray, outputs: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a column of 0 and 1 for each class, and its probabilities, without those that the targets leave open."""
    truth = np.eye(outputs.shape[1], dtype=int)[targets] if targets.ndim == 1 else targets
    if name == "log_loss":
        return truth, outputs
    told = truth.min(axis=0) != truth.max(axis=0)
    if not told.any():
        raise ValueError(f"{name} needs a class that some targets have and others do not have.")
    if not told.all():
        numbers = ", ".join(map(str, np.flatnonzero(~told)[:10])) + (", …" if np.sum(~told) > 10 else "")
        warn_caller(
            f"{name} is the mean over {told.sum()} of {len(told)} classes: none of the targets, or all of them, have "
            f"the others, which are numbers {numbers}."
        )
    return truth[:, told], outputs[:, told]

"""What a model predicts for labeled images: one class, and a row of a table for each task."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...anatomy import levels
from .. import metrics

__all__ = ["Evaluation", "as_lines"]


def percent(share: float | None) -> str:
    """Return a share in percent."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def number(value: float) -> str:
    """Return a number with four digits."""
    return f"{value:.4g}"


def as_lines(figures: Mapping[str, str]) -> str:
    """Return figures as text, one a line."""
    return "\n".join(f"{name}: {figure}" for name, figure in figures.items())


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The predictions of a model on labeled images, and the measures that follow from them, by scikit-learn.

    Args:
        class_names: Names of the classes, labels, numbers or levels.
        paths: Path of each image, relative to its folder.
        labels: The truth: class numbers `(n,)`; 0 and 1 `(n, labels)`; numbers `(n, outputs)`; or levels `(n, 1)`.
        raw: What the model says, as `anatomy.predictions` returns it: probabilities `(n, classes)`, or numbers.
        task: One of `vit_keras.labels.TASKS`.

    Example:
        >>> seen = Evaluation(("cat", "dog"), ("1.jpg", "2.jpg"), np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]))
        >>> seen.accuracy, seen.confusion.tolist(), seen.mistakes().tolist()
        (0.5, [[1, 0], [1, 0]], [1])
    """

    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray
    raw: np.ndarray
    task: str = "single"

    @property
    def row(self) -> Row:
        """What belongs to the task."""
        return ROWS[self.task]

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each class or label, `(n, classes)`."""
        if self.task not in ("single", "multi"):
            raise AttributeError(f"There are no probabilities: the task is {self.task!r}.")
        return self.raw

    @functools.cached_property
    def predictions(self) -> np.ndarray:
        """The class of each image; 0 or 1 for each label; the numbers; or the level of each image."""
        return self.row.decide(self)

    # --- measures -----------------------------------------------------------------------------------------------------

    @property
    def targets(self) -> np.ndarray:
        """The truth for `metrics.score`."""
        return self.labels[:, 0].astype(int) if self.task == "ordinal" else self.labels

    @property
    def outputs(self) -> np.ndarray:
        """The predictions for `metrics.score`; levels not beyond the first and the last."""
        return np.clip(self.raw[:, 0], 0, len(self.class_names) - 1) if self.task == "ordinal" else self.raw

    @property
    def scale(self) -> tuple[float, ...] | None:
        """The values of the levels, where all are numbers that rise, such as 0, 1, 4; otherwise `None`."""
        return metrics.scale_of(self.class_names) if self.task == "ordinal" else None

    def score(self, name: str | None = None) -> float:
        """Return a metric by name, or the task's own; NaN if the images do not define it."""
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore", UserWarning)  # of classes that the mean leaves out
            return metrics.score(name, self.targets, self.outputs, self.task, scale=self.scale)
        return math.nan

    @property
    def accuracy(self) -> float:
        """Share of the predictions that are right; of several labels, each counts."""
        return float(np.mean(self.predictions == self.targets))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy (Wilson's)."""
        return metrics.wilson(self.accuracy, len(self.labels))

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """Cross-entropy of each image, or binary of each image and label, in nats."""
        if self.task == "single":  # not scikit-learn's: the probabilities of sigmoids do not sum to 1
            right = self.probabilities[np.arange(len(self.labels)), self.labels]
        else:
            right = np.where(self.labels > 0.5, self.probabilities, 1 - self.probabilities)
        return -np.log(np.maximum(right, 1e-7))

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """Images by true class or level (rows) and predicted one (columns)."""
        count, labels = metrics.scikit_learn_metrics().confusion_matrix, range(len(self.class_names))
        return count(self.targets, self.predictions, labels=labels)

    @functools.cached_property
    def per_class(self) -> tuple[dict[str, Any], ...]:
        """`name` and measures (`COLUMNS`) of each class, label or number; `None` where one is not defined."""
        names, columns = self.row.parts(self)
        rows = zip(names, *([_plain(value) for value in column] for column in columns.values()))
        return tuple(dict(zip(("name", *columns), values)) for values in rows)

    @functools.cached_property
    def measures(self) -> dict[str, Any]:
        """The measures of all images together, by the names that `to_dict` has."""
        return {each.key: each.of(self) for each in self.row.measures}

    # --- images -------------------------------------------------------------------------------------------------------

    def mistakes(self) -> np.ndarray:
        """Return the numbers of the images that are predicted wrongly, or of all where numbers are; the worst first."""
        wrong, size = self.row.wrong(self)
        return wrong[np.argsort(-size[wrong], kind="stable")]

    def confused(self) -> list[tuple[str, str, int]]:
        """Return true class, predicted class and number of images of each confusion; the most frequent first."""
        wrong = [pair for pair in zip(*np.nonzero(self.confusion)) if pair[0] != pair[1]]
        wrong.sort(key=lambda pair: -self.confusion[pair])
        return [(self.class_names[i], self.class_names[j], int(self.confusion[i, j])) for i, j in wrong]

    # --- in words -----------------------------------------------------------------------------------------------------

    @property
    def table(self) -> list[list[str]]:
        """`per_class` in words: a row of titles, then a row for each class, label or number."""
        columns = [(name, *COLUMNS[name]) for name in self.per_class[0] if name != "name"]
        titles = [self.row.heading, *(title for _, title, _ in columns)]
        return [titles, *([part["name"], *(form(part[name]) for name, _, form in columns)] for part in self.per_class)]

    @property
    def figures(self) -> dict[str, str]:
        """The most important metrics, in words."""
        count = {"images": f"{len(self.labels):,}", "names": f"{len(self.class_names):,}"}
        found = {each.words.format(**count): each.form(self.measures[each.key]) for each in self.row.measures}
        for part in self.per_class[:2] if self.row.errors else ():
            of = "" if len(self.per_class) == 1 else f" of {part['name']}"
            found |= {f"{words}{of}": form(part[name]) for name, (words, form) in ERRORS.items()}
        return found

    @property
    def headline(self) -> str:
        """The result in a line."""
        return ", ".join(f"{name}: {value}" for name, value in [*self.figures.items()][:2])

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics, as plain JSON."""
        found = {"task": self.task, "images": len(self.labels), **self.measures, self.row.key: list(self.per_class)}
        return found | ({"confusion": self.confusion.tolist()} if self.row.confused else {})

    def __repr__(self) -> str:
        return as_lines(self.figures)


@dataclasses.dataclass(frozen=True)
class Measure:
    """A number for all images together: its name in JSON, in words, how it is written, and how it is computed."""

    key: str
    words: str
    form: Callable[[Any], str]
    of: Callable[[Evaluation], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What differs from task to task: how it is measured, and what the tables of a report are called."""

    decide: Callable[[Evaluation], np.ndarray]
    parts: Callable[[Evaluation], tuple[tuple[str, ...], dict[str, Any]]]
    wrong: Callable[[Evaluation], tuple[np.ndarray, np.ndarray]]
    caption: Callable[[Evaluation, int], tuple[str, str]]
    measures: tuple[Measure, ...] = ()
    key: str
    heading: str
    text: str
    worst: tuple[str, str]
    confused: bool = False
    errors: bool = False


def _plain(value: Any) -> int | float | None:
    """Return a number of NumPy as one of Python, and NaN as `None`."""
    return None if np.isnan(value) else value.item() if hasattr(value, "item") else value


# --- classes and labels ---------------------------------------------------------------------------------------------


def _of_classes(seen: Evaluation) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return precision, recall and F1 of each class or label; of labels also how well they are ranked."""
    sklearn, several, count = metrics.scikit_learn_metrics(), seen.task == "multi", len(seen.class_names)
    labels = [1] if several and count == 1 else range(count)  # of one column scikit-learn makes two classes
    precision, recall, f1, images = sklearn.precision_recall_fscore_support(
        seen.targets.astype(int), seen.predictions, labels=labels, average=None, zero_division=np.nan
    )
    rank = {}
    if several:
        pairs = [(true, shares, true.sum() / len(true)) for true, shares in zip(seen.labels.T, seen.raw.T)]
        rank["average_precision"] = [sklearn.average_precision_score(t, p) if some else np.nan for t, p, some in pairs]
        rank["roc_auc"] = [sklearn.roc_auc_score(t, p) if 0 < some < 1 else np.nan for t, p, some in pairs]
    return seen.class_names, {"images": images, **rank, "precision": precision, "recall": recall, "f1": f1}


def _wrong_classes(seen: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    if seen.task == "multi":
        return np.flatnonzero((seen.predictions != seen.labels).any(axis=1)), seen.losses.sum(axis=1)
    return np.flatnonzero(seen.predictions != seen.labels), -seen.raw[np.arange(len(seen.labels)), seen.labels]


def _caption_of_class(seen: Evaluation, place: int) -> tuple[str, str]:
    pair, shares = (seen.labels[place], seen.predictions[place]), seen.raw[place]
    true, predicted = (f"{seen.class_names[each]} ({percent(shares[each])})" for each in pair)
    return true, predicted


def _caption_of_labels(seen: Evaluation, place: int) -> tuple[str, str]:
    true = [name for name, there in zip(seen.class_names, seen.labels[place]) if there]
    rows = zip(seen.class_names, seen.raw[place], seen.predictions[place])
    predicted = [f"{name} ({percent(share)})" for name, share, there in rows if there]
    return ", ".join(true) or "no label", ", ".join(predicted) or "no label"


# --- numbers and levels -----------------------------------------------------------------------------------------------


def _on_scale(seen: Evaluation, numbers: np.ndarray) -> np.ndarray:
    if seen.task == "regression":
        return np.asarray(numbers, "float64")
    return metrics.on_scale(numbers, seen.scale or range(len(seen.class_names)))


def _of_numbers(seen: Evaluation) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the errors of each number; R² is not defined of a number that is the same in all images."""
    sklearn = metrics.scikit_learn_metrics()
    true, said = _on_scale(seen, seen.labels), _on_scale(seen, seen.raw)
    deviation, each = true.std(axis=0), {"multioutput": "raw_values"}
    r2 = np.where(deviation > 0, sklearn.r2_score(true, said, **each), np.nan)
    return ("level",) if seen.task == "ordinal" else seen.class_names, {
        "rmse": sklearn.root_mean_squared_error(true, said, **each),
        "mae": sklearn.mean_absolute_error(true, said, **each),
        "bias": (said - true).mean(axis=0),
        "r2": r2,
        "mean": true.mean(axis=0),
        "deviation": deviation,
    }


def _wrong_numbers(seen: Evaluation) -> tuple[np.ndarray, np.ndarray]:
    """Return all images, and the errors in deviations of each number."""
    deviations = [scores["deviation"] or 1 for scores in seen.per_class]
    errors = np.abs(_on_scale(seen, seen.raw) - _on_scale(seen, seen.labels)) / deviations
    return np.arange(len(seen.labels)), errors.max(axis=1)


def _caption_of_level(seen: Evaluation, place: int) -> tuple[str, str]:
    said = f"{seen.class_names[seen.predictions[place]]} ({number(_on_scale(seen, seen.outputs)[place])})"
    return seen.class_names[seen.targets[place]], said


def _caption_of_numbers(seen: Evaluation, place: int) -> tuple[str, str]:
    one = len(seen.class_names) == 1
    true, predicted = (
        ", ".join(number(value) if one else f"{name} {number(value)}" for name, value in zip(seen.class_names, row))
        for row in (seen.labels[place], seen.raw[place])
    )
    return true, predicted


ERRORS = {
    "rmse": ("root mean squared error", number),
    "mae": ("mean absolute error", number),
    "r2": ("R²: share of the variance that is predicted", percent),
    "deviation": ("deviation: the error of always predicting the mean", number),
}
"""What is said of a number."""

COLUMNS = {
    "images": ("Images", "{:,}".format),
    "average_precision": ("Average precision", percent),
    "roc_auc": ("AUC", percent),
    "precision": ("Precision", percent),
    "recall": ("Recall", percent),
    "f1": ("F1", percent),
    "rmse": ("RMSE", number),
    "mae": ("MAE", number),
    "bias": ("Bias", number),
    "r2": ("R²", percent),
    "mean": ("True mean", number),
    "deviation": ("True deviation", number),
}
"""The columns of tables of `Evaluation.per_class`: what each is called, and how its numbers are written."""

_NUMBERS: dict[str, Any] = {
    "parts": _of_numbers,
    "wrong": _wrong_numbers,
    "key": "numbers",
    "text": "RMSE: root mean squared error. MAE: mean absolute error. Bias: mean error. R²: share of the variance that "
    "is predicted.",
    "worst": ("Largest errors", "The images with the largest errors."),
    "errors": True,
}


def _scored(key: str, words: str, metric: str, form: Callable[[Any], str] = percent) -> Measure:
    return Measure(key, words, form, lambda seen: seen.score(metric))


_ACCURACY = Measure("accuracy", "accuracy on {images} images", percent, lambda seen: seen.accuracy)

ROWS = {
    "single": Row(
        decide=lambda seen: seen.raw.argmax(axis=-1),
        parts=_of_classes,
        wrong=_wrong_classes,
        caption=_caption_of_class,
        measures=(
            _ACCURACY,
            Measure("interval", "95 % interval", lambda pair: " to ".join(map(percent, pair)), lambda s: [*s.interval]),
            _scored("macro_f1", "mean F1 over the classes", "macro_f1"),
            Measure("loss", "loss (cross-entropy)", number, lambda seen: float(seen.losses.mean())),
            Measure("mistakes", "mistakes of {images}", str, lambda seen: len(seen.mistakes())),
            Measure(
                "majority_accuracy",
                "accuracy of always predicting the most frequent class",
                percent,
                lambda seen: float(np.bincount(seen.labels).max() / len(seen.labels)),
            ),
        ),
        key="classes",
        heading="Classes",
        text="Precision: share of the images predicted as a class that are of it. Recall: share of the images of a "
        "class that are predicted as it. F1: harmonic mean of the two.",
        worst=("Worst mistakes", "The mistakes with the lowest probability of the true class."),
        confused=True,
    ),
    "multi": Row(
        decide=lambda seen: (seen.raw >= 0.5).astype(int),
        parts=_of_classes,
        wrong=_wrong_classes,
        caption=_caption_of_labels,
        measures=(
            _scored("mean_average_precision", "mean average precision over {names} labels", "map"),
            _scored("roc_auc", "mean area under the ROC curve", "roc_auc"),
            _scored("macro_f1", "mean F1 over the labels", "macro_f1"),
            _scored("exact", "images with all labels right, of {images}", "accuracy"),
            Measure("accuracy", "decisions that are right", percent, lambda seen: seen.accuracy),
            Measure("loss", "loss (binary cross-entropy)", number, lambda seen: float(seen.losses.mean())),
        ),
        key="labels",
        heading="Labels",
        text="Average precision and the area under the ROC curve (AUC) tell how well the probabilities rank images "
        "with the label before those without it. Precision, recall and F1 count a probability of at least one half as "
        "the label.",
        worst=("Worst mistakes", "The mistakes with the largest loss. A label counts from a probability of one half."),
    ),
    "regression": Row(decide=lambda seen: seen.raw, caption=_caption_of_numbers, heading="Numbers", **_NUMBERS),
    "ordinal": Row(
        decide=lambda seen: levels(seen.raw[:, 0], len(seen.class_names)),
        caption=_caption_of_level,
        measures=(_scored("kappa", "Cohen's kappa, with quadratic weights", "quadratic_kappa", number), _ACCURACY),
        heading="Levels",
        confused=True,
        **_NUMBERS,
    ),
}
"""One row for each of `vit_keras.labels.TASKS`."""

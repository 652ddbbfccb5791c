"""Evaluation of multi-label, regression and ordinal models."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...anatomy import levels
from .. import metrics

__all__ = ["LabelsEvaluation", "RegressionEvaluation", "as_html"]


def percent(share: float | None) -> str:
    """Return a share in percent.

    Example:
        >>> percent(0.5).split(), percent(None)
        (['50.0', '%'], '–')
    """
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def number(value: float) -> str:
    """Return a number with four digits."""
    return f"{value:.4g}"


def as_html(figures: Mapping[str, str]) -> str:
    """Return figures as a table, for notebooks.

    Example:
        >>> as_html({"accuracy": "50 %"})
        '<table><tbody><tr><th>accuracy</th><td>50 %</td></tr></tbody></table>'
    """
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in figures.items())
    return f"<table><tbody>{rows}</tbody></table>"


@dataclasses.dataclass(frozen=True, eq=False)
class LabelsEvaluation:
    """The predictions of a model for images that have any number of labels each.

    Attributes:
        class_names: Names of the labels, in the order of the outputs.
        paths: The images, relative to their folder.
        labels: float array `(n, labels)` of 0 and 1.
        probabilities: float array `(n, labels)`.

    Example:
        >>> truth, said = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.9, 0.4], [0.2, 0.3]])
        >>> found = LabelsEvaluation(("cat", "dog"), ("1.jpg", "2.jpg"), truth, said)
        >>> found.per_class[0]["average_precision"], found.accuracy, found.mistakes().tolist()
        (1.0, 0.75, [1])
    """

    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray
    probabilities: np.ndarray
    task = "multi"

    @property
    def targets(self) -> np.ndarray:
        """What `metrics.score` compares: the labels."""
        return self.labels

    @property
    def outputs(self) -> np.ndarray:
        """What `metrics.score` compares: the probabilities."""
        return self.probabilities

    @functools.cached_property
    def predictions(self) -> np.ndarray:
        """The labels with a probability of at least one half, as 0 and 1."""
        return (self.probabilities >= 0.5).astype(int)

    @property
    def accuracy(self) -> float:
        """Share of all decisions, one for each image and label, that are right."""
        return float((self.predictions == self.labels).mean())

    @property
    def exact(self) -> float:
        """Share of the images all of whose labels are right."""
        return float((self.predictions == self.labels).all(axis=1).mean())

    @property
    def losses(self) -> np.ndarray:
        """Binary cross-entropy of each image and label, in nats, `(n, labels)`."""
        right = np.where(self.labels > 0.5, self.probabilities, 1 - self.probabilities)
        return -np.log(np.maximum(right, 1e-7))

    @functools.cached_property
    def per_class(self) -> tuple[dict[str, Any], ...]:
        """`name`, `pictures`, `average_precision`, `roc_auc`, `precision`, `recall` and `f1` of each label, as
        scikit-learn computes them; `None` where the images leave one open.
        """
        from sklearn import metrics

        found = []
        for column, name in enumerate(self.class_names):
            true, shares, said = self.labels[:, column], self.probabilities[:, column], self.predictions[:, column]
            count, hits = int(true.sum()), int((true * said).sum())
            ranked = 0 < count < len(true)
            found.append(
                {
                    "name": name,
                    "pictures": count,
                    "average_precision": float(metrics.average_precision_score(true, shares)) if count else None,
                    "roc_auc": float(metrics.roc_auc_score(true, shares)) if ranked else None,
                    "precision": hits / int(said.sum()) if said.any() else None,
                    "recall": hits / count if count else None,
                    "f1": 2 * hits / (count + int(said.sum())) if count or said.any() else None,
                }
            )
        return tuple(found)

    def mean(self, measure: str) -> float | None:
        """Return the mean over the labels of a metric in `per_class`; `None` where no label has it.

        The means of `"f1"`, `"roc_auc"` and `"average_precision"` are those of `metrics.score`.
        """
        name = {"f1": "macro_f1", "roc_auc": "roc_auc", "average_precision": "map"}.get(measure)
        if name is None:
            known = [scores[measure] for scores in self.per_class if scores[measure] is not None]
            return float(np.mean(known)) if known else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # `per_class` shows which labels have none
            with contextlib.suppress(ValueError):
                return metrics.score(name, self.labels, self.probabilities, "multi")
        return None

    def mistakes(self) -> np.ndarray:
        """Return the numbers of the images with a wrong label, those of the largest loss first."""
        wrong = np.flatnonzero((self.predictions != self.labels).any(axis=1))
        return wrong[np.argsort(-self.losses[wrong].sum(axis=1), kind="stable")]

    def caption(self, number: int) -> tuple[str, str]:
        """Return the labels of an image, and those that were predicted, in words."""
        true = [name for name, there in zip(self.class_names, self.labels[number]) if there]
        said = [
            f"{name} ({percent(share)})"
            for name, share, there in zip(self.class_names, self.probabilities[number], self.predictions[number])
            if there
        ]
        return ", ".join(true) or "no label", ", ".join(said) or "no label"

    @property
    def headline(self) -> str:
        """The result in a line."""
        return f"mean average precision {percent(self.mean('average_precision'))}, mean F1 {percent(self.mean('f1'))}"

    @property
    def figures(self) -> dict[str, str]:
        """The most important metrics, in words."""
        return {
            f"mean average precision over {len(self.class_names):,} labels": percent(self.mean("average_precision")),
            "mean area under the ROC curve": percent(self.mean("roc_auc")),
            "mean F1 over the labels": percent(self.mean("f1")),
            f"images with all labels right, of {len(self.labels):,}": percent(self.exact),
            "loss (binary cross-entropy)": f"{self.losses.mean():.3f}",
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics, as plain JSON."""
        return {
            "task": self.task,
            "pictures": len(self.labels),
            "mean_average_precision": self.mean("average_precision"),
            "roc_auc": self.mean("roc_auc"),
            "macro_f1": self.mean("f1"),
            "accuracy": self.accuracy,
            "exact": self.exact,
            "loss": float(self.losses.mean()),
            "labels": list(self.per_class),
        }

    def _repr_html_(self) -> str:
        return as_html(self.figures)


@dataclasses.dataclass(frozen=True, eq=False)
class RegressionEvaluation:
    """The numbers, or the levels, that a model predicts for images.

    Attributes:
        class_names: Names of the numbers; or of the levels, the first of which is 0.
        paths: The images, relative to their folder.
        labels: float array `(n, k)`; of levels `(n, 1)`.
        predictions: float array of the same shape; those of levels are not rounded.
        task: `"regression"` or `"ordinal"`.

    Example:
        >>> ages, predicted = np.array([[1.0], [3.0]]), np.array([[1.0], [4.0]])
        >>> found = RegressionEvaluation(("age",), ("1.jpg", "2.jpg"), ages, predicted)
        >>> found.per_class[0]["mae"], found.mistakes().tolist()
        (0.5, [1, 0])
    """

    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray
    predictions: np.ndarray
    task: str = "regression"

    @property
    def targets(self) -> np.ndarray:
        """What `metrics.score` compares: the numbers, or the levels `(n,)`."""
        return self.labels[:, 0].astype(int) if self.task == "ordinal" else self.labels

    @property
    def outputs(self) -> np.ndarray:
        """What `metrics.score` compares: the predictions, like `targets`; not beyond the first and the last level."""
        if self.task == "regression":
            return self.predictions
        return np.clip(self.predictions[:, 0], 0, len(self.class_names) - 1)

    @property
    def scale(self) -> tuple[float, ...] | None:
        """The values of the levels, where all are numbers that rise, such as 0, 1, 4; otherwise `None`."""
        return metrics.scale_of(self.class_names) if self.task == "ordinal" else None

    def _on_scale(self, numbers: np.ndarray) -> np.ndarray:
        if self.task == "regression":
            return numbers
        return metrics.on_scale(numbers, self.scale or range(len(self.class_names)))

    @functools.cached_property
    def per_class(self) -> tuple[dict[str, Any], ...]:
        """`name`, `rmse`, `mae`, `bias` (mean error), `r2`, `mean` and `deviation` of each number; R² is `None` of a
        number that is always the same. Levels that are numbers, such as 0, 1 and 4, have errors on their own scale.
        """
        names = ("level",) if self.task == "ordinal" else self.class_names
        found = []
        columns = (self._on_scale(each.T.astype("float64")) for each in (self.labels, self.predictions))
        for name, true, said in zip(names, *columns):
            error, variance = said - true, true.var()
            found.append(
                {
                    "name": name,
                    "rmse": float(np.sqrt(np.mean(error**2))),
                    "mae": float(np.abs(error).mean()),
                    "bias": float(error.mean()),
                    "r2": float(1 - np.mean(error**2) / variance) if variance else None,
                    "mean": float(true.mean()),
                    "deviation": float(np.sqrt(variance)),
                }
            )
        return tuple(found)

    @functools.cached_property
    def levels(self) -> np.ndarray:
        """The predicted level of each image, of the task `"ordinal"`."""
        return levels(self.predictions[:, 0], len(self.class_names))

    @property
    def accuracy(self) -> float:
        """Share of the images whose predicted level is the true one."""
        return float(np.mean(self.levels == self.targets))

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """Images by true level (rows) and predicted level (columns)."""
        counts = np.zeros((len(self.class_names),) * 2, int)
        np.add.at(counts, (self.targets, self.levels), 1)
        return counts

    @property
    def kappa(self) -> float:
        """Cohen's kappa of the levels with quadratic weights: 1 is perfect, 0 is chance."""
        counts, count = self.confusion, len(self.class_names)
        weights = np.subtract.outer(np.arange(count), np.arange(count)) ** 2
        chance = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
        return float(1 - (weights * counts).sum() / ((weights * chance).sum() or 1))

    def mistakes(self) -> np.ndarray:
        """Return the numbers of all images, those of the largest error first, in deviations of each number."""
        deviations = [scores["deviation"] or 1 for scores in self.per_class]
        error = np.abs(self._on_scale(self.predictions) - self._on_scale(self.labels)) / deviations
        return np.argsort(-error.max(axis=1), kind="stable")

    def caption(self, place: int) -> tuple[str, str]:
        """Return the numbers of an image, and those that were predicted, in words."""
        if self.task == "ordinal":
            said = f"{self.class_names[self.levels[place]]} ({number(self._on_scale(self.outputs)[place])})"
            return self.class_names[self.targets[place]], said
        rows = (self.labels[place], self.predictions[place])
        one = len(self.class_names) == 1
        true, predicted = (
            ", ".join(number(value) if one else f"{name} {number(value)}" for name, value in zip(self.class_names, row))
            for row in rows
        )
        return true, predicted

    @property
    def headline(self) -> str:
        """The result in a line."""
        if self.task == "ordinal":
            return f"quadratic kappa {self.kappa:.3f}, accuracy {percent(self.accuracy)}"
        return "; ".join(
            f"{each['name']}: root mean squared error {number(each['rmse'])}, of a deviation of "
            f"{number(each['deviation'])}"
            for each in self.per_class[:3]
        )

    @property
    def figures(self) -> dict[str, str]:
        """The most important metrics, in words."""
        figures = {}
        if self.task == "ordinal":
            figures["Cohen's kappa, with quadratic weights"] = f"{self.kappa:.3f}"
            figures[f"accuracy on {len(self.labels):,} images"] = percent(self.accuracy)
        for each in self.per_class[:2]:
            of = "" if len(self.per_class) == 1 else f" of {each['name']}"
            figures[f"root mean squared error{of}"] = number(each["rmse"])
            figures[f"mean absolute error{of}"] = number(each["mae"])
            figures[f"R²{of}: share of the variance that is predicted"] = percent(each["r2"])
            figures[f"deviation{of}: the error of always predicting the mean"] = number(each["deviation"])
        return figures

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics, as plain JSON."""
        found = {"task": self.task, "pictures": len(self.labels), "numbers": list(self.per_class)}
        if self.task == "ordinal":
            found |= {"kappa": self.kappa, "accuracy": self.accuracy, "confusion": self.confusion.tolist()}
        return found

    def _repr_html_(self) -> str:
        return as_html(self.figures)

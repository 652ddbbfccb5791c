"""Likely wrong labels, by confident learning: images that a model which has not seen them is sure to be another class.

Northcutt, Jiang and Chuang, "Confident Learning: Estimating Uncertainty in Dataset Labels" (arXiv 1911.00068), which
the library cleanlab implements.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np

from ..._internal.validate import as_array
from ...anatomy import softmax
from ..embeddings.probe import check_labels, label_numbers, linear_probe, weight_decay

__all__ = ["LabelIssues", "label_issues", "out_of_fold"]

_FOLDS = 5


@dataclasses.dataclass(frozen=True, eq=False)
class LabelIssues:
    """Images whose label is likely wrong, the most likely first; made by `label_issues`.

    Attributes:
        images: int array, their numbers.
        suggested: int array, the class that each seems to be.
        probabilities: The probability of the label.

    Example:
        >>> found = LabelIssues(np.array([3]), np.array([1]), np.array([0.02]))
        >>> len(found)
        1
    """

    images: np.ndarray
    suggested: np.ndarray
    probabilities: np.ndarray

    def __len__(self) -> int:
        return len(self.images)


def label_issues(probabilities: Any, labels: Any) -> LabelIssues:
    """Find images whose label is likely wrong.

    Each class has a threshold of its own: the mean probability that it gets on the images with its label. An image is
    an issue if another class reaches its threshold, is the most probable one of those that do, and is the most probable
    one of all: the images off the diagonal of the confident joint (arXiv 1911.00068, section 3.1). Those
    of the least probable labels come first, which finds more than the margin between the two classes does.

    Args:
        probabilities: `(n, classes)` of images that the model has not learned from: out of fold, as those in `oof.csv`
            or of `out_of_fold`. A model is sure of the wrong labels that it has learned.
        labels: The given class numbers `(n,)`, or one-hot `(n, classes)`.

    Raises:
        ValueError: The shapes do not fit each other, or a label is not a class.

    Example:
        >>> shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.95, 0.05]])
        >>> found = label_issues(shares, [0, 0, 1, 1, 1])
        >>> found.images, found.suggested
        (array([4]), array([0]))
    """
    shares = as_array(probabilities, "float64")
    if shares.ndim != 2 or not np.isfinite(shares).all():
        problem = f"shape {shares.shape}" if shares.ndim != 2 else "some that are not finite numbers"
        raise ValueError(f"label_issues needs probabilities (n, classes). Received: {problem}")
    wide = np.shape(labels)[1:]
    if len(wide) == 1 and wide[0] not in (1, shares.shape[1]):
        raise ValueError(f"The one-hot labels have {wide[0]} classes, and the probabilities {shares.shape[1]}.")
    labels = label_numbers(labels, len(shares))
    if len(labels):
        check_labels(labels, shares.shape[1])
    given = np.eye(shares.shape[1])[labels]
    counts = given.sum(axis=0)
    thresholds = np.where(counts > 0, (given * shares).sum(axis=0) / np.maximum(counts, 1), np.inf)
    sure = np.where(shares >= thresholds - 1e-9, shares, -1.0)
    suggested = sure.argmax(axis=1)
    found = (sure.max(axis=1) > 0) & (suggested != labels) & (suggested == shares.argmax(axis=1))
    images = np.flatnonzero(found)
    images = images[np.argsort(shares[images, labels[images]], kind="stable")]
    return LabelIssues(images, suggested[images], shares[images, labels[images]])


def out_of_fold(
    features: np.ndarray, labels: Any, *, classes: int | None = None, l2: float | str = "auto", seed: int = 0
) -> np.ndarray:
    """Return the probability of each class for each image, from the features of the others alone.

    A `linear_probe` learns four fifths of the images and predicts the last (scikit-learn's `StratifiedKFold`). It takes
    some five times as long as one `linear_probe` of known weight decay.

    Args:
        features: `(n, features)`, of a model that has not learned these labels.
        labels: Class numbers `(n,)`, or one-hot `(n, classes)`.
        classes: How many there are; `None`: one more than the highest label.
        l2: The weight decay; see `linear_probe`.
        seed: How the images are divided.

    Returns:
        `(n, classes)`; a class with one image has hardly any probability for it.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: There is only one class, each image has its own, or `l2` is not a positive number.

    Example:
        >>> points = np.array([[0.0, 1.0], [0.2, 0.8], [1.0, 0.1], [0.9, 0.0]])
        >>> out_of_fold(points, [0, 0, 1, 1]).argmax(axis=1)
        array([0, 0, 1, 1])
    """
    decay = weight_decay(l2, features, labels, classes=classes, seed=seed)
    from sklearn.model_selection import StratifiedKFold

    features, labels = as_array(features, "float32"), label_numbers(labels, len(features))
    counts = np.unique(labels, return_counts=True)[1]
    if len(counts) < 2 or counts.max() < 2:
        raise ValueError("out_of_fold needs two classes, one of them with two images.")
    folds = StratifiedKFold(min(_FOLDS, int(counts.max())), shuffle=True, random_state=seed)
    found = np.zeros((len(labels), int(labels.max()) + 1 if classes is None else classes))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")
        for learned, asked in folds.split(features, labels):
            if np.ptp(labels[learned]) == 0:  # the other class has one image, which is asked here
                found[asked, labels[learned][0]] = 1.0
                continue
            l2 = decay * len(labels) / len(learned)  # the penalty that all images together would have
            probe = linear_probe(features[learned], labels[learned], classes=found.shape[1], l2=l2)
            found[asked] = softmax(probe.logits(features[asked]))
    return found

"""Classifiers of frozen features: linear probes, and nearest neighbors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from ..._internal.imports import extra
from ..._internal.validate import as_array, numbers, received
from ...anatomy.dry_run import ending
from ...anatomy.outputs import softmax
from ..checks import check_labels, label_numbers
from ..lora import check_plain

__all__ = ["Probe", "knn", "linear_probe", "ridge_probe"]


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """A linear classifier of features. Made by `linear_probe` and `ridge_probe`.

    Attributes:
        kernel: float32 `(features, classes)`.
        bias: float32 `(classes,)`.
        l2: The weight decay it was trained with.

    Example:
        >>> Probe(kernel=np.eye(2, dtype="float32"), bias=np.zeros(2, "float32"), l2=0.0).predict([[0.2, 0.8]])
        array([1])
    """

    kernel: np.ndarray
    bias: np.ndarray
    l2: float

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Return the logits of features `(n, features)`, float32 `(n, classes)`."""
        return as_array(features, "float32") @ self.kernel + self.bias

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return the classes of features `(n, features)`, int `(n,)`."""
        return self.logits(features).argmax(axis=-1)

    def apply_to(self, model: keras.Model, scale: float = 1.0) -> None:
        """Put the probe into a model's head. The model then predicts as the probe does.

        As a start for fine-tuning, `ridge_probe` is better than `linear_probe` (benchmarks/finetuning.md).

        Args:
            model: A ViT with a head, or a model with a ViT inside that ends in a `Dense` layer, which sees the
                features.
            scale: Factor of the kernel and the bias.

        Raises:
            ValueError: The model has no head, one of another shape, or a quantized one.
        """
        found = [layer for layer in ending(model).heads if isinstance(layer, keras.layers.Dense)]
        if not found:
            raise ValueError(f"The model {model.name!r} has no head. Build it with classes={len(self.bias)}.")
        for head in found:
            if tuple(head.kernel.shape) != self.kernel.shape or not head.use_bias:
                raise ValueError(
                    f"The probe has a kernel of {self.kernel.shape} and a bias; the layer {head.name!r} of "
                    f"{model.name!r} has a kernel of {tuple(head.kernel.shape)} and "
                    f"{'a' if head.use_bias else 'no'} bias. Build the model with classes={len(self.bias)}."
                )
        check_plain(found, model, "apply the probe")
        for head in found:
            head.kernel.assign(scale * self.kernel)
            head.bias.assign(scale * self.bias)


# Weight decays to try, for standardized features; the best of hardly any dataset is outside.
_DECAYS = tuple(10.0 ** (-exponent / 2) for exponent in range(13))
_RIDGE_DECAYS = tuple(10.0 ** (exponent / 2) for exponent in range(-6, 7))


def linear_probe(
    features: np.ndarray,
    labels: Any,
    *,
    classes: int | None = None,
    l2: float | str = "auto",
    seed: int = 0,
) -> Probe:
    """Train a linear classifier on features: multinomial logistic regression, solved to its optimum.

    The features are standardized for training, which the kernel and the bias undo: the probe takes them as they are.

    Args:
        features: `(n, features)`, as `embed` and `features` return them.
        labels: `(n,)` integers, or one-hot `(n, classes)`.
        classes: How many there are; `None`: one more than the highest label.
        l2: Weight decay of the kernel, as in `mean(cross entropy) + l2 / 2 * sum(kernel ** 2)`; `"auto"`: that of the
            lowest cross entropy on a fifth of each class, which the final probe is trained with too.
        seed: Which fifth.

    Raises:
        ImportError: scikit-learn, which solves it, is not installed.
        ValueError: The shapes do not fit each other, labels are out of range, there is only one class, or values are
            not finite.

    Example:
        >>> points = np.array([[0.0, 1.0], [0.2, 0.8], [1.0, 0.1], [0.9, 0.0]])
        >>> linear_probe(points, [0, 0, 1, 1], l2=0.01).predict([[0.1, 0.9], [0.8, 0.3]])
        array([0, 1])
    """
    features, labels = _checked(features, labels)
    classes = int(labels.max()) + 1 if classes is None else classes
    check_labels(labels, classes)
    decay, held = _decay(l2), _a_fifth_of_each(labels, seed)
    if decay is None and held.any():
        decay = _best(_fit(features[~held], labels[~held], classes, _DECAYS), features[held], labels[held])
    (probe,) = _fit(features, labels, classes, [decay or 0.01])  # of one image of each class, none can be held out
    return probe


def _decay(l2: float | str) -> float | None:
    if l2 == "auto":
        return None
    if isinstance(l2, str) or not l2 > 0:
        raise ValueError(f"l2 must be a positive number or 'auto'. Received: {l2!r}")
    return l2


def _best(probes: Iterable[Probe], features: np.ndarray, labels: np.ndarray) -> float:
    """Return the weight decay of the lowest cross-entropy; the search ends when it has risen twice in a row."""
    tried: list[Probe] = []
    losses: list[float] = []
    for probe in probes:
        tried.append(probe)
        likelihoods = softmax(probe.logits(features))[np.arange(len(labels)), labels]
        losses.append(-float(np.mean(np.log(likelihoods + 1e-30))))
        if len(losses) - np.argmin(losses) > 2:
            break
    return tried[np.argmin(losses)].l2


def _fit(features: np.ndarray, labels: np.ndarray, classes: int, decays: Iterable[float]) -> Iterator[Probe]:
    """Yield the probe of each weight decay, each starting from the one before."""
    linear_model = extra("sklearn.linear_model", "A linear probe needs scikit-learn")
    mean, std = _mean_and_std(features)
    x = ((features - mean) / std).astype("float32")
    present = np.unique(labels)
    if len(present) < 2:
        raise ValueError(f"A probe needs images of at least two classes. Received: class {present[0]} only")
    solver = linear_model.LogisticRegression(max_iter=1000, tol=1e-5, warm_start=True)
    for l2 in decays:
        # Of two classes it fits one row, the difference of our two, whose penalty is twice ours.
        solver.set_params(C=(2 if len(present) == 2 else 1) / (l2 * len(x)))
        solver.fit(x, labels)
        rows, biases = solver.coef_, solver.intercept_
        if len(present) == 2:
            rows, biases = np.outer([-0.5, 0.5], rows), np.outer([-0.5, 0.5], biases)[:, 0]
        kernel = np.zeros((x.shape[1], classes))
        kernel[:, present] = rows.T / std[:, None]
        bias = np.full(classes, biases.min() - 10)  # classes without an image are unlikely
        bias[present] = biases
        yield Probe(kernel.astype("float32"), (bias - mean @ kernel).astype("float32"), float(l2))


def _mean_and_std(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, std = features.mean(axis=0, dtype="float64"), features.std(axis=0, dtype="float64")
    std[std < 1e-6 * max(std.max(), 1e-30)] = np.inf  # a constant feature does not matter
    return mean, std


def ridge_probe(features: np.ndarray, labels: Any, *, classes: int | None = None, l2: float | str = "auto") -> Probe:
    """Fit a linear model in closed form: ridge regression of the labels on standardized features.

    As a classifier, its logits are small: where it is sure, they differ by about 1. So it is a start for fine-tuning
    that has the right direction and does not resist change.

    Args:
        features: `(n, features)`, as `embed` and `features` return them.
        labels: `(n,)` integers; or `(n, outputs)`: numbers, or 1 for each class of an image and 0 for the others.
        classes: The number of classes of integers; `None`: one more than the highest label.
        l2: Weight decay of the kernel, as in `mean(sum of squared errors) + l2 * sum(kernel ** 2)`; `"auto"`: the one
            with the smallest squared error of leave-one-out predictions, by scikit-learn's `RidgeCV`.

    Raises:
        ImportError: scikit-learn is not installed.
        TypeError: The features or labels are not numbers.
        ValueError: The shapes do not fit each other, labels are out of range, all images have the same labels, or
            values are not finite.

    Example:
        >>> points = np.array([[0.0, 1.0], [0.2, 0.8], [1.0, 0.1], [0.9, 0.0]])
        >>> ridge_probe(points, [0, 0, 1, 1]).predict([[0.1, 0.9], [0.8, 0.3]])
        array([0, 1])
    """
    features = _checked_features(features)
    decay, count, targets = _decay(l2), len(features), targets_of(labels, len(features), classes)
    if (targets == targets[0]).all():
        raise ValueError("A probe needs images with different labels. Received: the same labels for all images")
    mean, std = _mean_and_std(features)
    decays = [count * each for each in (_RIDGE_DECAYS if decay is None else [decay])]
    solver = extra("sklearn.linear_model", "A ridge probe needs scikit-learn").RidgeCV(decays)
    solver.fit((features - mean) / std, targets)
    kernel = solver.coef_.reshape(targets.shape[1], -1).T / std[:, None]
    bias = solver.intercept_ - mean @ kernel
    return Probe(kernel.astype("float32"), bias.astype("float32"), float(solver.alpha_) / count)


def knn(features: np.ndarray, labels: Any, queries: np.ndarray, k: int = 20, temperature: float = 0.07) -> np.ndarray:
    """Classify by nearest neighbors, which measures the quality of features without training or tuning.

    As DINO does (arXiv 2104.14294, `eval_knn.py`): each of the `k` features with the largest cosine similarity votes
    for its class with `exp(similarity / temperature)`.

    Args:
        features: `(n, features)`, of which the class is known.
        labels: `(n,)` integers, or one-hot.
        queries: `(m, features)`.
        k: How many neighbors vote; at most `n`.
        temperature: The lower, the more the nearest count.

    Returns:
        The classes of the queries, int `(m,)`.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: The shapes do not fit each other, or an argument is out of range.

    Example:
        >>> knn([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0]], [0, 0, 1], [[0.9, 0.2]], k=1)
        array([1])
    """
    features, labels = _checked(features, labels)
    queries = as_array(queries, "float32")
    if queries.ndim != 2 or queries.shape[1] != features.shape[1]:
        raise ValueError(
            f"queries must have the shape (m, {features.shape[1]}), as the features. Received: {queries.shape}"
        )
    if not 1 <= k <= len(features):
        raise ValueError(f"k must be from 1 to the number of features, {len(features)}. Received: {k!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive. Received: {temperature!r}")
    check_labels(labels, int(labels.max()) + 1)

    def votes(distances: np.ndarray) -> np.ndarray:
        further = distances - distances.min(axis=1, keepdims=True)  # so the nearest has one vote: no underflow
        return np.exp(-further / temperature)

    kind = extra("sklearn.neighbors", "Nearest neighbors need scikit-learn").KNeighborsClassifier
    neighbors = kind(k, metric="cosine", weights=votes).fit(features, labels)
    return neighbors.predict(queries) if len(queries) else np.zeros(0, int)


def _checked(features: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    features = _checked_features(features)
    return features, label_numbers(labels, len(features))


def _checked_features(features: Any) -> np.ndarray:
    if isinstance(features, (keras.Model, str)):
        raise TypeError(
            f"features must be an array of numbers, as training.embed(model, images) returns. "
            f"Received: {received(features)}"
        )
    features = numbers(features, "features").astype("float32")
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"features must have the shape (n, features). Received: {features.shape}")
    if not np.isfinite(features).all():
        raise ValueError("Some features are not finite numbers.")
    return features


def targets_of(labels: Any, count: int, classes: int | None) -> np.ndarray:
    """Return what ridge regression predicts, float64 `(count, outputs)`: class numbers become 0 and 1."""
    if np.ndim(labels) != 2:
        known = label_numbers(labels, count)
        classes = int(known.max()) + 1 if classes is None else classes
        check_labels(known, classes)
        return np.eye(classes)[known]
    targets = numbers(labels, "labels").astype("float64")
    if len(targets) != count or not targets.shape[1] or not np.isfinite(targets).all():
        raise ValueError(
            f"labels must be {count} integers, or finite numbers of the shape ({count}, outputs). "
            f"Received: shape {targets.shape}{'' if np.isfinite(targets).all() else ', some of them not finite'}"
        )
    return targets


def _a_fifth_of_each(labels: np.ndarray, seed: int) -> np.ndarray:
    """Return which are held out, bool `(n,)`: a fifth of each class, rounded down, but one of two to five."""
    random, held = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of_it = random.permutation(np.flatnonzero(labels == label))
        held[of_it[: max(len(of_it) // 5, min(1, len(of_it) - 1))]] = True
    return held

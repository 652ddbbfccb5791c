"""The learning curve over the number of images, and the expected gain of more images.

The error of many learners falls as a power of the number of examples (Cortes et al., "Learning Curves", 1993; Hestness
et al., arXiv 1712.00409). Where it does, a few small trainings tell what twice as many images would give.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..._internal.validate import as_array
from ..embeddings.probe import label_numbers, linear_probe, weight_decay

__all__ = ["ImageCurve", "image_curve"]

_SHARES = (1 / 8, 1 / 4, 1 / 2, 1)
_DRAWS = 5
_RESAMPLED = 400


@dataclasses.dataclass(frozen=True, eq=False)
class ImageCurve:
    """The accuracy of a logistic regression by the number of images that it learned; made by `image_curve`.

    Attributes:
        counts: Numbers of images.
        accuracies: The mean accuracy on the held-out images for each.
        fitted: What the power law gives for each, and for twice the last.
        gain: How much twice as many images would add to the accuracy.
        interval: The 95 % interval of the gain.

    Example:
        >>> shares = np.array([0.8, 0.85])
        >>> ImageCurve(np.array([50, 100]), shares, np.array([0.8, 0.85, 0.88]), 0.03, (0.01, 0.05)).gain
        0.03
    """

    counts: np.ndarray
    accuracies: np.ndarray
    fitted: np.ndarray
    gain: float
    interval: tuple[float, float]

    @property
    def headline(self) -> str:
        """The result in a sentence."""
        low, high = (100 * each for each in self.interval)
        return (
            f"Twice as many images would give about {100 * self.gain:+.1f} points (95 % interval: {low:+.1f} to "
            f"{high:+.1f})"
        )


def image_curve(
    train: Any, labels: Any, held_out: Any, held_out_labels: Any, *, l2: float | str = "auto", seed: int = 0
) -> ImageCurve:
    """Measure how the accuracy grows with the number of images, and predict it for twice as many.

    A logistic regression learns 1/8, 1/4, 1/2 and all of the features, the parts five times with other images, and the
    same share of each class. A power law is fitted to the error (a line through the logarithms), and its interval comes
    from drawing the held-out images and the parts again (bootstrap). It is the curve of frozen features: training
    everything starts from a better place, and usually gains less. It takes some ten times as long as one
    `linear_probe`.

    Args:
        train: Features `(n, features)` of the images to learn from.
        labels: Their class numbers, or one-hot labels.
        held_out: Features `(m, features)` of the others.
        held_out_labels: Their class numbers, or one-hot labels.
        l2: The weight decay of all images; see `linear_probe`. It weighs the same against all images in each part.
        seed: Which images the parts have.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: There are fewer than 16 images of each of two classes to learn from, none are held out, or `l2` is
            not a positive number.

    Example:
        >>> random, labels = np.random.default_rng(0), np.arange(400) % 2
        >>> points = random.normal(size=(400, 4)) + labels[:, None]
        >>> curve = image_curve(points[:200], labels[:200], points[200:], labels[200:])
        >>> curve.counts, curve.interval[0] <= curve.gain <= curve.interval[1]
        (array([ 24,  50, 100, 200]), True)
    """
    train, held_out = as_array(train, "float32"), as_array(held_out, "float32")
    labels, truth = label_numbers(labels, len(train)), label_numbers(held_out_labels, len(held_out))
    fewest = np.sort(np.bincount(labels))[::-1]
    if not len(truth) or (fewest >= 16).sum() < 2:
        raise ValueError("A curve needs held-out images, and 16 images of each of two classes to learn from.")
    classes = int(max(labels.max(), truth.max())) + 1
    decay = weight_decay(l2, train, labels, classes=classes, seed=seed)
    random, counts, right = np.random.default_rng(seed), [], []
    for share in _SHARES:
        draws = []
        for _ in range(1 if share == 1 else _DRAWS):
            chosen = _part(labels, share, random)
            probe = linear_probe(train[chosen], labels[chosen], classes=classes, l2=decay / share)
            draws.append(probe.predict(held_out) == truth)
        counts.append(len(chosen))
        right.append(np.array(draws))
    sizes = np.array(counts)
    accuracies = np.array([each.mean() for each in right])
    fitted = _power_law(sizes, accuracies, len(truth))
    gains = []
    for _ in range(_RESAMPLED):
        images = random.integers(0, len(truth), len(truth))
        again = [each[random.integers(0, len(each), len(each))][:, images].mean() for each in right]
        gains.append(np.diff(_power_law(sizes, np.array(again), len(truth))[-2:])[0])
    low, high = np.quantile(gains, (0.025, 0.975))
    return ImageCurve(sizes, accuracies, fitted, float(fitted[-1] - fitted[-2]), (float(low), float(high)))


def _part(labels: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Return the numbers of a share of each class, at least one image."""
    parts = (random.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels))
    return np.sort(np.concatenate([part[: max(1, int(len(part) * share))] for part in parts]))


def _power_law(counts: np.ndarray, accuracies: np.ndarray, held_out: int) -> np.ndarray:
    """Return the accuracy that a power law through the errors gives for each number, and for twice the last."""
    errors = np.log(np.maximum(1 - accuracies, 0.5 / held_out))  # none of few is not none of many
    sizes = np.log([*counts, 2 * counts[-1]])
    middle = sizes[:-1].mean()
    slope = min(np.polyfit(sizes[:-1], errors, 1)[0], 0.0)
    return 1 - np.exp(errors.mean() + slope * (sizes - middle))

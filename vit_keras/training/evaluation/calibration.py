"""Calibration: compare probabilities with accuracy, and fit the temperature that makes them agree."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np

from ... import anatomy
from ..._internal.validate import as_array
from ...anatomy.dry_run import ending
from ...anatomy.inputs import preprocessing_of
from ...anatomy.outputs import sigmoid, softmax, why_not_classifier
from ...anatomy.parts import learner
from ..checks import check_labels, label_numbers
from ..embeddings.batches import batches_of, joined_labels, run_over
from ..lora import check_plain
from .tasks import Evaluation

__all__ = ["Reliability", "calibrate", "temperature"]

_BINS = 15  # as in the paper
_WIDEST = 100.0  # the largest temperature, and one over the smallest
_DRAWS = 200


@dataclasses.dataclass(frozen=True, eq=False)
class Reliability:
    """The accuracy of a model by its confidence. Returned by `Reliability.of`."""

    counts: np.ndarray
    sure: np.ndarray
    right: np.ndarray
    error: float
    chance: float

    @classmethod
    def of(cls, probabilities: Any, labels: Any) -> Reliability:
        """Compare probabilities with labels."""
        shares, labels = as_array(probabilities, "float64"), as_array(labels)
        if labels.ndim == 1 and shares.shape[1] > 1:
            shares, right = shares.max(axis=1), shares.argmax(axis=1) == labels
        else:
            shares, right = shares.ravel(), labels.ravel() > 0.5
        bins = np.minimum((shares * _BINS).astype(int), _BINS - 1)

        def mean(values):
            return np.bincount(bins, values, _BINS) / np.where(counts, counts, np.nan)

        def error(right):
            return float(np.abs(np.bincount(bins, shares - right, _BINS)).sum() / len(shares))

        counts, random = np.bincount(bins, minlength=_BINS), np.random.default_rng(0)
        chance = np.quantile([error(random.random(len(shares)) < shares) for _ in range(_DRAWS)], 0.95)
        return cls(counts, mean(shares), mean(right), error(right), float(chance))


def temperature(probabilities: Any, labels: Any) -> float:
    """Return the number to divide a model's logits by so that its probabilities fit the labels best."""
    shares, labels = as_array(probabilities, "float64"), as_array(labels)
    if shares.ndim != 2 or not len(shares) or labels.shape not in (shares.shape[:1], shares.shape):
        raise ValueError(
            "temperature needs probabilities (n, classes) and labels (n,) or (n, classes). Received: shapes "
            f"{shares.shape} and {labels.shape}"
        )
    if shares.shape[1] == 1:
        labels = labels.reshape(-1, 1)  # a probability of its own
    if not np.isfinite(shares).all():
        raise ValueError("Some probabilities are not finite numbers.")
    trust = (len(shares) + 1) / (len(shares) + 2)
    if labels.ndim == 1:
        labels = label_numbers(labels, len(shares))
        check_labels(labels, shares.shape[1])
        true, alone = np.eye(shares.shape[1])[labels], _are_sigmoids(shares)
    else:
        true, alone = labels, True
    if alone:
        logits, normal = _logits(shares, "multi"), sigmoid
        target = np.where(true > 0.5, trust, 1 - trust)
    else:
        logits, normal = _logits(shares, "single"), softmax
        target = true * trust + (1 - true) * (1 - trust) / max(1, shares.shape[1] - 1)
    if np.ptp(logits, axis=1).max() == 0 and not (alone and logits.any()):
        return 1.0  # equal for all classes at every temperature
    low, high = -np.log(_WIDEST), np.log(_WIDEST)  # of one over the temperature
    for _ in range(50):
        middle = (low + high) / 2
        slope = np.sum((normal(np.exp(middle) * logits) - target) * logits)
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def tempered(probabilities: np.ndarray, by: float | np.ndarray, task: str = "single") -> np.ndarray:
    """Return the probabilities of a model whose logits are divided by a temperature, or by each image's `(n, 1)`."""
    task = "multi" if _are_sigmoids(probabilities) else task
    return (sigmoid if task == "multi" else softmax)(_logits(probabilities, task) / by)


def _are_sigmoids(probabilities: Any) -> bool:
    """Return whether each probability is one of its own, whatever the labels are: those of a softmax sum to 1."""
    sums = as_array(probabilities, "float64").sum(axis=1)
    return probabilities.shape[1] == 1 or not np.allclose(sums, 1, atol=0.02)  # of bfloat16


def _logits(probabilities: Any, task: str) -> np.ndarray:
    shares = np.maximum(as_array(probabilities, "float64"), 1e-37)  # the least of float32
    return np.log(shares / np.maximum(1 - shares, 1e-12)) if task == "multi" else np.log(shares)


def half_by_half(probabilities: np.ndarray, labels: np.ndarray, task: str = "single") -> np.ndarray:
    """Return probabilities after calibration, of each half of the images by the temperature of the other half."""
    half = np.random.default_rng(0).permutation(len(labels)) % 2
    found = np.array(probabilities, "float64")
    for part in (half == 0, half == 1):
        if part.any() and not part.all():
            found[part] = tempered(probabilities[part], temperature(probabilities[~part], labels[~part]), task)
    return found


def calibrate(model: keras.Model, data: Any, *, batch_size: int = 32) -> float:
    """Calibrate a classifier on images that it has not learned from, and return the temperature.

    The weights and the bias of its head are divided by the temperature (Guo et al., arXiv 1706.04599). So every file
    that the model is saved or exported to has the calibrated probabilities, no prediction changes, and nothing is
    slower. It takes one pass over the images, or none with an evaluation.

    Args:
        model: A classifier whose output comes from its head, with or without a softmax or sigmoid. It is changed.
        data: Held-out images with labels: an `ImageFolder`, arrays `(images, labels)`, or a dataset of batches; or the
            evaluation of them that `evaluate` or `finetune` returned for this model.
        batch_size: Images in a batch; datasets have their own.

    Raises:
        ValueError: The model predicts no classes, has no head that makes its output, or the data have no labels.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> photos = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), "uint8")
        >>> by = calibrate(model, (photos, np.arange(8) % 2))
        >>> by > 0
        True
    """
    model = learner(model)
    heads, seen = _heads(model), isinstance(data, Evaluation)
    by = temperature(*((data.probabilities, data.labels) if seen else _predicted(model, data, batch_size)))
    for head in heads:
        for variable in (head.kernel, head.bias) if head.use_bias else (head.kernel,):
            variable.assign(keras.ops.convert_to_numpy(variable) / by)
    return by


def _heads(model: keras.Model) -> list[keras.layers.Dense]:
    """Return the layers that make the logits."""
    if lack := why_not_classifier(model):
        raise ValueError(f"Only a classifier can be calibrated. {model.name!r} is not one: {lack}.")
    anatomy.probabilities(model, np.zeros((1, model.output_shape[-1])))  # raises where there are none
    end = ending(model)
    found = end.heads
    others = [layer for layer in (*found, *end.behind) if not isinstance(layer, keras.layers.Dense)]
    if others or not found or end.kind not in ("logits", "probabilities"):
        comes = f"comes from {type(others[0]).__name__}" if others else "is neither logits nor probabilities of one"
        raise ValueError(
            f"Only a model whose output comes from a Dense layer can be calibrated. The output of {model.name!r} "
            f"{comes}."
        )
    check_plain(found, model, "calibrate")
    return found


def _predicted(model: keras.Model, data: Any, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities and the labels of a dataset."""
    batches, total = batches_of(data, batch_size)
    run, prepare = model.predict_on_batch, preprocessing_of(model)
    rows = list(run_over(batches, run, prepare, model=model, errors="raise", total=total))
    labels = joined_labels(rows)
    if labels is None:
        raise ValueError("calibrate needs images with labels: an ImageFolder, (images, labels), or batches of both.")
    if labels.ndim == 2 and anatomy.task(model) != "multi":
        labels = label_numbers(labels, len(labels))
    return anatomy.probabilities(model, np.concatenate([row.images for row in rows])), labels

"""Sanity checks before `fit`: the range of the pixels, the labels, class imbalance."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from .. import anatomy
from .._internal.validate import as_array, received, see
from .._internal.warn import warn_caller
from ..anatomy.dry_run import input_range, makes_features, reaching
from ..anatomy.inputs import check_batch, preprocessing_of
from ..anatomy.parts import dense_layers, find_vit
from ..preprocess.pixels import is_plausible_range

__all__ = ["check", "class_weights"]


def check(model: keras.Model, data: Any, *, loss: Any = None) -> None:
    """Check the first batch of a dataset for common mistakes that keep a ViT from learning."""
    if hasattr(data, "__next__"):
        warn_caller("This dataset is a generator, which runs once: it is not checked. Check a batch, (x, y).")
        return
    inputs, labels = first_batch(data)
    check_batch(model, inputs)
    check_range(model, inputs)
    shape = getattr(model, "output_shape", None)
    if labels is None or isinstance(labels, (dict, list, tuple)) or not isinstance(shape, tuple):
        return  # no labels, or several outputs
    first, counts = as_array(labels), getattr(data, "counts", None)
    if len(shape) != 2:
        if loss is None and len(shape) > 2 and first.shape[1:] in ((), (1,)):
            raise ValueError(
                f"The model {model.name!r} returns several vectors for each image, shape {shape}, and each has one "
                "label. Build the model with classes=… and pooling, or pass loss=."
            )
        return  # no classes
    labels = _numbers(as_array(data[1]) if isinstance(data, tuple) else first)
    name = (loss if isinstance(loss, str) else getattr(loss, "name", None) or getattr(loss, "__name__", "")).lower()
    _check_shape(first.shape, shape[-1], name)
    if not name and labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("Some labels are not finite numbers. Fill them in, or leave these images out.")
    task = anatomy.task(model)
    if task == "multi" and labels.size and not (labels.min() >= 0 and labels.max() <= 1):
        raise ValueError(
            "A model of several labels takes labels from 0 to 1, one number for each. Received: labels from "
            f"{labels.min():g} to {labels.max():g}"
        )
    if task == "single" and (not name or "crossentropy" in name):
        _check_values(labels, shape[-1])
        _check_classes(first, _counts(labels) if isinstance(data, tuple) else counts)


def first_batch(data: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels, if any, of a dataset's first batch, or of the first images of arrays."""
    if isinstance(data, list) and data:
        raise ValueError(
            f"The data is a list of {len(data)}, which fit would take for the inputs of the model. Pass a tuple of "
            "arrays, (x, y), or a dataset: a keras.utils.PyDataset, tf.data, Grain or a PyTorch DataLoader."
        )
    if isinstance(data, tuple):
        return tuple(map(_head, (*data, None)[:2]))
    if hasattr(data, "shape"):
        return _head(data), None
    batch = data[0] if isinstance(data, keras.utils.PyDataset) else next(iter(data), None)
    if batch is None:
        raise ValueError("The dataset is empty.")
    return keras.utils.unpack_x_y_sample_weight(tuple(batch) if isinstance(batch, list) else batch)[:2]


def _head(data: Any, most: int = 32) -> Any:
    """Return the first of a model's inputs or labels: of an array, or of each array in a dictionary or list."""
    if isinstance(data, dict):
        return {name: array[:most] for name, array in data.items()}
    if isinstance(data, (list, tuple)) and data and hasattr(data[0], "shape"):
        return [array[:most] for array in data]
    return None if data is None else data[:most]


def ensure_built(model: keras.Model, inputs: Any = None) -> None:
    """Build a `Sequential` without an input layer, from the input shape of its first layer, or of the data."""
    if model.built:
        return
    shape = getattr(model.layers[0], "input_shape", None) if model.layers else None
    shape = shape or getattr(inputs, "shape", None)
    if shape is None or not isinstance(model, keras.Sequential):
        raise ValueError(f"The model {model.name!r} is not built. Start it with keras.Input, or call it once.")
    model.build((None, *shape[1:]))


def check_range(model: keras.Model, inputs: Any) -> None:
    """Warn if the pixels that reach the ViT in a model, after the layers before it, are in an unusual range for it."""
    try:
        vit = find_vit(model)
    except ValueError:
        return
    if vit is model:
        if hasattr(vit, "check_shape"):
            vit.check_shape(inputs)
        pixels = as_array(inputs[vit.inputs[0].name] if isinstance(inputs, dict) else inputs).astype("float32")
    else:
        pixels = reaching(model, _head(inputs, 2))
        if np.isfinite(pixels).all() and makes_features(model, _head(inputs, 2), pixels):
            return
    if not np.isfinite(pixels).all():
        raise ValueError(f"The first batch has pixels that are not finite numbers.{see('nan')}")
    preprocessing = preprocessing_of(vit)  # for the pixels that the ViT itself takes
    mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
    received, expected = (float(pixels.min()), float(pixels.max())), preprocessing.range
    scaled_twice = np.ptp(pixels * std + mean) < 0.025  # in units of white less black
    if (scaled_twice and not _is_one_color(inputs)) or not is_plausible_range(received, expected):
        warn_caller(
            f"The pixels that reach the ViT are from {received[0]:.3g} to {received[1]:.3g}. It was trained with "
            f"pixels from {expected[0]:.3g} to {expected[1]:.3g}. "
            f"{_REMEDIES[input_range(model)]}{see('accuracy-low')}"
        )


def _is_one_color(inputs: Any) -> bool:
    """Return whether all pixels are the same, as in the dark: these tell nothing of how they were scaled."""
    arrays = map(as_array, keras.tree.flatten(inputs))
    return all(np.ptp(each.reshape(-1, each.shape[-1]), axis=0).max() == 0 for each in arrays)


_REMEDIES = {
    "normalized": "Normalize pixels in [0, 255] once: with vit.preprocess_inputs or vit.preprocessing.normalize, and "
    "without a Rescaling layer.",
    "pixels": "This model normalizes its inputs itself: give it pixels in [0, 255].",
    "unit": "This model normalizes its inputs itself: give it pixels in [0, 1].",
}


def label_numbers(labels: Any, count: int) -> np.ndarray:
    """Return the labels of images as class numbers, int64 `(count,)`, from integers, whole floats or one-hot labels."""
    labels = as_array(labels)
    if labels.ndim == 2 and labels.shape[1] > 1:
        if labels.dtype.kind not in "biuf" or (labels < 0).any() or not np.allclose(labels.sum(axis=1), 1, atol=1e-2):
            raise ValueError(
                "labels with several columns must be one-hot: one class for each image. Received other rows, such as "
                "those of several labels or of numbers."
            )
        labels = labels.argmax(axis=1)
    labels = labels.reshape(-1) if labels.ndim == 2 else labels
    whole = labels.dtype.kind in "bui" or (labels.dtype.kind == "f" and np.array_equal(labels, np.rint(labels)))
    if labels.shape != (count,) or not whole:
        raise ValueError(
            f"labels must be {count} integers, or one-hot, one for each image. Received: shape {labels.shape}, "
            f"dtype {labels.dtype}. (np.unique(names, return_inverse=True) makes integers of names.)"
        )
    return labels.astype("int64")


def check_labels(labels: np.ndarray, classes: int) -> None:
    """Raise a `ValueError` for a label that is not a class, or if there are fewer than two classes."""
    if classes < 2:
        raise ValueError(f"There must be two classes or more. Received: {classes}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"Labels of {classes} classes must be 0 … {classes - 1}. Received: {labels.min()} … {labels.max()}"
        )


def _numbers(labels: np.ndarray) -> np.ndarray:
    """Return labels as numbers; those of bfloat16, or objects as in a column of pandas, as floats."""
    try:
        return labels if labels.dtype.kind in "biuf" else labels.astype("float64")
    except (TypeError, ValueError):
        raise ValueError(
            f"Labels must be numbers. Received: {labels.dtype}. (np.unique(names, return_inverse=True) makes integers "
            "of names.)"
        ) from None


def _check_shape(shape: tuple[Any, ...], outputs: int, loss: str) -> None:
    numbers = shape[1:] in ((), (1,))
    if not numbers and shape[1:] != (outputs,):
        raise ValueError(
            f"Labels of shape {shape} do not fit a model with {outputs} outputs. Pass class numbers (n,), or one-hot "
            f"labels (n, {outputs})."
        )
    if loss.startswith("sparse") and not numbers:
        raise ValueError(f"The loss {loss!r} takes class numbers. Received: one-hot labels of shape {shape}")
    if loss.startswith("categorical") and numbers:
        raise ValueError(f"The loss {loss!r} takes one-hot labels (n, {outputs}). Received: numbers of shape {shape}")


def _check_values(labels: np.ndarray, outputs: int) -> None:
    if labels.shape[1:] not in ((), (1,)) or not labels.size:
        return
    low, high, largest = labels.min(), labels.max(), max(outputs - 1, 1)
    if low < 0 or high > largest or (outputs > 1 and (labels != np.rint(labels)).any()):
        raise ValueError(
            f"A model with {outputs} outputs takes labels {'that are whole numbers ' if outputs > 1 else ''}from 0 to "
            f"{largest}. Received: labels from {low:g} to {high:g}"
        )


def warn_of_quantized_kernels(model: keras.Model) -> None:
    """Warn if quantized kernels are in the layers that are trained: Keras trains the biases of these alone."""
    trained = [layer for layer in dense_layers(model) if layer.trainable_variables]
    modes = {mode for layer in trained if (mode := getattr(layer, "quantization_mode", None)) not in (None, "float8")}
    if modes:
        warn_caller(
            f"{model.name!r} has kernels that are quantized ({', '.join(sorted(modes))}) and cannot be trained. Only "
            "biases and layers that are not quantized learn. Train before you quantize, or train adapters: "
            "recipe('lora')."
        )


UNBALANCED = "The largest class has"  # the beginning of the warning about unbalanced classes


def _counts(labels: np.ndarray) -> np.ndarray:
    """Return the number of images of each class, from class numbers or one-hot labels."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        return labels.sum(0)
    return np.unique(labels, return_counts=True)[1]


def _check_classes(first: np.ndarray, counts: np.ndarray | None) -> None:
    """Warn if the first batch has a single class, or if the dataset, where its counts are known, is very unbalanced."""
    # Where the counts are known, a batch of one class may be chance: of 48 images and 2, half of the batches of 16 are.
    by_chance = 0.0 if counts is None else float((counts / max(counts.sum(), 1)).max()) ** len(first)
    if len(first) >= 16 and np.count_nonzero(_counts(first)) == 1 and by_chance < 0.001:
        warn_caller(
            f"All {len(first)} images of the first batch are of one class. Is the dataset shuffled?"
            f"{see('loss-does-not-move')}"
        )
    present = np.empty(0) if counts is None else counts[counts > 0]
    if present.size and present.max() > 10 * present.min():
        warn_caller(
            f"{UNBALANCED} {present.max():,.0f} images, the smallest {present.min():,.0f}. Pass "
            "class_weight=class_weights(labels) to fit (an ImageFolder has class_weight; the command line: --balance)."
        )


def class_weights(labels: Any) -> dict[int, float]:
    """Return the weights with which all classes count the same, for `fit(class_weight=…)`."""
    labels = _numbers(as_array(labels))
    numbers = label_numbers(labels, len(labels) if labels.ndim else 1)
    if not numbers.size or numbers.min() < 0:
        raise ValueError(f"Labels must be class numbers from 0 on. Received: {received(labels)}")
    classes, counts = np.unique(numbers, return_counts=True)
    return {int(c): float(len(numbers) / (len(classes) * n)) for c, n in zip(classes, counts)}

"""Outputs of a model: logits, probabilities, numbers or features, and their meaning."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Sized
from typing import Any

import keras
import numpy as np

from .. import labels
from .._internal import validate
from ..backend.keras_internals import origin, output_number
from .dry_run import ending
from .parts import checked, keeper


def output_kind(model: keras.Model) -> str | None:
    """Return `"logits"`, `"probabilities"`, `"features"`, or `None` for anything else and what cannot be asked."""
    with contextlib.suppress(ValueError):
        return ending(model).kind
    return None


def why_not_classifier(model: keras.Model) -> str | None:
    """Return why a model is not a classifier with one output `(batch, classes)`; `None` if it is one."""
    outputs = getattr(checked(model), "outputs", None)
    if outputs is not None and len(outputs) != 1:
        return f"it has {len(outputs)} outputs"
    shape: tuple[Any, ...] = tuple(getattr(model, "output_shape", None) or ())
    if outputs is not None and len(shape) != 2:
        return f"its output has the shape {shape}"
    if output_kind(model) == "features":
        return f"it has no head, and returns {ending(model).width} features"
    return None


def probabilities(model: keras.Model, outputs: Any) -> np.ndarray:
    """Return the class probabilities of a classifier's outputs.

    Args:
        model: The classifier.
        outputs: `(batch, classes)`, what it returned.

    Returns:
        float32 `(batch, classes)`: of logits their softmax, or the sigmoid of each if the model's task is `"multi"` or
        it has only one; else the outputs. Where `output_kind` cannot tell, outputs that are not negative and sum to 1
        count as probabilities of one class of several, and all others as logits.

    Raises:
        TypeError: The outputs are not numbers.
        ValueError: The model is not a classifier, or the outputs are not a batch.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> probabilities(tiny, np.zeros((1, 2)))
        array([[0.5, 0.5]], dtype=float32)
    """
    if lack := why_not_classifier(model):
        raise ValueError(f"The model {model.name!r} is not a classifier: {lack}.")
    if task(model) in NUMBERS:
        raise ValueError(
            f"The model {model.name!r} is not a classifier: its task is {task(model)!r}. Call predictions()."
        )
    outputs, kind = validate.numbers(outputs, "outputs", axes=2).astype("float32"), output_kind(model)
    if task(model) == "multi":
        return outputs if kind == "probabilities" else sigmoid(outputs)
    # Half precision sums to 1 within a hundredth.
    sums_to_1 = bool((outputs >= 0).all()) and np.allclose(outputs.sum(axis=-1), 1, atol=1e-2)
    if kind == "probabilities" or (kind is None and sums_to_1):
        return outputs
    return sigmoid(outputs) if outputs.shape[-1] == 1 else softmax(outputs)


def predictions(model: keras.Model, outputs: Any) -> np.ndarray:
    """Convert the outputs of a model with a head to probabilities or numbers, as its task requires.

    Args:
        model: The model.
        outputs: `(batch, n)`, what it returned.

    Returns:
        float32 `(batch, n)`. Tasks `"single"` and `"multi"`: the `probabilities` of classes and labels. `"regression"`:
        the numbers. `"ordinal"`: one number on the scale of the levels, which `levels` rounds.

    Raises:
        TypeError: The outputs are not numbers.
        ValueError: The model has not one output `(batch, n)` of a head, or the outputs are not a batch.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> predictions(tiny, np.zeros((1, 2)))
        array([[0.5, 0.5]], dtype=float32)
        >>> tiny.task = "regression"
        >>> predictions(tiny, np.zeros((1, 2)))
        array([[0., 0.]], dtype=float32)
    """
    if task(model) not in NUMBERS:
        return probabilities(model, outputs)
    if lack := why_not_classifier(model):
        raise ValueError(f"The model {model.name!r} does not predict numbers: {lack}.")
    return validate.numbers(outputs, "outputs", axes=2).astype("float32")


def levels(numbers: Any, count: int) -> np.ndarray:
    """Return the levels, from 0, nearest to predictions on an ordinal scale.

    Args:
        numbers: The predictions, of any shape.
        count: How many levels there are.

    Returns:
        int32 of the same shape.

    Raises:
        TypeError: The predictions are not numbers.
        ValueError: `count` is not a positive integer.

    Example:
        >>> levels([-0.7, 0.4, 1.6, 9.0], 4)
        array([0, 0, 2, 3], dtype=int32)
    """
    highest = validate.positive_integer(count, "count") - 1
    return np.clip(np.rint(validate.numbers(numbers, "numbers")), 0, highest).astype("int32")


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the logistic function of each number, in float32."""
    return (0.5 + 0.5 * np.tanh(0.5 * np.asarray(logits, "float64"))).astype("float32")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, in float32."""
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True), dtype="float64")
    return (powers / powers.sum(axis=-1, keepdims=True)).astype("float32")


def class_names(model: keras.Model) -> tuple[str, ...] | None:
    """Return the names of a model's classes or labels, one for each output, or `None` if they are not known.

    They are the `labels` of the model, or of the model inside it that its output comes from. Without any, 1000 outputs
    are taken for ImageNet's classes. A model that predicts numbers has no classes; see `output_names`.

    Example:
        >>> from vit_keras import vit
        >>> class_names(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=1000))[0]
        'tench, Tinca tinca'
    """
    shape = getattr(checked(model), "output_shape", None)
    count = shape[-1] if isinstance(shape, tuple) and len(shape) == 2 else None
    if task(model) in NUMBERS:
        return None
    own = labels_of(model)
    known = labels.names("imagenet-1k" if own is None and count == 1000 else own)
    return None if known is None or len(known) != count else known


def output_names(model: keras.Model) -> tuple[str, ...] | None:
    """Return the names that belong to a model's task, or `None` if they are not known."""
    return labels.names(labels_of(model)) if task(model) in NUMBERS else class_names(model)


def top_predictions(model: keras.Model, predictions: np.ndarray, top: int | None = 5) -> list[dict[str, Any]]:
    """Return the most probable classes of an image, with their names.

    Args:
        model: The model.
        predictions: `(n,)`, one row of what `predictions` returns.
        top: Number of classes; `None`: all. A model that predicts numbers has all of them in their order.

    Returns:
        A dictionary for each class: `class`, its number; `name`, or `None` if it is not known; `probability`. For
        numbers and levels it has `value` instead of `probability`. The name of a level is the nearest one.

    Raises:
        TypeError: The predictions are not numbers.
        ValueError: The predictions are one number.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> name_classes(tiny, ("cat", "dog"))
        True
        >>> top_predictions(tiny, np.array([0.25, 0.75]), top=1)
        [{'class': 1, 'name': 'dog', 'probability': 0.75}]
    """
    known, kind, predictions = output_names(model), task(model), validate.numbers(predictions, "predictions", axes=1)
    measure = "value" if kind in NUMBERS else "probability"
    order = range(len(predictions)) if kind in NUMBERS else (-predictions).argsort(kind="stable")[:top]
    rows = []
    for index in order:
        name = known and known[levels(predictions[index], len(known)) if kind == "ordinal" else index]
        rows.append({"class": int(index), "name": name, measure: float(f"{predictions[index]:.6g}")})
    return rows


NUMBERS = ("regression", "ordinal")
"""Tasks whose outputs are numbers, and not probabilities."""


def task(model: keras.Model) -> str:
    """Return what the outputs of a model mean, one of `vit_keras.labels.TASKS`.

    It is the `task` of the model, or of the model inside it that its output comes from: `"single"` (one class of
    several), unless it was trained for another one.

    Example:
        >>> from vit_keras import vit
        >>> task(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2))
        'single'
    """
    return _known(model, "task") or "single"


def labels_of(model: keras.Model) -> tuple[str, ...] | str | None:
    """Return the `labels` that belong to a model's outputs, whatever their number."""
    found = _known(model, "labels")
    return found if found is None or isinstance(found, str) else tuple(map(str, found))


def _known(model: keras.Model, attribute: str) -> Any:
    """Return what is known of the classes of a model: what a user set on a model of Keras', or what the ViT keeps."""
    way, head = _way_to_head(model)
    known = [vars(each).get(attribute) for each in way] + [keeper(*way[::-1]).classes.get(head, {}).get(attribute)]
    return next((value for value in known if value is not None and np.size(value)), None)


def set_classes(model: keras.Model, names: Any, task: str) -> None:
    """Set the labels and the task of a model, and of all models whose outputs come from the same head."""
    way, head = _way_to_head(model)
    for each in way:
        for attribute in ("labels", "task") & vars(each).keys():
            delattr(each, attribute)
    names = names if names is None or isinstance(names, str) else [str(name) for name in labels.names(names) or ()]
    keeper(*way[::-1]).classes[head] = {
        **({} if names is None else {"labels": names}),
        **({} if task == "single" else {"task": task}),
    }


def _way_to_head(model: keras.Model, number: int = 0) -> tuple[list[keras.Model], str]:
    """Return the models that an output of a model comes through, and the name of the last layer with weights."""
    way, outputs = [checked(model)], getattr(model, "outputs", None)
    # The layers of a subclass of keras.Model are taken for a chain.
    for operation, output in _back_from(outputs[number]) if outputs else ((layer, 0) for layer in model.layers[::-1]):
        inside = getattr(operation, "layer", operation)  # of a wrapper
        if isinstance(inside, keras.Model):
            models, head = _way_to_head(inside, output)
            way += models
            if head:
                return way, head
        elif getattr(operation, "weights", ()):
            return way, operation.name
    return way, ""


def _back_from(tensor: Any) -> Iterator[tuple[Any, int]]:
    """Yield the operations that a symbolic tensor comes from, by the first input of each, and which output it is."""
    while True:
        operation, inputs = origin(tensor)
        yield operation, output_number(tensor)
        if not inputs:
            return
        tensor = inputs[0]


def name_classes(model: keras.Model, names: Sequence[str], task: str = "single") -> bool:
    """Attach names and a task to a model's outputs if their number fits.

    They are saved with the model, and kept by copies of it: the ViT's patch embedding has them under the name of the
    head, the last layer with weights. Two heads on one ViT need different names.

    Args:
        model: A ViT, or a model whose output comes from a ViT inside.
        names: Names of the classes, labels or numbers, in the order of the outputs; or of the levels of an ordinal
            scale, which has one output.
        task: One of `vit_keras.labels.TASKS`.

    Returns:
        Whether the names were attached.

    Raises:
        TypeError: The names are not a list.
        ValueError: The task is unknown.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> name_classes(model, ("cat", "dog"))
        True
    """
    shape = tuple(getattr(checked(model), "output_shape", ()))
    count = len(validate.instance(names, Sized, "names"))
    fit = shape[1:] == (1 if validate.one_of(task, "task", labels.TASKS) == "ordinal" else count,)
    if fit:
        set_classes(model, names, task)
    return fit

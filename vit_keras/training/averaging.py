"""The average of models in weight space, a model soup (arXiv 2203.05482): one model of the cost of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from .. import anatomy
from .._internal.validate import listed
from ..anatomy.outputs import output_names
from ..anatomy.parts import find_vit, has_vit, quantization
from ..opening import as_model

__all__ = ["average"]

_FREE = ("name", "dropout", "stochastic_depth", "patch_dropout")
"""Fields of `ViTConfig` in which the models may differ: they change nothing after the training."""


def average(models: Iterable[keras.Model | str | os.PathLike[str]]) -> keras.Model:
    """Return a model with the average weights of several models, such as one for each fold.

    The models must have begun with the same pre-trained weights: between models that were trained independently, the
    average is of no use. Its predictions cost as much as those of one model. The average of all predictions
    (`predict_table`) is often better, and costs as much as all models.

    Args:
        models: Models, or files as `open_model` takes them, which are opened one after the other. They stay as they
            are.

    Returns:
        A new model, with the classes, the task and the preprocessing of all.

    Raises:
        FileNotFoundError: The file does not exist.
        TypeError: One is neither a model nor a path.
        ValueError: There are no models; they differ in their architecture, preprocessing, task or classes; they have
            weights that cannot be averaged: quantized, with low-rank adapters, infinite or undefined.

    Example:
        >>> from vit_keras import vit
        >>> one, other = (vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2) for _ in range(2))
        >>> soup = average([one, other])
        >>> both = [(a + b) / 2 for a, b in zip(one.get_weights(), other.get_weights())]
        >>> all(np.allclose(*pair) for pair in zip(soup.get_weights(), both))
        True
    """
    models = listed(models, (str, os.PathLike, keras.Model), "models")
    origins = set()
    for number, given in enumerate(models):
        model = as_model(given)
        name = f"model {number}, {model.name!r}" if isinstance(given, keras.Model) else os.fspath(given)
        _check(model, name)
        facts = _facts(model)
        origins.add(getattr(find_vit(model), "origin", None) if has_vit(model) else None)
        if number == 0:
            result, first, begin = type(model).from_config(model.get_config()), facts, name
            if len(result.weights) != len(model.weights):  # a subclass is not built without a call
                raise ValueError(
                    f"{name} cannot be copied by its get_config(). Average what is in it, such as its ViT."
                )
            totals = [np.zeros(weight.shape) for weight in model.weights]
        for what, known in first.items():
            if facts.get(what) != known:
                raise ValueError(
                    f"All models must have the same {what}. {begin}: {known!s:.200}. {name}: {facts.get(what)!s:.200}."
                )
        for total, weight in zip(totals, model.weights):
            total += keras.ops.convert_to_numpy(weight).astype("float64") / len(models)
        del model  # before the next one is opened
    if len(origins) > 1:
        find_vit(result).origin = None
    for weight, total in zip(result.weights, totals):
        weight.assign(total if "float" in keras.backend.standardize_dtype(weight.dtype) else np.rint(total))
    return result


def _facts(model: keras.Model) -> dict[str, Any]:
    """Return the facts that must agree in all models, by their names for errors."""
    facts = {"task": anatomy.task(model), "names of the classes": output_names(model)}
    if has_vit(model):
        settings = getattr(find_vit(model), "settings", dict)()
        facts["preprocessing"] = settings.get("preprocessing")
        facts |= {name: value for name, value in (settings.get("config") or {}).items() if name not in _FREE}
    return {**facts, "shapes of weights": [tuple(weight.shape) for weight in model.weights]}


def _check(model: keras.Model, name: str) -> None:
    """Raise a `ValueError` if an average with these weights would not be a model."""
    mode = quantization(model)
    if mode is not None:
        raise ValueError(f"{name} has {mode} weights, which cannot be averaged. Average the models, then quantize.")
    for weight in model.weights:
        if "lora_kernel" in weight.path:
            raise ValueError(f"{name} has low-rank adapters. Merge them first: training.merge_lora(model).")
        if not np.isfinite(keras.ops.convert_to_numpy(weight).astype("float64")).all():
            raise ValueError(f"{name} has infinite or undefined values in {weight.path}.")

"""Weights with infinite or undefined values, which nothing that a model computes survives."""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras
import numpy as np

from .validate import see
from .warn import warn_caller

__all__ = ["check_model", "check_outputs", "is_finite", "warn_not_finite"]

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def warn_not_finite(path: str | os.PathLike[str] | None, names: Sequence[str], count: int) -> None:
    """Warn if weights read from a file are not finite, with the first five names."""
    if names:
        some = f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        warn_caller(
            f"{path} has infinite or undefined values in {len(names)} of {count} weights: {some}. What the model "
            f"computes with them is undefined too.{see('nan')}"
        )


def check_model(path: str | os.PathLike[str], model: keras.Model) -> None:
    """Warn if a model that was read from a file has weights that are not finite."""
    weights = [variable for variable in model.weights if keras.backend.standardize_dtype(variable.dtype) in _FLOATS]
    # NumPy takes a few hundredths of a second for a ViT-B/16, and Keras' operations on some backends a few seconds.
    found = [each.path for each in weights if not is_finite(keras.ops.convert_to_numpy(each), each.dtype)]
    warn_not_finite(path, found, len(weights))


def is_finite(value: np.ndarray, dtype: str) -> bool:
    """Return whether all values are finite, also after a cast to this type: 1e6 is infinite in float16."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(value.astype("float16") if dtype == "float16" else value).all())


def check_outputs(model: keras.Model, outputs: np.ndarray) -> np.ndarray:
    """Return the predictions of a model, or raise a ValueError if some are not finite."""
    if not np.isfinite(outputs).all():
        raise ValueError(f"The model {model.name!r} predicts values that are not finite numbers.{see('nan')}")
    return outputs

"""Write a model as a file that runs without this package and without Keras, and show that it computes the same.

This module can be called: `vit_keras.export(model, "model.onnx")` is `vit_keras.export.export(model, "model.onnx")`.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from .._imports import attach
from .formats import FORMATS, Format, find_format

if TYPE_CHECKING:
    import keras

    from .report import Report

_NAMES = {"Plan": "plan", "Report": "report"}

__all__ = ["FORMATS", "Format", "export", "find_format", *_NAMES]
__getattr__, __dir__ = attach(__name__, (), _NAMES)


def export(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    preprocessing: bool = True,
    labels: Any = None,
    top: int = 5,
    quantize: str | None = None,
    calibration: Any = None,
    attention: bool = False,
    check: Any = "default",
) -> Report:
    """Write a model as a file that runs without this package, run it, and compare."""
    raise NotImplementedError


class _Callable(types.ModuleType):
    """A module that is called like its function of the same name."""

    __signature__ = inspect.signature(export)

    def __call__(self, *args, **kwargs):
        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable

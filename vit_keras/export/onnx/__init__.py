"""ONNX, written by this package from any backend: the same graph from TensorFlow, JAX and PyTorch.

`trace` turns Keras' operations into a `graph` by the table of `operations`, `narrow` leaves out what the outputs do not
need, and `file` writes it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ...preprocess_layer import Preprocess
from ..plan import Plan
from .file import save
from .graph import Graph
from .narrow import narrowed
from .trace import trace

__all__ = ["graph_of", "write"]


def write(plan: Plan, path: str | os.PathLike[str]) -> list[Path]:
    """Write an ONNX file.

    Args:
        plan: What to write.
        path: The file. Weights of more than 2 GiB go into `<path>.data` beside it, which the file names.

    Returns:
        The paths of all that was written.

    Raises:
        ModuleNotFoundError: The package onnx is not installed.
        ValueError: The model has an operation that is not written to ONNX.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> [file.name for file in write(Plan.of(model), "tiny.onnx")]  # doctest: +SKIP
        ['tiny.onnx']
    """
    try:
        import onnx
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('Writing ONNX needs the package onnx: pip install "vit-keras[onnx]".') from error
    files = save(graph_of(plan), Path(path), name=plan.model.name, metadata=_texts(plan.metadata_json()))
    onnx.checker.check_model(os.fspath(path), full_check=True)
    return files


def graph_of(plan: Plan) -> Graph:
    """Return the graph of a plan, from `images` to its outputs."""
    if plan.preprocessing is None:
        images = (_named(plan.input_shape), "float32")
        return narrowed(trace(plan.outputs, {"images": images}))
    layer = Preprocess(plan.preprocessing, name="preprocess")
    images = (_named(plan.picture_shape), "uint8")
    return narrowed(trace(lambda pictures: plan.outputs(layer(pictures)), {"images": images}))


def _named(shape: tuple[int | None, ...]) -> tuple[int | str, ...]:
    return tuple(name if n is None else n for n, name in zip(shape, ("batch", "height", "width", "channels")))


def _texts(metadata: dict[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}

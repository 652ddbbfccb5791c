"""ONNX, written by this package from any backend: the same graph from TensorFlow, JAX and PyTorch.

`trace` turns Keras' operations into a `graph`, `narrow` leaves out what the outputs do not need, `int8` multiplies by
weights in 8 bits where that is asked for, `older` writes operators of earlier versions, and `file` writes it.
"""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import keras

from ..plan import Plan
from . import elementwise, reductions, shapes  # noqa: F401  (they fill the table of `trace`)
from .file import save
from .graph import Graph
from .int8 import quantized
from .narrow import narrowed
from .older import older
from .trace import trace

__all__ = ["build_graph", "write"]


def write(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write an ONNX file; weights of more than 2 GiB go into `<path>.data` next to it, which the file names."""
    import onnx

    metadata = {key: v if isinstance(v, str) else json.dumps(v) for key, v in plan.metadata_json().items()}
    try:
        files = save(build_graph(plan), Path(path), name=plan.model.name, metadata=metadata, opset=plan.opset)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ValueError(
            f"The model {plan.model.name!r} has an operation that ONNX does not take as it is: "
            f"{' '.join(str(error).split()):.500}. Write the layer with other operations, or with other types."
        ) from None
    return [f"The weights are in {each.name}, which must stay next to {files[0].name}." for each in files[1:]]


def build_graph(plan: Plan) -> Graph:
    """Return the graph of a plan, from `images` to its outputs, quantized if the plan says so."""
    resize = plan.resizes("onnx")
    (shape, dtype), prepare = plan.file_input(resize), plan.prepare(resize)
    if isinstance(prepare, keras.Layer):
        prepare.name = "preprocess"  # names of nodes begin with it, and Keras counts its layers
    named = tuple(name if n is None else n for n, name in zip(shape, ("batch", "height", "width", "channels")))

    def outputs(images):
        # Sizes of images are computed in float64, which Apple's GPUs do not have. JAX has none either and warns, but
        # computes only small integers: sizes of images are symbols here.
        with keras.device("cpu"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Explicitly requested dtype")
            pixels = prepare(images)
        return plan.outputs(pixels)

    graph = narrowed(trace(outputs, {"images": (named, dtype)}))
    graph = quantized(graph, plan.calibration) if plan.quantize else graph
    return older(graph, plan.opset)

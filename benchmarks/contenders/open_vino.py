"""OpenVINO, on timm's model exported by PyTorch, in the precision that the library's row names."""

from __future__ import annotations

import os
from typing import Any

import openvino

from . import CLASSES, Job, images

HINTS = {"float32": "f32", "bfloat16": "bf16"}  # without a hint, some processors get bf16


def _compiled(cell: dict[str, Any]):
    settings = {
        "INFERENCE_PRECISION_HINT": HINTS[cell["backend"]],
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"]),
    }
    return openvino.Core().compile_model(cell["onnx"], "CPU", settings)


def inference(cell: dict[str, Any]) -> Job:
    """Logits of a batch."""
    model = _compiled(cell)
    x = images(cell, channels_first=True)
    return Job(cell["parameters"], {"session": lambda: model([x])[0]}, (cell["batch"], CLASSES))


def startup(cell: dict[str, Any]) -> list:
    """Compile the file, predict."""
    held = []
    x = images(cell, channels_first=True)
    return [("load", lambda: held.append(_compiled(cell))), ("predict", lambda: held[0]([x]))]

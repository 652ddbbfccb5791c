"""OpenVINO in float32, on timm's model exported by PyTorch."""

from __future__ import annotations

import os
from typing import Any

import openvino

from . import CLASSES, Job, images

SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def _compiled(path: str):
    threads = {"INFERENCE_NUM_THREADS": int(os.environ["OMP_NUM_THREADS"])}
    return openvino.Core().compile_model(path, "CPU", {**SETTINGS, **threads})


def inference(cell: dict[str, Any]) -> Job:
    """Logits of a batch."""
    model = _compiled(cell["onnx"])
    x = images(cell, channels_first=True)
    return Job(cell["parameters"], {"session": lambda: model([x])[0]}, (cell["batch"], CLASSES))


def startup(cell: dict[str, Any]) -> list:
    """Compile the file, predict."""
    held = []
    x = images(cell, channels_first=True)
    return [("load", lambda: held.append(_compiled(cell["onnx"]))), ("predict", lambda: held[0]([x]))]

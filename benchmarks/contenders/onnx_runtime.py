"""ONNX Runtime, on timm's model exported by PyTorch."""

from __future__ import annotations

import os
from typing import Any

import onnxruntime

from . import CLASSES, Job, images


def _session(path: str):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def inference(cell: dict[str, Any]) -> Job:
    """Logits of a batch."""
    session = _session(cell["onnx"])
    x = images(cell, channels_first=True)
    call = {"session": lambda: session.run(None, {"images": x})[0]}
    return Job(cell["parameters"], call, (cell["batch"], CLASSES))


def startup(cell: dict[str, Any]) -> list:
    """Make a session of the file, predict."""
    held = []
    x = images(cell, channels_first=True)
    return [
        ("load", lambda: held.append(_session(cell["onnx"]))),
        ("predict", lambda: held[0].run(None, {"images": x})),
    ]

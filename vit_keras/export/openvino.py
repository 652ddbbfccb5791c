"""OpenVINO's own files, `.xml` and `.bin`, made of the ONNX file that this package writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .._internal.atomic import workspace
from .onnx import write as write_onnx
from .plan import Plan

__all__ = ["write"]

PRECISION = (
    "On processors with bfloat16 OpenVINO computes in it unless told otherwise. Compile the model with "
    "{'INFERENCE_PRECISION_HINT': 'f32'} for the model's own numbers."
)


def write(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write an OpenVINO model: the graph to `path`, and the weights to `.bin` next to it."""
    import openvino

    path = Path(path)
    with workspace(path.parent) as folder:
        write_onnx(plan, folder / "model.onnx")
        model = openvino.Core().read_model(folder / "model.onnx")  # `convert_model` tells Intel by the network
        for key, value in plan.metadata_json().items():
            model.set_rt_info(value if isinstance(value, str) else json.dumps(value), ["vit_keras", key])
        lower = path.with_suffix(".xml")  # OpenVINO writes no other ending
        openvino.save_model(model, os.fspath(lower), compress_to_fp16=False)
        lower.replace(path)
        del model  # it maps the ONNX file
    return [PRECISION]

"""What writes each format: here SavedModel, LiteRT, PyTorch's program and OpenVINO's files, and the table of all.

A writer takes a plan and a path, and returns notes for the report. The backend of Keras must be the format's own.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._internal.atomic import workspace
from . import onnx, web
from .decoding import decode_image
from .plan import Plan

__all__ = ["WRITERS"]

METADATA, LABELS = "vit_keras.json", "labels.txt"
"""Names of members of a file, or of files in a folder."""
PRECISION = (
    "On processors with bfloat16 OpenVINO computes in it unless told otherwise. Compile the model with "
    "{'INFERENCE_PRECISION_HINT': 'f32'} for the model's own numbers."
)


def write_saved_model(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a SavedModel with the signatures of docs/export.md, for programs without Keras and this package."""
    import tensorflow as tf

    module, signatures = _module(plan), _signatures(plan)
    signatures.setdefault("serving_default", signatures.get("images", signatures["pixels"]))
    tf.saved_model.save(module, os.fspath(path), signatures=signatures)
    metadata = Path(path, "assets.extra", METADATA)
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(_metadata(plan), encoding="utf-8")
    return []


def _module(plan: Plan) -> Any:
    """Return a module that tracks the variables alone: whoever tracks a Keras model saves every weight twice."""
    import tensorflow as tf

    module: Any = tf.Module()
    module.weights_of_the_model = [variable.value for variable in plan.model.weights]
    return module


def _metadata(plan: Plan) -> str:
    return json.dumps(plan.metadata_json(), indent=1)


def _signature(function: Callable[..., Any], name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    import tensorflow as tf

    return tf.function(function, input_signature=[tf.TensorSpec(shape, dtype, name=name)], autograph=False)


def _signatures(plan: Plan) -> dict[str, Any]:
    """Return the functions of a SavedModel by the names of their signatures."""
    found = {"pixels": _signature(plan.outputs, "images", plan.input_shape, "float32")}
    if plan.preprocessing is None:
        return found
    prepare = plan.prepare()
    found["images"] = _signature(lambda images: plan.outputs(prepare(images)), "images", *plan.file_input())
    if plan.image_shape[-1] != 3:  # no file of an image has as many channels
        return found
    from_bytes = _from_bytes(plan, prepare)
    of_bytes = {"bytes": from_bytes, "serving_default": lambda data: _ranked(plan, from_bytes(data))}
    if "features" in plan.output_names:
        of_bytes["features"] = lambda data: {"features": from_bytes(data)["features"]}
    return found | {name: _signature(run, "image_bytes", (None,), "string") for name, run in of_bytes.items()}


def _from_bytes(plan: Plan, prepare: Callable[..., Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the function from files to outputs: of images that get one size in one batch, of others one by one."""
    import tensorflow as tf

    def prepared(data):
        return prepare(decode_image(data)[None])

    def alone(data):
        outputs = plan.outputs(prepared(data))
        return {name: value[0] for name, value in outputs.items() if not name.startswith("attention_")}

    def one_by_one(data):
        names = [name for name in plan.output_names if not name.startswith("attention_")]
        any_shape: Any = None
        return tf.map_fn(alone, data, fn_output_signature={n: tf.TensorSpec(any_shape, tf.float32) for n in names})

    if plan.image_size is None:
        return one_by_one
    shape = (*plan.image_size, plan.input_shape[3])

    def together(data):
        inputs = tf.map_fn(lambda one: prepared(one)[0], data, fn_output_signature=tf.TensorSpec(shape, tf.float32))
        return plan.outputs(inputs)

    return together


def _ranked(plan: Plan, outputs: dict[str, Any]) -> dict[str, Any]:
    """Return the most probable classes, by name, and their scores; of a model without classes what it returns."""
    import tensorflow as tf

    if plan.classes is None:
        return {plan.kind: outputs[plan.kind]}
    scores, numbers = tf.math.top_k(outputs["probabilities"], plan.top)
    names = tf.constant(plan.labels or [str(number) for number in range(plan.classes)])
    return {"classes": tf.gather(names, numbers), "scores": scores}


def write_litert(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a `.tflite` file of built-in operations only, through TensorFlow's converter."""
    # `quantize="float16"` stores weights in half precision; `"int8"` stores weights in 8 bits, and activations are
    # quantized while it runs (dynamic range). Metadata and labels are in a zip archive at its end, like LiteRT's own.
    import tensorflow as tf

    prepare, module = plan.prepare(resize=False), _module(plan)
    module.run = _signature(lambda images: plan.outputs(prepare(images)), "images", *plan.file_input(resize=False))
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"serving_default": module.run})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.optimizations = [tf.lite.Optimize.DEFAULT] if plan.quantize else []
        if plan.quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            content = converter.convert()
        except Exception as error:  # the converter has its own, and those of the compiler
            raise _refused(plan, "LiteRT", error) from error
    Path(path).write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive:  # `ZipInfo` without a time: the same bytes each time
        archive.writestr(zipfile.ZipInfo(METADATA), _metadata(plan))
        archive.writestr(zipfile.ZipInfo(LABELS), "\n".join(plan.labels or ()))
    return []


def _refused(plan: Plan, converter: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split())[:1000]
    return ValueError(f"{converter} cannot express the model {plan.model.name!r}: {reason}")


def write_torch(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a program of `torch.export`, a zip archive that also has the metadata."""
    import torch

    ((batch, _, _, channels), dtype), prepare = plan.file_input(resize=False), plan.prepare(resize=False)

    # The model is not part of the program: Keras reads its variables elsewhere than where PyTorch registers them, and
    # each would be in the file twice.
    class Program(torch.nn.Module):
        def forward(self, images):
            return plan.outputs(prepare(images))

    example = torch.zeros((batch or 2, *plan.fixed_size, channels), dtype=getattr(torch, dtype))
    any_batch = {} if batch else {0: torch.export.Dim("batch", min=1, max=1 << 16)}
    with torch.no_grad():
        try:
            program = torch.export.export(Program().eval(), (example,), dynamic_shapes={"images": any_batch})
        except Exception as error:  # torch's compiler has dozens of its own
            raise _refused(plan, "torch.export", error) from error
    torch.export.save(program, os.fspath(path), extra_files={METADATA: _metadata(plan)})
    return []


def write_openvino(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write the graph to `path` and the weights to `.bin` next to it, made of the ONNX file of this package."""
    import openvino

    path = Path(path)
    with workspace(path.parent) as folder:
        onnx.write(plan, folder / "model.onnx")
        model = openvino.Core().read_model(folder / "model.onnx")  # `convert_model` tells Intel by the network
        for key, value in plan.metadata_json().items():
            model.set_rt_info(value if isinstance(value, str) else json.dumps(value), ["vit_keras", key])
        lower = path.with_suffix(".xml")  # OpenVINO writes no other ending
        openvino.save_model(model, os.fspath(lower), compress_to_fp16=False)
        lower.replace(path)
        del model  # it maps the ONNX file
    return [PRECISION]


WRITERS: dict[str, Callable[[Plan, Path], list[str]]] = {
    "saved_model": write_saved_model,
    "onnx": onnx.write,
    "openvino": write_openvino,
    "litert": write_litert,
    "torch": write_torch,
    "html": web.write,
}
"""Functions by the names of formats."""

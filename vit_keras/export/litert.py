"""LiteRT (`.tflite`): for Android, iOS, browsers and microcontrollers, through TensorFlow's converter.

The file takes uint8 images in the size of the model: it normalizes but does not resize them. Metadata and labels are in
a zip archive at its end, like LiteRT's own metadata: `unzip -p model.tflite vit_keras.json`.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from .plan import Plan

METADATA, LABELS = "vit_keras.json", "labels.txt"


def write(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a `.tflite` file of built-in operations only; TensorFlow must be the backend of Keras.

    `quantize="float16"` stores weights in half precision; `"int8"` stores weights in 8 bits, and activations are
    quantized while it runs (dynamic range).
    """
    import tensorflow as tf

    (shape, dtype), prepare = plan.input_of(resize=False), plan.prepare(resize=False)
    run = tf.function(
        lambda images: plan.outputs(prepare(images)),
        input_signature=[tf.TensorSpec(shape, dtype, name="images")],
        autograph=False,
    )
    module: Any = tf.Module()
    module.weights_of_the_model = [variable.value for variable in plan.model.weights]
    module.run = run
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures={"serving_default": run})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.optimizations = [tf.lite.Optimize.DEFAULT] if plan.quantize else []
        if plan.quantize == "float16":
            converter.target_spec.supported_types = [tf.float16]
        try:
            content = converter.convert()
        except Exception as error:  # the converter has its own, and those of the compiler
            reason = " ".join(str(error).split())[:1000]
            raise ValueError(f"LiteRT cannot express the model {plan.model.name!r}: {reason}") from error
    Path(path).write_bytes(content)
    with zipfile.ZipFile(path, "a") as archive:  # `ZipInfo` without a time: the same bytes each time
        archive.writestr(zipfile.ZipInfo(METADATA), json.dumps(plan.metadata_json(), indent=1))
        archive.writestr(zipfile.ZipInfo(LABELS), "\n".join(plan.labels or ()))
    return []

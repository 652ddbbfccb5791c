"""SavedModel: for TensorFlow Serving, and for `tf.saved_model.load` without Keras and this package.

Signatures (all with a batch of any size):

- `serving_default`: files of images in (`image_bytes`: JPEG, PNG, GIF, WebP, BMP), the most probable `classes` and
  their `scores` out;
- `bytes`: files in, all outputs out; `features`: files in, `features` out;
- `images`: uint8 images of any one size in, all outputs out;
- `pixels`: the model's own input (float32) in, all outputs out. Without preprocessing it is the only one, and
  `serving_default` too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .decoding import decode_picture
from .plan import Plan

METADATA = "assets.extra/vit_keras.json"
"""Where a SavedModel keeps what it says of itself."""


def write(plan: Plan, path: str | os.PathLike[str]) -> list[str]:
    """Write a SavedModel; TensorFlow must be the backend of Keras."""
    import tensorflow as tf

    # Only the variables are tracked: whoever tracks a Keras model saves every weight twice.
    module: Any = tf.Module()
    module.weights_of_the_model = [variable.value for variable in plan.model.weights]
    signatures = _signatures(plan)
    signatures.setdefault("serving_default", signatures.get("images", signatures["pixels"]))
    tf.saved_model.save(module, os.fspath(path), signatures=signatures)
    metadata = Path(path, METADATA)
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(json.dumps(plan.metadata_json(), indent=1), encoding="utf-8")
    return []


def _signatures(plan: Plan) -> dict[str, Any]:
    """Return the functions of a SavedModel by the names of their signatures."""
    import tensorflow as tf

    def signature(function: Callable[..., Any], name: str, shape: tuple[Any, ...], dtype: Any) -> Any:
        return tf.function(function, input_signature=[tf.TensorSpec(shape, dtype, name=name)], autograph=False)

    found = {"pixels": signature(plan.outputs, "images", plan.input_shape, tf.float32)}
    if plan.preprocessing is None:
        return found
    prepare = plan.prepare()
    found["images"] = signature(lambda images: plan.outputs(prepare(images)), "images", plan.picture_shape, tf.uint8)
    if plan.picture_shape[-1] != 3:  # no file of an image has as many channels
        return found
    from_bytes = _from_bytes(plan, prepare)
    of_bytes = {"bytes": from_bytes, "serving_default": lambda data: _ranked(plan, from_bytes(data))}
    if "features" in plan.output_names:
        of_bytes["features"] = lambda data: {"features": from_bytes(data)["features"]}
    return found | {name: signature(run, "image_bytes", (None,), tf.string) for name, run in of_bytes.items()}


def _from_bytes(plan: Plan, prepare: Callable[..., Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the function from files to outputs: of images that get one size in one batch, of others one by one."""
    import tensorflow as tf

    def prepared(data):
        return prepare(decode_picture(data)[None])

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

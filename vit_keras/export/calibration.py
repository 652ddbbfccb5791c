"""Calibrate 8-bit products: measure the largest magnitude of each channel for some images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from ..backend.keras_internals import flat_layers, no_gradients
from .formats import FORMATS
from .pictures import check_pictures, model_inputs
from .plan import Plan, in_float32, listening

__all__ = ["calibrated", "largest_channels"]


def calibrated(plan: Plan, images: Any, name: str) -> Plan:
    """Return a plan whose 8-bit products are calibrated with images."""
    able = [each for each, kind in FORMATS.items() if kind.calibrates]
    if plan.quantize != "int8" or name not in able:
        raise ValueError(
            f'calibration= is for quantize="int8" in the formats {", ".join(able)}. Received: the format {name!r} with '
            f"quantize={plan.quantize!r}. Leave it out; no format needs it."
        )
    if isinstance(images, bool):
        raise TypeError(f"calibration must be images like those that the file will see. Received: {images}")
    found = check_pictures(plan, images, "Pass calibration= some thirty paths or arrays, or a folder.")
    return dataclasses.replace(plan, calibration=largest_channels(plan, found))


def largest_channels(plan: Plan, images: Sequence[Any]) -> dict[str, list[float]]:
    """Return the largest magnitude of each channel of the output of each layer normalization, by the layer's path.

    Example:
        >>> from vit_keras import vit
        >>> plan = Plan.of(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2))
        >>> found = largest_channels(plan, [np.zeros((32, 32, 3), "uint8")])
        >>> sorted(found)[-1], len(found["Transformer_encoder_norm"])
        ('Transformer_encoderblock_0/LayerNorm_2', 16)
    """
    found: dict[str, np.ndarray] = {}

    def note(layer, inputs, outputs):
        channels = np.abs(ops.convert_to_numpy(outputs)).max(axis=tuple(range(len(outputs.shape) - 1)))
        found[layer.path] = np.maximum(found.get(layer.path, 0), channels)

    norms = [layer for layer in flat_layers(plan.model) if isinstance(layer, keras.layers.LayerNormalization)]
    with in_float32(plan.model), listening(plan.model, norms, note), no_gradients():
        for inputs in model_inputs(plan, images):
            plan.model(ops.convert_to_tensor(inputs), training=False)
    return {path: channels.tolist() for path, channels in found.items()}

"""Calibrate 8-bit products: measure the largest magnitude of each channel for some images."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from ..._internal.tap import tap
from ...backend.keras_internals import flat_layers, no_gradients
from ..images import check_images, model_inputs
from ..plan import Plan, in_float32

__all__ = ["calibrated", "largest_channels"]


def calibrated(plan: Plan, images: Any) -> Plan:
    """Return a plan whose 8-bit products are calibrated with images."""
    if plan.quantize != "int8":
        raise ValueError(f'calibration= is for quantize="int8". Received: quantize={plan.quantize!r}. Leave it out.')
    if isinstance(images, bool):
        raise TypeError(f"calibration must be images like those that the file will see. Received: {images}")
    return dataclasses.replace(plan, calibration=largest_channels(plan, check_images(plan, images)))


def largest_channels(plan: Plan, images: Sequence[Any]) -> dict[str, list[float]]:
    """Return the largest magnitude of each channel of the output of each layer normalization, by the layer's path."""
    found: dict[str, np.ndarray] = {}

    def note(layer, name, tensor):
        if name == "output":
            channels = np.abs(ops.convert_to_numpy(tensor)).max(axis=tuple(range(len(tensor.shape) - 1)))
            found[layer.path] = np.maximum(found.get(layer.path, 0), channels)
        return tensor

    norms = [layer for layer in flat_layers(plan.model) if isinstance(layer, keras.layers.LayerNormalization)]
    with in_float32(plan.model), tap(note, norms), no_gradients():
        for inputs in model_inputs(plan, images):
            plan.model(ops.convert_to_tensor(inputs), training=False)
    return {path: channels.tolist() for path, channels in found.items()}

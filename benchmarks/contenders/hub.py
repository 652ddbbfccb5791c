"""KerasHub's ViT."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

from . import Job, _keras


def backbone(cell: dict[str, Any]):
    """The model without a head, with random weights; it returns all tokens."""
    sizes = cell["architecture"]
    return keras_hub.models.ViTBackbone(
        image_shape=(cell["image_size"], cell["image_size"], 3),
        patch_size=16,
        num_layers=sizes["layers"],
        num_heads=sizes["heads"],
        hidden_dim=sizes["hidden"],
        mlp_dim=sizes["mlp"],
    )


def build(cell: dict[str, Any]):
    """The model with random weights."""
    return keras_hub.models.ViTImageClassifier(backbone(cell), num_classes=1000)


def inference(cell: dict[str, Any]) -> Job:
    """See `_keras`."""
    return _keras.inference(build(cell), cell)


def training(cell: dict[str, Any]) -> Job:
    """See `_keras`."""
    return _keras.training(build(cell), cell)


def startup(cell: dict[str, Any]) -> list:
    """See `_keras`."""
    return _keras.startup(build, cell, _keras.load)


def save(cell: dict[str, Any], path: str) -> None:
    """Write the weights."""
    _keras.save(build(cell), path)


def features(cell: dict[str, Any]) -> Job:
    """See `_keras`; files are read with Keras' own function, for KerasHub has none."""
    size = (cell["image_size"], cell["image_size"])

    def read(files):
        pixels = [
            keras.utils.img_to_array(keras.utils.load_img(f, target_size=size, interpolation="bilinear")) for f in files
        ]
        return np.stack(pixels) / 127.5 - 1

    return _keras.features(backbone(cell), cell, read)

"""vit-keras 0.2.0, whose place vit_keras takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from vit_keras import utils, visualize, vit

from . import Job, _keras, photo


def build(cell: dict[str, Any], include_top: bool = True):
    """The model with random weights; `build_model`, because the factories always have dropout and only B and L."""
    sizes = cell["architecture"]
    return vit.build_model(
        image_size=cell["image_size"],
        patch_size=16,
        num_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        num_heads=sizes["heads"],
        mlp_dim=sizes["mlp"],
        name="vit",
        classes=1000,
        dropout=0.0,
        include_top=include_top,
    )


def inference(cell: dict[str, Any]) -> Job:
    """See `_keras`."""
    return _keras.inference(build(cell), cell)


def training(cell: dict[str, Any]) -> Job:
    """See `_keras`."""
    return _keras.training(build(cell), cell)


def startup(cell: dict[str, Any]) -> list:
    """See `_keras`."""
    return _keras.startup(build, cell, _load_npz if cell["style"] == "npz" else _keras.load)


def _load_npz(model, path: str) -> None:
    utils.load_weights_numpy(model, path, pretrained_top=True, num_x_patches=14, num_y_patches=14)


def save(cell: dict[str, Any], path: str) -> None:
    """Write the weights."""
    _keras.save(build(cell), path)


def attention(cell: dict[str, Any]) -> Job:
    """A map over a photograph."""
    model, image = build(cell), photo()
    return Job(
        model.count_params(),
        {"attention_map": lambda: visualize.attention_map(model=model, image=image)},
        image.shape,
    )


def features(cell: dict[str, Any]) -> Job:
    """See `_keras`."""

    def read(files):
        return vit.preprocess_inputs(np.stack([utils.read(file, cell["image_size"]) for file in files]))

    return _keras.features(build(cell, include_top=False), cell, read)

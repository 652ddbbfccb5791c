"""tfvit."""

from __future__ import annotations

from typing import Any

import tfvit

from . import Job, _keras


def build(cell: dict[str, Any]):
    """The model with random weights."""
    sizes = cell["architecture"]
    return tfvit.ViT(
        patch_size=16,
        hidden_size=sizes["hidden"],
        num_layers=sizes["layers"],
        num_heads=sizes["heads"],
        img_size=cell["image_size"],
        classifier_activation=None,
    )


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

"""vit_keras, this checkout."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from vit_keras import utils, visualize, vit
from vit_keras.training import fused

from . import Job, _keras, photo


def build(cell: dict[str, Any], weights: str | None = None, **options: Any):
    """The model with random weights, or those of a file."""
    factory = getattr(vit, "vit_" + cell["model"].replace("/", "").lower())
    return factory(image_size=cell["image_size"], classes=1000, weights=weights, dropout=0.0, **options)


def inference(cell: dict[str, Any]) -> Job:
    """See `_keras`."""
    return _keras.inference(build(cell), cell)


def training(cell: dict[str, Any]) -> Job:
    """See `_keras`; the weights are updated by one kernel, as with `recipe`."""
    return _keras.training(build(cell), cell, fused)


def startup(cell: dict[str, Any]) -> list:
    """See `_keras`; with a .npz the factory loads it."""
    if cell["style"] == "npz":
        return _keras.startup(lambda cell: build(cell, cell["weights"]), cell)
    return _keras.startup(build, cell, _keras.load)


def save(cell: dict[str, Any], path: str) -> None:
    """Write the weights; a .npz in Google's format is made by the script that the tests use."""
    if cell["style"] != "npz":
        return _keras.save(build(cell), path)
    script = Path(__file__).parents[2] / "tests" / "goldens" / "make_google_npz.py"
    spec = importlib.util.spec_from_file_location("make_google_npz", script)
    google = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(google)
    variant = "ViT-" + cell["model"].replace("/", "_")
    return google.save(path, google.make(variant, image_size=cell["image_size"], classes=1000))


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

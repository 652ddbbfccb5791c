"""Look up the configuration of a published checkpoint by its name, without its file."""

from __future__ import annotations

import re
from typing import Any

from ..config import ViTConfig
from ..variants import CIFAR10, VARIANTS
from . import timm_models
from .checkpoint import Checkpoint
from .registry import read_options

__all__ = ["published_config"]


def published_config(checkpoint: Checkpoint) -> ViTConfig | None:
    """Return the configuration of the model in a published file, or `None` if unknown or not buildable."""
    # Fields that the arrays show come from `timm_models.csv`, except the initial value of layer scale, which is 1e-5.
    if checkpoint.source == "vit_keras":
        return CIFAR10
    own: dict[str, Any] = {"image_size": checkpoint.image_size, "representation_size": checkpoint.representation_size}
    own |= {"classes": checkpoint.classes} if checkpoint.classes else {"include_top": False}
    if checkpoint.variant in VARIANTS:
        return VARIANTS[checkpoint.variant].replace(**own)
    name, _, changes = (checkpoint.architecture or "").partition(" ")
    model = timm_models.models().get(name) if name else timm_models.of_file(checkpoint.name)
    if model is None or model.refused:
        return None
    fields = {**_fields(model), "name": re.sub(r"\W", "_", checkpoint.weights), "drop_remainder": True, **own}
    return ViTConfig().replace(**{**fields, **checkpoint.options, **read_options(changes)})


def _fields(model: timm_models.Model) -> dict[str, Any]:
    """Return all fields of `ViTConfig` of an architecture, including those that its arrays do not show."""
    width, mlp_dim, patch, *other = model.arrays.split()
    hidden_size, _, inner = width.partition("/")
    shown = {"class_token": True, **read_options(" ".join(other))}
    if shown.pop("layer_scale", False):
        shown["layer_scale"] = 1e-5
    if shown.pop("map", False):
        shown["pooling"] = "map"
    if "resnet" in shown:
        shown["resnet"] = tuple(int(units) for units in re.findall(r"\d+", str(shown["resnet"])))
    fields = {"pooling": "gap", "num_heads": 1, **shown, **model.fields}
    if inner:
        fields["dim_head"] = int(inner) // fields["num_heads"]
    return {
        "hidden_size": int(hidden_size),
        "num_layers": model.num_layers,
        "mlp_dim": int(mlp_dim),
        "patch_size": tuple(map(int, patch.split("x"))),
        **fields,
    }

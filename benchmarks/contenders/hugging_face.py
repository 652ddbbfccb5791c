"""Hugging Face transformers, with PyTorch's fused attention (sdpa)."""

from __future__ import annotations

from typing import Any

import transformers
from PIL import Image

from . import Job, _torch


def _config(cell: dict[str, Any]):
    sizes = cell["architecture"]
    return transformers.ViTConfig(
        image_size=cell["image_size"],
        patch_size=16,
        num_hidden_layers=sizes["layers"],
        hidden_size=sizes["hidden"],
        num_attention_heads=sizes["heads"],
        intermediate_size=sizes["mlp"],
        num_labels=1000,
        attn_implementation="sdpa",
    )


def build(cell: dict[str, Any]):
    """The model with random weights."""
    return transformers.ViTForImageClassification(_config(cell))


def logits(model, x):
    """The model's logits."""
    return model(pixel_values=x).logits


def inference(cell: dict[str, Any]) -> Job:
    """See `_torch`."""
    return _torch.inference(build(cell), cell, logits)


def training(cell: dict[str, Any]) -> Job:
    """See `_torch`."""
    return _torch.training(build(cell), cell, logits)


def features(cell: dict[str, Any]) -> Job:
    """See `_torch`; files are read with the library's image processor, the one that works without torchvision."""
    size = cell["image_size"]
    processor = transformers.ViTImageProcessorPil(size={"height": size, "width": size})

    def read(files):
        return processor([Image.open(f).convert("RGB") for f in files], return_tensors="pt")["pixel_values"]

    def tokens(model, x):
        return model(pixel_values=x).last_hidden_state[:, 0]

    return _torch.features(transformers.ViTModel(_config(cell), add_pooling_layer=False), cell, read, tokens)


def startup(cell: dict[str, Any]) -> list:
    """See `_torch`."""
    return _torch.startup(build, cell, logits)


def save(cell: dict[str, Any], path: str) -> None:
    """Write the weights."""
    _torch.save(build(cell), path)

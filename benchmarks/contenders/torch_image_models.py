"""timm."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from . import Job, _torch, _torchvision, images

_torchvision.stand_in()
import timm  # noqa: E402

NAMES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large"}


def build(cell: dict[str, Any], classes: int = 1000):
    """The model with random weights; 0 classes for features."""
    name = f"vit_{NAMES[cell['model'].split('/')[0]]}_patch16_224"
    return timm.create_model(name, img_size=cell["image_size"], num_classes=classes)


def logits(model, x):
    """The model's output."""
    return model(x)


def inference(cell: dict[str, Any]) -> Job:
    """See `_torch`."""
    return _torch.inference(build(cell), cell, logits)


def training(cell: dict[str, Any]) -> Job:
    """See `_torch`."""
    return _torch.training(build(cell), cell, logits)


def features(cell: dict[str, Any]) -> Job:
    """See `_torch`; files are read with Pillow, as timm's own transforms do (these need torchvision)."""
    size = (cell["image_size"], cell["image_size"])

    def read(files):
        pixels = np.stack([Image.open(f).convert("RGB").resize(size, Image.Resampling.BICUBIC) for f in files])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(127.5).sub_(1).contiguous()

    return _torch.features(build(cell, classes=0), cell, read, logits)


def save(cell: dict[str, Any], path: str) -> None:
    """Write the weights, or an ONNX file with a fixed batch."""
    model = build(cell).eval()
    if not path.endswith(".onnx"):
        return _torch.save(model, path)
    x = torch.from_numpy(images(cell, channels_first=True))
    names = {"input_names": ["images"], "output_names": ["logits"]}
    torch.onnx.export(model, (x,), path, **names, dynamo=True, external_data=False)
    return None


def startup(cell: dict[str, Any]) -> list:
    """See `_torch`."""
    return _torch.startup(build, cell, logits)

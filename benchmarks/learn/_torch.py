"""What the libraries on PyTorch share."""

from __future__ import annotations

import numpy as np
import torch

from . import common


def inputs(pixels: np.ndarray) -> torch.Tensor:
    """Return pixels as the libraries want them."""
    return torch.from_numpy(common.prepared(pixels).transpose(0, 3, 1, 2).copy())


def outputs(model: torch.nn.Module, pixels: np.ndarray) -> np.ndarray:
    """Return what a model predicts."""
    model.eval()
    with torch.inference_mode():
        found = [model(inputs(pixels[n : n + 100])) for n in range(0, len(pixels), 100)]
    return torch.cat([each if torch.is_tensor(each) else each.logits for each in found]).numpy()

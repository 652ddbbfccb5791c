"""The tokens that a model's output is computed from."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from .. import layers
from ..backend.keras_internals import flat_layers
from .dry_run import runs, shares
from .parts import find_vit, has_attention, prefix_names

__all__ = ["readout", "runs", "shows_attention"]


def readout(model: keras.Model, tokens: int | None = None) -> np.ndarray:
    """Return how much each token of the last block counts in what the head takes, float32 `(tokens,)`; they sum to 1.

    For another number of `tokens` than images of one size make, the patches share what they have there.
    """
    prefix, found = len(prefix_names(find_vit(model))), shares(model)
    if not found.any() or any(isinstance(layer, layers.AttentionPooling) for layer in flat_layers(model)):
        # Nothing is read, or as much of each token as an image says.
        found = (found > 0 if found.any() else np.arange(len(found)) == 0).astype("float32")
        found /= found.sum()
    if tokens not in (None, len(found)):
        patches = tokens - prefix
        found = np.concatenate([found[:prefix], np.full(patches, found[prefix:].sum() / max(1, patches))])
    return found.astype("float32")


def shows_attention(model: Any) -> bool:
    """Return whether a model has attention to show for an image: one ViT, with attention, that runs once."""
    return has_attention(model) and runs(model) == 1

"""The arrays recorded in one pass through a model, from which maps and figures are computed. NumPy only."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

FUSIONS = ("mean", "max", "min")
GRADIENT_FUSIONS = ("relevance", "gradient")


@dataclasses.dataclass(frozen=True)
class Recording:
    """Arrays that a model computed for a batch of images, and gradients if there was a target. Made by `record`.

    All arrays are NumPy's. In the shapes, L blocks were recorded of B images; H heads of width d; N tokens of width D:
    those before the patches, then the patches row by row. A row of attention is a query, a column a key.

    Attributes:
        images: The images, uint8 `(height, width, 3)` each, to draw on: maps are drawn from edge to edge. A model with
            `drop_remainder` cuts off incomplete patches below and to the right, and a map is off by less than one patch
            there. An image of more than 2048 pixels on its longest side is kept at 2048.
        grid: Patches down and across.
        prefix: Names of the tokens before the patches: `"cls"`, `"dist"`, `"reg0"` …
        layers: Numbers of the recorded blocks.
        patch_size: Pixels of the model's input between two patches, down and across.
        readout: float32 `(B, N)`, how much the model's output reads from each token of the last block; rows sum to 1.
            All from the class token; or the mean of the patches, or what a MAP head attends to.
        logits: float32 `(B, classes)`, the model's output before a last softmax or sigmoid. It is after it where the
            target is a function, and of a packed model. With `exits`, it is the output of the last recorded exit.
            `None` of a model with several outputs.
        target: int `(B,)`, the classes whose logits were explained, or `None`.
        labels: Names of the classes, where the model knows them.
        head_fusion: How the heads were fused, or `None`.
        exits: Whether each block's gradients are those of its own exit (`legrad`) and not of the model's output.
        attention: float32 `(L, B, H, N, N)`; `(L, B, N, N)` with fused heads; `(L, B, H, N)` with `query="auto"`.
        values: float32 `(L, B, H, N, d)`.
        projections: float32 `(L, H, d, D)`, the output projection of each head into the residual stream (with layer
            scale).
        tokens: float32 `(L + 1, B, N, D)`: the input of each recorded block, and the output of the last of them.
        features: float32 `(B, N, D)`, the tokens after the final normalization, where the last block was recorded.
        normed: float32 `(L, B, N, D)`, the tokens after the first normalization of each block.
        gradients: Gradients of the explained score with respect to `attention`.
        normed_gradients: Gradients with respect to `normed`.
        pooling_attention: float32 `(B, H, N)`, the attention of a MAP head.
        pooling_gradients: Gradients with respect to it.
    """

    images: tuple[np.ndarray, ...]
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    layers: tuple[int, ...]
    patch_size: tuple[int, int]
    readout: np.ndarray
    logits: np.ndarray | None = None
    target: np.ndarray | None = None
    labels: tuple[str, ...] | None = None
    head_fusion: str | None = None
    exits: bool = False
    attention: np.ndarray | None = None
    values: np.ndarray | None = None
    projections: np.ndarray | None = None
    tokens: np.ndarray | None = None
    features: np.ndarray | None = None
    normed: np.ndarray | None = None
    gradients: np.ndarray | None = None
    normed_gradients: np.ndarray | None = None
    pooling_attention: np.ndarray | None = None
    pooling_gradients: np.ndarray | None = None

    def patches(self, rows: np.ndarray) -> np.ndarray:
        """Return the patches of `(..., N)` as `(..., down, across)`."""
        return rows[..., len(self.prefix) :].reshape(*rows.shape[:-1], *self.grid)


_OF_IMAGES = ("images", "readout", "logits", "target", "features", "pooling_attention", "pooling_gradients")
_OF_LAYERS = ("attention", "values", "tokens", "normed", "gradients", "normed_gradients")


def of_images(recording: Recording, part: slice) -> Recording:
    """Return the part of a recording that belongs to some of its images."""
    kept = {name: getattr(recording, name) for name in (*_OF_IMAGES, *_OF_LAYERS)}
    cut = {name: x[part] if name in _OF_IMAGES else x[:, part] for name, x in kept.items() if x is not None}
    return dataclasses.replace(recording, **cut)


def fuse_heads(attention: Any, gradients: Any, how: str, xp: Any = np) -> Any:
    """Return `(..., heads, queries, keys)` without the axis of the heads, fused as `record(head_fusion=)` says."""
    # "relevance" and "gradient" need the gradients. `xp` is `numpy` or `keras.ops`.
    if how == "relevance":
        return xp.mean(xp.maximum(attention * gradients, 0), axis=-3)
    if how == "gradient":
        return xp.maximum(xp.mean(attention * gradients, axis=-3), 0)
    return getattr(xp, how)(attention, axis=-3)

"""One pass through a model: what its attention was.

The scores are taken from the layers while they compute (`vit_keras.layers.record_attention`), so no second
model is built, and it does not matter how deep the Vision Transformer sits in another model.
"""

from __future__ import annotations

import contextlib

import keras
import numpy as np

from .. import compiled
from ..layers import record_attention


def attention_scores(model: keras.Model, inputs: np.ndarray, *, mean_heads: bool = False) -> np.ndarray:
    """The attention scores of all blocks, from one forward pass in inference mode.

    The pass is compiled at the first call for a model; later calls of any batch size reuse it.

    Args:
        model: Any model of one image input with blocks of this package in it.
        inputs: `(batch, height, width, channels)` as the model takes them.
        mean_heads: Whether to return the mean over the heads, which takes far less memory.

    Returns:
        float32 `(layers, batch, heads, tokens, tokens)`, rows are queries; without the heads' axis if
        `mean_heads`.

    Raises:
        ValueError: The model has no attention layer of this package.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> attention_scores(model, np.zeros((1, 32, 32, 3), "float32")).shape
        (2, 1, 2, 17, 17)
    """
    inputs = np.asarray(inputs, "float32")
    if not model.built:
        model(inputs[:1])
    with _no_gradients():
        scores = compiled.run(
            model,
            _collect_mean if mean_heads else _collect,
            keras.ops.convert_to_tensor(inputs),
            key=("attention", mean_heads),
        )
    if not scores:
        raise ValueError(f"The model {model.name!r} has no attention layer of vit_keras in it.")
    return np.stack([keras.ops.convert_to_numpy(s) for s in scores])


def _collect(model: keras.Model, images) -> list:
    with record_attention() as scores:
        model(images, training=False)
    return [keras.ops.cast(s, "float32") for s in scores]


def _collect_mean(model: keras.Model, images) -> list:
    return [keras.ops.mean(s, axis=1) for s in _collect(model, images)]


def _no_gradients() -> contextlib.AbstractContextManager:
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()

"""One pass through a model: what its attention was.

The scores are taken from the layers while they compute (`vit_keras.layers.record_attention`), so no second
model is built, and it does not matter how deep the Vision Transformer sits in another model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import keras
import numpy as np

from ..layers import record_attention

_compiled: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


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
    runs = _compiled.setdefault(model, {})
    if mean_heads not in runs:
        runs[mean_heads] = _compile(model, mean_heads)
    scores = runs[mean_heads](np.asarray(inputs, "float32"))
    if not scores:
        raise ValueError(f"The model {model.name!r} has no attention layer of vit_keras in it.")
    return np.stack([keras.ops.convert_to_numpy(s) for s in scores])


def _compile(model: keras.Model, mean_heads: bool) -> Callable:
    reference = weakref.ref(model)  # the cache must not keep the model alive

    def collect(call: Callable) -> list:
        with record_attention() as scores:
            call()
        scores = [keras.ops.cast(s, "float32") for s in scores]
        return [keras.ops.mean(s, axis=1) for s in scores] if mean_heads else scores

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda x: collect(lambda: reference()(x, training=False)), reduce_retracing=True)
    if backend == "jax":
        import jax

        @jax.jit
        def run(trainable, non_trainable, x):
            return collect(lambda: reference().stateless_call(trainable, non_trainable, x, training=False))

        def call(x):
            model = reference()
            values = (
                [v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)
            )
            return run(*values, x)

        return call
    if backend == "torch":
        import torch

        def evaluate(x):
            with torch.no_grad():
                return collect(lambda: reference()(x, training=False))

        return evaluate
    raise ValueError(f"Attention cannot be recorded on the backend {backend!r}: use tensorflow, jax or torch.")

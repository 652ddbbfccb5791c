"""One pass through a model: what its attention was.

The scores are taken from the layers while they compute (`vit_keras.layers.record_attention`), so no second
model is built, and it does not matter how deep the Vision Transformer sits in another model.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import keras
import numpy as np

from ..layers import MlpBlock, record_attention

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
    inputs = np.asarray(inputs, "float32")
    if not model.built:
        model(inputs[:1])
    runs = _compiled.setdefault(model, {})
    # A file of weights may bring another activation, which a compiled pass would not notice.
    activations = tuple(layer.activation for layer in model._flatten_layers() if isinstance(layer, MlpBlock))
    key = (mean_heads, inputs.shape[1:], activations)
    if key not in runs:
        runs[key] = _compile(model, inputs.shape[1:], mean_heads)
    scores = runs[key](inputs)
    if not scores:
        raise ValueError(f"The model {model.name!r} has no attention layer of vit_keras in it.")
    return np.stack([keras.ops.convert_to_numpy(s) for s in scores])


def _compile(model: keras.Model, image_shape: tuple[int, ...], mean_heads: bool) -> Callable:
    reference = weakref.ref(model)  # the cache must not keep the model alive

    def collect(x) -> list:
        with record_attention() as scores:
            reference()(x, training=False)
        scores = [keras.ops.cast(s, "float32") for s in scores]
        return [keras.ops.mean(s, axis=1) for s in scores] if mean_heads else scores

    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(collect, input_signature=[tf.TensorSpec((None, *image_shape), "float32")])
    if backend == "jax":
        import jax

        variables = model.variables  # in this order for good: freezing a layer must not change it

        @jax.jit
        def run(values, x):
            with keras.StatelessScope(state_mapping=list(zip(variables, values))):
                return collect(x)

        return lambda x: run([v.value for v in variables], x)
    if backend == "torch":
        import torch

        return torch.no_grad()(collect)
    raise ValueError(f"Attention cannot be recorded on the backend {backend!r}: use tensorflow, jax or torch.")

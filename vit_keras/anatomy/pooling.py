"""The tokens that a model's output is computed from, and how they become one vector."""

from __future__ import annotations

import keras
import numpy as np

from .. import layers
from ..backend.keras_internals import flat_layers, kept, origin
from .outputs import outputs_of
from .parts import blocks, checked, final_norm, find_vit, learner, prefix_names

__all__ = ["pooling", "readout"]


def readout(model: keras.Model) -> list[slice]:
    """Return the tokens of the last block that the output is computed from, as slices whose means are averaged.

    Layers around the ViT count too: a map of the patches (`feature_maps`), or what makes one vector of the tokens, such
    as `GlobalAveragePooling1D` or `tokens[:, 0]`. Without any such layer, it is the class token or, if there is none,
    the patches.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> readout(tiny)  # the class token
        [slice(0, 1, None)]
    """
    inside, prefix = flat_layers(checked(model)), prefix_names(model)
    single = [slice(layer.index, layer.index + 1) for layer in inside if isinstance(layer, layers.ExtractToken)]
    maps = [layer for layer in inside if isinstance(layer, layers.PatchMap)]
    if "cls" in prefix and any(layer.return_prefix for layer in maps):
        single.append(slice(0, 1))
    patches = [layer for layer in inside if isinstance(layer, layers.MeanToken)] + maps[:1]
    means = [slice(layer.prefix_tokens, None) for layer in patches]
    found = single + means
    if not found and not any(isinstance(layer, layers.AttentionPooling) for layer in inside):
        found = _read_by(pooling(model), len(prefix))
    return found or [slice(0, 1) if "cls" in prefix else slice(len(prefix), None)]


def pooling(model: keras.Model) -> keras.Model | None:
    """Return the layers that make one vector of the tokens that a ViT returns, as a functional model.

    Returns:
        A model from tokens `(batch, tokens, width)` to the first `(batch, n)` behind them. `None` if there is none, or
        the model has no graph.

    Example:
        >>> from vit_keras import vit
        >>> tokens = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, pooling=None, include_top=False)
        >>> around = keras.Sequential([tokens, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)])
        >>> pooling(tokens) is None, pooling(around).output_shape
        (True, (None, 16))
    """
    model = learner(model)
    vit = find_vit(model)
    last = vit if model is not vit else final_norm(vit) or blocks(vit)[-1]
    return kept(model, "pooling", lambda: _behind(last, model))


def _behind(last: keras.layers.Layer, model: keras.Model) -> keras.Model | None:
    try:
        vector, tensor = None, outputs_of(model)[0]
    except ValueError:
        return None
    while True:
        operation, inputs = origin(tensor)
        if isinstance(operation, keras.layers.Layer) and any(layer is last for layer in flat_layers(operation)):
            break
        if not inputs:
            return None
        vector = tensor if len(tensor.shape) == 2 else vector
        tensor = inputs[0]
    if len(tensor.shape) == 3:
        return None if vector is None else keras.Model(tensor, vector)
    nested = isinstance(operation, keras.Model) and operation is not last
    return _behind(last, operation) if nested else None


def _read_by(pooled: keras.Model | None, prefix: int) -> list[slice]:
    """Return the tokens that a pooling reads, found by sending tokens of zeros with a single one through it."""
    if pooled is None:
        return []
    _, count, width = pooled.input_shape
    count = count or prefix + 4
    tokens = np.zeros((-(-count // width), count, width), "float32")
    sample, channel = np.divmod(np.arange(count), width)
    tokens[sample, np.arange(count), channel] = 1
    vectors = keras.ops.convert_to_numpy(pooled(tokens, training=False) - pooled(0 * tokens, training=False))
    if vectors.shape[-1] != width:  # tokens of another width, or all of them one after another
        return [slice(0, None)]
    read = np.flatnonzero(vectors[sample, channel])
    return [slice(int(read[0]), None if read[-1] == count - 1 else int(read[-1]) + 1)] if read.size else []

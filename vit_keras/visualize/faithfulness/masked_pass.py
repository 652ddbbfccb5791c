"""Run a model without some of its tokens, and return what is compared.

Tokens interact in attention alone, and a softmax over some of the tokens is the softmax over all of them, cut out and
divided by its sum. So the tokens are not taken out of the sequence, but no other attends to them, in any block, and a
mean of the tokens is over the others. The result is the same, and one compiled function does for all fractions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from ..._internal.tap import tap
from ...anatomy.parts import attention_blocks, find_vit, has_attention
from ...backend.keras_internals import flat_layers
from ...layers import AttentionPooling, ExtractToken, MergingBlock
from ...layers.tokens import MeanToken


def read(kind: str | Callable[..., Any], tokens: np.ndarray, model: keras.Model, images: Any, masks: Any = None) -> Any:
    """Return the compared score, computed without the tokens whose mask `(batch, tokens)` is 0."""
    # `kind` is "similarity", "probability" or a function of the outputs; `tokens` are how much each token counts.
    if masks is None and kind != "similarity":
        outputs = model(images, training=False)
    else:
        remove = _Removal(model, masks)
        with tap(remove):
            outputs = model(images, training=False)
            if kind == "similarity":
                return ops.cast(pooled(model, tokens, remove.tokens, masks), "float32")
    if callable(kind):
        value = kind(outputs)
        if not ops.is_tensor(value) or math.prod(n or 1 for n in value.shape[1:]) != 1 or not value.shape:
            raise ValueError("A target function returns a tensor of one number for each image.")
        return ops.cast(ops.reshape(value, (-1,)), "float32")
    return ops.cast(outputs, "float32")


class _Removal:
    """A visitor that removes tokens, and keeps those after the last block."""

    def __init__(self, model, masks):
        blocks = attention_blocks(find_vit(model)) if has_attention(model) else []
        if any(isinstance(block, MergingBlock) for block in blocks):
            raise ValueError(
                f"The model {model.name!r} merges tokens, and no patch can be removed from a merged one. Pass "
                "vit_keras.merge_tokens(model, 0)."
            )
        self.last = blocks[-1] if blocks else None
        self.attending = {id(b.att) for b in blocks} | {
            id(p.att) for p in pools(model) if isinstance(p, AttentionPooling)
        }
        self.masks = masks
        self.tokens = None

    def __call__(self, layer, name, tensor):
        if layer is self.last and name == "output":
            self.tokens = tensor
        if self.masks is None:
            return tensor
        if id(layer) in self.attending and name in ("attention", "pooling"):
            return self._without(tensor)
        if isinstance(layer, MeanToken):
            kept = self.masks[:, layer.prefix_tokens :]
            share = kept / ops.mean(kept, axis=1, keepdims=True)
            return tensor * ops.cast(ops.pad(share, ((0, 0), (layer.prefix_tokens, 0)))[..., None], tensor.dtype)
        return tensor

    def _without(self, scores):
        tokens = self.masks.shape[-1]
        if scores.shape[-1] not in (None, tokens):
            raise ValueError(
                f"{scores.shape[-1]} tokens are not the {tokens} that the grid makes: pass grid=(down, across)."
            )
        kept = ops.cast(scores, "float32") * self.masks[:, None, None]
        total = ops.sum(kept, axis=-1, keepdims=True)
        return ops.cast(kept / ops.maximum(total, np.finfo("float32").tiny), scores.dtype)


def pooled(model: keras.Model, read: np.ndarray, tokens: Any, masks: Any) -> Any:
    """Return what the head reads of the last block's tokens: `(batch, width)`."""
    named = {layer.name: layer for layer in find_vit(model).layers}
    if "Transformer_encoder_norm" in named:
        tokens = named["Transformer_encoder_norm"](tokens)
    pooling = pools(model)
    if pooling:
        parts = [pool(tokens) for pool in pooling]
    else:
        weights = ops.cast(read, tokens.dtype)[None, :, None]
        weights = weights if masks is None else weights * ops.cast(masks[..., None], tokens.dtype)
        parts = [ops.sum(tokens * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1e-6)]
    if "fc_norm" in named:
        parts = [named["fc_norm"](part) for part in parts]
    return ops.concatenate(parts, axis=-1)


def pools(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that make one vector of the tokens."""
    return [layer for layer in flat_layers(model) if isinstance(layer, (ExtractToken, MeanToken, AttentionPooling))]

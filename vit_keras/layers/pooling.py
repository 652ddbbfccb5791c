"""Attention pooling."""

from __future__ import annotations

from typing import Any

import keras

from ..backend import ops
from ._base import Composite, LayerNormalization, register, token_width
from .attention import MultiHeadSelfAttention
from .bias import boolean_mask, size_bias
from .mlp import MlpBlock


class _ProbeAttention(MultiHeadSelfAttention):
    tapped_as = "pooling"


@register
class AttentionPooling(Composite):
    """Attention pooling: a learned probe attends to all tokens, followed by an MLP.

    Paper: Set Transformer (arXiv 1810.00825). Reference: big_vision's `MAPHead`, as in SigLIP.

    Call arguments:
        inputs: Tokens.
        sizes: Patches in each token, `(batch, tokens, 1)`, where blocks merged tokens.
        attention_mask: Booleans, `(batch, tokens)`: which tokens the probe attends to. Or, of several images in a
            sequence, `(batch, images, tokens)`: the tokens of each, which replaces `prefix_tokens`.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`; with an `attention_mask` of three axes, `(batch, images, hidden_size)`.

    Raises:
        ValueError: `attention_mask` has a wrong shape.
        TypeError: `attention_mask` has floats.

    Example:
        >>> tuple(AttentionPooling(num_heads=2, mlp_dim=16)(np.zeros((2, 5, 8), "float32")).shape)
        (2, 8)
    """

    num_heads: int
    """Number of attention heads."""
    mlp_dim: int
    """Hidden width of the MLP."""
    mlp_activation: str = "gelu_tanh"
    epsilon: float = 1e-6
    prefix_tokens: int = 0
    """Tokens before the patches that the probe does not see."""

    def setup(self) -> None:
        self.att: _ProbeAttention = self.part(_ProbeAttention, "MultiHeadDotProductAttention_0", epsilon=1e-6)
        self.layernorm: Any = self.part(LayerNormalization, "LayerNorm_0", epsilon=self.epsilon)
        self.mlpblock: MlpBlock = self.part(MlpBlock, "MlpBlock_0", activation=self.mlp_activation, epsilon=1e-6)

    def build(self, input_shape: Any) -> None:
        width = token_width(self, input_shape)
        self.probe: keras.Variable = self.add_weight(shape=(1, 1, width), initializer="glorot_uniform", name="probe")
        for layer in (self.att, self.layernorm, self.mlpblock):
            layer.build((None, 1, width))
        self.change_as_configured()

    def call(self, inputs: Any, training: bool | None = None, sizes: Any = None, attention_mask: Any = None) -> Any:
        several = _has_images(attention_mask)
        seen = self._patches(inputs, attention_mask) if self.prefix_tokens and not several else attention_mask
        images = (attention_mask.shape[1] or ops.shape(attention_mask)[1]) if several else 1
        probe = ops.broadcast_to(ops.cast(self.probe, inputs.dtype), (ops.shape(inputs)[0], images, inputs.shape[-1]))
        x = self.att(inputs, training=training, queries=probe, bias=size_bias(sizes), attention_mask=seen)
        x = x + self.mlpblock(self.layernorm(x), training=training)
        return x if several else x[:, 0]

    def _patches(self, inputs: Any, mask: Any) -> Any:
        """Return the mask of the tokens after the prefix, combined with `mask`."""
        seen = ops.broadcast_to(ops.arange(ops.shape(inputs)[1]) >= self.prefix_tokens, ops.shape(inputs)[:2])
        if mask is None:
            return seen
        return ops.logical_and(seen[:, None], boolean_mask(mask, (inputs.shape[0], 1, inputs.shape[1])))

    def compute_output_shape(self, inputs_shape: Any, attention_mask_shape: Any = None) -> Any:
        images = attention_mask_shape[1:2] if len(attention_mask_shape or ()) == 3 else ()
        return (inputs_shape[0], *images, inputs_shape[2])


def _has_images(mask: Any) -> bool:
    """Whether a mask has the tokens of each of several images."""
    return len(getattr(mask, "shape", ())) == 3

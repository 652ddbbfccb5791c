"""Attention pooling."""

from __future__ import annotations

import keras
from keras import ops

from ._base import register, token_width
from .attention import MultiHeadSelfAttention
from .mlp import MlpBlock


class _ProbeAttention(MultiHeadSelfAttention):
    tapped_as = "pooling"


@register
class AttentionPooling(keras.layers.Layer):
    """Multi-head attention pooling: a learned probe attends to all tokens, then an MLP (Set Transformer, arXiv
    1810.00825).

    Reference: big_vision's `MAPHead`, which SigLIP has.

    Args:
        num_heads: Number of attention heads.
        mlp_dim: Hidden width of the MLP.
        mlp_activation: See `MlpBlock`.
        epsilon: Added to the variance in the layer normalization.

    Call arguments:
        inputs: Tokens.
        sizes: Patches in each token, `(batch, tokens, 1)`, where blocks merged tokens.
        attention_mask: Booleans, `(batch, images, tokens)`, of several images in a sequence: the tokens of each.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`; with `attention_mask`, `(batch, images, hidden_size)`.

    Example:
        >>> tuple(AttentionPooling(num_heads=2, mlp_dim=16)(np.zeros((2, 5, 8), "float32")).shape)
        (2, 8)
    """

    def __init__(self, num_heads, mlp_dim, mlp_activation="gelu_tanh", epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.epsilon = epsilon
        policy = {"dtype": self.dtype_policy}
        self.att = _ProbeAttention(num_heads, name="MultiHeadDotProductAttention_0", **policy)
        self.layernorm = keras.layers.LayerNormalization(epsilon=epsilon, name="LayerNorm_0", **policy)
        self.mlpblock = MlpBlock(mlp_dim, activation=mlp_activation, name="MlpBlock_0", **policy)

    def build(self, input_shape):
        width = token_width(self, input_shape)
        self.probe = self.add_weight(shape=(1, 1, width), initializer="glorot_uniform", name="probe")
        for layer in (self.att, self.layernorm, self.mlpblock):
            layer.build((None, 1, width))

    def call(self, inputs, training=None, sizes=None, attention_mask=None):
        probe, images = ops.cast(self.probe, inputs.dtype), 1 if attention_mask is None else attention_mask.shape[1]
        probe = ops.broadcast_to(probe, (ops.shape(inputs)[0], images, inputs.shape[-1]))
        x = self.att(inputs, training=training, queries=probe, sizes=sizes, attention_mask=attention_mask)
        x = x + self.mlpblock(self.layernorm(x), training=training)
        return x[:, 0] if attention_mask is None else x

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[2]

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "mlp_activation": self.mlpblock.activation,
            "epsilon": self.epsilon,
        }

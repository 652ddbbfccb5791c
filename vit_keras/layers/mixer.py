"""The block of an MLP-Mixer, which mixes tokens with an MLP instead of attention.

Paper: "MLP-Mixer: An all-MLP Architecture for Vision" (arXiv 2105.01601), section 2.
Reference: google-research/vision_transformer, `vit_jax/models_mixer.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from ..backend import ops
from ._base import Composite, LayerNormalization, register, token_width
from .mlp import MlpBlock


@register
class MixerBlock(Composite):
    """An MLP across the tokens of each channel, then one across the channels of each token (paper, equation 1)."""

    tokens_mlp_dim: int
    mlp_dim: int
    dropout: float = 0.0
    activation: str = "gelu_tanh"
    """See `MlpBlock`."""
    epsilon: float = 1e-6

    is_repeated: ClassVar[bool] = True  # in a model, with other values

    def setup(self) -> None:
        mlp, norm = {"activation": self.activation, "epsilon": 1e-6}, LayerNormalization
        self.token_mixing: MlpBlock = self.part(MlpBlock, "token_mixing", **mlp, mlp_dim=self.tokens_mlp_dim)
        self.channel_mixing: MlpBlock = self.part(MlpBlock, "channel_mixing", **mlp)
        self.layernorm1: Any = self.part(norm, "LayerNorm_0", epsilon=self.epsilon)
        self.layernorm2: Any = self.part(norm, "LayerNorm_1", epsilon=self.epsilon)

    def build(self, input_shape: Any) -> None:
        width = token_width(self, input_shape)
        tokens = input_shape[1]
        if tokens is None:
            raise ValueError(
                f"{self.name} needs a fixed number of tokens, because a Mixer has weights for each. Give the model a "
                f"fixed image size. Received: input shape {tuple(input_shape)}"
            )
        self.input_spec: Any = keras.layers.InputSpec(shape=(None, tokens, width))
        self.layernorm1.build(input_shape)
        self.token_mixing.build((input_shape[0], width, tokens))
        self.layernorm2.build(input_shape)
        self.channel_mixing.build(input_shape)
        self.change_as_configured()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        x = ops.transpose(self.layernorm1(inputs), (0, 2, 1))
        x = inputs + ops.transpose(self.token_mixing(x, training=training), (0, 2, 1))
        return x + self.channel_mixing(self.layernorm2(x), training=training)

"""The encoder block: attention and MLP, each with a layer normalization and a residual around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from .._internal.tap import is_tapped, visit
from .._internal.validate import check_remat
from ._base import Dropout, LayerNormalization, one_or_all, register, token_width
from .attention import MultiHeadSelfAttention, Switches
from .mlp import LayerScale, MlpBlock


@register
class TransformerBlock(Switches):
    """An encoder block (paper, equations 2 and 3); most fields are those of `ViTConfig` with the same names.

    Call arguments:
        inputs: Tokens.
        rope: Sines and cosines of `RotaryPositions`, or `None`.
        attention_mask: See `MultiHeadSelfAttention`.
        return_attention_scores: Whether to also return the scores, last.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; the scores are `(batch, num_heads, tokens, tokens)`.

    Raises:
        ValueError: `remat` together with dropout or stochastic depth.

    Example:
        >>> block = TransformerBlock(num_heads=4, mlp_dim=64, dropout=0.1)
        >>> tuple(block(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

    num_heads: int
    mlp_dim: int
    dropout: float = 0.0
    dim_head: int | None = None
    attention_dropout: float = 0.0
    mlp_activation: str = "gelu_tanh"
    epsilon: float = 1e-6
    remat: bool = False
    layer_scale: float | None = None
    gated_mlp: bool = False
    mlp_norm: bool = False
    post_norm: bool = False
    stochastic_depth: float = 0.0
    """Rate at which training drops each branch, independently for each image. The remaining branches are scaled up to
    compensate (arXiv 1603.09382)."""

    is_repeated: ClassVar[bool] = True  # in a model, with other values

    def setup(self) -> None:
        check_remat(self)
        # The numbers in these names are those of Google's files, which count all modules of a block.
        self.att: MultiHeadSelfAttention = self.part(
            MultiHeadSelfAttention, "MultiHeadDotProductAttention_1", dropout=self.attention_dropout
        )
        mlp = {"activation": self.mlp_activation, "gated": self.gated_mlp, "norm": self.mlp_norm}
        self.mlpblock: MlpBlock = self.part(MlpBlock, "MlpBlock_3", **mlp)
        self.layernorm1: LayerNormalization = self.part(LayerNormalization, "LayerNorm_0", epsilon=self.epsilon)
        self.layernorm2: LayerNormalization = self.part(LayerNormalization, "LayerNorm_2", epsilon=self.epsilon)
        self.dropout_layer: Dropout = self.part(Dropout, None, rate=self.dropout)
        self.layerscale1: Callable[..., Any] = keras.activations.linear
        self.layerscale2: Callable[..., Any] = keras.activations.linear
        if self.layer_scale is not None:
            self.layerscale1 = self.part(LayerScale, "LayerScale_0", initial=self.layer_scale)
            self.layerscale2 = self.part(LayerScale, "LayerScale_1", initial=self.layer_scale)
        images = {"rate": self.stochastic_depth, "noise_shape": (None, 1, 1)}  # whole ones
        self.drop_path: Dropout = self.part(Dropout, "drop_path", **images)

    def build(self, input_shape: Any) -> None:
        token_width(self, input_shape)
        scales = () if self.layer_scale is None else (self.layerscale1, self.layerscale2)
        for layer in (self.att, self.mlpblock, self.layernorm1, self.layernorm2, *scales):
            layer.build(input_shape)
        self.change_as_configured()

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        return_attention_scores: bool = False,
        rope: Any = None,
        attention_mask: Any = None,
    ) -> Any:
        return self.compute(inputs, training, return_attention_scores, rope=rope, attention_mask=attention_mask)

    def compute(self, x: Any, training: bool | None, return_attention_scores: bool, **others: Any) -> Any:
        """Return the output; with `remat`, training computes it again in the backward pass."""
        given = {name: each for name, each in others.items() if each is not None}
        if self.remat and training and not is_tapped() and not return_attention_scores:
            again = keras.remat(lambda x, *more: self.encode(x, False, False, **dict(zip(given, more))))
            return again(x, *given.values())  # nothing drops out
        return self.encode(x, training, return_attention_scores, **given)

    def encode(self, x: Any, training: bool | None, return_attention_scores: bool, **others: Any) -> Any:
        """Return the output and, if asked, the scores; `others` are arguments of the attention."""
        x = visit(self, "tokens", x)
        y, *scores = self.attend(x, training, return_attention_scores=return_attention_scores, **others)
        x = x + y  # equation 2
        x = x + self.transform(x, training)  # equation 3
        return one_or_all(visit(self, "output", x), *scores)

    def attend(self, x: Any, training: bool | None, **others: Any) -> Any:
        """Return what the attention adds to the tokens, and what else it was asked for."""
        y = visit(self, "normed", x if self.post_norm else self.layernorm1(x, training=training))
        y = self.att(y, training=training, **others)
        y, *more = y if isinstance(y, tuple) else (y,)
        y = self.layernorm1(y, training=training) if self.post_norm else y
        return self.drop_path(self.dropout_layer(self.layerscale1(y), training), training), *more

    def transform(self, x: Any, training: bool | None) -> Any:
        """Return what the MLP adds to the tokens."""
        y = self.mlpblock(x if self.post_norm else self.layernorm2(x, training=training), training=training)
        y = self.layernorm2(y, training=training) if self.post_norm else y
        return self.drop_path(self.layerscale2(y), training)

    @classmethod
    def from_config(cls, config: Any) -> Any:
        return cls(**{"mlp_activation": "gelu", **config})  # vit-keras 0.x had the exact GELU and did not write it down

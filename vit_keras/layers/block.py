"""The encoder block: attention and MLP, each with a layer normalization and a residual around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras

from .._internal.tap import is_tapped, visit
from ..config_checks import NO_REMAT_WITH_DROPOUT
from ._base import Composite, Dropout, LayerNormalization, drop_path, one_or_all, register, spec_of, token_width
from .attention import MultiHeadSelfAttention
from .merging import merge
from .mlp import LayerScale, MlpBlock


@register
class TransformerBlock(Composite):
    """An encoder block (paper, equations 2 and 3).

    Args:
        num_heads: Number of attention heads.
        mlp_dim: Hidden width of the MLP.
        dropout: Rate after the attention, after the MLP's activation and after the MLP.
        dim_head: Width of a head; `None` for `hidden_size / num_heads`.
        attention_dropout: Rate on the attention weights.
        mlp_activation: See `MlpBlock`.
        epsilon: Added to the variance in the layer normalizations.
        remat: Whether training keeps only the input of the block and computes the rest again in the backward pass
            (gradient checkpointing, arXiv 1604.06174). Excludes dropout, which Keras would sample again.
        layer_scale: Initial value of the factors on both branches (`LayerScale`), or `None`.
        gated_mlp: See `MlpBlock`.
        mlp_norm: The `norm` of `MlpBlock`.
        post_norm: Whether the layer normalizations come after the attention and the MLP instead of before them, inside
            of the residuals (arXiv 2111.09883).
        stochastic_depth: Rate at which training drops each branch, independently for each image. The remaining branches
            are scaled up to compensate (arXiv 1603.09382).
        merge_tokens: Tokens that are merged into others before the MLP (arXiv 2210.09461). Excludes `rope`.
        prefix_tokens: Tokens before the patches, which are not merged.
        **kwargs: Switches of the attention (`MultiHeadSelfAttention.SWITCHES`), such as `qkv_bias`, and the arguments
            of `keras.layers.Layer`.

    Call arguments:
        inputs: Tokens.
        rope: Sines and cosines of `RotaryPositions`, or `None`.
        sizes: Patches in each token, `(batch, tokens, 1)`, where blocks before merged tokens.
        attention_mask: See `MultiHeadSelfAttention`. Excludes `merge_tokens`.
        return_attention_scores: Whether to also return the scores, last.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; the scores are `(batch, num_heads, tokens, tokens)`. With `merge_tokens` or `sizes`: a tuple
        of the remaining tokens and their sizes.

    Raises:
        ValueError: `remat` together with dropout or stochastic depth, or `attention_mask` with `merge_tokens`.

    Example:
        >>> block = TransformerBlock(num_heads=4, mlp_dim=64, dropout=0.1)
        >>> tuple(block(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

    SWITCHES = (
        *("num_heads", "mlp_dim", "dropout", "dim_head", "attention_dropout", "mlp_activation", "epsilon", "remat"),
        *("layer_scale", "gated_mlp", "mlp_norm", "post_norm", "prefix_tokens"),
    )
    """Arguments with the same names in `ViTConfig`, in addition to those of the attention."""

    is_repeated: ClassVar[bool] = True  # in a model, with other values

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        dim_head: int | None = None,
        attention_dropout: float = 0.0,
        mlp_activation: str = "gelu_tanh",
        epsilon: float = 1e-6,
        remat: bool = False,
        layer_scale: float | None = None,
        gated_mlp: bool = False,
        mlp_norm: bool = False,
        post_norm: bool = False,
        stochastic_depth: float = 0.0,
        merge_tokens: Any = 0,
        prefix_tokens: int = 0,
        **kwargs: Any,
    ):
        switches = {name: kwargs.pop(name) for name in MultiHeadSelfAttention.SWITCHES if name in kwargs}
        super().__init__(**kwargs)
        if remat and (dropout or attention_dropout or stochastic_depth):
            raise ValueError(NO_REMAT_WITH_DROPOUT.format(dropout, attention_dropout, stochastic_depth))
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.dim_head = dim_head
        self.attention_dropout = attention_dropout
        self.epsilon = epsilon
        self.remat = remat
        self.layer_scale = layer_scale
        self.gated_mlp = gated_mlp
        self.mlp_norm = mlp_norm
        self.post_norm = post_norm
        self.merge_tokens = merge_tokens
        self.prefix_tokens = prefix_tokens
        # The numbers in these names are those of Google's files, which count all modules of a block.
        shared = {"dtype": self.dtype_policy}
        self.att: MultiHeadSelfAttention = MultiHeadSelfAttention(
            num_heads,
            dim_head,
            attention_dropout,
            epsilon=epsilon,
            name="MultiHeadDotProductAttention_1",
            **switches,
            **shared,
        )
        self.mlpblock: MlpBlock = MlpBlock(
            mlp_dim, dropout, mlp_activation, gated_mlp, mlp_norm, epsilon, name="MlpBlock_3", **shared
        )
        self.layernorm1: LayerNormalization = LayerNormalization(epsilon=epsilon, name="LayerNorm_0", **shared)
        self.layernorm2: LayerNormalization = LayerNormalization(epsilon=epsilon, name="LayerNorm_2", **shared)
        self.dropout_layer: Dropout = Dropout(dropout, **shared)
        self.layerscale1: Callable[..., Any] = keras.activations.linear
        self.layerscale2: Callable[..., Any] = keras.activations.linear
        if layer_scale is not None:
            self.layerscale1 = LayerScale(layer_scale, name="LayerScale_0", **shared)
            self.layerscale2 = LayerScale(layer_scale, name="LayerScale_1", **shared)
        self.drop_path: Dropout = drop_path(stochastic_depth, **shared)

    @property
    def mlp_activation(self) -> Any:
        """The MLP's activation, which loading weights sets."""
        if not isinstance(self.mlpblock, MlpBlock):
            raise TypeError(
                f"The MLP of {self.name!r} is a {type(self.mlpblock).__name__}, and a configuration describes an "
                "MlpBlock alone. Put it back before you copy or save the block."
            )
        return self.mlpblock.activation

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
        sizes: Any = None,
        attention_mask: Any = None,
    ) -> Any:
        if self.merge_tokens and attention_mask is not None:
            raise ValueError(f"merge_tokens={self.merge_tokens} would merge tokens that attention_mask keeps apart.")
        beside = (("rope", rope), ("sizes", sizes), ("attention_mask", attention_mask))
        given = {name: x for name, x in beside if x is not None}
        if self.remat and training and not is_tapped() and not return_attention_scores:
            forward = keras.remat(lambda x, *beside: self._forward(x, training=False, **dict(zip(given, beside))))
            return forward(inputs, *given.values())  # nothing drops out
        return self._forward(inputs, training, return_attention_scores, **given)

    def _forward(
        self, x: Any, training: bool | None, return_attention_scores: bool = False, sizes: Any = None, **beside: Any
    ) -> Any:
        if self.merge_tokens or sizes is not None:
            beside = {**beside, "sizes": sizes, "with_keys": self.merge_tokens > 0}
        x = visit(self, "tokens", x)
        normed = visit(self, "normed", x if self.post_norm else self.layernorm1(x, training=training))
        y = self.att(normed, training=training, return_attention_scores=return_attention_scores, **beside)
        y, *others = y if isinstance(y, tuple) else (y,)
        y = self.layernorm1(y, training=training) if self.post_norm else y
        x = x + self.drop_path(self.dropout_layer(self.layerscale1(y), training), training)  # equation 2
        if self.merge_tokens:
            x, sizes = merge(self, x, sizes, keys=others.pop())
        y = self.mlpblock(x if self.post_norm else self.layernorm2(x, training=training), training=training)
        y = self.layernorm2(y, training=training) if self.post_norm else y
        x = visit(self, "output", x + self.drop_path(self.layerscale2(y), training))  # equation 3
        return one_or_all(x, *([visit(self, "sizes", sizes)] if sizes is not None else []), *others)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, tokens, width = input_shape
        return batch, None if tokens is None else tokens - self.merge_tokens, width

    def compute_output_spec(
        self, inputs: Any, return_attention_scores: bool = False, sizes: Any = None, **_: Any
    ) -> Any:
        left, sizes_left = self.compute_output_shape(inputs.shape), bool(self.merge_tokens) or sizes is not None
        scores = (inputs.shape[0], self.num_heads, inputs.shape[1], inputs.shape[1])
        return spec_of(self, left, *[(*left[:2], 1)] * sizes_left, *[scores] * return_attention_scores)

    def get_config(self) -> dict[str, Any]:
        own = {**{name: getattr(self, name) for name in self.SWITCHES}, **self.att.switches()}
        varying = {"stochastic_depth": self.drop_path.rate, "merge_tokens": self.merge_tokens}
        return {**super().get_config(), **own, **varying}

    @classmethod
    def from_config(cls, config: Any) -> Any:
        return cls(**{"mlp_activation": "gelu", **config})  # vit-keras 0.x had the exact GELU and did not write it down

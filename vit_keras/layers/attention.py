"""Multi-head self-attention (paper, appendix A)."""

from __future__ import annotations

from typing import Any, ClassVar

import keras

from .._internal.tap import is_tapped, visit
from ..backend import ops
from ..backend.attention import fused_attention, has_fused_attention, in_chunks
from ._base import Composite, Dense, Dropout, LayerNormalization, one_or_all, register, token_width
from .bias import mask_bias, sum_of
from .relative import RelativePositions
from .rotary import rotate

MAX_SCORE_BYTES = 32 << 20
"""Maximum size of one image's float32 scores in a layer without a fused kernel."""


class Switches(Composite, kw_only=True):
    """Fields of the attention that a `TransformerBlock` passes on, and that `ViTConfig` has under the same names."""

    qkv_bias: bool = True
    key_bias: bool | None = None
    out_bias: bool = True
    attention_norm: bool = False
    relative_grid: tuple[int, int] | None = None
    """Patches down and across for a learned bias of each relative position (BEiT, arXiv 2106.08254), or `None`."""
    relative_resize: str = "bilinear"
    rope_interleaved: bool = False
    """Whether rotary positions rotate pairs of neighboring channels instead of the two halves of a head."""


@register
class MultiHeadSelfAttention(RelativePositions, Switches):
    """Multi-head self-attention (paper, appendix A).

    Call arguments:
        inputs: Tokens.
        rope: Sines and cosines of `RotaryPositions` for the last tokens; the tokens before them are not rotated.
        queries: Other tokens that attend to the inputs (cross-attention), `(1 or batch, queries, hidden_size)`;
            `None`: the inputs themselves.
        bias: Added to the logits; it broadcasts to `(batch, heads, queries, tokens)`.
        attention_mask: Booleans, true where a query attends to a token: `(batch, queries, tokens)`, or
            `(batch, tokens)` for all queries. `None`: everywhere.
        return_attention_scores: Whether to return `(output, scores)` instead of the output alone. The scores are the
            tensor that multiplies the values, after dropout. The softmax is computed in at least float32.
        with_keys: Whether to also return the mean of the keys over the heads, last.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; the scores are `(batch, num_heads, tokens, tokens)`.

    Raises:
        TypeError: `attention_mask` has floats.
        ValueError: `attention_mask` has a wrong shape; or `num_heads` does not divide `hidden_size`, and `dim_head` is
            `None`.

    Example:
        >>> attention = MultiHeadSelfAttention(num_heads=4)
        >>> output, scores = attention(np.zeros((1, 5, 32), "float32"), return_attention_scores=True)
        >>> tuple(scores.shape)
        (1, 4, 5, 5)
    """

    num_heads: int
    dim_head: int | None = None
    dropout: float = 0.0
    """Rate of the dropout on the attention weights."""
    epsilon: float = 1e-6

    tapped_as: ClassVar[str] = "attention"  # the name that a `tap` sees the scores under

    def build(self, input_shape: Any) -> None:
        self.hidden_size: int = token_width(self, input_shape)
        if self.dim_head is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"embedding dimension = {self.hidden_size} should be divisible by number of heads = {self.num_heads}. "
                "Change one of them, or pass dim_head."
            )
        self.projection_dim: int = self.dim_head or self.hidden_size // self.num_heads
        width, inner = self.hidden_size, self.num_heads * self.projection_dim
        key_bias = self.qkv_bias if self.key_bias is None else self.key_bias
        self.query_dense: Dense = self.part(Dense, "query", (None, width), units=inner, use_bias=self.qkv_bias)
        self.key_dense: Dense = self.part(Dense, "key", (None, width), units=inner, use_bias=key_bias)
        self.value_dense: Dense = self.part(Dense, "value", (None, width), units=inner, use_bias=self.qkv_bias)
        self.combine_heads: Dense = self.part(Dense, "out", (None, inner), units=width, use_bias=self.out_bias)
        self.dropout_layer: Dropout = self.part(Dropout, None, rate=self.dropout)
        if self.attention_norm:
            self.norm: LayerNormalization = self.part(LayerNormalization, "norm", (None, inner), epsilon=self.epsilon)
        self.build_relative_positions(input_shape[1])
        self.change_as_configured()

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        return_attention_scores: bool = False,
        rope: Any = None,
        queries: Any = None,
        bias: Any = None,
        attention_mask: Any = None,
        with_keys: bool = False,
    ) -> Any:
        asking = inputs if queries is None else queries
        # One matrix of all tokens: TensorFlow adds a bias inside a product of two matrices, but not of more axes.
        flat = ops.reshape(inputs, (-1, self.hidden_size))
        asked = flat if queries is None else ops.reshape(queries, (-1, self.hidden_size))
        query = self._heads(self.query_dense(asked), _count(asking))
        key = self._heads(self.key_dense(flat), _count(inputs))
        value = visit(self, "values", self._heads(self.value_dense(flat), _count(inputs)))
        if rope is not None:
            query, key = (rotate(x, rope, self.rope_interleaved) for x in (query, key))
        bias = sum_of(self.relative_bias(query.dtype), bias, mask_bias(attention_mask, query, key))
        if return_attention_scores or is_tapped() or queries is not None or (training and self.dropout_layer.rate):
            how = {} if bias is None else {"bias": bias}  # which a subclass' `attention` may not take
            output, scores = self.attention(query, key, value, training=training, **how)
        else:
            output, scores = self.attention_without_scores(query, key, value, training, bias), None
        output = ops.reshape(ops.transpose(output, (0, 2, 1, 3)), (-1, self.num_heads * self.projection_dim))
        output = self.norm(output, training=training) if self.attention_norm else output
        output = ops.reshape(self.combine_heads(output), (-1, _count(asking), self.hidden_size))
        keys = [ops.mean(key, axis=1)] if with_keys else []
        return one_or_all(output, *[scores] * return_attention_scores, *keys)

    def separate_heads(self, x: Any, batch_size: Any = None) -> Any:
        """Turn `(batch, tokens, heads * width)` into `(batch, heads, tokens, width)`."""
        return self._heads(x, _count(x))

    def _heads(self, x: Any, tokens: Any) -> Any:
        return ops.transpose(ops.reshape(x, (-1, tokens, self.num_heads, self.projection_dim)), (0, 2, 1, 3))

    def attention(self, query: Any, key: Any, value: Any, training: bool | None = None, bias: Any = None) -> Any:
        """Attend with queries, keys and values `(batch, heads, tokens, width)`; return the output and the scores."""
        scores = ops.matmul(query * (self.projection_dim**-0.5), ops.transpose(key, (0, 1, 3, 2)))
        scores = scores if bias is None else scores + bias
        at_least_float32 = keras.backend.result_type(scores.dtype, "float32")
        scores = ops.cast(ops.softmax(ops.cast(scores, at_least_float32), axis=-1), value.dtype)
        scores = visit(self, self.tapped_as, self.dropout_layer(scores, training=training))
        return ops.matmul(scores, value), scores

    def attention_without_scores(
        self, query: Any, key: Any, value: Any, training: bool | None = None, bias: Any = None
    ) -> Any:
        """Attend like `attention`, but return only the output, without dropout and without a large score matrix."""
        # PyTorch, and JAX on an accelerator, have a fused kernel, which does not do what a subclass' `attention` does.
        if has_fused_attention() and type(self).attention is MultiHeadSelfAttention.attention:
            return fused_attention(query, key, value, bias)

        def attend(query, key, value, *bias):
            return self.attention(query, key, value, None, *bias)[0]

        return in_chunks(attend, query, key, value, bias, most=MAX_SCORE_BYTES, training=training)

    def compute_output_shape(self, inputs_shape: Any, queries_shape: Any = None) -> Any:
        return (inputs_shape[0], *(queries_shape or inputs_shape)[1:])


def _count(tokens: Any) -> Any:
    return tokens.shape[1] or ops.shape(tokens)[1]

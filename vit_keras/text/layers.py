"""Layers of a text transformer other than its blocks: positions, causal mask and pooling."""

from __future__ import annotations

from typing import Any

import keras

from .._internal.validate import one_of
from ..backend import ops
from ..layers._base import Layer, register, token_width
from .config import POOLINGS

__all__ = ["AddTextPositions", "CausalMask", "TextPooling"]


@register
class AddTextPositions(Layer):
    """Add a learned embedding to each of `(batch, tokens, hidden_size)`, at most `context_length` tokens."""

    context_length: int

    def build(self, input_shape: Any) -> None:
        shape = (1, self.context_length, token_width(self, input_shape))
        self.pe: keras.Variable = self.add_weight(
            shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.01), name="pos_embedding"
        )

    def call(self, inputs: Any) -> Any:
        tokens = inputs.shape[1] or ops.shape(inputs)[1]
        if isinstance(tokens, int) and tokens > self.context_length:
            raise ValueError(f"A text has at most {self.context_length} tokens. Received: {tokens}")
        return inputs + ops.cast(ops.convert_to_tensor(self.pe)[:, :tokens], inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(inputs.shape, dtype=self.compute_dtype)


@register
class CausalMask(Layer):
    """Return the attention mask `(1, tokens, tokens)` that lets a token attend only to itself and earlier tokens."""

    def call(self, inputs: Any) -> Any:
        places = ops.arange(inputs.shape[1] or ops.shape(inputs)[1])
        return (places[:, None] >= places[None, :])[None]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (1, input_shape[1], input_shape[1])

    def compute_output_spec(self, inputs: Any) -> Any:
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="bool")


@register
class TextPooling(Layer):
    """Return the token that represents a text, `(batch, hidden_size)` of `(batch, tokens, hidden_size)`."""

    # `ids` are the numbers of the tokens, `(batch, tokens)`. A text without `eos_id` is read at its first token.

    pooling: str
    eos_id: int | None = None

    def setup(self) -> None:
        one_of(self.pooling, "pooling", POOLINGS)

    def call(self, inputs: Any, ids: Any) -> Any:
        if self.pooling == "last":
            return inputs[:, -1]
        ids = ops.cast(ids, "int32")
        place = ops.argmax(ids if self.pooling == "argmax" else ops.cast(ops.equal(ids, self.eos_id), "int32"), axis=-1)
        return ops.take_along_axis(inputs, ops.cast(place, "int32")[:, None, None], axis=1)[:, 0]

    def compute_output_spec(self, inputs: Any, ids: Any) -> Any:
        return keras.KerasTensor((inputs.shape[0], inputs.shape[2]), dtype=self.compute_dtype)

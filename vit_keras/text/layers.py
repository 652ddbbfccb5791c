"""Layers of a text transformer other than its blocks: positions, causal mask and pooling."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from .._internal.validate import one_of
from ..layers._base import Layer, register, token_width
from .config import POOLINGS

__all__ = ["AddTextPositions", "CausalMask", "TextPooling"]


@register
class AddTextPositions(Layer):
    """Add a learned embedding to each of `(batch, tokens, hidden_size)`, at most `context_length` tokens."""

    def __init__(self, context_length: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.context_length = context_length

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

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "context_length": self.context_length}


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

    def get_config(self) -> dict[str, Any]:  # Keras wants to see this method where a dtype policy may have been given
        return super().get_config()


@register
class TextPooling(Layer):
    """Return the token that represents a text, `(batch, hidden_size)` of `(batch, tokens, hidden_size)`."""

    # `ids` are the numbers of the tokens, `(batch, tokens)`. A text without `eos_id` is read at its first token.

    def __init__(self, pooling: str, eos_id: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.pooling: str = one_of(pooling, "pooling", POOLINGS)
        self.eos_id = eos_id

    def call(self, inputs: Any, ids: Any) -> Any:
        if self.pooling == "last":
            return inputs[:, -1]
        ids = ops.cast(ids, "int32")
        place = ops.argmax(ids if self.pooling == "argmax" else ops.cast(ops.equal(ids, self.eos_id), "int32"), axis=-1)
        return ops.take_along_axis(inputs, ops.cast(place, "int32")[:, None, None], axis=1)[:, 0]

    def compute_output_spec(self, inputs: Any, ids: Any) -> Any:
        return keras.KerasTensor((inputs.shape[0], inputs.shape[2]), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pooling": self.pooling, "eos_id": self.eos_id}

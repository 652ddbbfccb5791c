"""The text transformer, which turns tokens into features with the blocks of a Vision Transformer."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras

from .. import layers
from .._internal.validate import instance
from ..backend.keras_speed import FastModel
from ..layers._base import LayerNormalization
from .config import TextConfig
from .layers import AddTextPositions, CausalMask, TextPooling

__all__ = ["TextTransformer", "build_text"]


@keras.saving.register_keras_serializable("vit_keras")
class TextTransformer(FastModel):
    """A functional Keras model with a `TextConfig`, returned by `build_text` and `open_text`.

    Attributes:
        config: The `TextConfig` it was built from, which is saved with the model; `None` in a copy that
            `keras.models.clone_model` made.

    Example:
        >>> tower = build_text(TextConfig(num_layers=1, hidden_size=16, num_heads=2, mlp_dim=32, output_size=8))
        >>> isinstance(tower, TextTransformer), tower.output_shape
        (True, (None, 8))
    """

    config: TextConfig | None = None

    def get_config(self) -> dict[str, Any]:
        config = self.config and dataclasses.asdict(self.config)
        return {**super().get_config(), "text": config}

    @classmethod
    def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
        config = dict(config)
        text = config.pop("text", None)
        model = super().from_config(config, custom_objects)
        model.config = text and TextConfig(**text)
        return model


def build_text(config: TextConfig, *, dtype: Any = None) -> TextTransformer:
    """Build the text tower that a configuration describes, with fresh weights.

    Its layers are named as in a Vision Transformer.

    Args:
        config: The configuration.
        dtype: Keras dtype policy; `None` for the global one.

    Returns:
        A model from int32 tokens, `(batch, tokens)`, to features, `(batch, output_size)`. Where the attention is
        causal, a text may have fewer tokens than `context_length`: what follows its end changes nothing.

    Example:
        >>> tiny = TextConfig(vocab_size=50, context_length=8, num_layers=1, hidden_size=16, num_heads=2, mlp_dim=32)
        >>> build_text(tiny).output_shape
        (None, 512)
    """
    instance(config, TextConfig, "config")
    policy = keras.dtype_policies.get(dtype) if dtype is not None else keras.config.dtype_policy()
    fixed = not config.causal or config.pooling == "last"
    ids = keras.Input((config.context_length if fixed else None,), dtype="int32", name="tokens")
    normal = keras.initializers.RandomNormal(stddev=0.02)
    x = keras.layers.Embedding(
        config.vocab_size, config.hidden_size, embeddings_initializer=normal, name="embedding", dtype=policy
    )(ids)
    x = AddTextPositions(config.context_length, name="Transformer_posembed_input", dtype=policy)(x)
    mask = {"attention_mask": CausalMask(name="causal_mask", dtype=policy)(x)} if config.causal else {}
    for n in range(config.num_layers):
        block = layers.TransformerBlock(
            config.num_heads,
            config.mlp_dim,
            mlp_activation=config.mlp_activation,
            epsilon=config.epsilon,
            name=f"Transformer_encoderblock_{n}",
            dtype=policy,
        )
        x = block(x, **mask)
    x = LayerNormalization(epsilon=config.epsilon, name="Transformer_encoder_norm", dtype=policy)(x)
    x = TextPooling(config.pooling, config.eos_id, name="pooling", dtype=policy)(x, ids)
    if config.output_size is not None:
        x = keras.layers.Dense(config.output_size, use_bias=config.output_bias, name="head", dtype=policy)(x)
    model = TextTransformer(ids, x, name=config.name)
    model.config = config
    return model

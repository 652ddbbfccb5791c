"""A ViT of stock Keras layers and nothing more: the least that a start with Keras can take."""

from __future__ import annotations

from typing import Any

import keras

from . import _keras


class Positions(keras.layers.Layer):
    """Position embeddings, for which Keras has no layer."""

    def build(self, shape):
        self.embedding = self.add_weight(shape=(1, *shape[1:]), initializer="random_normal", name="embedding")

    def call(self, x):
        return x + self.embedding


def build(cell: dict[str, Any]) -> keras.Model:
    """The model with random weights; its class token is what the position embeddings make of zeros."""
    layers, hidden, heads, mlp, _ = cell["architecture"].values()
    size = cell["image_size"]
    inputs = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(hidden, 16, strides=16)(inputs)
    x = keras.layers.Reshape((-1, hidden))(x)
    x = Positions()(keras.layers.ZeroPadding1D((1, 0))(x))
    for _ in range(layers):
        y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + keras.layers.MultiHeadAttention(heads, hidden // heads)(y, y)
        y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + keras.layers.Dense(hidden)(keras.layers.Dense(mlp, activation="gelu")(y))
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(inputs, keras.layers.Dense(1000)(x[:, 0]))


def startup(cell: dict[str, Any]) -> list:
    """See `_keras`."""
    return _keras.startup(build, cell, _keras.load)


def save(cell: dict[str, Any], path: str) -> None:
    """Write the weights."""
    _keras.save(build(cell), path)

"""The MLP of a block, its activations, and the scale of its branch."""

from __future__ import annotations

import functools
import logging
from typing import Any

import keras
import numpy as np

from ..backend import ops
from ..backend.backward import has_one_pass, in_one_pass, recomputed
from ._base import Composite, Dense, Dropout, Layer, LayerNormalization, register, token_width

logger: logging.Logger = logging.getLogger("vit_keras")


@register
class MlpBlock(Composite):
    """Two dense layers with a GELU between them (paper, section 3.1).

    The activation belongs to the weights: it is saved with them, and loading weights sets it. Files of vit-keras 0.x,
    which do not store it, were made with the exact GELU.

    Input and output shape:
        `(..., hidden_size)`

    Example:
        >>> tuple(MlpBlock(mlp_dim=64)(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

    mlp_dim: int
    dropout: float = 0.0
    """Rate of the dropout after the activation and after the second layer."""
    activation: str = "gelu_tanh"
    """`"gelu_tanh"` (the reference's), `"gelu"` (exact), `"quick_gelu"` (OpenAI's `x * sigmoid(1.702 * x)`), or any
    Keras activation name."""
    gated: bool = False
    """Whether the activation is applied to a third layer, `Gate`, whose result multiplies the output of the first (GLU
    variants, arXiv 2002.05202)."""
    norm: Any = False
    """Whether there is a layer normalization before the second layer (sub-LN, arXiv 2210.06423)."""
    epsilon: float = 1e-6

    def setup(self) -> None:
        activation_function(self.activation)

    def build(self, input_shape: Any) -> None:
        width, inner = token_width(self, input_shape, ndim=None), self.mlp_dim
        bias = keras.initializers.RandomNormal(stddev=1e-6)
        first = self.part(Dense, "Dense_0", (None, width), units=inner, bias_initializer=bias)
        second = self.part(Dense, "Dense_1", (None, inner), units=width, bias_initializer=bias)
        dropouts = [self.part(Dropout, None, rate=self.dropout) for _ in range(2)]
        self.layers: list[Any] = [first, dropouts[0], second, dropouts[1]]
        if self.gated:
            self.gate: Dense = self.part(Dense, "Gate", (None, width), units=inner, bias_initializer=bias)
        if self.norm:  # of the same name in files
            self.norm = self.part(LayerNormalization, "norm", (None, inner), epsilon=self.epsilon)
        self.change_as_configured()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        dense_0, dropout_0, dense_1, dropout_1 = self.layers
        activate = functools.partial(_activate, self.activation)

        def project(x):
            x = dropout_0(x, training=training)
            return dense_1(self.norm(x, training=training) if self.norm else x)

        def activate_and_project(x, *gate):
            return project(activate(x, *gate))

        if training and has_one_pass() and self.activation in _PURE:
            activate = in_one_pass(_activate, self.activation)
        elif training and not dropout_0.rate:
            activate_and_project = recomputed(activate_and_project)
        # As one matrix of all tokens: TensorFlow computes product, bias and GELU at once for a matrix, but not for
        # more axes.
        x = ops.reshape(inputs, (-1, inputs.shape[-1]))
        gate = (self.gate(x),) if self.gated else ()
        fused = self.activation in _GELU and isinstance(dense_0, Dense) and not (training or gate)
        activated = dense_0.call_with_gelu(x, _GELU[self.activation]) if fused else None
        x = activate_and_project(dense_0(x), *gate) if activated is None else project(activated)
        x = dropout_1(x, training=training)
        return ops.reshape(x, (-1, *[size or ops.shape(inputs)[axis] for axis, size in enumerate(inputs.shape)][1:]))

    def save_own_variables(self, store: Any) -> None:
        name = self.activation if isinstance(self.activation, str) else ""  # a function stays that of the layer
        store["activation"] = np.frombuffer(name.encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        saved = bytes(np.asarray(store["activation"])).decode() if "activation" in store.keys() else "gelu"
        if saved not in ("", self.activation):
            activation_function(saved)
            logger.info("These weights were made with the activation %r: %s uses it now.", saved, self.name)
            self.activation = saved

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "norm": bool(self.norm)}


@register
class LayerScale(Layer):
    """Multiply each channel by a learned factor (CaiT, arXiv 2103.17239, section 2.1).

    Input and output shape:
        `(..., hidden_size)`

    Example:
        >>> ops.convert_to_numpy(LayerScale(0.5)(np.ones((1, 2), "float32")))
        array([[0.5, 0.5]], dtype=float32)
    """

    initial: float = 1e-5
    """Initial value of the factors."""

    def build(self, input_shape: Any) -> None:
        initializer = keras.initializers.Constant(self.initial)
        self.gamma: keras.Variable = self.add_weight(shape=(input_shape[-1],), initializer=initializer, name="gamma")

    def call(self, inputs: Any) -> Any:
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def _gelu(x: Any) -> Any:
    return ops.gelu(x, approximate=False)


def _quick_gelu(x: Any) -> Any:
    return x * ops.sigmoid(1.702 * x)


_OWN = {"gelu": _gelu, "gelu_tanh": ops.gelu, "quick_gelu": _quick_gelu}
_GELU = {"gelu": "none", "gelu_tanh": "tanh"}
"""PyTorch's names of the two forms of the GELU."""

_PURE = {*_OWN, "silu", "relu"}
"""Activations that depend on nothing but their argument, unlike possibly those that a user registered."""


def activation_function(name: str) -> Any:
    """Return an activation function by name: `"gelu"`, `"gelu_tanh"`, `"quick_gelu"`, or one of Keras'."""
    return _OWN.get(name) or keras.activations.get(name)


def _activate(name: str, x: Any, *gate: Any) -> Any:
    activation = activation_function(name)
    return activation(gate[0]) * x if gate else activation(x)

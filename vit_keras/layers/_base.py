"""What the layers share: registration, shapes of tokens, and what is computed again in the backward pass."""

from __future__ import annotations

import keras
import numpy as np
from keras import ops

from ..preprocess import GOOGLE, Preprocessing


def register(cls: type) -> type:
    """Make a layer loadable under its own name and under the one that vit-keras 0.x saved."""
    keras.saving.register_keras_serializable("vit_keras")(cls)
    keras.saving.get_custom_objects().setdefault(f"Custom>{cls.__name__}", cls)
    return cls


class EncoderBlock(keras.layers.Layer):
    """A block that remembers how the pictures of its model are prepared, and saves that if it is not Google's way.

    A user's functional model of a ViT's tensors, `keras.Model(vit.input, outputs)`, has the layers of the ViT and
    nothing else of it. `anatomy` asks the first block.
    """

    def __init__(self, preprocessing=None, **kwargs):
        super().__init__(**kwargs)
        self.preprocessing = None if preprocessing is None else Preprocessing.from_dict(preprocessing)

    def get_config(self):
        own = self.preprocessing
        is_usual = own is None or own == GOOGLE.for_channels(own.channels)
        return {**super().get_config(), **({} if is_usual else {"preprocessing": own.to_dict()})}


def token_width(layer: keras.layers.Layer, shape: tuple, ndim: int | None = 3) -> int:
    """Return the hidden size of the tokens that a layer is built for.

    Raises:
        ValueError: The shape is not `(batch, tokens, hidden_size)` with a fixed hidden size.
    """
    if (ndim is not None and len(shape) != ndim) or shape[-1] is None:
        raise ValueError(
            f"{type(layer).__name__} takes tokens of shape (batch, tokens, hidden_size) with a fixed hidden size. "
            f"Received: {tuple(shape)}"
        )
    return shape[-1]


def one_or_all(*outputs):
    """Return what a layer returns: its output, or a tuple of this and what else was asked for."""
    return outputs if outputs[1:] else outputs[0]


def symbolic(layer, *shapes):
    """Return the symbolic outputs of a layer, of these shapes."""
    return one_or_all(*(keras.KerasTensor(shape, dtype=layer.compute_dtype) for shape in shapes))


def grid_of(patches):
    """Return the cells down and across of a feature map: integers, or scalar tensors known to the graph alone."""
    return tuple(fixed or ops.shape(patches)[axis] for axis, fixed in enumerate(patches.shape))[1:3]


def places_in(where):
    """Return what positions are computed from: the grid, the places of the patches in it, and NumPy or `keras.ops`.

    Args:
        where: What the tokens were made of, `(batch, down, across, ...)`. Or, of images of several sizes in a sequence,
            `(batch, tokens, 4)`: row and column of each patch, and patches down and across of its image.

    Returns:
        As the arguments `grid`, `places` and `xp` of `vit_keras.positions.rope_sincos`.
    """
    if len(where.shape) == 3:
        row, column, down, across = (where[..., n] for n in range(4))
        return {"grid": (down, across), "places": (row, column), "xp": ops}
    grid = grid_of(where)
    return {"grid": grid, "places": None, "xp": array_module(grid)}


def array_module(grid):
    """Return NumPy for a grid that is known, `keras.ops` for one that only the graph knows."""
    return np if all(isinstance(size, int) for size in grid) else ops


class Dropout(keras.layers.Dropout):
    """Dropout that costs nothing at rate 0: on PyTorch the call of a layer takes 0.1 ms, and most rates here are 0."""

    def __call__(self, inputs, training=None):
        return super().__call__(inputs, training=training) if self.rate else inputs


def drop_path(rate: float, **options) -> Dropout:
    """Return dropout of whole images from a batch of tokens: before a residual sum, that is stochastic depth."""
    return Dropout(rate, noise_shape=(None, 1, 1), name="drop_path", **options)


class LayerNormalization(keras.layers.LayerNormalization):
    """Layer normalization whose result is computed again in the backward pass, not kept; see `recomputed`."""

    def __call__(self, inputs, training=None):
        normalize = super().__call__
        return recomputed(normalize)(inputs) if training else normalize(inputs)


def recomputed(function):
    """Return a cheap function that is computed again in the backward pass, so that what is inside it need not be kept.

    For element-wise functions: a training step takes a quarter less memory for 2 % of the time. (Of a matrix product at
    the end only the gradient is computed, which does not need its result.) PyTorch's kernels keep little by themselves.
    All tensors must be arguments: TensorFlow gives no gradient to a tensor that the function closes over (to variables
    it does).
    """
    if keras.backend.backend() not in ("tensorflow", "jax"):
        return function
    return keras.remat(lambda *x: function(*x))  # a new lambda each time: JAX would reuse the trace of a known one

"""Where the tokens are: learned, fixed and rotary position embeddings."""

from __future__ import annotations

import logging
import math

import keras
import numpy as np
from keras import ops

from ..positions import resize_grid, resize_position_embeddings, rope_sincos, sincos2d, square_grid
from ._base import array_module, grid_of, register, token_width

logger = logging.getLogger("vit_keras")


@register
class AddPositionEmbs(keras.layers.Layer):
    """Add a learned embedding to each token (paper, equation 1: `E_pos`), then drop out (appendix B.1).

    A file of weights that was saved at another image size loads all the same: its table is resampled
    to this layer's grid (`vit_keras.positions`).

    Args:
        grid: Patches down and across of the table. `None`: the patches are taken to be a square, with or without
            one class token before them.
        dropout: Rate of the dropout after the addition.
        resize: How the table is resampled to another grid: one of `vit_keras.positions.METHODS`; the default is
            Google's way.
        prefix_tokens: Rows of the table before those of the patches. `None`: as many as there are tokens besides the
            grid.

    Call arguments:
        inputs: Tokens.
        patches: What the tokens were made of, `(batch, down, across, ...)`: the table is resampled to this grid in the
            graph. Needed where the number of tokens is not fixed.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> AddPositionEmbs(grid=(14, 28))(np.zeros((1, 1 + 14 * 28, 8), "float32")).shape[1]
        393
    """

    def __init__(self, grid=None, dropout=0.0, resize="bilinear_align_corners", prefix_tokens=None, **kwargs):
        super().__init__(**kwargs)
        self.grid = None if grid is None else tuple(grid)
        self.dropout = dropout
        self.resize = resize
        self.prefix_tokens = prefix_tokens
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = token_width(self, input_shape)
        rows = input_shape[1]
        if self.grid is not None and self.prefix_tokens is not None:
            rows = self.prefix_tokens + math.prod(self.grid)
        if rows is None:
            raise ValueError(f"{self.name} needs a fixed number of tokens. Received: input shape {input_shape}")
        self.pe = self.add_weight(
            shape=(1, rows, width),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="pos_embedding",
        )

    def call(self, inputs, training=None, patches=None):
        table = self.pe if patches is None else self._table_for(grid_of(patches))
        return self.dropout_layer(inputs + ops.cast(table, inputs.dtype), training=training)

    def _table_for(self, grid):
        """The table resampled to a grid that only the graph may know, by the same matrices as in NumPy."""
        table = ops.convert_to_tensor(self.pe)
        if array_module(grid) is np and tuple(grid) == self.grid:
            return table
        width = table.shape[-1]
        prefix, patches = table[:, : self.prefix_tokens], table[0, self.prefix_tokens :]
        patches = resize_grid(ops.reshape(patches, (*self.grid, width)), grid, self.resize, xp=ops)
        return ops.concatenate([prefix, ops.reshape(patches, (1, -1, width))], axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Patches down and across of the table, as told or, for a square, as counted; `None` if unknown."""
        tokens = self.pe.shape[1]
        return self.grid or square_grid(tokens - 1) or square_grid(tokens)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.grid:
            store["grid"] = np.array(self.grid, "int32")

    def load_own_variables(self, store):
        table = np.asarray(store["0"])
        if self.patch_grid:
            grid = self.patch_grid
            source_grid = tuple(np.asarray(store["grid"]).tolist()) if "grid" in store.keys() else None
            if source_grid is None and table.shape == tuple(self.pe.shape):
                source_grid = grid
            prefix_tokens = self.pe.shape[1] - math.prod(grid)
            table = resize_position_embeddings(
                table, grid, prefix_tokens=prefix_tokens, source_grid=source_grid, method=self.resize
            )
            if source_grid != grid:
                logger.info("Resampled the position embeddings of %s to the grid %s.", self.name, grid)
        self.pe.assign(table)

    def get_config(self):
        return {
            **super().get_config(),
            "grid": self.grid,
            "dropout": self.dropout,
            "resize": self.resize,
            "prefix_tokens": self.prefix_tokens,
        }


@register
class AddSinCosPositionEmbs(keras.layers.Layer):
    """Add fixed sines and cosines of a patch's row and column (MoCo v3, arXiv 2104.02057; big_vision's `sincos2d`).

    Args:
        dropout: Rate of the dropout after the addition.

    Call arguments:
        inputs: Tokens, one for each patch.
        patches: What they were made of, `(batch, down, across, ...)`.

    Input shape:
        `(batch, down * across, hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> patches = np.zeros((1, 4, 6, 8), "float32")
        >>> tuple(AddSinCosPositionEmbs()(patches.reshape(1, 24, 8), patches=patches).shape)
        (1, 24, 8)
    """

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        token_width(self, input_shape)

    def call(self, inputs, patches, training=None):
        grid = grid_of(patches)
        table = sincos2d(grid, inputs.shape[-1], xp=array_module(grid))
        return self.dropout_layer(inputs + ops.cast(table, inputs.dtype), training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


@register
class RotaryPositions(keras.layers.Layer):
    """Sines and cosines of the rotations that tell queries and keys where they are (RoPE on patches, as in DINOv3).

    Args:
        dim_head: Width of an attention head.
        theta: Base of the periods.

    Input shape:
        What the tokens were made of, `(batch, down, across, ...)`.

    Output shape:
        `(2, down * across, dim_head)`, for `TransformerBlock`'s `rope=`.

    Example:
        >>> tuple(RotaryPositions(dim_head=64)(np.zeros((1, 4, 6, 8), "float32")).shape)
        (2, 24, 64)
    """

    def __init__(self, dim_head, theta=100.0, **kwargs):
        super().__init__(**kwargs)
        self.dim_head = dim_head
        self.theta = theta

    def build(self, input_shape):
        pass

    def call(self, patches):
        grid = grid_of(patches)
        sines_and_cosines = rope_sincos(grid, self.dim_head, self.theta, xp=array_module(grid))
        return ops.cast(ops.stack(sines_and_cosines), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        down, across = input_shape[1:3]
        return 2, None if down is None or across is None else down * across, self.dim_head

    def get_config(self):
        return {**super().get_config(), "dim_head": self.dim_head, "theta": self.theta}


def rotate(x, rope):
    """Rotate queries or keys `(batch, heads, tokens, width)` of the last tokens: the halves of a head are the pairs."""
    sin, cos = ops.cast(rope[0], x.dtype), ops.cast(rope[1], x.dtype)
    prefix = (x.shape[2] or ops.shape(x)[2]) - (rope.shape[1] or ops.shape(rope)[1])
    patches = x[:, :, prefix:]
    first, second = ops.split(patches, 2, axis=-1)
    rotated = patches * cos + ops.concatenate([-second, first], axis=-1) * sin
    return ops.concatenate([x[:, :, :prefix], rotated], axis=2)

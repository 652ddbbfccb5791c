"""Learned and fixed position embeddings, which are added to the tokens."""

from __future__ import annotations

import logging
import math
from typing import Any

import keras
import numpy as np

from ..backend import ops
from ..positions import resize_grid, resize_position_embeddings, sincos2d, square_grid
from ._base import Composite, Dropout, grid_of, places_in, register, token_width

logger: logging.Logger = logging.getLogger("vit_keras")


@register
class AddPositionEmbs(Composite):
    """Add a learned embedding to each token (paper, equation 1: `E_pos`), then apply dropout (appendix B.1).

    Weights that were saved at a different image size can be loaded: the table is resampled to this layer's grid
    (`vit_keras.positions`).

    Call arguments:
        inputs: Tokens.
        patches: The feature map of the tokens, `(batch, down, across, ...)`, to whose grid the table is resampled in
            the graph. Required if the number of tokens is not fixed.

    Input and output shape:
        `(batch, tokens, hidden_size)`

    Example:
        >>> AddPositionEmbs(grid=(14, 28))(np.zeros((1, 1 + 14 * 28, 8), "float32")).shape[1]
        393
    """

    grid: tuple[int, int] | None = None
    """Patches down and across of the table. `None`: the patches are taken to be a square, after `prefix_tokens`, or
    else with or without one class token before them."""
    dropout: float = 0.0
    """Rate of the dropout after the addition."""
    resize: str = "bilinear_align_corners"
    """Method of resampling the table, one of `vit_keras.positions.METHODS`; the default is Google's."""
    prefix_tokens: int | None = None
    """Rows of the table before those of the patches. `None`: one for each token outside of the grid."""

    def setup(self) -> None:
        self.dropout_layer: Dropout = self.part(Dropout, None, rate=self.dropout)

    def build(self, input_shape: Any) -> None:
        width = token_width(self, input_shape)
        rows = input_shape[1]
        if self.grid is not None and self.prefix_tokens is not None:
            rows = self.prefix_tokens + math.prod(self.grid)
        if rows is None:
            raise ValueError(f"{self.name} needs a fixed number of tokens. Received: input shape {input_shape}")
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.pe: keras.Variable = self.add_weight(shape=(1, rows, width), initializer=normal, name="pos_embedding")
        self.change_as_configured()

    def call(self, inputs: Any, training: bool | None = None, patches: Any = None) -> Any:
        table = self.pe if patches is None else self._table_for(grid_of(patches))
        return self.dropout_layer(inputs + ops.cast(table, inputs.dtype), training=training)

    def _table_for(self, grid: Any) -> Any:
        """Return the table resampled to a grid that may be known only in the graph, with NumPy's matrices."""
        own, table = self.patch_grid, ops.convert_to_tensor(self.pe)
        rows, width = table.shape[1:]
        if own is None:
            raise ValueError(f"The {rows} rows of {self.name} are not of a square. Pass grid=(down, across).")
        if all(isinstance(size, int) for size in grid) and tuple(grid) == own:
            return table
        prefix_tokens = rows - math.prod(own)
        prefix, patches = table[:, :prefix_tokens], table[0, prefix_tokens:]
        patches = resize_grid(ops.reshape(patches, (*own, width)), grid, self.resize, xp=ops)
        return ops.concatenate([prefix, ops.reshape(patches, (1, -1, width))], axis=1)

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Patches down and across of the table, as passed or inferred for a square; `None` if unknown."""
        prefixes = (1, 0) if self.prefix_tokens is None else (self.prefix_tokens,)
        squares = (square_grid(self.pe.shape[1] - prefix_tokens) for prefix_tokens in prefixes)
        return self.grid or next(filter(None, squares), None)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.grid:
            store["grid"] = np.array(self.grid, "int32")

    def load_own_variables(self, store: Any) -> None:
        table = np.asarray(store["0"])
        if grid := self.patch_grid:
            source = grid if table.shape == tuple(self.pe.shape) else None
            source = tuple(np.asarray(store["grid"]).tolist()) if "grid" in store.keys() else source
            how = {"prefix_tokens": self.pe.shape[1] - math.prod(grid), "source_grid": source, "method": self.resize}
            table = resize_position_embeddings(table, grid, **how)
            if source != grid:
                logger.info("Resampled the position embeddings of %s to the grid %s.", self.name, grid)
        self.pe.assign(table)


@register
class AddSinCosPositionEmbs(Composite):
    """Add fixed sines and cosines of a patch's row and column (MoCo v3, arXiv 2104.02057; big_vision's `sincos2d`).

    Call arguments:
        inputs: Tokens, one for each patch.
        patches: Their feature map, `(batch, down, across, ...)`; or their places, `(batch, tokens, 4)`: row,
            column, and patches down and across of the image.

    Input and output shape:
        `(batch, down * across, hidden_size)`

    Example:
        >>> patches = np.zeros((1, 4, 6, 8), "float32")
        >>> tuple(AddSinCosPositionEmbs()(patches.reshape(1, 24, 8), patches=patches).shape)
        (1, 24, 8)
    """

    dropout: float = 0.0
    """Rate of the dropout after the addition."""

    def setup(self) -> None:
        self.dropout_layer: Dropout = self.part(Dropout, None, rate=self.dropout)

    def build(self, input_shape: Any) -> None:
        sincos2d((1, 1), token_width(self, input_shape))  # raises where there is no table of this width
        self.change_as_configured()

    def call(self, inputs: Any, patches: Any, training: bool | None = None) -> Any:
        table = sincos2d(width=inputs.shape[-1], **places_in(patches))
        return self.dropout_layer(inputs + ops.cast(table, inputs.dtype), training=training)

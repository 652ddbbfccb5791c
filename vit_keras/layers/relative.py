"""A learned bias of the attention for each relative position (BEiT, arXiv 2106.08254)."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..backend import ops
from ..positions import relative_position_index, relative_position_rows, resize_relative_position_bias
from ._base import Layer

_index = functools.lru_cache(relative_position_index)
"""Cached by grid, for all blocks of a model; read-only."""


class RelativePositions(Layer):
    """Relative position biases of `MultiHeadSelfAttention` with a `relative_grid`."""

    def build_relative_positions(self, tokens: Any) -> None:
        """Make the table: a row for each relative position, and three for tokens before the patches, if any."""
        # `tokens=None` (not fixed) means a class token and the grid.
        if not self.relative_grid:
            return
        patches = math.prod(self.relative_grid)
        self.relative_prefix = 1 if tokens is None else tokens - patches
        if self.relative_prefix < 0:
            has = f"{self.name} has relative positions for a grid {self.relative_grid} of {patches} patches"
            raise ValueError(f"{has}. Received: {tokens} tokens")
        self._relative_index = _index(self.relative_grid, self.relative_prefix)
        shape = (relative_position_rows(self.relative_grid, self.relative_prefix), self.num_heads)
        self.relative_position_bias: Any = self.add_weight(shape, "zeros", name="relative_position_bias")

    def relative_bias(self, dtype: Any) -> Any:
        """Return the bias of the logits, `(1, heads, tokens, tokens)`, or `None` without a `relative_grid`."""
        if not self.relative_grid:
            return None
        index, table = self._relative_index, ops.convert_to_tensor(self.relative_position_bias)
        bias = ops.take(table, ops.convert_to_tensor(index.reshape(-1), like=table), axis=0)
        return ops.cast(ops.transpose(ops.reshape(bias, (1, *index.shape, self.num_heads)), (0, 3, 1, 2)), dtype)

    def save_own_variables(self, store: Any) -> None:
        super().save_own_variables(store)
        if self.relative_grid:
            store["grid"] = np.array(self.relative_grid, "int32")

    def load_own_variables(self, store: Any) -> Any:
        if not self.relative_grid:
            return super().load_own_variables(store)
        table, (down, across) = np.asarray(store["0"]), np.asarray(store["grid"]).tolist()
        table = resize_relative_position_bias(table, (down, across), self.relative_grid, self.relative_resize)
        return self.relative_position_bias.assign(table)

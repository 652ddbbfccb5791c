"""Rotary position embeddings, which rotate queries and keys by the place of their patch (RoPE, arXiv 2104.09864)."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np

from ..backend import ops
from ..positions import places_of, rope_sincos
from ._base import Layer, places_in, register


@register
class RotaryPositions(Layer):
    """Return the sines and cosines that rotate queries and keys by their positions.

    Input shape:
        The feature map of the tokens, `(batch, down, across, ...)`; or places, `(batch, tokens, 4)`: row,
        column, and patches down and across of the image.

    Output shape:
        `(2, down * across, dim_head)`, for `TransformerBlock`'s `rope=`; or `(2, batch, 1, tokens, dim_head)`.

    Example:
        >>> tuple(RotaryPositions(dim_head=64)(np.zeros((1, 4, 6, 8), "float32")).shape)
        (2, 24, 64)
    """

    dim_head: int
    """Width of an attention head."""
    theta: float = 100.0
    """Base of the periods."""
    kind: str = "centered"
    """`"centered"`, `"axial"` or `"axial_xy"`; see `vit_keras.positions.rope_sincos`."""
    reference_grid: tuple[int, int] | None = None
    """See `rope_sincos`."""
    offset: float = 0.0
    """See `rope_sincos`."""

    def call(self, patches: Any) -> Any:
        how = {"kind": self.kind, "reference_grid": self.reference_grid, "offset": self.offset}
        sines_and_cosines = rope_sincos(dim_head=self.dim_head, theta=self.theta, **how, **places_in(patches))
        rotations = ops.stack([ops.convert_to_tensor(each, like=patches) for each in sines_and_cosines])
        rotations = ops.cast(rotations, self.compute_dtype)
        return rotations if len(rotations.shape) == 3 else rotations[:, :, None]

    def compute_output_shape(self, input_shape: Any) -> Any:
        if len(input_shape) == 3:  # places
            return 2, input_shape[0], 1, input_shape[1], self.dim_head
        return 2, _count(input_shape), self.dim_head


@register
class MixedRotaryPositions(Layer):
    """Rotary positions with learned directions and frequencies for each block and head."""

    num_layers: int
    num_heads: int
    dim_head: int
    theta: float = 10.0
    seed: int | None = None

    def build(self, input_shape: Any) -> None:
        def directions(shape, dtype=None):
            sizes = self.theta ** -(np.arange(self.dim_head // 4) * 4 / self.dim_head)
            turns = keras.random.uniform((*shape[1:3], 1), maxval=2 * math.pi, seed=self.seed, dtype="float32")
            angles = ops.concatenate([turns, turns + math.pi / 2], axis=-1)[..., None]
            ways = ops.stack([ops.cos(angles), ops.sin(angles)]) * ops.convert_to_tensor(sizes, "float32")
            return ops.cast(ops.reshape(ways, shape), dtype or "float32")

        shape = (2, self.num_layers, self.num_heads, self.dim_head // 2)
        self.frequencies: Any = self.add_weight(shape=shape, initializer=directions, name="frequencies", autocast=False)

    def call(self, patches: Any) -> Any:
        where = places_in(patches)
        places = where["places"] or places_of(where["grid"], xp=where["xp"])
        places = [place.astype("float32") for place in places] if where["xp"] is np else places
        down, across = (ops.cast(ops.convert_to_tensor(place, like=patches), "float32") for place in places)
        columns, rows = (ops.cast(ways, "float32")[:, :, None] for ways in (self.frequencies[0], self.frequencies[1]))
        if len(down.shape) == 2:  # of a batch
            down, across, columns, rows = down[:, None], across[:, None], columns[:, None], rows[:, None]
        angles = ops.repeat(columns * across[..., None] + rows * down[..., None], 2, axis=-1)
        rotations = ops.cast(ops.stack([ops.sin(angles), ops.cos(angles)], axis=1), self.compute_dtype)
        return [rotations[block] for block in range(self.num_layers)]

    def compute_output_shape(self, input_shape: Any) -> Any:
        if len(input_shape) == 3:  # places
            return [(2, input_shape[0], self.num_heads, input_shape[1], self.dim_head)] * self.num_layers
        return [(2, self.num_heads, _count(input_shape), self.dim_head)] * self.num_layers


def _count(shape: Any) -> Any:
    down, across = shape[1:3]
    return None if down is None or across is None else down * across


def rotate(x: Any, rope: Any, interleaved: bool = False) -> Any:
    """Return queries or keys `(batch, heads, tokens, width)` with those of the patches, the last tokens, rotated."""
    # `rope` has sines and cosines, `(2, patches, width)`, `(2, heads, …)` or `(2, batch, 1 or heads, …)`. If
    # interleaved, neighboring channels are rotated as pairs instead of one from each half of a head.
    sin, cos = ops.cast(rope[0], x.dtype), ops.cast(rope[1], x.dtype)
    prefix = (x.shape[2] or ops.shape(x)[2]) - (rope.shape[-2] or ops.shape(rope)[-2])
    if isinstance(prefix, int) and prefix < 0:  # or the patches would repeat
        raise ValueError(f"rope= has the positions of {rope.shape[-2]} patches. Received: {x.shape[2]} tokens")
    patches = x[:, :, prefix:]
    if interleaved:
        turned = ops.reshape(ops.stack([-patches[..., 1::2], patches[..., ::2]], axis=-1), ops.shape(patches))
    else:
        first, second = ops.split(patches, 2, axis=-1)
        turned = ops.concatenate([-second, first], axis=-1)
    return ops.concatenate([x[:, :, :prefix], patches * cos + turned * sin], axis=2)

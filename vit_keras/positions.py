"""Resampling of grids in NumPy: position embeddings and images, the same on every backend.

Google's code resizes position embeddings with `scipy.ndimage.zoom(order=1)`, which is bilinear
interpolation with aligned corners (reference: google-research/vision_transformer,
`vit_jax/checkpoint.py`, `interpolate_posemb`). SciPy's own function zeroes the last row and column
for some pairs of sizes (SciPy issues 4922 and 6713: 24 to 22, 28 to 14, 32 to 16 …); this one does not.
"""

from __future__ import annotations

import math

import numpy as np


def resize_bilinear(array: np.ndarray, size: tuple[int, int], *, align_corners: bool) -> np.ndarray:
    """Resize the first two axes by bilinear interpolation, without antialiasing.

    Args:
        array: `(height, width, ...)`, any real dtype.
        size: New `(height, width)`.
        align_corners: Whether the centres of the corner cells stay where they are (Google's rule for
            position embeddings) or the outer edges do (half-pixel centres: `tf.image.resize`, the
            reference's rule for images).

    Returns:
        float64 array of shape `(*size, ...)`.

    Example:
        >>> resize_bilinear(np.array([[0.0, 2.0]]), (1, 3), align_corners=True)
        array([[0., 1., 2.]])
    """
    array = np.asarray(array, dtype=np.float64)
    for axis, target in enumerate(size):
        source = array.shape[axis]
        if source == target:
            continue
        if align_corners:
            at = np.linspace(0, source - 1, target)
        else:
            at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
        low = np.minimum(np.floor(at).astype(int), source - 1)
        high = np.minimum(low + 1, source - 1)
        weight = (at - low).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        array = np.take(array, low, axis) * (1 - weight) + np.take(array, high, axis) * weight
    return array


def resize_position_embeddings(
    table: np.ndarray, grid: tuple[int, int], *, prefix_tokens: int = 1, source_grid: tuple[int, int] | None = None
) -> np.ndarray:
    """Resample a table of position embeddings to another grid of patches, as Google does.

    Args:
        table: `(1, prefix_tokens + height * width, hidden_size)`.
        grid: Patches down and across that are wanted.
        prefix_tokens: Rows before the patches (the class token's), which stay as they are.
        source_grid: Patches down and across of `table`; `None` for a square.

    Returns:
        float32 table of shape `(1, prefix_tokens + grid[0] * grid[1], hidden_size)`.

    Raises:
        ValueError: The table's patches are not a square and `source_grid` does not say what they are.

    Example:
        >>> resize_position_embeddings(np.zeros((1, 1 + 14 * 14, 8)), (24, 12)).shape
        (1, 289, 8)
    """
    table = np.asarray(table, np.float32)
    source_grid = source_grid or square_grid(table.shape[1] - prefix_tokens)
    if source_grid is None or source_grid[0] * source_grid[1] != table.shape[1] - prefix_tokens:
        raise ValueError(
            f"A table of {table.shape[1]} position embeddings with {prefix_tokens} for the class token has "
            f"{table.shape[1] - prefix_tokens} patches, which is not "
            + ("a square grid; say which grid it is." if source_grid is None else f"the grid {source_grid}.")
        )
    if tuple(source_grid) == tuple(grid):
        return table
    prefix, patches = table[:, :prefix_tokens], table[0, prefix_tokens:]
    patches = resize_bilinear(patches.reshape(*source_grid, -1), grid, align_corners=True)
    return np.concatenate([prefix, patches.reshape(1, grid[0] * grid[1], -1).astype(np.float32)], axis=1)


def square_grid(patches: int) -> tuple[int, int] | None:
    """The square grid of so many patches, or `None` where there is none."""
    side = math.isqrt(max(patches, 0))
    return (side, side) if side and side * side == patches else None

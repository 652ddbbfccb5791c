"""Positions of patches: resampled tables of position embeddings, and computed positions.

Tables are resampled by the filters of `resampling`. Functions that take `xp` compute in NumPy (float64) or in
`keras.ops` (float32), where the sides of the grid may be scalars of a TensorFlow graph.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ._internal.validate import is_number, numbers, one_of, positive_integer
from .resampling import METHODS, apply_matrices, as_real, resize_grid, table_filter

__all__ = ["METHODS", "resize_position_embeddings", "rope_sincos", "sincos2d"]

GEOMETRIC = {"geometric": 3, "geometric_linear": 1}
"""Further methods for relative position biases (`resize_relative_position_bias`), with the degree of the spline."""


def resize_position_embeddings(
    table: np.ndarray,
    grid: tuple[int, int],
    *,
    prefix_tokens: int = 1,
    source_grid: tuple[int, int] | None = None,
    method: str = "bilinear_align_corners",
) -> np.ndarray:
    """Resample a table of position embeddings to another grid of patches.

    Args:
        table: `(1, prefix_tokens + height * width, hidden_size)`.
        grid: New `(patches down, patches across)`.
        prefix_tokens: Rows before the patches (the class token's), which are copied.
        source_grid: Patches down and across of `table`; `None` for a square.
        method: One of `METHODS`; Google's by default.

    Returns:
        float32 table of shape `(1, prefix_tokens + grid[0] * grid[1], hidden_size)`; for the same grid
        exactly the same values.

    Raises:
        ValueError: The table's patches are not a square and `source_grid` is not their grid, or the method is unknown.

    Example:
        >>> resize_position_embeddings(np.zeros((1, 1 + 14 * 14, 8)), (24, 12)).shape
        (1, 289, 8)
    """
    method = table_filter(method)
    table = numbers(table, "table", axes=3).astype(np.float32)
    source_grid = source_grid or square_grid(table.shape[1] - prefix_tokens)
    if source_grid is None or source_grid[0] * source_grid[1] != table.shape[1] - prefix_tokens:
        raise ValueError(
            f"A table of {table.shape[1]} position embeddings with {prefix_tokens} for the class token has "
            f"{table.shape[1] - prefix_tokens} patches, which is not "
            + ("a square grid. Pass source_grid=(down, across)." if source_grid is None else f"the grid {source_grid}.")
        )
    if tuple(source_grid) == tuple(grid):
        return table
    prefix, patches = table[:, :prefix_tokens], table[0, prefix_tokens:]
    patches = resize_grid(patches.reshape(*source_grid, -1), grid, method)
    return np.concatenate([prefix, patches.reshape(1, grid[0] * grid[1], -1).astype(np.float32)], axis=1)


def square_grid(patches: int) -> tuple[int, int] | None:
    """Return the square grid with a number of patches, or `None` if there is none."""
    side = math.isqrt(max(patches, 0))
    return (side, side) if side and side * side == patches else None


def sincos2d(grid: Any, width: int, temperature: float = 10000.0, *, places: Any = None, xp: Any = np) -> Any:
    """Return fixed position embeddings of sines and cosines: big_vision's `posemb_sincos_2d` (arXiv:2205.01580).

    A token's embedding is `[sin x, cos x, sin y, cos y]`, MoCo v3's order, with the frequencies
    `temperature ** -(j / (width / 4 - 1))`.

    Args:
        grid: Patches down and across; with `xp=keras.ops` possibly scalars of the graph.
        width: Hidden size, a multiple of 4 from 8 on.
        temperature: Ratio of the longest wavelength to the shortest.
        places: Row and column of each patch, as real numbers `(batch, patches)` each. `None`: those of the grid.
        xp: `numpy` or `keras.ops`.

    Returns:
        float32 of shape `(1 or batch, patches, width)`.

    Raises:
        ValueError: `width` is not a multiple of 4 from 8 on, or `temperature` is not positive.

    Example:
        >>> sincos2d((14, 14), 768).shape
        (1, 196, 768)
    """
    if not (is_number(temperature) and temperature > 0):
        raise ValueError(f"temperature must be a positive number. Received: {temperature!r}")
    if width < 8 or width % 4:
        raise ValueError(
            f"The width of sine and cosine position embeddings must be a multiple of 4, at least 8. Received: {width}"
        )
    waves = temperature ** -np.linspace(0, 1, width // 4)
    places = [axis[None] for axis in places_of(grid, xp=xp)] if places is None else places
    y, x = (axis[..., None] * as_real(waves, xp) for axis in places)
    return _float32(xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=-1), xp)


def rope_sincos(
    grid: Any,
    dim_head: int,
    theta: float = 100.0,
    kind: str = "centered",
    reference_grid: Any = None,
    offset: float = 0.0,
    *,
    places: Any = None,
    xp: Any = np,
) -> Any:
    """Return sines and cosines of rotary position embeddings on the two axes of a grid of patches.

    The angles of one axis are the patch's place times the frequencies `theta ** -(4 j / dim_head)`. Those of both axes
    fill half a head, and each angle is there twice: it rotates a pair of channels. The class token and registers are
    not rotated.

    | kind | place of a patch | axes | pairs of channels | whose |
    | --- | --- | --- | --- | --- |
    | `centered` | 2 pi times its center in [-1, 1] | y, x | one from each half of a head | DINOv3 (arXiv 2508.10104) |
    | `axial` | its row and column | y, x | neighbors | EVA-02 (arXiv 2303.11331) |
    | `axial_xy` | its row and column | x, y | neighbors | RoPE-ViT (arXiv 2403.13298), PE |

    Args:
        grid: Patches down and across; with `xp=keras.ops` possibly scalars of the graph. With `places`, those of the
            image that each patch is of: `(batch, patches)`, too.
        dim_head: Width of a head, a multiple of 4.
        theta: Base of the periods.
        kind: A kind in the table.
        reference_grid: Patches down and across of the grid that rows and columns are scaled to, or `None`.
        offset: Added to rows and columns, before they are scaled.
        places: Row and column of each patch, as real numbers `(batch, patches)` each. `None`: those of the grid.
        xp: `numpy` or `keras.ops`.

    Returns:
        Sines and cosines, float32 of shape `(patches, dim_head)` each; with `places`, `(batch, patches, dim_head)`.

    Raises:
        ValueError: `dim_head` is not a multiple of 4, or the kind is unknown.

    Example:
        >>> rope_sincos((14, 14), 64)[0].shape
        (196, 64)
    """
    one_of(kind, "kind", ("centered", "axial", "axial_xy"))
    if dim_head < 4 or dim_head % 4:
        raise ValueError(
            f"The width of a head with rotary position embeddings must be a multiple of 4. Received: {dim_head}"
        )
    if not (is_number(theta) and theta > 0):
        raise ValueError(f"theta must be a positive number. Received: {theta!r}")
    frequencies = theta ** -(np.arange(dim_head // 4) * 4 / dim_head)
    places = places_of(grid, xp=xp) if places is None else places
    if kind == "centered":
        frequencies = as_real(2 * np.pi * frequencies, xp)
        places = [(2 * place + 1 - as_real(n, xp)) / as_real(n, xp) for place, n in zip(places, grid)]
        angles = xp.concatenate([place[..., None] * frequencies for place in places] * 2, axis=-1)
    else:
        places = [place + offset for place in places]
        if reference_grid is not None:
            places = [place / as_real(n, xp) * r for place, n, r in zip(places, grid, reference_grid)]
        places = places[::-1] if kind == "axial_xy" else places
        angles = xp.concatenate([place[..., None] * as_real(frequencies, xp) for place in places], axis=-1)
        angles = xp.repeat(angles, 2, axis=-1)
    return _float32(xp.sin(angles), xp), _float32(xp.cos(angles), xp)


def places_of(grid: Any, *, xp: Any = np) -> Any:
    """Return row and column of each patch, as real numbers of shape `(grid[0] * grid[1],)`."""
    axes = [as_real(xp.arange(n), xp) for n in grid]
    return [xp.reshape(places, (-1,)) for places in xp.meshgrid(*axes, indexing="ij")]


def relative_position_rows(grid: tuple[int, int], prefix_tokens: int = 1) -> int:
    """Return the rows of a table of relative position biases."""
    prefix_tokens = positive_integer(prefix_tokens, "prefix_tokens", least=0)
    return math.prod(2 * n - 1 for n in grid) + (3 if prefix_tokens else 0)


def relative_position_index(grid: tuple[int, int], prefix_tokens: int = 1) -> np.ndarray:
    """Return the row of BEiT's table of relative position biases for each pair of tokens."""
    prefix_tokens = positive_integer(prefix_tokens, "prefix_tokens", least=0)
    y, x = np.indices(grid).reshape(2, -1)
    across = 2 * grid[1] - 1
    pairs = across * (2 * grid[0] - 1)
    index = (y[:, None] - y + grid[0] - 1) * across + x[:, None] - x + grid[1] - 1
    index = np.pad(index.astype(np.int32), (prefix_tokens, 0))
    prefix, patches = slice(None, prefix_tokens), slice(prefix_tokens, None)
    index[prefix, patches], index[patches, prefix], index[prefix, prefix] = pairs, pairs + 1, pairs + 2
    return index


def resize_relative_position_bias(
    table: np.ndarray, source_grid: tuple[int, int], grid: tuple[int, int], method: str = "geometric"
) -> np.ndarray:
    """Resample a table of relative position biases to another grid of patches."""
    method = table_filter(method, GEOMETRIC)
    table = np.asarray(table, np.float32)
    old, new = ([2 * n - 1 for n in sizes] for sizes in (source_grid, grid))
    pairs = math.prod(old)
    if table.ndim != 2 or table.shape[0] not in (pairs, pairs + 3):
        raise ValueError(
            f"The relative position biases of a grid {tuple(source_grid)} have the shape ({pairs + 3}, heads), or "
            f"({pairs}, heads) without a class token. Received: shape {table.shape}"
        )
    if old == new:
        return table
    biases = table[:pairs].reshape(*old, -1)
    if method in GEOMETRIC:
        matrices = [_geometric_matrix(source, target, GEOMETRIC[method]) for source, target in zip(old, new)]
        biases = apply_matrices(matrices, biases.astype(np.float64))
    else:
        biases = resize_grid(biases, new, method)
    return np.concatenate([biases.reshape(math.prod(new), -1).astype(np.float32), table[pairs:]])


def _geometric_matrix(source: int, target: int, degree: int) -> np.ndarray:
    """Return the matrix from values at distances in geometric progression to values at whole distances."""
    steps = source // 2
    low, high, ratio = 1.01, 1.5, 1.01
    while high - low > 1e-6:  # BEiT's own search: another one would end at another ratio
        ratio = (low + high) / 2
        low, high = (low, ratio) if (ratio**steps - 1) / (ratio - 1) > target // 2 else (ratio, high)
    right = np.cumsum(ratio ** np.arange(steps))
    knots = np.concatenate([-right[::-1], [0], right])
    wanted = np.clip(np.arange(target) - target // 2, knots[0], knots[-1])
    return _spline_basis(wanted, knots, degree) @ np.linalg.inv(_spline_basis(knots, knots, degree))


def _spline_basis(at: np.ndarray, places: np.ndarray, degree: int) -> np.ndarray:
    """Return B-splines (Cox and de Boor) that can interpolate any values at `places`: `(len(at), len(places))`."""
    # As in FITPACK, a cubic spline has no knots at the second place and the last but one ("not a knot").
    degree = min(degree, len(places) - 1)
    skip = (degree + 1) // 2
    inner = places[skip : skip + len(places) - degree - 1]
    knots = np.concatenate([[places[0]] * (degree + 1), inner, [places[-1]] * (degree + 1)])
    interval = np.clip(np.searchsorted(knots, at, side="right") - 1, degree, len(places) - 1)
    basis = np.eye(len(knots) - 1)[interval]
    for k in range(1, degree + 1):
        span = knots[k:] - knots[:-k]
        rise = np.divide(at[:, None] - knots[:-k], span, out=np.zeros((len(at), len(span))), where=span > 0)
        basis = rise[:, :-1] * basis[:, :-1] + (span[1:] > 0) * (1 - rise[:, 1:]) * basis[:, 1:]
    return basis


def _float32(value, xp):
    return value.astype(np.float32) if xp is np else value

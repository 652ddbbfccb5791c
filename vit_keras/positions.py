"""Where the patches are: resampling of position tables and patch kernels, and positions that are computed.

Every way to resample an axis is a matrix (`resampling_matrix`), so one mechanism serves a table of
position embeddings, a patch kernel (whose matrix is inverted) and a table of relative biases.
What depends on the grid of patches takes `xp`: NumPy, which computes in float64, or `keras.ops`, which
computes in float32 and where sizes may be scalars of a TensorFlow graph.

Google's code resizes position embeddings with `scipy.ndimage.zoom(order=1)`, which is bilinear
interpolation with aligned corners (reference: google-research/vision_transformer,
`vit_jax/checkpoint.py`, `interpolate_posemb`). SciPy's own function zeroes the last row and column
for some pairs of sizes (SciPy issues 4922 and 6713: 24 to 22, 28 to 14, 32 to 16 …); this one does not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from numbers import Integral
from typing import NamedTuple

import numpy as np

# A place on the old axis is a fraction whose numerator and denominator are whole numbers. The distance
# between a place and an old cell is then a difference of whole numbers and one division, so that float32
# on a device gives the weights that float64 gives here.


def _aligned_corners(i, source, target, xp):
    return i * (source - 1), xp.maximum(target - 1, 1)


def _half_pixel(i, source, target, xp):
    return (2 * i + 1) * source - target, 2 * target


def _tenth_more(i, source, target, xp):
    tenths = 10 * target + 1
    return (2 * i + 1) * 10 * source - tenths, 2 * tenths


def _triangle(distance, xp):
    return xp.maximum(1 - distance, 0)


def _cubic(distance, xp, *, a):
    distance = xp.minimum(distance, 2)
    near = 1 + distance**2 * ((a + 2) * distance - (a + 3))
    return xp.where(distance < 1, near, a * (distance - 1) * (distance - 2) ** 2)


class _Method(NamedTuple):
    place: Callable  # (i, source, target, xp) -> numerator and denominator of the place on the old axis
    kernel: Callable  # (distance in cells, xp) -> weight
    radius: int  # of the kernel, in cells
    antialias: bool = False  # whether the kernel widens as the axis shrinks; the border is then cut off, not repeated


_torch_cubic = functools.partial(_cubic, a=-0.75)
_METHODS = {
    "bilinear_align_corners": _Method(_aligned_corners, _triangle, 1),
    "bilinear": _Method(_half_pixel, _triangle, 1),
    "bilinear_antialias": _Method(_half_pixel, _triangle, 1, antialias=True),
    "bicubic": _Method(_half_pixel, _torch_cubic, 2),
    "bicubic_align_corners": _Method(_aligned_corners, _torch_cubic, 2),
    "bicubic_antialias": _Method(_half_pixel, functools.partial(_cubic, a=-0.5), 2, antialias=True),
    "bicubic_dino": _Method(_tenth_more, _torch_cubic, 2),
}

METHODS = tuple(_METHODS)
"""Ways to resample an axis, and who resizes position embeddings that way:

- `bilinear_align_corners`: Google (`scipy.ndimage.zoom(order=1)` without its zeroed edges).
- `bilinear`: half-pixel centres, no antialiasing (`tf.image.resize`, `torch.nn.functional.interpolate`);
  timm for Google's `.npz` files.
- `bilinear_antialias`: torch with `antialias=True`; SigLIP 2's NaFlex.
- `bicubic`: torch, `a = -0.75`, border cells repeated; DeiT, MAE, Hugging Face.
- `bicubic_align_corners`: the same with aligned corners; torchvision.
- `bicubic_antialias`: torch with `antialias=True`, where `a = -0.5` and weights that fall off the border
  are shared among the others; timm, open_clip, DINOv2 with registers.
- `bicubic_dino`: `bicubic` with the scale `(new + 0.1) / old`, DINO's and DINOv2's way around a rounding error.
"""

GEOMETRIC = {"geometric": 3, "geometric_linear": 1}
"""Further ways for relative position biases (`resize_relative_position_bias`), with the spline's degree."""


def resampling_matrix(source: int, target, method: str, *, xp=np):
    """The matrix that resamples an axis of `source` cells to `target` cells.

    Args:
        source: Number of cells there are.
        target: Number of cells that are wanted; with `xp=keras.ops` possibly a scalar of the graph.
        method: One of `METHODS`.
        xp: `numpy` or `keras.ops`.

    Returns:
        `(target, source)`, float64 of NumPy or float32 of the backend. Each row sums to 1.

    Raises:
        ValueError: There is no such method, or an axis without cells.

    Example:
        >>> resampling_matrix(2, 3, "bilinear_align_corners")
        array([[1. , 0. ],
               [0.5, 0.5],
               [0. , 1. ]])
    """
    place, kernel, radius, antialias = _choose(method, _METHODS)
    if source < 1 or (isinstance(target, Integral) and target < 1):
        raise ValueError(f"An axis needs at least one cell. Received: {source} cells to be made {target}")
    i = _real(xp.arange(target), xp)[:, None]
    numerator, denominator = place(i, source, _real(target, xp), xp)
    width = xp.maximum(denominator, 2 * source) if antialias else denominator
    beyond = 0 if antialias else radius
    j = _real(xp.arange(-beyond, source + beyond), xp)[None]
    weights = kernel(xp.abs((numerator - j * denominator) / width), xp)
    before, after = weights[:, :beyond], weights[:, beyond + source :]
    j, weights = j[:, beyond : beyond + source], weights[:, beyond : beyond + source]
    weights = weights + xp.where(j == 0, xp.sum(before, axis=1, keepdims=True), 0.0)
    weights = weights + xp.where(j == source - 1, xp.sum(after, axis=1, keepdims=True), 0.0)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def resize_grid(array, size, method: str, *, xp=np):
    """Resample the first two axes of an array.

    Args:
        array: `(height, width, ...)`, any real dtype.
        size: New `(height, width)`; with `xp=keras.ops` possibly scalars of the graph.
        method: One of `METHODS`.
        xp: `numpy` or `keras.ops`. Accelerators may multiply float32 matrices in fewer bits (TensorFlow on
            NVIDIA GPUs: `tf.config.experimental.enable_tensor_float_32_execution`).

    Returns:
        `(*size, ...)`, float64 of NumPy or float32 of the backend. The same size gives the same values,
        with `bicubic_dino` too if both axes keep theirs, since DINO then skips the interpolation.

    Raises:
        ValueError: There is no such method, or an axis without cells.

    Example:
        >>> resize_grid(np.array([[0.0, 2.0]]), (1, 3), "bilinear_align_corners")
        array([[0., 1., 2.]])
    """
    array = _real(array, xp)
    sources = array.shape[:2]
    matrices = [resampling_matrix(source, target, method, xp=xp) for source, target in zip(sources, size)]
    if method == "bicubic_dino":
        same = (size[0] == sources[0]) & (size[1] == sources[1])
        plain = [resampling_matrix(source, target, "bicubic", xp=xp) for source, target in zip(sources, size)]
        matrices = [xp.where(same, *pair) for pair in zip(plain, matrices)]
    return _apply(matrices, array, xp)


def resize_bilinear(array: np.ndarray, size: tuple[int, int], *, align_corners: bool) -> np.ndarray:
    """Resize the first two axes by bilinear interpolation, without antialiasing.

    The values of `resize_grid` by "bilinear_align_corners" or "bilinear", at an image's price: it looks at two
    cells for each new one, where a matrix looks at all (for 500 × 700 pixels to 224 × 224 three times as fast and more).

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
        grid: Patches down and across that are wanted.
        prefix_tokens: Rows before the patches (the class token's), which stay as they are.
        source_grid: Patches down and across of `table`; `None` for a square.
        method: One of `METHODS`; Google's by default.

    Returns:
        float32 table of shape `(1, prefix_tokens + grid[0] * grid[1], hidden_size)`; for the same grid
        the same values to the bit.

    Raises:
        ValueError: The table's patches are not a square and `source_grid` does not say what they are,
            or there is no such method.

    Example:
        >>> resize_position_embeddings(np.zeros((1, 1 + 14 * 14, 8)), (24, 12)).shape
        (1, 289, 8)
    """
    _choose(method, _METHODS)
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
    patches = resize_grid(patches.reshape(*source_grid, -1), grid, method)
    return np.concatenate([prefix, patches.reshape(1, grid[0] * grid[1], -1).astype(np.float32)], axis=1)


def square_grid(patches: int) -> tuple[int, int] | None:
    """The square grid of so many patches, or `None` where there is none."""
    side = math.isqrt(max(patches, 0))
    return (side, side) if side and side * side == patches else None


def resize_patch_kernel(kernel: np.ndarray, size: tuple[int, int], method: str = "bilinear") -> np.ndarray:
    """Resize the kernel of the patch embedding by the pseudo-inverse of the resizing of the patches.

    Made larger, the kernel gives for a resized patch what it gave for the patch; made smaller, it comes
    as near to that as can be ("PI-resize", FlexiViT, arXiv:2212.08013, section 3.4). The resizing of a
    patch is a Kronecker product of two axes' matrices, and so is its pseudo-inverse.

    Args:
        kernel: `(height, width, channels, hidden_size)`.
        size: New `(height, width)`.
        method: How patches are resized, one of `METHODS`: "bilinear" as in big_vision
            (`models/proj/flexi/vit.py`), "bicubic_antialias" as in timm (`resample_patch_embed`).

    Returns:
        float32 kernel of shape `(*size, channels, hidden_size)`.

    Raises:
        ValueError: There is no such method, or the kernel has not four axes.

    Example:
        >>> resize_patch_kernel(np.ones((16, 16, 3, 8)), (32, 32)).shape
        (32, 32, 3, 8)
    """
    kernel = np.asarray(kernel, np.float32)
    if kernel.ndim != 4:
        raise ValueError(
            f"A patch kernel has the shape (height, width, channels, hidden_size). Received: shape {kernel.shape}"
        )
    matrices = [resampling_matrix(source, target, method) for source, target in zip(kernel.shape[:2], size)]
    return _apply([np.linalg.pinv(matrix.T) for matrix in matrices], kernel.astype(np.float64)).astype(np.float32)


def sincos2d(grid, width: int, temperature: float = 10000.0, *, xp=np):
    """Fixed position embeddings of sines and cosines: big_vision's `posemb_sincos_2d` (arXiv:2205.01580).

    A token's embedding is `[sin x, cos x, sin y, cos y]`, MoCo v3's order, with the frequencies
    `temperature ** -(j / (width / 4 - 1))`.

    Args:
        grid: Patches down and across; with `xp=keras.ops` possibly scalars of the graph.
        width: Hidden size, a multiple of 4 from 8 on.
        temperature: Ratio of the longest wave to the shortest.
        xp: `numpy` or `keras.ops`.

    Returns:
        float32 of shape `(1, grid[0] * grid[1], width)`.

    Raises:
        ValueError: `width` is not as said.

    Example:
        >>> sincos2d((14, 14), 768).shape
        (1, 196, 768)
    """
    if width < 8 or width % 4:
        raise ValueError(f"Position embeddings of sines and cosines need a multiple of 4 from 8 on. Received: {width}")
    waves = temperature ** -np.linspace(0, 1, width // 4)
    y, x = (axis[:, None] * _real(waves, xp) for axis in _places(grid, xp))
    return _float32(xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=1), xp)[None]


def rope_sincos(grid, dim_head: int, theta: float = 100.0, *, xp=np):
    """Sines and cosines of DINOv3's rotary position embedding (arXiv:2508.10104, `RopePositionEmbedding`).

    The centres of the patches lie in [-1, 1] on both axes; the angles `2 pi y / theta ** (4 j / dim_head)`,
    then those of x, fill half a head and are repeated for the other half. A query or key `t` of a patch becomes
    `t * cos + rotated * sin` with `rotated = concatenate([-t[dim_head // 2 :], t[: dim_head // 2]])`;
    the class token and registers stay as they are.

    Args:
        grid: Patches down and across; with `xp=keras.ops` possibly scalars of the graph.
        dim_head: Width of a head, a multiple of 4.
        theta: Base of the periods.
        xp: `numpy` or `keras.ops`.

    Returns:
        Sines and cosines, float32 of shape `(grid[0] * grid[1], dim_head)` each.

    Raises:
        ValueError: `dim_head` is not a multiple of 4.

    Example:
        >>> rope_sincos((14, 14), 64)[0].shape
        (196, 64)
    """
    if dim_head < 4 or dim_head % 4:
        raise ValueError(f"Rotary position embeddings need heads whose width is a multiple of 4. Received: {dim_head}")
    frequencies = _real(2 * np.pi * theta ** -(np.arange(dim_head // 4) * 4 / dim_head), xp)
    centres = [(2 * place + 1 - _real(n, xp)) / _real(n, xp) for place, n in zip(_places(grid, xp), grid)]
    angles = xp.concatenate([centre[:, None] * frequencies for centre in centres] * 2, axis=1)
    return _float32(xp.sin(angles), xp), _float32(xp.cos(angles), xp)


def relative_position_index(grid: tuple[int, int]) -> np.ndarray:
    """Which row of BEiT's table of relative position biases belongs to each pair of tokens.

    Reference: microsoft/unilm, `beit/modeling_finetune.py` (`RelativePositionBias`), arXiv:2106.08254.

    Args:
        grid: Patches down and across; a class token comes before them.

    Returns:
        int32 of shape `(1 + h * w, 1 + h * w)`, from the attending token to the attended one. The table's
        last three rows are for class token to patch, patch to class token and class token to itself.

    Example:
        >>> relative_position_index((1, 2))
        array([[5, 3, 3],
               [4, 1, 0],
               [4, 2, 1]], dtype=int32)
    """
    y, x = np.indices(grid).reshape(2, -1)
    across = 2 * grid[1] - 1
    pairs = across * (2 * grid[0] - 1)
    index = np.empty((1 + y.size, 1 + y.size), np.int32)
    index[1:, 1:] = (y[:, None] - y + grid[0] - 1) * across + x[:, None] - x + grid[1] - 1
    index[0, :], index[:, 0], index[0, 0] = pairs, pairs + 1, pairs + 2
    return index


def resize_relative_position_bias(
    table: np.ndarray, source_grid: tuple[int, int], grid: tuple[int, int], method: str = "geometric"
) -> np.ndarray:
    """Resample a table of relative position biases to another grid of patches.

    Args:
        table: `((2h - 1) * (2w - 1) + 3, heads)`, for `relative_position_index(source_grid)`.
        source_grid: Patches down and across of `table`.
        grid: Patches down and across that are wanted.
        method: One of
            - "geometric": BEiT's (microsoft/unilm, `beit/run_class_finetuning.py`). The old distances are laid
              out in a geometric progression, dense near 0, and a cubic spline goes through them (SciPy's
              former `interp2d`; timm with `TIMM_USE_SCIPY_INTERP=1`).
            - "geometric_linear": the same with straight lines, timm's default (`resize_rel_pos_bias_table`).
            - "bilinear": Hugging Face's (`BeitRelativePositionBias`), or another of `METHODS`.

    Returns:
        float32 table for `grid`. The last three rows stay as they are, and for the same grid all do.

    Raises:
        ValueError: The table is not one of `source_grid`, or there is no such method.

    Example:
        >>> resize_relative_position_bias(np.zeros((27 * 27 + 3, 12)), (14, 14), (24, 24)).shape
        (2212, 12)
    """
    _choose(method, _METHODS | GEOMETRIC)
    table = np.asarray(table, np.float32)
    old, new = ([2 * n - 1 for n in sizes] for sizes in (source_grid, grid))
    if table.ndim != 2 or table.shape[0] != math.prod(old) + 3:
        raise ValueError(
            f"The relative position biases of a grid {tuple(source_grid)} have the shape "
            f"({math.prod(old) + 3}, heads). Received: shape {table.shape}"
        )
    if old == new:
        return table
    biases = table[:-3].reshape(*old, -1)
    if method in GEOMETRIC:
        matrices = [_geometric_matrix(source, target, GEOMETRIC[method]) for source, target in zip(old, new)]
        biases = _apply(matrices, biases.astype(np.float64))
    else:
        biases = resize_grid(biases, new, method)
    return np.concatenate([biases.reshape(math.prod(new), -1).astype(np.float32), table[-3:]])


def _geometric_matrix(source: int, target: int, degree: int) -> np.ndarray:
    """Matrix from values at distances in geometric progression to values at whole distances."""
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
    """B-splines (Cox and de Boor) whose sums can take any values at `places`: `(len(at), len(places))`.

    As in FITPACK, a cubic has no knots at the second place and the last but one ("not a knot").
    """
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


def _apply(matrices, array, xp=np):
    """Multiply the first two axes by a matrix each."""
    for axis, matrix in enumerate(matrices):
        array = xp.moveaxis(xp.tensordot(matrix, array, axes=[[1], [axis]]), 0, axis)
    return array


def _places(grid, xp):
    """Row and column of each patch, as real numbers of shape `(h * w,)`."""
    axes = [_real(xp.arange(n), xp) for n in grid]
    return [xp.reshape(places, (-1,)) for places in xp.meshgrid(*axes, indexing="ij")]


def _choose(method, methods):
    if method not in methods:
        raise ValueError(f"There is no method {method!r} to resample with; choose one of {', '.join(methods)}.")
    return methods[method]


def _real(value, xp):
    return np.asarray(value, np.float64) if xp is np else xp.cast(value, "float32")


def _float32(value, xp):
    return value.astype(np.float32) if xp is np else value

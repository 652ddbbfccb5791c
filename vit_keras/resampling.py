"""Resampling of grids: position tables, patch kernels and images, by one set of filters.

To resample an axis is to multiply by a matrix (`resampling_matrix`). One mechanism therefore serves a table of
position embeddings, a patch kernel (whose matrix is inverted), a table of relative biases and a batch of images.
Functions that take `xp` compute in NumPy (float64) or in `keras.ops`, where sizes may be scalars of a TensorFlow graph.

A filter has one name everywhere. A name without suffix has half-pixel centers and no antialiasing.

| name | tables and kernels: who resizes that way | images: whose |
| --- | --- | --- |
| `bilinear_align_corners` | Google (`scipy.ndimage.zoom(order=1)` without its zeroed edges) | |
| `bilinear` | torch, timm for Google's `.npz` files, FlexiViT's kernels | `tf.image.resize`, Google's models |
| `bilinear_antialias` | torch with `antialias=True`, SigLIP 2's NaFlex | Pillow's `BILINEAR`, torchvision |
| `bicubic` | torch (a = -0.75), DeiT, MAE, Hugging Face | |
| `bicubic_align_corners` | torch with aligned corners (a = -0.75), torchvision | |
| `bicubic_antialias` | torch with `antialias=True` (a = -0.5), timm, open_clip | Pillow's `BICUBIC`, timm, CLIP |
| `bicubic_dino` | `bicubic` with the scale `(new + 0.1) / old`: DINO, DINOv2 | |
| `lanczos` | | Pillow's `LANCZOS` |
| `box` | | Pillow's `BOX` |
| `nearest` | | Pillow's `NEAREST` |

Hyphens are accepted for underscores, and for images `bicubic`, Pillow's and timm's word for `bicubic_antialias`.
Without antialiasing, the cells at the border are repeated. With it, the kernel widens as the axis shrinks, and weights
that fall off the border are shared among the others.

Google's code resizes position embeddings with `scipy.ndimage.zoom(order=1)`, which is bilinear interpolation with
aligned corners (reference: google-research/vision_transformer, `vit_jax/checkpoint.py`, `interpolate_posemb`). SciPy's
own function zeroes the last row and column for some pairs of sizes (SciPy issues 4922 and 6713: 24 to 22, 28 to 14, 32
to 16 …); this one does not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np

from ._internal.validate import numbers, one_of

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
    """Weigh by Keys' cubic (1981)."""
    distance = xp.minimum(distance, 2)
    near = 1 + distance**2 * ((a + 2) * distance - (a + 3))
    return xp.where(distance < 1, near, a * (distance - 1) * (distance - 2) ** 2)


def _lanczos(distance, xp):
    near_zero = distance < 1e-9
    safe = xp.where(near_zero, xp.ones_like(distance), distance) * math.pi
    value = xp.where(near_zero, xp.ones_like(distance), 3 * xp.sin(safe) * xp.sin(safe / 3) / (safe * safe))
    return xp.where(distance < 3, value, xp.zeros_like(distance))


class _Filter(NamedTuple):
    place: Callable[..., Any]  # (i, source, target, xp) -> numerator and denominator of the place on the old axis
    kernel: Callable[..., Any]  # (distance in cells, xp) -> weight
    radius: int  # of the kernel, in cells
    antialias: bool = False  # whether the kernel widens as the axis shrinks; the border is then cut off, not repeated


_torch_cubic = functools.partial(_cubic, a=-0.75)
_FILTERS = {
    "bilinear_align_corners": _Filter(_aligned_corners, _triangle, 1),
    "bilinear": _Filter(_half_pixel, _triangle, 1),
    "bilinear_antialias": _Filter(_half_pixel, _triangle, 1, antialias=True),
    "bicubic": _Filter(_half_pixel, _torch_cubic, 2),
    "bicubic_align_corners": _Filter(_aligned_corners, _torch_cubic, 2),
    "bicubic_antialias": _Filter(_half_pixel, functools.partial(_cubic, a=-0.5), 2, antialias=True),
    "bicubic_dino": _Filter(_tenth_more, _torch_cubic, 2),
    "lanczos": _Filter(_half_pixel, _lanczos, 3, antialias=True),
}


def _nearest(start, count, source, target, xp, dtype):
    """Pick the cell under the center of each new one; added up as Pillow does, which decides the ties."""
    step = as_real(source, xp, dtype) / as_real(target, xp, dtype)
    rows = as_real(xp.arange(start + count), xp, dtype)
    cells = xp.floor(xp.cumsum(xp.where(xp.equal(rows, 0), step / 2, step))[start:])[:, None]
    return as_real(xp.equal(as_real(xp.arange(source), xp, dtype)[None], cells), xp, dtype)


def _box(start, count, source, target, xp, dtype):
    """Average the cells under each new one, by Pillow's arithmetic, which decides the ties."""
    scale = as_real(source, xp, dtype) / as_real(target, xp, dtype)
    center = ((as_real(xp.arange(count), xp, dtype) + (as_real(start, xp, dtype) + 0.5)) * scale)[:, None]
    j = as_real(xp.arange(source), xp, dtype)[None]
    stretch = xp.maximum(scale, 1.0)
    first, end = (xp.floor(center + side * stretch + 0.5) for side in (-0.5, 0.5))
    distance = (j - center + 0.5) * (1 / stretch)
    return as_real((j >= first) & (j < end) & (distance > -0.5) & (distance <= 0.5), xp, dtype)


_PILLOWS = {"box": _box, "nearest": _nearest}

METHODS = tuple(name for name in _FILTERS if name != "lanczos")
"""Names of the filters for position tables and patch kernels."""

PICTURES = ("bilinear", "bilinear_antialias", "bicubic_antialias", "lanczos", "box", "nearest")
"""Names of the filters for images."""


def table_filter(name: Any, more: Iterable[str] = ()) -> str:
    """Return the name of a filter for position tables and patch kernels, in one spelling, or raise a ValueError."""
    return _method(name, (*METHODS, *more))


def picture_filter(name: Any) -> str:
    """Return the name of a filter for images, in one spelling, or raise a ValueError."""
    # Here "bicubic" means Pillow's, "bicubic_antialias".
    known = _underscored(name)
    known = "bicubic_antialias" if known == "bicubic" else known
    return known if known in PICTURES else one_of(name, "interpolation", PICTURES)


def _method(name, names):
    return one_of(_underscored(name), "method", names)


def _underscored(name):
    return name.replace("-", "_") if isinstance(name, str) else name


def resampling_matrix(
    source: Any, target: Any, method: str, *, rows: tuple[Any, int] | None = None, xp: Any = np, dtype: Any = "float32"
) -> Any:
    """Return the matrix that resamples an axis of `source` cells to `target` cells."""
    method = _method(method, (*_FILTERS, *_PILLOWS))
    if any(isinstance(cells, Integral) and cells < 1 for cells in (source, target)):
        raise ValueError(f"An axis needs at least one cell. Received: {source} cells to be made {target}")
    start, count = (0, target) if rows is None else rows
    if method in _PILLOWS:
        weights = _PILLOWS[method](start, count, source, target, xp, dtype)
        return weights / xp.sum(weights, axis=1, keepdims=True)
    place, kernel, radius, antialias = _FILTERS[method]
    old, new = as_real(source, xp, dtype), as_real(target, xp, dtype)
    i = as_real(xp.arange(count), xp, dtype)[:, None] + as_real(start, xp, dtype)
    numerator, denominator = place(i, old, new, xp)
    width = xp.maximum(denominator, 2 * old) if antialias else denominator
    beyond = 0 if antialias else radius
    j = as_real(xp.arange(-beyond, source + beyond), xp, dtype)[None]
    weights = kernel(xp.abs((numerator - j * denominator) / width), xp)
    before, after = weights[:, :beyond], weights[:, beyond + source :]
    j, weights = j[:, beyond : beyond + source], weights[:, beyond : beyond + source]
    if beyond > 1:  # else one cell is left at the border, which the sum makes 1: this would only take memory
        weights = weights + xp.where(xp.equal(j, 0), xp.sum(before, axis=1, keepdims=True), 0.0)
        weights = weights + xp.where(xp.equal(j, old - 1), xp.sum(after, axis=1, keepdims=True), 0.0)
    return weights / xp.sum(weights, axis=1, keepdims=True)


def resize_grid(array: Any, size: Any, method: str, *, xp: Any = np) -> Any:
    """Resample the first two axes of an array."""
    array = as_real(numbers(array, "array", axes=2) if xp is np else array, xp)
    return apply_matrices(resizing_matrices(array.shape[:2], size, method, xp=xp), array, xp)


def resizing_matrices(source: Any, target: Any, method: str, *, xp: Any = np) -> Any:
    """Return the two matrices of `resize_grid`: from old to new rows, and from old to new columns."""
    # With `xp=keras.ops`, the sizes `(height, width)` may be scalars of the graph.
    method = table_filter(method)
    matrices = [resampling_matrix(*axis, method, xp=xp) for axis in zip(source, target)]
    if method == "bicubic_dino":
        same = xp.logical_and(xp.equal(target[0], source[0]), xp.equal(target[1], source[1]))
        plain = [resampling_matrix(*axis, "bicubic", xp=xp) for axis in zip(source, target)]
        matrices = [xp.where(same, *pair) for pair in zip(plain, matrices)]
    return matrices


def resize_bilinear(
    array: np.ndarray, size: tuple[int, int], *, align_corners: bool, rows: slice = slice(None)
) -> np.ndarray:
    """Resize the first two axes by bilinear interpolation, without antialiasing."""
    array = np.asarray(array)
    parts = (rows, slice(None))
    neighbors = [_neighbors(*axis, align_corners) for axis in zip(array.shape, size, parts)]
    array = array if neighbors[0] else array[rows]
    for axis, pair in enumerate(neighbors):  # first leave out the cells that no new one reads: most of a photograph
        if pair is not None and len(pair.read) < array.shape[axis]:
            array = np.take(array, pair.read, axis)
    array = array.astype(np.float64)
    for axis, pair in enumerate(neighbors):
        if pair is not None:
            inner = array.shape[2:] if axis else (1,) * (array.ndim - 1)  # NumPy is slow at rows of three channels
            weight = np.repeat(pair.weight, math.prod(inner)).reshape(-1, *inner)
            before, after = (np.take(array, places, axis) for places in (pair.low, pair.high))
            before *= 1 - weight
            after *= weight
            array = np.add(before, after, out=before)
    return array


class _Neighbors(NamedTuple):
    read: np.ndarray  # the old cells that are read, in order
    low: np.ndarray  # for each new cell the place in `read` of the old one before it
    high: np.ndarray  # and of the one after it
    weight: np.ndarray  # of the one after it


def _neighbors(source: int, target: int, part: slice, align_corners: bool) -> _Neighbors | None:
    """Return which old cells linear interpolation reads for each new cell of a part; `None` if nothing changes."""
    if source == target:
        return None
    if align_corners:
        at = np.linspace(0, source - 1, target)
    else:
        at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    at = at[part]
    low = np.minimum(np.floor(at).astype(int), source - 1)
    high = np.minimum(low + 1, source - 1)
    read, places = np.unique(np.concatenate([low, high]), return_inverse=True)
    return _Neighbors(read, places[: len(at)], places[len(at) :], at - low)


def resize_patch_kernel(kernel: np.ndarray, size: tuple[int, int], method: str = "bilinear") -> np.ndarray:
    """Resize the kernel of the patch embedding by the pseudo-inverse of the matrix that resizes patches."""
    method = table_filter(method)
    kernel = np.asarray(kernel, np.float32)
    if kernel.ndim != 4:
        raise ValueError(
            f"A patch kernel has the shape (height, width, channels, hidden_size). Received: shape {kernel.shape}"
        )
    matrices = [resampling_matrix(source, target, method) for source, target in zip(kernel.shape[:2], size)]
    return apply_matrices([np.linalg.pinv(matrix.T) for matrix in matrices], kernel.astype(np.float64)).astype(
        np.float32
    )


def apply_matrices(matrices: Any, array: Any, xp: Any = np) -> Any:
    """Return an array with each of its first two axes multiplied by a matrix."""
    for axis, matrix in enumerate(matrices):
        array = xp.moveaxis(xp.tensordot(matrix, array, axes=[[1], [axis]]), 0, axis)
    return array


def as_real(value: Any, xp: Any, dtype: Any = "float32") -> Any:
    """Return real numbers: float64 of NumPy, or a tensor of `dtype`."""
    return np.asarray(value, np.float64) if xp is np else xp.cast(value, dtype)

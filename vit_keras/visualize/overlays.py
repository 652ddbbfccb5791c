"""Overlay maps on images, in the style of this package, the ViT paper or vit-keras 0.2."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from .._internal.validate import as_array, numbers, size_pair
from ..preprocess.images import read
from ..preprocess.pixels import gray
from ..resampling import resize_bilinear
from .colors import Clip, Cmap, color, limits_of, percentiles, stretch

__all__ = ["mass_mask", "overlay", "paper_style", "upsample", "vit_keras_style"]


def overlay(
    image: Any,
    heat: np.ndarray,
    *,
    cmap: Cmap = "inferno",
    alpha: float = 0.75,
    clip: Clip = (0, 99),
    interpolation: str = "bilinear",
) -> np.ndarray:
    """Overlay a map on an image so that both stay readable.

    The map is stretched between two of its percentiles, because one patch that draws all attention would otherwise
    leave the rest black. It colors a dimmed, half gray copy of the image, more opaque where it is higher.

    Args:
        image: An image: an array `(height, width)` or `(height, width, 1, 3 or 4)` of 8 bits or of floats, a PIL
            image, or anything else that `vit_keras.utils.read` reads. The map covers it from edge to edge.
        heat: `(down, across)`, any scale, or a batch of one map. NaN is left without color.
        cmap: `"inferno"` or the name of another color map of Matplotlib; or a function of an array of values in [0, 1]
            to colors `(..., 3)` or `(..., 4)` in [0, 1].
        alpha: Opacity of the highest value, in [0, 1].
        clip: Percentiles of the map that become the lowest and the highest color; a number is the upper one. `"inner"`:
            the lowest value, and the highest that is at most three interquartile ranges above the upper quartile.
        interpolation: `"bilinear"`, or `"nearest"` to show the patches as they are.

    Returns:
        uint8 `(height, width, 3)`. A constant map dims the image and does not color it.

    Raises:
        ValueError: An argument has a shape or a value that cannot be drawn.

    Example:
        >>> overlay(np.zeros((224, 224, 3), "uint8"), np.eye(14)).shape
        (224, 224, 3)
    """
    return lay(as_picture(image), stretch(as_map(heat), clip), cmap, alpha, interpolation)


def paper_style(image: Any, heat: np.ndarray, *, clip: Clip = 100) -> np.ndarray:
    """Draw a map as the ViT paper does (Figure 6 and appendix D.8): the image is visible where the map is high.

    The map over its maximum is resized with a Lanczos filter to 8 bits, blurred by one patch and stretched to the full
    range. It is the opacity of the image over black (M. Minderer in google-research/vision_transformer, discussion 27).

    Args:
        image: See `overlay`.
        heat: See `overlay`.
        clip: Percentiles of the map that become black and the full image; a number is the upper one. The paper's is
            100, the maximum. A lower one keeps a few strong patches from leaving the rest in the dark.

    Returns:
        uint8 `(height, width, 3)`. A constant map leaves the image unchanged, a map of zeros gives black.

    Raises:
        ValueError: The map or the image has a shape that cannot be drawn, or `clip` is not two percentiles.

    Example:
        >>> paper_style(np.zeros((224, 448, 3), "uint8"), np.ones((14, 28))).shape
        (224, 448, 3)
    """
    pixels, share = as_picture(image), np.clip(_share(as_map(heat), clip), 0, 1).astype("float32")
    (height, width), (down, across) = pixels.shape[:2], share.shape
    # Pillow blurs as far down as across, so where the patches are not square the mask is made as if they were.
    side = max(1, round(math.sqrt(height / down * width / across)))
    square = height * across == width * down
    size = (width, height) if square else (side * across, side * down)
    mask = np.asarray(Image.fromarray(share).resize(size, Image.Resampling.LANCZOS))
    mask = Image.fromarray((np.clip(mask, 0, 1) * 255).astype("uint8")).filter(ImageFilter.GaussianBlur(side))
    mask = np.asarray(mask.resize((width, height), Image.Resampling.BILINEAR), "float32")
    mask = (mask - mask.min()) / np.ptp(mask) if np.ptp(mask) else mask / 255
    return np.rint(pixels * mask[..., None]).astype("uint8")


def vit_keras_style(image: Any, heat: np.ndarray) -> np.ndarray:
    """Draw a map as vit-keras 0.2 did: the image times the map over its maximum, to within one level of 255.

    Args:
        image: See `overlay`.
        heat: See `overlay`.

    Returns:
        uint8 `(height, width, 3)`. A constant map leaves the image unchanged, a map of zeros gives black.

    Raises:
        ValueError: The map or the image has a shape that cannot be drawn.

    Example:
        >>> vit_keras_style(np.full((4, 6, 3), 200, "uint8"), np.array([[0.5, 1.0]]))[0, :, 0]
        array([100, 100, 133, 166, 200, 200], dtype=uint8)
    """
    pixels = as_picture(image)
    mask = upsample(np.clip(_share(as_map(heat)), 0, 1), pixels.shape[:2])
    return (mask[..., None] * pixels).astype("uint8")


def mass_mask(maps: np.ndarray, mass: float = 0.6) -> np.ndarray:
    """Return the smallest set of patches that holds a share of each map (DINO's `visualize_attention.py`).

    Args:
        maps: `(..., down, across)`, not negative.
        mass: Share to keep, in (0, 1).

    Returns:
        bool, of the same shape.

    Raises:
        ValueError: `mass` is out of range.

    Example:
        >>> mass_mask(np.array([[0.5, 0.3], [0.15, 0.05]]), 0.7)
        array([[ True,  True],
               [False, False]])
    """
    if not 0 < mass < 1:
        raise ValueError(f"mass must be between 0 and 1. Received: {mass}")
    maps = numbers(maps, "maps", axes=2)
    flat = maps.astype("float64").reshape(*maps.shape[:-2], -1)
    order = np.argsort(flat, axis=-1, kind="stable")
    rising = np.take_along_axis(flat, order, axis=-1)
    total = rising.sum(axis=-1, keepdims=True)
    kept = np.cumsum(rising, axis=-1) > (1 - mass) * total
    mask = np.zeros(flat.shape, bool)
    np.put_along_axis(mask, order, kept, axis=-1)
    return mask.reshape(maps.shape)


def upsample(maps: np.ndarray, size: tuple[int, int], interpolation: str = "bilinear") -> np.ndarray:
    """Resize maps to the size of an image.

    Args:
        maps: `(..., down, across)`.
        size: `(height, width)`.
        interpolation: `"bilinear"`, with half-pixel centers (as `cv2.resize` and `tf.image.resize` do), or `"nearest"`.

    Returns:
        float32 `(..., height, width)`.

    Raises:
        ValueError: The arguments are not of these kinds.

    Example:
        >>> upsample(np.array([[0.0, 1.0]]), (1, 4))
        array([[0.  , 0.25, 0.75, 1.  ]], dtype=float32)
    """
    maps = numbers(maps, "maps").astype("float64")
    if maps.ndim < 2 or 0 in maps.shape:
        raise ValueError(f"maps must have the shape (..., down, across). Received: {maps.shape}")
    size = size_pair(size, "size")
    if interpolation == "nearest":
        rows, columns = (
            ((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, maps.shape[-2:], strict=True)
        )
        return maps[..., rows[:, None], columns].astype("float32")
    if interpolation != "bilinear":
        raise ValueError(f"interpolation must be 'bilinear' or 'nearest'. Received: {interpolation!r}")
    first = np.moveaxis(maps, (-2, -1), (0, 1))
    return np.moveaxis(resize_bilinear(first, size, align_corners=False), (0, 1), (-2, -1)).astype("float32")


def as_picture(image: Any) -> np.ndarray:
    """Return an image of any kind as uint8 `(height, width, 3)`."""
    if not hasattr(image, "convert") and not isinstance(image, np.ndarray) and hasattr(image, "__array__"):
        image = as_array(image)
    with warnings.catch_warnings():  # floats in [0, 1] are fine here: nothing goes into a model
        warnings.filterwarnings("ignore", "A float image is meant", UserWarning)
        return read(image, None)


def in_size(picture: np.ndarray, size: int | tuple[int, int]) -> np.ndarray:
    """Return a uint8 image in RGB in another size: its longest side, or `(height, width)`."""
    height, width = picture.shape[:2]
    if isinstance(size, int):
        by = size / max(height, width)
        size = max(1, round(by * height)), max(1, round(by * width))
    if size == (height, width):
        return picture
    return np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BICUBIC))


def as_map(heat: Any) -> np.ndarray:
    """Return a map as float64 `(down, across)`."""
    heat = numbers(heat, "maps").astype("float64")
    if heat.ndim == 3 and len(heat) == 1:
        heat = heat[0]
    if heat.ndim != 2 or 0 in heat.shape:
        raise ValueError(f"A map must have the shape (down, across); take one of several. Received: {heat.shape}")
    return heat


def _share(heat: np.ndarray, clip: Clip = 100) -> np.ndarray:
    """Return a map over its maximum, or between two of its percentiles."""
    heat = np.where(np.isfinite(heat), heat, 0)
    if isinstance(clip, str):
        low, high = 0.0, limits_of(heat, clip)[1]
    else:
        low, high = percentiles(clip)
        low, high = (np.percentile(heat, low) if low else 0.0), np.percentile(heat, high)
    if not high > low:  # a single patch above or below the rest
        low, high = min(low, heat.min()) if low else low, heat.max()
    return (heat - low) / (high - low) if high > low else (heat > 0).astype("float64")


def lay(pixels: np.ndarray, values: np.ndarray, cmap: Cmap, alpha: float, interpolation: str) -> np.ndarray:
    """Lay values in [0, 1] over an image; see `overlay`."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be in [0, 1]. Received: {alpha}")
    values = upsample(values, pixels.shape[:2], interpolation)
    result = np.empty_like(pixels)
    for top in range(0, len(pixels), 256):  # a few rows at a time: a large photograph in floats takes a gigabyte
        rows = slice(top, top + 256)
        cover = alpha * values[rows, :, None]
        base = 0.6 * (0.5 * pixels[rows] + 0.5 * gray(pixels[rows]))
        result[rows] = np.rint(base + cover * (color(values[rows], cmap) - base))
    return result

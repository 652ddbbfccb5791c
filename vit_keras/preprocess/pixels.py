"""The range of pixels, and their luminance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._internal.validate import numbers
from .._internal.warn import warn_caller

__all__ = ["gray", "gray_levels", "pixel_range", "preprocess_inputs", "to_pixels", "to_uint8"]

_AT_ONCE = 1 << 20  # values that are in float64 at one time
_MARGIN = 64  # resampling and augmentation overshoot a little


def to_pixels(image: np.ndarray) -> np.ndarray:
    """Convert an image to pixels in [0, 255]. Its range is inferred from its dtype and values."""
    image = numbers(image, "image")
    return _conversion(image)(image)


def to_uint8(image: np.ndarray) -> np.ndarray:
    """Convert an image to 8-bit pixels: `to_pixels`, rounded and clipped.

    Example:
        >>> to_uint8(np.array([0, 65535], "uint16"))
        array([  0, 255], dtype=uint8)
    """
    image = numbers(image, "image")
    if image.dtype == np.uint8:
        return image
    convert, result = _conversion(image), np.empty(image.shape, "uint8")
    ends = convert(np.array([image.min(initial=0), image.max(initial=0)]))
    if ends[0] < (0 if image.dtype.kind in "iu" else -_MARGIN) or ends[1] > 255 + _MARGIN:
        warn_caller(
            "An image has values far outside of [0, 255], which are cut off. Scale its values first, such as those of "
            "a CT to its window."
        )
    flat, pixels = image.reshape(-1), result.reshape(-1)
    for start in range(0, flat.size, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        pixels[part] = np.clip(np.rint(convert(flat[part])), 0, 255)
    return result


def _conversion(image: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return what converts an image, or a part of it, to float64 pixels in [0, 255]; see `to_pixels`."""
    if image.dtype == bool:
        return lambda part: part * 255.0
    if not np.issubdtype(image.dtype, np.integer) and not np.issubdtype(image.dtype, np.floating):
        raise TypeError(f"Pixels are numbers. Received: an array of dtype {image.dtype}")
    if not np.isfinite(image).all():
        raise ValueError("The image has pixels that are not finite numbers.")
    if np.issubdtype(image.dtype, np.integer):
        highest = int(image.max(initial=0))
        wide, bits = image.dtype == np.uint16 or highest > 255, highest.bit_length()
        if wide and 0 < bits <= 14 and image.min() >= 0:
            warn_caller(
                f"White is 65,535 in a 16-bit image, and this one has no value above {2**bits - 1:,}: it is read as "
                f"nearly black. If it has {bits} bits, multiply it by {2 ** (16 - bits):,}."
            )
        return lambda part: part.astype("float64") / 257 if wide else part.astype("float64")
    found = pixel_range(image)
    if found != "[-1, 1]":
        warn_caller(
            f"A float image is meant to be in [-1, 1] (vit.preprocess_inputs); this one is read as {found}. "
            "Pass 8-bit pixels to be sure."
        )
    scale, offset = {"[-1, 1]": (127.5, 127.5), "[0, 1]": (255.0, 0.0), "[0, 255]": (1.0, 0.0)}[found]
    return lambda part: part.astype("float64") * scale + offset


def pixel_range(images: np.ndarray) -> str:
    """Infer the range of pixels: `"[-1, 1]"`, `"[0, 1]"` or `"[0, 255]"`."""
    images = numbers(images, "images")
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if high > 2 or np.issubdtype(images.dtype, np.integer):  # resampling may overshoot 1 a little
        return "[0, 255]"
    return "[-1, 1]" if low < 0 else "[0, 1]"


def is_plausible_range(received: tuple[float, float], expected: tuple[float, float]) -> bool:
    """Return whether pixels are within a range and not in another common one."""
    # Augmentation may exceed it a little.
    (low, high), (least, most) = received, expected
    margin = 0.25 * (most - least)
    if low < least - margin or high > most + margin:
        return False
    others = [other for other in ((0, 255), (0, 1), (-1, 1)) if max(np.abs(np.subtract(other, expected))) > 0.02]
    if any(abs(low - first) < 0.02 and abs(high - last) < 0.02 for first, last in others):
        return False
    if least >= 0 and most > 2 >= high:  # in [0, 1] or [-1, 1], as `pixel_range` has it
        return False
    return not (least < -margin and 0 <= low < 0.25 and high < 1.25)  # in [0, 1]; from 0.25 on, a bright image


def in_tensorflow_graph(images: Any) -> bool:
    """Return whether images are a TensorFlow tensor without values yet, as in `tf.data.Dataset.map`."""
    return type(images).__module__.startswith("tensorflow.") and not hasattr(images, "numpy")


def preprocess_inputs(X: Any) -> Any:
    """Convert pixels from [0, 255] to [-1, 1], the range of Google's models: `(x - 127.5) / 127.5`.

    Args:
        X: Pixels in [0, 255] of any shape and real dtype: an array, a list, a PIL image, or a tensor (also inside
            `tf.data`, on any backend). It is not changed.

    Returns:
        float32 of the same shape: a NumPy array, or a tensor if the argument is a tensor.

    Example:
        >>> preprocess_inputs(np.array([0, 255], "uint8"))
        array([-1.,  1.], dtype=float32)
    """
    if isinstance(X, (np.ndarray, np.generic, list, tuple)) or not hasattr(X, "dtype"):
        return (numbers(X, "X").astype("float32") - np.float32(127.5)) / np.float32(127.5)
    return rescaled(X, 1 / 127.5, -1.0)


def rescaled(pixels: Any, scale: Any, offset: Any) -> Any:
    """Return a tensor times a scale plus an offset, numbers or one for each channel; also inside `tf.data`."""
    from keras.layers import Rescaling

    return Rescaling(scale, offset, dtype="float32")(pixels)


def gray(image: np.ndarray) -> np.ndarray:
    """Return the luminance (ITU-R 601) of an RGB image `(..., 3)`, as `(..., 1)`.

    Example:
        >>> gray(np.full((2, 2, 3), 255.0))[0, 0]
        array([255.])
    """
    return numbers(image, "image", axes=1).astype("float64") @ np.array([[299.0], [587.0], [114.0]]) / 1000


def gray_levels(image: np.ndarray) -> np.ndarray:
    """Return the luminance of an RGB image in whole gray levels; a half goes up, on every backend."""
    return np.rint(gray(image) + 2.5e-4)

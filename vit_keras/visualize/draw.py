"""Maps and images in, pictures out: Pillow and NumPy only."""

from __future__ import annotations

import numpy as np

from ..positions import resize_bilinear

# The colour map "inferno" (by S. van der Walt and N. Smith, CC0) at 17 even steps.
INFERNO = np.array(
    [
        (0, 0, 4), (11, 7, 36), (33, 12, 74), (60, 9, 101), (87, 16, 110), (112, 25, 110), (138, 34, 106),
        (163, 44, 97), (187, 55, 84), (208, 72, 67), (227, 90, 50), (241, 113, 31), (249, 142, 9),
        (252, 172, 17), (249, 203, 53), (242, 234, 105), (252, 255, 164),
    ]
)  # fmt: skip


def overlay(image: np.ndarray, heat: np.ndarray, *, percentile: float = 99.0) -> np.ndarray:
    """Lay a map over an image so that a person can read both.

    The map is stretched from its minimum to its 99th percentile, because one patch that draws all
    attention would otherwise leave the rest black; it colours a dimmed grey copy of the image, more opaque where
    it is higher.

    Args:
        image: uint8 `(height, width, 3)`.
        heat: `(grid_h, grid_w)`, any scale.
        percentile: What is drawn in full colour and above.

    Returns:
        uint8 `(height, width, 3)`.

    Example:
        >>> overlay(np.zeros((224, 224, 3), "uint8"), np.eye(14)).shape
        (224, 224, 3)
    """
    heat = resize_bilinear(stretch(heat, percentile), image.shape[:2], align_corners=False)
    grey = (image.astype("float64") @ (0.299, 0.587, 0.114))[..., None]
    base = 0.6 * (0.5 * image + 0.5 * grey)
    alpha = 0.75 * heat[..., None]
    return np.rint((1 - alpha) * base + alpha * colour(heat)).astype("uint8")


def stretch(heat: np.ndarray, percentile: float = 99.0) -> np.ndarray:
    """Bring a map to [0, 1]: its minimum becomes 0 and its percentile 1; a constant map becomes 0."""
    heat = np.asarray(heat, "float64")
    low, high = heat.min(), np.percentile(heat, percentile)
    high = high if high > low else heat.max()  # a single patch above the rest
    return np.clip((heat - low) / (high - low), 0, 1) if high > low else np.zeros_like(heat)


def colour(values: np.ndarray) -> np.ndarray:
    """Colours in [0, 255] of shape `(*values.shape, 3)` for values in [0, 1]."""
    steps = np.linspace(0, 1, len(INFERNO))
    return np.stack([np.interp(values, steps, channel) for channel in INFERNO.T], axis=-1)

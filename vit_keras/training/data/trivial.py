"""TrivialAugment (arXiv 2103.10158) with Pillow: one operation for each image, at random, of a random strength."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

__all__ = ["OPERATIONS", "trivial_augment"]

_STRENGTHS = 31


def _moved(image: Image.Image, *matrix: float) -> Image.Image:
    """Return an image with the pixels at (a x + b y + c, d x + e y + f) of another; black where that has none."""
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)


def _enhanced(kind: type) -> Callable[[Image.Image, float], Image.Image]:
    return lambda image, x: kind(image).enhance(1 + 0.99 * x)


OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, x: image,
    "shear_x": lambda image, x: _moved(image, 1, 0.99 * x, 0, 0, 1, 0),
    "shear_y": lambda image, x: _moved(image, 1, 0, 0, 0.99 * x, 1, 0),
    "translate_x": lambda image, x: _moved(image, 1, 0, x * image.width / 7, 0, 1, 0),
    "translate_y": lambda image, x: _moved(image, 1, 0, 0, 0, 1, x * image.height / 7),
    "rotate": lambda image, x: image.rotate(135 * x, Image.Resampling.BILINEAR),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "color": _enhanced(ImageEnhance.Color),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "posterize": lambda image, x: ImageOps.posterize(image, 8 - round(6 * abs(x))),
    "solarize": lambda image, x: ImageOps.solarize(
        image,
        255 * (1 - abs(x)),  # pyright: ignore[reportArgumentType]  (it takes fractions too)
    ),
    "autocontrast": lambda image, x: ImageOps.autocontrast(image),
    "equalize": lambda image, x: ImageOps.equalize(image),
}
"""The paper's wide space, by a strength from -1 to 1; its translation, 32 pixels of 224, is a seventh of the side."""


def trivial_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Apply one of `OPERATIONS` to an image of 8 bits, gray or RGB."""
    operation = list(OPERATIONS.values())[rng.integers(len(OPERATIONS))]
    strength = rng.integers(_STRENGTHS) / (_STRENGTHS - 1)
    return operation(image, strength if rng.random() < 0.5 else -strength)

"""Example images that are drawn by code: every machine has the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._internal.validate import one_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["EXAMPLES", "example"]

_SIZE = (240, 320)
_FINER = 3  # a pixel is the mean of 3×3 points, so that edges are smooth

_Pair = tuple[float, float]
_Shape = tuple[tuple[int, int, int], str, tuple[_Pair, ...]]


def _box(left: float, top: float, right: float, bottom: float) -> tuple[_Pair, ...]:
    return (left, top), (right, top), (right, bottom), (left, bottom)


_FUR, _BRICK, _RED = (196, 128, 62), (150, 95, 75), (200, 30, 35)
_GLASS, _TIRE, _RIM = (170, 210, 230), (25, 25, 30), (170, 170, 175)
_DRAWINGS: dict[str, list[_Shape]] = {
    "cat": [
        ((150, 140, 130), "top", ()),
        ((110, 100, 90), "bottom", ()),
        (_FUR, "ellipse", ((0.5, 0.95), (0.3, 0.3))),  # the body, the head and the ears
        (_FUR, "ellipse", ((0.5, 0.52), (0.26, 0.3))),
        (_FUR, "polygon", ((0.26, 0.5), (0.28, 0.1), (0.45, 0.28))),
        (_FUR, "polygon", ((0.74, 0.5), (0.72, 0.1), (0.55, 0.28))),
        ((225, 160, 140), "polygon", ((0.3, 0.36), (0.305, 0.2), (0.39, 0.28))),
        ((225, 160, 140), "polygon", ((0.7, 0.36), (0.695, 0.2), (0.61, 0.28))),
        ((235, 215, 190), "ellipse", ((0.5, 0.66), (0.13, 0.12))),  # the muzzle and the eyes
        ((170, 200, 90), "ellipse", ((0.4, 0.47), (0.055, 0.055))),
        ((170, 200, 90), "ellipse", ((0.6, 0.47), (0.055, 0.055))),
        ((15, 15, 15), "ellipse", ((0.4, 0.47), (0.018, 0.05))),
        ((15, 15, 15), "ellipse", ((0.6, 0.47), (0.018, 0.05))),
        ((200, 110, 110), "polygon", ((0.46, 0.58), (0.54, 0.58), (0.5, 0.64))),
        *(((140, 80, 30), "polygon", _box(x, 0.24, x + 0.02, 0.34)) for x in (0.42, 0.48, 0.54)),
    ],
    "street": [
        ((160, 200, 235), "top", ()),
        ((225, 235, 240), "bottom", ()),
        ((120, 120, 125), "polygon", _box(0, 0.66, 1, 1)),  # the road, two houses and a tree
        (_BRICK, "polygon", _box(0.02, 0.2, 0.3, 0.66)),
        ((90, 60, 50), "polygon", ((0, 0.2), (0.16, 0.06), (0.32, 0.2))),
        ((200, 180, 140), "polygon", _box(0.34, 0.28, 0.58, 0.66)),
        ((40, 110, 50), "ellipse", ((0.85, 0.32), (0.13, 0.2))),
        ((95, 65, 40), "polygon", _box(0.835, 0.5, 0.865, 0.66)),
        (_RED, "polygon", _box(0.22, 0.66, 0.78, 0.82)),  # the car
        (_RED, "polygon", ((0.33, 0.66), (0.4, 0.53), (0.62, 0.53), (0.7, 0.66))),
        (_GLASS, "polygon", ((0.36, 0.655), (0.415, 0.55), (0.5, 0.55), (0.5, 0.655))),
        (_GLASS, "polygon", ((0.52, 0.655), (0.52, 0.55), (0.605, 0.55), (0.665, 0.655))),
        *((_TIRE, "ellipse", ((x, 0.82), (0.06, 0.08))) for x in (0.34, 0.66)),
        *((_RIM, "ellipse", ((x, 0.82), (0.03, 0.04))) for x in (0.34, 0.66)),
        ((250, 240, 170), "polygon", _box(0.75, 0.69, 0.78, 0.73)),
    ],
}
"""Shapes from back to front, in shares of the width and the height; the first two are the colors of the background."""

EXAMPLES = tuple(_DRAWINGS)
"""Names of the images that `example` draws."""


def example(name: str = "cat") -> np.ndarray:
    """Return an example image: a drawing of a cat, or of a street with a car, two houses and a tree.

    The image is drawn at each call. It is the same on every machine, and in the public domain (CC0). The small model
    of the package, `vit_cifar10`, classifies the first as a cat and the second as an automobile.

    Args:
        name: `"cat"` or `"street"`.

    Returns:
        uint8 array `(240, 320, 3)`.

    Raises:
        ValueError: The name is unknown.

    Example:
        >>> from PIL import Image
        >>> Image.fromarray(example("cat")).save("cat.png")
        >>> example("street").shape
        (240, 320, 3)
    """
    import numpy as np

    (above, *_), (below, *_), *shapes = _DRAWINGS[one_of(name, "name", EXAMPLES)]
    height, width = _SIZE
    down = (np.arange(height * _FINER)[:, None] + 0.5) / (height * _FINER)
    across = (np.arange(width * _FINER)[None] + 0.5) / (width * _FINER)
    points = np.round((1 - down[..., None]) * above + down[..., None] * below)
    points = np.repeat(points, width * _FINER, axis=1)
    for color, kind, places in shapes:
        if kind == "ellipse":
            (x, y), (half_width, half_height) = places
            inside = ((across - x) / half_width) ** 2 + ((down - y) / half_height) ** 2 <= 1
        else:  # a point is inside where a line to its left crosses an odd number of edges
            inside = np.zeros(points.shape[:2], bool)
            for (x0, y0), (x1, y1) in zip(places, (*places[1:], places[0])):
                if y0 != y1:
                    inside ^= ((y0 > down) != (y1 > down)) & (across < (x1 - x0) * (down - y0) / (y1 - y0) + x0)
        points[inside] = color
    pixels = points.reshape(height, _FINER, width, _FINER, 3).mean(axis=(1, 3))
    return np.round(pixels).astype("uint8")

"""Data sets that are drawn: arrows and letters, whose labels change in a mirror, and polygons, whose labels do not.

    python -m benchmarks.learn.drawn arrows FOLDER [--count 450]

writes images of each class to a folder, `FOLDER/class/number.png`, for example for `benchmarks/lab/recipes.py`.
"""

from __future__ import annotations

import argparse
import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SIZE = 96

_Draw = Callable[[np.random.Generator, Any, int], None]


def _arrow(rng: np.random.Generator, draw: Any, number: int) -> None:
    """Draw an arrow to the right, down, to the left, or up."""
    along = np.array([math.cos(number * math.pi / 2), math.sin(number * math.pi / 2)])
    across, middle, length = along[::-1] * [-1, 1], SIZE // 2 + rng.integers(-10, 11, 2), rng.integers(18, 36)
    color, tip, tail = _color(rng), middle + length * along, middle - length * along
    draw.line([*tail, *tip], color, width=6)
    sides = [middle + 0.4 * length * (along + side * across) for side in (1, -1)]
    draw.polygon([tuple(point) for point in (tip, *sides)], color)


def _letter(letters: str) -> _Draw:
    """Return a function that draws one of some letters."""

    def draw_letter(rng: np.random.Generator, draw: Any, number: int) -> None:
        font = ImageFont.load_default(int(rng.integers(40, 80)))
        draw.text(_middle(rng), letters[number], _color(rng), font, anchor="mm")

    return draw_letter


def _polygon(rng: np.random.Generator, draw: Any, number: int) -> None:
    """Draw a polygon of three to seven sides, turned at random."""
    circle = (*_middle(rng), int(rng.integers(18, 34)))
    draw.regular_polygon(circle, number + 3, int(rng.integers(360)), _color(rng))


def _middle(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple((SIZE // 2 + rng.integers(-12, 13, 2)).tolist())


def _color(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(rng.integers(0, 256, 3).tolist())


SETS: dict[str, tuple[list[str], _Draw]] = {
    "arrows": (["right", "down", "left", "up"], _arrow),
    "bdpq": ([*"bdpq"], _letter("bdpq")),
    "letters": ([*string.ascii_lowercase], _letter(string.ascii_lowercase)),
    "polygons": ([f"{sides} sides" for sides in range(3, 8)], _polygon),
}
"""The names of the classes of each data set, and what draws an image of one."""


def images(kind: str, count: int, seed: int = 0) -> list[list[Image.Image]]:
    """Return this many images of each class, on soft patterns of random colors.

    Args:
        kind: One of `SETS`.
        count: Images of a class.
        seed: Which ones.
    """
    names, draw = SETS[kind]
    rng, drawn = np.random.default_rng(seed), []
    for number in range(len(names)):
        drawn.append([])
        for _ in range(count):
            colors = Image.fromarray(rng.integers(0, 256, (4, 4, 3), dtype="uint8"))
            image = colors.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
            draw(rng, ImageDraw.Draw(image), number)
            drawn[-1].append(image)
    return drawn


def main() -> None:
    """Write a data set."""
    parser = argparse.ArgumentParser(description="Write a data set that is drawn.")
    parser.add_argument("kind", choices=SETS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=450, help="images of a class")
    given = parser.parse_args()
    for name, of_class in zip(SETS[given.kind][0], images(given.kind, given.count)):
        (given.folder / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(of_class):
            image.save(given.folder / name / f"{number}.png")


if __name__ == "__main__":
    main()

"""The grid pointing game: among several images, a map for a class should point at the image of that class."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ..._internal.validate import positive_integer, size_pair
from ...preprocess.images import resize_image
from .case import Case, MapMethod, wants_target
from .tables import standard_error, with_error


@dataclasses.dataclass(frozen=True, eq=False)
class GridPointing:
    """How well a map finds the image of a class among several. `str()` of it is one line.

    In the shapes, M mosaics of n images, row by row.

    Attributes:
        tiles: Images down and across in a mosaic.
        mosaics: uint8 `(M, height, width, channels)`.
        pictures: int `(M, n)`, which images are in it.
        target: int `(M, n)`, their classes.
        energy: float `(M, n)`: the share of the map's positive part, for the class of each, inside its tile; 1/n for a
            blank map.
        hits: bool `(M, n)`: whether the map is highest there.
    """

    tiles: tuple[int, int]
    mosaics: np.ndarray
    pictures: np.ndarray
    target: np.ndarray
    energy: np.ndarray
    hits: np.ndarray

    @property
    def chance(self) -> float:
        """The mean energy of a map that is for no class: exactly one image's share."""
        return 1 / self.energy.shape[1]

    @property
    def mean(self) -> float:
        """The mean energy."""
        return float(self.energy.mean())

    @property
    def error(self) -> float | None:
        """Its standard error, over mosaics, for the targets of one mosaic are not independent; `None` of one mosaic."""
        return standard_error(self.energy.mean(axis=1))

    def __str__(self) -> str:
        energy = with_error(self.mean, self.error, sign="")
        return (
            f"energy in the right image {energy}, highest there in {self.hits.mean():.0%}; "
            f"chance {self.chance:.3f}; {self.energy.size} targets in {len(self.energy)} mosaics"
        )


def grid_pointing_game(
    model: keras.Model,
    images: Any,
    method: MapMethod = "relevance",
    *,
    classes: Any = None,
    tiles: int | tuple[int, int] = 2,
    mosaics: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    preprocess: Callable[..., Any] | str | None = "own",
) -> GridPointing:
    """Put images of different classes side by side, and measure whether a map for a class points at its image.

    Boehle et al. 2021 (Convolutional Dynamic Alignment Networks, CVPR, arXiv 2104.00032), after the pointing game of
    Zhang et al. 2016 (arXiv 1608.00507). A map that is the same for all classes scores one image's share exactly,
    however good it looks.

    A mosaic has the size of the model's input: a ViT has positions for that size only. So the model sees each image
    at a fraction of the size that it was trained with, and its predictions for such small images are less reliable.

    Args:
        model: See `record`. It needs classes.
        images: See `record`; of at least as many classes as there are images in a mosaic.
        method: See `vit_keras.visualize.faithfulness`.
        classes: The class of each image, by number or name. `None`: what the model predicts for the image alone.
        tiles: Images down and across in a mosaic; one number for both.
        mosaics: How many. `None`: as many as the images fill, each used once at most. For more, the images are shuffled
            again.
        seed: Which images share a mosaic.
        batch_size: How many images go through the model at once.
        preprocess: See `record`.

    Returns:
        A `GridPointing`; print it.

    Raises:
        ValueError: There are too few images or classes, or an argument is out of range.
        TypeError: The method is none of those kinds.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pictures = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), "uint8")
        >>> result = grid_pointing_game(model, pictures, "rollout", classes=[0, 1, 2, 3])
        >>> result.energy.shape, round(result.mean, 6)
        ((1, 4), 0.25)
    """
    cells = size_pair(tiles, "tiles")
    count = math.prod(cells)
    if count < 2:
        raise ValueError(f"tiles must be (down, across) of two or more images in a mosaic. Received: {cells}")
    case = Case(model, images, preprocess, None, batch_size)
    labels = case.classes("predicted" if classes is None else classes)
    chosen = _mosaics(labels, count, mosaics, np.random.default_rng(seed))
    pictures = np.stack([_mosaic([case.originals[n] for n in row], cells, case.pictures.shape[1:]) for row in chosen])
    if any(n > patches for n, patches in zip(cells, case.grid)):
        raise ValueError(f"The model sees {case.grid[0]} x {case.grid[1]} patches, too few for tiles={cells}.")

    if wants_target(method):
        maps = case.showing(np.repeat(pictures, count, axis=0)).maps(method, labels[chosen].reshape(-1))
    else:
        maps = np.repeat(case.showing(pictures).maps(method), count, axis=0)
    maps = maps.reshape(len(chosen), count, *case.grid)
    down, across = (_overlaps(n, patches) for n, patches in zip(cells, case.grid))
    shares = np.einsum("ih,mthw,jw->mtij", down, np.maximum(maps, 0), across).reshape(len(chosen), count, count)
    total = shares.sum(axis=-1)
    right = np.einsum("mtt->mt", shares)
    energy = np.where(total > 0, right / np.where(total > 0, total, 1), 1 / count)
    highest = maps.reshape(len(chosen), count, -1).argmax(axis=-1)
    cell_of = np.add.outer(down.argmax(axis=0) * cells[1], across.argmax(axis=0)).reshape(-1)
    hits = cell_of[highest] == np.arange(count)
    return GridPointing(cells, pictures, chosen, labels[chosen], energy, hits)


def _mosaics(labels, count, wanted, rng):
    """Return `(mosaics, count)`: which images are in each, all of different classes."""
    if len(np.unique(labels)) < count:
        raise ValueError(
            f"A mosaic has {count} images of different classes. Received: {len(labels)} of {len(np.unique(labels))} "
            "classes"
        )
    wanted = None if wanted is None else positive_integer(wanted, "mosaics")
    mosaics, rest = [], list(rng.permutation(len(labels)))
    while wanted is None or len(mosaics) < wanted:
        first: dict[int, int] = {}
        for n in rest:
            first.setdefault(labels[n], n)
        if len(first) >= count:
            mosaics.append(list(first.values())[:count])
            rest = [n for n in rest if n not in mosaics[-1]]
        elif wanted is None:
            break
        else:
            rest = list(rng.permutation(len(labels)))
    return np.array(mosaics)


def _mosaic(pictures, cells, shape):
    """Arrange several images as one, each resized to its tile."""
    rows, columns = (np.linspace(0, n, k + 1).round().astype(int) for n, k in zip(shape[:2], cells))
    mosaic = np.zeros(shape, "uint8")
    for n, picture in enumerate(pictures):
        (top, bottom), (left, right) = (edges[i : i + 2] for edges, i in zip((rows, columns), divmod(n, cells[1])))
        tile = resize_image(picture, (bottom - top, right - left), "box", rounded=False)
        mosaic[top:bottom, left:right] = np.rint(tile)
    return mosaic


def _overlaps(cells, patches):
    """Return `(tiles, patches)`: which share of each patch is in which tile."""
    edges = np.linspace(0, patches, cells + 1)
    starts = np.arange(patches)
    return np.clip(np.minimum.outer(edges[1:], starts + 1) - np.maximum.outer(edges[:-1], starts), 0, 1)

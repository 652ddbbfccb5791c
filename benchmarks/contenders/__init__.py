"""One module a library, imported only in that library's environment by `benchmarks.worker`.

A module has a function for each suite that it takes part in, which is given the cell (the fields of
`benchmarks.suites.Cell`, the `Architecture` under `"architecture"`, the library's backend under `"backend"`, the chosen
style under `"style"`) and builds what is to be timed:

- `inference`, `training`, `attention`, `features`: return a `Job`.
- `startup`: returns the stages `[(name, function), …]` from an imported library to the first prediction.
- `save(cell, path)`: writes the weights that `startup` loads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

CLASSES = 1000


class Job(NamedTuple):
    """What a module hands to the worker.

    Attributes:
        parameters: Parameters of the model.
        calls: For each style a function that does all the work and returns the result as an array.
        shape: Shape of that array.
        gflop: For the matrix products that give the limit: operations of a call, in 10⁹.
    """

    parameters: int
    calls: dict[str, Callable[[], Any]]
    shape: tuple[int, ...]
    gflop: float | None = None


def images(cell: dict[str, Any], channels_first: bool = False) -> np.ndarray:
    """The same input for everybody: uniform noise in [-1, 1]."""
    size = cell["image_size"]
    x = np.random.default_rng(0).uniform(-1, 1, (cell["batch"], size, size, 3)).astype("float32")
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if channels_first else x


def labels(cell: dict[str, Any]) -> np.ndarray:
    """The same classes for everybody."""
    return np.random.default_rng(1).integers(0, CLASSES, cell["batch"]).astype("int64")


def photo(seed: int = 0, height: int = 375, width: int = 500) -> np.ndarray:
    """An image with as much detail at each scale as a photograph has: uint8 `(height, width, 3)`."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    picture = np.full((height, width, 3), 128.0)
    for cells in (3, 6, 12, 25, 50, 100, 200):
        picture += (120 / cells**0.5) * random.uniform(-1, 1, (cells, cells, 3))[
            y * cells // height, x * cells // width
        ]
    return np.clip(picture, 0, 255).astype("uint8")

"""Features that are computed once and then read from the disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ... import __version__
from ...checkpoints.download import home
from .batches import _files
from .extraction import _preparation, _tower, embed


def features(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int = 32,
    layer: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> np.ndarray:
    """`embed`, computed once: the next call with the same model and pictures reads the result from the disk.

    What is kept is known by the weights and layers that the features depend on, by how the pictures are prepared, and by the
    pictures: path, size and time of change of each file, or the values of an array. So it is never out of date, and the folder of the
    cache may be deleted at any time. A pass that is interrupted leaves nothing.

    Args:
        model: As in `embed`.
        data: A folder, an `ImageFolder`, a list of paths, or an array.
        batch_size: As in `embed`.
        layer: As in `embed`.
        image_size: As in `embed`.
        cache: The folder to keep features in; `None`: `features` in `VIT_KERAS_HOME` (default `~/.cache/vit_keras`).
        progress: As in `embed`.

    Returns:
        float32 `(n, …)`, memory-mapped and not to be written to.

    Raises:
        TypeError: The data cannot be known again, as of an iterator or a data set: use `embed`.
        ValueError: As in `embed`.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> features(tiny, np.zeros((3, 32, 32, 3), "uint8"), progress=False).shape
        (3, 64)
    """
    folder = home() / "features" if cache is None else Path(cache).expanduser()
    digest = hashlib.blake2b(digest_size=16)
    tower, prepare = _tower(model, layer), _preparation(model, image_size)
    known = [__version__, _description(tower), prepare.to_dict()]
    digest.update(json.dumps(known, sort_keys=True, default=repr).encode())
    for array in (*(keras.ops.convert_to_numpy(weight) for weight in tower.weights), *_identity(data)):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).view("uint8").data)
    path = folder / f"{digest.hexdigest()}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        options = {"batch_size": batch_size, "layer": layer, "image_size": image_size, "progress": progress}
        embed(model, data, output=path, **options)
    return np.load(path, mmap_mode="r")


def _description(tower: keras.Model) -> list[Any]:
    """What the layers compute, without what does not matter to it."""
    idle = ("name", "trainable")
    return [
        [type(layer).__name__, {key: value for key, value in layer.get_config().items() if key not in idle}]
        for layer in tower.layers
    ]


def _identity(data: Any) -> list[np.ndarray]:
    """Arrays that are the same if and only if the pictures are."""
    if isinstance(data, tuple) and data and len(getattr(data[0], "shape", ())) == 4:
        data = data[0]
    if len(getattr(data, "shape", ())) == 4:
        return [np.asarray(keras.ops.convert_to_numpy(data))]
    paths = getattr(data, "paths", data)
    if isinstance(paths, (str, os.PathLike)):
        paths, _ = _files(paths)
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(
            "Features are kept for a folder, an ImageFolder, a list of paths or an array, which can be known again. "
            f"Received: {type(data).__name__}. embed(model, data, output='features.npy') takes any data."
        )
    files = [Path(path).expanduser() for path in paths]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"Could not find image at path: {missing}")
    known = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [np.frombuffer(json.dumps(known).encode(), "uint8")]

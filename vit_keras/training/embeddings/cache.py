"""Features that are computed once and then read from the disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ... import __version__
from ..._internal.validate import expanded
from ...checkpoints.download import home
from ...model import VisionTransformer
from ..data.decoding import fingerprint
from .batches import files_in
from .extraction import Extractor, embed

__all__ = ["features"]


def features(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int = 32,
    layer: str | None = None,
    image_size: int | tuple[int, int] | str | None = "native",
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> np.ndarray:
    """Compute features as `embed` does, once: the next call with the same model and images reads them from the disk.

    The key is a hash of the weights and layers that the features depend on, of the preprocessing, and of the images:
    path, size and time of change of each file, or the values of an array. So the features are never out of date, and
    the folder of the cache may be deleted at any time. A pass that is interrupted leaves nothing.

    Args:
        model: As in `embed`.
        data: A folder, an `ImageFolder`, a list of paths, or an array.
        batch_size: As in `embed`.
        layer: As in `embed`.
        image_size: As in `embed`.
        cache: The folder of the cache; `None`: `features` in `VIT_KERAS_HOME` (default `~/.cache/vit_keras`).
        progress: As in `embed`.

    Returns:
        float32 `(n, …)`, memory-mapped and read-only.

    Raises:
        TypeError: The data or the model cannot be recognized again, such as an iterator or a dataset: use `embed`.
        ValueError: As in `embed`.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> features(tiny, np.zeros((3, 32, 32, 3), "uint8"), progress=False).shape
        (3, 64)
    """
    folder = home() / "features" if cache is None else expanded(cache)
    digest = hashlib.blake2b(digest_size=16)
    extractor = Extractor.of(model, layer, image_size)
    known = [__version__, *map(_description, extractor.parts), extractor.preprocessing.to_dict()]
    digest.update(json.dumps(known, sort_keys=True, default=repr).encode())
    weights = [keras.ops.convert_to_numpy(weight) for part in extractor.parts for weight in part.weights]
    for array in (*weights, *_identity(data)):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).view("uint8").data)
    path = folder / f"{digest.hexdigest()}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        embed(model, data, output=path, batch_size=batch_size, layer=layer, image_size=image_size, progress=progress)
    return np.load(path, mmap_mode="r")


def _description(part: keras.Model) -> Any:
    """Return a description of the computation of a model that its weights do not determine."""
    if not isinstance(part, VisionTransformer):  # a graph of any operations
        try:
            return {**part.get_config(), "name": None}
        except (NotImplementedError, TypeError, ValueError) as error:
            raise TypeError(
                f"Features are cached for models that Keras can save, and this one has a layer that it cannot: {error} "
                "Use embed(model, data, output='features.npy')."
            ) from None
    idle = ("name", "trainable")
    return [
        [type(layer).__name__, {key: value for key, value in layer.get_config().items() if key not in idle}]
        for layer in part.layers
    ]


def _identity(data: Any) -> list[np.ndarray]:
    """Return arrays that are the same if and only if the images are."""
    if isinstance(data, tuple) and data and len(getattr(data[0], "shape", ())) == 4:
        data = data[0]
    if len(getattr(data, "shape", ())) == 4:
        return [np.asarray(keras.ops.convert_to_numpy(data))]
    paths = getattr(data, "paths", data)
    if isinstance(paths, (str, os.PathLike)):
        paths, _ = files_in(paths)
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(
            "Features are cached for a folder, an ImageFolder, a list of paths or an array. "
            f"Received: {type(data).__name__}. embed(model, data, output='features.npy') takes any data."
        )
    return [np.frombuffer(fingerprint(map(expanded, paths)).encode(), "uint8")]

"""CIFAR-10 from the folder of large data, for the tests that learn on real pictures."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image


def load(shared, part, per_class):
    """Photos of 32 pixels in [-1, 1], and their labels 0 to 9: the first so many of each class.

    Args:
        shared: The folder of large data.
        part: `"train"` or `"test"`.
        per_class: How many of each class.

    Returns:
        float32 `(n, 32, 32, 3)` and int `(n,)`, one class after another.
    """
    path = shared / "data" / "cifar10.zip"
    if not path.is_file():
        pytest.skip(f"there is no {path}")
    with zipfile.ZipFile(path) as file:
        folders = {}
        for name in sorted(file.namelist()):
            if name.startswith(f"{part}/") and name.endswith(".jpg"):
                folders.setdefault(name.split("/")[1], []).append(name)
        names = [name for folder in sorted(folders) for name in folders[folder][:per_class]]
        photos = np.stack([np.asarray(Image.open(io.BytesIO(file.read(name)))) for name in names])
    return (photos.astype("float32") - 127.5) / 127.5, np.repeat(np.arange(len(folders)), per_class)

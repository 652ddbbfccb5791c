"""The data sets as data: which images of which file, how many of each class, and what is to be predicted."""

from __future__ import annotations

import functools
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from . import drawn

_DRAWN = 400
"""Images of each class to draw. A task uses a part of them."""

Images = dict[str, list[Image.Image]]
"""The images of each class, in the order of their names."""


class Task(NamedTuple):
    """A data set.

    Attributes:
        source: A zip file in the folder of the data, with one folder for each class; or the name of a data set that is
            made, one of `MADE`.
        images: Images to learn from, of each class; or a number for the first and the last class, between which the
            numbers fall geometrically: a long tail. Of `"multi"`, of all classes together.
        kind: `"single"`, one class of several; `"regression"`, the number of the class; `"multi"`, which classes are in
            a mosaic of four images.
        test: Images to test on, of each class.
    """

    source: str
    images: int | tuple[int, int]
    kind: str = "single"
    test: int = 80


TASKS = {
    "flowers": Task("flowers_128.zip", 100, test=150),
    "signs": Task("sign_digits_96.zip", 100),
    "cifar-5": Task("cifar10.zip", 5),
    "cifar-25": Task("cifar10.zip", 25),
    "cifar-100": Task("cifar10.zip", 100),
    "cifar-1000": Task("cifar10.zip", 1000),
    "digits": Task("digits", 50),
    "tail": Task("flowers_128.zip", (200, 8), test=150),
    "numbers": Task("sign_digits_96.zip", 60, "regression"),
    "mosaic": Task("cifar10.zip", 600, "multi"),
    "arrows": Task("arrows", 150),
    "bdpq": Task("bdpq", 150),
    "letters": Task("letters", 30, test=30),
    "polygons": Task("polygons", 100),
}

FEW = {
    f"few-{name}-{count}": Task(source, count, test=test)
    for name, source, test in (
        ("flowers", "flowers_128.zip", 150),
        ("signs", "sign_digits_96.zip", 80),
        ("cifar", "cifar10.zip", 80),
        ("digits", "digits", 80),
        ("arrows", "arrows", 200),
        ("polygons", "polygons", 160),
    )
    for count in (5, 10, 20)
}
"""The data sets of few images, which `training.finetune` trains on by a plan of its own."""

TASKS |= FEW

TUNED_ON = ("flowers", "cifar-5", "cifar-25", "cifar-100")
"""The data sets that the rates and steps of `recipe("finetune")` were found with; the others check them."""


def arrays(task: Task, folder: Path, size: int, seed: int) -> dict[str, np.ndarray]:
    """Return a data set: uint8 images `(n, size, size, 3)` and labels, to learn from and to test on.

    The seed draws the images to learn from. Those to test on are the same for all seeds.

    Args:
        task: The data set.
        folder: Where its file is.
        size: Pixels of a side.
        seed: Which images to learn from.

    Raises:
        FileNotFoundError: The folder does not have the file.
        ValueError: The file has too few images.
    """
    read = MADE.get(task.source) or _zip(folder / task.source)
    train, test = read()
    numbers = list(range(len(test)))
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(0)
    if test is train:
        held = {n: fixed.permutation(len(train[n])) for n in numbers}
        test = [[train[n][i] for i in held[n][: task.test]] for n in numbers]
        train = [[train[n][i] for i in held[n][task.test :]] for n in numbers]
    else:
        test = [[test[n][i] for i in fixed.permutation(len(test[n]))[: task.test]] for n in numbers]
    counts = _counts(task.images if task.kind != "multi" else min(map(len, train)), len(numbers))
    if any(count > len(images) for count, images in zip(counts, train)):
        raise ValueError(
            f"{task.source} has {min(map(len, train))} images of a class to learn from, too few for {task}."
        )
    train = [[images[i] for i in rng.permutation(len(images))[:count]] for count, images in zip(counts, train)]
    if task.kind == "multi":
        parts = (_mosaics(train, task.images, size, rng), _mosaics(test, task.test * len(test), size, fixed))
    else:
        parts = (_flat(train, size, task.kind), _flat(test, size, task.kind))
    return dict(zip(("train", "train_labels", "test", "test_labels"), (array for part in parts for array in part)))


def _counts(images: int | tuple[int, int], classes: int) -> list[int]:
    if isinstance(images, int):
        return [images] * classes
    return [round(count) for count in np.geomspace(*images, classes)]


def _flat(images: list[list[Image.Image]], size: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(len(images)), [len(each) for each in images])
    labels = labels[:, None].astype("float32") if kind == "regression" else labels.astype("int32")
    return np.stack([_pixels(image, size) for each in images for image in each]), labels


def _mosaics(
    images: list[list[Image.Image]], count: int, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return mosaics of two by two images and, for each class, whether it is in them."""
    pixels, labels = np.zeros((count, size, size, 3), "uint8"), np.zeros((count, len(images)), "float32")
    half = size // 2
    for mosaic, label in zip(pixels, labels):
        for place in ((0, 0), (0, half), (half, 0), (half, half)):
            kind = rng.integers(len(images))
            tile = _pixels(images[kind][rng.integers(len(images[kind]))], half)
            mosaic[place[0] : place[0] + half, place[1] : place[1] + half] = tile
            label[kind] = 1
    return pixels, labels


def _pixels(image: Image.Image, size: int) -> np.ndarray:
    return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))


def _digits() -> tuple[list[list[Image.Image]], list[list[Image.Image]]]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = (digits.images * 255 / 16).astype("uint8")
    images = [[Image.fromarray(each) for each in pixels[digits.target == n]] for n in range(10)]
    return images, images


def _drawn(kind: str) -> tuple[list[list[Image.Image]], list[list[Image.Image]]]:
    images = drawn.images(kind, _DRAWN)
    return images, images


MADE = {"digits": _digits, **{kind: functools.partial(_drawn, kind) for kind in drawn.SETS}}
"""The data sets that need no file."""


def _zip(path: Path) -> Callable[[], tuple[list[list[Image.Image]], list[list[Image.Image]]]]:
    """Return a function that reads a zip file: `class/image`, or `train/class/image` and `test/class/image`."""

    def read():
        if not path.is_file():
            raise FileNotFoundError(f"There is no {path}. Pass the folder of the data sets as --data DIR.")
        parts: dict[str, Images] = {"train": {}, "test": {}}
        with zipfile.ZipFile(path) as file:
            for name in sorted(file.namelist()):
                *above, kind, image = name.rsplit("/", 2) if name.count("/") else ("", "", name)
                if not image.lower().endswith((".jpg", ".jpeg", ".png")):
                    continue
                part = parts["test" if above == ["test"] else "train"]
                part.setdefault(kind, []).append(Image.open(io.BytesIO(file.read(name))))
        train, test = ([images[kind] for kind in sorted(images)] for images in parts.values())
        return (train, test) if test else (train, train)

    return read

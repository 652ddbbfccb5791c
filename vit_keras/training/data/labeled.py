"""Labeled images: the common form of folders and tables."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._internal.validate import expanded, path_text
from ..._internal.warn import warn_caller
from .listing import first_few, list_classes

__all__: list[str] = []


@dataclasses.dataclass(frozen=True, eq=False)
class Labeled:
    """Images, and the labels that a model is to learn.

    Attributes:
        task: What the labels mean, one of `vit_keras.labels.TASKS`.
        names: Names of the classes, of the labels, of the numbers, or of the levels.
        paths: The files.
        labels: int32 class numbers `(n,)` of the task `"single"`; float32 `(n, labels)` of 0 and 1 (`"multi"`), of
            numbers (`"regression"`), or `(n, 1)` of levels from 0 (`"ordinal"`).
        ids: What the table calls each image; in a folder, its path there.
        root: The folder that the images are in.
        weights: The weight of each image in the loss, or `None`.
        groups: What must not be divided between training and validation, as a number for each image; or `None`.
        missing: Numbers of the images whose file is not there.
        assumed: What was guessed, in words.
    """

    task: str
    names: tuple[str, ...]
    paths: list[Path]
    labels: np.ndarray
    ids: list[str]
    root: Path
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None
    missing: frozenset[int] = frozenset()
    assumed: str = ""

    def check_missing(self, errors: str) -> None:
        """Raise a `ValueError` that names the files that are not there, or warn of them if `errors` is `"skip"`."""
        if not self.missing:
            return
        count, names = len(self.missing), first_few([self.ids[row] for row in sorted(self.missing)])
        said = f"{count:,} {'images are' if count > 1 else 'image is'} not in {self.root}"
        if count == len(self.paths):
            raise ValueError(f"{said}: {names}. Pass images_dir= (--images-dir), the folder of the table's images.")
        if errors == "raise":
            raise ValueError(f'{said}: {names}. errors="skip" (--errors skip) leaves missing images out.')
        warn_caller(f"{said}, and left out: {names}.")

    @property
    def words(self) -> str:
        """The labels to learn, in words."""
        count = len(self.names)
        return {
            "single": f"{count:,} classes",
            "multi": f"{count:,} labels",
            "regression": f"{count:,} numbers" if count > 1 else "one number",
            "ordinal": f"{count:,} levels",
        }[self.task]


def folder_of(table: Any, images: str | os.PathLike[str] | None) -> Path:
    """Return the folder that the names in a table are relative to: `images`, or else the table's own.

    Raises:
        FileNotFoundError: There is no folder `images`.
    """
    if images is None:
        return expanded(table).parent if isinstance(table, (str, os.PathLike)) else Path()
    root = expanded(images)
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}.")
    return root


OF_IMAGES = "a folder of images or a table; datasets are for model.fit, model.evaluate and model.predict"
"""What an error says images are read from."""


def read_folder(
    path: str | os.PathLike[str], class_names: Sequence[str] | None, errors: str, fewest: int = 2
) -> Labeled:
    """Read the images of a folder, PATH/class/image.jpg; see `vit_keras.training.image_folder`."""
    root = expanded(path_text(path, "images", OF_IMAGES))
    names, paths, labels = list_classes(root, class_names, errors, fewest)
    return Labeled("single", names, paths, labels, [path.relative_to(root).as_posix() for path in paths], root)

"""Images in a folder of classes, and what folders and tables have in common: images, and the labels to learn."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._internal.validate import expanded, is_number, path_text
from ..._internal.warn import warn_caller

__all__ = ["EXTENSIONS", "Labeled", "images_in"]


@dataclasses.dataclass(frozen=True, eq=False)
class Labeled:
    """Images, and the labels that a model is to learn."""

    task: str
    names: tuple[str, ...]
    paths: list[Path]
    labels: np.ndarray
    ids: list[str]
    root: Path
    groups: np.ndarray | None = None
    missing: frozenset[int] = frozenset()
    assumed: str = ""

    def check_missing(self, errors: str) -> None:
        """Raise an error for files that are not there, or warn of them if `errors` is `"skip"`."""
        report_unread([self.ids[row] for row in sorted(self.missing)], (), len(self.paths), errors)

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


def report_unread(
    missing: Sequence[str],
    damaged: Sequence[tuple[str | os.PathLike[str], str]],
    total: int,
    errors: str,
    skipped: str = "are left out",
) -> None:
    """Raise a `ValueError` for images that are missing or damaged, or warn of them; `total` counts all images."""
    if not missing and not damaged:
        return
    found = {"missing": [*missing], "damaged": [os.fspath(path) for path, _ in damaged]}
    text = "; ".join(f"{len(names):,} {kind}: {first_few(names)}" for kind, names in found.items() if names)
    hint = " Pass images_dir= (--images-dir), the folder of the images." if missing else ""
    hint += "".join(f" {why.rstrip('.')}." for _, why in damaged[:1])
    if len(missing) + len(damaged) >= total:
        raise ValueError(f"No image can be read: {text}.{hint}")
    if errors == "raise":
        raise ValueError(f'Images cannot be read: {text}.{hint} With errors="skip" (--errors skip) they {skipped}.')
    warn_caller(f"Images {skipped}: {text}.")


def folder_of(table: Any, images: str | os.PathLike[str] | None) -> Path:
    """Return the folder that the names in a table are relative to: `images`, or else the table's own."""
    if images is None:
        return expanded(table).parent if isinstance(table, (str, os.PathLike)) else Path()
    return _checked(expanded(images))


def _checked(root: Path) -> Path:
    """Return a folder, or raise an error that says what is there instead."""
    if root.is_file():
        raise ValueError(
            f"{root} is a file, and neither a folder nor a table (.csv, .tsv, .parquet). Unpack an archive first: "
            f"python -m zipfile -e {root.name} FOLDER."
        )
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}.")
    return root


OF_IMAGES = "a folder of images or a table; datasets are for model.fit, model.evaluate and model.predict"
"""What an error says images are read from."""


def read_folder(
    path: str | os.PathLike[str], class_names: Sequence[str] | None, errors: str, fewest: int = 2
) -> Labeled:
    """Read the images of a folder, PATH/class/image.jpg; see `vit_keras.training.image_folder`."""
    root = _checked(expanded(path_text(path, "images", OF_IMAGES)))
    around = {real := root.resolve(), *real.parents}  # a link to one of these is not a class
    folders = [p.name for p in root.iterdir() if p.is_dir() and not is_hidden(p.name) and p.resolve() not in around]
    folders.sort()  # digits too, as Keras and torchvision number classes: "0", "1", "10", "2"
    if not folders:
        raise ValueError(f"{root} has no folders of classes. Images are expected in PATH/class/image.jpg.")
    if _SPLITS.issuperset(name.lower() for name in folders):
        raise ValueError(
            f"{root} has the folders {first_few(folders)}, which are splits and not classes. Pass one of them as path."
        )
    names = tuple(folders if class_names is None else class_names)
    unknown = sorted(set(folders) - set(names))
    missing = [name for name in names if name not in folders]
    if len(set(names)) < len(names):
        raise ValueError(f"class_names has a name twice. Received: {first_few(names)}")
    if unknown:
        raise ValueError(f"{root} has the folders {first_few(unknown)}, and the classes are {first_few(names)}.")
    files = {name: images_in(root / name) if name not in missing else [] for name in names}
    empty = [name for name in names if not files[name]]
    if empty and (errors == "raise" or len(empty) == len(names)):
        raise ValueError(
            f"There is no image of {first_few(empty)} in {root}"
            + ("." if len(empty) == len(names) else ': remove the folder, or pass errors="skip" (--errors skip).')
        )
    if empty:
        warn_caller(f"There is no image of {first_few(empty)} in {root}: left out.")
        names = names if class_names is not None else tuple(name for name in names if files[name])
    if len(names) < fewest:
        raise ValueError(f"{root} has only one class, {first_few(names)}. Training needs at least two.")
    labels = np.repeat(np.arange(len(names), dtype="int32"), [len(files[name]) for name in names])
    paths = [file for name in names for file in files[name]]
    return Labeled("single", names, paths, labels, [path.relative_to(root).as_posix() for path in paths], root)


EXTENSIONS = (
    *(".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp", ".avif"),
)

_SPLITS = {"test", "testing", "train", "training", "val", "valid", "validation"}


def images_in(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by name, whatever the order of the file system."""
    found: list[Path] = []
    seen = {os.fspath(parent) for parent in Path(os.path.realpath(folder)).parents}  # a link to one is a circle
    places = [folder]
    for top in places:  # which grows by links, so that a folder is read under its own name rather than a link's
        for place, folders, names in os.walk(top):
            if (real := os.path.realpath(place)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not is_hidden(name))
            places += (each for name in folders if (each := Path(place, name)).is_symlink())
            names = (name for name in names if not name.startswith("."))
            found += (Path(place, name) for name in names if name.lower().endswith(EXTENSIONS))
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def is_hidden(folder: str) -> bool:
    """Return whether a folder of this name, such as `.state` or `__pycache__`, is not a class."""
    return folder.startswith((".", "__"))


def check_share(share: Any, most: float = 1.0) -> None:
    """Raise a `ValueError` for a share of the images to hold out that is not a fraction, or above the largest."""
    if share is not None and not (is_number(share) and 0 < share <= most and share < 1):
        largest = "below 1" if most == 1 else f"at most {most} of a table"
        raise ValueError(
            f"The share to hold out (validation_split=, --held-out) must be above 0 and {largest}. Received: {share!r}"
        )


def split(labels: np.ndarray, share: float, seed: int) -> list[np.ndarray]:
    """Return the numbers of the images for training and for validation, the same fraction of each class."""
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held_out[np.random.default_rng([seed, int(label)]).permutation(members)[:count]] = True
    if not held_out.any():
        raise ValueError("Every class has a single image: there is nothing to hold out for validation.")
    return [np.flatnonzero(~held_out), np.flatnonzero(held_out)]


def first_few(names: Sequence[Any], most: int = 5) -> str:
    """Return the first names in quotes, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")

"""Recognize the format of a file by its first bytes, ignoring its name."""

from __future__ import annotations

import enum
import os
import re
import zipfile
from collections.abc import Iterable

__all__ = ["Kind", "is_of_keras_2", "keras_2_only", "kind_of", "sniff"]


class Kind(enum.Enum):
    """The kind of a file, with `words` that describe it in error messages: `'an .npz file'`."""

    SAFETENSORS = "a safetensors file"
    ZIP = "a damaged or incomplete archive"
    HDF5 = "an HDF5 file"
    PICKLE = "a Python pickle"
    # Zip archives, told apart by their members.
    NPZ = "an .npz file"
    TORCH = "a PyTorch file"
    KERAS = "a Keras model"
    OTHER_ZIP = "a zip archive but holds no NumPy arrays, no PyTorch tensors and no Keras model"
    # Files without weights.
    GIT_LFS = "a Git-LFS pointer"
    PNG = "a PNG image"
    JPEG = "a JPEG image"
    WEB_PAGE = "a web page"
    MARKUP = "an error message in XML or JSON"  # or the index of a sharded file
    EMPTY = "an empty file"
    UNKNOWN = "not a known format of weights"

    @property
    def words(self) -> str:
        return self.value


_SIGNATURES = (
    (b"PK\x03\x04", Kind.ZIP),
    (b"\x89HDF\r\n\x1a\n", Kind.HDF5),
    (b"version https://git-lfs", Kind.GIT_LFS),
    *((bytes([0x80, protocol]), Kind.PICKLE) for protocol in range(2, 6)),
    (b"\x89PNG", Kind.PNG),
    (b"\xff\xd8\xff", Kind.JPEG),
)


def sniff(start: bytes) -> Kind:
    """Return the kind of a file from its first 512 bytes; `kind_of` tells zip archives apart."""
    if not start:
        return Kind.EMPTY
    if start[4:9] == b"\0\0\0\0{":  # first of all: the length of a safetensors header can look like any signature
        return Kind.SAFETENSORS
    for signature, kind in _SIGNATURES:
        if start.startswith(signature):
            return kind
    if start[8:9] == b"{":
        return Kind.SAFETENSORS
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<head")):
        return Kind.WEB_PAGE
    if text.startswith((b"<?xml", b"{")):
        return Kind.MARKUP
    return Kind.UNKNOWN


def kind_of(path: str | os.PathLike[str]) -> Kind:
    """Return the kind of the file at a path; `Kind.ZIP` is a damaged archive."""
    if not os.path.isfile(path):
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    with open(path, "rb") as file:
        kind = sniff(file.read(512))
    if kind is not Kind.ZIP:
        return kind
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except Exception:  # zipfile raises many types
        return Kind.ZIP
    if torch_pickles(names):
        return Kind.TORCH
    if "model.weights.h5" in names:
        return Kind.KERAS
    return Kind.NPZ if names and all(name.endswith(".npy") for name in names) else Kind.OTHER_ZIP


def torch_pickles(names: Iterable[str]) -> list[str]:
    """Return those members that hold the pickle of a PyTorch file: `data.pkl`, at most one folder deep."""
    return [name for name in names if name.rpartition("/")[2] == "data.pkl" and name.count("/") <= 1]


def is_of_keras_2(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a SavedModel folder of Keras 2, or a file of a checkpoint of TensorFlow."""
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "keras_metadata.pb"))
    prefix = re.sub(r"\.(index|data-\d{5}-of-\d{5})$", "", os.fspath(path))
    return os.path.isfile(f"{prefix}.index") and not os.path.isdir(prefix)


def keras_2_only(path: str | os.PathLike[str]) -> str:
    """Return why a file of `is_of_keras_2` is not opened."""
    return (
        f"{path} is in a format that only Keras 2 and TensorFlow read. Open it where it was written, and save it as "
        'one file: model.save("model.h5").'
    )

"""A file of weights becomes `{name: array}`; each array is read when it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

# The first bytes tell what a file is, whatever its name says.
_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"version https://git-lfs", "a Git-LFS pointer"),
    *((bytes([0x80, protocol]), "a Python pickle") for protocol in range(2, 6)),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
)


def describe_content(start: bytes) -> str:
    """Say what a file is, in words, from its first bytes (512 are plenty)."""
    for signature, kind in _SIGNATURES:
        if start.startswith(signature):
            return kind
    text = start.lstrip().lower()
    if not start:
        return "an empty file"
    if text.startswith((b"<!doctype", b"<html", b"<head")):
        return "a web page"
    if text.startswith((b"<?xml", b"{")):
        return "an error message in XML or JSON"
    if start[8:9] == b"{":
        return "a safetensors file"
    return "not a known format of weights"


class NpzReader(Mapping):
    """The arrays of an .npz file, read one at a time; nothing in it is executed.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not an .npz file, or it is damaged. Damage inside an array is found when
            that array is read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"There is no file of weights at {self.path}.")
        with open(self.path, "rb") as file:
            kind = describe_content(file.read(512))
        if kind != "a zip archive":
            hint = " Load it with model.load_weights(path)." if kind == "an HDF5 file" else ""
            raise ValueError(f"{self.path} is {kind}; an .npz file as Google publishes them was expected.{hint}")
        with self._damage("it cannot be opened"):
            self._file = np.load(self.path, allow_pickle=False)
        if not self._file.files or any(not name.endswith(".npy") for name in self._file.zip.namelist()):
            raise ValueError(f"{self.path} is a zip archive but holds no NumPy arrays: it is not an .npz file.")

    @contextlib.contextmanager
    def _damage(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # zipfile, zlib and NumPy's parser of headers raise whatever comes to pass
            raise ValueError(
                f"{self.path} is damaged or incomplete: {what} ({error}). Delete it and fetch it again."
            ) from None

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._file.files:
            raise KeyError(name)
        with self._damage(f"{name!r} cannot be read"):
            return self._file[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.files)

    def __len__(self) -> int:
        return len(self._file.files)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array, from its header alone."""
        with self._damage(f"{name!r} cannot be read"), self._file.zip.open(f"{name}.npy") as member:
            version = np.lib.format.read_magic(member)
            return getattr(np.lib.format, f"read_array_header_{version[0]}_0")(member)[0]

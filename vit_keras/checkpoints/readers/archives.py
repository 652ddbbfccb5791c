"""Zip archives, including NumPy's .npz."""

from __future__ import annotations

import io
import math
import os
import struct
import threading
import zipfile
from pathlib import Path
from typing import IO, cast

import ml_dtypes
import numpy as np

from ..._internal.bounds import too_many
from .base import CHUNK, LIMIT_DEFLATE, Reader, Stored, damage, numeric, read_values, refuse

__all__ = ["NpzReader"]

LIMIT_NPY_HEADER = 1 << 16  # bytes

# NumPy parses headers with `ast`, and in Python 3.11 threads share its recursion counter.
_PARSING = threading.Lock()


class Zip:
    """A zip archive whose members' sizes can be trusted."""

    def __init__(self, path: Path):
        self.path = path
        self.size: int = path.stat().st_size
        with zipfile.ZipFile(path) as archive:  # not kept open, or Windows would not let the file be replaced
            listed = archive.infolist()
        self.members: dict[str, zipfile.ZipInfo] = {}
        refuse(too_many(len(listed)))
        for info in listed:
            if info.filename in self.members:
                raise ValueError(f"two members have the name {info.filename!r}")
            self._check(info)
            self.members[info.filename] = info

    def _check(self, info: zipfile.ZipInfo) -> None:
        if info.flag_bits & 1:
            raise ValueError(f"{info.filename!r} is encrypted")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise ValueError(f"the sizes of {info.filename!r} contradict one another")
        if info.header_offset + info.compress_size > self.size:
            raise ValueError(f"{info.filename!r} goes beyond the end of the file")
        if info.file_size > LIMIT_DEFLATE * info.compress_size + 64:
            raise ValueError(f"{info.filename!r} claims more bytes than it can hold")

    def stream(self, name: str) -> IO[bytes]:
        """Return a member as a file, whose checksum is verified when its last byte is read."""
        info = self.members[name]
        start = self._start(info)
        file = open(self.path, "rb")  # noqa: SIM115 (closed with the member)
        file.seek(start)
        return cast("IO[bytes]", zipfile.ZipExtFile(file, "r", info, None, True))

    def open(self, name: str) -> IO[bytes]:
        """Return a member as a file; an uncompressed one is the archive itself, which goes on after the member."""
        offset = self.offset(name)
        if offset is None:
            return self.stream(name)
        file = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
        file.seek(offset)
        return file

    def offset(self, name: str) -> int | None:
        """Return the byte of the archive at which an uncompressed member begins, or `None` if it is compressed."""
        info = self.members[name]
        return self._start(info) if info.compress_type == zipfile.ZIP_STORED else None

    def _start(self, info: zipfile.ZipInfo) -> int:
        with open(self.path, "rb") as file:
            file.seek(info.header_offset)
            header = file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise ValueError(f"the zip entry of {info.filename!r} is not where the directory says")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
        if start + info.compress_size > self.size:
            raise ValueError(f"{info.filename!r} goes beyond the end of the file")
        return start

    def read_values(self, name: str, start: int, count: int, dtype: np.dtype) -> np.ndarray:
        """Read `count` values of a member from its byte `start`, and verify its checksum if they are its last."""
        info = self.members[name]
        to_the_end = start + count * dtype.itemsize == info.file_size
        # PyTorch can leave out checksums; they are 0 then. zipfile verifies those of compressed members itself.
        check = to_the_end and info.CRC and info.compress_type == zipfile.ZIP_STORED and start < LIMIT_NPY_HEADER * 2
        with self.open(name) as file:
            before = file.read(start) if check else _skip(file, start)
            return read_values(file, count, dtype, info.CRC if check else None, before)

    def read(self, name: str, limit: int) -> bytes:
        """Return all bytes of a small member."""
        info = self.members[name]
        if info.file_size > limit:
            raise ValueError(f"{name!r} has {info.file_size:,} bytes, and at most {limit:,} are read")
        return self.read_values(name, 0, info.file_size, np.dtype(np.uint8)).tobytes()


def _skip(file: IO[bytes], count: int) -> bytes:
    if isinstance(file, zipfile.ZipExtFile):
        for start in range(0, count, CHUNK):
            file.read(min(CHUNK, count - start))
    else:
        file.seek(count, io.SEEK_CUR)
    return b""


class NpzReader(Reader):
    """The arrays of an .npz file, read one at a time, without executing anything."""

    format = "npz"

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path)
        with damage(self.path, "it cannot be opened"):
            self._zip = Zip(self.path)
            self._keep({name.removesuffix(".npy"): self._array(name) for name in self._zip.members})

    def _array(self, member: str) -> Stored:
        with self._zip.open(member) as file:
            start, shape, fortran, dtype = _npy_header(file)
        count = math.prod(shape)
        size = self._zip.members[member].file_size
        if not dtype.hasobject and start + count * dtype.itemsize != size:
            raise ValueError(f"{member!r} has {size:,} bytes, which is not an array of shape {shape} and type {dtype}")

        def read() -> np.ndarray:
            values = self._zip.read_values(member, start, count, dtype)
            return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)

        return numeric(shape, dtype, read)


def _npy_header(file: IO[bytes]) -> tuple[int, tuple[int, ...], bool, np.dtype]:
    """Read the header of an .npy; return its length, and the shape, the order (Fortran?) and the type of the array."""
    start = file.read(12)
    major = start[6] if len(start) == 12 and start.startswith(b"\x93NUMPY") else 0
    if major not in (1, 2, 3):
        raise ValueError("an array is not in NumPy's format")
    before = 10 if major == 1 else 12
    (length,) = struct.unpack("<H" if major == 1 else "<I", start[8:before])
    if length > LIMIT_NPY_HEADER:
        raise ValueError(f"the header of an array claims {length:,} bytes")
    text = start[8:] + file.read(before + length - 12)
    parse = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    with _PARSING:
        shape, fortran, dtype = parse(io.BytesIO(text))
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"an array has the shape {shape}")
    if dtype == np.dtype("V2"):  # NumPy writes a type it does not know as raw bytes
        dtype = np.dtype(ml_dtypes.bfloat16)
    return before + length, shape, fortran, dtype

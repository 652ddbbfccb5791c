"""The base of all readers: arrays read on request, within bounds that keep a damaged file harmless."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from ..._internal.bounds import LIMIT_TEXT, shortened, too_many, too_much
from .torch_pickle import Refused

__all__ = ["LIMIT_TEXT", "Reader", "Stored"]

CHUNK = 1 << 18  # bytes that are read at a time
LIMIT_DEFLATE = 1100  # deflate makes nothing smaller than 1/1032


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype  # in the file
    read: Callable[[], np.ndarray]
    problem: str | None = None  # why it cannot be read, or None


class Reader(Mapping[str, Any]):
    """The arrays of a file, by name, read each time they are asked for: floats in float32, others unchanged."""

    # `format` is "npz", "safetensors", "torch", "keras_weights" (.weights.h5), "h5" or "keras". `metadata` has
    # everything else in the file: safetensors' own; the `key` of PyTorch's state dict, the other `keys`, and the
    # classes of objects that were `left_out`; the `config` of a Keras model.

    format: str

    def __init__(self, path: str | os.PathLike[str]):
        self.path: Path = Path(path)
        self.metadata: dict[str, Any] = {}
        self._arrays: dict[str, Stored] = {}

    def _keep(self, arrays: dict[str, Stored]) -> None:
        """Keep the entries of a file, unless they claim more than it can hold."""
        size = sum(math.prod(a.shape) * a.dtype.itemsize for a in arrays.values() if not a.problem)
        refuse(too_many(len(arrays)) or too_much(size, self.path.stat().st_size))
        self._arrays = arrays

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._readable(name)
        with damage(self.path, f"{name!r} cannot be read"):
            return stored.read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def stored(self, name: str) -> Stored:
        """Return the stored shape and type of an array, and why it cannot be read, if so."""
        return self._arrays[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array, without reading its values."""
        return self._readable(name).shape

    def _readable(self, name: str) -> Stored:
        stored = self._arrays[name]
        if stored.problem:
            raise ValueError(f"{self.path}: {name!r} cannot be read: {stored.problem}.")
        return stored


def refuse(reason: str | None) -> None:
    """Raise `Refused` if there is a reason."""
    if reason:
        raise Refused(reason)


@contextlib.contextmanager
def damage(path: Path, what: str) -> Iterator[None]:
    """Turn every error of a parser into a `ValueError` that names the file and the failed step."""
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Refused as error:
        raise ValueError(f"{path} {shortened(str(error))}") from None
    except Exception as error:  # zipfile, zlib, json, h5py and NumPy's parser of headers raise many types
        raise ValueError(
            f"{path} is damaged or incomplete: {what} ({shortened(str(error))}). Delete it and fetch it again."
        ) from None


@functools.cache
def little_endian(name: str) -> np.dtype:
    """Return a type by NumPy's or ml_dtypes' name, little-endian as in all formats but .npz."""
    return np.dtype(getattr(ml_dtypes, name, None) or name).newbyteorder("<")


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.type.__module__.startswith("ml_dtypes")


def plain_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type in which values come out: float32 for floats of any width, native integers for integers."""
    return np.dtype(np.float32) if _is_float(dtype) else dtype.newbyteorder("=")


def unreadable(problem: str, shape: tuple[int, ...] = (), dtype: Any = object) -> Stored:
    """Return the entry of an array that cannot be read."""
    return Stored(shape, np.dtype(dtype), lambda: np.empty(0), problem)


@functools.lru_cache(256)
def _problem(dtype: np.dtype) -> str | None:
    """Return why values of a type are not read, or `None`."""
    if dtype.hasobject:
        return "it holds Python objects, which are never unpickled"
    return None if dtype.kind in "biuf" or _is_float(dtype) else f"it holds no real numbers but {dtype}"


def numeric(shape: tuple[int, ...], dtype: np.dtype, read: Callable[[], np.ndarray]) -> Stored:
    """Return the entry of an array, which is unreadable unless its values are real numbers."""
    problem = _problem(dtype)
    return unreadable(problem, shape, dtype) if problem else Stored(shape, dtype, read)


def read_values(
    file: IO[bytes], count: int, dtype: np.dtype, crc: int | None = None, before: bytes = b""
) -> np.ndarray:
    """Read values in pieces, as `plain_dtype(dtype)`, so that no memory is needed except for the result."""
    # `crc` is the CRC-32 of `before`, which was read already, and the bytes of the values.
    result = np.empty(count, plain_dtype(dtype))
    step = CHUNK // dtype.itemsize
    checksum = zlib.crc32(before)
    for start in range(0, count, step):
        size = min(step, count - start) * dtype.itemsize
        data = file.read(size)
        if len(data) != size:
            raise ValueError("the file ends before the array does")
        if crc is not None:
            checksum = zlib.crc32(data, checksum)
        # A bool is a byte that is 0 or 1; a file can hold any.
        result[start : start + step] = np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype)
    if crc is not None and checksum != crc:
        raise ValueError("its checksum is wrong")
    return result


def parse_json(data: bytes) -> dict[Any, Any]:
    """Parse a JSON object without duplicate names."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[Any, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a name comes twice")
        return result

    value = json.loads(data, object_pairs_hook=unique)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value

"""PyTorch's files, without PyTorch."""

from __future__ import annotations

import io
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from ..._internal.bounds import too_many
from . import torch_pickle
from .archives import Zip
from .base import Reader, Stored, damage, little_endian, numeric, read_values, refuse, unreadable
from .sniff import Kind, kind_of, torch_pickles
from .torch_pickle import Refused

__all__ = ["TorchReader"]

LIMIT_REPEATED = 1 << 24  # values of a tensor beyond those that are stored, where it repeats some


class TorchReader(Reader):
    """The tensors of a file that `torch.save` or `torch.jit.save` wrote."""

    format = "torch"

    def __init__(self, path: str | os.PathLike[str], key: str | None = None):
        super().__init__(path)
        zipped = kind_of(self.path) is Kind.TORCH
        with damage(self.path, "it cannot be opened"):
            left_out: set[str] = set()
            files = (_ZipStorages if zipped else _LegacyStorages)(self.path, left_out)
            found = torch_pickle.state_dicts(files.saved, left_out)
            self._choose(found, key)
            self.metadata |= {"left_out": sorted(left_out)} if left_out else {}
            tensors = found[self.metadata["key"]]
            refuse(too_many(len(tensors)))
            self._keep({name: _torch_array(tensor, files) for name, tensor in tensors.items()})

    def _choose(self, found: dict[str, Any], key: str | None) -> None:
        """Choose a state dict, and record it in the metadata."""
        # A key can also be a part of the path to names inside one: "student", or "model.student".
        keys = list(found)
        if key is not None and key not in found:
            whole = ((k, name) for k in keys for name in found[k])
            key = next((k for k, name in whole if f".{key}." in f".{k}.{name}."), key)
        choice = ", ".join(f"key={k!r} ({len(found[k])} tensors)" for k in keys[:20])
        if key is not None and key not in found:
            raise Refused(f"has no state dict under {key!r}. It has {choice}.")
        if key is None and len(keys) > 1 and torch_pickle.rank(keys[0]) == torch_pickle.rank(keys[1]):
            raise Refused(f"holds several state dicts. Pass one of {choice}.")
        self.metadata: dict[str, Any] = {"key": keys[0] if key is None else key, "keys": keys}
        if key is None and (twin := torch_pickle.twin_of(keys[0], found)):
            self.metadata["other"] = twin


class _ZipStorages:
    """Storages in the format of PyTorch 1.6 and later: each is a member of a zip archive."""

    def __init__(self, path: Path, left_out: set[str]):
        self._zip = Zip(path)
        roots = torch_pickles(self._zip.members)
        if len(roots) != 1:
            raise ValueError(f"it has {len(roots)} files data.pkl")
        self._prefix = roots[0].removesuffix("data.pkl")
        order = f"{self._prefix}byteorder"
        if order in self._zip.members and self._zip.read(order, 16) != b"little":
            raise Refused("was written on a big-endian machine, which is not supported.")
        program = self._zip.read(roots[0], torch_pickle.LIMIT_BYTES)
        self.saved = torch_pickle.load(io.BytesIO(program), left_out=left_out)

    def check(self, key: str, size: int) -> None:
        info = self._zip.members.get(f"{self._prefix}data/{key}")
        if info is None:
            raise ValueError(f"the storage {key!r} is missing")
        if info.file_size < size:
            raise ValueError(f"the storage {key!r} has {info.file_size:,} bytes where {size:,} are needed")

    def read_values(self, key: str, start: int, count: int, dtype: np.dtype) -> np.ndarray:
        return self._zip.read_values(f"{self._prefix}data/{key}", start, count, dtype)


class _LegacyStorages:
    """Storages in the format before PyTorch 1.6: they follow the pickles, each as a count and its values."""

    def __init__(self, path: Path, left_out: set[str]):
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        with open(path, "rb") as file:
            self.saved, storages = torch_pickle.load_legacy(file, left_out)
            end = path.stat().st_size
            for key, dtype in storages:
                (count,) = struct.unpack("<q", file.read(8))
                size = count * little_endian(dtype or "uint8").itemsize
                start = file.tell()
                if not 0 <= size <= end - start:
                    raise ValueError(f"the storage {key!r} goes beyond the end of the file")
                self._places[key] = start, size
                file.seek(size, io.SEEK_CUR)

    def check(self, key: str, size: int) -> None:
        if key not in self._places or self._places[key][1] < size:
            raise ValueError(f"the storage {key!r} is missing or too short")

    def read_values(self, key: str, start: int, count: int, dtype: np.dtype) -> np.ndarray:
        with open(self._path, "rb") as file:
            file.seek(self._places[key][0] + start)
            return read_values(file, count, dtype)


def _torch_array(tensor: torch_pickle.Tensor, files: _ZipStorages | _LegacyStorages) -> Stored:
    if tensor.storage is None:  # there is a problem
        return unreadable(f"the tensor {tensor.problem}")
    dtype = little_endian(tensor.dtype)
    shape, strides, storage = tensor.shape, tensor.strides, tensor.storage
    count = math.prod(shape)
    span = 1 + sum((n - 1) * step for n, step in zip(shape, strides)) if count else 0
    begin = tensor.offset + storage.offset
    files.check(storage.key, (begin + span) * dtype.itemsize if count else 0)
    if count > span + LIMIT_REPEATED:
        raise ValueError(f"a tensor of shape {shape} is made of {span} values")

    def read() -> np.ndarray:
        values = files.read_values(storage.key, begin * dtype.itemsize, span, dtype)
        steps = tuple(step * values.itemsize for step in strides)
        view = np.lib.stride_tricks.as_strided(values, shape, steps) if count else values.reshape(shape)
        return view if span == count else view.copy()

    return numeric(shape, dtype, read)

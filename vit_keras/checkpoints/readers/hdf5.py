"""HDF5 files of every generation of Keras, and the .keras archives that hold one."""

from __future__ import annotations

import math
import os
import re
import tempfile
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ..._internal.bounds import LIMIT_GROUPS, too_many, too_much
from .archives import Zip
from .base import (
    CHUNK,
    LIMIT_DEFLATE,
    LIMIT_TEXT,
    Reader,
    Stored,
    damage,
    numeric,
    parse_json,
    plain_dtype,
    refuse,
    unreadable,
)
from .torch_pickle import Refused

__all__ = ["HDF5Reader", "KerasReader", "PresetReader"]

LIMIT_DEPTH = 64  # of groups in groups


class HDF5Reader(Reader):
    """The arrays of an HDF5 file that any version of Keras wrote."""

    # In a `.weights.h5` of Keras 3, a name is the path in the file ("layers/dense/vars/0"). In older files, it is the
    # name of the weight without ":0" ("dense/kernel"), and without the class of the model that Hugging Face puts before
    # each. `content` is an open file with the bytes, if they are not at `path`.

    def __init__(self, path: str | os.PathLike[str], content: BinaryIO | None = None):
        super().__init__(path)
        self._content = content
        with damage(self.path, "it cannot be opened"), self._open() as file:
            arrays = _datasets(file)
            names = _legacy_names(file)
            if names is None:
                self.format = "keras_weights" if any("/vars/" in f"/{path}" for path in arrays) else "h5"
                names = {path: path for path in arrays}
            else:
                self.format = "h5"
            missing = [path for path in names.values() if path not in arrays]
            if missing:
                raise ValueError(f"it names {missing[0]!r} as a weight, which is not in it")
            if not names:
                raise Refused("is an HDF5 file without weights.")
            self._keep({name: self._array(path, *arrays[path]) for name, path in names.items()})

    def _open(self):
        import h5py

        return h5py.File(self.path if self._content is None else self._content, "r")

    def _array(self, path: str, shape: tuple[int, ...], dtype: np.dtype, problem: str | None) -> Stored:
        if problem:
            return unreadable(problem, shape, dtype)

        def read() -> np.ndarray:
            with self._open() as file:
                if dtype.kind == "V":  # bfloat16
                    return np.asarray(file[path][()].view(dtype), plain_dtype(dtype))
                result = np.empty(shape, plain_dtype(dtype))
                if result.size:
                    file[path].read_direct(result)
                return result

        return numeric(shape, dtype, read)


def _datasets(file) -> dict[str, tuple[tuple[int, ...], np.dtype, str | None]]:
    """Return the shape, type and problem of each array, by its path. Links to other files are not followed."""
    from h5py import Dataset, h5o

    found, count = {}, 0

    def visit(name: bytes, info) -> bool | None:
        nonlocal count
        count += 1
        if name.count(b"/") > LIMIT_DEPTH:  # opening each by its path would take the square of the depth
            raise ValueError(f"its groups are nested more than {LIMIT_DEPTH} deep")
        if info.type == h5o.TYPE_DATASET:
            found[name.decode()] = _describe_dataset(Dataset(h5o.open(file.id, name)))
        return bool(too_many(len(found)) or count > LIMIT_GROUPS) or None

    h5o.visit(file.id, visit, info=True)
    refuse(too_many(len(found)))
    if count > LIMIT_GROUPS:
        raise ValueError(f"it has more than {LIMIT_GROUPS:,} groups and arrays")
    return found


def _describe_dataset(item) -> tuple[tuple[int, ...], np.dtype, str | None]:
    dtype = item.dtype
    # Keras 3 marks this type, which HDF5 does not have.
    if dtype.itemsize == 2 and item.attrs.get("dtype") == "bfloat16":
        dtype = np.dtype(ml_dtypes.bfloat16)
    shape = item.shape
    if shape is None:
        return (), dtype, "it is empty"
    if item.external or item.is_virtual:
        return shape, dtype, "its values are in another file"
    size, stored = math.prod(shape) * dtype.itemsize, item.id.get_storage_size()
    if size > stored * (LIMIT_DEFLATE if item.compression else 1):
        return shape, dtype, f"it claims {size:,} bytes and has {stored:,}"
    return shape, dtype, None


def _legacy_names(file) -> dict[str, str] | None:
    """Return the names and paths of the weights in a file of Keras 2's format, or `None` if it is not one."""
    root = file.get("model_weights", file)
    layers = _texts(root, "layer_names")
    if layers is None:
        return None
    base = root.name.strip("/")
    pairs = []
    for layer in [*layers, *(["top_level_model_weights"] if "top_level_model_weights" in root else [])]:
        for weight in _texts(root[layer], "weight_names") or ():
            path = "/".join(part for part in (base, layer, weight) if part)
            pairs.append((layer, weight.removesuffix(":0"), path))
    names = [weight for _, weight, _ in pairs]
    if len(set(names)) < len(names):
        pairs = [(layer, f"{layer}/{weight}", path) for layer, weight, path in pairs]
    scopes = {name.partition("/")[0] for _, name, _ in pairs}
    scope = scopes.pop() + "/" if len(scopes) == 1 else ""
    scope = scope if re.match(r"tf\w+/", scope) else ""  # Hugging Face: the name of the class, TFViTModel
    result = {name.removeprefix(scope): path for _, name, path in pairs}
    if len(result) < len(pairs):
        raise ValueError("two weights have the same name")
    return result


def _texts(group, name: str) -> list[str] | None:
    """Return a list of strings among the attributes of a group; Keras splits long ones into `name0`, `name1` etc."""
    if name in group.attrs:
        parts = [group.attrs[name]]
    elif f"{name}0" in group.attrs:
        parts = []
        while f"{name}{len(parts)}" in group.attrs:
            parts.append(group.attrs[f"{name}{len(parts)}"])
    else:
        return None
    return [text.decode() if isinstance(text, bytes) else str(text) for part in parts for text in part]


class KerasReader(HDF5Reader):
    """The weights of a whole model saved by Keras 3; `metadata["config"]` is its configuration."""

    def __init__(self, path: str | os.PathLike[str]):
        path = Path(path)
        with damage(path, "it cannot be opened"):
            archive = Zip(path)
            refuse(too_much(sum(member.file_size for member in archive.members.values()), archive.size))
            content = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the reader)
            weakref.finalize(self, content.close)
            with archive.stream("model.weights.h5") as file:
                while data := file.read(CHUNK):
                    content.write(data)
            config = archive.members.get("config.json") and parse_json(archive.read("config.json", LIMIT_TEXT))
        super().__init__(path, content)
        self.format = "keras"
        self.metadata: dict[str, Any] = {"config": config}


class PresetReader(Reader):
    """The arrays of a preset of KerasHub: the backbone's at `path`, and the head's in another file."""

    HEAD = "task.weights.h5"
    format = "keras_weights"

    def __init__(self, backbone: Reader):
        super().__init__(backbone.path)
        for reader in (backbone, HDF5Reader(self.path.parent / self.HEAD)):
            self._arrays.update((name, reader.stored(name)) for name in reader)

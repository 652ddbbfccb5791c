"""A file of weights becomes `{name: array}`; each array is read when it is asked for.

`open_weights` knows NumPy's .npz, safetensors, PyTorch's .pth / .pt / .bin, Keras' .weights.h5, .h5 and .keras,
and files in several pieces with an index. What a file is, its first bytes tell. Nothing in a file is executed,
and what a file claims is compared with its size before memory is taken: an array costs what it has, not what it says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from . import torch_pickle
from .torch_pickle import Refused

# The first bytes tell what a file is, whatever its name says.
_SIGNATURES = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"version https://git-lfs", "a Git-LFS pointer"),
    *((bytes([0x80, protocol]), "a Python pickle") for protocol in range(2, 6)),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
)

_KNOWN = (
    "NumPy's .npz, safetensors, PyTorch's .pth, .pt and .bin, Keras' .weights.h5, .h5 and .keras, "
    "and the .index.json of a file in pieces"
)
_IN_A_FOLDER = (  # the names of Hugging Face's folders, the best first
    "model.safetensors",
    "model.safetensors.index.json",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_pytorch_model.bin",
    "tf_model.h5",
)
_SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".bin", ".h5", ".keras")

_PARSING = threading.Lock()  # NumPy parses headers with `ast`, whose count of its depth threads share in Python 3.11
CHUNK = 1 << 18
LIMIT_TEXT = 1 << 26  # bytes of JSON: a safetensors header, an index, a config.json
LIMIT_NPY_HEADER = 1 << 16
LIMIT_REPEATED = 1 << 24  # values that a PyTorch tensor may have beyond those that are stored: it repeats some
LIMIT_DEFLATE = 1100  # deflate makes nothing smaller than 1/1032


def describe_content(start: bytes) -> str:
    """Say what a file is, in words, from its first bytes (512 are plenty)."""
    if start[4:9] == b"\0\0\0\0{":  # before the others: the length of its header can look like any of them
        return "a safetensors file"
    for signature, kind in _SIGNATURES:
        if start.startswith(signature):
            return kind
    text = start.lstrip().lower()
    if not start:
        return "an empty file"
    if start[8:9] == b"{":
        return "a safetensors file"
    if text.startswith((b"<!doctype", b"<html", b"<head")):
        return "a web page"
    if text.startswith((b"<?xml", b"{")):
        return "an error message in XML or JSON"
    return "not a known format of weights"


def open_weights(path: str | os.PathLike, key: str | None = None) -> Reader:
    """Open a file of weights, whatever its format.

    Args:
        path: A file, the `.index.json` of a file in several pieces, or a folder with one of them in it (of a
            Hugging Face snapshot with several, safetensors are preferred).
        key: Of a PyTorch checkpoint with several state dicts, the one to read (`"model_ema"`; dots go deeper:
            `"state_dict.student"`). `None`: the usual one; `reader.metadata["keys"]` says which there are.

    Returns:
        A `Reader`.

    Raises:
        FileNotFoundError: There is no such file, or no weights in the folder, or a piece is missing.
        ValueError: It is not a file of weights, or it is damaged, or it wants to run code, or there is no such
            `key`. Damage inside an array is found when that array is read.

    Example:
        >>> reader = open_weights("deit_tiny.pth")  # doctest: +SKIP
        >>> reader.shape("patch_embed.proj.weight")  # doctest: +SKIP
        (192, 3, 16, 16)
    """
    path = _in_folder(Path(path)) if Path(path).is_dir() else Path(path)
    kind = _kind(path)
    if kind == "an error message in XML or JSON" and path.name.endswith(".json"):
        return ShardedReader(path, key)
    if kind == "a zip archive":
        kind = _kind_of_zip(path)
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"{path} is {kind}. Weights are read from {_KNOWN}.")
    if reader is TorchReader:
        return TorchReader(path, key)
    if key is not None:
        raise ValueError(f"{path} has no state dicts to choose from: it is {kind}. Leave out key={key!r}.")
    return reader(path)


def _kind(path: Path) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    with open(path, "rb") as file:
        return describe_content(file.read(512))


def _kind_of_zip(path: Path) -> str:
    with _damage(path, "it cannot be opened"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if any(name.rpartition("/")[2] == "data.pkl" and name.count("/") <= 1 for name in names):
        return "a PyTorch file"
    if "model.weights.h5" in names:
        return "a Keras model"
    if names and all(name.endswith(".npy") for name in names):
        return "an .npz file"
    return "a zip archive but holds no NumPy arrays, no PyTorch tensors and no Keras model"


def _in_folder(folder: Path) -> Path:
    for name in _IN_A_FOLDER:
        if (folder / name).is_file():
            return folder / name
    files = sorted(p for p in folder.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    if len(files) == 1:
        return files[0]
    if files:
        raise ValueError(f"{folder} holds several files of weights; name one: {', '.join(p.name for p in files)}.")
    raise FileNotFoundError(f"There is no file of weights in the folder {folder}.")


@contextlib.contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Refused as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # zipfile, zlib, json, h5py and NumPy's parser of headers raise whatever comes to pass
        raise ValueError(f"{path} is damaged or incomplete: {what} ({error}). Delete it and fetch it again.") from None


# --- one array ----------------------------------------------------------------------------------------------


def _dtype(name: str) -> np.dtype:
    """A type by NumPy's or ml_dtypes' name; multi-byte values are little-endian in all formats but .npz."""
    return np.dtype(getattr(ml_dtypes, name, None) or name).newbyteorder("<")


def _is_float(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.type.__module__.startswith("ml_dtypes")


def _plain_dtype(dtype: np.dtype) -> np.dtype:
    """The type in which values come out: float32 for floats of any width, native integers for integers."""
    return np.dtype(np.float32) if _is_float(dtype) else dtype.newbyteorder("=")


@dataclasses.dataclass(frozen=True)
class Stored:
    """An array in a file.

    Attributes:
        shape: Its shape.
        dtype: The type of its values in the file.
        read: Reads it.
        problem: Why it cannot be read, if so.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]
    problem: str | None = None


def _unreadable(problem: str, shape: tuple[int, ...] = (), dtype: Any = object) -> Stored:
    return Stored(shape, np.dtype(dtype), lambda: np.empty(0), problem)


def _stored(shape: tuple[int, ...], dtype: np.dtype, read: Callable[[], np.ndarray]) -> Stored:
    """`Stored`, if the type is one of numbers."""
    if dtype.hasobject:
        return _unreadable("it holds Python objects, which are never unpickled", shape, dtype)
    if dtype.kind not in "biuf" and not _is_float(dtype):
        return _unreadable(f"it holds no real numbers but {dtype}", shape, dtype)
    return Stored(shape, dtype, read)


def _read_values(
    file: BinaryIO, count: int, dtype: np.dtype, crc: int | None = None, before: bytes = b""
) -> np.ndarray:
    """Read `count` values, in pieces, so that no memory is needed beside the result.

    Args:
        file: It gives the bytes.
        count: Number of values.
        dtype: Their type in the file.
        crc: CRC-32 that the bytes must have, if known, together with
        before: the bytes before them.

    Returns:
        `(count,)`, of the type that `_plain_dtype` says.
    """
    result = np.empty(count, _plain_dtype(dtype))
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


class Reader(Mapping):
    """The arrays of a file, by name.

    A mapping that reads an array from the file each time it is asked for it. Floats of any width come out as
    float32, integers and truth values as they are.

    Attributes:
        path: The file.
        format: `"npz"`, `"safetensors"`, `"torch"`, `"keras_weights"` (.weights.h5), `"h5"` or `"keras"`.
        metadata: What else the file tells: safetensors' own metadata, the `key` of PyTorch's state dict and
            the other `keys`, the `config` of a Keras model.
    """

    format: str

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self._arrays: dict[str, Stored] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        stored = self._readable(name)
        with _damage(self.path, f"{name!r} cannot be read"):
            return stored.read()

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self.path)!r}: {len(self)} arrays>"

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array; its values are not read."""
        return self._readable(name).shape

    def dtype(self, name: str) -> np.dtype:
        """The type in which an array comes out; its values are not read."""
        return _plain_dtype(self._readable(name).dtype)

    def _readable(self, name: str) -> Stored:
        stored = self._arrays[name]
        if stored.problem:
            raise ValueError(f"{self.path}: {name!r} cannot be read: {stored.problem}.")
        return stored


# --- zip archives: .npz, .keras and PyTorch -----------------------------------------------------------------


class _Zip:
    """A zip archive whose members' sizes can be trusted."""

    def __init__(self, path: Path):
        self.path = path
        self.size = path.stat().st_size
        self._archive = zipfile.ZipFile(path)
        self.members: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            if info.filename in self.members:
                raise ValueError(f"two members have the name {info.filename!r}")
            self._check(info)
            self.members[info.filename] = info

    def _check(self, info: zipfile.ZipInfo) -> None:
        stored = info.compress_type == zipfile.ZIP_STORED
        if info.flag_bits & 1:
            raise ValueError(f"{info.filename!r} is encrypted")
        if (stored and info.file_size != info.compress_size) or info.header_offset + info.compress_size > self.size:
            raise ValueError(f"the sizes of {info.filename!r} contradict one another")
        if info.file_size > LIMIT_DEFLATE * info.compress_size + 64:
            raise ValueError(f"{info.filename!r} claims more bytes than it can hold")

    def stream(self, name: str) -> BinaryIO:
        """A member as a file; its checksum is checked when its last byte is read."""
        return self._archive.open(self.members[name])

    def open(self, name: str) -> BinaryIO:
        """A member as a file that, if it is not compressed, is the archive itself and goes on behind it."""
        offset = self.offset(name)
        if offset is None:
            return self.stream(name)
        file = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
        file.seek(offset)
        return file

    def offset(self, name: str) -> int | None:
        """Where in the archive a member's bytes begin, or `None` if they are compressed."""
        info = self.members[name]
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with open(self.path, "rb") as file:
            file.seek(info.header_offset)
            header = file.read(30)
        if len(header) != 30 or header[:4] != b"PK\x03\x04":
            raise ValueError(f"the zip entry of {name!r} is not where the directory says")
        start = info.header_offset + 30 + sum(struct.unpack("<HH", header[26:]))
        if start + info.file_size > self.size:
            raise ValueError(f"{name!r} goes beyond the end of the file")
        return start

    def read_values(self, name: str, start: int, count: int, dtype: np.dtype) -> np.ndarray:
        """Read `count` values of a member, from its byte `start`; read to its end, its checksum is checked."""
        info = self.members[name]
        to_the_end = start + count * dtype.itemsize == info.file_size
        # PyTorch can be told to write no checksums; they are 0 then. zipfile checks those of compressed members.
        check = to_the_end and info.CRC and info.compress_type == zipfile.ZIP_STORED and start < LIMIT_NPY_HEADER * 2
        with self.open(name) as file:
            before = file.read(start) if check else _skip(file, start)
            return _read_values(file, count, dtype, info.CRC if check else None, before)

    def read(self, name: str, limit: int) -> bytes:
        """All bytes of a small member."""
        info = self.members[name]
        if info.file_size > limit:
            raise ValueError(f"{name!r} has {info.file_size:,} bytes where at most {limit:,} make sense")
        return self.read_values(name, 0, info.file_size, np.dtype(np.uint8)).tobytes()


def _skip(file: BinaryIO, count: int) -> bytes:
    if isinstance(file, zipfile.ZipExtFile):
        for start in range(0, count, CHUNK):
            file.read(min(CHUNK, count - start))
    else:
        file.seek(count, io.SEEK_CUR)
    return b""


class NpzReader(Reader):
    """The arrays of an .npz file, read one at a time; nothing in it is executed.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not an .npz file, or it is damaged. Damage inside an array is found when
            that array is read.
    """

    format = "npz"

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        kind = _kind(self.path)
        if kind != "a zip archive":
            raise ValueError(f"{self.path} is {kind}; an .npz file as Google publishes them was expected.")
        with _damage(self.path, "it cannot be opened"):
            self._zip = _Zip(self.path)
            if not self._zip.members or any(not name.endswith(".npy") for name in self._zip.members):
                raise Refused("is a zip archive but holds no NumPy arrays: it is not an .npz file.")
            self._arrays = {name.removesuffix(".npy"): self._array(name) for name in self._zip.members}

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

        return _stored(shape, dtype, read)


def _npy_header(file: BinaryIO) -> tuple[int, tuple[int, ...], bool, np.dtype]:
    """Read the header of an .npy: its length, and the shape, the order and the type that it tells."""
    start = file.read(12)
    major = start[6] if len(start) == 12 and start.startswith(b"\x93NUMPY") else 0
    if major not in (1, 2, 3):
        raise ValueError("an array is not in NumPy's format")
    before, length = (
        (10, struct.unpack("<H", start[8:10])[0]) if major == 1 else (12, struct.unpack("<I", start[8:])[0])
    )
    if length > LIMIT_NPY_HEADER:
        raise ValueError(f"the header of an array claims {length:,} bytes")
    text = start[8:] + file.read(before + length - 12)
    parse = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    with _PARSING:
        shape, fortran, dtype = parse(io.BytesIO(text))
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"an array has the shape {shape}")
    if dtype == np.dtype("V2"):  # how NumPy writes a type it does not know
        dtype = np.dtype(ml_dtypes.bfloat16)
    return before + length, shape, fortran, dtype


# --- safetensors --------------------------------------------------------------------------------------------

_SAFETENSORS = {
    **{f"{kind}{bits}": f"{long}{bits}" for kind, long in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}


class SafetensorsReader(Reader):
    """The arrays of a safetensors file: 8 bytes with the length of a header in JSON, the header, the values.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged or incomplete: every array's place is checked on opening.
    """

    format = "safetensors"

    def __init__(self, path: str | os.PathLike):
        super().__init__(path)
        with _damage(self.path, "its header cannot be read"):
            size = self.path.stat().st_size
            with open(self.path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > min(size - 8, LIMIT_TEXT):
                    raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
                header = _parse_json(file.read(length))
            self.metadata = header.pop("__metadata__", {})
            if not isinstance(self.metadata, dict):
                raise ValueError("its metadata are no object in JSON")
            end = 0
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                end = self._add(name, entry, 8 + length, end)
            if 8 + length + end != size:
                raise ValueError(f"the arrays end at byte {8 + length + end:,} of {size:,}")
            self._arrays = {name: self._arrays[name] for name in header}

    def _add(self, name: str, entry: dict, base: int, previous_end: int) -> int:
        shape = tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, start, end)):
            raise ValueError(f"{name!r} has the shape {shape} and the offsets {start}, {end}")
        if start != previous_end or end < start:
            raise ValueError(f"{name!r} begins at {start:,} where {previous_end:,} was expected")
        if entry["dtype"] not in _SAFETENSORS:
            self._arrays[name] = _unreadable(f"its values are of the type {entry['dtype']}, which is not read", shape)
            return end
        dtype = _dtype(_SAFETENSORS[entry["dtype"]])
        count = math.prod(shape)
        if count * dtype.itemsize != end - start:
            raise ValueError(f"{name!r} has {end - start:,} bytes for the shape {shape} of {entry['dtype']}")

        def read() -> np.ndarray:
            with open(self.path, "rb") as file:
                file.seek(base + start)
                return _read_values(file, count, dtype).reshape(shape)

        self._arrays[name] = _stored(shape, dtype, read)
        return end


def _parse_json(data: bytes) -> dict:
    """Parse an object in JSON, in which no name may come twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict:
        result = dict(pairs)
        if len(result) != len(pairs):
            raise ValueError("a name comes twice")
        return result

    value = json.loads(data, object_pairs_hook=unique)
    if not isinstance(value, dict):
        raise ValueError("it is no object in JSON")
    return value


class ShardedReader(Reader):
    """The arrays of a file in several pieces, as Hugging Face cuts up large ones.

    Args:
        path: The `.index.json`; the pieces are beside it.
        key: As that of `open_weights`, for every piece.

    Raises:
        FileNotFoundError: There is no such file, or a piece is missing.
        ValueError: It is no index, or it names what is not in the pieces.
    """

    def __init__(self, path: str | os.PathLike, key: str | None = None):
        super().__init__(path)
        with _damage(self.path, "it is not an index of a file in pieces"):
            if self.path.stat().st_size > LIMIT_TEXT:
                raise ValueError("it is too large")
            index = _parse_json(self.path.read_bytes())
            pieces: dict[str, str] = index["weight_map"]
            self.metadata = dict(index.get("metadata") or {})
            for piece in set(pieces.values()):
                if not isinstance(piece, str) or not re.fullmatch(r"[^/\\:\0]+", piece) or piece in (".", ".."):
                    raise ValueError(f"a piece has the name {piece!r}; pieces are files beside the index")
        readers = {piece: self._open(piece, key) for piece in sorted(set(pieces.values()))}
        if not readers:
            raise ValueError(f"{self.path} names no arrays.")
        for name, piece in pieces.items():
            if name not in readers[piece]:
                raise ValueError(f"{self.path} says that {name!r} is in {piece}, but it is not.")
        self.format = next(iter(readers.values())).format
        self._arrays = {name: readers[piece]._arrays[name] for name, piece in pieces.items()}

    def _open(self, piece: str, key: str | None) -> Reader:
        path = self.path.parent / piece
        if not path.is_file():
            raise FileNotFoundError(f"{self.path} needs {piece}, and there is no such file beside it.")
        if path.name.endswith(".json"):
            raise ValueError(f"{self.path} names {piece} as a piece, which is an index itself.")
        return open_weights(path, key)


# --- PyTorch ------------------------------------------------------------------------------------------------


class TorchReader(Reader):
    """The tensors of a file that `torch.save` or `torch.jit.save` wrote; PyTorch is not needed.

    Args:
        path: The file.
        key: As that of `open_weights`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, it wants to run code, it holds no state dict or several, or a whole
            pickled module.
    """

    format = "torch"

    def __init__(self, path: str | os.PathLike, key: str | None = None):
        super().__init__(path)
        zipped = _kind(self.path) == "a zip archive"
        with _damage(self.path, "it cannot be opened"):
            files = _ZipStorages(self.path) if zipped else _LegacyStorages(self.path)
            found = torch_pickle.state_dicts(files.saved)
            self._choose(found, key)
            tensors = found[self.metadata["key"]]
            self._arrays = {name: _torch_array(tensor, files) for name, tensor in tensors.items()}

    def _choose(self, found: dict[str, Any], key: str | None) -> None:
        """Say in the metadata which of the state dicts is read."""
        keys = list(found)
        choice = ", ".join(f"key={k!r} ({len(found[k])} tensors)" for k in keys[:20])
        if key is not None and key not in found:
            raise Refused(f"has no state dict under {key!r}. It has {choice}.")
        if key is None and len(keys) > 1 and torch_pickle.rank(keys[0]) == torch_pickle.rank(keys[1]):
            raise Refused(f"holds several state dicts; say which one: {choice}.")
        self.metadata = {"key": keys[0] if key is None else key, "keys": keys}


class _ZipStorages:
    """The storages of the format of PyTorch 1.6 and later, one member of a zip archive each."""

    def __init__(self, path: Path):
        self._zip = _Zip(path)
        roots = [n for n in self._zip.members if n.rpartition("/")[2] == "data.pkl" and n.count("/") <= 1]
        if len(roots) != 1:
            raise ValueError(f"it has {len(roots)} files data.pkl")
        self._prefix = roots[0].removesuffix("data.pkl")
        order = f"{self._prefix}byteorder"
        if order in self._zip.members and self._zip.read(order, 16) != b"little":
            raise Refused("was written on a big-endian machine, which is not supported.")
        program = self._zip.read(roots[0], torch_pickle.LIMIT_BYTES)
        self.saved = torch_pickle.load(io.BytesIO(program))

    def check(self, key: str, size: int) -> None:
        info = self._zip.members.get(f"{self._prefix}data/{key}")
        if info is None:
            raise ValueError(f"the storage {key!r} is missing")
        if info.file_size < size:
            raise ValueError(f"the storage {key!r} has {info.file_size:,} bytes where {size:,} are needed")

    def read_values(self, key: str, start: int, count: int, dtype: np.dtype) -> np.ndarray:
        return self._zip.read_values(f"{self._prefix}data/{key}", start, count, dtype)


class _LegacyStorages:
    """The storages of the format before PyTorch 1.6: after the pickles, a count and the values of each."""

    def __init__(self, path: Path):
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        with open(path, "rb") as file:
            self.saved, storages = torch_pickle.load_legacy(file)
            end = path.stat().st_size
            for key, dtype in storages:
                (count,) = struct.unpack("<q", file.read(8))
                size = count * _dtype(dtype or "uint8").itemsize
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
            return _read_values(file, count, dtype)


def _torch_array(tensor: torch_pickle.Tensor, files: _ZipStorages | _LegacyStorages) -> Stored:
    if tensor.problem:
        return _unreadable(f"the tensor {tensor.problem}")
    dtype = _dtype(tensor.dtype)
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

    return _stored(shape, dtype, read)


# --- HDF5 and .keras ----------------------------------------------------------------------------------------


class HDF5Reader(Reader):
    """The arrays of an HDF5 file that Keras wrote, of any generation.

    Of Keras 3's `.weights.h5` the names are the paths in the file (`"layers/dense/vars/0"`); of older files
    those of the weights, without `":0"` (`"dense/kernel"`). What Hugging Face puts before each, the name of
    the model's class, is left out.

    Args:
        path: The file.
        content: The bytes, if they are not at `path`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, or it holds no weights.
    """

    def __init__(self, path: str | os.PathLike, content: BinaryIO | None = None):
        super().__init__(path)
        self._content = content
        with _damage(self.path, "it cannot be opened"), self._open() as file:
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
            self._arrays = {name: self._array(path, *arrays[path]) for name, path in names.items()}

    def _open(self):
        import h5py

        if self._content is not None:
            return h5py.File(self._content, "r")
        return h5py.File(self.path, "r")

    def _array(self, path: str, shape: tuple[int, ...], dtype: np.dtype, problem: str | None) -> Stored:
        if problem:
            return _unreadable(problem, shape, dtype)

        def read() -> np.ndarray:
            with self._open() as file:
                if dtype.kind == "V" or not shape:
                    return np.asarray(file[path][()].view(dtype), _plain_dtype(dtype))
                result = np.empty(shape, _plain_dtype(dtype))
                if result.size:
                    file[path].read_direct(result)
                return result

        return _stored(shape, dtype, read)


def _datasets(file) -> dict[str, tuple[tuple[int, ...], np.dtype, str | None]]:
    """Each array's shape, type and problem, by its path. Links to elsewhere are not followed."""
    import h5py

    found = {}

    def visit(path: str, item) -> None:
        if isinstance(item, h5py.Dataset):
            found[path] = _describe_dataset(item)

    file.visititems(visit)
    return found


def _describe_dataset(item) -> tuple[tuple[int, ...], np.dtype, str | None]:
    dtype = item.dtype
    marked = item.attrs.get("dtype")
    if marked == "bfloat16" and dtype.itemsize == 2:  # how Keras 3 marks what HDF5 has no type for
        dtype = np.dtype(ml_dtypes.bfloat16)
    if item.shape is None:
        return (), dtype, "it is empty"
    shape = tuple(int(n) for n in item.shape)
    if item.external or item.is_virtual:
        return shape, dtype, "its values are in another file"
    size, stored = math.prod(shape) * dtype.itemsize, item.id.get_storage_size()
    if size > stored * (LIMIT_DEFLATE if item.compression else 1):
        return shape, dtype, f"it claims {size:,} bytes and has {stored:,}"
    return shape, dtype, None


def _legacy_names(file) -> dict[str, str] | None:
    """The weights' names and paths in a file of Keras 2's format, or `None` if it is not one."""
    root = file.get("model_weights", file)
    layers = _texts(root, "layer_names")
    if layers is None:
        return None
    base = root.name.strip("/")
    pairs = []
    for layer in [*layers, *(["top_level_model_weights"] if "top_level_model_weights" in root else [])]:
        for weight in (_texts(root[layer], "weight_names") if layer in root else None) or ():
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
    """A list of texts among the attributes of a group; Keras cuts long ones into `name0`, `name1` and so on."""
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
    """The weights of a model that Keras 3 saved whole; `metadata["config"]` is its configuration.

    Args:
        path: The `.keras` file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged or no such model.
    """

    def __init__(self, path: str | os.PathLike):
        path = Path(path)
        with _damage(path, "it cannot be opened"):
            archive = _Zip(path)
            content = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the reader)
            with archive.stream("model.weights.h5") as file:
                while data := file.read(CHUNK):
                    content.write(data)
            config = archive.members.get("config.json") and _parse_json(archive.read("config.json", LIMIT_TEXT))
        super().__init__(path, content)
        self.format = "keras"
        self.metadata = {"config": config}


_READERS: dict[str, type[Reader]] = {
    "an .npz file": NpzReader,
    "a safetensors file": SafetensorsReader,
    "a PyTorch file": TorchReader,
    "a Python pickle": TorchReader,
    "an HDF5 file": HDF5Reader,
    "a Keras model": KerasReader,
}

"""safetensors files.

The library is not used: its NumPy side has neither bfloat16 nor 8-bit floats.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any

import numpy as np

from ..._internal.bounds import too_many
from .base import LIMIT_TEXT, Reader, damage, little_endian, numeric, parse_json, read_values, refuse, unreadable

__all__ = ["SafetensorsReader"]

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
    """The arrays of a safetensors file: 8 bytes with the length of a JSON header, the header, the values."""

    # The position of every array is checked on opening.

    format = "safetensors"

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__(path)
        with damage(self.path, "its header cannot be read"):
            size = self.path.stat().st_size
            with open(self.path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > min(size - 8, LIMIT_TEXT):
                    raise ValueError(f"a header of {length:,} bytes in a file of {size:,}")
                header = parse_json(file.read(length))
            self.metadata: dict[str, Any] = header.pop("__metadata__", {})
            if not isinstance(self.metadata, dict):
                raise ValueError("its metadata are not a JSON object")
            refuse(too_many(len(header)))
            end = 0
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                end = self._add(name, entry, 8 + length, end)
            if 8 + length + end != size:
                raise ValueError(f"the arrays end at byte {8 + length + end:,} of {size:,}")
            self._keep({name: self._arrays[name] for name in header})

    def _add(self, name: str, entry: dict[Any, Any], base: int, previous_end: int) -> int:
        shape = tuple(entry["shape"])
        start, end = entry["data_offsets"]
        if any(type(n) is not int or n < 0 for n in (*shape, start, end)):
            raise ValueError(f"{name!r} has the shape {shape} and the offsets {start}, {end}")
        if start != previous_end or end < start:
            raise ValueError(f"{name!r} begins at {start:,} where {previous_end:,} was expected")
        if entry["dtype"] not in _SAFETENSORS:
            self._arrays[name] = unreadable(f"its values are of the type {entry['dtype']}, which is not read", shape)
            return end
        dtype = little_endian(_SAFETENSORS[entry["dtype"]])
        count = math.prod(shape)
        if count * dtype.itemsize != end - start:
            raise ValueError(f"{name!r} has {end - start:,} bytes for the shape {shape} of {entry['dtype']}")

        def read() -> np.ndarray:
            with open(self.path, "rb") as file:
                file.seek(base + start)
                return read_values(file, count, dtype).reshape(shape)

        self._arrays[name] = numeric(shape, dtype, read)
        return end

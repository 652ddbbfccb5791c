"""Sharded files: several pieces, and an index of the arrays in each."""

from __future__ import annotations

import os
import re
from typing import Any

from ..._internal.bounds import shortened, too_many
from .base import LIMIT_TEXT, Reader, damage, parse_json, refuse

__all__ = ["ShardedReader"]


class ShardedReader(Reader):
    """The arrays of a sharded file, as Hugging Face and Keras write large ones; `path` is the index."""

    # Hugging Face's `.index.json`, or Keras' `.weights.json`, which names groups of arrays, each in one or more pieces.

    def __init__(self, path: str | os.PathLike[str], key: str | None = None):
        super().__init__(path)
        with damage(self.path, "it is not an index of a file in pieces"):
            if self.path.stat().st_size > LIMIT_TEXT:
                raise ValueError("it is too large")
            index = parse_json(self.path.read_bytes())
            found: dict[str, str | list[str]] = index["weight_map"]
            pieces = {name: place if isinstance(place, list) else [place] for name, place in found.items()}
            names = {piece for places in pieces.values() for piece in places}
            refuse(too_many(len(pieces)))
            self.metadata: dict[str, Any] = dict(index.get("metadata") or {})
            if not all(pieces.values()):
                raise ValueError("it names an array without a piece")
            for piece in names:
                if not isinstance(piece, str) or not re.fullmatch(r"[^/\\:\0]+", piece) or piece in (".", ".."):
                    raise ValueError(f"a piece has the name {piece!r}; pieces are files next to the index")
        readers = {piece: self._open(piece, key) for piece in sorted(names)}
        if not readers:
            raise ValueError(f"{self.path} names no arrays.")
        self.format: str = next(iter(readers.values())).format
        groups: dict[tuple[str, str], list[str]] = {}
        for piece, reader in readers.items():
            for name in reader:
                groups.setdefault((piece, name.rpartition("/")[0]), []).append(name)
        for name, places in pieces.items():
            for piece in places:
                inside = [name] if name in readers[piece] else groups.get((piece, name.strip("/")))
                if not inside:
                    raise ValueError(f"{self.path} says that {name!r} is in {piece}, but it is not.")
                self._arrays.update((each, readers[piece].stored(each)) for each in inside)

    def _open(self, piece: str, key: str | None) -> Reader:
        from . import open_weights  # which imports this module

        path = self.path.parent / piece
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{self.path} needs {shortened(piece)}, and there is no such file next to it.")
        if path.name.endswith(".json"):
            raise ValueError(f"{self.path} names {piece} as a piece, which is an index itself.")
        return open_weights(path, key)

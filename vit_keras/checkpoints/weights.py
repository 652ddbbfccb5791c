"""The weights of a model in a file, under canonical names, with all that is known of the model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import patch_stride
from . import architecture, hints, registry
from .assumptions import NOTHING, Assumptions, assume
from .families import FAMILIES, Family, family_named, keras_files, rules
from .readers import open_weights

__all__ = ["Weights"]


class Weights(Mapping):
    """The weights of a model in a file, read one by one under their canonical names.

    Args:
        path: A file of any format that `readers.open_weights` reads, or a folder as Hugging Face writes it.
        family: Name of the family (`families.FAMILIES`). `None`: detected from the names in the file.
        strict: Whether a name that the family does not know is an error. If not, it is listed in `ignored`.
        key: Which of several state dicts in a PyTorch file (`"model_ema"`). `None`: the model's.
        published: The registry's entry of the file. `None`: looked up by the name of the file.

    Attributes:
        path: The file.
        family: Its `Family`.
        shapes: `{canonical name: shape}`.
        architecture: The fields of `ViTConfig` that are known.
        assumptions: What of these is known of similar models only (`assumptions.Assumptions`).
        image_size: `(height, width)` in pixels that the model was trained at, or `None` if unknown.
        preprocessing: How its images are prepared.
        labels: Names of its classes, or `None`.
        task: What its outputs mean, one of `vit_keras.labels.TASKS`.
        ignored: Names in the file that are no weights of the model (a decoder, the state of an optimizer), and the
            classes of Python objects that were left out.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, ambiguous, of no known family, or not of the given one.

    Example:
        >>> Weights("Ti_16.npz").architecture["num_layers"]  # doctest: +SKIP
        12
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        family: str | None = None,
        strict: bool = True,
        key: str | None = None,
        published: registry.Checkpoint | None = None,
    ):
        self.reader = keras_files.readable(without_wrapper(open_weights(os.path.expanduser(path), key)))
        self.path = Path(self.reader.path)
        size = self.path.stat().st_size
        if published is None:
            published = registry.by_filename(self.path.name, size)
            likely = FAMILIES[published.family] if published and family is None else None
            family = likely.name if likely and likely.prefix(self.reader) is not None else family
        else:
            family = family or published.family
        try:
            self.family = _choose(family, self.reader)
            binding = rules.bind(self.family, self.reader, self.reader.shape)
            _check(binding, self.family, strict)
            self._parts = binding.parts
            self.shapes = {name: rules.shape(p, self.reader.shape(p.source)) for name, p in self._parts.items()}
            self.architecture = architecture.infer(self.shapes, self.family, binding.told)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        left_out = (f"an object of {name}" for name in (self.reader.metadata or {}).get("left_out", ()))
        self.ignored = (*sorted((*binding.ignored, *binding.unknown)), *left_out)
        self._last: tuple[str, np.ndarray] | None = None
        heads = architecture.heads_of(binding, self.reader.shape)
        if heads:
            self.architecture["num_heads"] = heads
        known = hints.collect(self.reader, self.path, self.family, self.architecture, published)
        self.assumptions = NOTHING if published else self._assume({**binding.told, **known.fields}, family is not None)
        self.assumptions = self.assumptions._replace(doubts={**self.assumptions.doubts, **known.doubts})
        self.architecture |= {**self.assumptions.fields, **known.fields}
        self.image_size = known.image_size
        self.preprocessing = known.preprocessing
        self.labels, self.task = known.labels, known.task

    def _assume(self, known: Mapping[str, Any], is_named: bool) -> Assumptions:
        try:
            return assume(self.family, self.architecture, known, is_named=is_named)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    @property
    def positions(self) -> int | None:
        """The number of patches that the file has positions for, or `None` if it has no positions."""
        return architecture.position_rows(self.shapes, self.architecture)

    def __getitem__(self, name: str) -> np.ndarray:
        part = self._parts[name]
        if self._last is None or self._last[0] != part.source:
            self._last = None  # before the next one is read: at most one array of the file is in memory
            self._last = (part.source, self.reader[part.source])
        return np.asarray(rules.read(part, self._last[1]), np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def grid(self, source_grid: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return the patches down and across that the file has positions for; `None` if they cannot be inferred.

        Args:
            source_grid: The answer, from a caller who knows it; it is checked against the number of positions.

        Raises:
            ValueError: `source_grid` has another number of patches.
        """
        if source_grid is not None:
            if self.positions is not None and source_grid[0] * source_grid[1] != self.positions:
                raise ValueError(
                    f"{self.path} has {self.positions} patches, which is not the grid {tuple(source_grid)}."
                )
            return tuple(source_grid)
        saved = next((name for name in self.reader if name.endswith("/add_position_embs/vars/grid")), None)
        if saved is not None:  # a .weights.h5 of this package
            return tuple(int(size) for size in self.reader[saved])
        square = architecture.square_grid(self.positions or 0)
        if self.image_size is None or self.positions is None:
            return square
        stride = patch_stride(self.architecture["patch_size"], self.architecture.get("resnet"))
        grid = tuple(size // pixels for size, pixels in zip(self.image_size, stride))
        return grid if grid[0] * grid[1] == self.positions else square


def without_wrapper(reader: Any, families: Iterable[Family] = tuple(FAMILIES.values())) -> Any:
    """Return the reader of a model of these families without what wrappers put before every name (`module.`, `model.`).

    A family's own prefix may stand before some names only, those of its `outer` rules being without.
    """
    prefix, names = "", list(reader)
    if all(family.prefix(names) is None for family in families):
        return reader
    while names and all("." in name for name in names) and len({name.partition(".")[0] for name in names}) == 1:
        prefix += names[0].partition(".")[0] + "."
        names = [name.partition(".")[2] for name in names]
    return keras_files.Renamed(reader, {name.removeprefix(prefix): name for name in reader}) if prefix else reader


def _choose(name: str | None, reader: Any) -> Family:
    """Return the family of a file: the given one if the file can be of it, or else the detected one."""
    found = rules.detect(FAMILIES.values(), reader, reader.shape)
    family = found if name is None else family_named(name)
    if found is not None and found.refused:
        raise ValueError(f"{found.refused}.")
    if family is None:
        some = ", ".join(map(repr, sorted(reader)[:4]))
        raise ValueError(
            f"The file holds no Vision Transformer of a known family: it has {len(reader)} arrays: {some}"
            f"{' …' if len(reader) > 4 else ''}. {_nearest(reader)}"
        )
    if name is not None and family.detect and family.prefix(reader) is None:
        raise ValueError(
            f"The file is not of the family {name!r}, whose files have {', '.join(map(repr, family.detect))}"
            + (f" and not {', '.join(map(repr, family.absent))}" if family.absent else "")
            + (f"; it looks like {found.name!r}." if found else ".")
        )
    if family.refused:
        raise ValueError(f"{family.refused}.")
    return family


def _nearest(names: Mapping) -> str:
    """Say which family a file comes closest to, and which names are missing."""
    text = "\n".join((*names, ""))

    def some_end_in(*ends: str) -> bool:
        return any(f"{end}\n" in text for end in ends)

    missing = {
        f.name: [n for n in f.detect + f.marks if not some_end_in(*n.split("|"))]
        for f in FAMILIES.values()
        if not f.refused and not some_end_in(*f.absent)
    }
    possible = [FAMILIES[name] for name in missing if missing[name]]
    closest = min(possible, key=lambda f: len(missing[f.name]) / len(f.detect + f.marks))
    if len(missing[closest.name]) == len(closest.detect + closest.marks):
        return f"Known families are {', '.join(FAMILIES)}."
    return f"The closest family is {closest.title}; missing: {', '.join(map(repr, missing[closest.name]))}."


def _check(binding: rules.Binding, family: Family, strict: bool) -> None:
    if binding.doubled:
        raise ValueError(f"Two arrays of the file are both {binding.doubled[0]!r}.")
    if binding.unknown and strict:
        some = ", ".join(map(repr, binding.unknown[:4]))
        raise ValueError(
            f"{len(binding.unknown)} arrays are not known in the family {family.name!r}: {some}"
            f"{' …' if len(binding.unknown) > 4 else ''}. Pass strict=False to leave them out."
        )

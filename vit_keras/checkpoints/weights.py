"""Weights in a file under their canonical names, with all that is known about the model."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..preprocess import Preprocessing
from . import architecture, grids, hints, registry, timm_models
from .assumptions import NOTHING, Assumptions, assume
from .families import FAMILIES, TIMM_FAMILIES, Family, family_named, keras_files, patches, rules
from .families.rules import POSITIONS
from .locate import by_filename
from .readers import open_weights
from .readers.torch_pickle import RAW, is_averaged
from .wording import some

__all__ = ["Weights"]


class Weights(Mapping[str, Any]):
    """Weights in a file, read one by one under their canonical names."""

    key: str | None
    labels: Any
    raw_key: str | None
    stated: frozenset[str]
    task: str

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        family: str | None = None,
        strict: bool = True,
        key: str | None = None,
        published: registry.Checkpoint | None = None,
        channels: int | None = None,
    ):
        self.reader: Any = keras_files.readable(without_wrapper(open_weights(os.path.expanduser(path), key)))
        self.path: Path = Path(self.reader.path)
        self.key, self.raw_key = _state_dict(self.reader.metadata, key)
        self._is_named = family is not None
        is_by_name = published is None
        if published is None:
            published = by_filename(self.path.name, self.path.stat().st_size)
            likely = FAMILIES[published.family] if published and family is None else None
            family = likely.name if likely and likely.prefix(self.reader) is not None else family
        else:
            family = family or published.family
        with hints.naming(self.path, "metadata"):
            saved = hints.saved_settings(self.reader)
            written, config = saved.get("family"), dict(saved.get("config", {}))
        try:
            self.family: Family = _choose(written if family is None else family, self.reader)
            binding = rules.bind(self.family, self.reader, self.reader.shape)
            _check_precision(binding, self.reader)
            _check(binding, self.family, strict)
            known = functools.partial(hints.stated_channels, config, self.path, channels)
            self._parts = patches.settled(binding.parts, self.reader.shape, known)
            self._implied = binding.told
            self.shapes: dict[str, tuple[int, ...]] = {
                name: rules.shape(p, self.reader.shape(p.source)) for name, p in self._parts.items()
            }
            self._inferred = architecture.infer(self.shapes, self.family, {**binding.told, **_stated(config)})
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        left_out = (f"an object of {name}" for name in self.reader.metadata.get("left_out", ()))
        self.ignored: tuple[str, ...] = (*sorted((*binding.ignored, *binding.unknown)), *left_out)
        self._last: tuple[str, np.ndarray] | None = None
        heads = architecture.heads_of(binding, self.reader.shape)
        if heads:
            self._inferred["num_heads"] = heads
        if is_by_name and published and (saved or self._inferred.get("classes") not in (None, published.classes)):
            published = None  # somebody's own file
        self.published: registry.Checkpoint | None = published
        self.origin: str | None = published.name if published else saved.get("origin") and str(saved["origin"])
        self._known = hints.collect(self.reader, self.path, self.family, self._inferred, published)
        layouts = grids.layouts(self.shapes, self.family)
        in_timm = len(layouts) > 1 and self.family in TIMM_FAMILIES
        self._usual = timm_models.usual_rows(self._inferred, self.family.name, layouts) if in_timm else None
        self.image_size: tuple[int, int] | None = self._known.image_size
        self.preprocessing: Preprocessing = self._known.preprocessing
        self.labels, self.task, self.stated = self._known.labels, self._known.task, self._known.stated
        self.settle()

    def settle(
        self, source_grid: tuple[int, int] | None = None, *, image_size: tuple[int, int] | None = None, **rows: Any
    ) -> None:
        """Use the caller's arguments to decide the patch grid of the positions, and the tokens that have rows."""
        try:
            self.table: grids.Table | None = self._read_table(source_grid, image_size, rows)
            learned = self.table.fields if self.table and POSITIONS in self.shapes else {}
            inferred, known = {**self._inferred, **learned}, self._known.fields
            self.assumptions: Assumptions = NOTHING
            if self.published is None:
                self.assumptions = assume(self.family, inferred, {**self._implied, **known}, is_named=self._is_named)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        self.assumptions = self.assumptions._replace(doubts={**self.assumptions.doubts, **self._known.doubts})
        self.architecture: dict[str, Any] = {**inferred, **self.assumptions.fields, **known, **learned}
        if not architecture.has_map_prefix(self.architecture):
            self.architecture.pop("map_prefix", None)

    def _read_table(self, source_grid=None, image_size=None, rows=None) -> grids.Table | None:
        return grids.read(
            self.shapes,
            self.family,
            source_grid=source_grid,
            asked=rows,
            saved=self._saved_grid(),
            stated=self._patches_of(self.image_size),
            told=self._known.fields,
            wanted=self._patches_of(image_size),
            usual=self._usual,
            is_ours=self._known.is_ours,
        )

    def _patches_of(self, image_size: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if image_size is None else grids.patches_of(image_size, self._inferred)

    def _saved_grid(self) -> tuple[int, int] | None:
        """Return the grid that the file stores: in this package's .weights.h5, or as the axes of the table."""
        saved = next((name for name in self.reader if name.endswith("/add_position_embs/vars/grid")), None)
        if saved is not None:
            down, across = (int(size) for size in self.reader[saved])
            return down, across
        part = self._parts.get(POSITIONS)
        shape = () if part is None else self.reader.shape(part.source)
        return tuple(shape[1:3]) if len(shape) == 4 else None

    @property
    def positions(self) -> int | None:
        """The number of patches that the file has positions for; `None` if there are no positions or it is unknown."""
        return self.table.patches if self.table else None

    def __getitem__(self, name: str) -> np.ndarray:
        part = self._parts[name]
        if self._last is None or self._last[0] != part.source:
            self._last = None  # before the next one is read: at most one array of the file is in memory
            self._last = (part.source, self.reader[part.source])
        return np.asarray(rules.read(part, self._last[1]), np.float32)

    def grouped(self, names: Iterable[str]) -> list[str]:
        """Return names with those next to each other that are read from one array of the file."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self._parts[name].source, []).append(name)
        return [name for group in groups.values() for name in group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def grid(self, source_grid: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return the patches down and across that the file has positions for; `None` if they cannot be inferred."""
        if source_grid is None:
            return self.table.grid if self.table else None
        try:
            table = self._read_table(source_grid)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        return table.grid if table else (source_grid[0], source_grid[1])


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kind of positions in the saved configuration of a model: a model without any has no array of them."""
    return {"position": config["position"]} if "position" in config else {}


def _state_dict(metadata: Mapping[str, Any], wanted: str | None) -> tuple[str | None, str | None]:
    """Return the state dict that is read, if there are several, and the raw one if its average was preferred."""
    keys = metadata.get("keys", ())
    if len(keys) < 2:
        return None, None
    averaged = wanted is None and is_averaged(metadata["key"], keys)
    return metadata["key"], next((key for key in keys if key in RAW), None) if averaged else None


def without_wrapper(reader: Any, families: Iterable[Family] = tuple(FAMILIES.values())) -> Any:
    """Return the reader of a file without the prefix of wrappers before every name (`module.`, `model.`)."""
    # Only some names have the family's own prefix: those of its `outer` rules do not.
    prefix, names = "", list(reader)
    if all(family.prefix(names) is None for family in families):
        return reader
    while names and all("." in name for name in names) and len({name.partition(".")[0] for name in names}) == 1:
        prefix += names[0].partition(".")[0] + "."
        names = [name.partition(".")[2] for name in names]
    return keras_files.Renamed(reader, {name.removeprefix(prefix): name for name in reader}) if prefix else reader


def _choose(name: str | None, reader: Any) -> Family:
    """Return the family of a file: the given one if it fits, or the detected one."""
    found = rules.detect(FAMILIES.values(), reader, reader.shape)
    family = found if name is None else family_named(name)
    if found is not None and found.refused:
        raise ValueError(f"{found.refused}.")
    if family is None:
        raise ValueError(
            f"The file holds no Vision Transformer of a known family: it has {len(reader)} arrays: "
            f"{some(map(repr, sorted(reader)), 4)}. {_nearest(reader)}"
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


def _nearest(names: Mapping[str, Any]) -> str:
    """Describe the closest family of a file, and the missing names."""
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


def _check_precision(binding: rules.Binding, reader: Any) -> None:
    """Raise an error for quantized weights: integers, or 8-bit floats that come with scales."""
    last = {name: name.rpartition(".")[2] for name in (*binding.unknown, *binding.ignored)}
    scales = {name.rpartition(".")[0]: name for name, ends_in in last.items() if "scale" in ends_in}
    for part in binding.parts.values():
        dtype, scale = reader.stored(part.source).dtype, scales.get(part.source.rpartition(".")[0])
        if scale is not None and dtype.name.startswith("float8"):
            raise ValueError(
                f"{part.source!r} has values of {dtype}, which {scale!r} scales: the weights are quantized, and their "
                "scales are not read. Pass a file with weights of float32, float16 or bfloat16."
            )
        if dtype.kind in "iu" and dtype.itemsize == 1:
            raise ValueError(
                f"{part.source!r} has values of {dtype}: the weights are quantized, and their scales are not read. "
                "Open the whole model, as model.save wrote it, with vit_keras.load_model."
            )


def _check(binding: rules.Binding, family: Family, strict: bool) -> None:
    if binding.doubled:
        raise ValueError(f"Two arrays of the file are both {binding.doubled[0]!r}.")
    if binding.unknown and strict:
        advice = "Pass strict=False to leave them out."
        if family is FAMILIES["keras"]:  # its names are numbers: these arrays are layers of the model
            advice = "Build the model, and call model.load_weights(path). strict=False leaves them out."
        raise ValueError(
            f"{len(binding.unknown)} arrays are not known in the family {family.name!r}: "
            f"{some(map(repr, binding.unknown), 4)}. {advice}"
        )

"""Weights in a file under their canonical names, with all that is known about the model."""

from __future__ import annotations

import fnmatch
import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._internal.bounds import about
from ..preprocess import Preprocessing
from . import architecture, grids, hints, registry, timm_models
from .assumptions import NOTHING, Assumptions, assume
from .families import FAMILIES, TIMM_FAMILIES, Family, family_named, keras_files, patches, rules
from .families.rules import POSITIONS
from .locate import by_filename
from .readers import open_weights
from .wording import some

__all__ = ["Weights", "open_network"]


class CanonicalArrays(Mapping[str, Any]):
    """The arrays of a file, read one by one under their canonical names."""

    path: Path

    def _hold(self, reader: Any, parts: Mapping[str, rules.Part]) -> None:
        self.reader: Any = reader
        self._parts = parts
        self._last: tuple[str, np.ndarray] | None = None
        self.shapes: dict[str, tuple[int, ...]] = {
            name: rules.shape(p, reader.shape(p.source)) for name, p in parts.items()
        }

    def __getitem__(self, name: str) -> np.ndarray:
        part = self._parts[name]
        if self._last is None or self._last[0] != part.source:
            self._last = None  # before the next one is read: at most one array of the file is in memory
            self._last = (part.source, self.reader[part.source])
        with about(self.path):
            return np.asarray(rules.read(part, self._last[1]), np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


class Weights(CanonicalArrays):
    """Weights in a file, read one by one under their canonical names."""

    labels: Any
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
        self.reader: Any = open_network(os.path.expanduser(path), key)
        self.path: Path = Path(self.reader.path)
        self.key: str | None = self.reader.metadata["key"] if len(self.reader.metadata.get("keys", ())) > 1 else None
        self.other_key: str | None = self.reader.metadata.get("other")
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
        with about(self.path):
            self.family: Family = _choose(written if family is None else family, self.reader)
            binding = rules.bind(self.family, self.reader, self.reader.shape)
            _check_precision(binding, self.reader)
            check_binding(binding, self.family, strict)
            known = functools.partial(hints.stated_channels, config, self.path, channels)
            self._hold(self.reader, patches.settled(binding.parts, self.reader.shape, known))
            self._implied = binding.told
            # A model without positions has no array of them.
            stated = {field: config[field] for field in ("position",) if field in config}
            self._inferred = architecture.infer(self.shapes, self.family, {**binding.told, **stated})
        left_out = (f"an object of {name}" for name in self.reader.metadata.get("left_out", ()))
        others = self.reader.metadata.get("left_out_names", ())
        self.ignored: tuple[str, ...] = (*sorted((*binding.ignored, *binding.unknown)), *others, *left_out)
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
        with about(self.path):
            self.table: grids.Table | None = self._read_table(source_grid, image_size, rows)
            learned = self.table.fields if self.table and POSITIONS in self.shapes else {}
            inferred, known = {**self._inferred, **learned}, self._known.fields
            self.assumptions: Assumptions = NOTHING
            if self.published is None:
                self.assumptions = assume(self.family, inferred, {**self._implied, **known}, is_named=self._is_named)
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

    def grouped(self, names: Iterable[str]) -> list[str]:
        """Return names with those next to each other that are read from one array of the file."""
        groups: dict[str, list[str]] = {}
        for name in names:
            groups.setdefault(self._parts[name].source, []).append(name)
        return [name for group in groups.values() for name in group]

    def grid(self, source_grid: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return the patches down and across that the file has positions for; `None` if they cannot be inferred."""
        if source_grid is None:
            return self.table.grid if self.table else None
        with about(self.path):
            table = self._read_table(source_grid)
        return table.grid if table else (source_grid[0], source_grid[1])


def open_network(
    path: str | os.PathLike[str], key: str | None = None, families: Iterable[Family] = tuple(FAMILIES.values())
) -> Any:
    """Open a file under names that a family can list: of several networks in it, the usual one or that of a key."""
    # `metadata` has the `key` of what is read and all `keys`; `other`: what was not read, if that may surprise;
    # `left_out_names`: the names of other networks.
    reader = keras_files.readable(open_weights(path, key))
    names = _unchunked(reader)
    keys, networks = reader.metadata.get("keys", ()), _networks(names, families)
    ranked = {p: re.sub("[./]$", "", p) for p in sorted(networks, key=lambda p: (_rank(p), p))}
    wanted = None if key in keys and key not in ranked.values() else key
    if wanted is not None and keys:
        wanted = wanted.removeprefix(f"{reader.metadata['key']}.")
    pattern = "$" if wanted == "" else rf"(.*[./])?{re.escape(wanted or '')}[./]"
    chosen = [p for p in ranked if wanted is None or re.match(pattern, p)]
    choice = ", ".join(f"key={network!r}" for network in ranked.values())
    if not chosen and wanted is not None:
        raise ValueError(f"{path} has no network under key={wanted!r}. {f'It has {choice}' if choice else 'Omit it'}.")
    if len(chosen) > 1 and _rank(chosen[0]) == _rank(chosen[1]):
        raise ValueError(f"{path} holds several networks. Pass one of {choice}.")
    metadata = dict(reader.metadata)
    if len(ranked) > 1:
        kept = _without_others(names, chosen[0], [network for network in ranked if network != chosen[0]])
        keys = sorted(ranked.values(), key=lambda network: network != ranked[chosen[0]])
        metadata |= {"key": keys[0], "keys": keys, "left_out_names": sorted(names.keys() - {*kept})}
        metadata |= {"other": keys[1]} if wanted is None else {}
        names = {name: names[name] for name in kept}
    # A prefix of all names goes (`module.`): the family's own is not before the names of its `outer` rules.
    while networks and all("." in name for name in names) and len({n.partition(".")[0] for n in names}) == 1:
        names = {name.partition(".")[2]: stored for name, stored in names.items()}
    return keras_files.Renamed(reader, names, metadata=metadata)


def _unchunked(reader: Any) -> dict[str, str]:
    """Return names without the chunks into which DINOv2's trainer puts blocks, each with the name in the file."""
    names = {re.sub(r"\bblocks\.\d+\.(?=\d+\.)", "blocks.", name): name for name in reader}
    return names if len(names) == len(reader) else {name: name for name in reader}


def _networks(names: Iterable[str], families: Iterable[Family]) -> set[str]:
    """Return the prefixes before the names of networks in a file, except those that a family knows as no part of it."""
    found = [(prefix, family) for family in families for prefix in family.prefixes(names)]
    own = {p for p, family in found if not any(fnmatch.fnmatchcase(p, ignored) for ignored in family.ignored)}
    return own or {p for p, _ in found[:1]}


_PREFERRED, _UNWANTED = {"teacher", "ema", "q", "query"}, {"student", "momentum", "k", "key"}
"""Words in the prefixes of networks: those that authors evaluate, and those that they leave behind."""


def _rank(prefix: str) -> int:
    words = {*re.split("[^a-z]+", prefix.lower())}
    return 0 if words & _PREFERRED else 2 if words & _UNWANTED else 1


def _without_others(names: Iterable[str], chosen: str, others: Iterable[str]) -> list[str]:
    """Return the names that are not of the other networks in a file."""
    if any(chosen.startswith(other) for other in others):
        return [name for name in names if name.startswith(chosen)]
    ends = ([other[: m.end()] for m in re.finditer("[./]", other)] for other in others)
    heads = tuple(next(head for head in each if not chosen.startswith(head)) for each in ends)
    return [name for name in names if not name.startswith(heads)]


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


def check_binding(binding: rules.Binding, family: Family, strict: bool) -> None:
    """Raise an error for two arrays of one weight, and if `strict` for arrays that the family does not know."""
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

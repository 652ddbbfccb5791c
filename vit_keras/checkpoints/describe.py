"""Describe a weight file by its names and shapes, without reading arrays or building a model.

`describe` returns plain data; `wording.sentences` turns it into text.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._internal.bounds import patch_stride
from ..config import ViTConfig
from . import architecture, grids, registry
from .download import cached_path
from .families import FAMILIES, family_named, rules
from .locate import by_filename, find_file
from .readers.base import Stored
from .weights import Weights, open_network

__all__ = ["cached_as", "describe", "unstored_fields"]


def describe(
    path: str | os.PathLike[str],
    *,
    family: str | None = None,
    key: str | None = None,
    names: bool = False,
    values: bool = False,
) -> dict[str, Any]:
    """Describe a weight file, without reading its arrays unless `values` is true.

    Args:
        path: Weight file, Hugging Face folder, published name, factory or URL. What is not on this machine is not
            downloaded.
        family: Checkpoint family, such as `"timm"`; `None`: detected from the names of the arrays.
        key: State dict to read if a PyTorch file has several, such as `"model_ema"`.
        names: Whether to list all arrays, and the weight that each becomes.
        values: Whether to read the arrays to look for infinite or undefined values. These are listed as `not_finite`.

    Returns:
        Plain JSON: `path`, `format`, `bytes`, `arrays`, `values`, `dtypes`, `family`, `published`. For a file of a
        known family also `architecture`, `grid` (how its positions are read), `needed` (options that `from_checkpoint`
        needs, with their possible values), `weights`, `parameters`, `preprocessing`,
        `labels`, `origin` (the name of the published checkpoint that the weights are, or that training began with),
        `ignored`, `unknown`. For any other file the `problem`, with the family that comes closest.

    Raises:
        FileNotFoundError: There is no such file, or it is published and not on this machine.
        ValueError: The file is damaged or has no weights, or `family` or `key` is unknown.

    Example:
        >>> describe("Ti_16.npz")["architecture"]["num_layers"]  # doctest: +SKIP
        12
    """
    if family is not None:
        family_named(family)
    path = find_file(path)
    published = cached_as(path)
    try:
        weights = Weights(path, family=family, strict=False, key=key, published=published)
    except ValueError as error:
        reader = open_network(path, key)  # raises the same error if the names are not the cause
        problem = str(error).removeprefix(f"{reader.path}: ")
        published = published or by_filename(path.name, path.stat().st_size)
        found = _about_file(reader, published, names) | _about_failure(reader, family, problem)
        return found | (_about_values(reader) if values else {})
    report = _about_file(weights.reader, weights.published, names, weights.family) | _about_model(weights)
    report["assumed"] = {field: report["architecture"].get(field) for field in weights.assumptions.open}
    binding = rules.bind(weights.family, weights.reader, weights.reader.shape)
    report |= {"ignored": sorted(binding.ignored), "unknown": sorted(binding.unknown)}
    return report | (_about_values(weights.reader) if values else {})


def _about_values(reader: Any) -> dict[str, list[str]]:
    """Return the names of the arrays that have infinite or undefined values, and of those that are damaged."""
    found: dict[str, list[str]] = {"not_finite": [], "damaged": []}
    for name in reader:
        if not reader.stored(name).problem:
            try:
                if not np.isfinite(reader[name]).all():
                    found["not_finite"].append(name)
            except ValueError:
                found["damaged"].append(name)
    return found


def unstored_fields(
    path: str | os.PathLike[str], config: ViTConfig, grid: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return the fields of a configuration that a file does not store; with `grid`, those of its positions too."""
    # This package reads them from the metadata of safetensors files.
    weights = Weights(path)
    family, open_fields = weights.family, {}
    for field in (field for field in family.choices if field not in weights.architecture):
        open_fields[field] = getattr(config, field)
    try:
        read = architecture.complete(weights.architecture, family, open_fields)
    except ValueError:
        read = {**weights.architecture, "num_heads": None}
    theirs = {field: read.get(field, _DEFAULTS[field]) for field in _SHOWN_BY_SHAPES}
    shown = (*_SHOWN_BY_FAMILY, "position_resize") if grid else _SHOWN_BY_FAMILY
    theirs |= {field: family.config.get(field, _DEFAULTS[field]) for field in shown}
    theirs |= {"mlp_activation": "silu"} if config.gated_mlp else {}
    theirs |= {} if config.include_top else {"activation": config.activation}  # without a head there is none
    theirs |= rules.bind(family, weights.reader, weights.reader.shape).told
    theirs |= dict.fromkeys(family.choices)
    if not architecture.has_map_prefix(dataclasses.asdict(config)):
        del theirs["map_prefix"]
    if config.resnet is None:
        del theirs["resnet_numerics"]
    found = {field: getattr(config, field) for field, value in theirs.items() if value != getattr(config, field)}
    if grid and weights.table and (weights.table.grid != tuple(grid) or weights.table.warning):
        found["source_grid"] = tuple(grid)
    return found


_DEFAULTS = dataclasses.asdict(ViTConfig())
_SHOWN_BY_SHAPES = ("num_heads", "pooling", "position", "final_norm")
_SHOWN_BY_FAMILY = ("activation", "merge_tokens", *rules.NUMERICS)


# --- the file ------------------------------------------------------------------------------------------------


def cached_as(path: Path) -> registry.Checkpoint | None:
    """Return the registry's entry for a file, found by its path in the cache of downloads."""
    if not os.path.isfile(path):
        return None
    here = path.resolve()
    cached = (c for c in registry.listed() if cached_path(c.url).name == path.name)
    return next((c for c in cached if cached_path(c.url).resolve() == here), None)


def _about_file(reader: Any, published: Any, names: bool, family: Any = None) -> dict[str, Any]:
    stored = {name: reader.stored(name) for name in reader}
    path = Path(reader.path)
    values = {name: math.prod(array.shape) for name, array in stored.items()}
    in_pieces = path.name.endswith(".json")
    size = sum(values[n] * stored[n].dtype.itemsize for n in stored) if in_pieces else path.stat().st_size
    report = {
        "path": str(path),
        "format": reader.format,
        "bytes": size,
        "arrays": len(stored),
        "values": sum(values.values()),
        "dtypes": dict(collections.Counter(str(array.dtype) for array in stored.values())),
        "unreadable": {name: array.problem for name, array in stored.items() if array.problem},
        "published": published and {field: getattr(published, field) for field in _PUBLISHED},
    }
    if len(reader.metadata.get("keys", ())) > 1:
        report |= {field: reader.metadata[field] for field in ("key", "keys")}
    if names:
        report["names"] = _names(reader, stored, family)
    return report


_PUBLISHED = ("name", "url", "source", "license", "top1", "top1_source", "sha256")


def _names(reader: Any, stored: Mapping[str, Stored], family: Any) -> list[dict[str, Any]]:
    becomes: dict[str, list[str]] = {name: [] for name in stored}
    unknown: set[str] = set(stored) if family is None else set()
    if family is not None:
        binding = rules.bind(family, reader, reader.shape)
        unknown = set(binding.unknown)
        for canonical, part in binding.parts.items():
            becomes[part.source].append(canonical)
    return [
        {
            "name": name,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "becomes": becomes[name],
            "status": "weight" if becomes[name] else "unknown" if name in unknown else "ignored",
        }
        for name, array in stored.items()
    ]


# --- a file of a known family -------------------------------------------------------------------------------------


def _about_model(weights: Weights) -> dict[str, Any]:
    fields, needed = _complete(weights)
    preprocessing = weights.preprocessing
    stride = patch_stride(fields["patch_size"], fields.get("resnet"))
    size = _image_size(weights, fields)
    report: dict[str, Any] = {
        "family": {"name": weights.family.name, "title": weights.family.title},
        "weights": len(weights),
        "parameters": sum(math.prod(shape) for shape in weights.shapes.values()),
        "needed": needed,
        "preprocessing": preprocessing.replace(image_size=size or preprocessing.image_size).to_dict(),
        "labels": list(weights.labels) if isinstance(weights.labels, tuple) else weights.labels,
        "origin": weights.origin,
    }
    table = weights.table
    if table is not None:
        report["grid"] = {"patches": table.grid, "shown_by": table.shown_by, "doubt": table.warning, **table.fields}
        if table.grid is None:
            needed["source_grid"] = f"patches down and across; {table.error}"
    options = {"image_size": size or (64 * stride[0], 64 * stride[1]), "drop_remainder": True}
    pooling = {} if fields.get("include_top") or fields.get("pooling", "token") else {"include_top": False}
    try:
        config = ViTConfig().replace(**{**fields, **options, **pooling})
    except ValueError as error:
        return report | {"architecture": fields, "tokens": None, "problem": str(error)}
    is_cut = fields.get("drop_remainder", False) or (size is not None and grids.is_cut(size, fields))
    known = dataclasses.asdict(config) | {"image_size": size, "drop_remainder": is_cut}
    known |= {field: None for field in needed if field in known}
    return report | {"architecture": known, "tokens": _tokens(config, size), "problem": None}


def _complete(weights: Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all fields, with some value where none can be inferred, and the possible values of such fields."""
    known, family = weights.architecture, weights.family
    needed: dict[str, Any] = {f: list(values) for f, values in family.choices.items() if f not in known}
    assumed = {field: values[0] for field, values in needed.items()}
    try:
        return architecture.complete(known, family, assumed), needed
    except ValueError:
        heads = architecture.likely_heads(known.get("inner", known["hidden_size"])) or [1]
        return architecture.complete(known, family, {**assumed, "num_heads": heads[0]}), {"num_heads": heads, **needed}


def _image_size(weights: Weights, fields: Mapping[str, Any]) -> tuple[int, int] | None:
    if weights.table is None:
        return weights.image_size
    grid = weights.table.native
    return grid and grids.image_size_of(grid, weights.image_size, fields)


def _tokens(config: ViTConfig, size: tuple[int, int] | None) -> dict[str, Any]:
    kinds = {
        "class": int(config.has_class_token),
        "distillation": int(config.distillation_token),
        "registers": config.registers,
    }
    grid = config.grid if size is not None else None
    return {"grid": grid and list(grid), **{kind: count for kind, count in kinds.items() if count}}


# --- a file of no known family ------------------------------------------------------------------------------------


def _about_failure(reader: Any, family: str | None, problem: str) -> dict[str, Any]:
    found = FAMILIES[family] if family else None
    if found is None and not any(reader.stored(name).problem for name in reader):
        found = rules.detect(FAMILIES.values(), reader, reader.shape)
    first = [{"name": n, "shape": list(reader.stored(n).shape)} for n in list(reader)[:8]]
    return {
        "family": found and {"name": found.name, "title": found.title},
        "problem": problem,
        "first": first,
    }

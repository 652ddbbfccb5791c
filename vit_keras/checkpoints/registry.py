"""The registry of published checkpoints.

`registry.csv` is kept by hand, and `tools/make_registry.py` writes `registry_timm.csv`; each row is a file.
`tools/make_sizes.py` writes `sizes.csv`, their parameters and operations. AugReg's 52,268 files are described by a
grammar instead (`augreg`). The tables are read when they are first needed.

Sources: the file lists of google-research/vision_transformer (README, `configs/models.py`) and big_vision, the AugReg
paper (arXiv 2106.10270), timm's configurations, torchvision's, OpenAI's and Hugging Face's. The sizes of Google's files
follow from the format (an uncompressed zip) and agree with every size that Google lists; those of SAM and GSAM are
larger by an unknown amount, and left out. A hash is given where one is public.
"""

from __future__ import annotations

import ast
import collections
import csv
import fnmatch
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from .._internal.validate import did_you_mean, size_pair
from .checkpoint import HUB, PACKAGE, STORAGE, Checkpoint

__all__ = ["Checkpoint", "listed", "select"]

LABELS = {
    10: "cifar-10",
    1000: "imagenet-1k",
    11221: "imagenet-21k-p",
    11821: "imagenet-12k",
    21841: "imagenet-22k",
    21843: "imagenet-21k",
}


@functools.cache
def listed() -> tuple[Checkpoint, ...]:
    """Return all checkpoints in the tables, Google's first."""
    sizes = {row["name"]: row for row in _table("sizes.csv")}
    rows = [*_table("registry.csv"), *_table("registry_timm.csv")]
    return tuple(_checkpoint(row, sizes.get(f"{row['variant']}/{row['name']}".removeprefix("/"), {})) for row in rows)


def _table(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines())


def select(
    *,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    name: str | None = None,
    **texts: str | None,
) -> list[Checkpoint]:
    """Return the listed checkpoints, also those that cannot be loaded, that fit all arguments of `locate.available`."""
    size = None if image_size is None else size_pair(image_size, "image_size")
    wanted = {field: str(value) for field, value in texts.items() if value is not None}
    for field, value in wanted.items():
        values = {str(getattr(c, field)) for c in listed()} - {"None"}
        if value.lower() not in {v.lower() for v in values}:
            known = ", ".join(sorted(values))
            raise ValueError(f"Unknown {field} {value!r}.{did_you_mean(value, values)} There are: {known}.")
    return [
        c
        for c in listed()
        if all(str(getattr(c, field)).lower() == value.lower() for field, value in wanted.items())
        and classes in (None, c.classes)
        and size in (None, (c.image_size, c.image_size))
        and (name is None or fnmatch.fnmatchcase(c.name, name))
    ]


def named(name: str) -> Checkpoint | None:
    """Return the listed checkpoint with this name or URL, or `None`."""
    return _by_name().get(name)


@functools.cache
def _by_name() -> dict[str, Checkpoint]:
    names = {}
    for checkpoint in listed():
        if checkpoint.variant is not None:
            stem = checkpoint.path.removesuffix(".npz")
            names |= dict.fromkeys((stem, f"{stem}.npz"), checkpoint)
            if checkpoint.family == "mixer":
                names |= dict.fromkeys((f"mixer/{stem}", f"mixer/{stem}.npz"), checkpoint)
        names |= dict.fromkeys((checkpoint.url, unquote(checkpoint.url)), checkpoint)
    return names | {checkpoint.name: checkpoint for checkpoint in listed()}


def is_unique(basename: str) -> bool:
    """Return whether at most one listed file has this name."""
    return _filenames()[basename] <= 1


@functools.cache
def _filenames() -> collections.Counter:
    return collections.Counter(c.filename for c in listed())


def _checkpoint(row: Mapping[str, str], size: Mapping[str, str]) -> Checkpoint:
    fields: dict[str, Any] = {
        field: row[field] or None for field in ("variant", "sha256", "top1_source", "architecture")
    }
    numbers = {field: int(row[field]) if row[field] else None for field in ("classes", "bytes", "representation_size")}
    fields |= numbers | {"preprocessing": row["preprocessing"]}  # a text, which is read when it is first asked for
    return Checkpoint(
        **fields,
        weights=row["name"],
        url=_url(row["name"], row["url"]),
        family=row["family"],
        source=_source(row),
        image_size=int(row["image_size"]),
        labels=LABELS.get(numbers["classes"] or 0),
        options=read_options(row["options"]),
        parameters=int(size["parameters"]) if size else None,
        macs=int(size["macs"]) if size else None,
        top1=float(row["top1"]) if row["top1"] else None,
        license=row["license"],
    )


def _source(row: Mapping[str, str]) -> str:
    if row["url"].startswith(PACKAGE):
        return "vit_keras"
    is_google = row["variant"] or row["family"] in ("big_vision", "flexivit")
    return "google" if is_google else row["name"].partition("/")[0]


def _url(name: str, url: str) -> str:
    """Return the full URL. Without one, the file is on the hub, in the repository of that name."""
    if url.startswith(("https://", PACKAGE)):
        return url
    if url.startswith("gs:"):
        return STORAGE + quote(url[3:])
    return f"{HUB}{name}/resolve/main/{url or 'model.safetensors'}"


def read_options(text: str) -> dict[str, Any]:
    """Return the fields of `ViTConfig` in a text such as `num_heads=16 epsilon=1e-05`."""
    options: dict[str, Any] = {}
    for name, _, value in (part.partition("=") for part in text.split()):
        try:
            options[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # a name
            options[name] = value
    return options

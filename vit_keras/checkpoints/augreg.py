"""The 52,268 AugReg checkpoints, described by the grammar of their file names.

They are the files of "How to train your ViT?" (arXiv 2106.10270). A file name contains the training settings.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

from .._internal.validate import expanded, one_of
from . import registry
from .checkpoint import STORAGE, Checkpoint

__all__ = ["augreg", "parse_augreg", "query_augreg"]

BUCKET = f"{STORAGE}vit_models/"
AUGREG_INDEX = f"{BUCKET}augreg/index.csv"
AUGREG_MODELS = ("Ti_16", "S_32", "S_16", "B_32", "B_16", "B_8", "L_16", "R_Ti_16", "R26_S_32", "R50_L_32")
AUGREG_AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
AUGREG_CLASSES = {"i1k": 1000, "i21k": 21843}
AUGREG_ADAPTED = {"imagenet2012": 1000, "cifar100": 100, "kitti": 4, "oxford_iiit_pet": 37, "resisc45": 45}
_NAME = re.compile(
    r"(?P<name>\w+?)-(?P<ds>i1k|i21k)-(?P<epochs>\d+)ep-lr_(?P<lr>[\d.e-]+)-aug_(?P<aug>\w+)-wd_(?P<wd>[\d.e-]+)"
    r"-do_(?P<do>[\d.]+)-sd_(?P<sd>[\d.]+)"
    r"(--(?P<adapt_ds>\w+)-steps_(?P<steps>\d+)k-lr_(?P<adapt_lr>[\d.e-]+?)-res_(?P<res>\d+))?"
)


def augreg(
    name: str,
    ds: str = "i21k",
    *,
    aug: str = "medium1",
    wd: float = 0.1,
    do: float = 0.0,
    sd: float = 0.0,
    lr: float = 0.001,
    epochs: int = 300,
    adapt_ds: str | None = None,
    steps: int = 20_000,
    adapt_lr: float = 0.03,
    res: int = 224,
) -> Checkpoint:
    """Return an AugReg checkpoint by its training settings: that of the registry, or else a new one."""
    # The arguments are the parts of the file names, which give `steps` in thousands, rounded down. Not every
    # combination was published; `query_augreg` finds the published ones.
    if ds == "i21k_30":
        ds, epochs = "i21k", 30
    for argument, value, choices in (
        ("name", name, AUGREG_MODELS),
        ("ds", ds, (*AUGREG_CLASSES, "i21k_30")),
        ("aug", aug, AUGREG_AUGMENTATIONS),
        ("adapt_ds", adapt_ds, (None, *AUGREG_ADAPTED)),
        ("res", res, (224, 384)),
        ("epochs", epochs, (30, 300)),
    ):
        one_of(value, f"{argument} of an AugReg file", choices)
    epochs, res = int(epochs), int(res)  # 300.0 is 300 too
    numbers = {"wd": wd, "do": do, "sd": sd, "lr": lr, "adapt_lr": adapt_lr, "steps": steps}
    try:
        wd, do, sd, lr, adapt_lr, count = (float(v) for v in numbers.values())
    except (TypeError, ValueError):
        raise ValueError(f"{', '.join(numbers)} of an AugReg file must be numbers. Received: {numbers}") from None
    if min(wd, do, sd, lr, adapt_lr, count) < 0:
        raise ValueError(f"{', '.join(numbers)} of an AugReg file must not be negative. Received: {numbers}")
    stem = f"{name}-{ds}-{epochs}ep-lr_{lr}-aug_{aug}-wd_{wd}-do_{do}-sd_{sd}"
    if adapt_ds is not None:
        stem += f"--{adapt_ds}-steps_{int(count // 1000)}k-lr_{adapt_lr}-res_{res}"
    known = registry.named(f"augreg/{stem}")
    if known is not None:
        return known
    classes = AUGREG_CLASSES[ds] if adapt_ds is None else AUGREG_ADAPTED[adapt_ds]
    size = 224 if adapt_ds is None else res
    return Checkpoint(
        variant=name,
        weights=stem,
        url=f"{BUCKET}augreg/{stem}.npz",
        image_size=size,
        classes=classes,
        labels=registry.LABELS.get(classes, adapt_ds),
        bytes=_bytes(name, size, classes),
    )


def parse_augreg(filename: str) -> dict[str, Any]:
    """Return the arguments of `augreg` that the name of an AugReg file shows."""
    found = _NAME.fullmatch(filename.replace("\\", "/").rpartition("/")[2].removesuffix(".npz"))
    if found is None:
        raise ValueError(
            f"{filename!r} is not the name of an AugReg file. One looks like "
            "'B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384.npz'."
        )
    fields = {field: value for field, value in found.groupdict().items() if value is not None}
    for field in {"epochs", "steps", "res"} & set(fields):
        fields[field] = int(fields[field])
    for field in {"lr", "wd", "do", "sd", "adapt_lr"} & set(fields):
        try:
            fields[field] = float(fields[field])
        except ValueError:
            raise ValueError(f"{filename!r}: {field} is not a number: {fields[field]!r}") from None
    if "steps" in fields:
        fields["steps"] *= 1000
    return fields


def find_augreg(stem: str) -> Checkpoint | None:
    """Return the checkpoint with this file name (without `.npz`), or `None` if the grammar has no such name."""
    try:
        checkpoint = augreg(**parse_augreg(stem))
    except ValueError:
        return None
    return checkpoint if checkpoint.path == f"augreg/{stem}.npz" else None


def query_augreg(index: str | os.PathLike[str] | None = None, **filters: Any) -> list[Checkpoint]:
    """Return the published AugReg checkpoints from Google's index whose columns have these values, best first."""
    # The paper recommends the first one with `ds="i21k"`: it has the highest accuracy on held-out data of the
    # pre-training (`final_val`). `adapt_ds=None` returns pre-trained files, anything else fine-tuned ones. `index=None`
    # downloads the index (some 20 MB).
    if index is None:
        from .download import download

        index = download(AUGREG_INDEX)
    path = expanded(index)
    if not path.is_file():
        raise FileNotFoundError(f"There is no index of AugReg at {path}.")
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        table = csv.DictReader(file)
        columns = table.fieldnames or []
        if not {"filename", "adapt_filename", "final_val", "adapt_final_val", "adapt_ds"} <= set(columns):
            raise ValueError(f"{path} is not AugReg's index.csv: its first line is {','.join(columns)[:100]!r}.")
        unknown = sorted(set(filters) - set(columns))
        if unknown:
            raise ValueError(f"The index has no column {', '.join(unknown)}. There are: {', '.join(columns)}.")
        pretrained = "adapt_ds" in filters and filters["adapt_ds"] is None
        wanted = {k: v for k, v in filters.items() if not (pretrained and k == "adapt_ds")}
        rows = [row for row in table if all(_same(row[column], value) for column, value in wanted.items())]
    rows.sort(key=lambda row: (-_number(row["final_val"]), -_number(row["adapt_final_val"])))
    result: dict[str, Checkpoint] = {}
    for row in rows:
        stem = (row["filename"] if pretrained else row["adapt_filename"]).rpartition("/")[2].removesuffix(".npz")
        if stem and stem not in result:
            result[stem] = _indexed(stem, None if pretrained else row)
    return list(result.values())


def _bytes(name: str, image_size: int, classes: int) -> int | None:
    """Return the size of a listed file with the same architecture: the size depends on names and shapes alone."""
    for c in registry.listed():
        if (c.variant, c.image_size, c.classes) == (name, image_size, classes) and c.path.startswith("augreg/"):
            return c.bytes
    return None


def _indexed(stem: str, row: Mapping[str, str] | None) -> Checkpoint:
    checkpoint = augreg(**parse_augreg(stem))
    if row is None or row["adapt_ds"] != "imagenet2012" or not row.get("adapt_final_test"):
        return checkpoint
    top1 = round(100 * _number(row["adapt_final_test"]), 2)
    return dataclasses.replace(checkpoint, top1=top1, top1_source="google")


def _same(cell: str, value: Any) -> bool:
    if isinstance(value, str):
        return cell == value
    try:
        return float(cell) == float(value)
    except (TypeError, ValueError):
        return cell == str(value)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("-inf")

"""`inspect`, `convert`, `download`, `models`: weight files, and which are published; `cost`: what a model needs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .._internal.atomic import check_writable
from .._internal.validate import expanded, one_of
from ..checkpoints.cache import cached_path
from ..checkpoints.checkpoint import megabytes
from ..checkpoints.locate import available, fetch, find, is_local, is_url, recommended
from ..cost import Cost
from ..cost import cost as compute_cost
from ..variants import variant_of
from .console import complain, print_pairs, print_table
from .options import loading, settings

if TYPE_CHECKING:
    from ..checkpoints.loading import LoadReport

__all__ = ["convert", "cost", "download", "inspect", "models"]


def inspect(options: argparse.Namespace) -> None:
    """Print what a weight file holds."""
    from ..checkpoints.describe import describe
    from ..checkpoints.wording import sentences

    path = _local(options.file)
    report = describe(path, family=options.family, key=options.key, names=options.names, values=not options.no_values)
    if options.json:
        print(json.dumps(report, indent=2, default=str))
        return
    for number, group in enumerate(sentences(report)):
        if number:
            print()
        print_pairs(group, None if number else str(report["path"]))
    if options.names:
        print()
        rows = [(a["name"], "×".join(map(str, a["shape"])), a["dtype"], _becomes(a)) for a in report["names"]]
        print_table(("NAME", "SHAPE", "TYPE", "BECOMES"), rows, "<<<<")


def _local(name: str) -> Path:
    """Return the file of a path, a published name or a URL; nothing is downloaded in order to look at it."""
    path = expanded(name)
    if path.exists():
        return path
    checkpoint = _published(name)
    if checkpoint is None and "://" in name and not is_url(name):
        return fetch(name)  # says which addresses there are
    if checkpoint is None and not is_url(name):
        raise FileNotFoundError(f"There is no file at {path}, and no published weights of that name.")
    if not (is_local(checkpoint) if checkpoint else os.path.isfile(cached_path(name))):  # never raises
        shown, published = (checkpoint.name, "published and ") if checkpoint else (name, "")
        raise FileNotFoundError(f"{shown} is {published}not here yet. Run: vit-keras download {shown}")
    return fetch(checkpoint or name, progress=False)


def _published(name: str) -> Any:
    """Return the published checkpoint that `open_model` opens for a name or a factory, or `None`."""
    variant = variant_of(name)
    return recommended(variant) if variant else find(name)


def _becomes(entry: dict[str, Any]) -> str:
    """Return the canonical names of an array's content; those of several parts as `…/{query,key,value}/kernel`."""
    names = [name.split("/") for name in entry["becomes"]]
    if not names:
        return f"({entry['status']})"
    if len({len(parts) for parts in names}) > 1:
        return ", ".join(map("/".join, names))
    columns = [list(dict.fromkeys(parts)) for parts in zip(*names)]
    return "/".join(
        parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}" if len(parts) < 4 else f"{{{parts[0]},…,{parts[-1]}}}"
        for parts in columns
    )


# --- convert ------------------------------------------------------------------------------------------------------


def convert(options: argparse.Namespace) -> None:
    """Read weights, write them in another format, and print what changed on the way."""
    from ..opening import from_checkpoint
    from .pictures import check_not_read

    target = expanded(options.target)
    write = _writer(target, options.format)
    in_folder = _is_folder(target)
    written = [target / name for name in ("model.safetensors", "config.json")] if in_folder else [target]

    def check(source: Path) -> None:
        check_not_read(written, [source.parent if in_folder and source.is_file() else source])

    check(expanded(options.source))
    check_writable(target if in_folder else target.parent)
    model = from_checkpoint(options.source, **loading(options))
    report = cast("LoadReport", model.load_report)  # since weights were loaded
    check(Path(report.source))
    target.parent.mkdir(parents=True, exist_ok=True)
    names = write(model)
    pairs = [("read", f"{report.source}, {report.loaded:,} weights"), *(("adapted", text) for text in report.adapted)]
    if report.missing:
        pairs.append(("new", report.missing))
    pairs.append(("wrote", f"{target}, {names}, {megabytes(written[0].stat().st_size)}"))
    print_pairs([*pairs, *(("but", text) for text in _not_stored(model, target))])


def _is_folder(target: Path) -> bool:
    return target.is_dir() or not target.suffix


def _writer(target: Path, format: str | None) -> Callable[[Any], str]:
    """Return the function that writes a model to a path and returns in which form.

    Raises:
        ValueError: The path has an unknown extension, or the format does not fit it. Nothing has been read yet.
    """
    from ..checkpoints.families import FAMILIES
    from ..checkpoints.writing import FORMATS, save_weights
    from .pictures import complete_in_new_folder

    if target.is_file() and not target.suffix:
        raise ValueError(f"{target} is a file, not a folder. Choose another name for the output.")
    if _is_folder(target) and format is None:
        raise ValueError(
            "OUT must end in .keras, .weights.h5, .npz or .safetensors. For a folder of Hugging Face, pass --format "
            f"huggingface. Received: {target}"
        )
    if _is_folder(target) or target.suffix in (".npz", ".safetensors"):
        if format is not None:
            one_of(format, "--format", (*FORMATS, *FAMILIES))
        return lambda model: f"names of the family {save_weights(model, target, format)}"
    if not target.name.endswith((".keras", ".weights.h5")):
        raise ValueError(
            "OUT must end in .keras, .weights.h5, .npz or .safetensors, or be a folder (the name of a new one has no "
            f"dot). Received: {target}"
        )
    if format is not None:
        raise ValueError(f"--format is for .npz and .safetensors files, and for folders. Received: {target}")

    def write(model) -> str:
        whole = target.suffix == ".keras"
        with complete_in_new_folder(target) as part:
            (model.save if whole else model.save_weights)(part)
        return "a whole Keras model" if whole else "Keras' weights"

    return write


def _not_stored(model, target: Path) -> Iterator[str]:
    """Return what a new file does not store, in sentences.

    A whole model and the `config.json` of a folder store all, and of a .npz file `save_weights` warns itself.
    """
    from ..checkpoints.describe import unstored_fields

    if _is_folder(target) or target.suffix in (".keras", ".npz"):
        return
    try:
        fields = ", ".join(f"{field}={value}" for field, value in unstored_fields(target, model.config).items())
    except ValueError as error:
        yield f"from_checkpoint cannot read this file, only load_weights of the same model can: {error}"
        return
    if fields and target.suffix == ".safetensors":
        yield f"the names and shapes do not store {fields}; set these in programs other than vit_keras"
    elif fields:
        yield f"the names and shapes do not store {fields}; set these when you read the file"


# --- download and models ------------------------------------------------------------------------------------------


def download(options: argparse.Namespace) -> int:
    """Download published weights into the cache, or print what would be downloaded."""
    status, wanted = 0, {}
    for name in options.names:
        try:
            wanted |= {getattr(found, "url", found): found for found in _wanted(name)}
        except ValueError as error:
            status = 1
            complain(error)
    published = [c for c in wanted.values() if not isinstance(c, str)]
    if len(wanted) > 1:
        unknown = len(wanted) - sum(c.bytes is not None for c in published)
        total = megabytes(sum(c.bytes or 0 for c in published)) if published else ""
        print(f"{len(wanted)} files, {total}{f' and {unknown} of unknown size' if unknown else ''}")
    for url, checkpoint in wanted.items():
        known = checkpoint is not url
        here = known and is_local(checkpoint)
        print(f"{checkpoint.name}  {megabytes(checkpoint.bytes)}  {checkpoint.license}" if known else url, flush=True)
        try:
            if here or not options.dry_run:
                print(f"  {fetch(url, progress=sys.stderr.isatty())}")
            else:
                print(f"  not here: {url}")
        except (OSError, ValueError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            status = 1
            complain(error)
    return status


def _wanted(name: str) -> list[Any]:
    """Return the published files of a name, a factory or a pattern, or the URL itself."""
    if checkpoint := _published(name):
        return [checkpoint]
    if is_url(name):
        return [name]
    if found := available(name=name):
        return found
    variant = variant_of(name)  # of a size without a head of ImageNet-1k
    close = available(variant=variant) if variant else available(name=f"*{name.strip('*')}*")
    hint = f"Did you mean {', '.join(c.name for c in close[:3])}?" if close else "`vit-keras models --all` lists them."
    raise ValueError(f"No published weights have the name {name}. {hint}")


def models(options: argparse.Namespace) -> None:
    """Print the published weights that have what the options ask for."""
    fields = ("family", "source", "classes", "image_size")
    filters = {field: getattr(options, field) for field in fields if getattr(options, field) is not None}
    if options.license is not None:
        filters["license"] = options.license
    pattern = options.pattern
    if pattern is not None:
        filters["name"] = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    found = available(**filters)
    if not found and pattern is not None and len(filters) == 1 and (named := find(pattern)):
        found = [named]
    if options.task is not None:
        found = [c for c in found if c.task == options.task]
    if options.max_mb is not None:
        found = [c for c in found if c.megabytes is not None and c.megabytes <= options.max_mb]
    if not found:
        raise ValueError("No published weights match. `vit-keras models --all` lists all.")
    chosen = filters or options.all or options.task or options.max_mb is not None or options.sort
    shown = found if chosen else [c for c in found if c.variant is not None or c.source == "vit_keras"]
    shown = sorted(sorted(shown, key=_order), key=_KEYS[options.sort or "name"])
    if options.json:
        print(json.dumps([_entry(c) for c in shown], indent=2))
        return
    header = ("WEIGHTS", "PX", "HEAD", "MB", "GMAC", "TOP-1", "HERE", "LICENSE")
    rows = [_row(c) for c in shown]
    header = header if any(row[-1] for row in rows) else header[:-1]
    print_table(header, rows, "<>>>>><<", least=110)
    print("\nHEAD: classes, or width of the embedding. MB: size of the file; ~: of its parameters in float32.")
    print("GMAC: 10^9 multiplications for an image. TOP-1: accuracy on ImageNet-1k in percent, as published.")
    print("License: Apache-2.0 unless the table names another.")
    for name, url in sorted({(c.license, c.license_url) for c in shown if c.license != "Apache-2.0"}):
        print(f"  {name}: {url}")
    if len(shown) < len(found):
        more = len(found) - len(shown)
        print(f"{more} more from other publishers and families: vit-keras models --all, or pass a PATTERN.")


def _ascending(field: str) -> Callable[[Any], tuple[bool, float]]:
    """Return a key that sorts by a number, with those that are not known last."""
    return lambda checkpoint: (getattr(checkpoint, field) is None, getattr(checkpoint, field) or 0)


_KEYS: dict[str, Callable[[Any], Any]] = {
    "name": lambda checkpoint: 0,  # as `_order` has sorted them
    "top1": lambda checkpoint: -(checkpoint.top1 or 0),
    "mb": _ascending("megabytes"),
    "params": _ascending("parameters"),
    "gmac": _ascending("macs"),
    "px": _ascending("image_size"),
}


_SIZES = ("Ti", "S", "B", "L", "H")


def _order(checkpoint) -> tuple[Any, ...]:
    """Return a key to sort by: the file in this package, Google's by size of the model, others by name and number."""
    size, _, patch = (checkpoint.variant or "").partition("_")
    place = _SIZES.index(size) if size in _SIZES else len(_SIZES)
    parts = re.split(r"(\d+)", checkpoint.name)
    numbers = [(int(part), "") if part.isdigit() else (0, part) for part in parts]
    places = (checkpoint.source != "vit_keras", checkpoint.variant is None, place, int(patch) if patch.isdigit() else 0)
    return *places, checkpoint.source != "google", numbers


def _row(checkpoint) -> tuple[str, ...]:
    return (
        checkpoint.name,
        str(checkpoint.image_size),
        "-" if checkpoint.classes is None else str(checkpoint.classes),
        _megabytes(checkpoint),
        "-" if checkpoint.macs is None else f"{checkpoint.macs / 1e9:.{0 if checkpoint.macs >= 1e11 else 1}f}",
        "" if checkpoint.top1 is None else f"{checkpoint.top1:.1f}",
        "yes" if is_local(checkpoint) else "",
        "" if checkpoint.license == "Apache-2.0" else checkpoint.license,
    )


def _megabytes(checkpoint) -> str:
    if checkpoint.megabytes is None:
        return "-"
    return f"{'' if checkpoint.bytes else '~'}{checkpoint.megabytes:.0f}"


def _entry(checkpoint) -> dict[str, Any]:
    fields = dataclasses.asdict(checkpoint) | {"options": dict(checkpoint.options)}
    fields["preprocessing"] = checkpoint.preprocessing.to_dict()
    more = {name: getattr(checkpoint, name) for name in ("megabytes", "task", "license_url")}
    return {"name": checkpoint.name, **fields, **more, "here": is_local(checkpoint)}


# --- cost ---------------------------------------------------------------------------------------------------------


def cost(options: argparse.Namespace) -> None:
    """Print what a step of a model costs."""
    names = ("batch_size", "training", "devices", "strategy", "model_devices", "dtype", "optimizer")
    given = {name: getattr(options, name) for name in names}
    size = {} if options.image_size == "native" else {"image_size": options.image_size}
    found = compute_cost(options.model, **size, **given, **settings(options, (*names, "image_size")))
    if options.json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        print_pairs(_said(found), f"{found.model}, {'×'.join(map(str, found.image_size))} pixels")


def _said(found: Cost) -> Iterator[tuple[str, str]]:
    """Return the headings and texts of a cost."""
    many = found.devices > 1
    shared = f" on {found.devices} devices ({found.strategy})" if many else ""
    what = "training" if found.training else "prediction"
    yield "step", f"{what}, {found.batch_size} image{'s' * (found.batch_size > 1)}{shared}, {found.dtype}"
    yield "parameters", f"{found.parameters:,}"
    yield "tokens", f"{found.tokens} per image"
    yield "operations", f"{scaled(found.flops)}FLOP, in products of matrices"
    parts = ("weight", "gradient", "optimizer", "activation") if found.training else ("weight", "activation")
    sizes = [(f"{part}s", getattr(found, f"{part}_bytes")) for part in parts]
    if found.update_bytes > found.activation_bytes:  # not at the same time
        sizes[-1] = ("update of the weights", found.update_bytes)
    yield "memory", f"{scaled(found.memory_bytes)}B{' on each device' * many}"
    yield "memory", ", ".join(f"{part} {scaled(size)}B" for part, size in sizes).replace("optimizers", "optimizer")
    if many:
        yield "sends", f"{scaled(found.sent_bytes)}B from each device in a step"


def scaled(number: float) -> str:
    """Return a number with three digits and a prefix of the units.

    Example:
        >>> scaled(86_567_656), scaled(999)
        ('86.6 M', '999 ')
    """
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"

"""`inspect`, `convert`, `download`, `models`: weight files, and which are published; `cost`: what a model needs."""

from __future__ import annotations

import json as plain_json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..checkpoints.checkpoint import Checkpoint, megabytes
from ..checkpoints.locate import available, fetch, find, find_all, is_local
from ..cost import cost as compute_cost
from .console import complain, print_pairs, print_table
from .options import Setting, settings_of

__all__ = ["convert", "cost", "download", "inspect", "models"]


def inspect(file: str, *, names: bool = False, values: bool = True, json: bool = False, **options: Any) -> None:
    """Describe a weight file, and how it would be loaded.

    Args:
        file: Weight file, Hugging Face folder, published name or downloaded URL.
        json: Print the result as JSON.
    """
    from ..checkpoints.describe import describe
    from ..checkpoints.wording import becomes, sentences

    report = describe(file, names=names, values=values, **options)
    if json:
        print(plain_json.dumps(report, indent=2, default=str))
        return
    for number, group in enumerate(sentences(report)):
        if number:
            print()
        print_pairs(group, None if number else str(report["path"]))
    if names:
        print()
        rows = [(a["name"], "×".join(map(str, a["shape"])), a["dtype"], becomes(a)) for a in report["names"]]
        print_table(("NAME", "SHAPE", "TYPE", "BECOMES"), rows, "<<<<")


def convert(source: str, target: str, *, set: Iterable[Setting] = (), **options: Any) -> None:
    """Convert weights to another format."""
    from ..converting import convert as convert_weights

    print_pairs(convert_weights(source, target, **settings_of(set, **options)).pairs())


def download(names: Sequence[str], *, dry_run: bool = False) -> int:
    """Download published weights.

    Args:
        names: Published name (see `models`), factory such as vit_b16, pattern such as 'Ti_16/*', or URL.
        dry_run: List the files without downloading them.
    """
    status = 0
    wanted: dict[str, Checkpoint | None] = {}
    for name in names:
        try:
            several = find_all(name)
            wanted |= {name: None} if several is None else {each.url: each for each in several}
        except ValueError as error:
            status = 1
            complain(error)
    published = [each for each in wanted.values() if each is not None]
    if len(wanted) > 1:
        unknown = len(wanted) - sum(each.bytes is not None for each in published)
        total = megabytes(sum(each.bytes or 0 for each in published)) if published else ""
        print(f"{len(wanted)} files, {total}{f' and {unknown} of unknown size' if unknown else ''}")
    for url, found in wanted.items():
        print(f"{found.name}  {megabytes(found.bytes)}  {found.license}" if found else url, flush=True)
        try:
            if dry_run and not (found and is_local(found)):
                print(f"  not here: {url}")
            else:
                print(f"  {fetch(found or url, progress=True)}")
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            status = 1
            complain(error)
    return status


def models(
    pattern: str | None = None, *, sort: str | None = None, all: bool = False, json: bool = False, **options: Any
) -> None:
    """List published weights.

    Args:
        pattern: Part of a name; * matches any text.
        sort: Column to sort by; top1: best first, others: smallest first; `None`: name.
        all: List every file; default: only vit_cifar10 and Google's files.
        json: Print the result as JSON.
    """
    if pattern is not None:
        options["name"] = pattern if re.search(r"[*?\[]", pattern) else f"*{pattern}*"
    found = available(sort=sort or "name", **options)
    if not found and pattern is not None and len(options) == 1 and (named := find(pattern)):
        found = [named]
    if not found:
        raise ValueError("No published weights match. `vit-keras models --all` lists all.")
    shown = found if options or all or sort else [c for c in found if c.variant is not None or c.source == "vit_keras"]
    if json:
        print(plain_json.dumps([{**c.to_dict(), "here": is_local(c)} for c in shown], indent=2))
        return
    header = ("WEIGHTS", "PX", "HEAD", "MB", "GMAC", "TOP-1", "HERE", "LICENSE")
    rows = [_row(c) for c in shown]
    print_table(header if any(row[-1] for row in rows) else header[:-1], rows, "<>>>>><<", least=110)
    print("\nHEAD: classes, or width of the embedding. MB: size of the file; ~: in float32.")
    print("GMAC: 10^9 multiplications for an image. TOP-1: % on ImageNet-1k, as published.")
    print("License: Apache-2.0 unless the table names another.")
    for name, url in sorted({(c.license, c.license_url) for c in shown if c.license != "Apache-2.0"}):
        print(f"  {name}: {url}")
    if len(shown) < len(found):
        more = len(found) - len(shown)
        print(f"{more} more by other publishers: vit-keras models --all, or pass a PATTERN.")


def _row(found: Checkpoint) -> tuple[str, ...]:
    return (
        found.name,
        str(found.image_size),
        "-" if found.classes is None else str(found.classes),
        "-" if found.megabytes is None else f"{'' if found.bytes else '~'}{found.megabytes:.0f}",
        "-" if found.macs is None else f"{found.macs / 1e9:.{0 if found.macs >= 1e11 else 1}f}",
        "" if found.top1 is None else f"{found.top1:.1f}",
        "yes" if is_local(found) else "",
        "" if found.license == "Apache-2.0" else found.license,
    )


def cost(model: str, *, set: Iterable[Setting] = (), json: bool = False, **options: Any) -> None:
    """Estimate the cost of a model: parameters, operations, memory and communication.

    Args:
        set: Set a field of ViTConfig, such as remat=true or classes=10; may be repeated.
        json: Print the result as JSON.
    """
    found = compute_cost(model, **settings_of(set, **options))
    if json:
        print(plain_json.dumps(found.to_dict(), indent=2))
    else:
        print_pairs(found.pairs(), f"{found.model}, {'×'.join(map(str, found.image_size))} pixels")

"""`export` and `benchmark`: files that run without this package."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from .._internal.atomic import check_writable
from .._internal.plain_json import as_json
from .._internal.validate import expanded
from ..export import export as export_model
from ..export import find_format
from ..export.timing import benchmark as time_files
from .console import print_pairs, print_table
from .options import paths_of

__all__ = ["benchmark", "export"]


def export(options: argparse.Namespace) -> None:
    """Export a model, compare it with the file, and print the report."""
    from .pictures import check_not_read, files_of, open_with_options

    output = expanded(options.output)
    find_format(output, options.format)
    if options.no_check and options.check:
        raise ValueError("--no-check and --check exclude each other. Remove one.")
    check_not_read([output], [expanded(options.model)])
    check_writable(output.parent)
    check, calibration = (given and files_of(given) for given in (options.check, options.calibration))
    labels = None if options.labels is None else _labels(expanded(options.labels))
    model = open_with_options(options)
    output.parent.mkdir(parents=True, exist_ok=True)
    report = export_model(
        model,
        output,
        options.format,
        preprocessing=not options.raw,
        labels=labels,
        top=options.top,
        quantize=options.quantize,
        calibration=calibration,
        attention=options.attention,
        check=False if options.no_check else check or True,
    )
    if options.json:
        print(report.to_json())
    else:
        print_pairs(report.pairs())


def _labels(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"--labels {path} is not a text file in UTF-8: {error}.") from None


def benchmark(options: argparse.Namespace) -> None:
    """Time exported files in turns, and print a table, the fastest first."""
    rows = time_files(paths_of(options.files), batch_size=options.batch_size, rounds=options.rounds)
    if options.json:
        print(as_json([dataclasses.asdict(row) for row in rows], indent=2))
        return
    header = ("FILE", "MS/IMAGE", "LEAST", "MOST", "MB", "DIFFERENCE", "SAME CLASS", "RUNTIME")
    cells = [
        (
            row.path,
            f"{row.milliseconds:.2f}",
            *(f"{each:.2f}" for each in row.spread),
            f"{row.bytes / 1e6:.1f}",
            "-" if row.difference is None else f"{row.difference:.1e}",
            "-" if row.same_class is None else f"{row.same_class:.1%}",
            row.runtime,
        )
        for row in rows
    ]
    print_table(header, cells, "<>>>>>><")
    print("\nDIFFERENCE and SAME CLASS: from the model in Keras, according to the report next to the file.")

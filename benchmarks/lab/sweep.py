"""Write into `docs/sweep.csv` what becomes of random files of timm's and transformers' models.

    pip install timm transformers && python -m benchmarks.lab.sweep [--arguments] [--only PATTERN …] [--into FILE]

`--arguments` changes one argument of a constructor at a time instead, and writes `docs/sweep_arguments.csv`.

Without patterns: the models that have no row yet, so that a run that was stopped goes on where it was. With patterns
(`"transformers *"`, `"timm vit_*_radio_*"`): these models again, in place of their rows. A row has the library, its
version, the model, whether the file was alone or in a folder with its `config.json`, the outcome, the reason or the
warning, and the date. Rows of models that are no longer in the lists are dropped. At the end the outcomes are counted.
"""

from __future__ import annotations

import argparse
import collections
import csv
import datetime
import fnmatch
import functools
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "goldens")]

import argument_sweep
import sweep

LONGEST = 100
"""Characters of a reason in the table of arguments, which has thousands of rows."""
COLUMNS = ("library", "version", "model", "file", "outcome", "reason", "date")
WRITERS = {"timm": sweep.timm_case, "transformers": sweep.hugging_face_case}


def main() -> None:
    """Measure, and write the file after each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="measure these again: 'timm vit_*'")
    parser.add_argument("--arguments", action="store_true", help="change the arguments of constructors one by one")
    parser.add_argument("--into", type=Path, metavar="FILE")
    options = parser.parse_args()
    cases = argument_sweep.cases() if options.arguments else names()
    into = options.into or ROOT / "docs" / ("sweep_arguments.csv" if options.arguments else "sweep.csv")
    rows = read(into)
    for case in cases:
        again = options.only and any(fnmatch.fnmatchcase(" ".join(case), pattern) for pattern in options.only)
        if again or (case not in rows and not options.only):
            rows[case] = measured(*case, cases[case], LONGEST if options.arguments else None)
            write(into, [row for known in cases for row in rows.get(known, ())])
    counts = collections.Counter((row["library"], row["file"], row["outcome"]) for case in rows for row in rows[case])
    for (library, file, outcome), count in sorted(counts.items()):
        print(f"{library:13} {file:7} {outcome:9} {count:4}")


def names() -> dict[tuple[str, str], Callable[[Path], sweep.Case]]:
    """Return what writes the files of each model of the libraries."""
    found = [("timm", name) for name in sweep.timm_cases()]
    found += [("transformers", name) for name in sweep.hugging_face_cases()]
    return {(library, name): functools.partial(WRITERS[library], name) for library, name in found}


def measured(
    library: str, name: str, write_files: Callable[[Path], sweep.Case], longest: int | None
) -> list[dict[str, str]]:
    """Return the rows of a model."""
    version = importlib.import_module(library).__version__
    with tempfile.TemporaryDirectory() as folder:
        found = list(sweep.rows(write_files, Path(folder)))
    date = datetime.date.today().isoformat()
    print(library, name, *(outcome for _, outcome, _ in found), flush=True)
    return [dict(zip(COLUMNS, (library, version, name, *row[:2], row[2][:longest], date))) for row in found]


def read(path: Path) -> dict[tuple[str, str], list[dict[str, str]]]:
    """Return the rows of a file, by library and model."""
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                rows.setdefault((row["library"], row["model"]), []).append(row)
    return rows


def write(path: Path, rows: list[dict[str, str]]) -> None:
    """Write the file, in place of the old one only when it is complete."""
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    os.replace(unfinished, path)


if __name__ == "__main__":
    main()

"""Run the command line: `python -m benchmarks [SUITE ...]`, `python -m benchmarks figure RESULTS.json OUT.png`.

`python -m benchmarks learn` is about training; it has a command line of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from . import environments, figure, report, runner
from .learn import command as learn
from .suites import LIBRARIES, MODELS, QUICK, SUITES, Cell

FOLDER = "VIT_KERAS_BENCHMARKS"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "what",
        nargs="*",
        metavar="SUITE",
        help=f"{', '.join(SUITES)} (all); or list; or table FILE.json ..., or figure FILE.json ... OUT.png",
    )
    parser.add_argument("--quick", action="store_true", help="measure a few cells, some minutes per suite")
    parser.add_argument(
        "--only", nargs="+", default=["*"], metavar="CONTENDER", help="names or patterns of contenders; see list"
    )
    parser.add_argument("--rounds", type=int, help="number of timings of each contender")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="models, instead of the suite's own")
    parser.add_argument("--batch", nargs="+", type=int, help="batch sizes, instead of the suite's own")
    parser.add_argument("--image-size", nargs="+", type=int, help="image sizes, instead of the suite's own")
    parser.add_argument("--threads", type=int, help="physical cores for each contender; default: all")
    parser.add_argument("--checkout", type=Path, default=runner.ROOT, help="folder of the vit_keras to measure")
    parser.add_argument("--output", type=Path, default=Path("benchmarks.json"), help="default: benchmarks.json")
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(os.environ.get(FOLDER, runner.ROOT / ".venv-benchmarks")),
        help=f"folder of the virtual environments ; default: ${FOLDER}, or .venv-benchmarks",
    )
    return parser


def cells(arguments: argparse.Namespace) -> list[Cell]:
    """Return the cells that the arguments select."""
    chosen = []
    for suite in arguments.what or SUITES:
        table = (QUICK if arguments.quick else SUITES)[suite]
        if arguments.models or arguments.batch or arguments.image_size:
            options = (arguments.models or [table[0].model], arguments.batch or [table[0].batch])
            sizes = arguments.image_size or [0]
            table = [Cell(suite, model, batch, size) for model, batch, size in itertools.product(*options, sizes)]
        chosen += table
    return [dataclasses.replace(cell, rounds=arguments.rounds or cell.rounds) for cell in chosen]


def run(arguments: argparse.Namespace) -> None:
    """Measure, print a table after each cell, and write all results to a file."""
    processors = runner.physical_processors()[: arguments.threads]
    settings = runner.Settings(arguments.environments.resolve(), processors, arguments.checkout.resolve())
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": runner.machine(processors),
        "only": arguments.only,
        "environments": {},
        "cells": [],
    }
    chosen = cells(arguments)
    if not any(runner.entrants(cell, arguments.only) for cell in chosen):
        sys.exit(f"No contender fits {' '.join(arguments.only)}. See python -m benchmarks list.")
    if (load := os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0) > 0.5:
        print(f"Other programs keep {load:.1f} processors busy: expect noise.", file=sys.stderr)
    results["load"] = load
    for cell in chosen:
        used = {entrant.library.environment for entrant in runner.entrants(cell, arguments.only)}
        if not used:
            continue
        results["cells"].append(runner.run_cell(cell, settings, arguments.only))
        results["environments"] |= {
            n: v for n in sorted(used) if (v := environments.versions(n, settings.environments))
        }
        arguments.output.write_text(json.dumps(results, indent=1))
        print("\n" + report.table(results["cells"][-1]) + "\n", flush=True)
    print(f"{report.describe(results)}\nEverything is in {arguments.output}.")


def read(paths: list[str]) -> dict[str, Any]:
    """Read the results of one run, or of several on the same machine as one.

    Raises:
        ValueError: The results are from different machines.
    """
    first, *others = (json.loads(Path(path).read_text()) for path in paths)
    for other in others:
        if other["machine"] != first["machine"]:
            raise ValueError(
                f"The results are from two machines, which cannot be compared: {first['machine']}, {other['machine']}"
            )
        first["cells"] += other["cells"]
        first["environments"] |= other["environments"]
    return first


def show() -> None:
    """Print the suites, their cells and contenders."""
    for suite, table in SUITES.items():
        print(f"{suite}")
        for cell in table:
            quick = " (also with --quick)" if cell.title in {c.title for c in QUICK[suite]} else ""
            print(f"  {cell.title}: {cell.rounds} rounds, {len(runner.entrants(cell))} processes{quick}")
        for library in LIBRARIES:
            for name in library.contenders(suite):
                print(f"    {name}")


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["learn"]:
        learn.main(argv[1:])
        return
    arguments = parser().parse_args(argv)
    what = arguments.what
    if what == ["list"]:
        show()
    elif what[:1] == ["figure"] and len(what) >= 3:
        figure.draw(read(what[1:-1]), what[-1])
    elif what[:1] == ["table"] and len(what) >= 2:
        results = read(what[1:])
        print("\n\n".join([*map(report.table, results["cells"]), report.describe(results)]))
    elif set(what) <= set(SUITES):
        run(arguments)
    else:
        sys.exit(
            f"Unknown: {' '.join(what)}. Suites: {', '.join(SUITES)}; "
            "or list, table FILE.json ..., figure FILE.json ... OUT.png."
        )


if __name__ == "__main__":
    main()

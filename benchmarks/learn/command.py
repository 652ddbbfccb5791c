"""Run the benchmark of training: `python -m benchmarks learn`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from .. import environments, runner
from . import figure, suite
from .data import TASKS, arrays

_WRITE_TRANSFORMERS = """
import sys
import vit_keras
model = vit_keras.from_checkpoint(sys.argv[1], image_size=int(sys.argv[3]))
vit_keras.save_weights(model, sys.argv[2], format="huggingface")
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks learn", description=__doc__)
    parser.add_argument("figure", nargs="?", help="only draw the results, into this file")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the zip files")
    parser.add_argument("--weights", type=Path, help="a file of ViT-Ti/16 (Google's .npz, or timm's)")
    parser.add_argument("--quick", action="store_true", help="two data sets and two budgets: about twenty minutes")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="contenders to run")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="data sets to run")
    parser.add_argument("--budgets", nargs="+", choices=["none", *suite.BUDGETS], help="budgets to run; default: all")
    parser.add_argument("--seeds", type=int, help="number of seeds, if fewer")
    parser.add_argument("--threads", type=int, help="physical cores for each contender; default: all")
    parser.add_argument("--output", type=Path, default=Path("learn.jsonl"), help="default: learn.jsonl; goes on there")
    parser.add_argument(
        "--environments",
        type=Path,
        default=Path(os.environ.get("VIT_KERAS_BENCHMARKS", runner.ROOT / ".venv-benchmarks")),
        help="folder of the virtual environments",
    )
    return parser


def chosen(arguments: argparse.Namespace) -> list[suite.Run]:
    """Return the runs that the arguments select."""
    return [
        run
        for run in suite.runs(arguments.quick)
        if any(fnmatchcase(run.contender, pattern) for pattern in arguments.only)
        and run.data in arguments.tasks
        and (arguments.budgets is None or run.budget in arguments.budgets)
        and (arguments.seeds is None or run.seed < arguments.seeds)
    ]


def read(path: Path) -> list[dict[str, Any]]:
    """Return the results of a file; a last line that a kill has cut is not one."""
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


class Results:
    """A file of results, one JSON object per line, that grows by whole lines.

    Args:
        path: The file. What a kill has left of a last line is cut off.
    """

    def __init__(self, path: Path):
        self.path, self.rows = path, read(path)
        whole = "".join(json.dumps(row) + "\n" for row in self.rows)
        if path.is_file() and path.read_text() != whole:
            unfinished = path.with_name(path.name + ".part")
            unfinished.write_text(whole)
            unfinished.replace(path)

    @property
    def done(self) -> set[suite.Run]:
        """The runs that need not be made again: those without an error."""
        return {suite.key(row) for row in self.rows if "error" not in row}

    def add(self, row: dict[str, Any]) -> None:
        """Append a line, in one write."""
        self.rows.append(row)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (json.dumps(row) + "\n").encode())
            os.fsync(file)
        finally:
            os.close(file)


class Field:
    """The processes of the contenders: one for each module, started when it is first asked.

    Args:
        arguments: See `parser`.
        folder: A folder for the files that the processes read.
        processors: The processors that each may use.
        rows: The results so far.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path, processors: list[int], rows: list[dict[str, Any]]):
        self.arguments, self.folder, self.processors, self.rows = arguments, folder, processors, rows
        self.processes: dict[str, runner.Process] = {}

    def ask(self, run: suite.Run) -> dict[str, Any]:
        """Return what a contender answers: its score, or why there is none.

        Raises:
            ContenderFailed: It raised an error, or its process ended.
            EnvironmentFailed: Its environment could not be made.
        """
        how = suite.contender(run.contender)
        request = {
            "file": str(self._data(run)),
            "kind": TASKS[run.data].kind,
            "style": how.style,
            "seed": run.seed,
            "budget": self._budget(run),
            "weights": str(self.arguments.weights.resolve()),
        }
        if how.module != "ours":
            request["transformers"] = str(self._transformers(suite.size(run.data)))
        if how.module not in self.processes:
            self.processes[how.module] = self._start(how)
        try:
            return self.processes[how.module].ask(**request)
        except runner.ContenderFailed:
            if self.processes[how.module].process.poll() is not None:  # it ended: the next request starts another
                self.processes.pop(how.module).close()
            raise

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.close()

    def _start(self, how: suite.Contender) -> runner.Process:
        python = environments.make(how.environment, self.arguments.environments.resolve())
        spec = {"module": f"benchmarks.learn.{how.module}", "cell": {"suite": "learn"}, "processors": self.processors}
        if how.module == "ours":
            spec["checkout"] = str(runner.ROOT)
        variables = runner.environment_variables("torch", len(self.processors))
        return runner.Process([str(python), str(runner.ROOT / "benchmarks" / "worker.py")], spec, variables)

    def _budget(self, run: suite.Run) -> dict[str, float]:
        if run.budget != "own" or run.contender == suite.CALL:
            return suite.BUDGETS.get(run.budget, {})
        for row in self.rows:
            if suite.key(row) == run._replace(contender=suite.CALL) and "processor" in row:
                return {"seconds": row["processor"]}
        raise runner.ContenderFailed(f"It has the time of {suite.CALL}, which has no result")

    def _data(self, run: suite.Run) -> Path:
        path = self.folder / f"{run.data}-{run.seed}.npz"
        if not path.exists():
            np.savez(path, **arrays(TASKS[run.data], self.arguments.data, suite.size(run.data), run.seed))
        return path

    def _transformers(self, size: int) -> Path:
        """Return the folder of the same weights in the form that transformers and KerasHub read."""
        path = self.folder / f"transformers-{size}"
        if not path.exists():
            python = environments.make("torch", self.arguments.environments.resolve())
            variables = runner.environment_variables("torch", len(self.processors))
            command = [str(python), "-c", _WRITE_TRANSFORMERS, str(self.arguments.weights.resolve()), str(path)]
            done = subprocess.run(
                [*command, str(size)],
                env={**variables, "PYTHONPATH": str(runner.ROOT)},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise runner.ContenderFailed(done.stderr.strip().splitlines()[-1])
        return path


def measure(arguments: argparse.Namespace, results: Results) -> None:
    """Make the runs that the results lack, and add each as soon as it is made."""
    todo = [run for run in chosen(arguments) if run not in results.done]
    processors = runner.physical_processors()[: arguments.threads]
    told = {"date": datetime.date.today().isoformat(), "machine": runner.machine(processors)}
    with tempfile.TemporaryDirectory() as folder:
        field = Field(arguments, Path(folder), processors, results.rows)
        try:
            for number, run in enumerate(todo):
                try:
                    answer = field.ask(run)
                except (runner.ContenderFailed, environments.EnvironmentFailed) as error:
                    answer = {"error": str(error)}
                name = suite.contender(run.contender).environment
                versions = environments.versions(name, arguments.environments.resolve())
                answer["versions"] = {each: versions[each] for each in figure.VERSIONS if each in versions}
                results.add({**run._asdict(), **answer, **told})
                said = f"{answer['score']:.1f}" if "score" in answer else answer.get("skipped") or answer["error"]
                print(f"{number + 1}/{len(todo)} {' / '.join(map(str, run))}: {said}", flush=True)
        finally:
            field.close()


def main(argv: list[str] | None = None) -> None:
    """Run the command line."""
    arguments = parser().parse_args(argv)
    if arguments.figure:
        figure.draw(read(arguments.output), arguments.figure)
        return
    found = sorted(arguments.data.parent.glob("weights/Ti_16*.npz"))
    arguments.weights = arguments.weights or next(iter(found), None)
    if arguments.weights is None:
        sys.exit("Pass the weights of ViT-Ti/16 as --weights FILE: Google's .npz, or timm's .safetensors.")
    results = Results(arguments.output)
    measure(arguments, results)
    print("\n" + figure.table(results.rows))
    print(f"Everything is in {arguments.output}. For a figure: python -m benchmarks learn FILE.png")

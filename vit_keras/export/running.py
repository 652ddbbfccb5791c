"""Run exported files in a separate process; see `runtimes`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from . import runtimes
from .formats import FORMATS

__all__ = ["Running", "RuntimeCrashed", "ending"]


class RuntimeCrashed(ValueError):
    """The process that runs a file ended without an answer, which says nothing about the file."""


class Running:
    """An exported file, opened by a process without Keras and this package.

    Attributes:
        about: What the process says of the file: `version` of the runtime, `dtype` and `shape` of the input,
            `notes`, `alone`.
    """

    format: str
    path: str

    def __init__(self, format: str, path: str | os.PathLike[str]):
        self.format, self.path = format, os.fspath(path)

    def __enter__(self) -> Running:
        # Isolated (-I): its own folders are searched for modules first. Ours come after them, for a runtime that is in
        # the user's site or on PYTHONPATH.
        places = filter(os.path.isabs, sys.path)
        command = [sys.executable, "-I", runtimes.__file__, self.format, self.path, *places]
        self._folder = tempfile.TemporaryDirectory()
        self._said = tempfile.TemporaryFile()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._said, encoding="utf-8", env=_environment(self.format)
        )
        # Popen's own types leave open whether there are pipes.
        self._tasks, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        try:
            self.about: dict[str, Any] = self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._tasks.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._said.close()
        self._folder.cleanup()

    def run(self, inputs: Sequence[np.ndarray], signature: str | None = None) -> list[dict[str, np.ndarray]]:
        """Return the outputs of the file for each of some inputs; a file for batches of one size gets such batches."""
        if (size := self.about["shape"][0]) is not None and any(len(each) != size for each in inputs):
            return [_joined(self.run(_batches(each, size), signature), len(each)) for each in inputs]
        given, taken = (os.path.join(self._folder.name, name) for name in ("inputs.npz", "outputs.npz"))
        arrays: dict[str, Any] = {f"{n:06}": np.asarray(array) for n, array in enumerate(inputs)}
        np.savez(given, **arrays)
        self._ask({"run": given, "into": taken, "signature": signature})
        outputs: list[dict[str, np.ndarray]] = [{} for _ in inputs]
        with np.load(taken) as stored:
            for key in stored.files:
                number, _, name = key.partition("/")
                outputs[int(number)][name] = stored[key]
        return outputs

    def time(self) -> float:
        """Return the seconds that the inputs of the last `run` take, without their way to the process."""
        return self._ask({"time": 1})["seconds"]

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):  # the answer tells
            self._tasks.write(json.dumps(task) + "\n")
            self._tasks.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._said.seek(0)
            end = self._said.read().decode(errors="replace").strip()[-1000:]
            raise RuntimeCrashed(
                f"The process that runs {Path(self.path).name} {ending(self._process.wait())} without an answer."
                + (f" Its last words: {end}" if end else "")
            )
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(f"The runtime cannot run {Path(self.path).name}: {answer['error']}")
        return answer


def _batches(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Return rows in batches of one size, the last of which is filled up."""
    filled = np.concatenate([rows, *[rows[-1:]] * (-len(rows) % size)])
    return [filled[start : start + size] for start in range(0, len(filled), size)]


def _joined(outputs: Sequence[dict[str, np.ndarray]], count: int) -> dict[str, np.ndarray]:
    return {name: np.concatenate([each[name] for each in outputs])[:count] for name in outputs[0]}


def ending(status: int) -> str:
    """Return how a process ended, as a phrase.

    Example:
        >>> ending(-11), ending(1)
        ('was ended by the signal SIGSEGV', 'ended with the status 1')
    """
    if status >= 0:
        return f"ended with the status {status}"
    names = {int(number): number.name for number in signal.Signals}
    return f"was ended by the signal {names.get(-status, -status)}"


def _environment(format: str) -> dict[str, str]:
    """Return the environment of the process: TensorFlow imports Keras, which must not import another backend there."""
    others = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    backend = FORMATS[format].backend
    return others if backend is None else {**others, "KERAS_BACKEND": backend}

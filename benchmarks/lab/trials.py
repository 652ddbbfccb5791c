"""Faults of one operation, and what is left after them: the machinery of `faults`."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet

KILLED, INTERRUPTED, FULL = "kills", "Ctrl-C", "full disks"
FOUND = ("half files", "lost work", "left over", "other errors")


@dataclasses.dataclass(frozen=True)
class Operation:
    """Work that leaves files.

    Attributes:
        name: Its name in the table.
        call: Does the work: from the folder of the inputs into another, with the old (0) or the new (1) input. Returns
            the exit status.
        finals: Names of the files that it leaves, as a pattern.
        older: Whether it replaces older files; they are there in every second round.
        one: Whether its files belong together, so that old and new ones must not mix.
        twins: Whether a second process does the same at the same time, undisturbed.
        exact: Largest difference of a number from that of an undisturbed call.
        kept: Returns how much finished work a folder holds, such as bytes.
        used: Returns how much of that a call used, by what it printed and what the server was asked.
    """

    name: str
    call: Callable[[Path, Path, int], int]
    finals: str = "*"
    older: bool = True
    one: bool = False
    twins: bool = False
    exact: float = 0.0
    kept: Callable[[Path], int] = lambda folder: 0
    used: Callable[[str, list[int]], int] = lambda said, asked: 0


# --- processes ----------------------------------------------------------------------------------------------------


class Child:
    """A forked process that makes a call; what it prints can be read."""

    def __init__(self, call: Callable[[], int], disturb: Callable[[], None] = lambda: None):
        reader, writer = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            self._run(call, disturb, writer)
        os.close(writer)
        self.output = open(reader, "rb", buffering=0)  # noqa: SIM115
        self.output.read(1)  # it is about to begin
        self.begun = time.monotonic()

    @staticmethod
    def _run(call, disturb, writer):
        """Make the call and end the process: what the parent does next must not run twice, whenever Ctrl-C comes."""
        status = 99
        try:
            try:
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False)) for n in (1, 2))
                os.write(1, b"\n")
                disturb()
                status = call()
            except BaseException as error:
                places = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
                if isinstance(error, KeyboardInterrupt) and not any(f"{os.sep}vit_keras{os.sep}" in p for p in places):
                    status = 130 if status == 99 else status  # Ctrl-C before the call, or after it
                else:
                    traceback.print_exc()
            finally:
                with contextlib.suppress(BaseException):
                    sys.stdout.flush()
                    sys.stderr.flush()
        finally:
            os._exit(status)

    def signal(self, which: int) -> None:
        os.kill(self.pid, which)

    def wait(self) -> tuple[int, str]:
        """Return the exit status, -9 after a kill, and what was printed."""
        said = self.output.read()
        while piece := self.output.read():
            said += piece
        self.output.close()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return status, said.decode(errors="replace")


def at_change(number: int, folder: Path, act: Callable[[str], None]) -> None:
    """Act before a change of a file in a folder, counted from 0."""
    count = 0

    def hook(event, arguments):
        nonlocal count
        if not _changes(event, arguments, f"{folder}{os.sep}"):
            return
        count += 1
        if count - 1 == number:
            act(f"{event} {arguments[0]}")

    sys.addaudithook(hook)


def _changes(event: str, arguments: tuple, folder: str) -> bool:
    if event == "open":
        changing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        return str(arguments[0]).startswith(folder) and isinstance(arguments[2], int) and bool(arguments[2] & changing)
    if event in ("os.remove", "os.rmdir", "os.mkdir"):
        return str(arguments[0]).startswith(folder) or arguments[-1] >= 0  # in a folder that is deleted
    return event == "os.rename" and str(arguments[0]).startswith(folder)


def kill_me(change: str) -> None:
    os.write(1, f"killed before {change}".encode())
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt_me(change: str) -> None:
    os.write(1, f"interrupted before {change}\n".encode())
    raise KeyboardInterrupt


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Make a folder that is a disk of its own, of 16 MiB in memory; yield whether it is one: Linux lets only root."""
    folder.mkdir()
    mounted = _unshared() and _run("mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder)
    try:
        yield mounted
    finally:
        if mounted:
            _run("umount", "--lazy", folder)


@functools.cache
def _unshared() -> bool:
    """Return whether what this process mounts is seen by it alone, and so disappears with it, however it ends."""
    if sys.platform != "linux" or not shutil.which("mount"):
        return False
    mounts_of_its_own = 0x20000  # CLONE_NEWNS; os.unshare came with Python 3.12
    return not ctypes.CDLL(None).unshare(mounts_of_its_own) and _run("mount", "--make-rprivate", "/")


def _run(*command: str | Path) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def room(disk: Path, size: int) -> Iterator[None]:
    """Fill a disk, but for so many bytes, as long as the block runs."""
    ballast, state = disk / "ballast", os.statvfs(disk)
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, (state.f_bavail - size // state.f_frsize) * state.f_frsize)
    try:
        yield
    finally:
        ballast.unlink()


# --- what is left -------------------------------------------------------------------------------------------------


def content(path: Path) -> Any:
    """Return what a file holds, without times. Raise an error if it is half."""
    suffix = path.suffix
    if suffix == ".npz":
        with np.load(path) as found:
            return {name: found[name] for name in found}
    if suffix == ".parquet":
        return pyarrow.parquet.ParquetFile(path).read(use_threads=False).to_pydict()
    if suffix == ".keras":
        with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
            arrays = {}
            file.visititems(
                lambda name, item: arrays.update({name: item[()]} if isinstance(item, h5py.Dataset) else {})
            )
        return arrays
    if suffix == ".json":
        changing = ("seconds", "time", "sha256", "bytes")  # TensorFlow gives each SavedModel a number of its own
        return json.loads(
            path.read_text(), object_pairs_hook=lambda pairs: {k: v for k, v in pairs if k not in changing}
        )
    if path.name == "variables.index":
        return _of_tensorflow(path.with_suffix(""))
    if path.name == "fingerprint.pb" or path.name.startswith("variables.data"):
        return len(path.read_bytes()) > 0
    if suffix == ".xml":
        return xml.etree.ElementTree.parse(path).getroot().tag and path.read_text()
    if suffix == ".html":
        text = path.read_text(encoding="utf-8")
        if not text.rstrip().endswith("</html>"):
            raise ValueError("the end is missing")
        return re.sub(r"[\d.]+ (seconds|minutes)", "", text)
    return path.read_bytes()


def _of_tensorflow(path: Path) -> dict[str, np.ndarray]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if name.startswith("weights")}


def difference(one: Any, other: Any) -> float:
    """Return the largest difference of two numbers in the same place; infinite if anything else is different."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(map(difference, one, other), default=0.0)
    if isinstance(one, (float, np.ndarray)) and np.shape(one) == np.shape(other):
        if np.array_equal(one, other):
            return 0.0
        if np.issubdtype(np.asarray(one).dtype, np.floating):
            return float(np.max(np.abs(np.subtract(one, other)), initial=0.0))
    return 0.0 if isinstance(one, type(other)) and not isinstance(one, np.ndarray) and one == other else float("inf")


def whole(path: Path) -> bool:
    try:
        content(path)
    except Exception:  # whatever a reader says of half a file
        return False
    return True


class Trial:
    """All faults of one operation, and what was found after them."""

    def __init__(self, operation: Operation, inputs: Path, work: Path, random: random.Random, real_disk: bool):
        self.operation, self.inputs, self.work, self.random = operation, inputs, work, random
        self.found = dict.fromkeys(FOUND, 0)
        self.counts = dict.fromkeys((KILLED, INTERRUPTED, FULL), 0)
        self.details: list[str] = []
        self.largest = 0.0
        self.folder = work / "disk" / "folder"
        self.real_disk = real_disk
        self.versions = [self._undisturbed(0), self._undisturbed(1)]
        self.rounds = 0
        self._begin()

    def _call(self, version: int = 1) -> Callable[[], int]:
        return lambda: self.operation.call(self.inputs, self.folder, version)

    def _undisturbed(self, version: int) -> dict[str, Any]:
        """Make the call with nobody in its way: what it leaves, how long it takes, how often it changes a file."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        changes = self.work / "changes"

        def count():
            file = open(changes, "w", buffering=1)  # noqa: SIM115
            prefix = f"{self.folder}{os.sep}"
            sys.addaudithook(lambda event, given: file.write("\n") if _changes(event, given, prefix) else None)

        def call():
            known = set(sys.modules)
            started = time.monotonic()
            status = self._call(version)()
            notes.write_text(json.dumps([time.monotonic() - started, sorted(set(sys.modules) - known)]))
            return status

        notes = self.work / "notes"
        status, said = Child(call, count).wait()
        if status:
            raise RuntimeError(f"{self.operation.name} fails undisturbed, with status {status}: {said}")
        self.seconds, modules = json.loads(notes.read_text())
        for name in modules:  # so that the next children need not
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection in a child would copy all that the processes share
        self.changes = len(changes.read_text())
        if version == 0:
            shutil.copytree(self.folder, self.work / "older", dirs_exist_ok=True)
        paths = self._finals()
        self.size = max(path.stat().st_size for path in paths.values())
        return {name: content(path) for name, path in paths.items()}

    def _begin(self) -> None:
        """Begin a round: with nothing, or with older files."""
        shutil.rmtree(self.folder)
        self.old = self.operation.older and self.rounds % 2 == 1
        if self.old:
            shutil.copytree(self.work / "older", self.folder)
        else:
            self.folder.mkdir()
        self.rounds += 1

    def _finals(self) -> dict[str, Path]:
        found = {str(path.relative_to(self.folder)): path for path in self.folder.glob(self.operation.finals)}
        return {name: path for name, path in found.items() if path.is_file() and f"{os.sep}." not in f"{os.sep}{name}"}

    # --- faults ---

    def kill(self, number: int, count: int) -> None:
        if number % 2 == 0:
            status, said = self._with_twin(
                functools.partial(at_change, self._change(number, count), self.folder, kill_me)
            )
        else:
            status, said = self._with_twin(lambda: None, signal.SIGKILL)
        self._judge(KILLED, status == -signal.SIGKILL, status, said)

    def interrupt(self, number: int, count: int) -> None:
        if number % 2 == 0:
            disturb = functools.partial(at_change, self._change(number, count), self.folder, interrupt_me)
            status, said = self._with_twin(disturb)
        else:
            status, said = self._with_twin(lambda: None, signal.SIGINT)
        self._judge(INTERRUPTED, status == 130, status, said)

    def fill(self, number: int, count: int) -> None:
        size = int(self.size * (number + self.random.random()) / count * 0.95)
        if self.real_disk and not self.operation.twins:  # it would be full for the other process, too
            with room(self.folder.parent, size):
                status, said = self._with_twin(lambda: None)
        else:
            status, said = self._with_twin(lambda: limit_files(size))
        self._judge(FULL, status == 1 and "Could not write " in said, status, said)

    def _judge(self, kind: str, expected: bool, status: int, said: str) -> None:
        """Check what is left if the call ended as it must; if it was done before the fault, begin the next round."""
        if expected:
            self.counts[kind] += 1
            self._check(kind, said)
        elif status and "has a finished run" not in said:
            self._report("other errors", f"{kind} give the status {status}: {said}")
        if not expected or self.random.random() < 0.6:
            self.finish(said)

    def _change(self, number: int, count: int) -> int:
        """Return which change to stop before: each in turn, or evenly spread ones if there are too many."""
        half = (count + 1) // 2
        return number // 2 * self.changes // half if half < self.changes else number // 2 % self.changes

    def _with_twin(self, disturb: Callable[[], None], later: int | None = None) -> tuple[int, str]:
        """Make the call, disturbed from within or by a signal; in other operations beside another process."""
        twin = Child(self._call()) if self.operation.twins else None
        child = Child(self._call(), disturb)
        if later is not None:
            time.sleep(self.random.random() * self.seconds)
            child.signal(later)
        status, said = child.wait()
        if twin is not None:
            other, told = twin.wait()
            if other or self._distance(self.versions[1]) != 0:
                self._report("other errors", f"the undisturbed process ended with {other}: {told} {said}")
        return status, said

    # --- checks ---

    def _check(self, kind: str, said: str) -> None:
        finals, (old, new) = self._finals(), self.versions
        for name, path in finals.items():
            versions = [known[name] for known in (old if self.old else {}, new) if name in known]
            if not whole(path) or not any(difference(content(path), v) <= self.operation.exact for v in versions):
                self._report("half files", f"{name}, {kind}: {said}")
        for path in self.folder.rglob(".state/[!.]*"):
            if not whole(path):
                self._report("half files", f"{path.name}, {kind}: {said}")
        if self.operation.one and not any(self._distance(version, some=True) == 0 for version in self.versions):
            self._report("half files", f"old beside new, {kind}: {said}")
        if self.old and not self.operation.one and set(old) - set(finals):
            self._report("lost work", f"{set(old) - set(finals)} gone, {kind}: {said}")
        if len(self._left()) > 1:
            self._report("left over", f"{self._left()}, {kind}: {said}")

    def _distance(self, version: dict[str, Any], some: bool = False) -> float:
        finals = self._finals()
        if not some and set(finals) != set(version):
            return float("inf")
        return max((difference(content(path), version.get(name)) for name, path in finals.items()), default=0.0)

    def _left(self) -> list[str]:
        """Return what is there besides results, the state of a run, locks, and the part of a download."""
        state = (*self.folder.rglob(".state"), *self.folder.rglob(".state/[!.]*"))  # one in one: of all images
        known = {*self._finals().values(), *state}
        folders = {parent for path in self._finals().values() for parent in path.parents}
        left = [path for path in self.folder.rglob("*") if path not in known | folders]
        inside = {path for path in left if path.parent in left}
        ours = [path for path in left if path not in inside and path.suffix not in (".lock", ".part", ".etag")]
        return [str(path.relative_to(self.folder)) for path in ours if path.name[0] == "." or path.is_file()]

    def finish(self, said: str = "") -> None:
        """Make the same call again, and compare with the undisturbed one."""
        kept, asked = self.operation.kept(self.folder), self.work / "asked"
        asked.write_text("")
        status, told = Child(self._call()).wait()
        requests = [int(line) for line in asked.read_text().split()]
        if status and "has a finished run" not in told:
            self._report("other errors", f"the next call ended with {status}: {told} after {said}")
        else:
            distance = self._distance(self.versions[1])
            self.largest = max(self.largest, distance)
            if distance > self.operation.exact:
                self._report("other errors", f"the next call gives another result (by {distance:g}) after {said}")
        if self.operation.used(told, requests) < kept:
            self._report("lost work", f"of {kept} used {self.operation.used(told, requests)} after {said}")
        left = self._left() + [str(path) for path in self.folder.rglob("*.part")]
        if left and "has a finished run" not in told:
            self._report("left over", f"{left} after the next call, after {said}")
        self._begin()

    def _report(self, kind: str, text: str) -> None:
        self.found[kind] += 1
        self.details.append(f"{self.operation.name}: {kind}: {text.strip()[-1500:]}")

"""Run cells: one process per library, and each contender timed in turn while the others are idle."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from . import environments
from .suites import LIBRARIES, MODELS, OURS, Cell, Library

ROOT = Path(__file__).resolve().parents[1]
BATCH_SECONDS = 0.2  # a timing takes at least as long
TIMEOUT = 1800  # seconds after which a contender that does not answer is ended
WARM_SECONDS = 0.5  # a shorter call is made once before a timing, because the caches hold data of others
LONG_SECONDS = 2.0  # a call longer than this is made only twice before the rounds
PAUSE = 0.05  # seconds after which threads that spin for more work sleep
SPARE_MEMORY = 0.5  # share of the memory that must stay free: where it is short, steps that allocate much are slow


class ContenderFailed(Exception):
    """A contender could not be measured; the message says why."""


@dataclasses.dataclass
class Settings:
    """Settings of a whole run.

    Attributes:
        environments: Folder of the virtual environments and of the files made for the contenders.
        processors: The processors that every contender may use, one thread on each.
        checkout: Folder with the vit_keras to be measured.
        log: Called with each message about the progress.
    """

    environments: Path
    processors: list[int]
    checkout: Path = ROOT
    log: Callable[[str], Any] = lambda line: print(line, file=sys.stderr, flush=True)


def physical_processors() -> list[int]:
    """Return one processor of each physical core that this process may use."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = {}
    for processor in sorted(allowed):
        siblings = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text() if siblings.is_file() else processor, processor)
    return list(cores.values())


def machine(processors: list[int]) -> dict[str, Any]:
    """Return a description of this machine."""
    cpuinfo, meminfo = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    memory = int(meminfo.read_text().split()[1]) / 2**20 if meminfo.is_file() else None
    return {
        "processor": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(processors),
        "memory_gib": memory and round(memory),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def environment_variables(backend: str, threads: int) -> dict[str, str]:
    """Return the environment variables of a contender's process: its backend, and the number of threads."""
    return {
        **os.environ,
        "KERAS_BACKEND": backend,
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
        **dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), str(threads)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }


class Process:
    """A contender's process, which answers requests.

    Args:
        command: The interpreter and the worker.
        spec: The task of the worker; see `benchmarks.worker`.
        env: The process' environment.
    """

    def __init__(self, command: list[str], spec: dict[str, Any], env: dict[str, str]):
        self.chatter = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed with the process
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [*command, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.chatter,
            env=env,
            text=True,
        )

    def answer(self) -> dict[str, Any]:
        """Return the next answer.

        Raises:
            ContenderFailed: The answer is an error, or the process has ended.
        """
        with _deadline(self.process):
            line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.chatter.seek(0)
            last = (self.chatter.read().strip() or "no output").splitlines()[-1]
            raise ContenderFailed(f"ended with status {self.process.returncode}: {last}"[:500])
        message = json.loads(line)
        if "error" in message:
            raise ContenderFailed(message["error"])
        return message

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            ContenderFailed: See `answer`.
        """
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.chatter.close()


@contextlib.contextmanager
def _deadline(process: subprocess.Popen):
    timer = threading.Timer(TIMEOUT, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclasses.dataclass
class Entrant:
    """A library in a cell.

    Attributes:
        library: The library.
        styles: Its contenders, `{full name: style}`.
        process: Its process while it runs.
    """

    library: Library
    styles: dict[str, str]
    process: Process | None = None

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.close()
            self.process = None


def entrants(cell: Cell, only: Iterable[str] = ("*",)) -> list[Entrant]:
    """Return the libraries of a cell: those that the cell names and `only` admits."""
    only = tuple(only)
    found = []
    for library in LIBRARIES:
        admitted = library.contenders(cell.suite, only)
        styles = {n: s for n, s in library.contenders(cell.suite, cell.contenders).items() if n in admitted}
        if styles:
            found.append(Entrant(library, styles))
    return found


def run_cell(cell: Cell, settings: Settings, only: Iterable[str] = ("*",)) -> dict[str, Any]:
    """Measure a cell.

    Args:
        cell: What to measure.
        settings: See `Settings`.
        only: Patterns of the contenders to measure.

    Returns:
        The cell's fields, its `parameters` and `gflop`, and for each of the `contenders` either an `error` or its
        figures: `seconds` (of a call, one value per round, `None` where it did not take part), `calls` (of a timing),
        `warm` (whether another call precedes it), `first`, `import`, `build` (seconds), `memory` (MB) and `parameters`.
        In the suite `startup` it has `stages` instead, a list of `{stage: seconds}`.
    """
    settings.log(f"{cell.suite}: {cell.title}")
    record = {**dataclasses.asdict(cell), "title": cell.title, "parameters": cell.parameters, "gflop": cell.gflop}
    measure = _start_again_and_again if cell.suite == "startup" else _interleave
    results: dict[str, dict[str, Any]] = {}
    measure(cell, entrants(cell, only), settings, results)
    return {**record, "contenders": results}


def _interleave(cell: Cell, field: list[Entrant], settings: Settings, results: dict[str, dict[str, Any]]) -> None:
    """Time all entrants in rounds; if the memory does not hold all, in groups, each with ours."""
    ours = [e for e in field if e.library.name in (OURS, "gemm")]
    peers = [e for e in field if e not in ours]
    played = 0
    try:
        ours = [e for e in ours if _start(cell, e, settings, results)]
        while True:
            group: list[Entrant] = []
            while peers and (not group or _memory_is_left(results)):
                entrant = peers.pop(0)
                if _start(cell, entrant, settings, results):
                    group.append(entrant)
            for _ in range(cell.rounds):
                _round(played, ours + group, results)
                played += 1
            for entrant in group:
                entrant.close()
            if not peers:
                break
            settings.log("  the rest in another group, to save memory")
    finally:
        for entrant in field:
            entrant.close()
    for result in results.values():
        if "seconds" in result:
            result["seconds"] += [None] * (played - len(result["seconds"]))


def _round(number: int, field: list[Entrant], results: dict[str, dict[str, Any]]) -> None:
    """Time each contender once; each round begins with the next one."""
    turns = [(entrant, *pair) for entrant in field for pair in entrant.styles.items()]
    first = number % max(1, len(turns))
    for entrant, name, style in turns[first:] + turns[:first]:
        result = results[name]
        if "error" in result:
            continue
        time.sleep(PAUSE)
        try:
            answer = entrant.process.ask(time=style, calls=result["calls"], warm=result["warm"])
        except ContenderFailed as error:
            result["error"] = str(error)
            continue
        result["seconds"] += [None] * (number - len(result["seconds"])) + [answer["seconds"] / result["calls"]]


def _start(cell: Cell, entrant: Entrant, settings: Settings, results: dict[str, dict[str, Any]]) -> bool:
    """Start an entrant and make the first calls. Return whether any of its styles works."""
    try:
        entrant.process = start_process(cell, entrant.library, settings)
        ready = entrant.process.answer()
        if ready["parameters"] and abs(ready["parameters"] / cell.parameters - 1) > 0.01:
            raise ContenderFailed(f"has {ready['parameters']} parameters instead of {cell.parameters}")
    except (ContenderFailed, environments.EnvironmentFailed) as error:
        results.update({name: _failed(error, settings, name) for name in entrant.styles})
        entrant.close()
        return False
    about = {field: ready[field] for field in ("import", "build", "parameters", "gflop")}
    for name, style in entrant.styles.items():
        try:
            results[name] = {**about, **_warm_up(entrant.process, style), "seconds": []}
        except ContenderFailed as error:
            results[name] = _failed(error, settings, name)
        else:
            settings.log(f"  {name}: first call {results[name]['first']:.2f} s")
    return any("error" not in results[name] for name in entrant.styles)


def _failed(error: Exception, settings: Settings, name: str) -> dict[str, str]:
    settings.log(f"  {name}: FAILED: {error}")
    return {"error": str(error)}


def _warm_up(process: Process, style: str) -> dict[str, Any]:
    """Make the first call and one or two more, to find the number of calls of a timing and the memory."""
    first = process.ask(first=style)["seconds"]
    answer = process.ask(time=style, calls=1)
    if answer["seconds"] < LONG_SECONDS:
        answer = min(answer, process.ask(time=style, calls=1), key=lambda answer: answer["seconds"])
    calls = max(1, math.ceil(BATCH_SECONDS / max(answer["seconds"], 1e-6)))
    return {"first": first, "memory": answer["memory"], "calls": calls, "warm": answer["seconds"] < WARM_SECONDS}


def _memory_is_left(results: dict[str, dict[str, Any]]) -> bool:
    """Return whether there is memory for another process as large as the largest so far."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return True
    sizes = {line.split(":")[0]: int(line.split()[1]) / 2**10 for line in meminfo.read_text().splitlines()}
    largest = max((result.get("memory", 0) for result in results.values()), default=0)
    return sizes["MemAvailable"] - 1.5 * largest > SPARE_MEMORY * sizes["MemTotal"]


def start_process(
    cell: Cell, library: Library, settings: Settings, style: str | None = None, save: Path | None = None
) -> Process:
    """Make the files that the worker of a library needs, and start it.

    Args:
        cell: What to measure.
        library: The library.
        settings: See `Settings`.
        style: The style, where the worker must know it before.
        save: Where to write weights, instead of measuring.

    Raises:
        EnvironmentFailed: Its environment could not be made.
        ContenderFailed: A file that it needs could not be made.
    """
    python = environments.make(library.environment, settings.environments)
    fields = {**dataclasses.asdict(cell), "architecture": MODELS[cell.model]._asdict(), "parameters": cell.parameters}
    fields |= {"style": style, "backend": library.backend}
    if library.environment == "runtimes":
        fields["onnx"] = str(_onnx_file(cell, settings))
    elif cell.suite == "startup" and save is None:
        fields["weights"] = str(_weights_file(cell, library, style, settings))
    elif cell.suite == "features" and save is None:
        folder = settings.environments / "files" / f"photographs-{cell.images}"
        pictures = Library("photographs", "none", "pictures", "tensorflow", {})
        _saved(folder, cell, pictures, settings, style)
        fields["files"] = sorted(map(str, folder.iterdir()))
    spec = {
        "module": f"benchmarks.contenders.{library.module}",
        "cell": fields,
        "processors": settings.processors,
        "checkout": str(settings.checkout) if library.module == "ours" else None,
    }
    if save is not None:
        spec["save"] = str(save)
    variables = environment_variables(library.backend, len(settings.processors))
    return Process([str(python), str(ROOT / "benchmarks" / "worker.py")], spec, variables)


def _onnx_file(cell: Cell, settings: Settings) -> Path:
    """Return the path of timm's model of this cell as an ONNX file, which is exported once."""
    timm = next(library for library in LIBRARIES if library.name == "timm")
    name = f"{cell.model.replace('/', '')}-{cell.image_size}-{cell.batch}.onnx"
    return _saved(settings.environments / "files" / name, cell, timm, settings, "onnx")


def _weights_file(cell: Cell, library: Library, style: str | None, settings: Settings) -> Path:
    """Return the path of a weight file that the library itself wrote; Google's .npz is the same for all."""
    if style == "npz":
        library = next(library for library in LIBRARIES if library.name == OURS)
    name = f"{library.name}-{library.backend}-{cell.model.replace('/', '')}-{cell.image_size}.{style}"
    return _saved(settings.environments / "files" / name, cell, library, settings, style)


def _saved(path: Path, cell: Cell, library: Library, settings: Settings, style: str | None) -> Path:
    """Let a library write a file, unless it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name("unfinished-" + path.name)
        process = start_process(cell, library, settings, style, save=unfinished)
        try:
            process.answer()
        finally:
            process.close()
        unfinished.rename(path)
    return path


def _start_again_and_again(
    cell: Cell, field: list[Entrant], settings: Settings, results: dict[str, dict[str, Any]]
) -> None:
    """Run a fresh process for each repetition of each contender, in turn, after one that fills the caches."""
    turns = [(entrant.library, *pair) for entrant in field for pair in entrant.styles.items()]
    for number in range(-1, cell.rounds):
        first = max(number, 0) % max(1, len(turns))
        for library, name, style in turns[first:] + turns[:first]:
            result = results.setdefault(name, {"stages": []})
            if "error" in result:
                continue
            try:
                stages, memory = _one_start(cell, library, style, settings)
            except (ContenderFailed, environments.EnvironmentFailed) as error:
                results[name] = _failed(error, settings, name)
                continue
            if number >= 0:
                result["stages"].append(stages)
                result["memory"] = max(memory, result.get("memory", 0))
        settings.log(f"  round {number + 1} of {cell.rounds}")


def _one_start(cell: Cell, library: Library, style: str, settings: Settings) -> tuple[dict[str, float], float]:
    process = start_process(cell, library, settings, style)
    try:
        answer = process.answer()
        total = time.perf_counter() - process.started
    finally:
        process.close()
    return {**answer["stages"], "total": total}, answer["memory"]

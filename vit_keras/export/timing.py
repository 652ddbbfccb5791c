"""Compare the speed, size and accuracy of several exported files on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from .._internal.validate import expanded, listed, positive_integer
from .formats import exported_files, find_format
from .running import Running

__all__ = ["Row", "benchmark", "cpu", "in_turns"]


@dataclasses.dataclass(frozen=True)
class Row:
    """Measurements of one file: times of one image, and the comparison with the model that its report has, if any."""

    path: str
    format: str
    bytes: int
    milliseconds: float
    spread: tuple[float, float]  # the least and the largest time
    runtime: str
    difference: float | None
    same_class: float | None  # share of the images


def benchmark(
    files: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    batch_size: int = 1,
    rounds: int = 10,
    image_size: int = 224,
) -> list[Row]:
    """Run exported files in turns, each in a process of its own with its own runtime, and time them.

    Args:
        files: Exported file or folder, or several. Files of other programs need one input of images.
        batch_size: Images per batch.
        rounds: Number of rounds, in each of which every file runs once.
        image_size: Pixels of the images, height = width, for files that take any size.

    Returns:
        A row for each file, the fastest first.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: A file is of no known format, or its runtime cannot run it.

    Example:
        >>> rows = benchmark(["model.onnx", "model.tflite"])  # doctest: +SKIP
    """
    positive_integer(batch_size, "batch_size")
    positive_integer(rounds, "rounds")
    paths = [expanded(file) for file in listed(files, (str, os.PathLike), "files")]
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"There is no file {path}.")
    names = ["saved_model" if path.is_dir() else find_format(path) for path in paths]
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(Running(name, path)) for name, path in zip(names, paths)]
        for each in running:
            each.run([_images(each.about, batch_size, image_size)])
        times = in_turns([each.time for each in running], rounds)
        rows = [
            Row(
                path=str(path),
                format=name,
                bytes=sum(file.stat().st_size for file in exported_files(path)),
                milliseconds=1000 * statistics.median(each) / batch_size,
                spread=(1000 * min(each) / batch_size, 1000 * max(each) / batch_size),
                runtime=file.about["version"],
                **_reported(path),
            )
            for path, name, each, file in zip(paths, names, times, running)
        ]
    return sorted(rows, key=lambda row: row.milliseconds)


def in_turns(clocks: Sequence[Callable[[], float]], rounds: int, most: float = math.inf) -> list[list[float]]:
    """Return the times of functions that run in turns and return seconds each; no round begins after `most` seconds."""
    times: list[list[float]] = [[] for _ in clocks]
    for number in range(rounds):
        if sum(map(sum, times)) > most:
            break
        for clock, own in list(zip(clocks, times))[:: 1 if number % 2 else -1]:
            own.append(clock())
    return times


def _images(about, batch_size, image_size):
    """Return noise of the shape and dtype that a file takes."""
    size = [side or image_size for side in about["shape"][1:3]]
    shape = (about["shape"][0] or batch_size, *size, about["shape"][3] or 3)
    if shape[0] != batch_size:
        raise ValueError(f"A file takes batches of {shape[0]} only. Received: batch_size={batch_size}")
    noise = np.random.default_rng(0).integers(0, 256, shape)
    return noise.astype("uint8") if about["dtype"] == "uint8" else (noise / 127.5 - 1).astype("float32")


def _reported(path: Path) -> dict[str, float | None]:
    """Return the difference from the model that the report next to a file states."""
    report = path.with_name(f"{path.name}.report.json")
    found = json.loads(report.read_text(encoding="utf-8"))["comparisons"] if report.is_file() else []
    ranked = [each for each in found if each["same_class"] is not None]
    images = sum(each["images"] for each in ranked)
    return {
        "difference": max((each["difference"] for each in found), default=None),
        "same_class": sum(each["same_class"] for each in ranked) / images if images else None,
    }


def cpu() -> str:
    """Return what the processor can do that decides how fast a file runs."""
    flags: set[str] = set()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        flags = set(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")
    found = [flag for flag in known if flag in flags]
    return f"{platform.machine()}, {os.cpu_count()} cores{', ' if found else ''}{', '.join(found)}"

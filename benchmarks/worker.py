"""Run a contender in its own process: requests on stdin, answers on stdout, one JSON object per line.

`benchmarks.runner` starts it with the contender's interpreter. Its argument is a JSON object: the cell, the module, and
the task. Everything that libraries print goes to stderr. Only the standard library and NumPy are imported before the
contender.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

import numpy as np

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[1]


def claim_stdout() -> TextIO:
    """Return stdout for the answers, and send the output of libraries, also from C, to stderr."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return channel


def peak_memory() -> float:
    """Return the peak memory of this process in MB (2²⁰ bytes); NaN where the system does not report it."""
    if resource is None:
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def timed(function) -> tuple[float, Any]:
    """Return the seconds that a call took, and its result."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def serve(spec: dict[str, Any], requests, answer) -> None:
    """Import and build a contender, then answer requests until there are no more.

    Args:
        spec: `module`, `cell` (which names the suite), and `save` (a path) if weights are to be written.
        requests: Lines: `{"first": style}` for a style's first call, `{"time": style, "calls": n}` for its time, with
            `"warm": true` after a call that does not count.
        answer: Called with each answer, a dict.
    """
    cell = spec["cell"]
    import_seconds, module = timed(lambda: importlib.import_module(spec["module"]))
    if "save" in spec:
        return answer({"saved": timed(lambda: module.save(cell, spec["save"]))[0]})
    prepare = getattr(module, cell["suite"])
    if cell["suite"] == "learn":  # one answer for each training
        for line in requests:
            answer(_tried(lambda request: prepare(json.loads(request)), line))
        return None
    build_seconds, job = timed(lambda: prepare(cell))
    if cell["suite"] == "startup":
        stages = {name: timed(stage)[0] for name, stage in job}
        return answer({"stages": {"import": import_seconds, **stages}, "memory": peak_memory()})
    answer(
        {
            "import": import_seconds,
            "build": build_seconds,
            "parameters": job.parameters,
            "gflop": job.gflop,
            "styles": list(job.calls),
        }
    )
    for line in requests:
        answer(_tried(lambda request: _do(job, json.loads(request)), line))
    return None


def _tried(function, *arguments) -> dict[str, Any]:
    """Return the answer of a function, or its exception as an answer: the next request may work."""
    try:
        return function(*arguments)
    except Exception as error:
        traceback.print_exc()
        return failure(error)


def failure(error: Exception) -> dict[str, str]:
    """Return the answer for an exception."""
    return {"error": f"{type(error).__name__}: {error}"[:500]}


def _do(job, request: dict[str, Any]) -> dict[str, Any]:
    if "time" in request:
        call, calls = job.calls[request["time"]], range(request["calls"])
        if request.get("warm"):
            call()
        return {"seconds": timed(lambda: [call() for _ in calls] and None)[0], "memory": peak_memory()}
    seconds, result = timed(job.calls[request["first"]])
    result = np.asarray(result)
    if result.shape != tuple(job.shape):
        raise ValueError(f"The result has the shape {result.shape}, not {tuple(job.shape)}.")
    if not np.isfinite(result.astype("float64")).all():
        raise ValueError("The result is not finite.")
    return {"seconds": seconds}


def main() -> None:
    """Serve the task of the command line."""
    channel = claim_stdout()
    spec = json.loads(sys.argv[1])
    if spec.get("processors") and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, spec["processors"])
    # This package must be found, but not the vit_keras beside it, unless that is the one to measure.
    sys.path[0] = str(ROOT)
    importlib.import_module("benchmarks")
    if spec.get("checkout"):
        sys.path[0] = spec["checkout"]
    else:
        del sys.path[0]

    def answer(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=channel, flush=True)

    try:
        serve(spec, sys.stdin, answer)
    except Exception as error:
        answer(failure(error))
        raise


if __name__ == "__main__":
    main()

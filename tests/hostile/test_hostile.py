"""Whatever a file, a folder, a picture or a name holds: nothing in it is executed, and it costs little.

The outcome of each case is an error of ours that names the file, or a model that works. Each batch runs in a process of
its own (`batch.py`), under limits on memory, disk and time. `files.py` makes the files.
"""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

resource = pytest.importorskip("resource", reason="limits are set by POSIX")
if not sys.platform.startswith("linux"):
    pytest.skip("the limit on memory is Linux's", allow_module_level=True)

HERE = ROOT / "tests" / "hostile"
ERRORS = {"ValueError", "FileNotFoundError", "TypeError", "ConnectionError"}
SECONDS = 20  # of CPU for one case
MEGABYTES = 3000  # the peak of a batch, with all imports
LONGEST = 5000
"""Characters of an error, without the name of the file."""
KINDS = {"npz": 70, "safetensors": 110, "torch": 90, "hdf5": 40, "keras": 70, "hub": 300, "pictures": 80, "names": 40}
"""The kinds of input, and the least number of cases of each."""
LOADS = "enum-beside-good-weights"


def run(kind, folder, step):
    """Run one batch; return the outcome of each case."""
    canary = folder / "canary"
    paths = (ROOT, ROOT / "tests", ROOT / "tests" / "goldens", HERE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "batch.py", kind, folder, canary, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]  # a limit on time ends the process
    assert not canary.exists()
    lines = (line.removeprefix("CASE ") for line in done.stdout.splitlines() if line.startswith("CASE "))
    return [json.loads(line) for line in lines]


def wrong(case):
    """Return what is wrong with the outcome of a case, or `None`."""
    if case["seconds"] > SECONDS or case["megabytes"] > MEGABYTES:
        return "costs too much"
    if "error" not in case:
        return None
    if case["error"] not in ERRORS or case["module"] != "builtins":
        return "is not an error of ours"
    if len(case["text"].replace(case["source"], "")) > LONGEST:
        return "says too much"
    if case["name"] == "stripe":  # the picture is whole: what the model's preprocessing makes of it is too large
        return None
    return None if case["source"] in case["text"] or repr(case["source"])[1:-1] in case["text"] else "names no file"


def problems(cases):
    found = ((wrong(case), case) for case in cases)
    return [f"{why}: {str(case)[:400]}" for why, case in found if why]


@pytest.mark.smoke
@pytest.mark.slow
def test_some_of_every_kind(tmp_path):
    cases = run("all", tmp_path, 6)
    assert {case["kind"] for case in cases} == set(KINDS)
    assert problems(cases) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all(tmp_path, kind):
    cases = run(kind, tmp_path, 1)
    assert len(cases) >= KINDS[kind]
    assert problems(cases) == []
    for case in cases:
        if case["name"] == LOADS:
            assert case["ignored"] == ["an object of __main__.Mode"]

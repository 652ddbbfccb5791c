"""Test the benchmark itself: statistics, the process of a contender, tables, the figure. No library is timed."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT

from benchmarks import __main__ as command
from benchmarks import environments, runner, suites
from benchmarks.contenders import ours
from benchmarks.suites import Cell, Library

FAKE = """
import sys
import numpy as np
from benchmarks.contenders import Job

def inference(cell):
    print("chatter on stdout")
    bad = cell["model"] == "S/16"
    def call(): return np.zeros((cell["batch"], 1000))
    def broken(): raise RuntimeError("it broke")
    calls = {"call": call, "broken": broken, "nan": lambda: call() * np.nan, "shape": lambda: call()[:, 1:]}
    return Job(5 if bad else cell["parameters"], calls, (cell["batch"], 1000))

def startup(cell):
    return [("build", lambda: None), ("predict", lambda: None)]

def save(cell, path):
    open(path, "w").write("weights")
"""


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Settings under which every environment is the tests' own Python, and `fake` is a contender."""
    (tmp_path / "fake_contender.py").write_text(FAKE)

    def fake(name, backend="none", **styles):
        return Library(name, backend, "fake_contender", "tensorflow", styles)

    everything = ("call", "broken", "nan", "shape")
    libraries = (
        fake("vit_keras", inference=("call",), startup=("weights.h5",)),
        fake("peer", inference=everything, startup=("weights.h5",)),
        Library("absent", "none", "no_such_module", "tensorflow", {"inference": ("call",)}),
        Library("offline", "none", "fake_contender", "cannot-be-made", {"inference": ("call",)}),
    )
    original = runner.Process

    def process(program, spec, env):
        spec = {**spec, "module": spec["module"].rpartition(".")[2]}
        return original(program, spec, {**env, "PYTHONPATH": str(tmp_path)})

    def make(name, folder):
        if name == "cannot-be-made":
            raise environments.EnvironmentFailed("no network")
        return sys.executable

    monkeypatch.setattr(runner, "LIBRARIES", libraries)
    monkeypatch.setattr(runner, "Process", process)
    monkeypatch.setattr(environments, "make", make)
    monkeypatch.setattr(runner, "BATCH_SECONDS", 0.001)
    monkeypatch.setattr(runner, "PAUSE", 0)
    return runner.Settings(tmp_path, runner.physical_processors(), log=lambda line: None)


def test_contenders_are_timed_in_rounds_and_failures_are_told(settings):
    found = runner.run_cell(Cell("inference", "Ti/16", batch=2, rounds=3), settings)["contenders"]
    for name in ("vit_keras/none/call", "peer/none/call"):
        assert len(found[name]["seconds"]) == 3
        assert all(0 < seconds < 0.1 for seconds in found[name]["seconds"])
        assert found[name]["first"] > 0 and found[name]["memory"] > 1
    errors = {name: result.get("error", "") for name, result in found.items()}
    assert errors["peer/none/call"] == ""
    assert "it broke" in errors["peer/none/broken"]
    assert "not finite" in errors["peer/none/nan"]
    assert "shape (2, 999), not (2, 1000)" in errors["peer/none/shape"]
    assert "No module named 'no_such_module'" in errors["absent/none/call"]
    assert errors["offline/none/call"] == "no network"


def test_ours_has_the_calls_of_its_suite():
    calls_agree(keras.backend.backend())


def calls_agree(backend):
    """Assert that each call of ours computes the same finite logits, in a process of that backend."""
    (library,) = (each for each in suites.LIBRARIES if (each.name, each.backend) == (suites.OURS, backend))
    job = ours.inference({"model": "Ti/16", "image_size": 32, "batch": 2})
    found = {name: job.calls[name]() for name in library.styles["inference"]}
    assert found.keys() == job.calls.keys()
    assert np.isfinite([*found.values()]).all()
    for logits in found.values():  # one model in float32, compiled or not
        np.testing.assert_allclose(logits, found["predict"], atol=1e-5)


def contender(*seconds, **more):
    return {"seconds": list(seconds), "first": 1.5, "memory": 800.0, "calls": 1, "import": 1.0, "build": 1.0, **more}


@pytest.fixture
def results():
    """What a run would have written."""
    stages = {"import": 2.0, "build": 0.5, "load": 0.25, "predict": 1.0, "total": 4.0}
    inference = {
        "vit_keras/tensorflow/compiled": contender(0.2, 0.4),
        "vit_keras/tensorflow/predict": contender(0.3, 0.5),
        "keras-hub/tensorflow/compiled": contender(0.25, 0.5),
        "tfvit/tensorflow/compiled": {"error": "ModuleNotFoundError: No module named 'tfvit'"},
        "gemm/torch/matmul": contender(0.1, 0.2, gflop=20.0),
    }
    starts = {
        "vit_keras/tensorflow/weights.h5": {"stages": [{**stages, "total": 5.0}, stages], "memory": 700.0},
        "bare-keras/tensorflow/weights.h5": {"stages": [{**stages, "import": 1.9}] * 2, "memory": 600.0},
    }
    cells = []
    for cell, contenders in ((Cell("inference"), inference), (Cell("startup", "Ti/16"), starts)):
        fields = {"suite": cell.suite, "model": cell.model, "batch": 1, "rounds": 2, "images": 128}
        cells.append({**fields, "title": cell.title, "gflop": cell.gflop, "contenders": contenders})
    machine = {"processor": "An Example 9000", "cores": 2, "memory_gib": 24, "system": "Linux 6", "python": "3.11.7"}
    versions = {"tensorflow": {"keras": "3.15.1", "tensorflow_cpu": "2.21.0", "pip": "24"}}
    return {"date": "2026-11-21", "machine": machine, "environments": versions, "cells": cells}


def test_a_run_is_kept_and_shown_again(settings, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(command.FOLDER, str(tmp_path))
    path = tmp_path / "results.json"
    command.main(
        ["inference", "--models", "Ti/16", "--rounds", "2", "--only", "*/call", "--output", str(path)],
    )
    printed = capsys.readouterr().out
    kept = json.loads(path.read_text())
    assert [cell["title"] for cell in kept["cells"]] == ["Ti/16, 224 px, batch 1"]
    assert kept["machine"]["cores"] == len(settings.processors)
    command.main(["table", str(path)])
    shown = capsys.readouterr().out
    assert "peer/none/call" in shown and shown.splitlines()[0] in printed


@pytest.mark.slow
@pytest.mark.any_backend
def test_what_is_for_a_gpu_runs_on_a_cpu(tmp_path):
    pytest.importorskip("jax")
    pytest.importorskip("torch")
    ours = ["ours, JAX", "ours, PyTorch", "ours, PyTorch, own loop"]
    small = ["--models", "ti16", "--batches", "2", "--image-size", "32", "--steps", "1", "--rounds", "1", "--peak", "1"]
    script, output = ROOT / "benchmarks" / "lab" / "gpu.py", tmp_path / "gpu.json"
    command = [sys.executable, str(script), *small, "--contenders", *ours, "--output", str(output)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(command, env={**os.environ, **quick, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())
    assert [row["contender"] for row in rows] == ours
    assert all(0 < row["predict, of peak"] < 1 and row["train, images a second"] > 0 for row in rows)
    assert "Measured on: cpu" in done.stdout and "| ti16 | 2 | ours, JAX |" in done.stdout

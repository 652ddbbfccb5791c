"""The process that runs an exported file: its backend, and how it may end."""

import importlib.util
import json
import subprocess
import sys

import keras
import pytest
from export_cases import tiny

import vit_keras
from vit_keras import anatomy
from vit_keras.export import FORMATS, other_backend, runtimes
from vit_keras.export.plan import Plan
from vit_keras.export.running import Running, RuntimeCrashed

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(sys.platform == "win32", reason="sends signals"),
]


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Let another script take the place of the one that runs files: `child(text)`."""

    def replace(text):
        path = tmp_path / "child.py"
        path.write_text(f"import json, os, signal, sys\n{text}\n")
        monkeypatch.setattr(runtimes, "__file__", str(path))

    return replace


ABOUT = 'print(json.dumps({"version": "1", "dtype": "uint8", "shape": [None], "alone": True, "notes": []}), flush=True)'
START = 'print("oneDNN custom operations are on", file=sys.stderr, flush=True)'


@pytest.mark.parametrize("name", FORMATS)
def test_the_process_has_the_backend_of_its_format(child, monkeypatch, name):
    monkeypatch.setenv("KERAS_BACKEND", "torch" if FORMATS[name].backend != "torch" else "jax")
    child(
        'print(json.dumps({"version": os.environ.get("KERAS_BACKEND"), "dtype": "", "shape": [], "alone": True}), '
        "flush=True); sys.stdin.readline()"
    )
    with Running(name, "model") as file:
        assert file.about["version"] == FORMATS[name].backend


def test_a_file_is_kept_when_what_checks_it_crashes(child, tmp_path):
    pytest.importorskip("onnx")
    child(f"{START}\n{ABOUT}; sys.stdin.readline()\nos.kill(os.getpid(), signal.SIGSEGV)")
    path = tmp_path / "model.onnx"
    with pytest.raises(RuntimeCrashed, match="check="):
        vit_keras.export(tiny(), path)
    report = json.loads((tmp_path / "model.onnx.report.json").read_text())
    assert path.stat().st_size == report["bytes"] and not report["comparisons"] and report["path"] == "model.onnx"
    assert "It was not checked" in report["notes"][-1] and "SIGSEGV" in report["notes"][-1]


def everything_is_installed(monkeypatch):
    """Let modules be found that a process in which nothing is run does not need."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *package: find(name, *package) or name)


def test_a_folder_is_kept_when_what_checks_it_crashes(child, monkeypatch, tmp_path):
    """What TensorFlow wrote, in a process of its own, stays whole."""

    def write(plan, name, path):
        (path / "variables").mkdir(parents=True)
        (path / "saved_model.pb").write_bytes(b"12")
        (path / "variables" / "variables.index").write_bytes(b"345")
        return []

    monkeypatch.setattr(other_backend, "write_in_its_backend", write)
    everything_is_installed(monkeypatch)
    child(f"{START}\nos.kill(os.getpid(), signal.SIGSEGV)")
    path = tmp_path / "model"
    with pytest.raises(RuntimeCrashed, match="not checked.*SIGSEGV.*check=False"):
        vit_keras.export(tiny(), path, format="saved_model")
    assert (path / "variables" / "variables.index").read_bytes() == b"345"
    assert "SIGSEGV" in json.loads((tmp_path / "model.report.json").read_text())["notes"][-1]


def test_a_killed_writer_leaves_nothing(monkeypatch, tmp_path):
    name, other = ("saved_model", "tensorflow") if keras.backend.backend() != "tensorflow" else ("pt2", "torch")
    run = subprocess.run
    dies = "import os, signal, sys; print('oneDNN', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    everything_is_installed(monkeypatch)
    monkeypatch.setattr(
        other_backend.subprocess, "run", lambda _, **options: run([sys.executable, "-c", dies], **options)
    )
    with pytest.raises(RuntimeError, match=f"{other} .*SIGSEGV.*oneDNN"):
        vit_keras.export(tiny(), tmp_path / "model", format=name, check=False)
    assert not list(tmp_path.iterdir())


def test_a_writer_in_another_process_knows_the_task(monkeypatch, tmp_path):
    """Keras does not save what a model around a ViT says of itself. A ViT without a head would keep it."""
    model = keras.Sequential([keras.Input((32, 32, 3)), tiny(), keras.layers.Dense(3)])
    anatomy.name_classes(model, ("a", "b", "c"), "multi")
    written = []
    monkeypatch.setattr(other_backend, "write_in_its_backend", lambda plan, *_: written.append(plan) or [])
    other_backend._save(Plan.of(model), "saved_model", tmp_path / "model", tmp_path)
    assert other_backend._work(tmp_path) == {"notes": []}
    assert (written[0].metadata_json()["task"], written[0].labels) == ("multi", ("a", "b", "c"))

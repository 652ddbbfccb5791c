"""`vit-keras doctor` describes a machine, names what is wrong, and tells no secret."""

import importlib.metadata
import os
import subprocess
import sys

import keras
import pytest
from support import ROOT

import vit_keras
from vit_keras.cli import doctor, main

pytestmark = pytest.mark.any_backend


def test_a_machine_without_problems_is_described(capsys, monkeypatch, tmp_path):
    (tmp_path / "weights.npz").write_bytes(bytes(3_000_000))
    monkeypatch.setenv("VIT_KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    assert main(["doctor"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for part in (
        vit_keras.__version__,
        f"Keras {keras.__version__} on {keras.backend.backend()}",
        "files, 3.0 MB; downloads are forbidden",
        "VIT_KERAS_OFFLINE=1",
        "opened vit_cifar10",
        "No problem was found.",
    ):
        assert part in printed
    assert "hf_secret" not in printed


def test_a_broken_backend_is_a_problem_and_the_rest_is_still_described():
    environment = {**os.environ, "KERAS_BACKEND": "nonsense", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "vit_keras", "doctor"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 1
    assert "KERAS_BACKEND=nonsense" in result.stdout
    assert "problem       vit_cifar10 cannot be opened and run" in result.stdout
    assert "Unable to import backend" in result.stdout
    assert not result.stderr, result.stderr


def test_conflicts_and_missing_packages_are_named(capsys, monkeypatch):
    version = importlib.metadata.version
    changed = {"tensorflow-addons": "0.23", "vit-keras": "0.2.0", "onnxruntime": None, "tf-nightly": "2", "triton": "3"}

    def of(name):
        if changed.get(name, "") is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return changed.get(name) or version(name)

    monkeypatch.setattr(importlib.metadata, "version", of)
    monkeypatch.setattr(doctor, "_try_keras", lambda: ())
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert main(["doctor"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "pip uninstall tensorflow-addons" in printed
    assert "vit-keras 0.2.0, another package of the same name" in printed
    assert "imported TensorFlow before Triton" in printed
    assert "Set VIT_KERAS_HOME to a folder for downloads" in printed
    assert 'lacks onnxruntime: pip install "vit-keras[' in printed  # Windows knows no single quotes


def test_a_file_in_place_of_the_folder_of_downloads_is_a_problem(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/folder"):
        monkeypatch.setenv("VIT_KERAS_HOME", str(tmp_path / place))
        assert ["cannot be written" in problem for problem in doctor._unwritable()] == [True]


def test_a_package_that_is_not_installed_has_no_extras(capsys, monkeypatch):
    def metadata(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", metadata)
    assert list(doctor._extras()) == [("extras", "unknown: the package runs from a folder and is not installed")]

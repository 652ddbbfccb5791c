"""A tiny exported file, and the command that serves it."""

import os
import re
import subprocess
import sys

import make_tiny_onnx
import pytest
from support import ROOT


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    for name in ("uvicorn", "onnxruntime", "onnx"):
        pytest.importorskip(name)
    return make_tiny_onnx.save(tmp_path_factory.mktemp("onnx") / "tiny.onnx")


@pytest.fixture
def command():
    """Start `vit-keras serve` in a process: `command(path, *options)` returns it and the address."""
    processes, pipes = [], {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}

    def start(path, *options, backend="none"):
        environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
        arguments = [sys.executable, "-m", "vit_keras", "serve", str(path), "--port", "0", *options]
        process = subprocess.Popen(arguments, env=environment, **pipes)
        processes.append(process)
        line = process.stdout.readline()
        assert "http://" in line, process.stderr.read()
        return process, re.search(r"http://\S+", line)[0]

    yield start
    for process in processes:
        process.kill()
        process.communicate()

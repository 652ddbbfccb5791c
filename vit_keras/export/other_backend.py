"""Write a file whose format needs a different backend, in a separate process."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras

from .formats import FORMATS
from .plan import Plan
from .running import ending
from .writers import WRITERS

__all__ = ["write_in_its_backend"]

_MODEL, _TASK, _ANSWER = "model.keras", "task.json", "answer.json"


def write_in_its_backend(plan: Plan, name: str, path: Path) -> list[str]:
    """Write a file of a format, here or in a process with the backend that the format needs."""
    backend = backend_for(name)
    if backend == keras.backend.backend() and not (name == "torch" and _computes_elsewhere()):
        return WRITERS[name](plan, path)
    with tempfile.TemporaryDirectory() as folder:
        _save(plan, name, path, Path(folder))
        environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment["KERAS_TORCH_DEVICE"] = "cpu"  # a program of PyTorch runs where it was written
        command = [sys.executable, "-m", __name__, folder]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        answer = Path(folder, _ANSWER)
        if not answer.exists():
            end = process.stderr.strip()[-1000:]
            raise RuntimeError(
                f"The process that writes {path.name} with {backend} {ending(process.returncode)} without a result."
                + (f" Its last words: {end}" if end else "")
            )
        result = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in result:
        raise ValueError(result["error"])
    return result["notes"]


def _here(backend: str) -> str:
    """Return the setting with which this process would write the file."""
    return "KERAS_TORCH_DEVICE=cpu" if backend == keras.backend.backend() else f"KERAS_BACKEND={backend}"


def _computes_elsewhere() -> bool:
    """Return whether Keras computes with PyTorch on another device than the CPU."""
    return keras.ops.zeros(()).device.type != "cpu"


def backend_for(name: str) -> str:
    """Return the backend that writes a format: the active one where it can."""
    # OpenVINO's tensors cannot be in a sum with those of `onnx.trace`: an installed backend writes its ONNX files.
    active = keras.backend.backend()
    backend = FORMATS[name].backend or active
    if backend != "openvino":
        return backend
    for other in ("torch", "tensorflow", "jax"):
        if importlib.util.find_spec(other):
            return other
    raise ImportError(
        f"With KERAS_BACKEND=openvino, the format {name} is written by a process with another backend, and none is "
        "installed. Install one of torch, tensorflow and jax."
    )


def _save(plan: Plan, name: str, path: Path, folder: Path) -> None:
    """Write the files that the other process needs into a folder."""
    options = {
        "preprocessing": plan.preprocessing is not None,
        "labels": plan.labels,
        "top": plan.top,
        "attention": bool(plan.attention),
        "quantize": plan.quantize,
        "calibration": plan.calibration,
        "batch_size": plan.input_shape[0],
        "opset": plan.opset,
        "metadata": plan.metadata,
    }
    try:
        plan.model.save(folder / _MODEL)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise ValueError(
            f"The model {plan.model.name!r} cannot be saved for the process that writes {path.name}, which needs the "
            f"backend {backend_for(name)}: {error}. Run with {_here(backend_for(name))} instead."
        ) from error
    task = {"format": name, "path": os.path.abspath(path), "options": options}
    task["here"] = _here(backend_for(name))
    (folder / _TASK).write_text(json.dumps(task), encoding="utf-8")


def _work(folder: Path) -> dict[str, Any]:
    """Perform the export that `_save` prepared in a folder, and return the notes or the error."""
    from ..checkpoints.saved_models import load_model

    task = json.loads((folder / _TASK).read_text(encoding="utf-8"))
    backend = keras.backend.backend()
    try:
        model = load_model(folder / _MODEL, compile=False)
    except Exception as error:  # whatever the user's own classes raise
        return {
            "error": f"The process with the backend {backend} cannot open the model: {' '.join(str(error).split())} "
            "Put its own classes and functions into a module that can be imported, registered with "
            f"keras.saving.register_keras_serializable, or run with {task['here']}."
        }
    try:
        plan = Plan.of(model, **task["options"])
        return {"notes": write_in_its_backend(plan, task["format"], Path(task["path"]))}
    except ValueError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    work: Path = Path(sys.argv[1])
    result: dict[str, Any] = _work(work)
    (work / _ANSWER).write_text(json.dumps(result), encoding="utf-8")

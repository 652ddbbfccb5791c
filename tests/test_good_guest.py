"""A good guest: the package changes nothing by which another model of the process computes, trains or is saved.

Each case is a process of its own, which compares the functions and classes of Keras, of the backend, of NumPy, Pillow
and Python, and what Python has in lists, before and after.
"""

import json
import os
import subprocess
import sys

import keras
import pytest
from support import ROOT

from vit_keras.layers._base import OF_0_X

SNAPSHOT = """
import json, sys, types, warnings

PACKAGES = {"keras", "torch", "tensorflow", "jax", "jaxlib", "numpy", "PIL", "openvino"}
PACKAGES |= {"builtins", "importlib", "logging", "os", "random", "sys", "threading", "warnings"}
CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, property, staticmethod, classmethod)


def snapshot():
    found = {"sys.meta_path": [*sys.meta_path], "sys.path": [*sys.path], "warnings.filters": [*warnings.filters]}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES and isinstance(module, types.ModuleType):
            owners = [(name, module), (f"{name}.__loader__", getattr(module, "__loader__", None))]
            kinds = [(key, kind) for key, kind in list(vars(module).items()) if isinstance(kind, type)]
            owners += [(f"{name}.{key}", kind) for key, kind in kinds if kind.__module__ == name]
            for path, owner in owners:
                inside = {k: v for k, v in list(getattr(owner, "__dict__", {}).items()) if isinstance(v, CODE)}
                found.update((f"{path}.{key}", value) for key, value in inside.items())
                found[path] = {*inside} if isinstance(owner, type) else None
    return found


def changed(before, after):
    return sorted(name for name, value in before.items() if name not in after or
                  (after[name] != value if isinstance(value, (list, set)) else after[name] is not value))
"""

BEFORE_KERAS = """
import vit_keras
assert [each for each in sys.meta_path if "vit_keras" in type(each).__module__]  # until Keras is imported
import keras
print(json.dumps([str(each) for each in sys.meta_path if "vit_keras" in type(each).__module__]))
print(json.dumps([key for key, value in vars(keras.__loader__).items() if isinstance(value, CODE)]))
"""

A_DAY = """
import tempfile
import keras, numpy as np

images, labels = np.random.default_rng(0).uniform(-1, 1, (4, 32, 32, 3)).astype("float32"), np.arange(4) % 2
trains = keras.backend.backend() != "openvino"


def theirs(folder):
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(images, labels, verbose=0) if trains else None
    model.predict(images, verbose=0)
    model.save(f"{folder}/theirs.keras")
    keras.models.load_model(f"{folder}/theirs.keras")


def ours(folder):
    import vit_keras
    from vit_keras import export, training, visualize

    model = vit_keras.vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=2)
    model.predict(images, verbose=0)
    model(images)
    visualize.attention_map(model, np.zeros((40, 40, 3), "uint8"))
    if trains:
        recipe = training.recipe("finetune", epochs=1)
        recipe.compile(model)
        model.fit(images, labels, callbacks=recipe.callbacks, verbose=0)
    model.save(f"{folder}/ours.keras")
    vit_keras.load_model(f"{folder}/ours.keras").predict(images, verbose=0)
    vit_keras.save_weights(model, f"{folder}/ours.npz")
    vit_keras.from_checkpoint(f"{folder}/ours.npz")
    export.export(model, f"{folder}/ours.onnx")


with tempfile.TemporaryDirectory() as folder:
    theirs(folder)
    entries, before = {*keras.saving.get_custom_objects()}, snapshot()
    ours(folder)
    print(json.dumps(changed(before, snapshot())))
modules = [name for name, module in sys.modules.items() if name.startswith("vit_keras") and module.__spec__ is None]
entries = {*keras.saving.get_custom_objects()} - entries
print(json.dumps(modules + [name for name in entries if not name.startswith("vit_keras>")]))
"""

ON_OPENVINO = [
    "keras.src.backend.openvino.core.compile_model",
    "keras.src.backend.openvino.trainer.OpenVINOTrainer._get_compiled_model",
]
"""Without these, Keras on OpenVINO computes with old weights and in bfloat16 (`backend/patches.py`)."""


def run(code, backend):
    """The lists that a new process prints."""
    pytest.importorskip(backend)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", SNAPSHOT + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


BACKENDS = [
    pytest.param(name, marks=[] if name == "torch" else pytest.mark.slow)
    for name in ("torch", "tensorflow", "jax", "openvino")
]
here = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the same in each process")


@here
@pytest.mark.smoke
@pytest.mark.slow
def test_importing_before_keras_leaves_nothing_behind():
    finders, wrapped = run(BEFORE_KERAS, "jax")
    assert not finders
    assert not wrapped


@here
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_days_work_changes_nothing(backend):
    changed, foreign = run(A_DAY, backend)
    assert changed == (ON_OPENVINO if backend == "openvino" else [])
    assert {*foreign} == {f"Custom>{name}" for name in OF_0_X}  # names that vit-keras 0.x had for its layers

"""A good guest: the package changes nothing by which another model of the process computes, trains or is saved.

Each case is a process of its own, which compares the functions and classes of Keras, of the backend, of NumPy, Pillow
and Python, and what Python has in lists, before and after.
"""

import json
import os
import re
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
import keras

def loaded():
    return {name for name in ("matplotlib", "PIL", "sklearn", "rich") if name in sys.modules}

keras_alone, before = loaded(), snapshot()
import vit_keras
assert loaded() == keras_alone
modules = ("data.augment", "data.dataset", "embeddings", "evaluation", "finetuning", "lora", "recipes")
assert not [name for name in modules if "vit_keras.training." + name in sys.modules]
assert "vit_keras.visualize" not in sys.modules and "vit_keras.training.optimizers" in sys.modules
entries, at_import = {*keras.saving.get_custom_objects()}, changed(before, snapshot())

import tempfile
import numpy as np
from vit_keras import export, training, visualize

images, labels = np.random.default_rng(0).uniform(-1, 1, (4, 32, 32, 3)).astype("float32"), np.arange(4) % 2
backend = keras.backend.backend()


def works(model):
    if backend != "openvino":
        recipe = training.recipe("finetune", epochs=1)
        recipe.compile(model)
        model.fit(images, labels, callbacks=recipe.callbacks, verbose=0)
    model.predict(images, verbose=0)


def is_saved(model, name):
    model.save(f"{folder}/{name}.keras")
    keras.models.load_model(f"{folder}/{name}.keras").predict(images, verbose=0)


with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
    warnings.simplefilter("ignore")
    theirs = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])
    theirs.compile("adam", "sparse_categorical_crossentropy")
    theirs.fit(images, labels, verbose=0) if backend != "openvino" else None
    theirs.predict(images, verbose=0)
    before = snapshot()
    ours = vit_keras.vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=2)
    ours(images)
    works(ours)
    visualize.attention_map(ours, np.zeros((40, 40, 3), "uint8"))
    found = changed(before, snapshot())
    assert backend not in ("jax", "torch") or "tensorflow" not in sys.modules
    is_saved(theirs, "theirs")  # for which Keras imports TensorFlow
    before = snapshot()
    is_saved(ours, "ours")
    vit_keras.save_weights(ours, f"{folder}/ours.npz")
    vit_keras.from_checkpoint(f"{folder}/ours.npz")
    export.export(ours, f"{folder}/ours.onnx")
    print(json.dumps([*at_import, *found, *changed(before, snapshot())]))
modules = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None) is None]
print(json.dumps([name for name in modules if name.startswith("vit_keras")]))
print(json.dumps([*entries]))
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
def test_a_days_work_changes_nothing_and_imports_only_what_it_needs(backend):
    """After the import, Keras knows every class that is saved, and the names that vit-keras 0.x had for its layers."""
    changed, unknown, entries = run(A_DAY, backend)
    assert changed == (ON_OPENVINO if backend == "openvino" else [])
    assert not unknown
    pattern = r"^@(?:keras\.saving\.)?register(?:_keras_serializable)?\b.*\n(?:@.*\n)*class (\w+)"
    files = (ROOT / "vit_keras").rglob("*.py")
    classes = {f"vit_keras>{name}" for path in files for name in re.findall(pattern, path.read_text("utf-8"), re.M)}
    assert len(classes) > 30 and not classes - {*entries}
    foreign = {name for name in entries if not name.startswith("vit_keras>")}
    assert foreign == {f"Custom>{name}" for name in OF_0_X}

"""What an extra of pyproject.toml installs is enough for what it is for: all other packages are hidden."""

import os
import subprocess
import sys

import pytest
from support import ROOT

pytestmark = [pytest.mark.any_backend, pytest.mark.slow]

HIDE = """
import importlib.metadata, sys, tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

project = tomllib.load(open("pyproject.toml", "rb"))["project"]
wanted = [*project["dependencies"]]
for extra in sys.argv[1].split(","):
    wanted += project["optional-dependencies"][extra]
installed = {canonicalize_name(each.name) for each in importlib.metadata.distributions()}
waiting, needed = [Requirement(each) for each in wanted], {}
waiting = [each for each in waiting if each.marker is None or each.marker.evaluate({"extra": ""})]
while waiting:
    each = waiting.pop()
    name = canonicalize_name(each.name)
    name = name if name in installed else canonicalize_name(f"{name}-cpu")  # tensorflow
    if name not in installed:
        sys.exit(f"not installed here: {each}")
    if each.extras <= needed.get(name, set()) and name in needed:
        continue
    needed.setdefault(name, set()).update(each.extras)
    for more in map(Requirement, importlib.metadata.requires(name) or ()):
        if more.marker is None or any(more.marker.evaluate({"extra": extra}) for extra in ("", *each.extras)):
            waiting.append(more)
needed.setdefault("setuptools", set())  # `venv` installs it before Python 3.12
owners = importlib.metadata.packages_distributions()
hidden = {module for module, names in owners.items() if not {*map(canonicalize_name, names)} & {*needed}}


class Finder:
    def __init__(self, finders):
        self.finders = finders

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden - {"vit_keras"}:
            return None
        found = (finder.find_spec(name, path, target) for finder in self.finders)
        return next((spec for spec in found if spec is not None), None)


sys.meta_path[:] = [Finder([*sys.meta_path])]
for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
    del sys.modules[name]
"""

MODEL = """
import numpy as np
import vit_keras
from vit_keras import utils, vit, visualize
model = vit.vit_cifar10()
image = utils.example("cat")
assert model.predict(model.preprocess(image), verbose=0).shape == (1, 10)
assert visualize.attention_map(model, image).shape == image.shape
"""
EXPORT = MODEL + "vit_keras.export(model, folder / {!r})"
FOLDER = """
from PIL import Image
for n, name in enumerate(["a", "b"]):
    (folder / "images" / name).mkdir(parents=True)
    for k in range(6):
        Image.fromarray(np.full((32, 32, 3), 30 * k + n, "uint8")).save(folder / "images" / name / f"{k}.png")
"""

USES = {
    ("openvino", "openvino"): MODEL + "model.save(folder / 'model.keras')",
    ("tensorflow", "tensorflow"): MODEL + "model.export(folder / 'saved')",
    ("jax", "jax"): MODEL + "model.save(folder / 'model.keras')",
    ("torch", "torch"): MODEL
    + FOLDER
    + "vit_keras.training.finetune(model, folder / 'images', output=folder / 'run', epochs=1)",
    ("torch", "torch,onnx"): EXPORT.format("model.onnx"),
    ("tensorflow", "tensorflow,onnx"): EXPORT.format("model.onnx"),
    ("torch", "torch,openvino"): EXPORT.format("model.xml"),
    ("tensorflow", "tensorflow,litert"): EXPORT.format("model.tflite"),
    ("torch", "torch,probe"): """
import numpy as np
from vit_keras import training
probe = training.linear_probe(np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2)
""",
    ("torch", "torch,onnx,serve"): EXPORT.format("model.onnx")
    + """
from urllib.request import urlopen
from vit_keras.serve import running
with running(folder / "model.onnx") as address:
    assert urlopen(address + "/health").status == 200
""",
    ("torch", "torch,table"): MODEL
    + FOLDER
    + """
import csv
rows = [(f"{name}/{k}.png", name) for name in "ab" for k in range(6)]
with open(folder / "images" / "train.csv", "w", newline="") as file:
    csv.writer(file).writerows([("image", "label"), *rows])
vit_keras.training.finetune(model, folder / "images" / "train.csv", output=folder / "run", epochs=1)
""",
}


@pytest.mark.parametrize(("backend", "extras"), USES, ids=["-".join(use) for use in USES])
def test_an_extra_brings_what_its_use_imports(backend, extras, tmp_path):
    use = f"import pathlib\nfolder = pathlib.Path({str(tmp_path)!r})\n" + USES[backend, extras]
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HIDE + use, extras]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.stderr.startswith("not installed here"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]

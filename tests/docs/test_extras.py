"""What the documented install brings is enough for what the pages do: all other packages are hidden."""

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
for name in sys.argv[1:]:
    wanted += project["optional-dependencies"].get(name, [name])
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
model.save(folder / "model.keras")
"""
TABLE = """
import csv
from PIL import Image
rows = [(f"{name}{k}.png", name) for name in "ab" for k in range(12)]
for k, (name, _) in enumerate(rows):
    Image.fromarray(np.full((32, 32, 3), 10 * k, "uint8")).save(folder / name)
with open(folder / "train.csv", "w", newline="") as file:
    csv.writer(file).writerows([("image", "label"), *rows])
vit_keras.training.finetune(folder / "train.csv", model, output=folder / "run", epochs=1)
report = (folder / "run" / "report.html").read_text(encoding="utf-8")
assert "pip install" not in report and "<svg" in report
"""
SERVE = """
from urllib.request import urlopen
from vit_keras.serve import running
vit_keras.export(model, folder / "model.onnx")
vit_keras.export(model, folder / "model.xml")
with running(folder / "model.onnx") as address:
    assert urlopen(address + "/health").status == 200
"""
USES = {
    ("openvino", "scipy"): MODEL,
    ("jax",): MODEL,
    ("torch",): MODEL,
    ("torch", "all"): MODEL + TABLE + SERVE,
    ("tensorflow", "all"): MODEL + "vit_keras.export(model, folder / 'model.tflite')",
}


@pytest.mark.parametrize("packages", USES, ids="-".join)
def test_what_is_installed_is_enough(packages, tmp_path):
    use = f"import pathlib\nfolder = pathlib.Path({str(tmp_path)!r})\n" + USES[packages]
    environment = {**os.environ, "KERAS_BACKEND": packages[0], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HIDE + use, *packages]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    if done.stderr.startswith("not installed here"):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr[-3000:]

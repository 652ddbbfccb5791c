"""What the docstrings show is what happens; every public name has one."""

import doctest
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from support import ROOT, uncompiled

import vit_keras

MODULES = sorted(
    name for _, name, _ in pkgutil.walk_packages(vit_keras.__path__, "vit_keras.") if not name.endswith("__main__")
)


@pytest.mark.filterwarnings("ignore:Even though")
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for kind in ("daisy", "dandelion", "rose", "sunflower", "tulip") if ".training" in name else ():
        Path("flowers", kind).mkdir(parents=True)
        for n in range(2):
            Image.new("RGB", (20, 20), (n, 99, 200)).save(f"flowers/{kind}/{n}.png")
    module = importlib.import_module(name)
    names = {"np": np, "keras": keras, **vars(module)}
    with uncompiled():  # each example runs once
        result = doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert not result.failed


def public():
    for name in MODULES:
        module = importlib.import_module(name)
        for attribute, value in vars(module).items():
            if not attribute.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
                yield f"{name}.{attribute}", value


@pytest.mark.parametrize(("name", "value"), list(public()), ids=lambda v: v if isinstance(v, str) else "")
def test_public_names_are_documented(name, value):
    assert inspect.getdoc(value), name


@pytest.mark.slow
def test_the_guide_to_training_runs_from_top_to_bottom(monkeypatch, tmp_path):
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    random = np.random.RandomState(0)
    for kind in ("daisy", "rose", "tulip"):
        Path("flowers", kind).mkdir(parents=True)
        for n in range(10):
            pixels = random.randint(0, 255, (70, 70, 3)).astype("uint8")
            Image.fromarray(pixels).save(f"flowers/{kind}/{n}.png")
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    names = {"pictures": random.uniform(-1, 1, (8, 32, 32, 3)).astype("float32")}
    for snippet in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(snippet, "training.md", "exec"), names)
    assert names["seen"].shape == (len(names["train"].paths), 128)
    assert len(names["nearest"]) == len(names["validation"].paths)
    assert np.load("features.npz")["features"].shape == (30, 128)


PAGES = ["README.md", "CHANGELOG.md", "benchmarks/README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_sections(page):
    def sections(path):
        titles = re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

    here = ROOT / page
    for target, section in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", here.read_text(encoding="utf-8")):
        path = here.parent / target if target else here
        assert path.exists(), target
        assert not section or section in sections(path), f"{target}#{section}"

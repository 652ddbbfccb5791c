"""What the docstrings show is what happens; every public name has one."""

import ast
import builtins
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

DOCS = ROOT / "docs"
MODULES = sorted(
    name for _, name, _ in pkgutil.walk_packages(vit_keras.__path__, "vit_keras.") if not name.endswith("__main__")
)
PACKAGES = ["", *sorted({name.split(".")[1] for name in MODULES if name.count(".") > 1})]
"""The folders of the package, and the package itself."""


def documented():
    """The modules that define the names that packages show: those of the reference."""
    for package in ("vit_keras", *(name for name in MODULES if hasattr(importlib.import_module(name), "__path__"))):
        package = importlib.import_module(package)
        for name in getattr(package, "__all__", ()):
            yield getattr(getattr(package, name), "__module__", package.__name__)


def within(package):
    return [name for name in MODULES if (name.split(".")[1] if name.count(".") > 1 else "") == package]


def failed_examples(names, monkeypatch, tmp_path):
    """Run the examples of modules, each in a folder of its own; return the modules whose examples fail."""
    return [name for name in names if doctest_of(name, monkeypatch, tmp_path / name).failed]


def doctest_of(name, monkeypatch, folder):
    folder.mkdir()
    monkeypatch.chdir(folder)
    for kind in ("daisy", "dandelion", "rose", "sunflower", "tulip") if ".training" in name else ():
        Path("flowers", kind).mkdir(parents=True)
        for n in range(2):
            Image.new("RGB", (20, 20), (n, 99, 200)).save(f"flowers/{kind}/{n}.png")
    module = importlib.import_module(name)
    names = {"np": np, "keras": keras, **vars(module)}
    with uncompiled():  # each example runs once
        return doctest.testmod(module, extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE)


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Even though")
@pytest.mark.parametrize("package", PACKAGES)
def test_examples_of_the_reference(package, monkeypatch, tmp_path):
    assert not failed_examples({*within(package)} & {*documented()}, monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Even though")
@pytest.mark.parametrize("package", PACKAGES)
def test_examples_of_all_else(package, monkeypatch, tmp_path):
    assert not failed_examples({*within(package)} - {*documented()}, monkeypatch, tmp_path)


def test_public_names_are_documented():
    bare = []
    for name in MODULES:
        for attribute, value in vars(importlib.import_module(name)).items():
            if not attribute.startswith("_") and getattr(value, "__module__", None) == name and callable(value):
                bare += [] if inspect.getdoc(value) else [f"{name}.{attribute}"]
    assert not bare


PAGES = ["README.md", "CHANGELOG.md", "benchmarks/README.md"]
PAGES += sorted(path.relative_to(ROOT).as_posix() for path in [*DOCS.glob("*.md"), *DOCS.glob("coming_from/*.md")])
FRAGMENTS = ("docs/extending.md", "docs/migration.md")  # lines that belong into a file of the package or of the reader


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_sections(page):
    def sections(path):
        text = path.read_text(encoding="utf-8")
        titles = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        named = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)  # anchors that error messages name
        return {*named, *(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)}

    here = ROOT / page
    for target, section in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", here.read_text(encoding="utf-8")):
        path = here.parent / target if target else here
        assert path.exists(), target
        assert not section or section in sections(path), f"{target}#{section}"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in FRAGMENTS])
def test_the_code_of_a_page_defines_every_name_it_uses(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    used, defined = set(), {*dir(builtins)}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            defined |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
    assert not used - defined

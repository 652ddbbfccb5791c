"""The story of the paper: its code runs, its figures are there, its numbers are those of the studies."""

import importlib
import re

import numpy as np
import pytest
from PIL import Image
from support import ROOT

from vit_keras import vit

FOLDER = ROOT / "docs" / "paper"
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def figures():
    return importlib.import_module("benchmarks.lab.paper_figures")


def test_the_code_is_one_program():
    names = {}
    for block in BLOCKS:
        exec(compile(block, "paper.md", "exec"), names)
        assert max(map(len, block.splitlines())) <= 96  # what GitHub shows without scrolling
    assert len(BLOCKS) > 10


def test_tables_are_those_of_the_studies(figures):
    assert figures.with_tables(PAGE, figures.tables()) == PAGE
    with pytest.raises(ValueError, match="<!-- end of data -->"):
        figures.with_tables(PAGE.replace("<!-- data -->", ""), figures.tables())


def test_figures_are_there_small_and_sharp(figures):
    shown = dict(re.findall(r'<img src="paper/([^"]+)" width="(\d+)"', PAGE))
    assert {path.name for path in FOLDER.iterdir() if path.suffix != ".json"} == set(shown)
    for name, width in shown.items():
        assert (FOLDER / name).stat().st_size < 150_000
        with Image.open(FOLDER / name) as picture:
            assert np.asarray(picture.convert("L")).std() > 20, name  # not blank
            if name.endswith(".webp"):
                assert picture.width == 2 * int(width) == 2 * figures.FIGURES[name.removesuffix(".webp")][0]
    assert {f"{name}.webp" for name in figures.FIGURES} <= set(shown)


def tiny(image_size=32):
    model = vit.build_model(image_size, 8, 2, 16, 2, "tiny", 32, classes=10, dropout=0.0)
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(weight.name == "gamma", 0.5, weight.shape))
    return model

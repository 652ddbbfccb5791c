"""The gallery: its code is what makes its figures, they are all there, and what the page says of them is so."""

import ast
import importlib
import re
import sys

import numpy as np
import pytest

pytest.importorskip("skimage", reason="the gallery needs scikit-image")
pytest.importorskip("matplotlib", reason="the gallery needs Matplotlib")

from PIL import Image
from support import ROOT

from vit_keras import visualize, vit

DOCS = ROOT / "docs"
FIGURES = DOCS / "gallery"
PAGE = (DOCS / "gallery.md").read_text(encoding="utf-8")


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    yield importlib.import_module("make_gallery")
    sys.modules.pop("make_gallery", None)


def pixels(path):
    """The frames of a picture, uint8 `(frames, height, width, 3)`."""
    with Image.open(path) as picture:
        frames = []
        for n in range(getattr(picture, "n_frames", 1)):
            picture.seek(n)
            frames.append(np.asarray(picture.convert("RGB")))
    return np.stack(frames)


def test_the_code_names_only_what_exists(gallery):
    for block in gallery.examples(PAGE):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "visualize":
                assert node.attr in visualize.__all__, f"line {block.line + node.lineno}: {node.attr}"
    for name in re.findall(r"`(\w+)`", PAGE.split("## How right")[0].split("## Two classes")[1]):
        assert name in visualize.METHODS or hasattr(visualize, name), name


def test_every_figure_is_there_and_none_is_left_over(gallery):
    shown = {block.file: block.width for block in gallery.examples(PAGE) if block.file}
    assert {path.name for path in FIGURES.iterdir()} == set(shown)
    assert sum(path.stat().st_size for path in FIGURES.iterdir()) < 3.5e6
    for name, width in shown.items():
        frames = pixels(FIGURES / name)
        if name.endswith(".gif"):
            assert len(frames) == 12  # the layers
            assert (FIGURES / name).stat().st_size < 7e5
            assert frames.shape[2] == width
        else:
            assert frames.shape[2] == 2 * width  # sharp on fine screens
        assert width <= 830  # what GitHub shows
        assert frames.std() > 20, name  # not blank


@pytest.mark.slow
def test_the_page_runs_on_a_small_random_model(gallery, monkeypatch, tmp_path, capsys):
    def tiny(image_size=224):
        model = vit.build_model(image_size, 16 if image_size == (384, 576) else 32, 12, 6, 3, "tiny", 6, classes=1000)
        random = np.random.default_rng(0)
        model.set_weights([random.normal(0, 0.3, w.shape) for w in model.get_weights()])
        model.run_eagerly = True
        return model

    monkeypatch.setattr(vit, "vit_ti16", tiny)
    monkeypatch.setattr(gallery, "browser", lambda: None)
    page = re.sub(r'width="\d+"', 'width="60"', PAGE)
    names = {}
    made = gallery.make(page, tmp_path / "new", names=names)
    assert [path.name for path in made] == [
        b.file for b in gallery.examples(PAGE) if b.file and "explorer" not in b.file
    ]
    assert "explorer.webp: left out" in capsys.readouterr().out
    assert names["both"].shape == (300, 600, 3)
    for path in made:
        assert pixels(path).shape[2] == (400 if path.suffix == ".gif" else 120)


@pytest.mark.slow
def test_the_real_figures_are_those_of_the_page(gallery, real_weights, monkeypatch, tmp_path):
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", "")  # so that what main sets is undone
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    names, make = {}, gallery.make
    monkeypatch.setattr(gallery, "make", lambda page, out, only: make(page, out, only, names))
    gallery.main(["--weights", str(real_weights), "--out", str(tmp_path)])

    made = {path.name for path in tmp_path.iterdir()}
    assert made | {"explorer.webp"} == {path.name for path in FIGURES.iterdir()}
    for name in made - {"explorer.webp"}:
        ours, committed = pixels(tmp_path / name).astype("float32"), pixels(FIGURES / name)
        assert abs(ours.shape[1] - committed.shape[1]) <= 4  # letters differ a little between versions of Matplotlib
        height = min(ours.shape[1], committed.shape[1])
        assert np.abs(ours[:, :height] - committed[:, :height]).mean() < 12, (
            name
        )  # other pictures are 30 and more apart

    # What the text says.
    assert names["where"].sum() == names["where"][[0, 0, -1, -1], [0, -1, 0, -1]].sum() == 80  # corners, layers 8 to 12
    longest = names["longest"]
    assert longest[:8].max() < 3 < 20 < longest[8:].min()
    model, wide, both = names["model"], names["wide"], names["both"]
    labels = visualize.record(model, names["cat"], keep=()).labels
    assert "Egyptian cat" in labels[visualize.record(model, names["cat"], keep=()).logits[0].argmax()]
    for method in ("relevance", "gradcam", "legrad"):
        cat, cup = (
            visualize.attention_map(wide, both, method=method, target=name, style="raw")
            for name in ("tabby", "espresso")
        )
        left, right = (heat[:, :14].sum() / heat.sum() for heat in (cat, cup))
        assert left > 0.5 > right, method

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
from vit_keras.visualize.methods import OF_A_CLASS

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


def test_the_generator_sees_all_code_and_all_figures_of_the_page(gallery):
    blocks = gallery.examples(PAGE)
    assert len(blocks) == PAGE.count("```python") > 15
    shown = [block.file for block in blocks if block.file]
    assert shown == re.findall(r'src="([^"]*)"', PAGE.replace("gallery/", ""))
    assert len(set(shown)) == len(shown)
    for block in blocks:
        assert PAGE.splitlines()[block.line] == block.code.splitlines()[0]
        assert max(map(len, block.code.splitlines())) <= 96  # what GitHub shows without scrolling
        assert ("\nfigure = " in f"\n{block.code}") == (block.file is not None), block.code


def test_the_code_names_only_what_exists(gallery):
    for block in gallery.examples(PAGE):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "visualize":
                assert node.attr in visualize.__all__, f"line {block.line + node.lineno}: {node.attr}"
    for name in re.findall(r"`(\w+)`", PAGE.split("## How right")[0].split("## Two classes")[1]):
        assert name in visualize.METHODS or hasattr(visualize, name), name


def test_each_method_has_its_sentence():
    rows = re.findall(r"^\| `(\w+)` \| (yes|no) \| .{60,}\|$", PAGE, re.MULTILINE)
    assert dict(rows) == {name: "yes" if name in OF_A_CLASS else "no" for name in visualize.METHODS}
    assert [name for name, _ in rows] == list(visualize.METHODS)


def test_the_links_lead_somewhere():
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^## (.*)", PAGE, re.M)}
    links = re.findall(r"\]\(#([^)]+)\)", PAGE)
    assert links and set(links) <= anchors
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (DOCS / target).exists(), target


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


SMALL = """
```python
grey = 100
```

```python
import numpy as np
figure = np.full((10, 40, 3), grey, "uint8")
```

<img src="gallery/grey.png" width="10" alt="">

```python
figure = b"GIF89a"
```

<img src="gallery/moving.gif" width="10" alt="">

```python
unused = 1
```

<img src="gallery/none.png" width="10" alt="">
"""


def test_what_runs_is_what_is_written(gallery, tmp_path):
    made = gallery.make(SMALL, tmp_path, ["grey", "moving"])
    assert made == [tmp_path / "grey.png", tmp_path / "moving.gif"]
    assert (pixels(made[0]) == 100).all()
    assert pixels(made[0]).shape == (1, 5, 20, 3)
    assert made[1].read_bytes() == b"GIF89a"
    assert gallery.make(SMALL, tmp_path, ["moving"]) == made[1:]


def test_what_cannot_be_made_is_said(gallery, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"line 20 .*none\.png"):
        gallery.make(SMALL, tmp_path)
    with pytest.raises(SystemExit, match="grey, moving, none.*green"):
        gallery.make(SMALL, tmp_path, ["green", "grey"])
    with pytest.raises(SystemExit):
        gallery.main(["--weights", str(tmp_path / "nothing.npz")])
    assert "there is no file" in capsys.readouterr().err


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

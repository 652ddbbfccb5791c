"""The examples, the quickstart and the README run as they are written."""

import importlib
import re
import sys
from pathlib import Path

import make_google_npz
import numpy as np
import pytest

pytest.importorskip("skimage", reason="the examples need scikit-image")
pytest.importorskip("sklearn", reason="the examples need scikit-learn")

from PIL import Image
from support import ROOT

from vit_keras import checkpoints, vit
from vit_keras.checkpoints.locate import find

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """A file with the name, size and format of the published ViT-Ti/16, with random weights."""
    folder = tmp_path_factory.mktemp("weights")
    published = find("Ti_16/augreg-imagenet21k+imagenet2012-224")
    make_google_npz.save(folder / Path(published.path).name, make_google_npz.make("ViT-Ti_16"))
    return folder


@pytest.fixture
def example(monkeypatch, tmp_path, stand_in):
    """Import an example; it runs in a folder of its own with weights at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(stand_in))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    yield importlib.import_module
    for name in EXAMPLES:
        sys.modules.pop(name, None)


def test_classify_without_a_download(example, monkeypatch):
    monkeypatch.delenv("VIT_KERAS_WEIGHTS")
    classes = example("classify").main()
    assert len(classes) == 3
    assert classes == sorted(classes, key=lambda pair: -pair[1])
    assert classes[0][0] == "cat"


def test_explain(example, tmp_path):
    assert example("explain").main().shape == (8, 8)
    assert Image.open(tmp_path / "attention.png").size == (2 * 451, 300)


@pytest.mark.slow
def test_export(example):
    tiny = vit.build_model(32, 8, 2, 32, 2, "tiny", 64, classes=4)
    tiny.set_weights([np.random.RandomState(0).normal(size=w.shape) * 0.3 for w in tiny.get_weights()])
    assert example("export").main(tiny) <= 1e-5  # the same float32 graph, compiled twice
    assert Path("saved_model.report.json").is_file()


@pytest.mark.slow
def test_backbone(example):
    model, heat = example("backbone").main(steps=1)
    assert heat.shape == (6, 10)
    assert set(model.output) == {"kind", "age"}


@pytest.mark.slow
def test_segment(example):
    segment = example("segment")
    tiny = vit.build_model(32, 16, 4, 16, 2, "tiny", 32, classes=2, include_top=False)
    images, found = segment.main(tiny, pixels=32, count=6, tests=4, epochs=(1, 1, 1))
    assert list(found) == [
        *("truth", "linear, frozen", "linear, trained", "dpt, frozen", "dpt, trained", "U-Net from scratch"),
    ]
    assert {masks.shape for masks in found.values()} == {images.shape[:3]} == {(4, 32, 32)}
    assert segment.figure(images, found, rows=2).size == (7 * 32, 2 * 32)
    truth = found["truth"]
    assert segment.quality(truth, truth.astype("int64"), 7) == (1, 1)
    overlap, right = segment.quality(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]), 3)
    assert (overlap, right) == (pytest.approx((1 / 2 + 2 / 3) / 2), 0.75)


@pytest.mark.slow
def test_lit(example):
    classifier, accuracy = example("lit").main(epochs=4, samples=320)
    assert classifier.labels[3] == "three"
    assert accuracy >= 0.25  # of ten digits, after 40 steps


@pytest.mark.smoke
@pytest.mark.slow
def test_quickstart(example, monkeypatch, capsys):
    monkeypatch.delenv("VIT_KERAS_WEIGHTS")
    accuracy, difference = example("quickstart").main()  # runs classify, explain, finetune and export
    assert accuracy >= 0.95  # of ten digits
    assert difference <= 1e-4  # logits of a float32 model, compiled twice
    assert {path.name for path in Path("quickstart").glob("*.png")} == {
        "cat.png",
        "cat_attention.png",
        "digit_attention.png",
    }
    assert "cat\n" in capsys.readouterr().out


def test_readme_names_only_what_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", text):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`((?:S|Ti|B|L|H)_\d+/[^`]+)`", text):
        assert find(name), name
    built = sum(family.refused is None for family in checkpoints.families.FAMILIES.values())
    assert f"[{built} families]" in text
    assert str(len(checkpoints.available())) in text.split("published checkpoints by name |")[1].split("|")[0]

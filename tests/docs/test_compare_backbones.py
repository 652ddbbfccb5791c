"""The example that compares backbones: same data, same time, and honest about where the weights come from."""

import keras
import numpy as np
import pytest
from PIL import Image
from support import ROOT, script

pytest.importorskip("matplotlib", reason="the example draws")


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    return script(ROOT / "examples" / "compare_backbones.py")


@pytest.fixture
def folder(tmp_path):
    """Twenty dark pictures and twenty bright ones."""
    random = np.random.default_rng(0)
    for n in range(40):
        path = tmp_path / "data" / ("bright", "dark")[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 128, (40, 48, 3)).astype("uint8") + np.uint8(100 * (1 - n % 2))).save(path)
    (tmp_path / "data" / "dark" / "notes.txt").write_text("none")
    return tmp_path / "data"


def small(name, size, classes, pretrained):
    """In place of a backbone: the mean of the pixels, and a head."""
    if pretrained:
        raise OSError("no network")
    layers = [keras.layers.Rescaling(1 / 127.5, -1), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(classes)]
    return keras.Sequential([keras.Input((size, size, 3)), *layers])


def test_everything_but_the_backbones(compare, folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(compare, "build", small)
    monkeypatch.setattr(compare, "COLORS", {"ViT-Ti/16": "#0072B2"})
    arguments = ["--data", str(folder), "--size", "32", "--minutes", "0.001", "--out", str(tmp_path / "plot.png")]
    results = compare.main(arguments)
    assert list(results) == ["ViT-Ti/16"]
    for row in results.values():
        times, accuracies = zip(*row["curve"])
        assert sorted(times) == list(times)
        assert times[-1] >= 0.06
        assert row["accuracy"] == accuracies[-1]
        assert row["trained"] > 0
        assert row["tested"] > 0
        assert row["parameters"] == 8
    assert Image.open(tmp_path / "plot.png").size == (1800, 720)
    out = capsys.readouterr().out
    assert "no network" in out
    assert "ALL START FROM SCRATCH" in out
    assert "from scratch, 0.001 minutes each" in out

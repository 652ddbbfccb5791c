"""Test the benchmark of training with a tiny model on tiny images: ours trains, the others are told."""

import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

import vit_keras
from benchmarks import __main__ as benchmarks
from benchmarks import environments
from benchmarks.learn import command, data, figure, suite
from benchmarks.learn.data import Task
from vit_keras import vit

TINY = {
    "colours": Task("colours.zip", 6, test=4),
    "tail": Task("colours.zip", (6, 2), test=4),
    "numbers": Task("colours.zip", 6, "regression", test=4),
    "mosaic": Task("colours.zip", 12, "multi", test=4),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a zip file of three colours, a tiny model's weights, and environments that are this one."""
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(tmp_path / "colours.zip", "w") as file:
        for number, kind in enumerate(("blue", "green", "red")):
            for image in range(10):
                pixels = rng.integers(0, 60, (32, 32, 3), "uint8")
                pixels[..., 2 - number] += 180
                with file.open(f"{kind}/{image}.png", "w") as entry:
                    Image.fromarray(pixels).save(entry, "png")
    model = vit.build_model(32, 16, 2, 64, 1, "tiny", 128, classes=1000)
    vit_keras.save_weights(model, tmp_path / "tiny.npz")
    monkeypatch.setattr(suite, "SIZE", 32)
    for module in (suite, data, command, figure):
        monkeypatch.setattr(module, "TASKS", TINY)
    monkeypatch.setattr(suite, "BUDGETS", {"1 step": {"steps": 1}, "10 steps": {"steps": 10}})
    monkeypatch.setattr(environments, "make", lambda name, folder: sys.executable)
    return tmp_path


def learn(folder, *options):
    files = ["--data", str(folder), "--weights", str(folder / "tiny.npz"), "--output", str(folder / "learn.jsonl")]
    benchmarks.main(["learn", *files, "--threads", "1", *options])
    return command.read(folder / "learn.jsonl")


@pytest.mark.slow
def test_each_task_is_learned_within_the_budget(folder, capsys):
    pytest.importorskip("torch")
    options = ["--only", "vit_keras*", "Keras, Adam", "transformers*", "--seeds", "1", "--budgets", "10 steps", "none"]
    rows = {suite.key(row): row for row in learn(folder, *options)}
    assert {run.data for run in rows} == set(TINY)
    for task in TINY:
        for name in (suite.OURS, "Keras, Adam"):
            row = rows[suite.Run(task, "10 steps", 0, name)]
            assert row["steps"] == 10 and row["processor"] > 0 and row["score"] <= 100
    assert rows[suite.Run("colours", "10 steps", 0, suite.OURS)]["score"] > 60  # by chance 33
    assert rows[suite.Run("colours", "none", 0, "vit_keras knn")]["score"] > 90
    assert "one class of several" in rows[suite.Run("numbers", "none", 0, "vit_keras knn")]["skipped"]
    told = rows[suite.Run("colours", "10 steps", 0, "transformers Trainer")]
    assert ("No module" in told.get("error", "")) != ("score" in told)
    assert all(row["machine"]["cores"] == 1 and row["date"] for row in rows.values())
    printed = capsys.readouterr().out
    assert "| colours | 10 steps |" in printed
    pytest.importorskip("matplotlib")
    benchmarks.main(["learn", str(folder / "figure.png"), "--output", str(folder / "learn.jsonl")])
    image = Image.open(folder / "figure.png").convert("RGB")
    assert (0, 0x72, 0xB2) in {colour for _, colour in image.getcolors(1 << 24)}

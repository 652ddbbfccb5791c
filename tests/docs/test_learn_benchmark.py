"""Test the benchmark of training with a tiny model on tiny images: ours trains, the others are told."""

import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

import vit_keras
from benchmarks import __main__ as benchmarks
from benchmarks import environments, runner
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
    assert (0x7A, 0x23, 0x82) in {colour for _, colour in image.getcolors(1 << 24)}


def test_a_killed_benchmark_goes_on(folder, monkeypatch):
    asked = []

    def ask(self, run):
        asked.append(run)
        if len(asked) == 3:
            raise KeyboardInterrupt
        if len(asked) == 2:
            raise runner.ContenderFailed("it broke")
        return {"score": 50.0, "steps": 1, "processor": 1.0}

    monkeypatch.setattr(command.Field, "ask", ask)
    options = ["--tasks", "colours", "--budgets", "1 step", "--seeds", "1", "--only", "Keras, Adam*"]
    with pytest.raises(KeyboardInterrupt):
        learn(folder, *options)
    path = folder / "learn.jsonl"
    with open(path, "a") as file:
        file.write('{"data": "colours", "budg')  # a line that the kill has cut
    rows = learn(folder, *options)
    assert len(asked) == 3 + len(suite.RATES) - 1  # all but the first: the one that failed is tried again
    assert [("error" in row) for row in rows] == [False, True, False, False, False, False]
    assert learn(folder, *options) == rows and len(asked) == 7  # nothing is left to do

"""Test the benchmark of training with a tiny model on tiny images: ours trains, the others are told."""

import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

import vit_keras
from benchmarks import __main__ as benchmarks
from benchmarks import environments, runner
from benchmarks.learn import command, common, data, drawn, figure, suite
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


def test_others_have_the_time_that_the_call_took(folder, monkeypatch):
    asked = []

    class Process:
        def __init__(self, *given):
            pass

        def ask(self, **request):
            asked.append(request)
            return {"score": 50.0, "steps": 1, "processor": 40.0 if request["style"] == "call" else 41.0}

        def close(self):
            pass

    monkeypatch.setattr(runner, "Process", Process)
    monkeypatch.setattr(suite, "BUDGETS", {"own": {}})
    monkeypatch.setattr(suite, "FEW", {"colours": TINY["colours"]})
    learn(folder, "--budgets", "own", "--seeds", "1", "--only", "vit_keras*", "Keras, Adam 1e-4")
    assert [(each["style"], each["budget"]) for each in asked] == [("call", {}), ("adam 1e-4", {"seconds": 40.0})]


def test_images_to_test_on_are_the_same_for_all_seeds_and_never_learned(folder):
    parts = [data.arrays(TINY["tail"], folder, 32, seed) for seed in (0, 1)]
    np.testing.assert_array_equal(parts[0]["test"], parts[1]["test"])
    assert not np.array_equal(parts[0]["train"], parts[1]["train"])
    assert [*np.bincount(parts[0]["train_labels"])] == [6, 3, 2]
    learned, tested = ({each.tobytes() for each in parts[0][name]} for name in ("train", "test"))
    assert len(tested) == 12 and not learned & tested


def test_a_mosaic_has_the_classes_of_its_four_images(folder):
    part = data.arrays(TINY["mosaic"], folder, 32, 0)
    assert part["train"].shape == (12, 32, 32, 3) and part["train_labels"].shape == (12, 3)
    for pixels, labels in zip(part["train"], part["train_labels"]):
        tiles = pixels.reshape(2, 16, 2, 16, 3).mean((1, 3)).reshape(4, 3)
        assert {2 - int(tile.argmax()) for tile in tiles} == {*np.flatnonzero(labels)}


@pytest.mark.parametrize("kind", drawn.SETS)
def test_drawn_images_of_all_classes_differ_and_are_the_same_each_time(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_DRAWN", 12)
    classes = len(drawn.SETS[kind][0])
    part, again = (data.arrays(Task(kind, 5, test=3), tmp_path, 32, 1) for _ in range(2))
    assert [*np.bincount(part["train_labels"])] == [5] * classes and len(part["test"]) == 3 * classes
    np.testing.assert_array_equal(part["train"], again["train"])
    assert len({each.tobytes() for name in ("train", "test") for each in part[name]}) == 8 * classes
    monkeypatch.setattr(sys, "argv", ["drawn", kind, str(tmp_path), "--count", "2"])
    drawn.main()
    assert [*vit_keras.training.image_folder(tmp_path, image_size=32).class_names] == sorted(drawn.SETS[kind][0])


def test_missing_files_are_named(folder):
    with pytest.raises(FileNotFoundError, match="gone.zip.*--data DIR"):
        data.arrays(Task("gone.zip", 5), folder, 32, 0)
    with pytest.raises(ValueError, match="too few"):
        data.arrays(Task("colours.zip", 50, test=4), folder, 32, 0)


def test_scores_are_those_of_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(40, 3)), rng.integers(0, 2, (40, 3)).astype("float32")
    wanted = 100 * metrics.average_precision_score(labels, outputs)
    assert common.Data(None, None, None, labels, "multi", 3).score(outputs) == pytest.approx(wanted)
    numbers = rng.normal(size=(40, 1))
    wanted = 100 * metrics.r2_score(numbers, outputs[:, :1])
    assert common.Data(None, None, None, numbers, "regression", 1).score(outputs[:, :1]) == pytest.approx(wanted)


def test_the_best_rate_is_chosen_by_the_mean_of_the_seeds():
    def row(contender, seed, score):
        place = {"data": "flowers", "budget": "30 s", "seed": seed, "contender": contender}
        return {**place, "score": score, "processor": 30.0, "machine": {"processor": "x", "cores": 1}, "date": "today"}

    scores = {"Keras, Adam": (50, 90), "Keras, Adam 1e-4": (75, 77), suite.OURS: (80, 90)}
    scores |= {f"Keras, Adam {rate}": (10, 99) for rate in ("1e-5", "3e-5", "3e-4")}
    rows = [row(name, seed, score) for name, pair in scores.items() for seed, score in enumerate(pair)]
    (cell,) = figure.cells(rows).values()
    assert cell[figure.BEST] == (76, 75, 77, 30.0, 2)
    assert "**85.0 ± 5.0**" in figure.table(rows)
    (cell,) = figure.cells([row for row in rows if row["contender"] != "Keras, Adam 1e-5"]).values()
    assert figure.BEST not in cell  # of four rates it would be another thing

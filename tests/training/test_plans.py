"""The plan of a fine-tuning: its batch size, by the number of images that it sees and by its time."""

import json

import keras
import numpy as np
import pytest
from PIL import Image

from vit_keras import vit
from vit_keras.training.evaluation.frozen import FrozenFeatures
from vit_keras.training.finetuning import finetune, trainings
from vit_keras.training.finetuning import run as running
from vit_keras.training.recipes import recipe

HOW = {"image_size": 32, "mistakes": 0, "progress": False, "recipe": recipe("finetune", halve_batch_below=150)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """40 images. Training has 32 of them: it sees 96 in three epochs, and 160 in five."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in ("dark", "bright"):
        (folder / name).mkdir()
        for n in range(20):
            pixels = rng.integers(0, 128, (32, 32, 3)) + 127 * (name == "bright")
            Image.fromarray(pixels.astype("uint8")).save(folder / name / f"{n}.png")
    return folder


def tiny():
    keras.utils.set_random_seed(5)
    return vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epochs": 3}, 16),
        ({"epochs": 5}, 32),
        pytest.param({"epochs": 3, "batch_size": 8}, 8, marks=pytest.mark.slow),
        pytest.param({"epochs": 3, "folds": 2}, 16, marks=pytest.mark.slow),
    ],
)
def test_the_batch_follows_the_number_of_images(folder, tmp_path, capsys, options, expected):
    finetune(tiny(), folder, output=tmp_path / "run", **{**HOW, "progress": True, **options})
    rate = {8: "0.00025", 16: "0.000354", 32: "0.0005"}[expected]  # a quarter: fewer than 60 steps
    assert f"steps of {expected} images at a rate of up to {rate};" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:batch_size=32, but")
def test_a_short_time_halves_the_batch(folder, tmp_path, monkeypatch):
    """Where a forward pass takes a second, ten minutes are 210 images."""
    how = {**HOW, "recipe": recipe("finetune", halve_batch_below=250, epochs=20), "minutes": 10, "refit": False}
    seen = []
    training = trainings.Training
    monkeypatch.setattr(trainings, "Training", lambda *given: seen.append(given[1]) or training(*given))
    finetune(tiny(), folder, output=tmp_path / "fast", **how)
    slow = FrozenFeatures.of
    monkeypatch.setattr(FrozenFeatures, "of", lambda *args, **given: take_a_second(slow(*args, **given)))
    finetune(tiny(), folder, output=tmp_path / "slow", **how)
    finetune(tiny(), folder, output=tmp_path / "asked", **how, batch_size=32)
    assert [train.batch_size for train in seen] == [32, 16, 32]


def test_a_clock_that_stands_still_divides_nothing_by_zero(monkeypatch):
    watch = running.Stopwatch()
    monkeypatch.setattr(running.time, "perf_counter", lambda: 5.0)
    watch.on_train_begin()
    watch.on_epoch_begin(0)
    watch.on_train_batch_end(0)
    assert running.TimeLimit(running.time.monotonic() + 60, 3, 4, 1).epochs(watch.seconds[0]) == 3


def take_a_second(frozen):
    return FrozenFeatures(frozen.rows, frozen.features, float(len(frozen.rows)))


@pytest.mark.filterwarnings("ignore:batch_size=32, but")
@pytest.mark.parametrize("folds", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_goes_on_keeps_its_batch(folder, tmp_path, monkeypatch, folds):
    """Its first call was slow, its second is fast."""
    how = {**HOW, "recipe": recipe("finetune", halve_batch_below=250, epochs=20), "minutes": 10, "folds": folds}

    def stop(self, epoch, logs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        slow = FrozenFeatures.of
        patch.setattr(FrozenFeatures, "of", lambda *args, **given: take_a_second(slow(*args, **given)))
        patch.setattr(running.Checkpointer, "on_epoch_end", stop)
        finetune(tiny(), folder, output=tmp_path / "run", **how)
    state = json.loads((tmp_path / "run" / ".state" / "state.json").read_text(encoding="utf-8"))
    assert state["settings"]["batch_size"] == 16
    finetune(tiny(), folder, output=tmp_path / "run", **how)
    assert (tmp_path / "run" / "report.html").exists()

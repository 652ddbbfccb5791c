"""The plan of a fine-tuning: its batch size, by the number of images that it sees and by its time."""

import functools

import numpy as np
import pytest
from PIL import Image
from support import tiny_model

from vit_keras.training.evaluation.frozen import FrozenFeatures
from vit_keras.training.finetuning import finetune, trainings
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


tiny = functools.partial(tiny_model, patch_size=16, dropout=0.1, seed=5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"epochs": 3}, 16),
        pytest.param({"epochs": 5}, 32, marks=pytest.mark.slow),
        pytest.param({"epochs": 3, "batch_size": 8}, 8, marks=pytest.mark.slow),
        pytest.param({"epochs": 3, "folds": 2}, 16, marks=pytest.mark.slow),
    ],
)
def test_the_batch_follows_the_number_of_images(folder, tmp_path, capsys, options, expected):
    finetune(folder, tiny(), output=tmp_path / "run", **{**HOW, "progress": True, **options})
    rate = {8: "0.00025", 16: "0.000354", 32: "0.0005"}[expected]  # a quarter: fewer than 60 steps
    assert f"steps of {expected} images at a rate of up to {rate};" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:batch_size=32, but")
def test_a_short_time_halves_the_batch(folder, tmp_path, monkeypatch):
    """Where a forward pass takes a second, ten minutes are 210 images."""
    how = {**HOW, "recipe": recipe("finetune", halve_batch_below=250, epochs=20), "minutes": 10}
    seen = []

    def stop(call, train, *others):
        seen.append(train.batch_size)
        raise KeyboardInterrupt

    monkeypatch.setattr(trainings, "Training", stop)
    slow = FrozenFeatures.of
    for name, options in (("fast", {}), ("slow", {}), ("asked", {"batch_size": 32})):
        if name == "slow":
            monkeypatch.setattr(FrozenFeatures, "of", lambda *args, **given: take_a_second(slow(*args, **given)))
        with pytest.raises(KeyboardInterrupt):
            finetune(folder, tiny(), output=tmp_path / name, **how, **options)
    assert seen == [32, 16, 32]


def take_a_second(frozen):
    return FrozenFeatures(frozen.rows, frozen.features, float(len(frozen.rows)))

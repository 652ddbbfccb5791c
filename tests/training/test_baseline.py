"""What the features tell before a fine-tuning: right numbers, in the report, and a model where they are the better."""

import functools
import json

import keras
import numpy as np
import pytest
from PIL import Image
from support import tiny_model

from vit_keras import training, vit
from vit_keras.training.data.folder import Labeled
from vit_keras.training.evaluation import evaluate
from vit_keras.training.evaluation.calibration import temperature
from vit_keras.training.evaluation.frozen import FrozenFeatures
from vit_keras.training.finetuning import finetune
from vit_keras.training.finetuning.baseline import Baseline
from vit_keras.training.recipes import recipe

COLOURS = {"blue": (30, 60, 220), "green": (40, 200, 60), "red": (220, 40, 40)}
IDLE = {"recipe": recipe("finetune", learning_rate=1e-9, head="zeros"), "epochs": 1, "batch_size": 8, "mistakes": 0}


tiny = functools.partial(tiny_model, classes=7, dropout=0.1, seed=5)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data") / "photos", np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for n in range(12):
            pixels = np.clip(np.array(colour) + random.normal(0, 60, (32, 32, 3)), 0, 255).astype("uint8")
            Image.fromarray(pixels).save(folder / name / f"{n}.png")
    return folder


@pytest.fixture(scope="module")
def untrained(photos, tmp_path_factory):
    """A fine-tuning that learned nothing."""
    folder = tmp_path_factory.mktemp("runs") / "idle"
    return finetune(photos, tiny(), output=folder, progress=False, **IDLE)


@pytest.mark.core
@pytest.mark.compiles_long
def test_the_numbers_are_those_of_the_features(untrained, photos):
    """Computed once more from the files of the split, without the datasets of `finetune`."""
    told = json.loads((untrained.folder / "history.json").read_text())["before_training"]
    parts = json.loads((untrained.folder / "split.json").read_text())
    names = sorted(COLOURS)
    seen, held = (
        (
            training.embed(tiny(), [photos / path for path in parts[part]], progress=False),
            np.array([names.index(path.split("/")[0]) for path in parts[part]]),
        )
        for part in ("training", "validation")
    )
    assert told["held_out"] == len(held[1]) == 6 and told["learned"] == len(seen[1]) == 30
    assert told["right"] == int((training.linear_probe(*seen).predict(held[0]) == held[1]).sum()) >= 5


def test_what_is_better_than_the_training_is_saved_and_named(untrained, photos):
    told = json.loads((untrained.folder / "history.json").read_text())["before_training"]
    assert untrained.evaluation.accuracy < told["right"] / 6
    found = evaluate(untrained.folder / "probe.keras", photos, only=untrained.folder / "split.json", progress=False)
    assert found.accuracy == pytest.approx(told["right"] / 6)
    page = (untrained.folder / "report.html").read_text("utf-8")
    assert "probe.keras" in page and "a linear probe of the model" in page


def test_a_probe_that_is_saved_is_calibrated_too(photos, tmp_path):
    folder = finetune(photos, tiny(), output=tmp_path / "run", calibrate=True, progress=False, **IDLE).folder
    found = evaluate(folder / "probe.keras", photos, only=folder / "split.json", progress=False)
    assert temperature(found.probabilities, found.labels) == pytest.approx(1, abs=0.01)


def test_folds_are_counted_together(photos, tmp_path):
    table = {"image": [f"{name}/{n}.png" for name in COLOURS for n in range(12)]}
    table["label"] = [path.split("/")[0] for path in table["image"]]
    finetune(table, model=tiny(), images_dir=photos, folds=2, output=tmp_path / "folds", progress=False, **IDLE)
    told = json.loads((tmp_path / "folds" / "report.json").read_text())
    each = [json.loads((tmp_path / "folds" / f"fold{n}" / "history.json").read_text()) for n in range(2)]
    right = [fold["before_training"]["right"] for fold in each]
    assert told["before_training"]["held_out"] == 36 and told["before_training"]["right"] == sum(right)
    assert "ship linear probes" in (tmp_path / "folds" / "report.html").read_text("utf-8")


def test_a_short_time_is_enough_for_some_images(photos):
    train, held_out = training.image_folder(photos, model=tiny(), validation_split=0.5, batch_size=4, progress=False)
    for seconds, images in ((1e-6, 4), (1e6, 36)):
        frozen = FrozenFeatures.of(tiny(), train, held_out, seconds=seconds, seed=1)
        assert len(frozen.rows) == len(frozen.features) == images
        labels = np.empty(36, int)
        labels[train.rows], labels[held_out.rows] = train.labels, held_out.labels
        data = Labeled("single", train.class_names, [], labels, [], photos)
        found = Baseline.of(frozen, data, train, held_out)
        assert found is None or found.learned + found.held_out == images
    assert (found.learned, found.held_out) == (18, 18)


@pytest.mark.parametrize(
    ("accuracy", "said", "ships"),
    [(0.97, "90.0% of 100 held-out images", False), (0.91, "more held-out images", False), (0.9, "probe.keras", True)],
)
def test_the_verdict_depends_on_the_interval(accuracy, said, ships):
    found = Baseline(90, 100, 400, 3.0)
    verdict = found.verdict(accuracy, "ship probe.keras")
    assert said in verdict and ships == ("ship" in verdict)
    assert found.verdict(accuracy, "ship probe.keras", decides=False).endswith(f"{accuracy:.1%}.")


# --- the start of the head ----------------------------------------------------------------------------------------

RIDGE = {**IDLE, "recipe": recipe("finetune", learning_rate=1e-9), "refit": False, "progress": False}


@pytest.fixture(scope="module")
def ridge(photos, tmp_path_factory):
    """A fine-tuning that leaves its head as it started: the rate is 1e-9."""
    return finetune(photos, tiny(), output=tmp_path_factory.mktemp("runs") / "ridge", **RIDGE)


def heads_of(result):
    return [keras.ops.convert_to_numpy(variable) for variable in result.model.get_layer("head").variables]


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_new_head_starts_as_ridge_regression_of_the_features(ridge, photos):
    """Computed once more from the files of the split."""
    training_images = json.loads((ridge.folder / "split.json").read_text())["training"]
    seen = training.embed(tiny(), [photos / path for path in training_images], progress=False)
    labels = [sorted(COLOURS).index(path.split("/")[0]) for path in training_images]
    probe = training.ridge_probe(seen, labels)
    for found, wanted in zip(heads_of(ridge), (probe.kernel, probe.bias), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-5)  # float32, features in another order
    assert ridge.evaluation.accuracy > 0.8


def test_a_head_that_is_kept_or_has_no_features_does_not_start_anew(photos, tmp_path):
    without = finetune(photos, tiny(), output=tmp_path / "without", probe=False, **RIDGE)
    assert max(np.abs(values).max() for values in heads_of(without)) < 1e-6
    model = tiny()
    kept = vit.build_model(32, 8, 1, 16, 2, "tiny", 32, classes=3)
    kept.set_weights([*model.get_weights()[:-2], np.full((16, 3), 0.5), np.zeros(3)])
    kept.labels = tuple(sorted(COLOURS))
    found = finetune(photos, kept, output=tmp_path / "kept", **RIDGE)
    np.testing.assert_allclose(heads_of(found)[0], 0.5, atol=1e-6)


def test_several_labels_start_too(photos, tmp_path):
    table = {"image": [f"{name}/{n}.png" for name in COLOURS for n in range(12)]}
    table |= {name: [int(path.startswith(name)) for path in table["image"]] for name in ("blue", "red")}
    how = {"images_dir": photos, "label_column": ["blue", "red"], "task": "multi", "image_size": 32}
    result = finetune(table, model=tiny(), output=tmp_path / "run", **how, **RIDGE)
    assert result.evaluation.measures["mean_average_precision"] > 0.9
    one = {**how, "label_column": ["blue"]}
    alone = finetune(table, model=tiny(), output=tmp_path / "one", **one, **RIDGE)
    assert alone.evaluation.measures["mean_average_precision"] > 0.9


def test_numbers_start_at_a_tenth(photos, tmp_path):
    """In the user's unit, around the mean."""
    table = {"image": [f"{name}/{n}.png" for name in COLOURS for n in range(12)]}
    table["number"] = [1000.0 + 20 * sorted(COLOURS).index(path.split("/")[0]) + len(path) for path in table["image"]]
    how = {"images_dir": photos, "label_column": "number", "task": "regression", "image_size": 32}
    result = finetune(table, model=tiny(), output=tmp_path / "run", **how, **RIDGE)
    images = json.loads((result.folder / "split.json").read_text())["training"]
    seen = training.embed(tiny(), [photos / path for path in images], progress=False)
    numbers = dict(zip(table["image"], table["number"]))
    wanted = np.array([[numbers[path]] for path in images])
    probe = training.ridge_probe(seen, (wanted - wanted.mean()) / wanted.std())
    kernel, bias = heads_of(result)
    np.testing.assert_allclose(kernel, 0.1 * wanted.std() * probe.kernel, rtol=1e-3, atol=1e-5)  # float32
    np.testing.assert_allclose(bias, wanted.mean() + 0.1 * wanted.std() * probe.bias, rtol=1e-5)

"""Fine-tuning on tables: every task learns and is saved in its own unit; folds survive a kill; 5,000 rows."""

import csv
import functools
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from support import OTHER_PIXELS, tiny_model

from vit_keras import anatomy
from vit_keras.anatomy.inputs import preprocessing_of
from vit_keras.training import metrics
from vit_keras.training.evaluation import explained_images
from vit_keras.training.evaluation.report import jpeg
from vit_keras.training.finetuning import finetune
from vit_keras.training.finetuning import run as running
from vit_keras.training.finetuning.results import write
from vit_keras.training.recipes import recipe

pytest.importorskip("sklearn")

SIZE = 32


tiny = functools.partial(tiny_model, patch_size=16, classes=7, dropout=0.1, seed=5)


def write_table(folder, count=48):
    """Pictures whose red and green say two labels, and whose brightness is a number; two of each patient."""
    rng = np.random.default_rng(0)
    columns = {name: [] for name in ("id", "red", "green", "kind", "age", "level", "patient")}
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(count):
        red, green, age = int(rng.integers(2)), int(rng.integers(2)), float(rng.uniform(1000, 1060))
        colour = np.array([200 * red, 200 * green, (age - 1000) * 4])
        pixels = rng.normal(0, 5, (SIZE, SIZE, 3)) + colour
        Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(folder / f"p{n}.jpg")
        values = (f"p{n}", red, green, ("dark", "bright")[red], age, int((age - 1000) // 15), n // 2)
        for column, value in zip(columns.values(), values):
            column.append(value)
    return columns


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return tmp_path_factory.mktemp("data") / "photos"


@pytest.fixture(scope="module")
def columns(photos):
    return write_table(photos)


HOW = recipe("finetune", learning_rate=3e-3)


def options(photos, **others):
    same = {"images_dir": photos, "image_column": "id", "recipe": HOW, "batch_size": 8, "image_size": SIZE}
    return {**same, "mistakes": 0, "progress": False, **others}


# --- a time limit below one epoch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_less_time_than_one_epoch_trains_a_part_of_it(photos, columns, tmp_path, capsys, folds):
    """Without time there are 20 steps of one image each, where an epoch has 38, or 24 with two folds."""
    given = options(photos, label_column="kind", folds=folds, minutes=1e-3, batch_size=1, probe=False)
    result = finetune(columns, model=tiny(), output=tmp_path, **{**given, "progress": True})
    steps = 38 if folds is None else 24
    assert f"allows {20 / steps:.0%} of it" in (said := capsys.readouterr().out) and "Plan: 20 steps" in said
    assert f"20/{steps}" not in said and said.count("20/20") == (folds or 1)
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"allowed {20 / steps:.0%} of an epoch" in report and f"{20 / steps:.2f}" in report
    assert result.recipe.epochs == 1
    if folds is None:
        assert len(result.history["loss"]) == 1


# --- averages of the weights ----------------------------------------------------------------------------------------


# --- every task ---------------------------------------------------------------------------------------------------


@pytest.mark.few_cases(2)
@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize(
    ("task", "label", "metric"),
    [
        ("multi", ["red", "green"], "map"),
        ("regression", "age", "rmse"),
        ("ordinal", "level", None),
    ],
)
def test_every_task_learns_and_is_saved(photos, columns, tmp_path, task, label, metric):
    how = recipe("finetune", learning_rate=1e-2, augmentation=None)
    chosen = options(photos, label_column=label, task=task, metric=metric, recipe=how, epochs=8, refit=False)
    result = finetune(columns, model=tiny(), output=tmp_path / "run", **chosen)
    found = result.evaluation
    if task == "multi":
        assert result.history["val_map"][-1] > 0.95 and found.measures["mean_average_precision"] > 0.95
    else:  # the error of predicting the mean is the deviation
        assert found.per_class[0]["rmse"] < 0.7 * found.per_class[0]["deviation"]
    if metric is not None:
        expected = metrics.score(metric, found.targets, found.outputs, task)
        assert result.history[f"val_{metric}"][-1] == pytest.approx(expected, rel=1e-4)
    saved = keras.saving.load_model(result.folder / "model.keras", compile=False)
    assert anatomy.task(saved) == task
    inputs = np.concatenate([preprocessing_of(saved)(photos / path) for path in found.paths])
    outputs = anatomy.predictions(saved, saved.predict(inputs, verbose=0))
    expected = found.raw
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-4)
    if task == "regression":
        assert 990 < outputs.mean() < 1070  # the user's unit
    page = (result.folder / "report.html").read_text("utf-8")
    assert {"multi": "Average precision", "regression": "true deviation", "ordinal": "Levels"}[
        task
    ].lower() in page.lower()


def test_a_column_of_one_number_is_refused(photos, columns, tmp_path):
    given = options(photos, label_column="age", task="regression")
    with pytest.raises(ValueError, match="'age'.*label_column="):
        finetune({**columns, "age": [3] * 48}, model=tiny(classes=1), output=tmp_path / "run", **given)


@pytest.mark.parametrize("bias", [True, False])
def test_a_model_of_numbers_goes_on_in_its_unit(photos, columns, tmp_path, bias):
    """A second training begins with the head of the first: its first epoch is better than the mean."""
    model = tiny(classes=1, head_bias=bias)
    anatomy.name_classes(model, ("age",), "regression")
    head = model.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(0, 5, head.kernel.shape))
    if bias:
        head.bias.assign([1030.0])
    none = recipe("finetune", learning_rate=1e-9, augmentation=None)
    result = finetune(
        columns, model=model, output=tmp_path, **options(photos, label_column="age", epochs=1, recipe=none)
    )
    before = model.predict(np.zeros((1, SIZE, SIZE, 3)), verbose=0)
    after = result.model.predict(np.zeros((1, SIZE, SIZE, 3)), verbose=0)
    np.testing.assert_allclose(after, before, rtol=1e-4)


def test_a_call_with_other_options_does_not_go_on(photos, columns, tmp_path, monkeypatch):
    how = options(photos, label_column="kind", epochs=1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running.Checkpointer, "on_epoch_end", interrupt)
        finetune(columns, model=tiny(), output=tmp_path / "run", **how)
    with pytest.raises(ValueError, match="another probe"):
        finetune(columns, model=tiny(), output=tmp_path / "run", **how, probe=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"label_column": "kind", "metric": "rmse"}, "'rmse' .*'single'.*macro_f1"),
        ({"label_column": "kind", "metric": "f2"}, "metric must be one of"),
        ({"label_column": "age", "balance": True}, "balance=True .*'regression'"),
        ({"label_column": "age", "calibrate": True}, "calibrate=True .*'regression'"),
        ({"label_column": "kind", "folds": "one"}, "'one' has one value. Folds are two or more"),
        ({"label_column": "below", "metric": "rmsle", "task": "ordinal"}, "rmsle needs targets above -1"),
        ({"label_column": "kind", "mistakes": "24"}, "mistakes must be"),
        (
            {"label_column": ["odd", "odd too"], "metric": "map", "folds": "half"},
            "images of fold 0 do not define 'map'",
        ),
        ({"label_column": "odd", "metric": "quadratic_kappa", "folds": "half", "task": "ordinal"}, "fold 0 do not"),
        ({"label_column": "kind", "folds": 100}, "100 parts.*folds=48"),
        ({"label_column": "kind", "folds": "fold"}, "no column 'fold'"),
        ({"label_column": "kind", "folds": "kind", "group_column": "green"}, "'kind' .*group_column=: 'p"),
    ],
)
def test_what_does_not_fit(photos, columns, tmp_path, given, message):
    odd = [int(n % 4 == 1) for n in range(48)]
    columns = {**columns, "below": [level - 2 for level in columns["level"]], "half": [n % 2 for n in range(48)]}
    columns |= {"odd": odd, "odd too": odd, "one": [1] * 48}
    with pytest.raises(ValueError, match=message):
        finetune(columns, model=tiny(), output=tmp_path / "run", **options(photos, **given))
    assert not (tmp_path / "run").exists()


def test_one_model_replaces_the_models_of_folds(tmp_path):
    (tmp_path / "fold0").mkdir()
    for name in ("oof.csv", "report.json", "fold0/model.keras"):
        (tmp_path / name).touch()
    write(tmp_path, {"split.json": {}}, tiny())
    assert {path.name for path in tmp_path.rglob("*.*")} == {"model.keras", "split.json"}
    assert not list(tmp_path.glob("fold*/*"))


def test_a_folder_takes_no_columns(photos, columns, tmp_path):
    with pytest.raises(ValueError, match="group_column"):
        finetune(photos, model=tiny(), output=tmp_path / "run", group_column="patient")
    with pytest.raises(FileNotFoundError, match="no folder"):
        finetune(tmp_path / "nowhere", model=tiny(), output=tmp_path / "run", group_column="patient")


# --- folds --------------------------------------------------------------------------------------------------------

FOLDS = {"label_column": "kind", "folds": 4, "group_column": "patient", "metric": "macro_f1", "epochs": 2}


@pytest.fixture(scope="module")
def whole(photos, columns, tmp_path_factory):
    """All folds without a break."""
    folder = tmp_path_factory.mktemp("folds") / "whole"
    return finetune(columns, model=tiny(), output=folder, **options(photos, **FOLDS))


def test_folds_leave_everything(whole, columns):
    assert {path.name for path in whole.folder.iterdir()} == {
        *(f"fold{n}" for n in range(4)),
        *("oof.csv", "report.html", "report.json", "recipe.json"),
    }
    with open(whole.folder / "oof.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["id"] for row in rows] == columns["id"] and [row["target"] for row in rows] == columns["kind"]
    fold = {patient: {row["fold"] for row, p in zip(rows, columns["patient"]) if p == patient} for patient in range(24)}
    assert all(len(each) == 1 for each in fold.values()) and len(set.union(*fold.values())) == 4
    told = json.loads((whole.folder / "report.json").read_text())
    shares = np.array([[float(row[f"probability_{name}"]) for name in ("bright", "dark")] for row in rows])
    numbers = np.array([int(row["fold"]) for row in rows])
    truth = np.array([row["target"] == "dark" for row in rows]).astype(int)
    scores = [metrics.score("macro_f1", truth[numbers == n], shares[numbers == n]) for n in range(4)]
    assert told["scores"]["macro_f1"] == pytest.approx(scores) == whole.scores["macro_f1"]
    assert told["out_of_fold"]["accuracy"] == pytest.approx(np.mean(shares.argmax(1) == truth))
    page = (whole.folder / "report.html").read_text("utf-8")
    assert "<h2>Folds</h2>" in page and "Fold 3" in page and "macro_f1" in repr(whole)


def test_a_fold_predicts_what_its_model_predicts(whole, photos):
    with open(whole.folder / "oof.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["fold"] == "2"]
    model = keras.saving.load_model(whole.models[2], compile=False)
    inputs = np.concatenate([preprocessing_of(model)(photos / f"{row['id']}.jpg") for row in rows])
    expected = [[float(row["probability_bright"]), float(row["probability_dark"])] for row in rows]
    np.testing.assert_allclose(anatomy.predictions(model, model.predict(inputs, verbose=0)), expected, atol=1e-5)
    assert model.labels == ("bright", "dark")


@OTHER_PIXELS
@pytest.mark.filterwarnings("ignore:All gradients are zero")  # the head has hardly been trained
def test_each_mistake_is_explained_by_the_model_that_made_it(photos, columns, tmp_path):
    chosen = {"label_column": "age", "folds": 2, "epochs": 1, "mistakes": 3}
    result = finetune(columns, model=tiny(), output=tmp_path / "run", **options(photos, **chosen))
    page = (result.folder / "report.html").read_text("utf-8")
    with open(result.folder / "oof.csv", newline="") as file:
        fold_of = {row["id"]: int(row["fold"]) for row in csv.DictReader(file)}
    places = []
    for number in result.evaluation.mistakes()[:3]:
        model = keras.saving.load_model(result.models[fold_of[Path(result.evaluation.paths[number]).stem]])
        _, overlay = explained_images(model, result.evaluation, photos, [number])[number]
        places.append(page.index(jpeg(overlay)))
    assert places == sorted(places) and page.count("The same image, with the map") == 3


def interrupt(*arguments):
    raise KeyboardInterrupt


def weights_of(folder):
    return [keras.saving.load_model(folder / f"fold{n}" / "model.keras", compile=False).get_weights() for n in range(4)]


@pytest.mark.slow
def test_folds_that_were_stopped_go_on_to_the_same_result(whole, photos, columns, tmp_path, monkeypatch):
    """In the second epoch of fold 2; what is finished is not trained again."""
    begun = []
    keep = running.Checkpointer.on_epoch_begin

    def stop(self, epoch, logs=None):
        begun.append((self.run.folder.parent.name, epoch))
        if begun[-1] == ("fold2", 1) and len(begun) < 7:
            raise KeyboardInterrupt
        keep(self, epoch, logs)

    monkeypatch.setattr(running.Checkpointer, "on_epoch_begin", stop)
    with pytest.raises(KeyboardInterrupt):
        finetune(columns, model=tiny(), output=tmp_path / "run", **options(photos, **FOLDS))
    first = [*begun]
    again = finetune(columns, model=tiny(), output=tmp_path / "run", **options(photos, **FOLDS))
    assert first[-1] == ("fold2", 1) and begun[len(first) :] == [("fold2", 1), ("fold3", 0), ("fold3", 1)]
    assert (tmp_path / "run" / "oof.csv").read_text() == (whole.folder / "oof.csv").read_text()
    for ours, theirs in zip(weights_of(again.folder), weights_of(whole.folder), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_a_column_says_the_folds(photos, columns, tmp_path):
    table = {**columns, "fold": [n % 2 for n in range(48)]}
    given = options(photos, label_column="kind", folds="fold", epochs=1)
    finetune(table, model=tiny(), output=tmp_path / "run", **given)
    with open(tmp_path / "run" / "oof.csv", newline="") as file:
        assert [int(row["fold"]) for row in csv.DictReader(file)] == table["fold"]


def test_a_fold_whose_images_do_not_define_the_metric_has_no_score(photos, columns, tmp_path):
    """No image of the second fold has a label; the first counts."""
    there = [int(n % 4 == 0) for n in range(48)]
    table = {**columns, "fold": [n % 2 for n in range(48)], "red": there, "rare": there}
    given = options(photos, label_column=["red", "rare"], task="multi", folds="fold", epochs=1, probe=False)
    result = finetune(table, model=tiny(), output=tmp_path / "run", **given)
    told = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"), parse_constant=pytest.fail)
    first, second = result.scores["map"]
    assert np.isfinite(first) and np.isnan(second)
    assert told["scores"] == {"map": [first, None]} and told["mean"] == {"map": first}
    assert f"map: {first:.4f}" in (tmp_path / "run" / "report.html").read_text("utf-8")


# --- as large and as bad as real ones -----------------------------------------------------------------------------

"""Fine-tuning in one call: what it leaves, that it goes on after a kill to the same result, and what it refuses."""

import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from support import ROOT, tiny_model

from vit_keras import vit
from vit_keras.training import finetuning as module
from vit_keras.training.data.augment import Augmentation
from vit_keras.training.data.dataset import ImageFolder, image_folder
from vit_keras.training.embeddings import embed, ridge_probe
from vit_keras.training.evaluation import evaluate
from vit_keras.training.finetuning import finetune, trainings
from vit_keras.training.finetuning import run as running
from vit_keras.training.finetuning import training as tuning
from vit_keras.training.recipes import recipe

pytestmark = pytest.mark.filterwarnings("ignore:Images are left out")  # test_a_damaged_picture_… tests it
COLOURS = {"blue": (30, 60, 220), "green": (40, 200, 60), "red & <b>": (220, 40, 40)}
EXACT = 1e-6  # the same arithmetic on the same machine; threads may add up in another order


def write_folder(folder, count=10, size=(28, 20)):
    """Noisy pictures of one colour each, as awkward as those of people: every way to store them that Pillow writes."""
    random = np.random.default_rng(0)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for n in range(count):
            pixels = np.clip(np.array(colour) + random.normal(0, 60, (*size[::-1], 3)), 0, 255).astype("uint8")
            Image.fromarray(pixels).save(folder / name / f"{n}.png")
    first = Image.open(folder / "blue" / "0.png")
    first.convert("RGBA").save(folder / "blue" / "alpha.png")
    first.convert("CMYK").save(folder / "blue" / "print.jpg")
    first.convert("P").save(folder / "blue" / "palette.gif")
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side
    first.save(folder / "blue" / "turned.jpg", exif=exif)
    Image.open(folder / "green" / "0.png").convert("L").save(folder / "green" / "grey.png")
    whole = (folder / "green" / "0.png").read_bytes()
    (folder / "green" / "broken.png").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("Feed the cat.")
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "photos")


tiny = functools.partial(tiny_model, classes=7, dropout=0.1, seed=5)


SETTINGS = {
    "recipe": recipe("finetune", learning_rate=3e-3, augment_from=12),
    "epochs": 3,
    "batch_size": 8,
    "image_size": 32,
    "mistakes": 0,
    "errors": "skip",
}


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """A run without a break, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folder = tmp_path_factory.mktemp("runs") / "whole"
        numbers = {name: np.int64(SETTINGS[name]) for name in ("epochs", "batch_size")}
        settings = {**SETTINGS, **numbers, "seed": np.int64(0)}
        model = tiny()
        model.origin = "vit_cifar10"
        result = finetune(photos, model, output=folder, minutes=None, progress=False, **settings)
    return result, [str(warning.message) for warning in caught]


# --- what is left of a run ----------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_run_learns_and_leaves_everything(finished, photos):
    result, _ = finished
    files = {path.name for path in result.folder.iterdir()}
    wanted = {"model.keras", "report.html", "history.json", "recipe.json", "split.json"}
    assert wanted <= files <= {*wanted, "probe.keras"}
    assert result.evaluation.accuracy > 0.6  # of three colours, one in three by chance
    assert len(result.history["val_loss"]) == 3 and result.history["val_loss"][-1] < result.history["val_loss"][0]
    assert result.model.labels == tuple(COLOURS)
    assert len(str(result).splitlines()) <= 10 and str(result.folder / "model.keras") in str(result)
    with pytest.warns(UserWarning, match="learned"):
        again = evaluate(result.folder / "model.keras", photos, only=result.folder / "split.json", progress=False)
    assert again.paths == result.evaluation.paths
    assert result.evaluation.accuracy == pytest.approx(result.history["val_accuracy"][-1], abs=1e-6)


def test_the_files_say_what_was_done(finished):
    result, _ = finished
    told = {name: json.loads((result.folder / f"{name}.json").read_text()) for name in ("history", "recipe", "split")}
    assert told["history"]["history"] == result.history
    assert told["history"]["held_out"]["accuracy"] == result.evaluation.accuracy
    assert told["recipe"]["learning_rate"] == 3e-3 and result.recipe == SETTINGS["recipe"].replace(epochs=3)
    training, validation = told["split"]["training"], told["split"]["validation"]
    assert set(result.evaluation.paths) == set(validation) and not set(training) & set(validation)
    assert len(training) + len(validation) == 30 + 5
    page = (result.folder / "report.html").read_text("utf-8")
    assert result.model.origin == "vit_cifar10" and "vit_cifar10, license: Apache-2.0" in page
    assert (
        f"{result.evaluation.accuracy:.1%}".replace("%", "\N{NO-BREAK SPACE}%") in page
        and "red &amp; &lt;b&gt;" in page
    )


def test_a_damaged_picture_is_named_and_left_out(finished, photos):
    result, warned = finished
    assert sum("broken.png" in message for message in warned) == 1
    assert "broken.png" in (result.folder / "report.html").read_text("utf-8")
    with pytest.raises(ValueError, match=r"broken\.png"):
        finetune(
            photos, tiny(), output=result.folder.parent / "none", progress=False, **{**SETTINGS, "errors": "raise"}
        )
    assert not (result.folder.parent / "none").exists()


# --- a kill, and going on -----------------------------------------------------------------------------------------


class Clock:
    """A clock that only steps of training move, by 30 seconds each."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        for each in (running, module, trainings, tuning):
            monkeypatch.setattr(each, "time", types.SimpleNamespace(monotonic=self.read, perf_counter=self.read))

        def on_train_batch_begin(watch, batch, logs=None):
            self.now += 30

        monkeypatch.setattr(running.Stopwatch, "on_train_batch_begin", on_train_batch_begin)

    def read(self):
        return self.now


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_run_that_was_stopped_goes_on_to_the_same_result(finished, photos, tmp_path, monkeypatch, capsys):
    """The steps that were timed leave no trace: the whole run had no limit. An epoch is 4 steps of 30 seconds."""
    result, _ = finished
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running.Checkpointer, "on_train_batch_begin", stop_in_the_second)
        Clock(patch)
        finetune(photos, tiny(), output=tmp_path / "run", minutes=15, **SETTINGS)
    said = capsys.readouterr().out
    assert "3 epochs take about" in said
    assert "Stopped after epoch 1 of 3. The same call continues from there" in said
    assert not (tmp_path / "run" / "model.keras").exists()
    again = finetune(photos, model=tiny(), output=tmp_path / "run", minutes=15, **SETTINGS)
    assert "Continuing after epoch 1 of 3" in capsys.readouterr().out
    assert not (tmp_path / "run" / ".state").exists()
    for name, values in result.history.items():
        np.testing.assert_allclose(again.history[name], values, rtol=EXACT, err_msg=name)
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=EXACT, atol=EXACT)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_result(finished, photos, tmp_path):
    script = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(ROOT / "tests")!r}, {str(ROOT)!r}]
import test_finetuning as t
t.finetune({str(photos)!r}, model=t.tiny(), output={str(tmp_path / "run")!r}, progress=False, **t.SETTINGS)
"""
    state = tmp_path / "run" / ".state" / "state.json"
    process = subprocess.Popen([sys.executable, "-c", script], env=os.environ.copy())
    while process.poll() is None and not (state.exists() and json.loads(state.read_text())["history"]):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and state.exists()
    result, _ = finished
    again = finetune(photos, model=tiny(), output=tmp_path / "run", progress=False, **SETTINGS)
    np.testing.assert_allclose(again.history["val_loss"], result.history["val_loss"], rtol=EXACT)
    np.testing.assert_allclose(again.evaluation.probabilities, result.evaluation.probabilities, atol=1e-5)


@pytest.mark.parametrize("kept", ["all images", "some images"])
@pytest.mark.few_cases(1)
@pytest.mark.compiles_long
def test_a_run_goes_on_in_each_of_its_trainings(finished, photos, tmp_path, monkeypatch, kept):
    """Killed before the second epoch, of the training that is measured or of the one on all images."""
    result, _ = finished

    def stop(self, batch, logs=None):
        if self.run.done == 1 and ("val_loss" in self.run.history) == (kept == "some images"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running.Checkpointer, "on_train_batch_begin", stop)
        finetune(photos, tiny(), output=tmp_path / "run", progress=False, **SETTINGS)
    assert not (tmp_path / "run" / "model.keras").exists()
    again = finetune(photos, tiny(), output=tmp_path / "run", progress=False, **SETTINGS)
    assert not (tmp_path / "run" / ".state").exists()
    np.testing.assert_array_equal(again.evaluation.probabilities, result.evaluation.probabilities)
    for ours, theirs in zip(again.model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.compiles_long
def test_the_saved_model_has_learned_all_images_by_the_plan_that_was_measured(finished, photos, tmp_path):
    """It is what `fit` makes of all images with the recipe, the head and the seed of the run."""
    result, _ = finished
    measured = finetune(photos, tiny(), output=tmp_path / "run", refit=False, progress=False, **SETTINGS)
    assert result.refit and not measured.refit
    np.testing.assert_array_equal(measured.evaluation.probabilities, result.evaluation.probabilities)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = image_folder(
            photos, 32, batch_size=8, shuffle=True, augmentation=result.recipe.augmentation, errors="skip"
        )
    given = tiny()
    keras.utils.set_random_seed(0)
    model, _ = tuning.with_head(given, (32, 32), data.class_names)
    ridge_probe(embed(model, data, progress=False), data.labels).apply_to(model)
    result.recipe.compile(model, data)
    model.fit(data, epochs=3, callbacks=[*result.recipe.callbacks, *data.callbacks], verbose=0)
    images, _ = data.arrays()
    # Not the weights: the biases of keys change no output, so their updates are of rounding.
    np.testing.assert_allclose(result.model.predict(images), model.predict(images), rtol=1e-4, atol=1e-4)


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        recipe("lora", learning_rate=1e-2),
        recipe("finetune", ema=0.5, learning_rate=3e-3),
        recipe("scratch_small", augmentation={"crop": 0.4, "mixup": 0.8, "cutmix": 1.0}),
        recipe("gradual"),
        recipe("deit3", augmentation=None),
        recipe("finetune", accumulate=2, dtype="mixed_bfloat16"),
    ],
    ids=lambda how: f"{how.name}-{how.ema or how.dtype or ''}",
)
def test_every_kind_of_recipe_goes_on_and_is_saved(photos, tmp_path, monkeypatch, how):
    """What is kept, what goes on and what is saved give the accuracy that was measured in training."""
    options, model = (
        {**SETTINGS, "recipe": how, "epochs": 2, "progress": False, "minutes": None, "refit": False},
        tiny(),
    )
    whole = finetune(photos, model=model, output=tmp_path / "whole", **options)
    assert whole.model.get_layer("embedding").dtype_policy.name == (how.dtype or "float32")
    assert whole.evaluation.accuracy == pytest.approx(whole.history["val_accuracy"][-1], abs=1e-6)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(running.Checkpointer, "on_train_batch_begin", stop_in_the_second)
        finetune(photos, model=model, output=tmp_path / "run", **options)
    again = finetune(photos, model=model, output=tmp_path / "run", **options)
    np.testing.assert_allclose(again.history["val_loss"], whole.history["val_loss"], rtol=1e-5)
    saved = evaluate(tmp_path / "run" / "model.keras", photos, only=tmp_path / "run" / "split.json", progress=False)
    np.testing.assert_allclose(saved.probabilities, whole.evaluation.probabilities, atol=1e-4)


def stop_in_the_second(self, batch, logs=None):
    if self.run.done == 1:
        raise KeyboardInterrupt


def compiled():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def test_a_kill_while_the_state_is_written_leaves_the_one_before(tmp_path, monkeypatch):
    model = compiled()
    run = running.RunState(tmp_path / ".state", {"seed": 0}, False)
    run.begin(5)
    run.record({"loss": 1.0, "val_accuracy": 0.5, "val_loss": 1.0}, model)
    kept = [value.copy() for value in model.get_weights()]

    def fail():
        raise OSError("No space left on device")

    model.set_weights([value + 1 for value in kept])
    monkeypatch.setattr(run, "_save", fail)
    with pytest.raises(OSError, match="No space"):
        run.record({"loss": 0.9, "val_accuracy": 0.6, "val_loss": 0.9}, model)
    again = running.RunState(tmp_path / ".state", {"seed": 0}, False)
    assert again.done == 1 and again.epochs == 5
    again.restore(model)
    for value, expected in zip(model.get_weights(), kept):
        np.testing.assert_array_equal(value, expected)


def test_a_loss_that_is_no_number_ends_the_training(tmp_path):
    keep = running.Checkpointer(running.RunState(tmp_path, {}, False))
    with pytest.raises(ValueError, match="learning"):
        keep.on_epoch_end(2, {"loss": math.nan})
    with pytest.raises(ValueError, match="val_r2 in epoch 3"):
        keep.on_epoch_end(2, {"loss": 0.5, "val_loss": 0.5, "val_r2": math.nan})


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [".", "cat", "cat/run", "run", "new/run"])
def test_results_are_not_written_among_the_images(tmp_path, inside):
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "0.png")
    with pytest.raises(ValueError, match=f"{re.escape(str(tmp_path))}.*output="):
        finetune(tmp_path, weights="nothing.npz", output=tmp_path / inside)


def test_a_finished_run_is_not_overwritten(finished, photos):
    with pytest.raises(ValueError, match="a finished run.*--overwrite"):
        finetune(photos, model=tiny(), output=finished[0].folder)


def test_another_run_in_the_same_folder(tmp_path):
    running.RunState(tmp_path, {"seed": 0, "epochs": 3, "recipe": {"unfreeze_at": (1, 2)}}, False).begin(3)
    assert running.RunState(tmp_path, {"seed": 0, "epochs": 3, "recipe": {"unfreeze_at": (1, 2)}}, False).epochs == 3
    with pytest.raises(ValueError, match="--overwrite"):
        running.RunState(tmp_path, {"seed": 1, "epochs": 4, "recipe": {"unfreeze_at": (1, 2)}}, False)
    again = running.RunState(tmp_path, {"seed": 1}, overwrite=True)
    assert not again.begun and not again.epochs


@pytest.mark.parametrize("size", ["auto", "native", None])
def test_a_model_of_any_size_is_asked_for_one(photos, tmp_path, size):
    model = vit.build_model(None, 8, 1, 16, 2, "any", 32, classes=3, position_grid=(4, 4))
    with pytest.raises(ValueError, match="image_size="):
        finetune(photos, model, output=tmp_path / "run", errors="skip", image_size=size, progress=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be a positive integer"),
        ({"epochs": 2.5}, "epochs must be a positive integer"),
        ({"seed": None}, "seed must be an integer"),
        ({"minutes": -1}, "minutes must be a number of at least 0"),
        ({"recipe": "magic"}, "recipe must be one of .*'magic'"),
        ({"image_size": 33}, "33"),
        ({"validation_split": 1.5}, "validation_split"),
        ({"validation_split": None}, "finetune needs held-out images"),
        ({"validation_split": "0.2"}, "must be above 0 and below 1"),
        ({"image_size": "large"}, "image_size"),
    ],
)
@pytest.mark.filterwarnings("ignore:batch_size=32, but")
def test_options_that_are_none(photos, tmp_path, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        finetune(photos, tiny(), **{"output": tmp_path / "run", "errors": "skip", **options})
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_place_of_the_results(photos, tmp_path):
    (tmp_path / "run").write_text("Feed the cat.")
    with pytest.raises(ValueError, match="is a file"):
        finetune(photos, model=tiny(), output=tmp_path / "run")


# --- decisions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "sizes", "expected"),
    [
        (224, [(300, 200), (640, 480)], (224, 224)),
        (224, [(90, 96), (96, 96)], (160, 160)),  # at least ten patches
        (224, [(190, 100)], (192, 192)),
        ((224, 160), [(150, 300), (150, 100)] + [(150, 100)] * 30, (160, 160)),  # one larger one in 32 changes nothing
    ],
)
def test_image_size_follows_the_pictures(tmp_path, native, sizes, expected):
    for number, size in enumerate(sizes):
        Image.new("RGB", size).save(tmp_path / f"{number}.png")
    (tmp_path / "damaged.png").write_text("Feed the cat.")
    (tmp_path / "large.png").write_bytes(b"P6 20000 20000 255 ")  # Pillow refuses its size
    model = vit.build_model(native, 16, 1, 16, 2, "tiny", 16, classes=2)
    paths = sorted(tmp_path.iterdir())
    assert module._size(None, model, paths) == expected
    assert module._size("native", model, paths) == module._size(native, model, paths)
    assert module._size(48, model, paths) == module._size(np.array([48, 48]), model, paths) == (48, 48)


@pytest.mark.parametrize(
    ("seconds", "epochs", "said"),
    [
        (700, 10, "10 epochs take about 8.9 minutes"),
        (300, 5, "allows 5 of 10 epochs"),
        (50, 0.56, "one epoch takes 54 seconds. The time limit allows 56% of it"),
        (1, 0.2, "allows 20% of it"),
    ],
)
def test_epochs_fit_into_the_time(monkeypatch, seconds, epochs, said):
    """100 steps of half a second, and 20 batches of validation."""
    monkeypatch.setattr(running, "time", types.SimpleNamespace(monotonic=lambda: 1000.0))
    limit = running.TimeLimit(end=1000 + seconds, wanted=10, steps=100, validation_steps=20)
    assert limit.epochs(0.5) == epochs
    assert said in tuning.planned(limit, 0.5)


def test_a_short_training_does_not_augment_and_says_so(photos, tmp_path, monkeypatch, capsys):
    applied, begin = [], ImageFolder.on_epoch_begin
    monkeypatch.setattr(ImageFolder, "on_epoch_begin", lambda self: applied.append(self.augmentation) or begin(self))
    how = {**SETTINGS, "recipe": recipe("finetune", augment_from=6), "epochs": 1}
    result = finetune(photos, tiny(), output=tmp_path / "run", **how)
    plain = Augmentation(crop=None, flip=False)
    assert {*applied} <= {plain, None} and plain in applied  # None: the images held out
    assert result.recipe.augmentation == plain and result.recipe.epochs == 1
    said = capsys.readouterr().out
    assert "Plan: 4 steps of 8 images at a rate of up to 0.00025; images are not augmented" in said
    assert "all images make 5 steps, fewer than 6" in said


def test_the_head_is_new_unless_it_is_of_these_classes():
    model = tiny(classes=3)
    model.get_layer("head").kernel.assign(np.ones((16, 3)))
    assert not np.any(tuning.with_head(model, (32, 32), ("a", "b", "c"))[0].get_layer("head").kernel)
    model.labels = ("a", "b", "c")
    kept, _ = tuning.with_head(model, (16, 16), ("a", "b", "c"))
    np.testing.assert_array_equal(kept.get_layer("head").kernel, np.ones((16, 3)))
    assert not np.any(tuning.with_head(model, (16, 16), ("a", "b", "d"))[0].get_layer("head").kernel)
    assert kept.labels == ("a", "b", "c") and kept.input_shape == (None, 16, 16, 3)

"""Fine-tuning with random options: a run leaves what it reports, also after a kill, or refuses in a sentence."""

import contextlib
import csv
import os
import random
import shutil
import traceback

import keras
import numpy as np
import pytest
from keras.src.callbacks import CallbackList
from PIL import Image

import vit_keras
from vit_keras import open_model
from vit_keras.anatomy import name_classes
from vit_keras.build import build
from vit_keras.config import ViTConfig
from vit_keras.training import RECIPES, add_lora, evaluate, recipe
from vit_keras.training.finetuning import finetune

pytestmark = [
    pytest.mark.core,  # on every backend
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of these few images, there is much to warn of
]
PACKAGE = vit_keras.__path__[0]
IMAGES = 36
TASKS = {  # the column of the labels, other arguments
    "single": ("kind", {}),
    "multi": ("tags", {"separator": " "}),
    "regression": (["age", "height"], {}),
    "ordinal": ("level", {}),
}
MODELS = {
    "plain": {},
    "no head": {"include_top": False},
    "all tokens": {"include_top": False, "pooling": None},
    "mean": {"pooling": "gap"},
    "gray": {"channels": 1},
    "distilled": {"distillation_token": True, "pooling": "token+dist"},
    "attention pooling": {"class_token": False, "pooling": "map"},
    "registers": {"registers": 2},
    "gated": {"gated_mlp": True},
    "rotary": {"position": None, "rope_theta": 100.0},
    "not square": {"image_size": (32, 48)},
}
CHANGES = {
    "ema": [0.9],
    "accumulate": [2],
    "head": ["ridge", "zeros"],
    "dropout": [0.1],
    "stochastic_depth": [0.2],
    "lora": [2],
    "train": [1, "head", None],
    "loss": ["binary"],
    "augment_from": [0, 5],
    "flip_test": [True],
    "optimizer": ["sgd", "lamb"],
    "dtype": ["mixed_bfloat16"],
    "augmentation": [None, {"crop": 0.5, "mixup": 0.3}, {"crop": None, "flip": True}],
}
OPTIONS = {
    "folds": [2, 3],
    "balance": [True, "prior"],
    "calibrate": [True],
    "probe": [False],
    "image_size": ["native", (32, 48), 40],
    "metric": ["accuracy", "macro_f1", "map", "rmse", "log_loss"],
    "minutes": [0, 0.02, 1],
    "batch_size": [1, 5, 100],
}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of classes, and a table of the same images with labels of every kind."""
    folder, rng, rows = tmp_path_factory.mktemp("images"), np.random.default_rng(0), []
    for n in range(IMAGES):
        red, green, age = rng.integers(2), rng.integers(2), rng.uniform(1000, 1060)
        size, kind = rng.integers(18, 70, 2), ("cat", "dog", "eel")[n % 3]
        pixels = rng.normal(0, 20, (*size, 3)) + np.array([200 * red, 200 * green, 4 * (age - 1000)])
        (folder / "classes" / kind).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype("uint8")).save(folder / "classes" / kind / f"{n}.png")
        tags = " ".join(name for name, seen in (("red", red), ("green", green)) if seen)
        labels = {"kind": ("dark", "bright")[red], "tags": tags, "age": age, "height": rng.normal(), "level": n % 4}
        rows.append({"image": f"{kind}/{n}.png", **labels, "patient": n // 2})
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return folder


def some(draw, choices, share):
    """A value for some of the names."""
    return {name: draw.choice(values) for name, values in choices.items() if draw.random() < share}


def drawn(seed, images):
    """A model, a source of images, arguments of `finetune`, and those that `evaluate` takes too."""
    draw = random.Random(seed)
    name = draw.choice([*MODELS])
    fields = {"image_size": 32, "patch_size": 8, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "mlp_dim": 32}
    keras.utils.set_random_seed(seed)
    model = build(ViTConfig(**{**fields, "classes": 3, "name": "tiny", **MODELS[name]}))
    change = draw.choice(["none", "none", "frozen", "named", "lora", "cloned"])
    if change == "frozen":
        model.trainable = False
    elif model.config.include_top and change == "named":
        name_classes(model, ("cat", "dog", "eel"), "single")
    elif model.config.include_top and change == "lora":
        add_lora(model, 2)
    elif change == "cloned":
        model = keras.models.clone_model(model)  # has no config
    options = {"epochs": draw.choice([1, 2, 3]), "mistakes": draw.choice([0, 3]), "progress": False}
    options |= some(draw, OPTIONS, 0.3) | {"recipe": (draw.choice([*RECIPES]), some(draw, CHANGES, 0.15))}
    source, read = images / "classes", {}
    if draw.random() < 0.5:
        task, source = draw.choice([*TASKS]), images / "table.csv"
        column, others = TASKS[task]
        read = {"images_dir": images / "classes", "label_column": column, **others}
        columns = {"group_column": ["patient"]}
        options |= {"task": task, **some(draw, columns, 0.3)}
    return model, source, options, read


def finetuned(model, source, output, options, stopped_at):
    """The result of a run, which is stopped after an epoch and goes on."""
    ended = CallbackList.on_epoch_end
    epochs = []

    def stop(self, *args, **kwargs):
        ended(self, *args, **kwargs)
        epochs.append(1)
        if len(epochs) == stopped_at:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallbackList, "on_epoch_end", stop)
        try:
            return finetune(source, model, output=output, **options)
        except KeyboardInterrupt:
            return finetune(source, model, output=output, **options)


@pytest.mark.parametrize("seed", range(30))
def test_a_run_leaves_what_it_reports(images, tmp_path, seed):
    model, source, options, read = drawn(seed, images)
    case, before = f"{model.name}, {options}, {read}", model.get_weights()
    name, changes = options["recipe"]
    output, refused = tmp_path / "run", None
    try:
        options = {**options, **read, "recipe": recipe(name, **changes), "refit": False}
        result = finetuned(model, source, output, options, stopped_at=seed % 3)
    except ValueError as error:
        refused = error
    for one, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=case)
    if refused is not None:
        raised_in = traceback.extract_tb(refused.__traceback__)[-1].filename
        assert raised_in.startswith(PACKAGE), f"{refused!r} {case}"
        assert not (output / "model.keras").exists() and not (output / "report.html").exists(), case
        return
    assert "nan" not in " ".join(map(str, result.evaluation.figures.values())), case
    with pytest.raises(ValueError, match="finished"):
        finetune(source, model, output=output, **options)
    if "folds" in options:
        assert len((output / "oof.csv").read_text(encoding="utf-8").splitlines()) == IMAGES + 1, case
        return
    saved = open_model(output / "model.keras")
    measured = evaluate(saved, source, only=output / "split.json", progress=False, **read)
    expected = np.asarray(result.evaluation.outputs)
    # Batches of another size, in bfloat16 in some cases.
    np.testing.assert_allclose(measured.outputs, expected, atol=2e-3 * max(1, abs(expected).max()), err_msg=case)
    if options.get("task") == "regression":  # in the unit of the labels, years from 1000 to 1060
        assert abs(measured.outputs - measured.labels)[:, 0].mean() < 100, case


class Killed(BaseException):
    """Ends a process."""


def finetuned_or_killed(model, source, output, options, at=None):
    """Fine-tune, and die: before or after the end of a batch, a new file or the end of a folder. Return the places."""
    places = 0

    def counted(function):
        def count():
            nonlocal places
            places += 1
            if at is not None and places >= at:  # nothing is cleaned up after a death
                raise Killed

        def call(*args, **kwargs):
            count()
            result = function(*args, **kwargs)
            count()
            return result

        return call

    with pytest.MonkeyPatch.context() as patch:
        for place, name in ((CallbackList, "on_train_batch_end"), (os, "replace"), (shutil, "rmtree")):
            patch.setattr(place, name, counted(getattr(place, name)))
        with contextlib.suppress(Killed):
            finetune(source, model, output=output, **options)
    return places


def written(folder):
    """What a run has left, without the times that it took: weights of models, and lines of all other files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".keras":
            found[path.relative_to(folder)] = [weight.tobytes() for weight in open_model(path).get_weights()]
        elif path.suffix in (".json", ".csv"):
            lines = path.read_text(encoding="utf-8").splitlines()
            found[path.relative_to(folder)] = [line for line in lines if "seconds" not in line and '"time"' not in line]
        else:
            found[path.relative_to(folder)] = None
    return found


@pytest.mark.parametrize("seed", range(100, 115))
def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_files(images, tmp_path, seed):
    model, source, options, read = drawn(seed, images)
    name, changes = options["recipe"]
    options = {**options, **read, "recipe": recipe(name, **changes)}
    options["minutes"] = 0  # a limit would depend on the machine
    try:
        places = finetuned_or_killed(model, source, tmp_path / "whole", options)
    except ValueError:  # which the test above looks at
        return
    draw = random.Random(seed)
    case = f"{options}, of {places}:"
    while (tmp_path / "whole").exists() and not (tmp_path / "run" / "report.html").exists():
        at = draw.randint(1, places)
        case += f" {at}"
        finetuned_or_killed(model, source, tmp_path / "run", options, at)
    with contextlib.suppress(ValueError):  # it is finished
        finetune(source, model, output=tmp_path / "run", **options)
    assert written(tmp_path / "run") == written(tmp_path / "whole"), case

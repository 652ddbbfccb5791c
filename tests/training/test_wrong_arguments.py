"""Arguments that `finetune` does not have: none is ignored, each is answered with what would work."""

import dataclasses
import importlib.util
import inspect

import keras
import numpy as np
import pytest
from support import noise, tiny_model

from vit_keras import training, vit
from vit_keras._internal.validate import ALIASES
from vit_keras.training import RECIPES, Augmentation, Recipe, finetune, recipe
from vit_keras.training.checks import check
from vit_keras.training.recipes import rate_for

FIELDS = {field.name for kind in (Recipe, Augmentation) for field in dataclasses.fields(kind)} - {"name", "source"}
KNOWN = FIELDS | {*inspect.signature(finetune).parameters}


@pytest.fixture(scope="module")
def tiny():
    return vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)


def test_an_open_model_ignores_no_argument(tiny, tmp_path):
    for name in {*ALIASES, "name", "source", "family", "set", "held_out", "val_split", "device"} - KNOWN:
        with pytest.raises(TypeError, match=name):
            finetune(tmp_path, tiny, **{name: 1})


@pytest.mark.parametrize(("name", "value"), [("ema", 1), ("dropout", 2), ("mixup", -1), ("flip", "no")])
def test_a_wrong_field_of_the_recipe_or_its_augmentation_is_refused(tiny, name, value, tmp_path):
    with pytest.raises(ValueError, match=f"{name} must be.*{value}"):
        finetune(tmp_path, tiny, **{name: value})


@pytest.mark.parametrize("kind", [lambda labels: {"label": labels}, lambda labels: (labels,)], ids=["dict", "tuple"])
def test_labels_in_a_container_need_a_loss(tiny, kind):
    images = np.random.default_rng(0).uniform(-1, 1, (4, 32, 32, 3)).astype("float32")
    with pytest.raises(ValueError, match="Labels .*loss="):
        recipe("finetune").compile(tiny, (images, kind(np.arange(4) % 2)))


def test_a_file_in_the_place_of_a_folder_is_to_be_unpacked(tiny, tmp_path):
    (tmp_path / "images.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="images.zip is a file.*zipfile"):
        finetune(tmp_path / "images.zip", tiny, output=tmp_path / "results")


@pytest.mark.parametrize("missing", ["cleanlab", "matplotlib"])
def test_what_the_report_will_lack_is_said_before_the_training(tiny, tmp_path, missing, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == missing else find(name, *more))
    with pytest.raises(FileNotFoundError):
        finetune(tmp_path / "none", tiny, output=tmp_path / "results")
    assert f"{missing}: pip install" in capsys.readouterr().out


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_printed_with_a_value_in_each_line(name):
    lines = dict(line.split(": ", 1) for line in str(recipe(name)).splitlines())
    rate = recipe(name).learning_rate or rate_for(192)
    assert lines["name"] == name and lines["learning_rate"].split()[0] == f"{rate:g}"
    assert ("momentum" in lines) == (lines["optimizer"] == "sgd")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", "'learning_rate'"),
        ("epoch", "'epochs'"),
        ("bs", "'batch_size'"),
        ("opt", "'optimizer'"),
        ("mix_up", "'mixup'"),
    ],
)
def test_the_name_of_a_model_gets_the_same_answer(name, meant, tmp_path):
    with pytest.raises(TypeError) as raised:
        finetune(tmp_path, "vit_cifar10", **{name: 1})
    assert meant in str(raised.value)


PIXELS = noise(2, 32, 32, 3) / 127.5 - 1


def with_task(task):
    model = tiny_model()
    model.task = task
    return model


def two_inputs():
    inputs = [keras.Input((32, 32, 3)) for _ in range(2)]
    return keras.Model(inputs, tiny_model()(keras.layers.Add()(inputs)))


def ends_in_a_norm():
    return keras.Sequential([tiny_model(), keras.layers.LayerNormalization()])


def quantized(mode):
    model = tiny_model()
    model.quantize(mode)
    return model


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("labels from 0 to 1", lambda: check(with_task("multi"), (PIXELS, 2 * np.eye(2, 3)))),
        ("set model.labels", lambda: training.predict_table({"image": [__file__]}, with_task("ordinal"))),
        ("at least three images.*2", lambda: training.near_duplicates(np.eye(2), np.eye(2))),
        ("end in .csv, .tsv", lambda: finetune(__file__, tiny_model(), label_column="y")),
        ("An open model has its weights", lambda: finetune(__file__, tiny_model(), weights="other.npz")),
        ("no rows", lambda: training.image_table({}, label_column="y")),
        ("one value in each row", lambda: training.image_table({"image": np.ones((2, 2))}, label_column="y")),
        ("two classes.*class 1 only", lambda: training.linear_probe(np.eye(3), [1, 1, 1])),
        ("image_size", lambda: training.embed(tiny_model(None, position=None, pooling=None), [*PIXELS, PIXELS[0, 8:]])),
        ("not finite", lambda: training.image_table({"image": [__file__] * 2, "y": [0.5, np.inf]}, label_column="y")),
        ("from 2 inputs", lambda: training.embed(two_inputs(), PIXELS)),
        ("array of numbers", lambda: training.linear_probe("features.npy", [0, 1])),
        ("Adam or AdamW", lambda: training.fused(keras.optimizers.SGD())),
        ("float, int8 or int4.*float8", lambda: training.add_lora(quantized("float8"), 2)),
        ("comes from LayerNormalization", lambda: training.calibrate(ends_in_a_norm(), (PIXELS, [0, 1]))),
    ],
)
def test_a_mistake_is_named(message, call):
    with pytest.raises((ValueError, TypeError), match=message):
        call()

"""Arguments that `finetune` does not have: none is ignored, each is answered with what would work."""

import dataclasses

import keras
import pytest

from vit_keras import vit
from vit_keras._internal.validate import ALIASES
from vit_keras.training import Augmentation, Recipe, finetune

KNOWN = {field.name for kind in (Recipe, Augmentation) for field in dataclasses.fields(kind)} - {"name", "source"}


@pytest.fixture(scope="module")
def tiny():
    return vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)


@pytest.mark.parametrize("name", [*ALIASES, "name", "source", "family", "set", "held_out", "val_split", "device"])
def test_an_open_model_ignores_no_argument(tiny, name, tmp_path):
    if name not in KNOWN:
        with pytest.raises(TypeError, match=name):
            finetune(tiny, tmp_path, **{name: 1})


@pytest.mark.parametrize(("name", "value"), [("ema", 1), ("dropout", 2), ("mixup", -1), ("flip", "no")])
def test_a_wrong_field_of_the_recipe_or_its_augmentation_is_refused(tiny, name, value, tmp_path):
    with pytest.raises(ValueError, match=f"{name} must be.*{value}"):
        finetune(tiny, tmp_path, **{name: value})


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
        finetune("vit_cifar10", tmp_path, **{name: 1})
    assert meant in str(raised.value)


def test_weights_of_an_open_model_are_refused(tiny, tmp_path):
    assert isinstance(tiny, keras.Model)
    with pytest.raises(ValueError, match="An open model has its weights"):
        finetune(tiny, tmp_path, weights="other.npz")

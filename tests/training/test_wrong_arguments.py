"""Arguments that `finetune` does not have: none is ignored, each is answered with what would work."""

import dataclasses

import keras
import pytest

from vit_keras import vit
from vit_keras._internal.validate import ALIASES, did_you_mean
from vit_keras.training import Recipe, finetune

FIELDS = [field.name for field in dataclasses.fields(Recipe)]


@pytest.fixture(scope="module")
def tiny():
    return vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)


@pytest.mark.parametrize("name", [*FIELDS, *ALIASES, "family", "set", "held_out", "val_split", "device"])
def test_an_open_model_ignores_no_argument(tiny, name, tmp_path):
    if name in ("batch_size", "epochs"):  # arguments of finetune
        return
    with pytest.raises(TypeError, match=f"finetune has no argument {name}") as raised:
        finetune(tiny, tmp_path, **{name: 1})
    if name in FIELDS:
        assert f'recipe("finetune", {name}=' in str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("lr", 'recipe("finetune", learning_rate='),
        ("epoch", "'epochs'"),
        ("bs", "'batch_size'"),
        ("opt", "optimizer="),
        ("mixup", "augmentation=dict(mixup=…)"),
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


def test_two_letters_exchanged_are_near_and_only_the_nearest_is_suggested():
    for choice in ("fsdp", "head", "epochs", "rollout"):
        for n in range(len(choice) - 1):
            wrong = choice[:n] + choice[n + 1] + choice[n] + choice[n + 2 :]
            if wrong != choice:
                assert did_you_mean(wrong, [choice, "tensor"]) == f" Did you mean {choice!r}?"
    names = ["vit_ti16", "vit_s16", "vit_b16", "vit_l16"]
    assert did_you_mean("vitb16", names) == did_you_mean("vit-b16x", names) == " Did you mean 'vit_b16'?"

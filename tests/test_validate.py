"""Checks of arguments."""

import io
import re

import numpy as np
import pytest

from vit_keras import text, training, visualize
from vit_keras._internal import validate
from vit_keras.preprocess import GOOGLE
from vit_keras.training.evaluation.calibration import temperature


@pytest.mark.parametrize("value", [3, np.int64(3), np.array(3)])
def test_any_integer_is_an_integer(value):
    assert validate.positive_integer(value, "rank") == 3


@pytest.mark.parametrize(
    ("value", "least", "message"),
    [
        (0, 1, "rank must be a positive integer. Received: 0"),
        (True, 1, "rank must be a positive integer. Received: True"),
        ("3", 1, "rank must be a positive integer. Received: '3'"),
        (3.0, 1, "rank must be a positive integer. Received: 3.0"),
        (1, 2, "rank must be an integer of at least 2. Received: 1"),
        (None, 0, "rank must be an integer of at least 0. Received: None"),
    ],
)
def test_what_is_no_such_integer(value, least, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        validate.positive_integer(value, "rank", least)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, True), (np.float32(0.5), True), (np.nan, False), (np.inf, False), (None, False), ("1", False), (1j, False)],
)
def test_numbers(value, expected):
    assert validate.is_number(value) is expected


def test_a_choice_that_there_is_not():
    with pytest.raises(ValueError, match=r"method .*mean 'rollout'\?.*'rolout'"):
        validate.one_of("rolout", "method", ("rollout", None))


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("grad-cam", " Did you mean 'grad_cam'?"),
        ("GRADCAM", " Did you mean 'grad_cam'?"),
        ("xyzzy", ""),
        (None, ""),
    ],
)
def test_hints(value, hint):
    assert validate.did_you_mean(value, ["grad_cam", "rollout", None]) == hint


@pytest.mark.parametrize(
    ("value", "choices", "hint"),
    [
        ("lr", ["lora", "learning_rate"], "learning_rate"),
        ("bs", ["batch_size", "loss"], "batch_size"),
        ("wd", ["weight_decay"], "weight_decay"),
        ("ddp", ["data", "fsdp"], "data"),
        ("dp", ["data", "fsdp"], "data"),
        ("lr", ["lora"], None),  # suggested only where it is possible
        ("vit_ti16", ["vit_cifar10"], None),  # too far
        ("lerning_rate", ["learning_rate"], "learning_rate"),
    ],
)
def test_usual_abbreviations_are_known_and_far_names_are_not_suggested(value, choices, hint):
    expected = "" if hint is None else f" Did you mean {hint!r}?"
    assert validate.did_you_mean(value, choices) == expected


ROWS = np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75], [0.125, 0.875]], "float32")  # exact in bfloat16
LABELS = [0, 1, 0, 1]
TAKES_NUMBERS = {
    "knn": lambda rows: training.knn(rows, LABELS, rows, k=1),
    "ridge_probe": lambda rows: training.ridge_probe(rows, LABELS, l2=1.0).logits(rows),
    "score": lambda rows: training.metrics.score("log_loss", LABELS, rows, "single"),
    "temperature": lambda rows: temperature(rows, LABELS),
    "top_k": lambda rows: text.top_k(rows, 1)[1],
    "normalize": lambda rows: GOOGLE.normalize(
        rows[:, :1] * rows.new_ones(3) if hasattr(rows, "detach") else rows[:, [0] * 3]
    ),
    "overlay": lambda rows: visualize.overlay(np.zeros((4, 2, 3), "uint8"), rows),
}


def test_an_open_file_is_not_an_array():
    with io.BytesIO(b"image") as file:
        with pytest.raises(TypeError, match="images .*numbers"):
            validate.numbers(file, "images")
        assert file.read() == b"image"


@pytest.mark.only_on("torch", reason="only its tensors refuse to become arrays")
@pytest.mark.parametrize("function", TAKES_NUMBERS.values(), ids=TAKES_NUMBERS)
def test_tensors_with_a_gradient_or_in_bfloat16_are_numbers(function):
    import torch

    expected = function(ROWS)
    for dtype in (torch.float32, torch.bfloat16):
        np.testing.assert_array_equal(function(torch.tensor(ROWS, dtype=dtype, requires_grad=True)), expected)

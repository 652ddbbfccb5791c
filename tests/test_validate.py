"""Checks of arguments."""

import re

import numpy as np
import pytest

from vit_keras._internal import validate


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
    with pytest.raises(ValueError, match="'rollout'.*'rolout'"):
        validate.one_of("rolout", "method", ("rollout", None))


@pytest.mark.parametrize(
    ("value", "hint"),
    [("grad-cam", " Did you mean 'grad_cam'?"), ("GRADCAM", " Did you mean 'grad_cam'?"), ("xyzzy", ""), (None, "")],
)
def test_hints(value, hint):
    assert validate.did_you_mean(value, ["grad_cam", "rollout", None]) == hint

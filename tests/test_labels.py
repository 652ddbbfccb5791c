"""Names of classes, and classes by name."""

import re

import numpy as np
import pytest

from vit_keras import labels

IMAGENET = labels.get_imagenet_classes()


def test_the_classes_of_imagenet():
    assert len(IMAGENET) == 1000
    assert IMAGENET[0] == "tench, Tinca tinca"
    assert IMAGENET[340] == "zebra"
    assert IMAGENET[-1] == "toilet tissue, toilet paper, bathroom tissue"
    assert all(name and name == name.strip() for name in IMAGENET)


@pytest.mark.parametrize(
    ("name", "number"),
    [("zebra", 340), (" Zebra ", 340), ("Tinca tinca", 0), ("tench, tinca tinca", 0), ("toucan", 96)],
)
def test_a_class_by_one_of_its_names(name, number):
    assert labels.class_named(name, IMAGENET) == number


@pytest.mark.parametrize(
    ("name", "names", "message"),
    [
        ("kat", labels.CIFAR10, "the name 'kat'. Did you mean 'cat'?"),
        ("tinca tinka", IMAGENET, "Did you mean 'Tinca tinca'?"),
        ("shark", IMAGENET, "mean one of these? great white shark"),
        ("xyzzy", labels.CIFAR10, "'xyzzy'. The classes are airplane, "),
        ("xyzzy", IMAGENET, "No class has the name 'xyzzy'."),
        ("", labels.CIFAR10, "No class has the name ''."),
        ("crane", IMAGENET, "'crane': 134 (crane); 517 (crane)"),
        ("3", range(3), "'3'. The classes are 0, 1, 2."),
        ("cat", None, "Received: 'cat'"),
    ],
)
def test_a_name_that_is_not_one_class(name, names, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        labels.class_named(name, names)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("cat", [3, 3]),
        (7, [7, 7]),
        (np.int64(7), [7, 7]),
        ("predicted", [-1, -1]),
        (["cat", 1], [3, 1]),
        (np.array([0, 9]), [0, 9]),
    ],
)
def test_classes_for_images(target, expected):
    found = labels.class_numbers(target, 2, labels.CIFAR10)
    assert found.dtype == np.int32
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ([1], ValueError, "2 images and 1 targets"),
        (-2, ValueError, "Received: -2"),
        (1.5, TypeError, "Received: 1.5"),
        ("kat", ValueError, "Did you mean 'cat'?"),
    ],
)
def test_classes_for_images_that_there_are_not(target, error, message):
    with pytest.raises(error, match=re.escape(message)):
        labels.class_numbers(target, 2, labels.CIFAR10)

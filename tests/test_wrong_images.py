"""What is not a batch of images is refused with the way to one, by a call and by `predict`."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from vit_keras import vit

IMAGE = Image.new("RGB", (9, 9))
FILES = ["cat.png", pathlib.Path("cat.png"), b"bytes", IMAGE]
OTHERS = [None, 3, 0.5, True, [], (), np.array(["cat.png"])]


@pytest.fixture(scope="module")
def model():
    return vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x, x], lambda x: (x,)], ids=["one", "list", "tuple"])
@pytest.mark.parametrize("given", FILES + OTHERS, ids=lambda x: type(x).__name__)
def test_what_is_not_an_array_of_images_is_refused_with_preprocess(model, given, wrap):
    for run in (model, model.predict):
        with pytest.raises(TypeError, match=r"takes a batch of images.*\(batch, 32, 32, 3\).*Pass model\.preprocess"):
            run(wrap(given))


def test_files_are_told_of_the_module(model):
    with pytest.raises(TypeError, match="vit_keras.preprocess"):
        model.predict("cat.png")


def test_a_single_image_is_told_of_the_axis_of_the_batch(model):
    for run in (model, model.predict):
        with pytest.raises(ValueError, match=r"images\[None\]"):
            run(np.zeros((32, 32, 3), "float32"))

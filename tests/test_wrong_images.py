"""What is not a batch of images is refused with the way to one, by a call, `predict`, `fit` and `evaluate`."""

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
        with pytest.raises(TypeError, match=r"\(batch, 32, 32, 3\).*model\.preprocess"):
            run(wrap(given))


def test_files_are_told_of_the_module(model):
    for run in (model.predict, model.fit, model.evaluate):
        with pytest.raises(TypeError, match="vit_keras.preprocess"):
            run("cat.png")


def test_a_single_image_and_a_dictionary_are_told_what_to_pass(model):
    for run in (model, model.predict):
        with pytest.raises(ValueError, match=r"images\[None\]"):
            run(np.zeros((32, 32, 3), "float32"))
        with pytest.raises(TypeError, match="dictionary"):
            run({"image": np.zeros((1, 32, 32, 3), "float32"), "id": np.zeros(1)})


@pytest.mark.only_on("tensorflow", reason="AutoGraph is TensorFlow's")
@pytest.mark.parametrize("name", ["__call__", "call", "check_images", "check_shape", "_check_type"])
def test_autograph_converts_what_a_call_runs_outside_of_keras(name):
    """Otherwise it warns in each `tf.function` of a user, and leaves the function as it is."""
    import tensorflow as tf

    assert tf.autograph.to_code(getattr(vit.VisionTransformer, name))

"""The drawn images are the same everywhere, and the model finds in them what their names say."""

import hashlib

import pytest

from vit_keras import utils
from vit_keras.preprocess.drawings import EXAMPLES

SHA256 = {
    "cat": "8c6ee9285bd91f4a6f17da07afa8d46a798d8a739beaa14b0e80d4cee11a6971",
    "street": "3894456fcaa336844f536f3914b1cf7e1525a8eac549f6a030e794372241a357",
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_the_same_everywhere(name):
    image = utils.example(name)
    assert (image.shape, image.dtype) == ((240, 320, 3), "uint8")
    assert hashlib.sha256(image.tobytes()).hexdigest() == SHA256[name]


@pytest.mark.any_backend
def test_an_unknown_example_names_those_that_there_are():
    with pytest.raises(ValueError, match="'cat', 'street'.*'streat'"):
        utils.example("streat")

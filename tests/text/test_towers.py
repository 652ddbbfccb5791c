"""Both towers against what transformers and open_clip computed, and a text tower as a Keras model."""

import keras
import numpy as np
import pytest
from family_files import matrix, run
from text_files import LENGTH, VOCABULARY, cases, load, tokens, write

from vit_keras import open_image_text
from vit_keras.text import TextConfig, build_text, open_text
from vit_keras.text.model import contrastive_loss

pytestmark = pytest.mark.core(first=("test_features_logits_and_loss_are_those_of_the_original",))

TINY = {"vocab_size": 50, "context_length": 8, "num_layers": 2, "hidden_size": 16, "num_heads": 2, "mlp_dim": 24}
FIRST = ("hf_clip", "hf_siglip2", "open_clip_not_causal")
CASES = matrix(sorted(cases(), key=lambda name: name not in FIRST), FIRST)


def tolerance(reference):
    """Two correct float32 implementations differ by about 1e-6 of the largest value."""
    return 1e-5 * np.abs(reference).max()


@pytest.mark.compiles_long
@pytest.mark.filterwarnings("ignore:The pixels")
@pytest.mark.parametrize("name", CASES)
def test_features_logits_and_loss_are_those_of_the_original(name, tmp_path):
    expected, pixels = load(name)
    model = open_image_text(write(name, tmp_path / name), tokenizer=None)
    ids = tokens()
    np.testing.assert_allclose(run(model.text, ids), expected["text"], rtol=0, atol=tolerance(expected["text"]))
    np.testing.assert_allclose(run(model.image, pixels), expected["image"], rtol=0, atol=tolerance(expected["image"]))
    logits = keras.ops.convert_to_numpy(model({"image": pixels, "text": ids}))
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-5 * max(1, np.abs(logits).max()))
    few = model({"image": pixels, "text": ids[: len(pixels)]})
    loss = float(keras.ops.convert_to_numpy(contrastive_loss(few, model.loss_kind)))
    assert abs(loss - expected["loss"]) <= 1e-5 * max(1, abs(expected["loss"]))
    assert model.loss_kind == ("sigmoid" if "siglip" in name else "softmax")


def test_what_follows_the_end_of_a_text_changes_nothing():
    tower = build_text(TextConfig(**TINY, pooling="eos", eos_id=3))
    ids = np.array([[9, 8, 3, 0, 0, 0, 0, 0], [9, 8, 3, 3, 17, 20, 4, 1]], "int32")
    one, other = run(tower, ids)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run(tower, ids[:1, :3])[0], one, rtol=0, atol=1e-6)
    assert build_text(TextConfig(**TINY, output_size=None)).output_shape == (None, 16)


def test_a_text_that_is_too_long_is_an_error():
    with pytest.raises(ValueError, match=r"at most 8 tokens. Received: 9"):
        run(build_text(TextConfig(**TINY)), np.zeros((1, 9), "int32"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "hidden_size=16 .*num_heads=3"),
        ({"pooling": "eos"}, "pooling='eos' needs the eos_id"),
        ({"pooling": "eos", "eos_id": 50}, "below vocab_size=50"),
        ({"pooling": "first"}, "pooling .*'argmax', 'eos', 'last'"),
        ({"epsilon": -1}, "epsilon must be"),
        ({"num_layers": 0}, "num_layers must be a positive integer"),
        ({"mlp_activation": "gleu"}, "mlp_activation .*mean.*gelu"),
    ],
)
def test_a_wrong_configuration_is_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        TextConfig(**{**TINY, **options})


def test_a_text_tower_is_opened_alone(tmp_path):
    tower = open_text(write("hf_clip", tmp_path / "a"))
    assert tower.config.pooling == "eos"
    assert (tower.config.context_length, tower.config.vocab_size) == (LENGTH, VOCABULARY)
    assert tower.output_shape == (None, 24)

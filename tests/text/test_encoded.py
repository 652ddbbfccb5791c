"""From a sentence to its features, as the original's code computes them: every tower with each of its tokenizers."""

import importlib.util
import json

import keras
import numpy as np
import pytest
from encoded_files import ASCII, LENGTH, TEXTS, TOKENIZERS, load, write, write_tokenizer
from text_files import write as write_both

from vit_keras import text
from vit_keras.text import ImageText, Tokenizer, build_text, opening
from vit_keras.text.reading import TextWeights

PAIRS = [(tower, tokenizer) for tower, tokenizers in TOKENIZERS.items() for tokenizer in tokenizers]
FIRST = [tower for tower in TOKENIZERS if tower not in ("hf_clip", "open_clip", "hf_siglip2")]


def open_tower(folder, tokenizer="auto"):
    """Both towers of a folder, with an image tower that is not looked at."""
    source = TextWeights(folder)
    tower = opening.open_text(folder)
    image = build_text(source.config.replace(num_layers=1))
    if tokenizer == "auto":
        tokenizer = opening.tokenizer_of(source)
    return ImageText(image, tower, tokenizer=tokenizer)


@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.parametrize(
    ("tower", "tokenizer"),
    [
        pytest.param(*pair, marks=() if pair[0] in FIRST and pair[1] == TOKENIZERS[pair[0]][0] else pytest.mark.slow)
        for pair in PAIRS
    ],
)
def test_features_of_sentences_are_those_of_the_original(tower, tokenizer, tmp_path):
    write(tower, tmp_path)
    write_tokenizer(tokenizer, tmp_path)
    of_open_clip = tower.startswith("open_clip")
    texts = TEXTS if importlib.util.find_spec("ftfy") or not of_open_clip else ASCII
    found = text.encode_texts(open_tower(tmp_path), texts)
    expected = load(tower)[: len(texts)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)  # of features of length 1, in float32


def test_the_tokenizer_of_another_folder_pads_as_the_tower_wants(tmp_path):
    write("open_clip_not_causal", tmp_path / "tower")
    write_tokenizer("clip_json", tmp_path / "tokenizer")
    source = TextWeights(tmp_path / "tower")
    for folder in (tmp_path / "tokenizer", str(tmp_path / "tokenizer" / "tokenizer.json")):
        assert opening.tokenizer_of(source, folder)("a")[0, -1] == 0
        assert Tokenizer(folder, LENGTH)("a")[0, -1] == 526
    assert opening.tokenizer_of(source, None) is None


def test_a_tokenizer_alone_is_padded_by_the_configuration_in_its_folder(tmp_path):
    for kind, pad in (("clip_gzip", 0), ("clip_vocabulary", 526)):
        write_tokenizer(kind, tmp_path / kind)
        assert Tokenizer(tmp_path / kind, LENGTH)("a")[0, -1] == pad
        for text_cfg, expected in (({}, 0), ({"hf_tokenizer_name": "x"}, 526)):
            config = {"model_cfg": {"text_cfg": text_cfg}}
            (tmp_path / kind / "open_clip_config.json").write_text(json.dumps(config))
            assert Tokenizer(tmp_path / kind, LENGTH)("a")[0, -1] == expected
            assert Tokenizer(tmp_path / kind, LENGTH, open_clip=text_cfg)("a")[0, -1] == expected


@pytest.mark.parametrize(
    "text_cfg",
    [{"tokenizer_mode": "clips"}, {"tokenizer_kwargs": {"clean": "all"}}, {"tokenizer_kwargs": {"language": "en"}}],
)
def test_what_open_clip_may_ask_for_and_is_not_understood_is_an_error(text_cfg, tmp_path):
    write_tokenizer("clip_gzip", tmp_path)
    with pytest.raises(ValueError, match="text_cfg"):
        Tokenizer(tmp_path, open_clip=text_cfg)("a")


def test_both_towers_of_a_folder_get_its_tokenizer(tmp_path):
    write_both("open_clip_not_causal", tmp_path)
    write_tokenizer("clip_json", tmp_path)
    model = text.open_image_text(tmp_path)
    assert model.tokenizer("a")[0, -1] == 0
    with pytest.raises(ValueError, match="image tower returns 64 features and the text tower 5"):
        text.open_image_text(tmp_path, text={"output_size": 5})
    with pytest.raises(ValueError, match=r"not fit its configuration. head/bias is missing, and would be \(64,\)"):
        text.open_text(tmp_path, output_bias=True)


@pytest.mark.parametrize("in_folder", [True, False])
def test_both_towers_are_opened_as_they_were_saved(in_folder, tmp_path):
    write_both("open_clip_not_causal", tmp_path / "clip")
    write_tokenizer("clip_json", tmp_path / "clip")
    model = text.open_image_text(tmp_path / "clip")
    file = tmp_path / ("clip/both.keras" if in_folder else "both.keras")
    model.save(file)
    assert text.open_image_text(file, tokenizer=None).tokenizer is None
    found = text.open_image_text(file, tokenizer="auto" if in_folder else tmp_path / "clip")
    with pytest.raises(ValueError, match="no options.*'strict'"):
        text.open_image_text(file, strict=False)
    assert found.text.config == model.text.config
    np.testing.assert_array_equal(found.tokenizer(TEXTS), model.tokenizer(TEXTS))
    for one, other in zip(found.weights, model.weights, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)), err_msg=other.path)


def test_another_saved_model_is_no_pair(tmp_path):
    build_text(TextWeights(write("hf_clip", tmp_path)).config.replace(num_layers=1)).save(tmp_path / "text.keras")
    with pytest.raises(ValueError, match=r"text\.keras is not a saved ImageText"):
        text.open_image_text(tmp_path / "text.keras")
    with pytest.raises(ValueError, match=r"no options.*'image_size'"):
        text.open_image_text(tmp_path / "text.keras", image_size=64)

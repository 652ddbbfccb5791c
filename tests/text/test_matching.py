"""Zero-shot classification, retrieval, the classifier made of sentences and its maps."""

import warnings

import keras
import numpy as np
import pytest
from PIL import Image
from text_files import LENGTH, VOCABULARY, write

import vit_keras
from vit_keras import cli, open_image_text, text, visualize, vit, zero_shot, zero_shot_classifier
from vit_keras.anatomy.outputs import output_kind

CLASSES = ["cat", "dog", "red car"]
TEMPLATES = ["a photo of a {}", "art: {}!"]


def words(end):
    """A tokenizer by the letters of words, whose texts end in `end`."""

    def tokenize(texts):
        ids = np.zeros((len(texts), LENGTH), "int32")
        for row, sentence in zip(ids, texts):
            numbers = [6 + sum(map(ord, word)) % (VOCABULARY - 7) for word in sentence.split()]
            row[: len(numbers) + 2] = [1, *numbers, end]
        return ids

    return tokenize


@pytest.fixture(scope="module", params=["hf_clip", "hf_siglip"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = open_image_text(write(request.param, folder), tokenizer=words(5))
    model.image.run_eagerly = model.text.run_eagerly = keras.backend.backend() != "jax"
    return model


def eager(classifier):
    """A classifier that is not compiled, which takes longer than to run it a few times."""
    classifier.run_eagerly = keras.backend.backend() != "jax"
    return classifier


@pytest.fixture
def pictures():
    random = np.random.default_rng(0)
    return [random.integers(0, 255, size, "uint8") for size in ((40, 50, 3), (32, 32, 3))]


def by_hand(model, pictures, sentences):
    """The probabilities, step by step."""
    image = np.asarray(model.image.predict(model.image.preprocess(pictures), verbose=0), "float64")
    image /= np.linalg.norm(image, axis=1, keepdims=True)
    features = []
    for group in sentences:
        each = np.asarray(model.text.predict(model.tokenizer(group), verbose=0), "float64")
        mean = (each / np.linalg.norm(each, axis=1, keepdims=True)).mean(axis=0)
        features.append(mean / np.linalg.norm(mean))
    logits = np.exp(float(keras.ops.convert_to_numpy(model.logit_scale))) * image @ np.transpose(features)
    if model.logit_bias is not None:
        return 1 / (1 + np.exp(-logits - float(keras.ops.convert_to_numpy(model.logit_bias))))
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_probabilities_are_those_of_the_formula(model, pictures):
    found = zero_shot(model, pictures, CLASSES)
    np.testing.assert_allclose(found, by_hand(model, pictures, [[name] for name in CLASSES]), atol=1e-5)
    found = zero_shot(model, pictures, CLASSES, templates=TEMPLATES)
    sentences = [[template.format(name) for template in TEMPLATES] for name in CLASSES]
    np.testing.assert_allclose(found, by_hand(model, pictures, sentences), atol=1e-5)
    assert found.shape == (2, 3)


def test_a_classifier_of_sentences_is_an_ordinary_model(model, pictures, tmp_path):
    classifier = eager(zero_shot_classifier(model, CLASSES, TEMPLATES))
    inputs = classifier.preprocess(pictures)
    expected = zero_shot(model, pictures, CLASSES, templates=TEMPLATES)
    np.testing.assert_allclose(classifier.predict(inputs, verbose=0), expected, atol=1e-6)
    assert vit_keras.anatomy.class_names(classifier) == tuple(CLASSES)
    logits = zero_shot_classifier(model, CLASSES, TEMPLATES, activation="linear")
    assert output_kind(logits) == "logits"
    found = vit_keras.anatomy.probabilities(logits, eager(logits).predict(inputs, verbose=0))
    np.testing.assert_allclose(found, expected, atol=1e-6)  # the same float32 logits, activated by NumPy


def test_copies_keep_the_sentences_and_files_of_weights_do_not(model, pictures, tmp_path):
    classifier, other = zero_shot_classifier(model, CLASSES), zero_shot_classifier(model, ["left", "right"])
    merged = vit_keras.merge_tokens(classifier, 0)
    inputs = classifier.preprocess(pictures)
    np.testing.assert_allclose(
        eager(merged).predict(inputs, verbose=0), eager(classifier).predict(inputs, verbose=0), atol=1e-6
    )
    assert vit_keras.anatomy.class_names(merged) == vit_keras.anatomy.class_names(classifier) == tuple(CLASSES)
    assert vit_keras.anatomy.class_names(other) == ("left", "right")
    with pytest.warns(UserWarning, match="without what is around it: .*Dense.*model.save.* keeps all"):
        vit_keras.save_weights(classifier, tmp_path / "image.safetensors")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Only the")
        vit_keras.resize(classifier, 16, classes=2, include_top=True)  # another head was asked for


def towers():
    """Towers that are not ours alone: a ViT with layers around it, and three text towers."""
    vit_model = vit.build_model(16, 8, 1, 16, 2, "image", 32, classes=2, include_top=False)
    image = keras.Sequential(
        [keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 127.5, -1), vit_model, keras.layers.Dense(8)]
    )
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "mlp_dim": 32, "output_size": 8}
    ours = text.build_text(text.TextConfig(vocab_size=9, context_length=4, **sizes))
    layers = keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 8), keras.layers.GlobalAveragePooling1D()
    return image, {"ours": ours, "cloned": keras.models.clone_model(ours), "another's": keras.Sequential([*layers])}


def test_any_two_towers_are_compared(pictures):
    image, texts = towers()
    for name, tower in texts.items():
        both = text.ImageText(image, tower, tokenizer=lambda texts: [[1, 2, 8, 0]] * len(texts))
        assert zero_shot(both, pictures, ["a", "b"]).shape == (2, 2), name
    classifier = zero_shot_classifier(both, ["a", "b"])
    inputs = classifier.preprocess(pictures)
    assert inputs.max() > 200  # its ViT gets pixels from the layer before
    expected = zero_shot(both, pictures, ["a", "b"])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The pixels")
        np.testing.assert_allclose(classifier.predict(inputs, verbose=0), expected, atol=1e-6)


@pytest.mark.slow
def test_a_classifier_of_sentences_is_saved_with_its_names(model, pictures, tmp_path):
    classifier = eager(zero_shot_classifier(model, CLASSES))
    inputs = classifier.preprocess(pictures)
    expected = classifier.predict(inputs, verbose=0)
    classifier.save(tmp_path / "classifier.keras")
    again = keras.models.load_model(tmp_path / "classifier.keras")
    assert (again.labels, again.preprocessing) == (tuple(CLASSES), model.image.preprocessing)
    np.testing.assert_allclose(eager(again).predict(inputs, verbose=0), expected, atol=1e-6)


def test_the_maps_of_two_sentences_differ(model, pictures):
    classifier = eager(zero_shot_classifier(model, CLASSES, "a photo of a {}"))
    maps = [visualize.attention_map(classifier, pictures[0], method="relevance", target=name) for name in CLASSES[:2]]
    assert maps[0].shape == (40, 50, 3)
    assert (maps[0] != maps[1]).any()


@pytest.mark.slow
def test_a_sentence_is_explored_and_exported(model, pictures, tmp_path):
    pytest.importorskip("onnxruntime")
    classifier = zero_shot_classifier(model, CLASSES)
    visualize.explorer(classifier, pictures[:1], target="dog").save(tmp_path / "page.html")
    assert "dog" in (tmp_path / "page.html").read_text(encoding="utf-8")
    vit_keras.export(classifier, tmp_path / "classifier.onnx")  # which compares the two
    assert (tmp_path / "classifier.onnx").is_file()


def test_retrieval(model, pictures):
    scores = text.similarity(model, pictures, CLASSES)
    assert scores.shape == (2, 3)
    assert np.abs(scores).max() <= 1 + 1e-6
    best, values = text.top_k(scores.T, 1)
    np.testing.assert_array_equal(best[:, 0], scores.argmax(axis=0))
    np.testing.assert_array_equal(values[:, 0], scores.max(axis=0))
    assert text.top_k(scores, 9)[0].shape == (2, 3)
    with pytest.raises(ValueError, match=r"\(rows, columns\). Received: an array of shape \(3,\)"):
        text.top_k(scores[0])


@pytest.mark.parametrize(
    ("texts", "templates", "message"),
    [([], "{}", "At least one text"), ("a", [], "At least one text"), ("a", "a photo", "template with {}")],
)
def test_texts_and_templates_are_checked(model, texts, templates, message):
    with pytest.raises(ValueError, match=message):
        text.encode_texts(model, texts, templates)


def test_names_of_classes_are_different(model):
    with pytest.raises(ValueError, match="different name"):
        zero_shot_classifier(model, ["cat", "cat"])


def test_a_tokenizer_of_another_model_is_noticed(tmp_path):
    model = open_image_text(write("hf_clip", tmp_path / "model"), tokenizer=words(2))
    with pytest.raises(ValueError, match="token"):
        text.encode_texts(model, "a cat")
    model.tokenizer = lambda texts: np.full((1, LENGTH), 49407)
    with pytest.raises(ValueError, match="token 49407.* has 60"):
        text.encode_texts(model, "a cat")
    model.tokenizer = None
    with pytest.raises(ValueError, match=r"set model.tokenizer"):
        text.encode_texts(model, "a cat")


def test_the_command(tmp_path, monkeypatch, capsys, pictures):
    folder = tmp_path / "model"
    write("hf_clip", folder)
    Image.fromarray(pictures[0]).save(tmp_path / "cat.png")
    arguments = ["zero-shot", str(tmp_path / "cat.png"), "--model", str(folder), "--text", "a cat", "a dog"]
    assert cli.main(arguments) == 1
    assert f"There is no tokenizer in {folder}" in capsys.readouterr().err
    monkeypatch.setattr(text.Tokenizer, "__call__", lambda self, texts: words(5)(texts))
    assert cli.main([*arguments, "--template", "a photo of {}", "-o", str(tmp_path / "map.png")]) == 0
    name, *lines, last = capsys.readouterr().out.splitlines()
    assert name.endswith("cat.png")
    assert sorted(line.split("  ")[-1] for line in lines) == ["a cat", "a dog"]
    assert last == f"relevance map: {tmp_path / 'map.png'}"
    assert Image.open(tmp_path / "map.png").size == (50, 40)
    (tmp_path / "broken.png").write_bytes(b"")
    arguments[1:2] = [str(tmp_path / name) for name in ("broken.png", "cat.png")]
    assert cli.main([*arguments, "-o", str(tmp_path / "map.png")]) == 0
    found = capsys.readouterr()
    assert "left out: 1 damaged" in found.err and "broken.png" not in found.out
    assert (tmp_path / "map-2.png").exists() and not (tmp_path / "map-1.png").exists()


def test_commands_warn_that_an_image_tower_may_embed(tmp_path, capsys, pictures):
    write("hf_clip", tmp_path / "model")
    Image.fromarray(pictures[0]).save(tmp_path / "cat.png")
    line = [str(tmp_path / "cat.png"), "--model", str(tmp_path / "model")]
    for command in (["predict"], ["attention", "-o", str(tmp_path / "map.png"), "--method", "relevance"]):
        assert cli.main([*command, *line]) == 0
        assert "are an embedding (CLIP)" in capsys.readouterr().err
    assert cli.main(["predict", *line, "--set", "classes=2"]) == 0  # a new head
    assert "embedding" not in capsys.readouterr().err

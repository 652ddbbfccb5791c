"""Models of every shape that people save, and what the command line says of them: the same as the model by hand."""

import json
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image
from support import uncompiled

import vit_keras
from vit_keras import preprocess, vit
from vit_keras.anatomy.parts import find_vit
from vit_keras.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config")  # of what `quick` does

LABELS = ("ant", "bee", "cat", "dog")
GOOGLE = preprocess.GOOGLE.replace(image_size=32)
CLIP = preprocess.CLIP.replace(image_size=32)


def tiny(**options):
    """A small model whose probabilities are far apart, and not the same for normalized pixels and others."""
    model = vit.build_model(32, 8, 1, 64, 2, "tiny", 128, **{"classes": 4, **options})
    rng = np.random.default_rng(1)
    model.set_weights([w + 0.2 * rng.standard_normal(w.shape) for w in model.get_weights()])
    if model.output_shape[1:] == (4,):
        model.labels = LABELS
    return model


def clip_behind_augmentation():
    model = tiny()
    model.preprocessing = CLIP
    return keras.Sequential(
        [keras.Input((32, 32, 3)), keras.layers.RandomFlip(), keras.layers.RandomRotation(0.1), model]
    )


def behind_operations():
    pixels = keras.Input((32, 32, 3))
    return keras.Model(pixels, tiny()(pixels / 127.5 - 1))


def of_two_outputs():
    model = tiny()
    return keras.Model(model.input, [model.output, keras.layers.Dense(2)(model.get_layer("head").input)])


def served():
    model = tiny()
    return keras.Sequential([keras.Input((None, None, 3)), vit_keras.preprocessing_layer(model), model])


def rescaled(model):
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Rescaling(1 / 127.5, -1), model])


def followed_by(*layers):
    return keras.Sequential([tiny(), *layers])


# Name of the case: the model, what its user would feed it, whether it returns logits, and why it is no classifier.
CASES = {
    "plain": (tiny, GOOGLE, "logits", None),
    "own softmax": (lambda: tiny(activation="softmax"), GOOGLE, "probabilities", None),
    "Rescaling before": (lambda: rescaled(tiny()), None, "logits", None),
    "Preprocess before": (served, None, "logits", None),
    "augmentation before CLIP's": (clip_behind_augmentation, CLIP, "logits", None),
    "operations before": (behind_operations, None, "logits", None),
    "Dropout last": (lambda: followed_by(keras.layers.Dropout(0.5)), GOOGLE, "logits", None),
    "Rescaling last": (lambda: followed_by(keras.layers.Rescaling(0.5)), GOOGLE, "logits", None),
    "Softmax last": (lambda: followed_by(keras.layers.Softmax()), GOOGLE, "probabilities", None),
    "Activation last": (lambda: followed_by(keras.layers.Activation("softmax")), GOOGLE, "probabilities", None),
    "another head": (
        lambda: keras.Sequential([tiny(include_top=False), keras.layers.Dense(4)]), GOOGLE, "logits", None,
    ),
    "nested twice": (lambda: rescaled(followed_by(keras.layers.Dropout(0.5))), None, "logits", None),
    "two outputs": (of_two_outputs, GOOGLE, None, "2 outputs"),
    "no head": (lambda: tiny(include_top=False), GOOGLE, None, "has no head, and returns 64 features"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quick():
    with uncompiled():
        yield


class Case:
    """A saved model, pictures of the size that it takes, and what it says of them by hand."""

    def __init__(self, folder, name):
        keras.utils.set_random_seed(1)
        build, self.preprocess, self.kind, self.refusal = CASES[name]
        self.model = build()
        self.path = str(folder / "model.keras")
        self.model.save(self.path)
        rng = np.random.default_rng(0)
        self.pixels = rng.integers(0, 256, (len(LABELS), 32, 32, 3), dtype="uint8")
        self.folder = str(folder / "pictures")
        self.pictures = [Path(self.folder, label, "1.png") for label in LABELS]
        for path, pixels in zip(self.pictures, self.pixels):
            path.parent.mkdir(parents=True)
            Image.fromarray(pixels).save(path)

    def probabilities(self):
        given = self.pixels.astype("float32") if self.preprocess is None else self.preprocess(self.pixels)
        outputs = self.model.predict(given, verbose=0).astype("float64")
        powers = np.exp(outputs) if self.kind == "logits" else outputs
        return powers / powers.sum(axis=-1, keepdims=True)

    def features(self):
        inner = find_vit(self.model)
        seen = next((layer.input for layer in inner.layers if layer.name == "head"), inner.output)
        return keras.Model(inner.input, seen).predict((self.preprocess or GOOGLE)(self.pixels), verbose=0)


@pytest.fixture
def case(request, tmp_path):
    return Case(tmp_path, request.param)


def on(*quick):
    """Run a test on the cases that each stand for a mechanism, and with `-m slow` on all others."""
    marks = {name: [pytest.mark.slow] * (name not in quick) for name in CASES}
    return pytest.mark.parametrize("case", [pytest.param(n, marks=m, id=n) for n, m in marks.items()], indirect=True)


def printed(capsys):
    """The percentages of classes, by number, in the order of the lines."""
    found = re.findall(r"^ +([\d.]+)%  (.*)$", capsys.readouterr().out, flags=re.MULTILINE)
    return {LABELS.index(name) if name in LABELS else int(name.split()[1]): float(percent) for percent, name in found}


def refuses(capsys, case, *arguments):
    """Whether a command has to refuse a model, and does, for the right reason."""
    if case.refusal is None:
        return False
    assert main([*arguments]) == 1
    assert case.refusal in capsys.readouterr().err
    return True


@on("plain", "own softmax", "operations before", "another head", "two outputs", "no head")
def test_predict_and_attention_say_what_the_model_says(capsys, case, tmp_path):
    picture, out = str(case.pictures[0]), str(tmp_path / "map.png")
    predict = ["predict", picture, "--model", case.path]
    attention = ["attention", picture, "--model", case.path, "--method", "relevance", "-o", out]
    if refuses(capsys, case, *predict):
        assert refuses(capsys, case, *attention) and refuses(capsys, case, *attention, "--class", "1")
        assert not Path(out).exists()
        return
    expected = 100 * case.probabilities()[0]
    order = [int(number) for number in np.argsort(-expected)]
    assert expected[order[0]] - expected[order[1]] > 0.3  # percent; or the test says little
    assert main(predict) == 0
    assert list(printed(capsys).items()) == [(n, pytest.approx(expected[n], abs=0.051)) for n in order]  # one digit
    assert main(attention) == 0
    assert printed(capsys) == {order[0]: pytest.approx(expected[order[0]], abs=0.051)}


@on(
    "Rescaling before",
    "augmentation before CLIP's",
    "Dropout last",
    "no head",
)
def test_evaluate_measures_what_the_model_says(capsys, case):
    evaluate = ["evaluate", case.path, case.folder, "--json"]
    if refuses(capsys, case, *evaluate):
        return
    assert main(evaluate) == 0
    found, expected = json.loads(capsys.readouterr().out), case.probabilities()
    confusion = np.zeros((4, 4), int)
    np.add.at(confusion, (range(4), expected.argmax(axis=-1)), 1)
    assert found["confusion"] == confusion.tolist()
    # Probabilities are float32, of other batches.
    assert found["loss"] == pytest.approx(-np.log(np.maximum(expected.diagonal(), 1e-7)).mean(), abs=1e-3)


@on("plain", "nested twice")
def test_embed_writes_what_the_head_sees(case, tmp_path):
    assert main(["embed", case.folder, "--model", case.path, "-o", str(tmp_path / "features.npy")]) == 0
    # float32 in batches of another size
    np.testing.assert_allclose(np.load(tmp_path / "features.npy"), case.features(), rtol=0, atol=1e-4)


@on("plain", "operations before")
def test_explore_explains_the_class_that_the_model_predicts(capsys, case, tmp_path):
    explore = ["explore", str(case.pictures[0]), "--model", case.path, "-o", str(tmp_path / "page.html")]
    if refuses(capsys, case, *explore, "--class", "1"):
        return
    assert main([*explore, "--class", "predicted"]) == 0
    names = re.findall(r'"Relevance: ([^"]+)"', Path(tmp_path / "page.html").read_text(encoding="utf-8"))
    number = int(case.probabilities()[0].argmax())
    assert names and set(names) <= {LABELS[number], f"class {number}", str(number)}

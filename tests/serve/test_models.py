"""A model that is not an exported file: it is exported first, and the server says what the model says."""

import keras
import numpy as np
import pytest
from ask_server import ask, encoded, random_picture
from recordings import recording

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import vit_keras
from vit_keras import anatomy, layers, serve, visualize, vit
from vit_keras.anatomy.parts import patch_grid
from vit_keras.preprocess import Preprocessing

CROPPED = Preprocessing(image_size=(32, 32), crop=0.8, interpolation="bicubic_antialias")


@pytest.mark.parametrize(
    ("task", "labels", "names"),
    [
        ("regression", ("age", "height"), ["age", "height"]),
        ("regression", None, ["number 0", "number 1"]),
        ("ordinal", ("mild", "medium", "hot"), ["mild", "hot"]),
    ],
)
def test_numbers_have_names(task, labels, names):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2 if task == "regression" else 1)
    model.task, model.labels = task, labels
    (bias,) = (weight for weight in model.weights if weight.path.endswith("head/bias"))
    answers = []
    for value in (0.2, 7.0):
        bias.assign([value] * bias.shape[0])
        with serve.running(model) as address:
            answers.append(ask(address, "/predict", encoded(random_picture(50, 70)))[2]["numbers"])
    found = answers[0] if task == "regression" else [*answers[0], *answers[1]]
    assert [each["name"] for each in found] == names
    assert [each["value"] for each in answers[1]] == pytest.approx([7.0] * bias.shape[0])  # the head starts at zero


@pytest.mark.parametrize(("task", "name"), [("single", "probabilities"), ("regression", "outputs")])
def test_a_segmenter_answers_for_each_place(task, name):
    maps = vit_keras.feature_maps(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2), [0])
    model = keras.Model(maps.input, keras.layers.Dense(3)(maps.outputs[0]))
    model.task = task
    with serve.running(model) as address:
        status, _, answer = ask(address, "/predict", encoded(random_picture(50, 70)))
    assert (status, np.shape(answer[name])) == (200, (2, 2, 3))


def test_outputs_of_unknown_meaning_are_an_answer():
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
    image = keras.Input((32, 32, 3))
    with serve.running(keras.Model(image, keras.ops.exp(model(image)))) as address:
        assert ask(address, "/predict", encoded(random_picture(50, 70)))[2]["outputs"] == [1.0, 1.0]


@pytest.mark.parametrize("preprocessing", [None, CROPPED])
def test_a_model_is_exported_and_served(preprocessing):
    model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
    rng = np.random.default_rng(1)
    model.set_weights([weight + 0.2 * rng.standard_normal(weight.shape) for weight in model.get_weights()])
    if preprocessing is not None:
        model.preprocessing = preprocessing
    picture = random_picture(50, 70)
    inputs = model.preprocess(picture)
    expected = anatomy.probabilities(model, model.predict(inputs, verbose=0))[0]
    with serve.running(model) as address:
        answer = ask(address, "/predict?top=10&attention=1", encoded(picture))[2]
    found = {each["class"]: each["probability"] for each in answer["predictions"]}
    np.testing.assert_allclose([found[n] for n in range(10)], expected, atol=1e-5)
    with layers.record_attention() as recorded:
        model(inputs, training=False)
    scores = np.stack([keras.ops.convert_to_numpy(each)[0] for each in recorded])
    rollout = visualize.attention_rollout(recording(2, 1, 2, (4, 4), attention=scores[:, None]))[0]
    assert answer["attention"]["grid"] == [4, 4]
    np.testing.assert_allclose(answer["attention"]["rollout"], rollout.ravel(), rtol=6e-3)
    np.testing.assert_allclose(answer["attention"]["layers"], scores[:, :, 0, 1:], rtol=6e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "patch", "options"),
    [
        ((32, 64), (16, 8), {}),
        (32, 16, {"registers": 4}),
        (64, 16, {"pooling": "gap", "class_token": True}),
        (64, 16, {"distillation_token": True}),
    ],
)
def test_the_server_shows_the_attention_that_the_output_is_read_from(size, patch, options):
    model = vit.build_model(size, patch, 2, 32, 2, "tiny", 64, classes=3, **options)
    rng = np.random.default_rng(1)
    model.set_weights([weight + 0.3 * rng.standard_normal(weight.shape) for weight in model.get_weights()])
    picture = random_picture(*model.input_shape[1:3])
    expected = visualize.attention_map(model, picture, method="rollout", return_map=True)
    with serve.running(model) as address:
        found = ask(address, "/predict?attention=1", encoded(picture))[2]["attention"]
    assert tuple(found["grid"]) == patch_grid(model)
    np.testing.assert_allclose(found["rollout"], np.ravel(expected), rtol=0.006)  # three digits are sent
    assert np.shape(found["layers"]) == (2, 2, np.prod(found["grid"]))


@pytest.mark.parametrize(
    ("size", "reaches"), [((None, None), (50, 70)), ((48, 64), (48, 64))], ids=["any size", "one size"]
)
@pytest.mark.parametrize("mode", ["center", "squash"])
def test_the_server_shows_attention_where_the_model_crops_itself(size, reaches, mode):
    inside = CROPPED.replace(crop=0.5, crop_mode=mode)
    tiny = vit.build_model(32, 8, 1, 32, 2, "tiny", 64, classes=3)
    with serve.running(keras.Sequential([keras.Input((*size, 3)), vit_keras.preprocess.Preprocess(inside), tiny])) as a:
        found = ask(a, "/predict?attention=1", encoded(random_picture(50, 70)))[2]["attention"]
    (height, width), (top, left) = inside.geometry(reaches, (32, 32))
    assert found["grid"] == [4, 4]
    np.testing.assert_allclose(found["box"], [top / height, left / width, 32 / height, 32 / width])  # shares as sent


def test_numbers_that_json_does_not_have_are_null():
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
    model.get_layer("head").set_weights([np.zeros((16, 3)), np.full(3, np.nan)])
    with serve.running(model) as address:
        found = ask(address, "/predict", encoded(random_picture(50, 70)))[2]["predictions"]
    assert [each["probability"] for each in found] == [None] * 3

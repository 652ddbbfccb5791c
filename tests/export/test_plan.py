"""What a plan asks of a model, and what it lets the model return."""

import json

import keras
import numpy as np
import pytest
from export_cases import tiny
from keras import ops

import vit_keras
from vit_keras import anatomy, vit
from vit_keras.anatomy.outputs import softmax
from vit_keras.export.plan import Plan, in_float32, weights_sha256


def run(plan, inputs):
    return {name: ops.convert_to_numpy(value) for name, value in plan.outputs(ops.convert_to_tensor(inputs)).items()}


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(-1, 1, (3, 32, 32, 3)).astype("float32")


def test_outputs_are_those_of_the_model(images):
    model = tiny()
    plan = Plan.of(model, attention=True)
    found = run(plan, images)
    expected = model.predict(images, verbose=0)
    assert tuple(found) == plan.output_names
    assert tuple(found) == ("logits", "probabilities", "features", "attention_0", "attention_1")
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], softmax(expected), atol=1e-5)
    head = model.get_layer("head")
    np.testing.assert_allclose(found["features"] @ np.asarray(head.kernel) + np.asarray(head.bias), expected, atol=1e-4)
    assert found["attention_1"].shape == (3, 2, 5, 5)
    np.testing.assert_allclose(found["attention_1"].sum(axis=-1), 1, atol=1e-5)


def test_a_model_is_left_as_it_was(images):
    model = tiny()
    run(Plan.of(model), images)
    assert "call" not in vars(model.get_layer("head"))
    assert not model.run_eagerly


def test_a_nested_model_with_a_softmax(images):
    model = keras.Sequential([tiny(include_top=False), keras.layers.Dropout(0.5), keras.layers.Dense(3, "softmax")])
    plan = Plan.of(model, labels=("a", "b", "c"))
    found = run(plan, images)
    assert tuple(found) == ("probabilities", "features")
    np.testing.assert_allclose(found["probabilities"], model.predict(images, verbose=0), atol=1e-5)
    np.testing.assert_allclose(found["features"], model.layers[0].predict(images, verbose=0), atol=1e-5)


def test_features_and_two_heads(images):
    plan = Plan.of(tiny(include_top=False))
    assert plan.classes is None
    assert tuple(run(plan, images)) == ("features",)
    two = tiny(pooling="token+dist", distillation_token=True)
    assert run(Plan.of(two), images)["features"].shape == (3, 16)


def test_a_subclass_of_model(images):
    class Wrapped(keras.Model):
        def __init__(self):
            super().__init__()
            self.vit = tiny()

        def call(self, inputs, training=None):
            return self.vit(inputs, training=training) * 2

    model = Wrapped()
    expected = model.predict(images, verbose=0)
    found = run(Plan.of(model), images)
    assert tuple(found) == ("logits", "probabilities", "features")
    np.testing.assert_allclose(found["logits"], expected, atol=1e-5)


def test_outputs_follow_the_task(images):
    model = tiny()
    anatomy.name_classes(model, [f"label {n}" for n in range(model.output_shape[1])], "multi")
    plan = Plan.of(model)
    found = {name: ops.convert_to_numpy(value) for name, value in plan.outputs(images).items()}
    np.testing.assert_allclose(found["probabilities"], 1 / (1 + np.exp(-found["logits"])), atol=1e-6)
    assert plan.metadata_json()["task"] == "multi"
    model.task = "regression"
    plan = Plan.of(model)
    assert plan.output_names == ("numbers",) and plan.classes is None and [*plan.outputs(images)] == ["numbers"]


def test_outputs_are_float32_whatever_the_policy(images):
    half = tiny(dtype="mixed_bfloat16")
    whole = tiny()
    found = run(Plan.of(half), images)
    assert half.get_layer("embedding").compute_dtype == "bfloat16"
    assert {value.dtype.name for value in found.values()} == {"float32"}
    np.testing.assert_allclose(found["logits"], whole.predict(images, verbose=0), atol=1e-5)
    assert np.abs(found["logits"] - half.predict(images, verbose=0)).max() > 1e-4


def test_what_is_compiled_around_a_model_is_there_again_after_float32(images):
    outer = keras.Sequential([tiny(dtype="mixed_bfloat16"), keras.layers.Dense(2)])
    before = outer.predict(images, verbose=0)
    compiled = outer.predict_function
    with in_float32(outer):
        assert outer.predict_function is None
        assert np.abs(outer.predict(images, verbose=0) - before).max() > 0
    assert outer.predict_function is compiled  # a training that goes on around it needs its step
    np.testing.assert_array_equal(outer.predict(images, verbose=0), before)


def test_pictures_and_sizes():
    plan = Plan.of(tiny())
    assert (plan.image_size, plan.image_shape) == ((32, 32), (None, None, None, 3))
    assert Plan.of(tiny(), preprocessing=False).preprocessing is None
    assert Plan.of(tiny(channels=1)).image_shape == (None, None, None, 3)
    assert Plan.of(tiny(image_size=None, position_grid=(2, 2)), preprocessing=False).image_size is None
    served = keras.Sequential([keras.Input((None, None, 3)), vit_keras.preprocessing_layer(tiny()), tiny()])
    plan = Plan.of(served)
    assert (plan.image_size, plan.preprocessing.range) == (None, (0.0, 255.0))


def test_a_model_that_was_trained_further_names_the_license_of_what_it_began_with():
    model = vit_keras.resize(vit.vit_cifar10(classes=3), 40)
    said = Plan.of(keras.Sequential([model, keras.layers.Softmax()])).metadata_json()
    assert (said["origin"], said["license"]) == ("vit_cifar10", "Apache-2.0")
    model.origin = "somebody/else"
    assert Plan.of(model).metadata_json()["license"] is None


def test_metadata_is_json():
    model = tiny()
    said = json.loads(json.dumps(Plan.of(model, labels=("a", "b", "c"), top=9).metadata_json()))
    assert said["labels"] == ["a", "b", "c"]
    assert said["image_size"] == [32, 32] and "patches" not in said
    said = json.loads(json.dumps(Plan.of(tiny(registers=2), attention=True).metadata_json()))["patches"]
    sized = {"size": [32, 32], "crop": None, "crop_mode": "center", "resized": None}
    assert said == {**sized, "stride": [16, 16], "prefix": 3, "readout": [1.0, 0.0, 0.0, 0.0]}
    said = json.loads(json.dumps(Plan.of(model, labels=("a", "b", "c"), top=9).metadata_json()))
    assert said["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    assert said["weights_sha256"] == weights_sha256(tiny()) != weights_sha256(tiny(seed=1))


def test_what_is_refused():
    with pytest.raises(ValueError, match="labels= has 2 names"):
        Plan.of(tiny(), labels=("a", "b"))
    with pytest.raises(ValueError, match="list of names"):
        Plan.of(tiny(), labels="imagenet-22k")
    with pytest.raises(ValueError, match="no attention"):
        Plan.of(tiny(tokens_mlp_dim=8, pooling="mean", position=None), attention=True)
    image, shared = keras.Input((32, 32, 3)), tiny()
    siamese = keras.Model(image, keras.Sequential([shared])(image) + shared(image * 0.5))
    with pytest.raises(ValueError, match="attention="):
        Plan.of(siamese, attention=True)
    assert Plan.of(siamese).attention == 0
    with pytest.raises(ValueError, match="top must be"):
        Plan.of(tiny(), top=0)
    for dtype in ("bfloat16", "float64"):
        with pytest.raises(ValueError, match=f"{dtype}.*vit_keras"):
            Plan.of(tiny(dtype=dtype))
        assert Plan.of(vit_keras.resize(tiny(dtype=dtype), 32, dtype="float32")).classes == 3
    for labels in ({"a": 0, "b": 1, "c": 2}, {"a", "b", "c"}):
        with pytest.raises(TypeError, match="classes"):
            Plan.of(tiny(), labels=labels)
    (quantized := tiny()).quantize("int8")
    with pytest.raises(ValueError, match="is quantized by Keras.*Export the float model"):
        Plan.of(quantized)
    first = keras.Input((3, 32, 32))
    with pytest.raises(ValueError, match=r"\(3, 32, 32\).*channels first"):
        Plan.of(keras.Model(first, tiny()(keras.layers.Permute((2, 3, 1))(first))))
    series = vit.build_model((1, 64), (1, 8), 1, 16, 2, "series", 32, classes=3, channels=12)
    assert Plan.of(series).image_shape[3] == 12
    open_ = keras.Input((32, 32, None))
    with pytest.raises(ValueError, match="channels"):
        Plan.of(keras.Model(open_, tiny()(ops.repeat(ops.mean(open_, -1, keepdims=True), 3, -1))))
    image = keras.Input((32, 32, 3))
    with pytest.raises(ValueError, match="2 outputs"):
        Plan.of(keras.Model(image, [tiny()(image), tiny(seed=1, include_top=False)(image)][:1] * 2))

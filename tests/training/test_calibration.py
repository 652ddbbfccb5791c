"""Calibration: a temperature that is found, kept in the model, and exported with it."""

import functools

import keras
import numpy as np
import pytest
from support import tiny_model

import vit_keras
from vit_keras import anatomy, training
from vit_keras.anatomy.dry_run import ending
from vit_keras.anatomy.outputs import sigmoid, softmax
from vit_keras.training.evaluation.calibration import Reliability, half_by_half, temperature, tempered

SIZE = 32


tiny = functools.partial(tiny_model, SIZE, patch_size=16, dropout=0.1, seed=5)


def photos(count=24):
    random = np.random.default_rng(0)
    return random.uniform(-1, 1, (count, SIZE, SIZE, 3)).astype("float32"), random.integers(0, 3, count)


def too_sure(by, count=4000, classes=4):
    """Probabilities of logits that are `by` times too large, and labels drawn from the right ones."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (count, classes))
    true = softmax(logits)
    labels = (true.cumsum(axis=1) > random.random((count, 1))).argmax(axis=1)
    return softmax(by * logits), labels


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("by", [3.0, 0.5, 1.0])
def test_the_temperature_that_made_a_model_too_sure_is_found(by):
    shares, labels = too_sure(by)
    assert temperature(shares, labels) == pytest.approx(by, rel=0.05)
    found = tempered(shares, temperature(shares, labels))
    assert (found.argmax(axis=1) == shares.argmax(axis=1)).all()
    metrics = pytest.importorskip("sklearn.metrics")
    least = min(metrics.log_loss(labels, tempered(shares, each)) for each in np.geomspace(0.2, 5, 200))
    assert metrics.log_loss(labels, found) <= least + 1e-4


def test_the_temperature_of_independent_labels():
    random = np.random.default_rng(1)
    logits = random.normal(0, 2, (3000, 3))
    labels = (random.random((3000, 3)) < sigmoid(logits)).astype("float32")
    assert temperature(sigmoid(2 * logits), labels) == pytest.approx(2, rel=0.05)


def test_reliability_is_that_of_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    shares, labels = too_sure(3.0)
    found = Reliability.of(shares, labels)
    right, sure = calibration.calibration_curve(shares.argmax(1) == labels, shares.max(1), n_bins=15)
    np.testing.assert_allclose(found.right[found.counts > 0], right)
    np.testing.assert_allclose(found.sure[found.counts > 0], sure)
    after = Reliability.of(half_by_half(shares, labels), labels)
    assert found.error > 0.15 > found.chance and after.error < after.chance


def test_each_half_has_the_temperature_of_the_other():
    shares, labels = too_sure(3.0, 40)
    found = half_by_half(shares, labels)
    one = [n for n in range(40) if np.allclose(found[n], tempered(shares[n : n + 1], ratio(shares, found, 0))[0])]
    other = sorted({*range(40)} - {*one})
    assert len(one) == len(other) == 20
    for part, rest in ((one, other), (other, one)):
        np.testing.assert_allclose(found[part], tempered(shares[part], temperature(shares[rest], labels[rest])))


def ratio(before, after, image):
    """Return the temperature between two rows of probabilities."""
    (a, b, *_), (c, d, *_) = np.log(before[image]), np.log(after[image])
    return (a - b) / (c - d)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match=r"shapes \(2, 3\) and \(3,\)"):
        temperature(np.ones((2, 3)) / 3, np.zeros(3, int))
    with pytest.raises(ValueError, match="3 classes must be 0 … 2.*Received: 0 … 3"):
        temperature(np.ones((2, 3)) / 3, [0, 3])
    with pytest.raises(ValueError, match="not finite"):
        temperature(np.full((2, 3), np.nan), [0, 1])


# --- models -------------------------------------------------------------------------------------------------------


MODELS = {
    "logits": tiny,
    "probabilities": lambda: tiny(activation="softmax"),
    "labels": lambda: _multi(tiny()),
    "sequence": lambda: keras.Sequential([tiny(include_top=False), keras.layers.Dense(3, name="own")]),
    "behind": lambda: keras.Sequential([tiny(), keras.layers.Softmax()]),
    "behind dropout": lambda: keras.Sequential([tiny(), keras.layers.Dropout(0.1), keras.layers.Activation("softmax")]),
    "operation": lambda: _functional(tiny()),
    "two heads": lambda: tiny(distillation_token=True, pooling="token+dist", activation="softmax"),
}


def _multi(model):
    anatomy.name_classes(model, ("a", "b", "c"), "multi")
    return model


def _functional(model):
    return keras.Model(model.input, keras.ops.softmax(model.output))


def spread_head(model):
    """Let the head say something, and too surely."""
    for head in ending(model).heads:
        head.kernel.assign(np.random.default_rng(2).normal(0, 0.7, head.kernel.shape))
        head.bias.assign(np.random.default_rng(3).normal(0, 1, head.bias.shape))
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_keeps_its_temperature(kind):
    model, (images, guesses) = spread_head(MODELS[kind]()), photos(48)
    before = anatomy.probabilities(model, model.predict(images, verbose=0))
    labels = np.where(np.arange(48) % 3 > 0, before.argmax(axis=1), guesses)  # it is mostly right
    labels = np.eye(3)[labels] if kind == "labels" else labels
    by = training.calibrate(model, (images, labels))
    assert by == pytest.approx(temperature(before, labels), rel=1e-3)
    after = anatomy.probabilities(model, model.predict(images, verbose=0))
    np.testing.assert_allclose(after, tempered(before, by, anatomy.task(model)), atol=2e-5)
    assert np.abs(after - before).max() > 1e-3
    assert (after.argmax(axis=1) == before.argmax(axis=1)).all()
    assert training.calibrate(model, (images, labels)) == pytest.approx(1, abs=1e-2)


def test_what_cannot_be_calibrated_is_said():
    images, labels = photos()
    with pytest.raises(ValueError, match="no head"):
        training.calibrate(tiny(include_top=False), (images, labels))
    numbers = tiny(classes=1)
    anatomy.name_classes(numbers, ("age",), "regression")
    with pytest.raises(ValueError, match="regression"):
        training.calibrate(numbers, (images, labels))
    with pytest.raises(ValueError, match="with labels"):
        training.calibrate(tiny(), images)
    with pytest.raises(ValueError, match="2 outputs"):
        training.calibrate(keras.Model((model := tiny()).input, [model.output, model.output]), (images, labels))
    low_rank = tiny()
    low_rank.get_layer("head").enable_lora(2)
    with pytest.raises(ValueError, match="merge_lora"):
        training.calibrate(low_rank, (images, labels))


def test_an_export_has_the_calibrated_probabilities(tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model, (images, labels) = spread_head(tiny()), photos()
    before = anatomy.probabilities(model, model.predict(images, verbose=0))
    by = training.calibrate(model, (images, labels))
    vit_keras.export(model, tmp_path / "a.onnx", preprocessing=False, check=False)
    session = runtime.InferenceSession(tmp_path / "a.onnx")
    (found,) = session.run(["probabilities"], {session.get_inputs()[0].name: images})
    np.testing.assert_allclose(found, tempered(before, by), atol=1e-4)
    assert np.abs(found - before).max() > 0.05

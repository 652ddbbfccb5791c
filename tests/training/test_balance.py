"""Classes of different sizes: the loss that leaves their frequency out, and where `finetune` uses it."""

import keras
import numpy as np
import pytest
from PIL import Image
from support import tiny_model

from vit_keras import training
from vit_keras.training.checks import class_weights
from vit_keras.training.losses import CrossEntropy

LOGITS = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
LABELS = np.array([0, 0, 0, 0, 1, 2])
COUNTS = np.array([40, 10, 10])


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("from_logits", [False, True])
def test_the_prior_is_added_to_the_logits(one_hot, from_logits):
    labels = np.eye(3)[LABELS] if one_hot else LABELS
    outputs = LOGITS if from_logits else np.exp(log_softmax(LOGITS))
    expected = -log_softmax(LOGITS + np.log([4 / 6, 1 / 6, 1 / 6]))[np.arange(6), LABELS].mean()
    loss = CrossEntropy(from_logits=from_logits, prior=COUNTS)
    assert float(loss(labels, outputs)) == pytest.approx(expected, rel=1e-5)
    assert float(CrossEntropy(from_logits)(labels, outputs)) != pytest.approx(expected, rel=1e-2)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert again.get_config() == loss.get_config()
    assert float(again(labels, outputs)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "said"), [({"prior": [1, 0]}, r"\[1.0, 0.0\]"), ({"prior": [1, 1], "binary": True}, "a binary cross")]
)
def test_a_prior_that_is_none_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        CrossEntropy(**options)


@pytest.fixture
def photos(tmp_path):
    for name, count in (("frequent", 9), ("rare", 3)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for n in range(count):
            Image.new("RGB", (20, 20), (20 * n, 90, 90)).save(tmp_path / "photos" / name / f"{n}.png")
    return tmp_path / "photos"


def finetune(photos, out, **options):
    settings = {"epochs": 1, "batch_size": 4, "image_size": 16, "mistakes": 0, "refit": False, "progress": False}
    settings |= options
    return training.finetune(photos, tiny_model(16), output=out, validation_split=0.34, **settings)


def test_finetune_balances_by_the_prior_of_the_images_that_it_learns_from(photos, tmp_path):
    result = finetune(photos, tmp_path / "out", balance="prior", metric="balanced_accuracy")
    assert result.model.loss.prior == [6.0, 2.0]
    assert {"val_accuracy", "val_balanced_accuracy"} <= {*result.history}


def test_ways_to_balance(photos, tmp_path, monkeypatch):
    seen = []

    def stop(self, *args, **options):
        seen.append((options["class_weight"], getattr(self.loss, "prior", None)))
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "fit", stop)
    for balance in (False, True, "weights", "prior"):
        with pytest.raises(KeyboardInterrupt):
            finetune(photos, tmp_path / str(balance), balance=balance)
    weights = class_weights(np.repeat([0, 1], [6, 2]))
    assert seen == [(None, None), (weights, None), (weights, None), (None, [6.0, 2.0])]
    with pytest.raises(ValueError, match="'prior'"):
        finetune(photos, tmp_path / "none", balance="priors")

"""ViT-B/16 at full size: train, save, export. Minutes, hence slow."""

import keras
import numpy as np
import pytest
from support import SHARED

from vit_keras import utils, vit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("tensorflow", reason="SavedModel is TensorFlow's"),
]


def pictures():
    """Real pictures where they are at hand, else noise."""
    paths = sorted((SHARED / "images").glob("*.jpg"))[:8]
    if paths:
        return vit.preprocess_inputs(np.stack([utils.read(path, 224) for path in paths]))
    return np.random.RandomState(0).uniform(-1, 1, size=(8, 224, 224, 3)).astype("float32")


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_b16_trains_round_trips_and_exports(tmp_path, policy):
    import tensorflow as tf

    images, labels = pictures(), np.arange(8) % 4
    model = vit.vit_b16(classes=4, pretrained=False, dtype=policy)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    losses = model.fit(images, labels, batch_size=4, epochs=3, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]

    expected = model.predict(images, verbose=0)
    assert expected.dtype == np.float32
    model.save(tmp_path / "b16.keras")
    again = keras.models.load_model(tmp_path / "b16.keras")
    np.testing.assert_array_equal(again.predict(images, verbose=0), expected)

    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    # The same graph; in half precision sums in another order move a logit by a few thousandths.
    np.testing.assert_allclose(saved.serve(images).numpy(), expected, atol=1e-4 if policy == "float32" else 0.02)

"""Training on two devices of one TensorFlow process gives what one device gives."""

import functools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT, tiny_model

from vit_keras import training

pytestmark = pytest.mark.only_on("tensorflow", reason="tf.distribute is TensorFlow's")

PROGRAM = """
import contextlib, json, sys
import keras, numpy as np, tensorflow as tf
import vit_keras
from vit_keras import training, vit, visualize

kind, devices = sys.argv[1], int(sys.argv[2])
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
scope = contextlib.nullcontext
if devices == 2 and kind == "one word":
    vit_keras.distribute("data", devices=["cpu:0", "cpu:1"])  # and no scope
elif devices == 2:
    scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope
rng = np.random.default_rng(0)
images, labels = rng.uniform(-1, 1, (24, 32, 32, 3)).astype("float32"), rng.integers(0, 3, 24)
with scope():
    keras.utils.set_random_seed(0)
    model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3, dropout=0.0)
    for number, weight in enumerate(model.weights):
        weight.assign(np.random.default_rng(number).normal(0, 0.2, weight.shape))
    if kind in ("clipped", "one word"):
        fields = {"optimizer": "sgd", "learning_rate": 0.5, "clip_norm": 0.01}
        recipe = training.recipe("finetune", **fields, dropout=0.0, stochastic_depth=0.0)
        recipe.compile(model, (images, labels), steps=6, batch_size=8)
    elif kind == "distilled":
        teacher = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
        teacher.get_layer("head").bias.assign([3.0, 0.0, -3.0])
        model = training.Distillation(model, teacher, alpha=0.9)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    else:
        model = training.MaskedPatchPrediction(model, seed=0)
        model.compile(keras.optimizers.SGD(0.1))
    history = model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history
weights = np.concatenate([np.ravel(weight.numpy()) for weight in model.trainable_weights])
if kind == "one word":
    more = [model.predict(images, batch_size=8, verbose=0), model.predict_on_batch(images[:4])]
    more += [model.evaluate(images, labels, batch_size=8, verbose=0), visualize.attention_map(model, images[:2]) / 1e7]
    weights = np.concatenate([weights, *map(np.ravel, more)])
print(json.dumps([history["loss"], weights.tolist()]))
"""


tiny = functools.partial(tiny_model, patch_size=16)


def trained(*arguments, program=PROGRAM):
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return map(np.array, json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clipped", "one word", "distilled"])
def test_two_devices_are_as_one(kind):
    (loss, weights), (loss_of_two, weights_of_two) = (trained(kind, devices) for devices in "12")
    np.testing.assert_allclose(loss_of_two, loss, rtol=1e-5)
    np.testing.assert_allclose(weights_of_two, weights, atol=1e-5)  # sums of float32 in another order, six steps


@pytest.mark.slow
def test_the_loss_of_masked_patches_is_not_doubled():
    (loss, _), (loss_of_two, _) = (trained("masked", devices) for devices in "12")
    np.testing.assert_allclose(loss_of_two, loss, rtol=0.3)  # the replicas mask other patches


CONTRAST = """
import json, sys
import keras, numpy as np, tensorflow as tf
from vit_keras import vit
from vit_keras.text import ImageText, TextConfig, build_text

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
batch = {"image": rng.uniform(-1, 1, (8, 16, 16, 3)).astype("float32"), "text": rng.integers(1, 8, (8, 4))}
batch["text"][:, -1] = 8
devices = int(sys.argv[1])
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]) if devices == 2 else tf.distribute.get_strategy()
with strategy.scope():
    keras.utils.set_random_seed(0)
    image = vit.build_model(16, 8, 1, 16, 2, "image", 32, classes=8, head_bias=False, dropout=0.0)
    sizes = {"vocab_size": 9, "context_length": 4, "num_layers": 1, "hidden_size": 16, "num_heads": 2, "mlp_dim": 32}
    text = build_text(TextConfig(**sizes, output_size=8))
    model = ImageText(image, text)
    for number, weight in enumerate(model.weights):
        weight.assign(np.random.default_rng(number).normal(0, 0.2, weight.shape))
    model.compile(keras.optimizers.SGD(0.1))
start, losses, changes = model.get_weights(), [], []
for part in np.split(np.arange(8), 3 - devices):  # a half each, on one device
    data = {name: values[part] for name, values in batch.items()}
    losses.append(model.evaluate(data, batch_size=8, verbose=0))
    model.fit(data, batch_size=8, verbose=0)
    changes.append(np.concatenate([np.ravel(now - old) for now, old in zip(model.get_weights(), start)]))
    model.set_weights(start)
print(json.dumps([np.mean(losses), np.mean(changes, axis=0).tolist()]))
"""


@pytest.mark.slow
def test_a_contrastive_step_of_two_devices_is_the_mean_of_their_halves():
    (loss, change), (loss_of_two, change_of_two) = (trained(devices, program=CONTRAST) for devices in "12")
    np.testing.assert_allclose(loss_of_two, loss, rtol=1e-5)
    np.testing.assert_allclose(change_of_two, change, atol=1e-6)  # a sum of float32 in another order


def test_what_keras_cannot_do_is_refused(monkeypatch):
    from vit_keras.backend import replicas

    monkeypatch.setattr(replicas, "count", lambda: 2)
    with pytest.raises(ValueError, match="accumulate=4 .*several devices"):
        training.recipe("finetune", accumulate=4).compile(keras.Sequential([keras.layers.Dense(2)]))


def test_a_recipe_compiles_a_model_under_the_strategy_that_the_model_was_made_under():
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    images, labels = np.zeros((4, 32, 32, 3), "float32"), np.arange(4) % 3
    with strategy.scope():
        model = tiny()
    finetune = training.recipe("finetune")
    finetune.compile(model)
    assert strategy.extended.variable_created_in_scope(model.optimizer.iterations.value)
    model.range_checked = True  # images of one color
    model.fit(images, labels, verbose=0, callbacks=finetune.callbacks)
    assert keras.ops.convert_to_numpy(model.optimizer.iterations) == 1


def test_what_a_recipe_adds_to_a_model_is_made_under_the_strategy_of_the_model():
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        adapted, unbuilt = tiny(), keras.Sequential([keras.layers.Dense(2)])
    training.recipe("lora").compile(adapted)
    training.recipe("finetune").compile(unbuilt, (np.zeros((4, 3), "float32"), np.arange(4) % 2))
    for model in (adapted, unbuilt):
        assert model.weights
        for variable in (*model.weights, *model.optimizer.variables):
            assert strategy.extended.variable_created_in_scope(variable.value), variable.path

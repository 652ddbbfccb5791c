"""Every kind of model on several devices, with batches that these divide and others: as on one device."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

KINDS = ("plain", "merged", "packed", "any size", "low rank", "distilled", "masked", "maps", "feature maps", "outputs")
ENGINES = ("data", "fsdp", "tensor")

PROGRAM = """
import json, sys
import keras, numpy as np
import vit_keras
from vit_keras import training, visualize, vit

DEVICES = {"one": None, "data": {}, "fsdp": {"min_size": 64}, "tensor": {"model_parallel": 2}}
random = np.random.default_rng(0)
IMAGES, LABELS = random.uniform(-1, 1, (8, 32, 32, 3)).astype("float32"), random.integers(0, 3, 8)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def model_of(image_size=32, **options):
    keras.utils.set_random_seed(0)
    model = vit.build_model(image_size, 16, 2, 32, 4, "tiny", 64, classes=3, **{"dropout": 0.0, **options})
    for number, weight in enumerate(model.weights):
        if "seed" not in weight.path:
            weight.assign(np.random.default_rng(number).normal(0, 0.2, weight.shape))
    return model

def trained(model, images, labels, student=None):
    yield "call", lambda: (student or model)(images)
    yield "predict", lambda: (student or model).predict(images, batch_size=len(images), verbose=0)
    model.compile(keras.optimizers.SGD(0.1), loss)
    yield "fit", lambda: model.fit(
        images, labels, batch_size=len(images), epochs=2, shuffle=False, verbose=0).history["loss"]
    yield "evaluate", lambda: model.evaluate(images, labels, batch_size=len(images), verbose=0)
    yield "weights", lambda: [np.ravel(weight).tolist() for weight in (student or model).get_weights()]

def low_rank(images, labels):
    model = model_of()
    training.add_lora(model, rank=2)
    return trained(model, images, labels)

def distilled(images, labels):
    student = model_of()
    return trained(training.Distillation(student, model_of(mlp_activation="relu"), alpha=0.5), images, labels, student)

def masked(images, labels):
    vit = model_of()
    model = training.MaskedAutoencoder(vit, decoder_depth=1, decoder_width=32, decoder_heads=2, seed=0)
    return (each for each in trained(model, images, labels, vit) if each[0] in ("fit", "evaluate", "weights"))

def packed(images, labels):
    model = vit_keras.pack(model_of(), tokens=12, images=2)
    pictures = [image[: 16 * (1 + n % 2)] for n, image in enumerate(images)]
    inputs = model.arrange(pictures, len(images)).inputs
    yield "call", lambda: model(inputs)
    yield "predict", lambda: model.predict_images(pictures, rows=len(images))
    model.compile(keras.optimizers.SGD(0.1), loss)
    yield "fit", lambda: model.fit(
        model.batches(pictures, labels, rows=len(images)), epochs=2, verbose=0).history["loss"]
    yield "weights", lambda: [np.ravel(weight).tolist() for weight in model.vit.get_weights()]

def maps(images, labels):
    model = model_of()
    yield "map", lambda: np.asarray(visualize.attention_map(model, images), "float64") / 1e7  # whole numbers
    yield "recording", lambda: visualize.record(model, images).attention

def feature_maps(images, labels):
    model = vit_keras.feature_maps(model_of(), [0, 1])
    yield "call", lambda: model(images)
    yield "predict", lambda: model.predict(images, batch_size=len(images), verbose=0)

def named_outputs(images, labels):
    features, model = keras.Input((32,)), model_of(include_top=False)
    outputs = {name: keras.layers.Dense(2, name=name)(features) for name in "ab"}
    head = keras.Model(features, outputs, name="head")
    model = keras.Model(model.inputs, head(model.output))
    yield "call", lambda: model(images)
    yield "predict", lambda: model.predict(images, batch_size=len(images), verbose=0)

KINDS = {
    "plain": lambda *data: trained(model_of(), *data),
    "merged": lambda *data: trained(model_of(merge_tokens=1), *data),
    "packed": packed,
    "any size": lambda images, labels: trained(
        model_of(None, position_grid=(2, 2)), images[:, :, :16], labels),
    "low rank": low_rank,
    "distilled": distilled,
    "masked": masked,
    "maps": maps,
    "feature maps": feature_maps,
    "outputs": named_outputs,
}

def numbers(kind, count):
    found = {}
    for name, compute in KINDS[kind](IMAGES[:count], LABELS[:count]):
        try:
            found[name] = np.concatenate([
                np.ravel(keras.ops.convert_to_numpy(x)) for x in keras.tree.flatten(compute())
            ])
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:300]
    return found

def difference(found, expected):
    if isinstance(found, str) or isinstance(expected, str) or found.shape != expected.shape:
        return f"{found} is not {expected}"
    return float(np.abs(found - expected).max(initial=0))

wrong, compared = [], 0
kinds, engines, counts = json.loads(sys.argv[1])
for kind in kinds:
    for count in counts:
        vit_keras.distribute(None)
        expected = numbers(kind, count)
        for engine in engines:
            vit_keras.distribute(engine, **DEVICES[engine])
            found = numbers(kind, count)
            assert found.keys() == expected.keys() and len(found) >= 2
            for name in expected:
                compared += 1
                far = difference(found[name], expected[name])
                if isinstance(far, str) or not far < 1e-5:
                    wrong.append([kind, engine, count, name, far])
print(json.dumps([compared, wrong]))
"""


def run(kinds, engines, counts, backend, **environment):
    """Run the program and check that nothing differs by more than 1e-5, of values of size 1."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([kinds, engines, counts])],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "KERAS_BACKEND": backend,
            **environment,
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-5000:]
    compared, wrong = json.loads(result.stdout.splitlines()[-1])
    assert not wrong, "\n".join(map(str, wrong))
    return compared


@pytest.mark.slow
@pytest.mark.only_on("jax", reason="its devices share one computation")
@pytest.mark.parametrize(("kind", "engine", "compared"), [("merged", "data", 5), ("masked", "tensor", 3)])
def test_a_batch_that_the_devices_do_not_divide(kind, engine, compared):
    assert run([kind], [engine], [3], "jax") == compared


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_model_is_as_on_one_device(kind):
    pytest.importorskip("jax")
    assert run([kind], ENGINES, [4, 3], "jax") >= 12

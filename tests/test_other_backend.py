"""A model that was saved while it trained on one backend trains on on another."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT

PROGRAM = """
import sys
import keras, numpy as np
import vit_keras
from vit_keras import training, vit

folder, first = sys.argv[1], sys.argv[2] == "first"
images = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32")
labels = np.arange(8) % 3
OPTIMIZERS = {
    "AdamW": lambda: keras.optimizers.AdamW(1e-2, epsilon=1e-3),
    "SGD": lambda: keras.optimizers.SGD(1e-2, momentum=0.9),
    "Lion": lambda: keras.optimizers.Lion(1e-3),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2, epsilon=1e-3)),
    "layerwise": lambda: training.LayerwiseAdamW(1e-2, layer_decay=0.5, epsilon=1e-3),
}
found = {}
for name, make in OPTIMIZERS.items():
    if first:
        keras.utils.set_random_seed(0)
        model = vit.build_model(16, 8, 1, 8, 2, "tiny", 16, classes=3, dropout=0.0)
        model.compile(make(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(images, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        model.save(f"{folder}/{name}.keras")
    else:
        model = vit_keras.load_model(f"{folder}/{name}.keras")
    found[f"{name} state"] = [keras.ops.convert_to_numpy(each).astype("float64") for each in model.optimizer.variables]
    model.fit(images, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
    found[f"{name} after"] = model.get_weights()
np.savez(f"{folder}/{sys.argv[2]}.npz", **{f"{k} {n:03}": x for k, v in found.items() for n, x in enumerate(v)})
"""


def run(backend, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the same in each process")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("torch", "jax", marks=pytest.mark.smoke),
        *(("torch", "tensorflow"), ("jax", "torch"), ("tensorflow", "torch")),
    ],
)
def test_training_goes_on_on_another_backend(one, other, tmp_path):
    """From an equal state, and to weights within 1e-5, which is the rounding of four steps of at most 1e-2.

    Lion takes the sign of numbers near 0, so its next weights are not compared.
    """
    for backend in (one, other):
        pytest.importorskip(backend)
    run(one, tmp_path, "first")
    run(other, tmp_path, "second")
    with np.load(tmp_path / "first.npz") as first, np.load(tmp_path / "second.npz") as second:
        assert first.files == second.files
        for name in first.files:
            if name.startswith("Lion after"):
                continue
            tolerance = 0 if " state " in name else 1e-5
            np.testing.assert_allclose(second[name], first[name], rtol=0, atol=tolerance, err_msg=name)

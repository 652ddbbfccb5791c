"""Several devices give what one gives; each holds its share; what an engine cannot do is refused with the reason."""

import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
from support import ROOT

import vit_keras
from vit_keras.backend import distribution
from vit_keras.backend.sharding import divided_axis


def run(program, *arguments, backend="jax", devices=8, **environment):
    """Run a program with so many simulated devices, and return what the last line that it prints says."""
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, **flags, "PYTHONPATH": path, "KERAS_BACKEND": backend, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-5000:]
    return json.loads(result.stdout.splitlines()[-1])


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("pipeline", {}, "how must be one of.*Received: 'pipeline'"),
        ("data", {"model_parallel": 2}, 'model_parallel=2 is for how="tensor"'),
        ("tensor", {"model_parallel": 2.0}, "model_parallel .*Received: 2.0"),
        ("fsdp", {"min_size": "x"}, "min_size .*Received: 'x'"),
        ("fsdp", {"min_size": -1}, "min_size .*Received: -1"),
    ],
)
def test_what_makes_no_sense_is_refused(how, options, message):
    with pytest.raises(ValueError, match=message):
        vit_keras.distribute(how, **options)


@pytest.mark.only_on("torch", reason="about PyTorch")
def test_pytorch_refers_to_what_works():
    with pytest.raises(NotImplementedError, match=r"torch.*DistributedDataParallel"):
        vit_keras.distribute("data")
    assert vit_keras.distribute(None) is None


@pytest.mark.only_on("tensorflow", reason="about TensorFlow")
def test_tensorflow_refuses_what_it_cannot_do(monkeypatch):
    with pytest.raises(NotImplementedError, match="KERAS_BACKEND=jax"):
        vit_keras.distribute("fsdp")
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": ["a:1", "b:1"]}}))
    with pytest.raises(NotImplementedError, match="2 workers.*20585"):
        vit_keras.distribute("data")


@pytest.mark.parametrize("devices", [1, np.int64(1), "CPU:0", ["CPU:0"], ("cpu:0",)])
def test_devices_by_number_and_by_name(devices):
    assert distribution._chosen(devices, ["cpu:0", "cpu:1"]) == ["cpu:0"]


@pytest.mark.only_on("jax", reason="about JAX")
@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("data", {"devices": 99}, "from 1 to"),
        ("data", {"devices": True}, "from 1 to.*Received: True"),
        ("data", {"devices": ["tpu:7"]}, r"some of \['cpu:0'.*Received: \['tpu:7'\]"),
        ("tensor", {"devices": 1, "model_parallel": 3}, "model_parallel .*Received: 3"),
    ],
)
def test_devices_that_are_not_there_are_refused(how, options, message):
    with pytest.raises(ValueError, match=message):
        vit_keras.distribute(how, **options)
    assert keras.distribution.distribution() is None


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((1280, 5120), 1), ((5120, 1280), 0), ((14, 14, 3, 1280), None), ((1001, 1280), 1), ((1001, 1283), None)],
)
def test_the_largest_axis_that_the_devices_divide(shape, axis):
    assert divided_axis("fsdp", "", shape, 8) == axis


@pytest.mark.parametrize(
    ("path", "shape", "axis"),
    [
        ("encoderblock_0/MultiHeadDotProductAttention_1/query/kernel", (64, 64), 1),
        ("encoderblock_0/MultiHeadDotProductAttention_1/query/bias", (64,), 0),
        ("encoderblock_0/MultiHeadDotProductAttention_1/out/kernel", (64, 64), 0),
        ("encoderblock_0/MultiHeadDotProductAttention_1/out/bias", (64,), None),
        ("encoderblock_0/MlpBlock_3/Dense_0/kernel", (64, 258), None),
        ("encoderblock_0/MlpBlock_3/Dense_1/kernel", (256, 64), 0),
        ("encoderblock_0/LayerNorm_0/gamma", (64,), None),
        ("head/kernel", (64, 1000), 0),
    ],
)
def test_columns_and_rows(path, shape, axis):
    assert divided_axis("tensor", path, shape, 4) == axis


# --- as one device ----------------------------------------------------------------------------------------------

MODEL = """
import json, os, sys
import keras, numpy as np
import vit_keras
from vit_keras import training, vit, visualize

def model_of(blocks=1, **options):
    keras.utils.set_random_seed(0)
    model = vit.build_model(32, 16, blocks, 32, 4, "tiny", 64, classes=3, **{"dropout": 0.0, **options})
    for number, weight in enumerate(model.weights):
        if "seed" not in weight.path:
            weight.assign(np.random.default_rng(number).normal(0, 0.2, weight.shape))
    return model

random = np.random.default_rng(0)
images, labels = random.uniform(-1, 1, (37, 32, 32, 3)).astype("float32"), random.integers(0, 3, 37)
"""

AS_ONE = (
    MODEL
    + """
how = sys.argv[1]
options = {"fsdp": {"min_size": 64}, "tensor": {"model_parallel": 4}}.get(how, {})
if how != "one":
    vit_keras.distribute(how, **options)
model = model_of()
plain = {"augmentation": None, "dropout": 0, "stochastic_depth": 0}
recipe = training.recipe("finetune", optimizer="sgd", learning_rate=0.1, **plain)
recipe.compile(model, (images, labels), batch_size=11, metrics=["accuracy"])
found = model.fit(  # batches of 11, 11, 11 and 4, which 8 devices do not divide
    images, labels, batch_size=11, epochs=5, shuffle=False, verbose=0,
    callbacks=recipe.callbacks, validation_data=(images[:13], labels[:13]),
).history
assert int(model.optimizer.iterations) == 20
found["evaluate"] = model.evaluate(images[:9], labels[:9], batch_size=4, verbose=0)
found["predict"] = model.predict(images, batch_size=11, verbose=0).tolist()
found["one image"] = model.predict(images[:1], verbose=0).tolist()
found["call"] = np.asarray(model(images[:5])).tolist()
found["map"] = (np.asarray(visualize.attention_map(model, images[:3]), "float64") / 1e7).tolist()  # of whole numbers
model.optimizer.begin(1)  # the training above has ended
found["batch"] = model.train_on_batch(images[:3], labels[:3])
found["weights"] = np.concatenate([np.ravel(weight) for weight in model.get_weights()]).tolist()
divided = [v.path for v in model.variables if any(v.value.sharding.spec)] if how != "one" else []
print(json.dumps([found, divided]))
"""
)


@pytest.fixture(scope="module")
def on_one_device():
    return run(AS_ONE, "one")[0]


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize(("how", "divided"), [("data", 0), ("fsdp", 10), ("tensor", 11)])
def test_eight_devices_are_as_one(how, divided, on_one_device):
    pytest.importorskip("jax")
    found, paths = run(AS_ONE, how)
    assert len(paths) == divided
    assert found.keys() == on_one_device.keys()
    for name, values in on_one_device.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5, err_msg=name)


OTHERS = (
    MODEL
    + """
kind, how = sys.argv[1:]
if how != "one":
    vit_keras.distribute(how, **({"min_size": 64} if how == "fsdp" else {}))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model = trained = model_of()
if kind == "low rank":
    training.add_lora(model, rank=2)
elif kind == "distilled":
    trained = training.Distillation(model, model_of(mlp_activation="relu"), alpha=0.5)
else:
    trained = training.MaskedAutoencoder(model, decoder_depth=1, decoder_width=16, decoder_heads=2, seed=0)
trained.compile(keras.optimizers.SGD(0.1), **({} if kind == "masked" else {"loss": loss}))
targets = [] if kind == "masked" else [labels]
found = trained.fit(images, *targets, batch_size=11, epochs=3, shuffle=False, verbose=0).history["loss"]
weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()]).tolist()
print(json.dumps([found, weights]))
"""
)


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize("kind", ["low rank", "distilled", "masked"])
def test_what_wraps_a_model_is_as_on_one_device(kind):
    pytest.importorskip("jax")
    one = run(OTHERS, kind, "one")
    for how in ("data", "fsdp"):
        for found, expected in zip(run(OTHERS, kind, how), one):
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=how)


# --- files ------------------------------------------------------------------------------------------------------


# --- machines ---------------------------------------------------------------------------------------------------


def begin(folder):
    program = [sys.executable, "-u", str(ROOT / "examples" / "two_machines.py"), "--folder", str(folder)]
    path = {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    return subprocess.Popen(program, env={**os.environ, **path}, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.any_backend
def test_a_killed_machine_changes_nothing(tmp_path):
    pytest.importorskip("jax")
    lines = {}
    for name in ("whole", "killed"):
        with begin(tmp_path / name) as running:
            lines[name] = []
            for line in running.stdout:
                lines[name].append(line)
                if name == "killed" and sum("machine 0" in each for each in lines[name]) == 2 and len(lines) == 2:
                    victim = int(re.findall(r"\d+", lines[name][0].partition("processes")[2])[os.getpid() % 2])
                    time.sleep(random.random())
                    with contextlib.suppress(ProcessLookupError):  # it was quicker
                        os.kill(victim, signal.SIGKILL)
                    lines["victim"] = []
        assert running.returncode == 0
    whole, killed = (np.load(tmp_path / name / "state.npz") for name in ("whole", "killed"))
    assert int(killed["epochs"]) == int(whole["epochs"]) == 6
    for name in whole.files:
        np.testing.assert_allclose(killed[name], whole[name], atol=1e-6, err_msg=name)
    for n in range(2):
        mine = [np.load(tmp_path / name / f"predictions-{n}.npy") for name in ("killed", "whole")]
        assert mine[0].shape == (48, 3)
        np.testing.assert_allclose(*mine, atol=1e-6)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def two_processes(process):
    """Call `process(rank, port)` for both at once, and return what each returns."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(process, (0, 1), [free_port()] * 2))


@pytest.mark.slow
@pytest.mark.any_backend
def test_the_loop_of_the_guide_is_as_one_process():
    pytest.importorskip("torch")
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    loop = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    loop += "\nimport json\nprint(json.dumps([p.detach().double().ravel().tolist() for p in model.parameters()]))\n"

    def process(rank, port, size=2):
        there = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return run(loop, backend="torch", **there)

    alone = process(0, free_port(), size=1)
    for found in two_processes(process):
        for values, expected in zip(found, alone):
            np.testing.assert_allclose(values, expected, atol=1e-5)

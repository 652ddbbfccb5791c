"""Weights are updated in few passes over memory, and to the values that Keras gives them."""

import contextlib
import sys

import keras
import numpy as np
import pytest
from support import one_at_a_time

from vit_keras import training, vit
from vit_keras.backend import updates

pytestmark = [pytest.mark.core, pytest.mark.only_on("torch", "tensorflow", reason="XLA joins the operations by itself")]

OPTIMIZERS = {
    "LayerwiseAdamW": training.LayerwiseAdamW,
    "Adam": lambda **options: training.fused(keras.optimizers.Adam(**options)),
    "AdamW": lambda **options: training.fused(keras.optimizers.AdamW(**options)),
}

OPTIONS = {
    "rate": {"learning_rate": 1e-2},
    "schedule": {"learning_rate": keras.optimizers.schedules.CosineDecay(1e-2, 5)},
    "betas": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-2},
    "average": {"use_ema": True, "ema_momentum": 0.5},
    "accumulated": {"gradient_accumulation_steps": 2},
    "decay": {"weight_decay": 0.1},
    "clipped": {"global_clipnorm": 0.5},
    "each clipped": {"clipnorm": 0.01},
    "scaled": {"loss_scale_factor": 8.0},
}


def model_of(dtype="float32"):
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(n, dtype=dtype) for n in (6, 3))])


def gradients_of(model, steps):
    """Random gradients, which make every moment of Adam other than 0 from the first step on."""
    random = np.random.default_rng(0)
    for _ in range(steps):
        values = [(random.normal(size=each.shape), each.dtype) for each in model.trainable_variables]
        yield [keras.ops.convert_to_tensor(value.astype("float32"), dtype) for value, dtype in values]


def values_after(optimizer, steps=4, **options):
    """The variables of a model and of its optimizer after some updates."""
    model = model_of(**options)
    for gradients in gradients_of(model, steps):
        optimizer.apply(gradients, model.trainable_variables)
    return [keras.ops.convert_to_numpy(each).astype("float32") for each in (*model.variables, *optimizer.variables)]


@pytest.fixture
def calls(monkeypatch):
    """A list that grows with each call of the backend's kernel."""
    seen = []
    if keras.backend.backend() == "torch":
        owner, name = sys.modules["torch.optim.adam"], "adam"
    else:
        import tensorflow as tf

        owner, name = tf.raw_ops, "ResourceApplyAdam"
    kernel = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: seen.append(1) or kernel(*args, **kwargs))
    return seen


@pytest.mark.parametrize(("options", "optimizer"), one_at_a_time(OPTIONS, OPTIMIZERS))
def test_updates_are_those_of_keras(optimizer, options, calls, monkeypatch):
    """To 3e-6, of values up to 4: the kernel divides and multiplies in another order than Keras."""
    make = OPTIMIZERS[optimizer]
    found = values_after(make(**OPTIONS[options]))
    assert calls
    calls.clear()
    monkeypatch.setattr(updates, "enabled", False)
    expected = values_after(make(**OPTIONS[options]))
    assert not calls and len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=3e-6)


@pytest.mark.only_on("torch", reason="TensorFlow updates one variable at a time")
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_kernel_that_fails_updates_nothing_twice(fails_at, monkeypatch):
    """What has updated no weight leaves the step to Keras; an error after the first weights is one."""
    adam, calls = sys.modules["torch.optim.adam"].adam, []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == fails_at:
            raise RuntimeError("no such kernel")
        return adam(*args, **kwargs)

    monkeypatch.setattr(sys.modules["torch.optim.adam"], "adam", failing)
    monkeypatch.setattr(updates, "enabled", True)
    model = vit.build_model(16, 8, 1, 8, 2, "tiny", 16, classes=3)
    optimizer, gradients = training.LayerwiseAdamW(1e-2, layer_decay=0.5), next(gradients_of(model, 1))
    with contextlib.nullcontext() if fails_at == 1 else pytest.raises(RuntimeError, match="no such kernel"):
        optimizer.apply(gradients, model.trainable_variables)
    assert updates.enabled is (fails_at == 2)


@pytest.mark.parametrize("case", [{"amsgrad": True}, {"dtype": "bfloat16"}, {"dtype": "float64"}], ids=str)
def test_keras_updates_what_the_kernel_does_not(case, calls):
    case = dict(case)
    values_after(OPTIMIZERS["Adam"](amsgrad=case.pop("amsgrad", False)), steps=1, **case)
    assert not calls


@pytest.mark.compiles_long
def test_a_model_trains_by_fit_as_with_updates_by_keras(calls, monkeypatch, tmp_path):
    """To 1e-5 of losses about 1; on TensorFlow in a compiled step, and with a user's layer around the ViT."""
    x, y = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32"), np.arange(8) % 3
    keras.utils.set_random_seed(1)
    backbone = vit.build_model(16, 8, 1, 16, 2, "tiny", 32, classes=3, dropout=0.0)
    keras.Sequential([backbone, keras.layers.Dense(3)]).save_weights(path := tmp_path / "first.weights.h5")
    losses = []
    for enabled in (True, False):
        monkeypatch.setattr(updates, "enabled", enabled)
        calls.clear()
        model = keras.Sequential([backbone, keras.layers.Dense(3)])
        model.load_weights(path)
        model.compile(OPTIMIZERS["Adam"](), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses.append(model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history["loss"])
        assert bool(calls) is enabled
    np.testing.assert_allclose(*losses, rtol=0, atol=1e-5)


def test_keras_still_updates_weights_by_a_dozen_operations():
    weights, optimizer = keras.Variable([1.0, 2.0]), keras.optimizers.Adam()
    optimizer.build([weights])
    if keras.backend.backend() == "torch":
        with sys.modules["torch"].autograd.profiler.profile() as profile:
            optimizer.apply([keras.ops.ones(2)])
        names = [event.name for event in profile.function_events]
    else:
        step = sys.modules["tensorflow"].function(lambda: optimizer.apply([keras.ops.ones(2)]))
        names = [operation.type for operation in step.get_concrete_function().graph.get_operations()]
    assert sum("foreach" in name or name in ("Mul", "AddV2", "Sub", "RealDiv", "Sqrt") for name in names) >= 8
    assert not any("Adam" in name or "adam" in name for name in names)

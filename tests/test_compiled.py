"""The obvious calls are the fast ones, and give what the slow ones give."""

import gc
import sys
import weakref

import keras
import numpy as np
import pytest

from vit_keras import layers, vit
from vit_keras.backend import attention as fused
from vit_keras.backend import backward
from vit_keras.layers import attention as attention_module
from vit_keras.layers import mlp

numpy = keras.ops.convert_to_numpy
BACKEND = keras.backend.backend()
only_tensorflow = pytest.mark.only_on("tensorflow", reason="what only TensorFlow needs")


def assert_close(found, expected):
    """Assert that arrays differ by rounding alone: 1e-5 of the largest number (float32, sums in another order)."""
    found, expected = map(numpy, (found, expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def tiny(image_size=32, **options):
    keras.utils.set_random_seed(1)
    options = {"dropout": 0.0, **options}
    model = vit.build_model(image_size, 8, 2, 64, 2, "tiny", 128, classes=10, **options)
    model.get_layer("head").set_weights([np.random.default_rng(1).normal(size=(64, 10)), np.zeros(10)])
    return model


def images(batch, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (batch, 32, 32, 3)).astype("float32")


def slowly(model, x):
    """The model layer by layer, as Keras would run it."""
    x = keras.ops.convert_to_tensor(x)
    for layer in model.layers[1:]:
        x = layer(x)
    return numpy(x)


@pytest.mark.core
@pytest.mark.parametrize("batch", [1, 3])
def test_a_plain_call_gives_what_the_layers_give(batch):
    model = tiny()
    expected = slowly(model, images(batch))
    assert_close(numpy(model(images(batch))), expected)
    assert_close(numpy(model(keras.ops.convert_to_tensor(images(batch)))), expected)
    assert_close(model.predict(images(batch), verbose=0), expected)


@pytest.mark.core
def test_run_eagerly_means_it():
    model, seen = tiny(), []
    model.run_eagerly = True
    block = model.get_layer("Transformer_encoderblock_0")
    call = block.call
    block.call = lambda *args, **kwargs: seen.append(1) or call(*args, **kwargs)
    model(images(1))
    model(images(1))
    assert len(seen) == 2


@pytest.mark.core
def test_a_model_that_is_called_can_be_forgotten():
    model = tiny()
    model(images(1))
    reference = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert reference() is None


@pytest.mark.core
def test_a_call_inside_another_model_is_compiled_with_it():
    outer = keras.Sequential([keras.Input((32, 32, 3)), tiny(), keras.layers.Dense(2)])
    assert_close(numpy(outer(images(2))), outer.predict(images(2), verbose=0))


@only_tensorflow
def test_gradients_go_through_a_plain_call():
    import tensorflow as tf

    model, x = tiny(), tf.constant(images(2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x) ** 2)
    gradients = tape.gradient(loss, [x, *model.trainable_variables])
    step = 1e-2
    direction = gradients[0] / tf.norm(gradients[0])
    above, below = (tf.reduce_sum(model(x + s * step * direction) ** 2) for s in (1, -1))
    # A central difference of float32: an error of step² and of rounding / step.
    np.testing.assert_allclose((above - below) / (2 * step), tf.norm(gradients[0]), rtol=1e-2)
    assert all(g is not None for g in gradients)


# ------------------------------------------------------------------ training --


def gradients(model, x, y):
    """The change of all weights by a step of plain gradient descent."""
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(x, y)
    return [a - b for a, b in zip(before, model.get_weights())]


@pytest.mark.core
@pytest.mark.compiles_long
def test_remat_changes_no_gradient():
    expected = gradients(tiny(), images(4), np.arange(4))
    assert max(abs(g).max() for g in expected) > 0.1
    for gradient, reference in zip(gradients(tiny(remat=True), images(4), np.arange(4)), expected):
        assert_close(gradient, reference)


@pytest.mark.core
@pytest.mark.compiles_long
def test_what_is_computed_again_changes_no_gradient(monkeypatch):
    changes = gradients(tiny(), images(4), np.arange(4))
    monkeypatch.setattr(mlp, "has_one_pass", lambda: False)
    monkeypatch.setattr(backward, "has_one_pass", lambda: False)
    for module in (backward, fused, mlp):
        monkeypatch.setattr(module, "recomputed", lambda function: function)
    for gradient, reference in zip(changes, gradients(tiny(), images(4), np.arange(4))):
        assert_close(gradient, reference)


@pytest.mark.parametrize("rates", [{"dropout": 0.1}, {"attention_dropout": 0.1}])
def test_remat_is_refused_with_dropout(rates):
    with pytest.raises(ValueError, match="remat=True.*dropout=0.1"):
        tiny(remat=True, **rates)
    with pytest.raises(ValueError, match="remat=True.*dropout=0.1"):
        layers.TransformerBlock(2, 8, remat=True, **rates)


# ----------------------------------------------------------------- attention --


@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.parametrize("limit", [4 * 2 * 17, 4 * 2 * 17 * 5])  # bytes of one row of scores, and of five
def test_attention_in_chunks_is_attention(monkeypatch, limit):
    monkeypatch.setattr(attention_module, "has_fused_attention", lambda: False)
    expected, expected_gradients = slowly(tiny(), images(2)), gradients(tiny(), images(2), np.arange(2))
    monkeypatch.setattr(attention_module, "MAX_SCORE_BYTES", limit)
    calls = []
    attention = layers.MultiHeadSelfAttention.attention
    monkeypatch.setattr(
        layers.MultiHeadSelfAttention,
        "attention",
        lambda self, query, *args, **kwargs: calls.append(query.shape[2]) or attention(self, query, *args, **kwargs),
    )
    limit_of_float32 = 1e-5 * np.abs(expected).max()  # sums in another order; more threads, other orders
    np.testing.assert_allclose(slowly(tiny(), images(2)), expected, rtol=0, atol=limit_of_float32)
    assert set(calls) == {limit // (4 * 2 * 17)} or max(calls) < 17
    for gradient, reference in zip(gradients(tiny(), images(2), np.arange(2)), expected_gradients):
        np.testing.assert_allclose(gradient, reference, rtol=0, atol=1e-5 * max(1, np.abs(reference).max()))  # likewise


@pytest.mark.core
@pytest.mark.only_on("jax", reason="it asks XLA what a compiled program allocates")
def test_layers_that_attend_in_chunks_share_their_memory(monkeypatch):
    monkeypatch.setattr(attention_module, "MAX_SCORE_BYTES", 4 * 2 * 17 * 5)
    held = []
    for depth in (2, 6):
        model = vit.build_model(32, 8, depth, 64, 2, "chunked", 32, classes=10, dropout=0.0)
        variables = [[v.value for v in kind] for kind in (model.trainable_variables, model.non_trainable_variables)]
        predict = sys.modules["jax"].jit(lambda *x, model=model: model.stateless_call(*x)[0])
        program = predict.lower(*variables, images(8)).compile()
        held.append(program.memory_analysis().temp_size_in_bytes)
    tokens = 4 * 8 * 17 * 64  # bytes; one such array more for each layer is what this would find
    assert held[1] - held[0] < tokens


@only_tensorflow
@pytest.mark.parametrize("activation, fused", [("gelu_tanh", b"GeluApproximate"), ("gelu", b"GeluExact")])
def test_tensorflow_fuses_the_activation_into_the_product(activation, fused):
    import tensorflow as tf
    from tensorflow.python.eager import context

    if not _onednn():
        pytest.skip("TensorFlow fuses the GELU only with oneDNN, which it does not use on this processor")
    model = tiny(mlp_activation=activation)
    context.context().enable_run_metadata()
    model(images(1))
    graphs = context.context().export_run_metadata().function_graphs
    context.context().disable_run_metadata()
    operations = [n for g in graphs for n in g.post_optimization_graph.node if n.op.endswith("FusedMatMul")]
    assert sum(fused in n.attr["fused_ops"].list.s for n in operations) == 2
    assert tf.executing_eagerly()


def _onednn():
    from tensorflow.python.framework import test_util

    return test_util.IsMklEnabled()

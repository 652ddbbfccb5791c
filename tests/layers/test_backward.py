"""What lies between two products: in one pass, computed again and as Keras computes it, it is equal."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

from vit_keras import layers
from vit_keras.backend import backward
from vit_keras.layers import _base, mlp

only_tensorflow = pytest.mark.only_on("tensorflow", reason="only TensorFlow computes in one pass")

FUNCTIONS = {
    **{name: (mlp._activate, (name,), 1) for name in sorted(mlp._PURE)},
    "gated silu": (mlp._activate, ("silu",), 2),
    "gated gelu": (mlp._activate, ("gelu",), 2),
    "normalize": (backward.layer_norm, (1e-3,), 3),
}
QUICK = ["gelu_tanh", "gated silu", "normalize"]
"""A function of one array, of two, and one with weights: XLA takes a second to compile each, in each order and type."""
SOME = [pytest.param(QUICK, id="some"), pytest.param([*FUNCTIONS], id="all", marks=pytest.mark.slow)]


def arguments(count, dtype="float32", shape=(6, 9)):
    generator = np.random.default_rng(count)
    shapes = [shape] * 2 if count == 2 else [shape, *[shape[-1:]] * (count - 1)]
    return [ops.cast(2 * generator.normal(size=s), dtype) for s in shapes]


def gradients(function, tensors, order=1):
    """The sum of squares of a function, and its derivatives: of order 2, those of the gradient's sum of squares."""
    import tensorflow as tf

    with tf.GradientTape() as outer:
        outer.watch(tensors)
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = tf.reduce_sum(tf.square(tf.cast(function(*tensors), "float32")))
        first = tape.gradient(result, tensors)
        total = tf.add_n([tf.reduce_sum(tf.square(tf.cast(x, "float32"))) for x in first])
    return [result, *first] if order == 1 else outer.gradient(total, tensors)


def assert_equal(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        one, other = (np.asarray(ops.cast(x, "float64")) for x in (one, other))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(1, np.abs(other).max()))


@pytest.mark.core
@only_tensorflow
@pytest.mark.parametrize("names", SOME)
@pytest.mark.parametrize("order", [1, 2])
def test_values_and_derivatives_in_one_pass(order, names):
    # float32 has 24 bits; XLA orders the same operations otherwise, and a second derivative chains twice as many.
    for function, constants, count in map(FUNCTIONS.get, names):
        tensors = arguments(count)
        assert backward.has_one_pass()
        found = gradients(backward.in_one_pass(function, *constants), tensors, order)
        expected = gradients(lambda *x, f=function, c=constants: f(*c, *x), tensors, order)
        assert_equal(found, expected, 2e-6 if order == 1 else 2e-5)


@only_tensorflow
@pytest.mark.parametrize("names", SOME)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float16", 2e-3), ("bfloat16", 1e-2)])
def test_other_types_in_one_pass(dtype, tolerance, names):
    # Half precision is computed in float32: the value and the gradient are rounded once each, to 11 or 8 bits.
    for function, constants, count in map(FUNCTIONS.get, names):
        tensors, passes = arguments(count, dtype), backward.in_one_pass(function, *constants)
        wide = tensors if dtype == "float64" else [ops.cast(each, "float32") for each in tensors]
        assert passes(*tensors).dtype == tensors[0].dtype
        found = gradients(passes, tensors)
        assert {each.dtype for each in found[1:]} == {tensors[0].dtype}
        expected = gradients(lambda *x, f=function, c=constants: f(*c, *x), wide)
        assert_equal(found, expected, tolerance)


@pytest.mark.core
def test_layer_normalization_is_that_of_keras():
    for epsilon, policy in itertools.product((1e-6, 1e-2), ("float32", "mixed_float16")):
        own = _base.LayerNormalization(epsilon=epsilon, dtype=policy)
        other = keras.layers.LayerNormalization(epsilon=epsilon, dtype=policy)
        (x,) = arguments(1, shape=(4, 5, 16))
        for layer in (own, other):
            layer.build(x.shape)
        values = [np.random.default_rng(0).normal(size=16) for _ in own.weights]
        own.set_weights(values)
        other.set_weights(values)
        expected = ops.convert_to_numpy(other(x)).astype("float32")
        for training in (False, True):
            found = own(x, training=training)
            assert keras.backend.standardize_dtype(found.dtype) == own.compute_dtype
            # Keras adds in another order: two bits of float32, or half a bit of float16.
            np.testing.assert_allclose(
                ops.convert_to_numpy(found).astype("float32"), expected, atol=1e-5 if policy == "float32" else 1e-2
            )


def step(**compiled):
    """The weights of a tiny model after a training step."""
    from vit_keras import vit

    keras.utils.set_random_seed(1)
    model = vit.build_model(32, 8, 1, 64, 2, "tiny", 128, classes=10, dropout=0.0)
    model.compile(keras.optimizers.SGD(1.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True), **compiled)
    images = np.random.default_rng(0).uniform(-1, 1, (4, 32, 32, 3)).astype("float32")
    model.train_on_batch(images, np.arange(4))
    return model.get_weights()


@only_tensorflow
@pytest.mark.parametrize("inside_of_xla", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_training_step_is_the_same_without_it(monkeypatch, inside_of_xla):
    found = step(jit_compile=inside_of_xla)
    assert inside_of_xla or backward._halves.cache_info().currsize >= 2
    monkeypatch.setattr(backward, "has_one_pass", lambda: False)
    monkeypatch.setattr(mlp, "has_one_pass", lambda: False)
    assert_equal(found, step(), 1e-5)


@only_tensorflow
def test_without_xla_the_layers_train_as_before(monkeypatch, caplog):
    import tensorflow as tf

    def fails(*args, **kwargs):
        raise tf.errors.UnimplementedError(None, None, "there is no XLA")

    with monkeypatch.context() as patch:
        patch.setattr(tf, "function", fails)
        backward.has_one_pass.cache_clear()
        with caplog.at_level("INFO", "vit_keras"):
            assert not backward.has_one_pass()
    assert "there is no XLA" in caplog.text
    try:
        step()
    finally:
        backward.has_one_pass.cache_clear()


@only_tensorflow
def test_predictions_hold_no_call_of_xla():
    import tensorflow as tf

    block = layers.TransformerBlock(num_heads=2, mlp_dim=8)
    block.build((None, 5, 4))
    graph = tf.function(lambda x: block(x, training=False)).get_concrete_function(tf.TensorSpec((None, 5, 4))).graph
    assert not [node for node in graph.as_graph_def().library.function if "_XlaMustCompile" in node.attr]
    assert not [node for node in graph.as_graph_def().node if "_XlaMustCompile" in node.attr]

"""Each layer alone, on every backend."""

import math

import keras
import numpy as np
import pytest

from vit_keras import layers, vit
from vit_keras.layers import mlp
from vit_keras.layers.tokens import PatchMap
from vit_keras.positions import resize_position_embeddings

pytestmark = pytest.mark.core(
    first=(
        "test_build_makes_all_weights",
        "test_dropout_acts_in_training_only",
        "test_attention_is_the_papers",
        "test_softmax_of_half_precision_is_computed_in_float32",
        "test_a_model_with_it_loads_in_safe_mode",
    )
)

TOKENS = np.random.RandomState(0).normal(size=(2, 17, 32)).astype("float32")

LAYERS = {
    "ClassToken": lambda **k: layers.ClassToken(**k),
    "AddPositionEmbs": lambda **k: layers.AddPositionEmbs(grid=(4, 4), dropout=0.2, **k),
    "MultiHeadSelfAttention": lambda **k: layers.MultiHeadSelfAttention(num_heads=4, dropout=0.2, **k),
    "wide heads": lambda **k: layers.MultiHeadSelfAttention(num_heads=4, dim_head=16, **k),
    "MlpBlock": lambda **k: layers.MlpBlock(mlp_dim=64, dropout=0.2, **k),
    "exact MlpBlock": lambda **k: layers.MlpBlock(mlp_dim=64, activation="gelu", **k),
    "TransformerBlock": lambda **k: layers.TransformerBlock(num_heads=4, mlp_dim=64, dropout=0.2, **k),
    "narrow TransformerBlock": lambda **k: layers.TransformerBlock(
        4, 64, dim_head=5, attention_dropout=0.1, mlp_activation="relu", epsilon=1e-3, **k
    ),
    "ExtractToken": lambda **k: layers.ExtractToken(**k),
}
WEIGHTS = {
    "ClassToken": 1,
    "AddPositionEmbs": 1,
    "MultiHeadSelfAttention": 8,
    "wide heads": 8,
    "MlpBlock": 4,
    "exact MlpBlock": 4,
    "TransformerBlock": 16,
    "narrow TransformerBlock": 16,
    "ExtractToken": 0,
}


@pytest.fixture(params=LAYERS)
def name(request):
    return request.param


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def randomise(layer):
    random = np.random.RandomState(1)
    layer.set_weights([random.normal(size=w.shape, scale=0.3).astype("float32") for w in layer.get_weights()])


def test_build_makes_all_weights(name):
    layer = LAYERS[name]()
    layer.build(TOKENS.shape)
    assert len(layer.weights) == WEIGHTS[name]
    layer(TOKENS)
    assert len(layer.weights) == WEIGHTS[name]


def test_output_shape_is_known_before_the_call(name):
    layer = LAYERS[name]()
    symbolic = layer(keras.Input((17, 32)))
    assert tuple(symbolic.shape[1:]) == tuple(layer(TOKENS).shape[1:])
    assert tuple(layer.compute_output_shape((None, 17, 32))) == tuple(symbolic.shape)


@pytest.mark.compiles_long
def test_config_round_trip_gives_the_same_layer(name):
    layer = LAYERS[name](name="it")
    layer.build(TOKENS.shape)
    randomise(layer)
    again = type(layer).from_config(layer.get_config())
    again.build(TOKENS.shape)
    again.set_weights(layer.get_weights())
    assert again.get_config() == layer.get_config()
    np.testing.assert_array_equal(numpy(again(TOKENS)), numpy(layer(TOKENS)))


def test_a_model_with_it_loads_in_safe_mode(name, tmp_path):
    inputs = keras.Input((17, 32))
    model = keras.Model(inputs, LAYERS[name]()(inputs))
    randomise(model)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(numpy(again(TOKENS)), numpy(model(TOKENS)))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64", "bfloat16"])
def test_dtype_policy_is_honoured(name, policy):
    layer = LAYERS[name](dtype=policy)
    layer.build(TOKENS.shape)
    policy = keras.dtype_policies.get(policy)
    if keras.backend.backend() == "jax" and policy.compute_dtype == "float64":
        pytest.skip("JAX has float64 only when it is switched on for the whole process")
    assert {w.dtype for w in layer.weights} <= {policy.variable_dtype}
    output = layer(TOKENS)
    assert keras.backend.standardize_dtype(output.dtype) == policy.compute_dtype
    symbolic = LAYERS[name](dtype=policy)(keras.Input((17, 32)))
    assert symbolic.dtype == policy.compute_dtype


def test_half_precision_stays_near_float32(name):
    layer = LAYERS[name]()
    layer.build(TOKENS.shape)
    randomise(layer)
    half = LAYERS[name](dtype="mixed_float16")
    half.build(TOKENS.shape)
    half.set_weights(layer.get_weights())
    expected = numpy(layer(TOKENS))
    # float16 has 11 bits; a block chains a few dozen roundings of values up to the maximum.
    np.testing.assert_allclose(numpy(half(TOKENS)).astype("float32"), expected, atol=0.02 * np.abs(expected).max())


def test_dropout_acts_in_training_only(name):
    layer = LAYERS[name]()
    layer.build(TOKENS.shape)
    randomise(layer)
    rates = [part.rate for part in layer._flatten_layers() if isinstance(part, keras.layers.Dropout)]
    if not any(rates):
        pytest.skip("this one has no dropout")
    still, again, moved = (numpy(layer(TOKENS, training=t)) for t in (False, False, True))
    np.testing.assert_array_equal(still, again)
    assert not np.array_equal(still, moved)


def reference_attention(layer, x):
    """Multi-head attention written out in float64."""
    (wq, bq), (wk, bk), (wv, bv), (wo, bo) = (
        [w.astype("float64") for w in dense.get_weights()]
        for dense in (layer.query_dense, layer.key_dense, layer.value_dense, layer.combine_heads)
    )
    heads, width = layer.num_heads, layer.projection_dim
    output = np.zeros(x.shape)
    scores = []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        q, k, v = x @ wq[:, part] + bq[part], x @ wk[:, part] + bk[part], x @ wv[:, part] + bv[part]
        a = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(width))
        a /= a.sum(-1, keepdims=True)
        scores.append(a)
        output += a @ v @ wo[part]
    return output + bo, np.stack(scores, axis=1)


@pytest.mark.parametrize("dim_head", [None, 5])
def test_attention_is_the_papers(dim_head):
    layer = layers.MultiHeadSelfAttention(4, dim_head)
    layer.build(TOKENS.shape)
    randomise(layer)
    output, scores = layer(TOKENS, return_attention_scores=True)
    expected_output, expected_scores = reference_attention(layer, TOKENS.astype("float64"))
    # float32 against float64: sums of 32 products, seven digits each.
    np.testing.assert_allclose(numpy(output), expected_output, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numpy(scores), expected_scores, rtol=1e-4, atol=1e-6)
    # Without scores it may be another kernel: the order of the sums in float32 again.
    np.testing.assert_allclose(numpy(layer(TOKENS)), expected_output, rtol=1e-4, atol=1e-5)


def test_the_scores_are_the_ones_that_multiply_the_values():
    layer = layers.MultiHeadSelfAttention(4, dropout=0.5)
    layer.build(TOKENS.shape)
    randomise(layer)
    output, scores = layer(TOKENS, training=True, return_attention_scores=True)
    assert (numpy(scores) == 0).any()  # dropped
    values = numpy(layer.separate_heads(layer.value_dense(TOKENS)))
    mixed = (numpy(scores).astype("float64") @ values).transpose(0, 2, 1, 3).reshape(2, 17, 32)
    kernel, bias = layer.combine_heads.get_weights()
    np.testing.assert_allclose(numpy(output), mixed @ kernel + bias, rtol=1e-4, atol=1e-5)  # float32, as above


def test_softmax_of_half_precision_is_computed_in_float32():
    layer = layers.MultiHeadSelfAttention(1, dtype="mixed_float16")
    layer.build((1, 4096, 8))
    layer.set_weights([np.zeros(w.shape, "float32") for w in layer.get_weights()])
    _, scores = layer(np.zeros((1, 4096, 8), "float32"), return_attention_scores=True)
    assert keras.backend.standardize_dtype(scores.dtype) == "float16"
    # 4096 equal scores: summed in float16 they would stick at 2048 and give twice as much.
    np.testing.assert_allclose(numpy(scores).astype("float32"), 1 / 4096, rtol=1e-3)


def test_a_block_returns_scores_only_when_asked():
    inputs = keras.Input((17, 32))
    assert isinstance(layers.TransformerBlock(num_heads=4, mlp_dim=64)(inputs), keras.KerasTensor)
    block = layers.TransformerBlock(num_heads=4, mlp_dim=64)
    output, scores = block(inputs, return_attention_scores=True)
    assert tuple(output.shape) == (None, 17, 32)
    assert tuple(scores.shape) == (None, 4, 17, 17)
    model = keras.Model(inputs, [output, scores])
    assert tuple(model(TOKENS)[1].shape) == (2, 4, 17, 17)


def test_a_block_is_prenorm_with_two_residuals():
    block = layers.TransformerBlock(num_heads=4, mlp_dim=64)
    block.build(TOKENS.shape)
    randomise(block)
    x = TOKENS + numpy(block.att(block.layernorm1(TOKENS)))
    x = x + numpy(block.mlpblock(block.layernorm2(x)))
    np.testing.assert_allclose(numpy(block(TOKENS)), x, rtol=1e-5, atol=1e-5)  # the same float32 operations


def test_gelus_are_the_textbook_ones():
    x = np.linspace(-6, 6, 101).astype("float32")
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    # float32 rounding of values up to 6; the two functions differ by 4.7e-4.
    np.testing.assert_allclose(numpy(mlp.activation_function("gelu")(keras.ops.convert_to_tensor(x))), exact, atol=2e-6)
    np.testing.assert_allclose(
        numpy(mlp.activation_function("gelu_tanh")(keras.ops.convert_to_tensor(x))), tanh, atol=2e-6
    )


def test_initial_weights_are_the_references():
    block = layers.TransformerBlock(num_heads=4, mlp_dim=256)
    block.build((None, 17, 128))
    kernel = numpy(block.att.query_dense.kernel)
    assert np.abs(kernel).max() <= np.sqrt(6 / 256)  # Glorot-uniform over (128, 128)
    assert np.abs(kernel).max() > 0.9 * np.sqrt(6 / 256)
    bias = numpy(block.mlpblock.layers[0].bias)
    assert 0 < np.abs(bias).max() < 1e-5
    positions = layers.AddPositionEmbs()
    positions.build((None, 197, 64))
    assert 0.019 < numpy(positions.pe).std() < 0.021  # 12,608 values of standard deviation 0.02
    token = layers.ClassToken()
    token.build((None, 196, 64))
    assert not numpy(token.cls).any()


@pytest.mark.parametrize(
    ("layer", "shape", "message"),
    [
        (layers.MultiHeadSelfAttention(num_heads=5), (None, 17, 32), "32 .*number of heads = 5"),
        (layers.ClassToken(), (None, 4, 4, 32), "takes tokens of shape"),
        (layers.TransformerBlock(2, 8), (None, 17), "takes tokens of shape"),
        (layers.AddPositionEmbs(), (None, None, 32), "fixed number of tokens"),
        (layers.MlpBlock(8), (None, 17, None), "fixed hidden size"),
        (PatchMap(), (None, 16, 8), "grid="),
    ],
)
def test_wrong_shapes_are_named(layer, shape, message):
    with pytest.raises(ValueError, match=message):
        layer(keras.KerasTensor(shape))


def test_a_width_without_sines_is_refused_before_a_model_is_built():
    with pytest.raises(ValueError, match="multiple of 4.*30"):
        layers.AddSinCosPositionEmbs()(keras.KerasTensor((None, 16, 30)), patches=keras.KerasTensor((None, 4, 4, 30)))


def test_positions_without_a_grid_are_those_of_a_square():
    positions = layers.AddPositionEmbs()
    positions.build((None, 1 + 4 * 4, 8))
    tokens, patches = np.zeros((1, 1 + 2 * 3, 8), "float32"), np.zeros((1, 2, 3, 8), "float32")
    expected = resize_position_embeddings(numpy(positions.pe), (2, 3))
    np.testing.assert_allclose(numpy(positions(tokens, patches=patches)), expected, rtol=1e-5, atol=1e-7)
    positions = layers.AddPositionEmbs(prefix_tokens=2)
    positions.build((None, 2 + 4 * 4, 8))
    assert positions.patch_grid == (4, 4)
    positions = layers.AddPositionEmbs(name="table")
    positions.build((None, 13, 8))
    with pytest.raises(ValueError, match="13 rows .*grid="):
        positions(tokens, patches=patches)


def test_an_unknown_activation_is_refused_at_once():
    with pytest.raises(ValueError, match="gello"):
        layers.MlpBlock(8, activation="gello")


def test_a_tap_sees_and_replaces_what_any_layer_takes_and_returns():
    model, seen = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2), []
    head, images = model.get_layer("head"), np.random.RandomState(1).uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    randomise(model)
    expected = keras.ops.convert_to_numpy(model(images))  # compiled, which a tap must not use

    def twice(layer, name, tensor):
        seen.append(f"{layer.name} {name}")
        return tensor * 2 if name == "output" else tensor

    with layers.tap(twice, [head]):
        with layers.tap(twice, [head]):
            found = keras.ops.convert_to_numpy(model(images))
        model(images)
    assert seen == ["head input", "head input", "head output", "head output", "head input", "head output"]
    np.testing.assert_allclose(found, 4 * expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(model(images)), expected)


@pytest.mark.compiles_long
def test_gradients_reach_every_weight():
    inputs = keras.Input((16, 32))
    x = layers.AddPositionEmbs()(layers.ClassToken()(inputs))
    x = layers.ExtractToken()(layers.TransformerBlock(4, 64, 0.1)(x))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    randomise(model)
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.fit(TOKENS[:, 1:], np.ones((2, 1)), verbose=0)
    moved = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights())]
    # The bias of the keys shifts all scores of a row alike, which the softmax does not see.
    assert all(m for m, v in zip(moved, model.weights) if not v.path.endswith("key/bias"))

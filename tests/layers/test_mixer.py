"""The block of an MLP-Mixer: against Google's outputs, and as a Keras layer."""

import json

import keras
import make_google_npz
import numpy as np
import pytest
from support import DATA

from vit_keras.layers import mixer

pytestmark = pytest.mark.core(first=("test_a_whole_mixer_gives_the_outputs_of_the_reference",))

TOKENS = np.random.RandomState(0).normal(size=(2, 9, 32)).astype("float32")

BLOCKS = {
    "MixerBlock": lambda **k: mixer.MixerBlock(16, 64, **k),
    "other MixerBlock": lambda **k: mixer.MixerBlock(16, 64, dropout=0.2, activation="gelu", epsilon=1e-3, **k),
}


@pytest.fixture(params=BLOCKS)
def block(request):
    return BLOCKS[request.param](name="it")


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def whole_mixer(config, size, classes):
    inputs = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(config["width"], config["patch"], config["patch"], name="stem")(inputs)
    x = keras.layers.Reshape((-1, config["width"]))(x)
    for n in range(config["depth"]):
        x = mixer.MixerBlock(config["tokens_mlp_dim"], config["channels_mlp_dim"], name=f"MixerBlock_{n}")(x)
    encoded = keras.layers.LayerNormalization(epsilon=1e-6, name="pre_head_layer_norm")(x)
    x = keras.layers.GlobalAveragePooling1D()(encoded)
    return keras.Model(inputs, [encoded, keras.layers.Dense(classes, name="head")(x)])


def test_a_whole_mixer_gives_the_outputs_of_the_reference():
    golden = np.load(DATA / "Mixer-mu_16.npz")
    meta = json.loads(str(golden["meta"]))
    weights = make_google_npz.make(meta["variant"], seed=meta["seed"], image_size=meta["size"], classes=meta["classes"])
    model = whole_mixer(meta["config"], meta["size"], meta["classes"])
    variables = {v.path.replace("/gamma", "/scale").replace("/beta", "/bias"): v for v in model.variables}
    assert set(variables) == set(weights)
    for name, variable in variables.items():
        variable.assign(weights[name])

    outputs = model(make_google_npz.preprocess(golden["image"]), training=False)
    for output, key in zip(outputs, ("encoded", "logits")):
        # Two correct float32 implementations differ by about 1e-6 of the largest value; the exact GELU is 1e-4 away.
        atol = 1e-5 * max(1, np.abs(golden[key]).max())
        np.testing.assert_allclose(numpy(output), golden[key], rtol=0, atol=atol)


def test_build_makes_all_weights_under_their_names(block):
    block.build(TOKENS.shape)
    names = {f"it/{name}" for norm in ("LayerNorm_0", "LayerNorm_1") for name in (f"{norm}/gamma", f"{norm}/beta")} | {
        f"it/{mlp}/{dense}/{name}"
        for mlp in ("token_mixing", "channel_mixing")
        for dense in ("Dense_0", "Dense_1")
        for name in ("kernel", "bias")
    }
    assert {variable.path for variable in block.weights} == names
    assert len(block.weights) == 12
    block(TOKENS)
    assert len(block.weights) == 12


def test_output_shape_is_known_before_the_call(block):
    symbolic = block(keras.Input(TOKENS.shape[1:]))
    assert tuple(symbolic.shape) == (None, *TOKENS.shape[1:])
    assert tuple(block(TOKENS).shape) == TOKENS.shape
    assert tuple(block.compute_output_shape((None, 9, 32))) == (None, 9, 32)


def test_config_round_trip_gives_the_same_block(block):
    block.build(TOKENS.shape)
    again = mixer.MixerBlock.from_config(block.get_config())
    again.build(TOKENS.shape)
    again.set_weights(block.get_weights())
    assert again.get_config() == block.get_config()
    np.testing.assert_array_equal(numpy(again(TOKENS)), numpy(block(TOKENS)))


def test_a_saved_model_comes_back_under_safe_mode(block, tmp_path):
    inputs = keras.Input(TOKENS.shape[1:])
    model = keras.Model(inputs, block(inputs))
    model.save(tmp_path / "mixer.keras")
    again = keras.saving.load_model(tmp_path / "mixer.keras", safe_mode=True)
    np.testing.assert_array_equal(numpy(again(TOKENS)), numpy(model(TOKENS)))
    assert again.get_layer("it").get_config() == block.get_config()


def test_loading_weights_of_another_activation_shows_in_copies(tmp_path):
    def model(activation):
        inputs = keras.Input(TOKENS.shape[1:])
        return keras.Model(inputs, mixer.MixerBlock(16, 64, activation=activation, name="it")(inputs))

    exact, tanh = model("gelu"), model("gelu_tanh")
    exact.save_weights(tmp_path / "it.weights.h5")
    tanh.load_weights(tmp_path / "it.weights.h5")
    np.testing.assert_array_equal(numpy(tanh(TOKENS)), numpy(exact(TOKENS)))
    copy = keras.models.clone_model(tanh)
    assert copy.get_layer("it").channel_mixing.activation == copy.get_layer("it").token_mixing.activation == "gelu"


def test_dropout_only_in_training():
    block = mixer.MixerBlock(16, 64, dropout=0.5)
    assert np.abs(numpy(block(TOKENS, training=True)) - numpy(block(TOKENS, training=True))).max() > 0
    np.testing.assert_array_equal(numpy(block(TOKENS, training=False)), numpy(block(TOKENS)))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_close_to_float32(policy):
    block, half = mixer.MixerBlock(16, 64), mixer.MixerBlock(16, 64, dtype=policy)
    expected = numpy(block(TOKENS))
    half.build(TOKENS.shape)
    half.set_weights(block.get_weights())
    output = half(TOKENS)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    # Values up to 4 with 11 or 8 bits: a step between neighbours is 0.002 or 0.016, and a few of them add up.
    atol = {"mixed_float16": 0.01, "mixed_bfloat16": 0.08}[policy]
    np.testing.assert_allclose(numpy(keras.ops.cast(output, "float32")), expected, rtol=0, atol=atol)


def test_training_changes_every_weight():
    inputs = keras.Input(TOKENS.shape[1:])
    x = keras.layers.GlobalAveragePooling1D()(mixer.MixerBlock(16, 64)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    assert np.isfinite(model.train_on_batch(TOKENS, np.array([0, 2])))
    for variable, old in zip(model.weights, before):
        assert np.abs(numpy(variable) - old).max() > 0, variable.path


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"fixed image size.*\(None, None, 32\)"):
        mixer.MixerBlock(16, 64)(keras.Input((None, 32)))
    with pytest.raises(ValueError, match=r"hidden_size.*\(2, 9\)"):
        mixer.MixerBlock(16, 64)(TOKENS[..., 0])
    block = mixer.MixerBlock(16, 64)
    block(TOKENS)
    with pytest.raises(ValueError, match=r"incompatible.*\(None, 9, 32\)"):
        block(TOKENS[:, :8])
    with pytest.raises(ValueError, match="gelu_thin"):
        mixer.MixerBlock(16, 64, activation="gelu_thin")

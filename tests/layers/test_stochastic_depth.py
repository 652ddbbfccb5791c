"""Branches and patches that training leaves out at random, and inference never does."""

import itertools

import keras
import numpy as np
import pytest

import vit_keras
from vit_keras import layers, vit
from vit_keras.anatomy.parts import set_rates
from vit_keras.checkpoints.model_weights import ModelWeights
from vit_keras.config import ViTConfig
from vit_keras.training.recipes import recipe
from vit_keras.visualize import record

RNG = np.random.default_rng(0)
SIZES = {
    "image_size": 16,
    "patch_size": 4,
    "num_layers": 3,
    "hidden_size": 16,
    "num_heads": 2,
    "mlp_dim": 32,
    "classes": 3,
}


def config(**options):
    return ViTConfig(**{**SIZES, **options})


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


@pytest.mark.core
@pytest.mark.compiles_long
def test_each_image_keeps_each_branch_or_loses_it_whole():
    keras.utils.set_random_seed(0)
    block = layers.TransformerBlock(num_heads=2, mlp_dim=32, stochastic_depth=0.25)
    tokens = RNG.normal(size=(1, 5, 16)).astype("float32")
    block.build(tokens.shape)
    batch = keras.ops.convert_to_tensor(np.repeat(tokens, 64, axis=0))
    trained = numpy(block(batch, training=True))

    def possible(attention, mlp):  # each factor 0, or 1 / 0.75
        x = tokens + attention * numpy(block.att(block.layernorm1(tokens)))
        return x + mlp * numpy(block.mlpblock(block.layernorm2(x)))

    outcomes = [possible(*factors) for factors in itertools.product((0, 1 / 0.75), repeat=2)]
    # float32 sums of terms of about 1
    matches = np.array([[np.abs(one - outcome).max() < 1e-5 for outcome in outcomes] for one in trained])
    assert (matches.sum(1) == 1).all()
    assert matches.any(0).all()
    assert 0.5 < matches[:, 2:].any(1).mean() < 0.95  # 0.75, give or take five standard deviations
    assert 0.5 < matches[:, 1::2].any(1).mean() < 0.95
    np.testing.assert_allclose(numpy(block(batch))[0], possible(1, 1)[0], atol=1e-5)


def test_the_rate_rises_from_block_to_block():
    model = vit.build(config(stochastic_depth=0.3))
    rates = [layer.drop_path.rate for layer in model.layers if isinstance(layer, layers.TransformerBlock)]
    np.testing.assert_allclose(rates, [0, 0.15, 0.3])
    assert config(num_layers=1, stochastic_depth=0.3).stochastic_depth_of(0) == 0


@pytest.mark.core
def test_patches_are_left_out_and_the_tokens_before_them_never():
    keras.utils.set_random_seed(0)
    tokens = np.tile(np.arange(2 + 10, dtype="float32")[None, :, None], (16, 1, 3))
    layer = layers.PatchDropout(0.4, prefix_tokens=2)
    kept = numpy(layer(tokens, training=True))[..., 0]
    assert kept.shape == (16, 2 + 6)
    assert (kept[:, :2] == [0, 1]).all()
    assert all(len(set(row)) == 6 and set(row) <= set(range(2, 12)) for row in kept[:, 2:])
    assert len({frozenset(row) for row in kept[:, 2:]}) > 8  # not the same ones of each image: of 210 subsets
    again = numpy(layer(tokens, training=True))[..., 0]
    assert (again != kept).any()
    np.testing.assert_array_equal(numpy(layer(tokens)), tokens)
    assert numpy(layers.PatchDropout(0.99)(tokens, training=True)).shape[1] == 1


def test_inference_is_that_of_the_plain_model():
    options = {"pooling": "gap", "registers": 2}
    plain = vit.build(config(**options))
    dropping = vit.build(config(**options, stochastic_depth=0.9, patch_dropout=0.5))
    dropping.set_weights(plain.get_weights())
    images = RNG.uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    for model in (plain, dropping):
        model.get_layer("head").kernel.assign(np.linspace(-1, 1, 48).reshape(16, 3))
    np.testing.assert_array_equal(numpy(dropping(images)), numpy(plain(images)))
    assert np.abs(numpy(dropping(images, training=True)) - numpy(plain(images))).max() > 1e-3


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_recipe_trains_through_both():
    model = vit.build(config(num_layers=2, patch_dropout=0.5))
    known = recipe("finetune", stochastic_depth=0.5, warmup=0.0, learning_rate=0.1)
    known.compile(model, metrics=None, run_eagerly=keras.backend.backend() != "jax")
    assert model.layers[-4].drop_path.rate == 0.5
    images = RNG.uniform(-1, 1, size=(4, 16, 16, 3)).astype("float32")
    before = model.get_weights()
    history = model.fit(images, np.arange(4) % 3, epochs=2, verbose=0, callbacks=known.callbacks).history
    assert np.isfinite(history["loss"]).all()
    assert sum((a != b).any() for a, b in zip(before, model.get_weights())) > 30


def test_nothing_is_there_where_nothing_drops():
    model = vit.build(config())
    assert "patch_dropout" not in [layer.name for layer in model.layers]
    assert not [v.path for v in model.variables if "seed" in v.path]


def test_images_of_any_size_lose_patches_too():
    model = vit.build(config(image_size=None, position_grid=(4, 4), patch_dropout=0.5, pooling=None, include_top=False))
    images = RNG.uniform(-1, 1, size=(2, 16, 24, 3)).astype("float32")
    assert model(images, training=True).shape[1] == 1 + 12
    assert model(images).shape[1] == 1 + 24


def test_files_without_these_fields_load(tmp_path):
    dropping = vit.build(config(stochastic_depth=0.3, patch_dropout=0.25))
    dropping.save(tmp_path / "new.keras")
    loaded = keras.models.load_model(tmp_path / "new.keras")
    assert loaded.config == dropping.config
    assert [layer.drop_path.rate for layer in loaded.layers if isinstance(layer, layers.TransformerBlock)][-1] == 0.3
    assert loaded.get_layer("patch_dropout").get_config()["prefix_tokens"] == 1

    plain = vit.build(config())
    old = plain.get_config()
    for field in ("stochastic_depth", "patch_dropout"):
        del old["vit"][field]
    for layer in old["layers"]:
        layer["config"].pop("stochastic_depth", None)
    assert vit.VisionTransformer.from_config(old).config == plain.config
    plain.save_weights(tmp_path / "plain.weights.h5")
    dropping.load_weights(tmp_path / "plain.weights.h5")
    images = RNG.uniform(-1, 1, size=(1, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(numpy(dropping(images)), numpy(plain(images)))


def test_factories_files_and_resizing_keep_the_rates(google_npz):
    options = {"stochastic_depth": 0.2, "patch_dropout": 0.5}
    model = vit.vit_ti16(image_size=32, classes=3, pretrained=False, **options)
    assert model.config.stochastic_depth == 0.2
    model = vit_keras.from_checkpoint(google_npz(), **options)
    resized = vit_keras.resize(model, 96)
    for one in (model, resized):
        assert (one.config.stochastic_depth, one.config.patch_dropout) == (0.2, 0.5)
        assert one.get_layer("patch_dropout").rate == 0.5
    assert ModelWeights(resized).architecture["stochastic_depth"] == 0.2


def test_recordings_see_every_token():
    model = vit.build(config(stochastic_depth=0.9, patch_dropout=0.5))
    recording = record(model, np.zeros((1, 16, 16, 3), "uint8"))
    assert numpy(recording.attention[0]).shape[-1] == 17


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stochastic_depth": 1.0}, "stochastic_depth must be a rate"),
        ({"patch_dropout": -0.1}, "patch_dropout must be a rate"),
        ({"patch_dropout": None}, "patch_dropout must be a rate"),
        ({"stochastic_depth": 0.1, "remat": True}, "stochastic_depth=0.1"),
        ({"patch_dropout": 0.1, "rope_theta": 100.0}, "need all patches"),
        ({"patch_dropout": 0.1, "relative_positions": True}, "need all patches"),
        ({"patch_dropout": 0.1, "tokens_mlp_dim": 8, "position": None, "pooling": "gap"}, "need all patches"),
        ({"stochastic_depth": 0.1, "tokens_mlp_dim": 8, "position": None, "pooling": "gap"}, "has no stochastic_depth"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        config(**options)
    with pytest.raises(ValueError, match="remat=True"):
        layers.TransformerBlock(2, 32, remat=True, stochastic_depth=0.1)


def test_rates_are_changed_in_a_model_that_there_is():
    model = vit.build(config(dropout=0.1))
    set_rates(model, dropout=0.0, stochastic_depth=0.4)
    assert model.config == config(dropout=0.0, emb_dropout=0.1, stochastic_depth=0.4)
    images = RNG.uniform(-1, 1, size=(8, 16, 16, 3)).astype("float32")
    model.get_layer("head").kernel.assign(np.linspace(-1, 1, 48).reshape(16, 3))
    once, twice = (numpy(model(images, training=True)) for _ in range(2))
    assert (once != twice).any()
    same = vit.VisionTransformer.from_config(model.get_config())
    assert [b.get_config() for b in same.layers if "block" in b.name] == [
        b.get_config() for b in model.layers if "block" in b.name
    ]
    set_rates(model, stochastic_depth=0.0)
    assert not any(b.drop_path.rate for b in model.layers if "block" in b.name)
    without_config = keras.Model(model.input, model.layers[-2].output)
    for changed in (model, without_config):
        with pytest.raises(ValueError, match="stochastic_depth"):
            set_rates(changed, stochastic_depth=2.0)
    with pytest.raises(ValueError, match="remat=True"):
        set_rates(vit.build(config(remat=True)), stochastic_depth=0.1)

"""Maps of models that merge tokens."""

import keras
import numpy as np
import pytest
from keras import ops

import vit_keras
from vit_keras import visualize
from vit_keras.build import build
from vit_keras.config import ViTConfig

SMALL = {"image_size": 32, "patch_size": 4, "num_layers": 4, "hidden_size": 16, "num_heads": 2, "mlp_dim": 24}
MERGED = (32, 16, 0, 0)
"""All that has a twin: of the 64 patches in `quadruplets`, then of the pairs that are left."""


def made(**options):
    model = build(ViTConfig(**{**SMALL, "classes": 3, "position": None, **options}))
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(size=weight.shape, scale=0.5) + ("gamma" in weight.path))
    return model


def quadruplets():
    """Pictures where four patches in a row are the same, and no others."""
    patches = np.random.default_rng(1).integers(0, 256, (2, 8, 2, 1, 4, 4, 3)).repeat(4, axis=3)
    return patches.reshape(2, 8, 8, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 32, 32, 3).astype("uint8")


def likeness(one, other):
    """How far two arrays are from each other, as a share of the larger one's values."""
    return np.abs(one - other).max() / np.abs(one).max()


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize("pooling", ["gap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("token", "map"))])
def test_where_merged_tokens_were_the_same_all_maps_are_too(pooling):
    model = made(pooling=pooling)
    merged = vit_keras.merge_tokens(model, MERGED)
    one, other = (visualize.all_maps(m, quadruplets(), target=1) for m in (model, merged))
    assert set(one) == set(visualize.METHODS)
    for name in one:
        assert one[name].std() > 0 and likeness(one[name], other[name]) < 2e-4, name


@pytest.mark.slow
def test_where_merged_tokens_were_the_same_all_records_are_too():
    model = made(pooling="gap", class_token=True)
    merged = vit_keras.merge_tokens(model, MERGED)
    options = {"target": 1, "keep": ("attention", "values", "tokens", "normed")}
    one, other = (visualize.record(m, quadruplets(), **options) for m in (model, merged))
    for field in ("attention", "gradients", "values", "tokens", "features", "normed", "normed_gradients", "logits"):
        assert likeness(getattr(one, field), getattr(other, field)) < 2e-4, field
    np.testing.assert_array_equal(one.readout, other.readout)
    for fused in ({"head_fusion": "max"}, {"query": "auto"}, {"head_fusion": "relevance", "target": 1}):
        one, other = (visualize.record(m, quadruplets(), **fused).attention for m in (model, merged))
        assert one.shape == other.shape and likeness(one, other) < 2e-4
    lenses = [visualize.patch_logit_lens(m, quadruplets()) for m in (model, merged)]
    assert likeness(*lenses) < 2e-4
    scores = [visualize.record(m, quadruplets()[:1], keep="attention").attention.shape for m in (model, merged)]
    assert scores == [(4, 1, 2, 65, 65)] * 2


@pytest.mark.parametrize("pooling", ["gap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("token", "map"))])
def test_any_picture_gives_maps_of_all_patches(pooling):
    merged = vit_keras.merge_tokens(made(pooling=pooling, position="learned"), (20, 3, 10, 7))
    pictures = np.random.default_rng(2).integers(0, 256, (2, 32, 32, 3)).astype("uint8")
    recording = visualize.record(merged, pictures)
    np.testing.assert_allclose(recording.attention.sum(axis=-1), 1, atol=1e-5)
    rows = visualize.attention_rollout(recording)
    prefix = len(recording.prefix)
    assert rows.shape == (2, 8, 8) and (rows > 0).all()
    if not prefix:
        np.testing.assert_allclose(rows.sum(axis=(1, 2)), 1, atol=1e-5)
    apart = [len(np.unique(tokens[0].round(5), axis=0)) - prefix for tokens in recording.tokens]
    assert apart == [64, 44, 41, 31, 24]  # patches in one token have one state
    blocks = keras.Model(merged.input, merged.get_layer("Transformer_encoderblock_3").output)
    states, sizes = blocks(merged.preprocess(list(pictures)))
    states, sizes = (np.asarray(ops.convert_to_numpy(x)) for x in (states, sizes))
    np.testing.assert_allclose((states * sizes).sum(axis=1), recording.tokens[-1].sum(axis=1), rtol=1e-3, atol=1e-3)

"""Masks of the attention: which tokens are seen, in every layer that takes one, for all shapes that look alike."""

import keras
import numpy as np
import pytest

from vit_keras import layers
from vit_keras.layers import attention

pytestmark = pytest.mark.core(first=("test_a_query_without_keys_is_a_number",))

LAYERS = {
    "attention": lambda heads: layers.MultiHeadSelfAttention(heads),
    "block": lambda heads: layers.TransformerBlock(heads, mlp_dim=16),
    "pooling": lambda heads: layers.AttentionPooling(heads, mlp_dim=16),
}
AFTER_A_PREFIX = {"pooling after a prefix": lambda heads: layers.AttentionPooling(heads, mlp_dim=16, prefix_tokens=1)}
SIZES = [(4, 4, 4), (4, 6, 4), (2, 4, 4), (1, 6, 2), (2, 6, 2), (1, 4, 1)]  # batch, tokens, heads: equal in every way


def tokens(batch, count):
    return np.random.default_rng(0).normal(size=(batch, count, 8)).astype("float32")


def random_mask(*shape):
    mask = np.random.default_rng(1).random(shape) < 0.6
    mask[..., 0] = True
    return mask


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_masked_tokens_are_as_if_absent(kind, chunks, monkeypatch):
    """To 1e-5 of values of size 1: the same sums without the terms that are 0."""
    if chunks:
        monkeypatch.setattr(attention, "has_fused_attention", lambda: False)
        monkeypatch.setattr(attention, "MAX_SCORE_BYTES", 4 * 2 * 4)
    for batch, count, heads in SIZES:
        layer, x, mask = LAYERS[kind](heads), tokens(batch, count), random_mask(batch, count)
        found = [
            keras.ops.convert_to_numpy(layer(x, attention_mask=each))
            for each in (mask, mask.astype("int32"), mask.tolist(), keras.ops.convert_to_tensor(mask))
        ]
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])
        if kind != "pooling":
            each_query = np.broadcast_to(mask[:, None], (batch, count, count))
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(x, attention_mask=each_query)), found[0])
        for image in range(batch):
            alone = keras.ops.convert_to_numpy(layer(x[image : image + 1, mask[image]]))[0]
            ours = found[0][image] if kind == "pooling" else found[0][image, mask[image]]
            np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-5, err_msg=f"{batch}, {count}, {heads}")


@pytest.mark.parametrize("kind", LAYERS)
def test_each_image_of_a_sequence_is_pooled_alone(kind):
    layer, x, mask = LAYERS[kind](2), tokens(2, 6), random_mask(2, 6, 6)
    found = keras.ops.convert_to_numpy(layer(x, attention_mask=mask))
    for query in range(6):
        alone = keras.ops.convert_to_numpy(layer(x, attention_mask=mask[:, query]))
        ours = alone if kind == "pooling" else alone[:, query]
        np.testing.assert_allclose(found[:, query], ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_query_without_keys_is_a_number(kind):
    layer, mask = LAYERS[kind](2), np.zeros((2, 6), bool)
    assert np.isfinite(keras.ops.convert_to_numpy(layer(tokens(2, 6), attention_mask=mask))).all()


@pytest.mark.parametrize("kind", [*LAYERS, *AFTER_A_PREFIX])
def test_masks_of_another_shape_or_of_floats_are_refused(kind):
    for batch, count, heads in SIZES:
        layer, x = (LAYERS | AFTER_A_PREFIX)[kind](heads), tokens(batch, count)
        wrong = [(count,), (batch + 1, count), (batch, count + 1), (batch, heads, count, count), (batch, count, 1)]
        wrong += [] if "pooling" in kind else [(batch, count + 1, count)]  # of a pooling these are images
        for shape in wrong:
            with pytest.raises(ValueError, match="attention_mask .* shape "):
                layer(x, attention_mask=np.ones(shape, bool))
        for mask in (np.zeros((batch, count), "float32"), np.where(random_mask(batch, count, count), 0, -np.inf)):
            with pytest.raises(TypeError, match="attention_mask .*float.*mask == 0"):
                layer(x, attention_mask=mask)


def test_a_mask_and_a_prefix_both_hide_tokens():
    pooling, x, mask = LAYERS["pooling"](2), tokens(2, 6), random_mask(2, 6)
    beyond = layers.AttentionPooling(2, mlp_dim=16, prefix_tokens=2)
    beyond.build(x.shape)
    expected = pooling(x, attention_mask=mask & (np.arange(6) >= 2))
    beyond.set_weights(pooling.get_weights())
    found = beyond(x, attention_mask=mask)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), keras.ops.convert_to_numpy(expected))


def test_a_pooling_with_a_mask_is_part_of_a_graph():
    x, images = keras.Input((6, 8)), keras.Input((3, 6), dtype="bool")
    assert layers.AttentionPooling(2, 16)(x, attention_mask=images).shape == (None, 3, 8)
    assert layers.AttentionPooling(2, 16)(x, attention_mask=images[:, 0]).shape == (None, 8)
    images = keras.Input((None, 6), dtype="bool")
    model = keras.Model([x, images], layers.AttentionPooling(2, 16)(x, attention_mask=images))
    assert model.output_shape == (None, None, 8)
    for count in (1, 2, 3):
        assert model.predict([tokens(2, 6), random_mask(2, count, 6)], verbose=0).shape == (2, count, 8)

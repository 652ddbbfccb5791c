"""Rotary positions of every kind, and the switches of blocks that came with the models that have them."""

import keras
import numpy as np
import pytest
from keras import ops

from vit_keras import layers, positions, resize, visualize, vit
from vit_keras.config import ViTConfig
from vit_keras.layers.rotary import MixedRotaryPositions

SMALL = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "mlp_dim": 16, "classes": 3, "patch_size": 8}
KINDS = {"centered": {}, "axial": {"rope_grid": (16, 16)}, "axial_xy": {"rope_offset": 1.0}, "mixed": {}}


def built(**fields):
    keras.utils.set_random_seed(0)
    model = vit.build(ViTConfig(**{**SMALL, "image_size": (32, 24), **fields}))
    head = model.get_layer("head").kernel
    head.assign(np.random.default_rng(0).normal(size=head.shape))
    return model


def output(model, inputs):
    return ops.convert_to_numpy(model(inputs))


def pictures(height=32, width=24):
    return np.random.default_rng(1).uniform(-1, 1, (1, height, width, 3)).astype("float32")


@pytest.mark.parametrize(("kind", "places"), [("axial", (5, 2)), ("axial_xy", (2, 5))])
def test_angles_are_places_times_frequencies(kind, places):
    """The patch in row 5 and column 2, with pairs of channels side by side."""
    sin, cos = positions.rope_sincos((8, 4), 8, 100.0, kind)
    first, second = places
    angles = [first, first, first / 10, first / 10, second, second, second / 10, second / 10]
    np.testing.assert_allclose(sin[5 * 4 + 2], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(cos[5 * 4 + 2], np.cos(angles), atol=1e-6)


def test_the_shape_for_places_is_known_before_the_call():
    for layer in (layers.RotaryPositions(8), MixedRotaryPositions(3, 2, 8)):
        symbolic = keras.tree.flatten(layer(keras.Input((10, 4), 2)))
        found = keras.tree.flatten(layer(np.ones((2, 10, 4), "float32")))
        assert [tuple(x.shape) for x in symbolic] == [tuple(x.shape) for x in found]


def test_a_reference_grid_scales_places_and_their_offset():
    scaled = positions.rope_sincos((8, 4), 8, 100.0, "axial", (16, 16), 1.0)[0].reshape(8, 4, 8)
    np.testing.assert_allclose(scaled[5, 2, [0, 4]], np.sin([(5 + 1) * 16 / 8, (2 + 1) * 16 / 4]), atol=1e-6)


def test_a_kind_that_is_none():
    with pytest.raises(ValueError, match="kind .*'centered', 'axial', 'axial_xy'"):
        positions.rope_sincos((2, 2), 8, kind="mixed")


@pytest.mark.core
@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_of_channels_are_rotated(interleaved):
    x = np.random.default_rng(0).normal(size=(1, 1, 2, 4)).astype("float32")
    angles = np.array([0.3, 0.8])
    spread = np.repeat(angles, 2) if interleaved else np.tile(angles, 2)
    rope = np.stack([np.sin(spread), np.cos(spread)]).astype("float32")[:, None]
    found = ops.convert_to_numpy(
        layers.rotary.rotate(ops.convert_to_tensor(x), ops.convert_to_tensor(rope), interleaved)
    )
    pairs = [(0, 1), (2, 3)] if interleaved else [(0, 2), (1, 3)]
    np.testing.assert_array_equal(found[0, 0, 0], x[0, 0, 0])  # the token before the patch
    for angle, (a, b) in zip(angles, pairs):
        wanted = (x[..., 1, a] + 1j * x[..., 1, b]) * np.exp(1j * angle)
        np.testing.assert_allclose(found[..., 1, a] + 1j * found[..., 1, b], wanted, atol=1e-6)


@pytest.mark.parametrize("count", [1, 5, 11])
def test_fewer_tokens_than_positions_are_refused(count):
    tokens, rope = np.ones((2, 12, 16), "float32"), layers.RotaryPositions(8)(np.ones((1, 3, 4, 16), "float32"))
    with pytest.raises(ValueError, match="rope=.* 12 "):
        layers.TransformerBlock(2, 16)(tokens[:, :count], rope=rope)
    with pytest.raises(ValueError, match="rope=.* 12 "):
        layers.MultiHeadSelfAttention(2)(tokens, rope=rope, queries=tokens[:, :count])


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize("kind", ["mixed", "axial", "axial_xy", "centered"])
def test_a_model_of_any_size_computes_the_same(kind):
    fields = {"position": None, "rope_theta": 10.0, "rope_kind": kind, **KINDS[kind]}
    model = built(**fields)
    assert np.ptp(output(model, pictures())) > 0
    free = resize(model, None)
    np.testing.assert_allclose(output(free, pictures()), output(model, pictures()), atol=1e-5)
    wide = resize(model, (16, 40))
    np.testing.assert_allclose(output(free, pictures(16, 40)), output(wide, pictures(16, 40)), atol=1e-5)


def test_every_kind_computes_something_else():
    outputs = []
    for kind, more in KINDS.items():
        model = built(position=None, rope_theta=10.0, rope_kind=kind, **more)
        for n, layer in enumerate(layer for layer in model.layers if isinstance(layer, layers.TransformerBlock)):
            for variable in layer.weights:
                variable.assign(np.random.default_rng(n).normal(0, 0.2, variable.shape))
        outputs.append(output(model, pictures())[0])
    gaps = [np.abs(a - b).max() for n, a in enumerate(outputs) for b in outputs[:n]]
    assert min(gaps) > 1e-4


def test_learned_frequencies_begin_as_directions():
    layer = MixedRotaryPositions(num_layers=3, num_heads=2, dim_head=8, theta=10.0, seed=0)
    rope = layer(np.zeros((1, 4, 6, 8), "float32"))
    assert [tuple(each.shape) for each in rope] == [(2, 2, 24, 8)] * 3
    across, down = ops.convert_to_numpy(layer.frequencies)
    sizes = np.hypot(across, down)
    np.testing.assert_allclose(sizes, np.broadcast_to(np.tile([1, 10**-0.5], 2), sizes.shape), rtol=1e-5)
    np.testing.assert_allclose((across * np.roll(across, 2, -1) + down * np.roll(down, 2, -1)), 0, atol=1e-6)


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    "fields",
    [
        {"position": None, "rope_theta": 10.0, "rope_kind": "mixed"},
        {"rope_theta": 1e4, "rope_kind": "axial_xy", "rope_grid": (3, 5), "rope_offset": 1.0},
        {"attention_norm": True, "mlp_norm": True, "gated_mlp": True},
        {"post_norm": True},
        {"registers": 2, "register_positions": True},
        {"pooling": "map", "map_heads": 4, "map_mlp_dim": 24},
    ],
    ids=lambda fields: next(iter(fields)) + str(len(fields)),
)
def test_a_saved_model_is_the_same(fields, tmp_path):
    model = built(**fields)
    plain = built()
    assert model.config != plain.config
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(output(again, pictures()), output(model, pictures()))


def test_norms_after_the_branches_make_them_of_one_size():
    block = layers.TransformerBlock(num_heads=2, mlp_dim=16, post_norm=True)
    tokens = 100 * np.random.default_rng(0).normal(size=(1, 5, 32)).astype("float32")
    difference = ops.convert_to_numpy(block(tokens)) - tokens
    assert np.abs(difference).max() < 10
    np.testing.assert_allclose(difference.mean(axis=-1), 0, atol=1e-4)


@pytest.mark.parametrize("layer", ["attention", "mlp"])
def test_a_norm_before_the_last_layer_forgets_the_scale(layer):
    tokens = np.random.default_rng(0).normal(size=(1, 1, 32)).astype("float32")
    if layer == "attention":
        norm = layers.MultiHeadSelfAttention(num_heads=2, attention_norm=True, qkv_bias=False)
    else:
        norm = layers.MlpBlock(16, activation="relu", norm=True)
    np.testing.assert_allclose(
        ops.convert_to_numpy(norm(10 * tokens)), ops.convert_to_numpy(norm(tokens)), rtol=1e-2, atol=1e-3
    )


def test_registers_with_positions_are_in_the_table():
    model = built(registers=2, register_positions=True)
    assert model.get_layer("Transformer_posembed_input").pe.shape[1] == 1 + 2 + 12
    assert resize(model, (16, 40)).get_layer("Transformer_posembed_input").pe.shape[1] == 1 + 2 + 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_kind": "spiral"}, "rope_kind must be one of"),
        ({"rope_grid": (16, 16)}, "need rope_theta"),
        ({"rope_theta": 1.0, "rope_kind": "mixed", "rope_offset": 1.0}, "need rope_theta"),
        ({"rope_offset": None}, "rope_offset must be a number"),
        ({"register_positions": True}, "register_positions=True needs registers"),
        ({"pooling": "map", "map_heads": 3}, "not divisible by map_heads=3"),
        ({"pooling": "map", "num_heads": 3, "dim_head": 8}, "not divisible by map_heads=3"),
        ({"map_mlp_dim": 0}, "map_mlp_dim must be a positive integer"),
    ],
)
def test_fields_that_make_no_model(fields, message):
    with pytest.raises(ValueError, match=message):
        ViTConfig(**{**SMALL, **fields})


@pytest.mark.parametrize("field", ["attention_norm", "post_norm"])
def test_values_that_do_not_add_up_make_no_map(field):
    model = built(**{field: True})
    picture = np.zeros((32, 24, 3), "uint8")
    assert list(visualize.all_maps(model, picture)) == ["rollout", "attention"]
    with pytest.raises(ValueError, match="The values do not add up"):
        visualize.attention_map(model, picture, method="alti")

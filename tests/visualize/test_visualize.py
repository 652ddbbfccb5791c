"""Attention scores, rollout against its definition, maps of all kinds of models, and the picture drawn of them."""

import functools
import gc
import warnings
import weakref

import keras
import numpy as np
import pytest
from recordings import grey_image
from support import noise, tiny_model

from vit_keras import layers, visualize, vit
from vit_keras.anatomy.parts import attention_blocks, find_vit
from vit_keras.visualize.forward_pass import Plan, watch

# Compiled and eager float32 add in different orders: 1e-6 is 8 steps of float32 near 1, and scores are at most 1.
SAME = 1e-6


build = functools.partial(tiny_model, num_layers=2, hidden_size=64, mlp_dim=128, classes=10, scale=0.1)


@pytest.fixture(scope="module")
def tiny():
    return build(eagerly=False)  # what many tests run


def attention_scores(model, inputs, *, mean_heads=False):
    """What maps are computed from, for preprocessed inputs: (layers, batch, heads, tokens, tokens)."""
    blocks = tuple(range(len(attention_blocks(find_vit(model)))))
    plan = Plan(blocks, frozenset({"attention"}), "mean" if mean_heads else None)
    return watch(model, np.asarray(inputs, "float32"), None, plan)["attention"]


def scores_by_hand(model, inputs):
    """What the blocks return when a model is run layer by layer: (layers, batch, heads, tokens, tokens)."""
    x, scores = keras.ops.convert_to_tensor(inputs), []
    for layer in model.layers[1:]:
        if isinstance(layer, layers.TransformerBlock):
            x, attention = layer(x, training=False, return_attention_scores=True)
            scores.append(keras.ops.convert_to_numpy(attention))
        else:
            x = layer(x)
    return np.stack(scores)


def joint_attention(scores):
    """Rollout as it is defined, one image: W_L ... W_1 with W the row-normalised sum of mean attention and identity."""
    joint = np.eye(scores.shape[-1])
    for attention in scores.astype("float64").mean(axis=1):
        weights = attention + np.eye(len(attention))
        joint = (weights / weights.sum(axis=1, keepdims=True)) @ joint
    return joint


def map_by_hand(model, image, grid):
    """The share of each patch in the class token, or without one in the mean patch."""
    joint = joint_attention(scores_by_hand(model, vit.preprocess_inputs(image)[None])[:, 0])
    prefix = len(joint) - grid[0] * grid[1]
    row = joint[0] if prefix else joint.mean(axis=0)
    return row[prefix:].reshape(grid)


def random_attention(layers=4, batch=2, heads=3, tokens=13, seed=0):
    logits = 2 * np.random.default_rng(seed).standard_normal((layers, batch, heads, tokens, tokens))
    scores = np.exp(logits)
    return scores / scores.sum(axis=-1, keepdims=True)


# ------------------------------------------------------------------- rollout --


# -------------------------------------------------------------------- scores --

KINDS = {
    "class token": {},
    "wide": {"image_size": (32, 64)},
    "wide patches": {"image_size": (32, 96), "patch_size": (8, 16)},
    "tall": {"image_size": (64, 32), "patch_size": (8, 16)},
    "gap": {"pooling": "gap"},
    "all tokens": {"pooling": None},
    "one block": {"num_layers": 1},
    "grey": {"channels": 1},
    "four channels": {"channels": 4},
    "other width of heads": {"dim_head": 20},
}


@functools.cache
def of_kind(kind):
    return build(**KINDS[kind])


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("class token"),
        "wide patches",
        "gap",
        pytest.param("all tokens", marks=pytest.mark.slow),
        pytest.param("other width of heads", marks=pytest.mark.slow),
    ],
)
def test_scores_are_those_that_the_blocks_return(kind):
    model = of_kind(kind)
    inputs = vit.preprocess_inputs(noise(1, *model.input_shape[1:]))
    result = attention_scores(model, inputs)
    expected = scores_by_hand(model, inputs)
    assert result.dtype == np.float32 and result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)
    assert np.abs(result - 1 / result.shape[-1]).max() > 0.05  # the models here do not attend uniformly


def test_scores_follow_the_weights():
    model, inputs = build(), vit.preprocess_inputs(noise(1, 32, 32, 3))
    before = attention_scores(model, inputs)
    model.set_weights([1.2 * w for w in model.get_weights()])
    after = attention_scores(model, inputs)
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after, scores_by_hand(model, inputs), rtol=0, atol=SAME)


# ----------------------------------------------------------------- recording --


def attend():
    layers.MultiHeadSelfAttention(num_heads=2)(np.zeros((1, 3, 8), "float32"))


def test_recordings_can_be_nested():
    with layers.record_attention() as outer:
        attend()
        with layers.record_attention() as inner:
            attend()
        assert len(inner) == 1
        attend()
    assert len(outer) == 2 and len(inner) == 1


def test_a_recording_ends_with_an_error():
    with pytest.raises(RuntimeError, match="on the way"), layers.record_attention() as scores:
        raise RuntimeError("on the way")
    attend()
    assert scores == []


# ---------------------------------------------------------------------- maps --


MAPPED = ("class token", "wide patches", "gap", "all tokens", "grey")


@pytest.mark.parametrize("kind", [k if k in MAPPED else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_the_map_is_the_rollout_of_the_models_attention(kind):
    model = of_kind(kind)
    image = noise(*model.input_shape[1:])
    grid = model.config.grid
    result = visualize.attention_map(model, image, return_map=True)
    assert result.shape == grid and result.dtype == np.float32
    np.testing.assert_allclose(result, map_by_hand(model, image, grid), rtol=0, atol=SAME)


def test_the_picture_is_the_map_laid_over_the_image(tiny):
    image = noise(50, 70, 3)
    expected = visualize.overlay(image, visualize.attention_map(tiny, image, return_map=True))
    np.testing.assert_array_equal(visualize.attention_map(tiny, image), expected)


def test_an_image_of_another_size_is_resized_for_the_model(tiny):
    # Each pixel repeated 3 × 2 times and halfway between: bilinear interpolation at half-pixel centres gives it back.
    small = noise(32, 32, 3)
    large = small.repeat(3, axis=0).repeat(3, axis=1)
    expected = visualize.attention_map(tiny, small, return_map=True)
    result = visualize.attention_map(tiny, large, return_map=True)
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


def sequential(model):
    return keras.Sequential([model, keras.layers.Dense(3)])


def nested_twice(model):
    inner_input = keras.Input((32, 32, 3))
    inner = keras.Model(inner_input, keras.layers.Dense(7)(model(inner_input)), name="inner")
    outer_input = keras.Input((32, 32, 3))
    return keras.Model(outer_input, keras.layers.Dense(3)(inner(outer_input)), name="outer")


def extended(model):
    return keras.Model(model.input, keras.layers.Dense(3)(model.output))


class Classifier(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.vit, self.head = model, keras.layers.Dense(3)

    def call(self, inputs):
        return self.head(self.vit(inputs))


def subclassed(model):
    classifier = Classifier(model)
    classifier(np.zeros((1, 32, 32, 3), "float32"))
    return classifier


# The last is one that Keras has not built yet, which it does at the first call.
@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(sequential, marks=pytest.mark.slow),
        pytest.param(nested_twice, marks=pytest.mark.core),
        extended,
        pytest.param(subclassed),
        Classifier,
    ],
)
def test_a_fine_tuned_model_has_the_map_of_its_vit(tiny, wrap):
    image = noise(50, 70, 3)
    expected = visualize.attention_map(tiny, image, return_map=True)
    result = visualize.attention_map(wrap(tiny), image, return_map=True)
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


def test_a_model_that_takes_pixels(tiny):
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Rescaling(1 / 127.5, offset=-1), tiny])
    image = noise(32, 32, 3)
    expected = visualize.attention_map(tiny, image, return_map=True)
    result = visualize.attention_map(model, image, return_map=True, preprocess=None)
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


def test_a_preprocessing_of_ones_own(tiny):
    image = noise(32, 32, 3)
    expected = visualize.attention_map(tiny, 255 - image, return_map=True)
    result = visualize.attention_map(tiny, image, return_map=True, preprocess=lambda x: 1 - x / 127.5)
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


@pytest.mark.parametrize("return_map", [True, False])
def test_a_batch_gives_what_its_images_give_one_by_one(tiny, return_map):
    images = noise(3, 40, 48, 3)
    result = visualize.attention_map(tiny, images, return_map=return_map)
    expected = np.stack([visualize.attention_map(tiny, image, return_map=return_map) for image in images])
    assert result.shape == expected.shape and result.dtype == expected.dtype
    # A picture may differ by one level, where rounding tips over.
    np.testing.assert_allclose(result.astype("float64"), expected, rtol=0, atol=SAME if return_map else 1)


def test_a_float_image_in_the_models_range_gives_the_map_of_its_pixels(tiny):
    image = noise(32, 32, 3)
    expected = visualize.attention_map(tiny, image, return_map=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = visualize.attention_map(tiny, vit.preprocess_inputs(image), return_map=True)
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


def test_a_grey_array_is_taken_for_rgb(tiny):
    grey = noise(32, 32)
    expected = visualize.attention_map(tiny, np.stack([grey] * 3, axis=-1))
    np.testing.assert_array_equal(visualize.attention_map(tiny, grey), expected)
    np.testing.assert_array_equal(visualize.attention_map(tiny, grey[..., None]), expected)


@pytest.mark.parametrize("channels", [1, 4])
def test_a_picture_of_other_channels_is_drawn_in_grey(channels):
    image = noise(40, 48, channels)
    model = build(channels=channels)
    heat = visualize.attention_map(model, image, return_map=True)
    grey = np.rint(image.mean(axis=-1, keepdims=True)).astype("uint8").repeat(3, axis=-1)
    np.testing.assert_array_equal(visualize.attention_map(model, image), visualize.overlay(grey, heat))


# -------------------------------------------------- attention known beforehand --


def warmth(picture):
    return picture[..., 0].astype(int) - picture[..., 2]


DIRECTION = np.tile([1.0, -1.0], 32)


def looks_for(feature, image_size, patch_size, layers=2, **options):
    """A model in which every token looks at the patches that have a feature, and blocks change nothing.

    `feature(model, direction)` sets the weights that put `direction` into the tokens of those patches.
    """
    model = build(image_size, patch_size, num_layers=layers, **options)
    model.set_weights([np.zeros_like(w) for w in model.get_weights()])
    feature(model, DIRECTION)
    for layer in model.layers:
        if "encoderblock" in layer.name:
            layer.layernorm1.gamma.assign(np.ones(64))
            layer.att.key_dense.kernel.assign(np.eye(64))
            layer.att.query_dense.bias.assign(10 * DIRECTION)
    return model


def at_position(index):
    def feature(model, direction):
        positions = model.get_layer("Transformer_posembed_input").pe
        table = np.zeros(positions.shape)
        table[0, index] = direction
        positions.assign(table)

    return feature


def bright(model, direction):
    """Patches that are lighter than mid-grey; the darker ones point the other way."""
    kernel = model.get_layer("embedding").kernel
    kernel.assign(np.ones(kernel.shape) / np.prod(kernel.shape[:3]) * direction)


RECTANGLES = [((32, 64), (8, 8)), ((32, 96), (8, 16)), ((64, 32), (16, 8))]


@pytest.mark.parametrize(("image_size", "patch_size"), RECTANGLES)
def test_patches_are_numbered_row_by_row(image_size, patch_size):
    model = looks_for(at_position(0), image_size, patch_size)
    grid = image_size[0] // patch_size[0], image_size[1] // patch_size[1]
    patches = grid[0] * grid[1]
    for patch in (0, 3, 6, 10, patches - 1):
        at_position(1 + patch)(model, DIRECTION)
        result = visualize.attention_map(model, noise(*image_size, 3), return_map=True)
        # All attention is on one patch, in both blocks: three quarters of the class token come from it. 1e-6: float32.
        expected = 0.75 * (np.arange(patches) == patch).reshape(grid)
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("pooling", "image_size", "patch_size"),
    [
        pytest.param("token", *RECTANGLES[0]),
        ("gap", *RECTANGLES[1]),
        *(
            pytest.param(pooling, *rectangle, marks=pytest.mark.slow)
            for pooling, rectangle in (("gap", RECTANGLES[0]), ("token", RECTANGLES[1]))
        ),
        *(pytest.param(pooling, *RECTANGLES[2], marks=pytest.mark.slow) for pooling in ("token", "gap")),
    ],
)
def test_the_map_is_highest_where_the_thing_is(image_size, patch_size, pooling):
    model = looks_for(bright, image_size, patch_size, pooling=pooling)
    grid = model.config.grid
    for scale, row, column in [(1, 0, 0), (3, 0, grid[1] - 1), (1, grid[0] - 1, 0), (3, 1, 2), (1, 2, 1)]:
        image = np.full((image_size[0] * scale, image_size[1] * scale, 3), 50, "uint8")
        height, width = patch_size[0] * scale, patch_size[1] * scale
        place = slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)
        image[place] = 250
        result = visualize.attention_map(model, image, return_map=True)
        assert np.unravel_index(result.argmax(), grid) == (row, column)
        assert result.max() > 0.7
        warm = warmth(visualize.attention_map(model, image))
        hottest = warm[place].max()
        warm[place] = 0
        assert hottest > warm.max()


# ------------------------------------------------------------------ compiling --


@pytest.fixture
def passes(tiny, monkeypatch):
    """A fresh model and a counter of how often the code of its attention layers ran."""
    model, count = build(eagerly=False), []
    original = layers.MultiHeadSelfAttention.call

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        count.append(self.name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(layers.MultiHeadSelfAttention, "call", call)
    return model, count


compiled_only = pytest.mark.only_on("tensorflow", "jax", reason="PyTorch runs eagerly")


@pytest.mark.core
@compiled_only
def test_a_second_image_runs_the_compiled_pass(passes):
    model, count = passes
    first = visualize.attention_map(model, noise(32, 32, 3), return_map=True)
    assert len(count) == 2  # blocks
    second = visualize.attention_map(model, noise(50, 70, 3, seed=1), return_map=True)
    assert len(count) == 2
    assert np.abs(second - first).max() > 1e-4  # and it is another map


@pytest.mark.core
def test_freezing_layers_does_not_change_the_map():
    model, image = build(dropout=0.0, eagerly=False), noise(32, 32, 3)
    expected = visualize.attention_map(model, image, return_map=True)
    for n in (0, 1):
        model.trainable = True
        model.get_layer(f"Transformer_encoderblock_{n}").trainable = False
        result = visualize.attention_map(model, image, return_map=True)
        np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


def test_the_map_follows_a_file_of_weights_that_brings_another_activation(tmp_path):
    source, model, image = build(mlp_activation="relu", eagerly=False), build(eagerly=False), noise(32, 32, 3)
    before = visualize.attention_map(model, image, return_map=True)
    source.save_weights(tmp_path / "relu.weights.h5")
    model.load_weights(tmp_path / "relu.weights.h5")
    expected = visualize.attention_map(source, image, return_map=True)
    assert np.abs(expected - before).max() > 1e-4
    result = visualize.attention_map(model, image, return_map=True)
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME)


@pytest.mark.core
def test_a_model_is_not_kept_alive():
    model = build(eagerly=False)
    visualize.attention_map(model, noise(32, 32, 3))
    attention_scores(model, vit.preprocess_inputs(noise(2, 32, 32, 3)))
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


# --------------------------------------------------------------------- errors --


def test_a_model_without_a_vit():
    model = keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(3)], name="plain")
    for read in (visualize.attention_map, attention_scores):
        with pytest.raises(ValueError, match="'plain', found 0"):
            read(model, noise(32, 32, 3))


def test_a_model_with_two_vits():
    inputs = keras.Input((32, 32, 3))
    first, second = (
        vit.build_model(32, patch, 1, 64, 2, name, 128, classes=10) for patch, name in ((8, "fine"), (16, "coarse"))
    )
    model = keras.Model(inputs, keras.layers.Add()([first(inputs), second(inputs)]), name="pair")
    with pytest.raises(ValueError, match="found 2: (fine, coarse|coarse, fine)"):
        visualize.attention_map(model, noise(32, 32, 3))


@pytest.mark.parametrize(("channels", "given"), [(3, 4), (3, 2), (1, 4), (4, 3)])
def test_an_image_of_the_wrong_channels(channels, given):
    with pytest.raises(ValueError, match=f"{channels} channels.*{given} channels"):
        visualize.attention_map(build(channels=channels), noise(32, 32, given))


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        *((np.zeros(shape), ValueError, "has the shape") for shape in [(32,), (1, 1, 32, 32, 3), (0, 32, 3)]),
        (np.zeros((0, 32, 32, 3)), ValueError, "has the shape"),
        (np.full((32, 32, 3), np.nan), ValueError, "not finite"),
        ("nothing.png", FileNotFoundError, "nothing.png"),
    ],
)
def test_what_is_no_image(tiny, image, error, message):
    with pytest.raises(error, match=message):
        visualize.attention_map(tiny, image)


# -------------------------------------------------------------------- overlay --


def test_one_outlier_does_not_darken_the_rest():
    heat = np.tile(np.linspace(0, 1, 14), (14, 1))
    heat[0, 0] = 100
    image = grey_image(140, 140, level=60)
    column = slice(133, 138)  # where the map is 1, but for the outlier the highest there is
    robust = warmth(visualize.overlay(image, heat))[70:, column].mean()
    plain = warmth(visualize.overlay(image, heat, clip=100))[70:, column].mean()
    heat[0, 0] = 0
    alone = warmth(visualize.overlay(image, heat))[70:, column].mean()
    assert robust > 0.9 * alone  # as if the outlier were not there
    assert plain < 0.2 * alone  # stretched to the maximum nothing is left

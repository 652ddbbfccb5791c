"""Which map is faithful: removed tokens against really removed ones, the pointing game, and randomised weights."""

import functools
import json
import math

import keras
import numpy as np
import pytest
from support import noise, tiny_model

from vit_keras import anatomy, layers, merge_tokens, visualize, vit
from vit_keras.anatomy.dry_run import readout
from vit_keras.anatomy.parts import prefix_names
from vit_keras.visualize import faithfulness
from vit_keras.visualize.faithfulness import (
    evaluate_maps,
    grid_pointing_game,
    masked_pass,
    randomization_check,
    spearman,
)
from vit_keras.visualize.faithfulness.case import Case

BACKEND = keras.backend.backend()


build = functools.partial(tiny_model, num_layers=2, hidden_size=32, mlp_dim=64, classes=10, scale=0.2)


@pytest.fixture(scope="module")
def tiny():
    return build(eagerly=False)  # what many tests run many times


def nested(model):
    """A fine-tuned model, as people make them."""
    base = keras.Model(model.inputs, model.get_layer("ExtractToken").output)
    outer = keras.Sequential([keras.Input((32, 32, 3)), base, keras.layers.Dense(4, activation="softmax")])
    outer.layers[-1].kernel.assign(0.2 * np.random.default_rng(2).standard_normal((32, 4)))
    outer.run_eagerly = base.run_eagerly = BACKEND != "jax"
    return outer


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


# ------------------------------------------------------------- removed tokens --

# Everything in float32; a softmax over fewer tokens against one over all, cut out and divided by its sum.
SAME = 2e-5

KINDS = {
    "class token": {"image_size": (32, 64), "patch_size": (8, 16), "registers": 3},
    "mean": {"pooling": "gap", "registers": 2},
    "mean, then normalised": {"pooling": "gap", "final_norm": "pooled", "image_size": (16, 32)},
    "mean of all": {"pooling": "all"},
    "class token and mean": {"pooling": "token+gap"},
    "map": {"pooling": "map"},
    "two class tokens": {"pooling": "token+dist", "distillation_token": True},
    "tokens": {"pooling": None},
}


def run_by_hand(model, inputs, kept):
    """The model layer by layer; before the first block the tokens that are not kept are taken out of the sequence."""
    tokens_seen, outputs = {}, {}

    def of(tensor):
        return outputs[id(tensor)]

    outputs[id(model.inputs[0])] = keras.ops.convert_to_tensor(inputs)
    for layer in model.layers[1:]:
        given = layer._inbound_nodes[0].arguments
        args = [of(t) if isinstance(t, keras.KerasTensor) else t for t in given.args]
        args = [[of(t) for t in a] if isinstance(a, list) else a for a in args]
        if isinstance(layer, layers.TransformerBlock) and not tokens_seen:
            tokens_seen["first"] = True
            args[0] = keras.ops.take(args[0], kept, axis=1)
        outputs[id(layer.output)] = layer(*args)
    return array(of(model.output))


FEW = ("class token", "mean", "map")


@pytest.mark.parametrize("kind", [k if k in FEW else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_removed_tokens_might_as_well_not_be_there(kind):
    model = build(**KINDS[kind])
    case = Case(model, noise(2, *model.input_shape[1:]), "own", None, 16)
    patches = math.prod(case.grid)
    removed = np.random.default_rng(3).permutation(patches)[: patches // 2 + 1]
    prefix = len(prefix_names(model))
    kept = [*range(prefix), *(prefix + n for n in range(patches) if n not in removed)]
    expected = run_by_hand(model, case.inputs(case.pictures), kept)

    masks = case.masks(np.tile(removed, (2, 1)))
    inputs = keras.ops.convert_to_tensor(case.inputs(case.pictures))
    without = masked_pass._Removal(model, keras.ops.convert_to_tensor(masks))
    with layers.tap(without):
        result = array(model(inputs, training=False))
        features = array(masked_pass.pooled(model, readout(model), without.tokens, without.masks))
    if kind == "tokens":  # these go on with the others in the row; pooled is the class token
        np.testing.assert_allclose(result[:, kept], expected, rtol=0, atol=SAME * np.abs(expected).max())
        np.testing.assert_allclose(features, expected[:, 0], rtol=0, atol=SAME * np.abs(expected).max())
        return
    np.testing.assert_allclose(result, expected, rtol=0, atol=SAME * np.abs(expected).max())
    assert np.abs(result - array(model(inputs))).max() > 100 * SAME * np.abs(expected).max()
    if kind != "two class tokens":  # whose two heads read a token each
        logits = features @ array(model.get_layer("head").kernel) + array(model.get_layer("head").bias)
        np.testing.assert_allclose(logits, expected, rtol=0, atol=SAME * np.abs(expected).max())


@pytest.mark.parametrize(
    "positions",
    [pytest.param({"relative_positions": True}), pytest.param({"rope_theta": 100.0}, marks=pytest.mark.slow)],
    ids=str,
)
def test_removed_tokens_have_no_influence(positions):
    # These positions are for the whole grid, so that no shorter sequence can be run: what was removed may be anything.
    model = build(position=None, **positions)
    case = Case(model, noise(1, 32, 32, 3), "own", None, 16)
    other = case.pictures.copy()
    other[:, 8:16, 16:24] = 255 - other[:, 8:16, 16:24]  # patch 1 * 4 + 2
    masks = case.masks(np.array([[6]]))
    seen = [case.read("probability", pictures, masks) for pictures in (case.pictures, other)]
    np.testing.assert_allclose(*seen, rtol=0, atol=1e-6)  # probabilities, float32
    assert np.abs(case.read("probability", other) - case.read("probability")).max() > 1e-3


@pytest.mark.core
@pytest.mark.compiles_long
def test_similarity_is_the_cosine_of_what_the_head_reads(tiny):
    chosen = np.zeros((1, 4, 4))
    chosen[0, 1, 2], chosen[0, 3, 3] = 2, 1  # the two highest of 16
    image = noise(1, 32, 32, 3)
    inputs = vit.preprocess_inputs(image)
    result = evaluate_maps(tiny, image, {"chosen": lambda model, images: chosen}, fractions=[2 / 16])
    head = keras.Model(tiny.inputs, tiny.get_layer("ExtractToken").output)
    whole, left = (
        run_by_hand(head, inputs, [0, *(1 + n for n in range(16) if n not in lost)])[0] for lost in ([], [6, 15])
    )
    cosine = whole @ left / np.linalg.norm(whole) / np.linalg.norm(left)
    assert abs(result.deletion[0, 0] - cosine) < 1e-5  # float32 features of 32 numbers
    assert cosine < 0.999
    assert abs(result.full[0] - 1) < 1e-6


def test_probability_is_that_of_the_target_and_its_value_what_a_function_says(tiny):
    images = noise(3, 32, 32, 3)
    expected = keras.ops.softmax(tiny(vit.preprocess_inputs(images)))
    options = {"methods": "rollout", "fractions": [0.5]}
    result = evaluate_maps(tiny, images, target=[1, 2, 3], **options)
    np.testing.assert_allclose(result.full, array(expected)[range(3), [1, 2, 3]], rtol=0, atol=1e-6)  # float32
    assert result.score == "probability" and list(result.target) == [1, 2, 3]
    predicted = evaluate_maps(tiny, images, target="predicted", **options)
    np.testing.assert_array_equal(predicted.target, array(expected).argmax(axis=1))
    value = evaluate_maps(tiny, images, target=_first, **options)
    np.testing.assert_allclose(value.full, array(tiny(vit.preprocess_inputs(images)))[:, 0], rtol=0, atol=1e-5)
    assert value.score == "value" and value.target is None
    one = build(classes=1)
    found = evaluate_maps(one, images, target=0, **options).full
    expected = anatomy.probabilities(one, one(vit.preprocess_inputs(images)))
    np.testing.assert_allclose(found, expected[:, 0], rtol=0, atol=1e-6)


def _first(outputs):
    return outputs[:, 0]


def test_probabilities_of_a_model_that_ends_in_them_are_taken_as_they_are(tiny):
    outer, images = nested(tiny), noise(2, 32, 32, 3)
    result = evaluate_maps(outer, images, ["rollout", "relevance"], target=2, fractions=[0.5])
    np.testing.assert_allclose(result.full, array(outer(vit.preprocess_inputs(images)))[:, 2], rtol=0, atol=1e-6)
    assert result.gap.shape == (3, 2)


# -------------------------------------------------------------------- tables --


def test_pixels_are_replaced_patch_by_patch(tiny):
    image = noise(1, 32, 32, 3)
    ranks = np.arange(16.0).reshape(1, 4, 4)  # the last row of patches is the highest
    result = evaluate_maps(
        tiny, image, {"ranks": lambda model, images: ranks}, metric="pixel", target=3, fractions=[0.25]
    )
    for rows, found in ((slice(24, 32), result.deletion), (slice(0, 8), result.insertion)):
        without = image.astype("float64")
        without[:, rows] = image.mean(axis=(1, 2), keepdims=True)
        expected = keras.ops.softmax(tiny(vit.preprocess_inputs(without)))[0, 3]
        assert abs(found[0, 0] - array(expected)) < 1e-6  # float32


@pytest.fixture(scope="module")
def result(tiny):
    return evaluate_maps(tiny, noise(4, 32, 32, 3), ["rollout", "alti", "relevance"], fractions=(0.2, 0.6))


def test_the_table_says_what_the_arrays_say(result):
    rows = result.rows()
    assert [row["method"] for row in rows] == ["rollout", "alti", "relevance", "random"]
    assert result.deletion_curves.shape == (4, 4, 2)
    gap = result.insertion_curves.mean(axis=2) - result.deletion_curves.mean(axis=2)
    gain = gap[1] - gap[0]
    assert rows[1]["gap"] == pytest.approx(gap[1].mean(), abs=1e-12)
    assert rows[1]["gain"] == pytest.approx(gain.mean(), abs=1e-12)
    assert rows[1]["error"] == pytest.approx(gain.std(ddof=1) / 2, abs=1e-12)  # the root of 4 images
    assert rows[1]["wins"] == (gain > 0).sum() and rows[1]["images"] == 4
    assert rows[0]["gain"] is None and rows[0]["wins"] is None
    lines = str(result).splitlines()
    assert len(lines) == 6 and "20%, 60%" in lines[0] and "4 images" in lines[0]
    assert lines[1].index("gap") == lines[3].index(f"{rows[1]['gap']:.3f}") + 5 - len("gap")  # aligned at the right
    assert f"{rows[1]['gain']:+.3f} ± {rows[1]['error']:.3f}" in lines[3]


def test_it_is_the_same_again_and_random_maps_follow_the_seed(tiny, result):
    again = evaluate_maps(tiny, noise(4, 32, 32, 3), ["rollout", "alti", "relevance"], fractions=(0.2, 0.6))
    np.testing.assert_array_equal(again.deletion_curves, result.deletion_curves)
    other = evaluate_maps(tiny, noise(4, 32, 32, 3), "rollout", fractions=(0.2, 0.6), seed=1)
    np.testing.assert_array_equal(other.deletion_curves[0], result.deletion_curves[0])
    assert np.abs(other.deletion_curves[-1] - result.deletion_curves[-1]).max() > 1e-4


def test_the_size_of_the_batch_does_not_change_the_numbers(tiny, result):
    methods = ["rollout", "alti", "relevance"]
    other = evaluate_maps(tiny, noise(4, 32, 32, 3), methods, fractions=(0.2, 0.6), batch_size=3)
    np.testing.assert_allclose(other.gap, result.gap, rtol=0, atol=1e-5)  # float32 sums of other lengths


def test_methods_may_be_functions_and_maps_of_pixels(tiny):
    images = noise(2, 40, 60, 3)  # resized to 32 x 32
    seen = []

    def pixels(model, images, target):
        seen.append((images.shape, images.dtype, target))
        return np.repeat(np.repeat(ranks, 8, axis=1), 8, axis=2)[..., None]

    ranks = np.random.default_rng(0).random((2, 4, 4))
    result = evaluate_maps(tiny, images, {"patches": lambda model, images: ranks, "pixels": pixels}, target=[3, 4])
    np.testing.assert_allclose(result.gap[0], result.gap[1], rtol=0, atol=1e-6)
    assert seen[0][:2] == ((2, 32, 32, 3), np.uint8) and list(seen[0][2]) == [3, 4]


def test_arguments_of_attention_map_make_other_methods(tiny):
    methods = {"all": "rollout", "last": {"method": "rollout", "start_layer": 1}}
    images = noise(2, 32, 32, 3)
    result = evaluate_maps(tiny, images, methods)
    last = functools.partial(visualize.attention_map, method="rollout", start_layer=1, return_map=True)
    assert np.abs(result.gap[0] - result.gap[1]).max() > 1e-4
    np.testing.assert_array_equal(evaluate_maps(tiny, images, {"last": last}).gap[0], result.gap[1])
    by_default = evaluate_maps(tiny, images, {"last": {"start_layer": 1}, "class 2": {"target": 2}})
    np.testing.assert_array_equal(by_default.gap[0], result.gap[1])
    of_class = evaluate_maps(tiny, images, {"class 2": {"method": "relevance", "target": 2}})
    np.testing.assert_array_equal(by_default.gap[1], of_class.gap[0])


def test_numbers_have_no_probability():
    model = build(classes=1)
    model.task = "regression"
    with pytest.raises(ValueError, match="probability"):
        evaluate_maps(model, noise(1, 32, 32, 3), ["rollout"], target="predicted")
    assert evaluate_maps(model, noise(1, 32, 32, 3), ["rollout"], target=_first, fractions=[0.5]).score == "value"


def test_a_model_without_classes_is_evaluated_by_its_features_and_by_a_function(tiny):
    base, images = nested(tiny).layers[0], noise(2, 32, 32, 3)
    relevance = {"method": "relevance", "target": _first}
    result = evaluate_maps(base, images, {"relevance": relevance, "rollout": "rollout"}, fractions=[0.5])
    whole = evaluate_maps(tiny, images, "rollout", fractions=[0.5])
    np.testing.assert_allclose(result.gap[1], whole.gap[0], rtol=0, atol=1e-5)  # float32
    assert result.gap.std(axis=1).all()
    assert len(randomization_check(base, images[:1], relevance).stages) == 4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"metric": "tokens"}, ValueError, "metric .*'token_removal', 'pixel'"),
        ({"methods": ["cam"]}, ValueError, "method must be one of 'rollout'"),
        ({"methods": []}, ValueError, "methods must be one or more"),
        ({"methods": {"random": "rollout"}}, ValueError, "'random' is always added"),
        ({"methods": {"mine": 3}}, TypeError, "A method is a name.*Received: 3"),
        ({"methods": [len]}, TypeError, "Functions need names"),
        ({"methods": {"mine": lambda m, x: np.ones((1, 3, 3))}}, ValueError, r"Received: \(1, 3, 3\)"),
        ({"methods": {"mine": lambda m, x: np.full((1, 4, 4), np.nan)}}, ValueError, "not finite"),
        ({"fractions": [0, 0.5]}, ValueError, "fractions must be .* between 0 and 1"),
        ({"target": 10}, ValueError, "classes 0 to 9. Received: 10"),
        ({"target": lambda outputs: outputs}, ValueError, "one number for each image"),
        ({"batch_size": 0}, ValueError, "batch_size must be a positive integer"),
    ],
)
def test_mistakes_are_named(tiny, options, error, message):
    with pytest.raises(error, match=message):
        evaluate_maps(tiny, noise(1, 32, 32, 3), **{"methods": ["rollout"], **options})


def test_merged_tokens_cannot_be_removed_but_their_pixels_can():
    merged, image = merge_tokens(build(), 2), noise(1, 32, 32, 3)
    with pytest.raises(ValueError, match="merge_tokens"):
        evaluate_maps(merged, image, ["rollout"])
    found = evaluate_maps(merged, image, ["rollout"], metric="pixel", target=1, fractions=[0.5])
    expected = anatomy.probabilities(merged, merged(vit.preprocess_inputs(image)))[:, 1]
    np.testing.assert_allclose(found.full, expected, rtol=0, atol=1e-6)  # float32


def test_a_mosaic_has_at_least_a_patch_for_each_tile(tiny):
    with pytest.raises(ValueError, match="tiles="):
        grid_pointing_game(tiny, noise(5, 32, 32, 3), "rollout", classes=range(5), tiles=(5, 1))


def test_no_images_is_a_mistake(tiny):
    with pytest.raises(ValueError, match="There are no images"):
        evaluate_maps(tiny, [], ["rollout"])


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_model_that_pools_by_itself_is_not_read_with_removed_tokens():
    base = build(pooling=None)
    pooled = keras.layers.GlobalAveragePooling1D()(base.output)
    model = keras.Model(base.input, keras.layers.Dense(3)(pooled))
    with pytest.raises(ValueError, match="pools .*metric='pixel'"):
        evaluate_maps(model, noise(1, 32, 32, 3), ["rollout"], target=1)
    assert evaluate_maps(model, noise(1, 32, 32, 3), ["rollout"], metric="pixel", target=1).gap.shape == (2, 1)
    features = evaluate_maps(model, noise(1, 32, 32, 3), ["rollout"], fractions=[0.5])  # compiled, of the mean
    assert 0 < features.deletion[0, 0] < 1
    with pytest.raises(ValueError, match="classes"):
        evaluate_maps(base, noise(1, 32, 32, 3), ["rollout"], metric="pixel", target=1)


def test_a_mixer_can_be_evaluated_by_pixels():
    model = build(tokens_mlp_dim=8, pooling="gap", position=None, num_layers=1)
    methods = {"ranks": lambda model, images: np.arange(16.0).reshape(1, 4, 4)}
    result = evaluate_maps(model, noise(1, 32, 32, 3), methods, metric="pixel", target=1)
    assert result.deletion[0, 0] != result.insertion[0, 0]
    for metric in faithfulness.METRICS:
        with pytest.raises(ValueError, match="no attention layer"):
            evaluate_maps(model, noise(1, 32, 32, 3), methods, metric=metric)


# ----------------------------------------------------------- the pointing game --


@pytest.fixture(scope="module")
def trained():
    """A tiny model that tells the four colours of a square on noise, wherever it is; and pictures for it."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 0]])

    def pictures(count):
        images, labels = rng.integers(90, 160, (count, 32, 32, 3)), rng.integers(0, 4, count)
        for image, label in zip(images, labels):
            side = rng.choice([4, 8, 12])
            top, left = rng.integers(0, 32 - side, 2)
            image[top : top + side, left : left + side] = colours[label]
        return images.astype("uint8"), labels

    model = vit.build_model(32, 4, 2, 32, 2, "tiny", 64, classes=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["acc"], jit_compile=False)
    images, labels = pictures(512)
    history = model.fit(vit.preprocess_inputs(images), labels, batch_size=32, epochs=4, verbose=0)
    assert history.history["acc"][-1] > 0.9
    return model, *pictures(16)


def test_a_map_that_is_of_no_class_scores_exactly_by_chance(trained):
    model, images, labels = trained
    for grid in (2, (1, 2), (3, 1)):
        result = grid_pointing_game(model, images, "rollout", classes=labels, tiles=grid)
        np.testing.assert_allclose(result.energy.mean(axis=1), result.chance, rtol=0, atol=1e-12)  # float64
        assert result.error < 1e-12 and result.chance == 1 / math.prod(result.tiles)


def test_a_map_of_a_class_finds_it(trained):
    model, images, labels = trained
    result = grid_pointing_game(model, images, "relevance", classes=labels, mosaics=6)
    assert result.energy.shape == (6, 4)
    assert result.mean > 0.35  # 0.25 by chance


def test_the_truth_scores_1_and_its_opposite_0(trained):
    model, images, labels = trained

    def truth(model, mosaics, target):
        maps = np.zeros((len(mosaics), 8, 8))
        for n, heat in enumerate(maps):
            down, across = divmod(n % 4, 2)  # the targets of a mosaic come in the order of its pictures
            heat[4 * down : 4 * down + 4, 4 * across : 4 * across + 4] = 1
        return maps

    right = grid_pointing_game(model, images, truth, classes=labels)
    assert (right.energy == 1).all() and right.hits.all()
    wrong = grid_pointing_game(model, images, lambda m, x, target: -truth(m, x, target), classes=labels)
    np.testing.assert_array_equal(wrong.energy, 0.25)  # nothing is positive: a blank map
    other = grid_pointing_game(model, images, lambda m, x, target: truth(m, x, target)[::-1], classes=labels)
    assert not other.energy.any() and not other.hits.any()


def test_mosaics_are_made_of_pictures_of_different_classes(trained):
    model, images, _ = trained
    labels = np.arange(16) % 5
    result = grid_pointing_game(model, images, lambda m, x: np.ones((len(x), 8, 8)), classes=labels % 4, mosaics=9)
    assert result.mosaics.shape == (9, 32, 32, 3) and result.mosaics.dtype == np.uint8
    assert all(len(set(row)) == 4 for row in result.target)
    np.testing.assert_array_equal(result.target, (labels % 4)[result.pictures])
    once = grid_pointing_game(model, images, lambda m, x: np.ones((len(x), 8, 8)), classes=labels % 4)
    assert len(set(once.pictures.ravel())) == once.pictures.size
    np.testing.assert_array_equal(once.pictures, result.pictures[: len(once.pictures)])
    corner = images[once.pictures[0, 3]].reshape(16, 2, 16, 2, 3).mean(axis=(1, 3))
    assert np.abs(once.mosaics[0, 16:, 16:] - corner).max() <= 0.5  # rounded


def test_by_default_a_picture_is_of_the_class_that_the_model_predicts(trained):
    model, images, _ = trained
    result = grid_pointing_game(model, images, "rollout")
    predicted = array(model(vit.preprocess_inputs(images))).argmax(axis=1)
    np.testing.assert_array_equal(result.target, predicted[result.pictures])
    assert "chance 0.250" in str(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": [0] * 8 + [1] * 8}, "Received: 16 of 2 classes"),
        ({"tiles": 1}, "two or more"),
        ({"tiles": (1, 9)}, "different classes"),
        ({"classes": 4}, "classes 0 to 3"),
        ({"mosaics": 0}, "mosaics must be a positive integer"),
    ],
)
def test_mistakes_of_the_game_are_named(trained, options, message):
    model, images, labels = trained
    with pytest.raises(ValueError, match=message):
        grid_pointing_game(model, images, **{"classes": labels, **options})


# ---------------------------------------------------------- randomised weights --


def test_rank_correlation():
    assert spearman([1, 2, 3], [10, 100, 1000]) == pytest.approx(1, abs=1e-12)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1, abs=1e-12)
    # d = (0, 1, 1, 0): 1 - 6 * 2 / (4 * 15)
    assert spearman([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8, abs=1e-12)
    # ranks 1, 2.5, 2.5, 4 and 1 … 4: 4.5 / sqrt(4.5 * 5)
    assert spearman([[1, 2], [2, 3]], [[1, 2], [3, 4]]) == pytest.approx(4.5 / math.sqrt(22.5), abs=1e-12)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0
    with pytest.raises(ValueError, match="3 and 2 values"):
        spearman([1, 2, 3], [1, 2])


def test_a_map_of_trained_weights_does_not_survive_them(trained):
    model, images, _ = trained
    before = [array(w).copy() for w in model.weights]
    result = randomization_check(model, images[:4])
    assert result.stages == ("head", "block 1", "block 0", "embedding")
    assert result.correlation.shape == (4, 4) and result.maps.shape == (5, 4, 8, 8)
    assert result.rows()[-1]["correlation"] < 0.4
    assert all(np.array_equal(a, array(b)) for a, b in zip(before, model.weights))
    assert "block 1" in str(result)
    classes = result.maps[0]
    relevance = visualize.attention_map(model, images[:4], method="relevance", return_map=True)
    np.testing.assert_allclose(classes, relevance, rtol=0, atol=1e-6 * np.abs(relevance).max())


def test_rollout_does_not_see_the_head_and_edges_see_no_weights(tiny):
    images = noise(2, 32, 32, 3)
    rollout = randomization_check(tiny, images, "rollout")
    np.testing.assert_allclose(rollout.correlation[0], 1, rtol=0, atol=1e-9)
    assert rollout.correlation[-1].max() < 0.9
    edges = randomization_check(tiny, images, lambda model, images: images.std(axis=-1))
    np.testing.assert_allclose(edges.correlation, 1, rtol=0, atol=1e-9)


def test_all_weights_of_a_fine_tuned_model_are_randomised_and_put_back_after_an_error(tiny):
    model = nested(tiny)
    before = [array(w).copy() for w in model.weights]
    seen = []

    def fails(inner, images):
        seen.append([array(w).copy() for w in inner.weights])
        if len(seen) == 5:
            raise RuntimeError("on the way")
        return np.ones((len(images), 4, 4))

    with pytest.raises(RuntimeError, match="on the way"):
        randomization_check(model, noise(1, 32, 32, 3), fails)
    changed = [w.path for w, a, b in zip(model.weights, before, seen[-1]) if a.size > 8 and np.array_equal(a, b)]
    assert changed == [] and len(seen[-1]) == len(before)
    head = [not np.array_equal(a, b) for a, b in zip(before, seen[1])]
    assert head[-2] and not any(head[:-6])  # the dense head, its bias, and the last normalisation
    assert all(np.array_equal(a, array(b)) for a, b in zip(before, model.weights))


# ---------------------------------------------------------------- real weights --


@pytest.fixture(scope="module")
def real(request):
    import vit_keras

    folder = request.getfixturevalue("shared")
    model = vit_keras.from_checkpoint(str(request.getfixturevalue("real_weights")))
    labels = json.loads((folder / "images" / "labels.json").read_text())
    return model, [folder / "images" / name for name in sorted(labels)], [labels[name] for name in sorted(labels)]

"""Whatever stands before and after the ViT: its input and the recorded logits are what the model computes by hand."""

import functools
import re

import keras
import numpy as np
import pytest
from recordings import recording
from support import ROOT

from vit_keras import layers, preprocess, visualize, vit

SIZE = 32
PICTURE = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype="uint8")
SAME = {"rtol": 1e-4, "atol": 1e-5}  # float32, in another order
CLIP = preprocess.CLIP


def build(preprocessing=None, **options):
    """A tiny model whose attention is far from uniform, of the same weights each time."""
    model = vit.build_model(SIZE, 8, 2, 32, 2, "tiny", 64, **{"classes": 6, **options})
    rng = np.random.default_rng(1)
    for weight in model.weights:
        weight.assign(0.2 * rng.standard_normal(weight.shape) + (weight.name == "gamma"))
    if preprocessing is not None:
        model.preprocessing = preprocessing
    return model


def sequential(*parts, size=SIZE):
    return keras.Sequential([keras.Input((size, size, 3)), *parts])


def functional(before=None, after=None):
    inputs = keras.Input((SIZE, SIZE, 3))
    model = build()
    outputs = model(inputs if before is None else before(inputs))
    return keras.Model(inputs, outputs if after is None else after(outputs))


def nested_twice(model):
    return sequential(sequential(model), keras.layers.Dropout(0.1))


def with_rescaling_behind():
    return functional(after=keras.layers.Rescaling(2.0))


NORMALIZED, PIXELS, UNIT = (lambda x: (x - 127.5) / 127.5), (lambda x: x), (lambda x: x / 255)
OF_CLIP = CLIP.normalize

# {name: (what makes the model, what its input is of pixels in [0, 255], whether it returns probabilities)}
MODELS = {
    "plain": (build, NORMALIZED, False),
    "plain, of CLIP": (lambda: build(CLIP), OF_CLIP, False),
    "rescaling before": (lambda: sequential(keras.layers.Rescaling(1 / 127.5, -1), build()), PIXELS, False),
    "rescaling from [0, 1] before": (lambda: sequential(keras.layers.Rescaling(2, -1), build()), UNIT, False),
    "preprocessing before": (
        lambda: sequential(preprocess.Preprocess(CLIP, SIZE), build(CLIP), size=None),
        PIXELS,
        False,
    ),
    "augmentation before": (lambda: sequential(keras.layers.RandomFlip(), build()), NORMALIZED, False),
    "augmentation before, of CLIP": (lambda: sequential(keras.layers.RandomContrast(0.5), build(CLIP)), OF_CLIP, False),
    "operations before": (lambda: functional(lambda x: x / 127.5 - 1), PIXELS, False),
    "rescaling behind": (with_rescaling_behind, NORMALIZED, False),
    "dropout last": (lambda: sequential(build(), keras.layers.Dropout(0.5)), NORMALIZED, False),
    "softmax last": (lambda: sequential(build(), keras.layers.Softmax()), NORMALIZED, True),
    "activation last": (lambda: sequential(build(), keras.layers.Activation("softmax")), NORMALIZED, True),
    "operation last": (lambda: functional(after=keras.ops.softmax), NORMALIZED, True),
    "softmax inside": (lambda: nested_twice(build(activation="softmax")), NORMALIZED, True),
    "softmax, then dropout": (
        lambda: sequential(build(), keras.layers.Softmax(), keras.layers.Dropout(0.5)),
        NORMALIZED,
        True,
    ),
    "two outputs": (lambda: functional(after=lambda x: {"kind": x, "age": x[:, :1]}), NORMALIZED, None),
    "nested twice": (lambda: nested_twice(sequential(keras.layers.Rescaling(1 / 127.5, -1), build())), PIXELS, False),
    "no head": (lambda: build(include_top=False), NORMALIZED, False),
}


@functools.cache
def of_kind(kind):
    make, feed, _ = MODELS[kind]
    model = make()
    model.run_eagerly = True
    return model, by_hand(model, feed(PICTURE.astype("float64")[None]).astype("float32"))


def by_hand(model, inputs):
    """(tokens that reach the first block, attention of the blocks, output) of a model called on inputs."""
    tokens = []

    def see(layer, name, tensor):
        if name == "tokens":
            tokens.append(keras.ops.convert_to_numpy(tensor))
        return tensor

    with layers.tap(see):
        outputs = keras.tree.map_structure(keras.ops.convert_to_numpy, model(inputs, training=False))
    with layers.record_attention() as scores:
        model(inputs, training=False)
    return tokens[0], np.stack([keras.ops.convert_to_numpy(s) for s in scores]), outputs


@pytest.mark.parametrize("kind", MODELS)
def test_what_reaches_the_vit_and_the_logits(kind):
    model, (tokens, scores, outputs) = of_kind(kind)
    recording = visualize.record(model, PICTURE)
    np.testing.assert_allclose(recording.tokens[0], tokens, **SAME)
    np.testing.assert_allclose(recording.attention, scores, **SAME)
    is_probabilities = MODELS[kind][2]
    if is_probabilities is None:
        assert recording.logits is None
        return
    logits = keras.ops.convert_to_numpy(keras.ops.softmax(recording.logits)) if is_probabilities else recording.logits
    np.testing.assert_allclose(logits, outputs, **SAME)


FEW = ("rescaling before", "augmentation before, of CLIP", "softmax, then dropout")


@pytest.mark.parametrize("kind", [k if k in FEW else pytest.param(k, marks=pytest.mark.slow) for k in MODELS])
def test_the_map(kind):
    model, (_, scores, _) = of_kind(kind)
    made = recording(len(scores), 1, scores.shape[2], (4, 4), attention=scores)
    expected = visualize.attention_rollout(made)[0]
    heat = visualize.attention_map(model, PICTURE, return_map=True)
    np.testing.assert_allclose(heat, expected, **SAME)


@pytest.mark.parametrize("kind", [kind for kind, (_, _, probabilities) in MODELS.items() if probabilities])
def test_a_softmax_at_the_end_changes_no_gradient_and_stays(kind):
    model, (_, _, outputs) = of_kind(kind)
    found, plain = (visualize.record(m, PICTURE, target=2, keep="attention") for m in (model, of_kind("plain")[0]))
    np.testing.assert_allclose(found.gradients, plain.gradients, **SAME)
    after = model(MODELS[kind][1](PICTURE.astype("float64")[None]).astype("float32"), training=False)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(after), outputs, **SAME)


@pytest.mark.parametrize("target", [2, "predicted"])
def test_features_are_no_classes(target):
    with pytest.raises(ValueError, match="no head.*target"):
        visualize.attention_map(of_kind("no head")[0], PICTURE, method="relevance", target=target)


def test_all_maps_are_those_of_each_method():
    model, _ = of_kind("softmax last")
    for target in (None, 3):
        maps = visualize.all_maps(model, PICTURE, target)
        names = [name for name, method in visualize.METHODS.items() if target is not None or not method.of_class]
        assert list(maps) == names
        for name, heat in maps.items():
            options = {"target": target} if visualize.METHODS[name].of_class else {}
            expected = visualize.attention_map(model, PICTURE, method=name, return_map=True, **options)
            np.testing.assert_allclose(heat, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert visualize.all_maps(model, PICTURE[None])["alti"].shape == (1, 4, 4)


def test_the_guide_to_a_new_kind_of_map():
    text = (ROOT / "docs" / "faithfulness.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(
        r"```python\n(.*?)```", text[text.index("## Add a kind of map") :].split("\n## ")[0], re.DOTALL
    )
    model, _ = of_kind("plain")
    try:
        names = {"model": model, "pictures": [PICTURE]}
        exec(compile(snippet.replace("layer=5", "layer=0"), "faithfulness.md", "exec"), names)
        assert names["picture"].shape == PICTURE.shape
        assert visualize.all_maps(model, PICTURE)["change"].shape == (4, 4)
        with pytest.raises(TypeError, match="'query' .*method='change'"):
            visualize.attention_map(model, PICTURE, method="change", query="cls")
    finally:
        del visualize.METHODS["change"]


# ------------------------------------------------------------------ mistakes --


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": "grad-cam"}, ValueError, "Did you mean 'gradcam'"),
        ({"style": "overlays"}, ValueError, "Did you mean 'overlay'"),
        ({"cmap": "viridis"}, TypeError, "'cmap'.*overlay.*return_map=True"),
        ({"start_layers": 1}, TypeError, "'start_layers'.*'start_layer'.*query"),
        ({"layer": 1}, TypeError, "'layer' .*'rollout'.*attention, gradcam"),
        ({"method": "legrad", "query": "cls"}, TypeError, "'query' .*'legrad'.*start_layer"),
        ({"target": 1, "method": "alti"}, ValueError, "for a class are relevance"),
    ],
)
def test_mistakes_name_what_would_work(options, error, message):
    with pytest.raises(error, match=message):
        visualize.attention_map(of_kind("plain")[0], PICTURE, **options)


def test_mistakes_of_record_name_what_would_work():
    model = of_kind("plain")[0]
    with pytest.raises(TypeError, match="'head'.*'head_fusion'"):
        visualize.record(model, PICTURE, head="mean")
    with pytest.raises(ValueError, match="keep .*'values'"):
        visualize.record(model, PICTURE, keep=("value",))
    with pytest.raises(ValueError, match="'mean'"):
        visualize.record(model, PICTURE, head_fusion="means")


# ------------------------------------------------------- a picture that is squeezed --

"""Recordings: what is kept is what the layers computed, gradients are those of finite differences, in any model."""

import functools
import threading
import warnings

import keras
import numpy as np
import pytest
from support import noise, tiny_model

from vit_keras import layers, training, visualize, vit
from vit_keras.visualize import forward_pass, gradients

SAME = {"rtol": 1e-4, "atol": 1e-5}  # float32, in another order
SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


build = functools.partial(
    tiny_model, image_size=(32, 48), num_layers=2, hidden_size=32, mlp_dim=64, classes=6, scale=0.15
)


tiny = functools.cache(build)


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


IMAGES = noise(2, 32, 48, 3)

KINDS = {
    "class token": ({}, ("cls",), [0]),
    "mean of patches": ({"pooling": "gap"}, (), range(24)),
    "class token, but the mean is read": ({"pooling": "gap", "class_token": True}, ("cls",), range(1, 25)),
    "all tokens are read": ({"pooling": "all"}, ("cls",), range(25)),
    "registers": ({"registers": 3}, ("cls", "reg0", "reg1", "reg2"), [0]),
    "registers, no class token": ({"registers": 2, "pooling": "gap"}, ("reg0", "reg1"), range(2, 26)),
    "distilled": ({"pooling": "token+dist", "distillation_token": True}, ("cls", "dist"), [0, 1]),
    "no pooling": ({"pooling": None, "include_top": False}, ("cls",), [0]),
    "rotary": ({"rope_theta": 100.0, "position": None, "layer_scale": 0.3, "registers": 1}, ("cls", "reg0"), [0]),
    "relative": ({"relative_positions": True}, ("cls",), [0]),
    "hybrid": ({"resnet": (1,), "image_size": (64, 96)}, ("cls",), [0]),
    "any size": ({"image_size": None, "position_grid": (4, 6)}, ("cls",), [0]),
}


# -------------------------------------------------------------- what is kept --


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_before_the_patches_and_what_the_output_reads(kind):
    options, prefix, read = KINDS[kind]
    model = tiny(**options)
    recording = visualize.record(model, IMAGES, keep="tokens")
    tokens = len(prefix) + 24 if kind != "hybrid" else recording.tokens.shape[2]
    assert recording.prefix == prefix
    assert recording.tokens.shape == (3, 2, tokens, 32)
    expected = np.zeros(tokens)
    expected[list(read)] = 1 / len(read)
    np.testing.assert_allclose(recording.readout, [expected] * 2, rtol=0, atol=1e-7)  # rounded to float32
    # It is what the head was given: the readout of the features, were its activations linear.
    if kind in ("class token", "mean of patches", "all tokens are read"):
        pooled = np.einsum("bn,bnd->bd", recording.readout, recording.features)
        kernel, bias = model.get_layer("head").get_weights()
        np.testing.assert_allclose(pooled @ kernel + bias, recording.logits, **SAME)


@pytest.mark.core
@pytest.mark.compiles_long
def test_what_is_kept_is_what_the_layers_compute():
    model = tiny(layer_scale=0.3, registers=1)
    recording = visualize.record(model, IMAGES, keep=("attention", "values", "tokens", "normed"), target=1)
    blocks = [layer for layer in model.layers if isinstance(layer, layers.TransformerBlock)]
    assert recording.layers == (0, 1) and recording.patch_size == (8, 8) and recording.grid == (4, 6)
    for n, block in enumerate(blocks):
        tokens = keras.ops.convert_to_tensor(recording.tokens[n])
        after, scores = block(tokens, return_attention_scores=True)
        np.testing.assert_allclose(recording.attention[n], numpy(scores), **SAME)
        np.testing.assert_allclose(recording.tokens[n + 1], numpy(after), **SAME)
        np.testing.assert_allclose(recording.normed[n], numpy(block.layernorm1(tokens)), **SAME)
        # What the attention adds to the residual stream is attention x values x projections, and a bias.
        added = np.einsum("bhij,bhjd,hdD->biD", recording.attention[n], recording.values[n], recording.projections[n])
        bias = numpy(block.att.combine_heads.bias) * numpy(block.layerscale1.gamma)
        expected = block.layerscale1(block.att(block.layernorm1(tokens)))
        np.testing.assert_allclose(added + bias, numpy(expected), **SAME)
    norm = model.get_layer("Transformer_encoder_norm")
    np.testing.assert_allclose(recording.features, numpy(norm(recording.tokens[-1])), **SAME)
    np.testing.assert_allclose(recording.logits, numpy(model(vit.preprocess_inputs(IMAGES))), **SAME)


@pytest.mark.parametrize("lora", [False, SLOW(True)])
@pytest.mark.parametrize("mode", ["int8", "int4"])
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_projections_of_a_quantized_model_are_those_before(mode, lora):
    model = build()
    before = visualize.record(model, IMAGES).projections
    model.quantize(mode)
    if lora:
        training.add_lora(model, rank=2)
    found = visualize.record(model, IMAGES).projections
    step = np.abs(before).max() / {"int8": 127, "int4": 7}[mode]
    np.testing.assert_allclose(found, before, rtol=0, atol=1.1 * step)


def test_some_layers_only():
    whole, last = (visualize.record(tiny(num_layers=3), IMAGES, layers) for layers in (None, [-1, 1]))
    assert last.layers == (1, 2)
    for field in ("attention", "values", "projections"):
        np.testing.assert_allclose(getattr(last, field), getattr(whole, field)[1:], **SAME)
    np.testing.assert_allclose(last.tokens, whole.tokens[1:], **SAME)
    first = visualize.record(tiny(num_layers=3), IMAGES, layers=0)
    np.testing.assert_allclose(first.tokens, whole.tokens[:2], **SAME)
    assert first.features is None  # the last block was not recorded
    assert visualize.record(tiny(), IMAGES, keep="tokens").attention is None


@pytest.mark.parametrize("kind", ["class token", SLOW("registers, no class token"), SLOW("distilled")])
def test_fewer_heads_and_rows_are_those_of_all(kind):
    model = tiny(**KINDS[kind][0])
    whole = visualize.record(model, IMAGES, target=2)
    for heads, expected in (
        ("mean", whole.attention.mean(axis=2)),
        ("max", whole.attention.max(axis=2)),
        ("min", whole.attention.min(axis=2)),
        ("relevance", np.maximum(whole.attention * whole.gradients, 0).mean(axis=2)),
        ("gradient", np.maximum((whole.attention * whole.gradients).mean(axis=2), 0)),
    ):
        fused = visualize.record(model, IMAGES, target=2, keep="attention", head_fusion=heads)
        np.testing.assert_allclose(fused.attention, expected, **SAME)
        assert fused.gradients is None
    rows = visualize.record(model, IMAGES, keep="attention", query="auto")
    np.testing.assert_allclose(rows.attention, np.einsum("bq,lbhqk->lbhk", whole.readout, whole.attention), **SAME)


def test_a_map_head_shows_its_own_attention():
    model = tiny(pooling="map")
    recording = visualize.record(model, IMAGES, target=2)
    pool = model.get_layer("MAPHead_0")
    probe = keras.ops.broadcast_to(keras.ops.convert_to_tensor(pool.probe), (2, 1, 32))
    _, scores = pool.att(recording.features, queries=probe, return_attention_scores=True)
    np.testing.assert_allclose(recording.pooling_attention, numpy(scores)[:, :, 0], **SAME)
    np.testing.assert_allclose(recording.readout, recording.pooling_attention.mean(axis=1), rtol=0, atol=1e-7)
    assert recording.pooling_gradients.shape == (2, 2, 24) and recording.pooling_gradients.any()
    expected = np.einsum("bq,lbhqk->lbhk", recording.readout, recording.attention)
    for options, rows in (({}, expected), ({"head_fusion": "mean"}, expected.mean(axis=2))):
        found = visualize.record(model, IMAGES, keep="attention", query="auto", **options)
        np.testing.assert_allclose(found.attention, rows, **SAME)
    for images in (IMAGES, IMAGES[:1]):  # with all exits, the readout is the last one's
        exits = visualize.record(model, images, target=2, exits=True)
        auto = visualize.record(model, images, target=2, exits=True, query="auto")
        np.testing.assert_allclose(exits.readout, recording.readout[: len(images)], **SAME)
        expected_rows = np.einsum("bq,lbhqk->lbhk", exits.readout, exits.attention)
        np.testing.assert_allclose(auto.attention, expected_rows, **SAME)
    found = visualize.attention_map(model, IMAGES, method="attention", layer=1, return_map=True)
    np.testing.assert_allclose(found, recording.patches(expected[1].mean(axis=1)), **SAME)


def test_pictures_of_many_kinds_and_sizes(tmp_path):
    keras.utils.save_img(tmp_path / "picture.png", noise(50, 70, 3), scale=False)
    recording = visualize.record(tiny(), [tmp_path / "picture.png", noise(32, 48, 3), noise(9, 99)], keep="tokens")
    assert [image.shape for image in recording.images] == [(50, 70, 3), (32, 48, 3), (9, 99, 3)]
    assert recording.tokens.shape[1] == 3
    alone = visualize.record(tiny(), noise(32, 48, 3), keep="tokens")
    np.testing.assert_allclose(recording.tokens[:, 1:2], alone.tokens, **SAME)


def test_a_model_of_any_size_takes_images_of_one_size_at_a_time():
    """The second was squeezed into the size of the first."""
    model = tiny(image_size=None, position_grid=(4, 6))
    two = [noise(16, 16, 3), noise(16, 64, 3)]
    with pytest.raises(ValueError, match="16 x 16 and 16 x 64"):
        visualize.attention_map(model, two, return_map=True)
    with pytest.raises(ValueError, match="16 x 16 and 16 x 64"):
        visualize.evaluate_maps(model, two, ["rollout"])
    assert [visualize.attention_map(model, each, return_map=True).shape for each in two] == [(2, 2), (2, 8)]
    assert visualize.attention_map(model, two[1:] * 2, return_map=True).shape == (2, 2, 8)
    resized = keras.Sequential([keras.Input((None, None, 3)), keras.layers.Resizing(32, 48), tiny()])
    assert visualize.attention_map(resized, two, return_map=True).shape == (2, 4, 6)  # the ViT sees one size
    photograph = noise(19, 45, 3)  # no whole patches, which the model refuses
    assert visualize.attention_map(model, photograph).shape == (19, 45, 3)
    assert visualize.record(model, photograph).grid == (2, 6)


# ----------------------------------------------------------------- gradients --


def differences(model, field, layer, places, target):
    """d(target's logit)/d(what is inside) by central differences of fourth order, with a tap that adds a little."""
    block = [b for b in model.layers if isinstance(b, layers.TransformerBlock)][layer]
    seen_at = {"attention": block.att, "normed": block}[field]
    inputs = (IMAGES[:1] - 127.5) / 127.5

    def logit(place, step):
        def add(layer, name, tensor):
            if layer is not seen_at or name != field:
                return tensor
            change = np.zeros(tensor.shape, "float32")
            change[place] = step
            return tensor + keras.ops.convert_to_tensor(change)

        with layers.tap(add):
            return numpy(model(keras.ops.convert_to_tensor(inputs), training=False))[0, target]

    near, far = ([logit(place, step) - logit(place, -step) for place in places] for step in (0.02, 0.04))
    return (8 * np.array(near) - far) / (12 * 0.02)


@pytest.mark.core
@pytest.mark.compiles_long
def test_gradients_are_those_of_finite_differences():
    model = tiny(registers=1)
    recording = visualize.record(model, IMAGES[:1], target=3, keep=("attention", "normed"))
    attention = [(0, 1, 0, 5), (0, 0, 7, 2), (0, 1, 3, 3)]
    for layer, places in ((0, attention), (1, [(0, 1, 0, 5), (0, 0, 0, 2)])):
        expected = differences(model, "attention", layer, places, 3)
        found = [recording.gradients[(layer, *place)] for place in places]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)  # logits have 1e-6, the step is 0.02
        assert np.abs(expected).max() > 0.01
    places = [(0, 0, 3), (0, 9, 30)]
    expected = differences(model, "normed", 1, places, 3)
    found = [recording.normed_gradients[(1, *place)] for place in places]
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


def relevance(model, target=2, **options):
    return visualize.record(model, IMAGES, target=target, keep="attention", **options).gradients


def eager(model):
    model.run_eagerly = True
    return model


def nested(model, **head):
    inputs = keras.Input(model.input_shape[1:])
    dense = keras.layers.Dense(4, name="outer", **head)
    outer = eager(keras.Model(inputs, dense(model(inputs))))
    rng = np.random.default_rng(5)
    dense.set_weights([rng.standard_normal(w.shape) for w in dense.weights])
    return outer


class Subclassed(keras.Model):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def call(self, inputs):
        return self.model(inputs)


@pytest.mark.parametrize("freeze", [False, True])
def test_the_gradients_of_a_nested_model_frozen_or_not(freeze):
    model = build()
    expected = relevance(nested(model))
    model.trainable = not freeze
    np.testing.assert_allclose(relevance(nested(model)), expected, **SAME)
    if not freeze:
        np.testing.assert_allclose(relevance(eager(Subclassed(nested(model)))), expected, **SAME)
        np.testing.assert_allclose(relevance(eager(keras.Sequential([nested(model)]))), expected, **SAME)
    inner = relevance(model)
    assert np.abs(inner - expected).max() > 0.01


@pytest.mark.parametrize("activation", ["softmax", SLOW("sigmoid")])
def test_a_last_softmax_is_left_out_and_put_back(activation):
    model = build()
    expected = relevance(nested(model))
    for classifier in (
        nested(model, activation=activation),
        keras.Sequential([nested(model, activation=activation)]),
        keras.Sequential([keras.Input((32, 48, 3)), nested(model, activation=activation)]),
        keras.Sequential([nested(model), keras.layers.Activation(activation)]),
    ):
        np.testing.assert_allclose(relevance(eager(classifier)), expected, **SAME)
        probabilities = numpy(classifier(vit.preprocess_inputs(IMAGES)))
        assert (probabilities >= 0).all() and (probabilities <= 1).all()
    own = build(activation=activation)
    np.testing.assert_allclose(relevance(own), relevance(build()), **SAME)


@pytest.mark.parametrize("layer", [False, True])
def test_other_threads_predict_and_record_as_ever_meanwhile(layer):
    model = build(activation=None if layer else "softmax")
    model = eager(keras.Sequential([model, keras.layers.Softmax()])) if layer else model
    inputs = vit.preprocess_inputs(IMAGES)
    expected = visualize.record(model, IMAGES, target=2).logits
    seen = []
    with layers.tap(lambda layer, name, tensor: tensor), gradients.logits_only(model):  # as a recording does
        assert np.abs(numpy(model(inputs)) - expected).max() < 1e-4
        other = threading.Thread(target=lambda: seen.append(numpy(model(inputs))))
        other.start()
        other.join()
        second = threading.Thread(target=lambda: seen.append(visualize.record(model, IMAGES, target=2).logits))
        second.start()
    second.join()
    np.testing.assert_allclose(seen[0].sum(axis=-1), 1, **SAME)
    np.testing.assert_allclose(seen[1], expected, **SAME)
    np.testing.assert_allclose(numpy(model(inputs)).sum(axis=-1), 1, **SAME)


@pytest.mark.only_on("torch", reason="other backends have no such mode")
def test_gradients_in_the_inference_mode_of_pytorch():
    import torch

    model = build(num_layers=1)
    expected = visualize.record(model, IMAGES, target=2)
    with torch.inference_mode():
        found = visualize.record(model, IMAGES, target=2)
        assert torch.is_inference_mode_enabled()
    np.testing.assert_array_equal(found.gradients, expected.gradients)


def test_a_function_as_target():
    expected = relevance(tiny(), target=2)
    np.testing.assert_allclose(relevance(tiny(), target=lambda outputs: outputs[:, 2]), expected, **SAME)
    np.testing.assert_allclose(relevance(tiny(), target=lambda outputs: outputs[:, 2:3]), expected, **SAME)
    twice = relevance(tiny(), target=lambda outputs: 2 * outputs[:, 2])
    np.testing.assert_allclose(twice, 2 * expected, **SAME)


def test_a_model_with_several_outputs():
    model = build()
    features = eager(keras.Model(model.input, {"kind": model.output, "age": model.output[:, :1]}))
    found = relevance(features, target=lambda outputs: outputs["kind"][:, 2])
    np.testing.assert_allclose(found, relevance(model), **SAME)
    assert visualize.record(features, IMAGES, keep="tokens").logits is None
    with pytest.raises(ValueError, match="function"):
        relevance(features)


def test_targets_for_each_image():
    model = tiny()
    recording = visualize.record(model, IMAGES, target=[4, "predicted"], keep="attention")
    best = int(recording.logits[1].argmax())
    assert recording.target.tolist() == [4, best]
    np.testing.assert_allclose(recording.gradients[:, 0], relevance(model, 4)[:, 0], **SAME)
    np.testing.assert_allclose(recording.gradients[:, 1], relevance(model, best)[:, 1], **SAME)
    tokens = visualize.record(model, IMAGES, target=4, keep="tokens")  # nothing that has gradients
    assert tokens.gradients is None and tokens.target.tolist() == [4, 4]


def test_the_name_of_a_class():
    model = build()
    model.labels = ("tench, Tinca tinca", "great white shark", "tiger shark, sand tiger", "cock", "hen", "Hen of woods")
    for name, number in (("Tinca tinca", 0), ("tiger shark, sand tiger", 2), (" HEN ", 4)):
        assert visualize.record(model, IMAGES, target=name, keep="attention").target.tolist() == [number] * 2
    with pytest.raises(ValueError, match="'shark'"):
        visualize.record(model, IMAGES, target="shark")
    with pytest.raises(ValueError, match="knows no names"):
        visualize.record(tiny(), IMAGES, target="hen")


def test_a_head_that_is_all_zero_is_warned_of():
    with pytest.warns(UserWarning, match="gradients are zero"):
        visualize.attention_map(vit.build_model(32, 8, 1, 32, 2, "fresh", 64, 6), IMAGES[0], target=0)


@pytest.mark.core
@pytest.mark.compiles_long
def test_the_exits_of_each_layer():
    model = tiny(num_layers=3)
    recording = visualize.record(model, IMAGES, layers=[1, 2], target=[2, "predicted"], exits=True, keep="attention")
    assert recording.target.tolist() == [2, int(visualize.record(model, IMAGES, keep=()).logits[1].argmax())]
    # The last exit is the model's own.
    expected = visualize.record(model, IMAGES, layers=2, target=recording.target, keep="attention")
    np.testing.assert_allclose(recording.gradients[1], expected.gradients[0], **SAME)
    # The one before is a model without the last block.
    shorter = build(num_layers=2)
    for layer in shorter.layers:
        if layer.weights:
            layer.set_weights(model.get_layer(layer.name).get_weights())
    expected = visualize.record(shorter, IMAGES, layers=1, target=recording.target, keep="attention")
    np.testing.assert_allclose(recording.gradients[0], expected.gradients[0], **SAME)


@pytest.mark.parametrize(
    "kind",
    ["class token", "registers, no class token", SLOW("distilled"), SLOW("class token, but the mean is read")],
)
def test_the_logit_lens_is_the_head_on_each_patch(kind):
    model = tiny(**KINDS[kind][0])
    lens = visualize.patch_logit_lens(model, IMAGES)
    recording = visualize.record(model, IMAGES)
    norm, prefix = model.get_layer("Transformer_encoder_norm"), len(recording.prefix)
    heads = [layer for layer in model.layers if layer.name.startswith("head") and layer.weights]
    for n in range(2):
        patches = norm(recording.tokens[n + 1][:, prefix:])
        expected = np.mean([numpy(head(patches)) for head in heads], axis=0)
        np.testing.assert_allclose(lens[n].reshape(2, 24, 6), expected, **SAME)


# ----------------------------------------------------------------- compiling --


@pytest.mark.only_on("tensorflow", reason="it counts TensorFlow's traces")
def test_a_recorder_is_compiled_once(monkeypatch):
    model = build(eagerly=False)
    calls = []
    monkeypatch.setattr(forward_pass, "_score", lambda *a, f=forward_pass._score: calls.append(1) or f(*a))
    recorder = visualize.Recorder(model, keep="attention", head_fusion="relevance")
    for images, target in ((IMAGES, 1), (IMAGES[:1], 2), (IMAGES, [0, 5]), (IMAGES, "predicted")):
        recorder(images, target)
    visualize.record(model, IMAGES, target=3, keep="attention", head_fusion="relevance")
    assert len(calls) == 1
    before = recorder(IMAGES, 1).attention
    model.set_weights([2 * w for w in model.get_weights()])
    assert np.abs(recorder(IMAGES, 1).attention - before).max() > 1e-3
    assert len(calls) == 1
    recorder(IMAGES, lambda outputs: outputs[:, 0])
    assert len(calls) == 2


# ------------------------------------------------------------------ mistakes --


def siamese():
    inputs, model = keras.Input((32, 48, 3)), tiny()
    return keras.Model(inputs, model(inputs) - model(-inputs))


def two_inputs():
    inputs = keras.Input((32, 48, 3)), keras.Input((4,))
    return keras.Model(inputs, keras.layers.Concatenate()([tiny()(inputs[0]), inputs[1]]))


def two_inputs_inside():
    model, other = tiny(), keras.Input((4,))
    return keras.Model([model.input, other], keras.layers.Concatenate()([model.output, other]))


def channels_first():
    inputs = keras.Input((3, 32, 48))
    return keras.Model(inputs, tiny()(keras.layers.Permute((2, 3, 1))(inputs)))


MISTAKES = {
    "no such layer": (lambda: visualize.record(tiny(), IMAGES, 5), ValueError, "blocks 0 to 1. Received: layers=5"),
    "no layer": (lambda: visualize.record(tiny(), IMAGES, []), ValueError, "blocks 0 to 1"),
    "a layer's name": (lambda: visualize.record(tiny(), IMAGES, ["head"]), TypeError, "numbers of blocks"),
    "nothing to keep": (
        lambda: visualize.record(tiny(), IMAGES, keep="queries"),
        ValueError,
        "'attention', 'values'.*queries",
    ),
    "heads": (lambda: visualize.record(tiny(), IMAGES, head_fusion="sum"), ValueError, "'mean', 'max'.*'sum'"),
    "rows": (
        lambda: visualize.record(tiny(), IMAGES, query="cls"),
        ValueError,
        "query must be one of 'all', 'auto'.*'cls'",
    ),
    "no target": (lambda: visualize.record(tiny(), IMAGES, head_fusion="relevance"), ValueError, "pass target="),
    "no target for exits": (lambda: visualize.record(tiny(), IMAGES, exits=True), ValueError, "pass target="),
    "no such class": (lambda: relevance(tiny(), 6), ValueError, "classes 0 to 5. Received the target 6"),
    "a negative class": (lambda: relevance(tiny(), -2), ValueError, "at least 0. Received: -2"),
    "half a class": (lambda: relevance(tiny(), 0.5), TypeError, "a number, a name or 'predicted'.*0.5"),
    "too few targets": (lambda: relevance(tiny(), [1]), ValueError, "2 images and 1 targets"),
    "a target of a matrix": (lambda: relevance(tiny(), lambda x: x), ValueError, r"one number for each image.*\(.*6\)"),
    "a target of nothing": (lambda: relevance(tiny(), lambda x: None), ValueError, "Received: a NoneType"),
    "tokens have no class": (lambda: relevance(tiny(**KINDS["no pooling"][0])), ValueError, "no single output"),
    "preprocess": (
        lambda: visualize.record(tiny(), IMAGES, preprocess="google"),
        ValueError,
        "'own', None or a function",
    ),
    "twice the same": (lambda: visualize.record(siamese(), IMAGES), ValueError, r"each block .* once.*0, 1, 0, 1"),
    "two inputs": (
        lambda: visualize.record(two_inputs(), IMAGES),
        ValueError,
        r"only input.*3\) and \(None, 4\).*find_vit",
    ),
    "two inputs of the layers of a ViT": (
        lambda: visualize.record(two_inputs_inside(), IMAGES),
        ValueError,
        "only input.*Pass one that does",
    ),
    "channels first": (
        lambda: visualize.record(channels_first(), IMAGES),
        ValueError,
        r"channels\)\. .* takes \(None, 3, 32, 48\)",
    ),
    "frames": (
        lambda: visualize.record(
            keras.Sequential([keras.Input((2, 32, 48, 3)), keras.layers.TimeDistributed(tiny())]), IMAGES
        ),
        ValueError,
        r"takes \(None, 2, 32, 48, 3\)",
    ),
    "a grid that is none": (
        lambda: visualize.record(tiny(), IMAGES, grid=(5, 5)),
        ValueError,
        "25 tokens are not 1 and 5 x 5",
    ),
    "no attention": (
        lambda: visualize.record(
            vit.build_model(32, 8, 1, 32, 2, "m", 64, 6, pooling="gap", position=None, tokens_mlp_dim=8), IMAGES
        ),
        ValueError,
        "no attention layer",
    ),
    "no method": (
        lambda: visualize.attention_map(tiny(), IMAGES, method="flow"),
        ValueError,
        "one of 'rollout'.*'flow'",
    ),
    "no style": (lambda: visualize.attention_map(tiny(), IMAGES, style="jet"), ValueError, "one of 'overlay'.*'jet'"),
    "a class of rollout": (
        lambda: visualize.attention_map(tiny(), IMAGES, method="rollout", target=1),
        ValueError,
        "for no class.*relevance",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told(mistake):
    call, error, message = MISTAKES[mistake]
    with pytest.raises(error, match=message), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call()

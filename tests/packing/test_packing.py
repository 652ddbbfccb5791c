"""Images of several sizes in one sequence: as one by one, in every kind of model, in training, and in files."""

import math
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from support import ROOT, far_from_uniform, one_at_a_time

import vit_keras
from vit_keras import layers, training, visualize, vit
from vit_keras.config import ViTConfig
from vit_keras.layers import attention, record_attention
from vit_keras.packing.arranging import arrange, batches_of, fitting_size

BASE = {"image_size": None, "position_grid": (4, 4), "patch_size": 8, "num_layers": 2, "hidden_size": 32}
BASE |= {"num_heads": 2, "mlp_dim": 48, "classes": 5}
SIZES = [(32, 32), (16, 40), (8, 8), (64, 24), (48, 40), (32, 16), (8, 64)]
NO_TABLE = {"position": None, "position_grid": None}


def images(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1, 1, (*size, 3)).astype("float32") for size in sizes]


def model_of(**options):
    return far_from_uniform(vit.build(ViTConfig(**{**BASE, **options})), 0.3)


def one_by_one(model, pictures):
    return [keras.ops.convert_to_numpy(model(picture[None], training=False))[0] for picture in pictures]


@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.few_cases(5)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position": "sincos2d", "position_grid": None, "pooling": "gap", "pre_norm": True, "final_norm": "pooled"},
        {"rope_theta": 10.0, "rope_kind": "mixed", "registers": 1, **NO_TABLE},
        {"pooling": "map", "position_resize": "bilinear_antialias"},
        {"pooling": "map", "map_prefix": False, "class_token": True, "registers": 2},
        {"rope_theta": 100.0, "rope_kind": "axial", "rope_grid": (3, 3), "registers": 2},
        {"pooling": "token+gap", "registers": 2, "register_positions": True},
        {"pooling": "all", "position_resize": "bicubic_dino"},
        {"pooling": "token+dist", "distillation_token": True, "activation": "softmax"},
        {"position_prefix": False, "representation_size": 7},
        {"rope_theta": 100.0, **NO_TABLE},
        {"patch_norm": True, "patch_bias": False},
        {"post_norm": True, "layer_scale": 0.3},
        {"include_top": False},
        {"include_top": False, "pooling": None},
    ],
    ids=lambda options: "-".join(map(str, options)) or "plain",
)
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")  # of one probe over one patch
def test_packed_is_one_by_one(options):
    """To 2e-5 of outputs of size 10: the same sums in another order, with padding that adds zeros."""
    model, pictures = model_of(**options), images()
    outputs = vit_keras.pack(model, tokens=40, images=3).predict_images(pictures, rows=2)
    assert len(outputs) == len(pictures)
    for packed, alone in zip(outputs, one_by_one(model, pictures), strict=True):
        np.testing.assert_allclose(packed, alone, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("count", "pooling"), one_at_a_time([1, 2, 8, 40, 100], ["token", None]))
def test_as_many_images_as_tokens(pooling, count):
    """Which outputs a model returns does not depend on how many images a sequence may have."""
    model = model_of(pooling=pooling, include_top=False)
    outputs = vit_keras.pack(model, tokens=40, images=count).predict_images(images())
    for packed, alone in zip(outputs, one_by_one(model, images()), strict=True):
        np.testing.assert_allclose(packed, alone, rtol=0, atol=2e-5)


def test_outputs_of_another_packing_are_refused():
    packed = vit_keras.pack(model_of(), tokens=40, images=3)
    packing = packed.arrange(images())
    with pytest.raises(ValueError, match=r"\(3, 3\).*\(4, 40, 5\)"):
        packing.unpack(np.zeros((4, 40, 5)))
    with pytest.raises(ValueError, match=r"7 images.*\(1,\)"):
        packing.spread([5])


def test_the_outputs_of_a_call_are_unpacked():
    packed = vit_keras.pack(model_of(), tokens=40)
    packing = packed.arrange(images())
    expected = packed.predict_images(images())
    np.testing.assert_allclose(packing.unpack(packed(packing.inputs)), expected, atol=1e-5)  # a tensor with a gradient


def test_only_a_model_without_layers_around_its_vit_is_packed():
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
    image = keras.Input((32, 32, 3))
    around = (
        keras.Sequential([image, model, keras.layers.Dense(5)]),
        keras.Sequential([image, vit_keras.preprocessing_layer(model), model]),
        keras.Model(image, keras.ops.softmax(model(image))),
    )
    for wrapped in around:
        with pytest.raises(ValueError, match="'tiny'.*find_vit"):
            vit_keras.pack(wrapped, tokens=40)
    nothing_around = (
        model,
        keras.Sequential([model]),
        keras.Sequential([image, model]),
        keras.Model(image, model(image)),
        training.Distillation(model, model),
        vit_keras.pack(model, tokens=40),
    )
    for wrapped in nothing_around:
        assert vit_keras.pack(wrapped, tokens=30).vit is model


SPOILED = {
    "token": {},
    "map": {"pooling": "map"},
    "token+gap": {"pooling": "token+gap", "registers": 1},
    "all": {"pooling": "all", "post_norm": True},
    "tokens": {"pooling": None, "include_top": False},
    "patch_norm": {"pooling": "gap", "patch_norm": True, "pre_norm": True},
}


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.few_cases(3)
@pytest.mark.parametrize("kind", SPOILED)
@pytest.mark.parametrize("value", [np.nan, np.inf, -3e38])
def test_an_image_that_is_not_finite_changes_no_other(value, kind):
    """The others are exactly as with zeros in its place; its own outputs are NaN."""
    packed, pictures = vit_keras.pack(model_of(**SPOILED[kind]), tokens=40, images=3), images()
    pictures[1][3, 5, 1] = 0
    pictures[4][:] = 0
    expected = packed.predict_images(pictures, rows=2)
    pictures[1][3, 5, 1] = value
    pictures[4][:] = value
    for n, (spoiled, whole) in enumerate(zip(packed.predict_images(pictures, rows=2), expected, strict=True)):
        if n in (1, 4):
            assert np.isnan(spoiled).all()
        else:
            np.testing.assert_array_equal(spoiled, whole)


def test_no_image_sees_another():
    model = model_of()
    packed = vit_keras.pack(model, tokens=40)
    packing = packed.arrange(images())
    with record_attention() as scores:
        packed(packing.inputs)
    same = packing.inputs["images"][:, :, None] == packing.inputs["images"][:, None]
    for layer in scores:
        layer = keras.ops.convert_to_numpy(layer)
        assert not layer[~np.broadcast_to(same[:, None], layer.shape)].any()
        np.testing.assert_allclose(layer.sum(axis=-1), 1, rtol=0, atol=1e-5)


@pytest.mark.core
@pytest.mark.compiles_long
def test_chunks_of_queries_see_their_own_images(monkeypatch):
    model, pictures = model_of(), images()
    monkeypatch.setattr(attention, "has_fused_attention", lambda: False)
    monkeypatch.setattr(attention, "MAX_SCORE_BYTES", 4 * 2 * 40 * 9)
    outputs = vit_keras.pack(model, tokens=40).predict_images(pictures)
    monkeypatch.undo()
    np.testing.assert_allclose(outputs, one_by_one(model, pictures), rtol=0, atol=2e-5)


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_step_is_that_of_the_images_one_by_one():
    """One step of SGD with a rate of 1: the change of the weights is the gradient, the mean of those of the images."""
    pictures, labels = images(), np.array([0, 1, 2, 3, 4, 0, 1])
    model, alone = model_of(), model_of()
    start = [w.numpy() if hasattr(w, "numpy") else np.array(w) for w in model.get_weights()]
    packed = vit_keras.pack(model, tokens=40, images=3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    packed.compile(keras.optimizers.SGD(1.0), loss)
    packing = packed.arrange(pictures, rows=4)
    value = float(packed.train_on_batch(packing.inputs, *packing.spread(labels)))
    expected, losses = [np.zeros_like(w) for w in start], []
    alone.compile(keras.optimizers.SGD(1.0), loss, run_eagerly=keras.backend.backend() != "jax")
    for picture, label in zip(pictures, labels):
        alone.set_weights(start)
        alone.reset_metrics()
        losses.append(float(alone.train_on_batch(picture[None], label[None])))
        for total, new, old in zip(expected, alone.get_weights(), start, strict=True):
            total += (new - old) / len(pictures)
    assert value == pytest.approx(np.mean(losses), abs=1e-5)
    for new, old, change in zip(model.get_weights(), start, expected, strict=True):
        np.testing.assert_allclose(new - old, change, rtol=0, atol=2e-5)  # gradients of size 1
    assert any(abs(change).max() > 1e-2 for change in expected)


@pytest.mark.core
@pytest.mark.compiles_long
def test_it_learns_from_batches_of_one_shape(monkeypatch):
    """No other sizes cost another trace, in prediction or in training."""
    keras.utils.set_random_seed(0)
    traced = []
    call = vit_keras.packing.PackedTransformer.call
    monkeypatch.setattr(
        vit_keras.packing.PackedTransformer, "call", lambda *args, **kw: traced.append(1) or call(*args, **kw)
    )
    rng = np.random.default_rng(0)
    sizes = [(int(h) * 8, int(w) * 8) for h, w in rng.integers(1, 6, (24, 2))]
    pictures, labels = images(sizes), np.arange(24) % 3
    for picture, label in zip(pictures, labels):
        picture += label
    packed = vit_keras.pack(vit.build(ViTConfig(**{**BASE, "classes": 3})), tokens=40, images=4)
    batches = packed.batches(pictures, labels, rows=2, seed=0)
    assert sum(len(group) for group in batches.groups) == 24 and len(batches) > 2
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    packed.compile(keras.optimizers.AdamW(1e-2), loss, weighted_metrics=["accuracy"])
    packed.fit(batches, epochs=1, verbose=0)
    first = len(traced)
    history = packed.fit(batches, epochs=25, verbose=0).history
    assert history["accuracy"][-1] == 1.0
    before = packed.predict_images(pictures[:9], rows=2)
    second = len(traced)
    np.testing.assert_allclose(packed.predict_images(pictures, rows=2)[:9], before, rtol=0, atol=1e-4)
    if keras.backend.backend() != "torch":  # which compiles nothing
        assert second - first <= 2 and len(traced) == second


def test_all_batches_have_one_shape():
    """Placed with the largest first, six of the images of 6 and 4 patches would need four rows, not two."""
    packed = vit_keras.pack(model_of(pooling="gap", class_token=False), tokens=10, images=4)
    large, small = np.zeros((24, 16, 3), "float32"), np.zeros((16, 16, 3), "float32")
    cases = [([large, small, small, large, small, small], None)]
    rng = np.random.default_rng(0)
    for seed in range(20):
        sizes = rng.integers(1, 4, (25, 2)) * 8
        cases.append(([np.zeros((*size, 3), "float32") for size in sizes], seed))
    for pictures, seed in cases:
        batches = packed.batches(pictures, [0] * len(pictures), rows=2, seed=seed)
        found = {
            (x["patches"].shape[:2], y.shape, w.shape) for x, y, w in map(batches.__getitem__, range(len(batches)))
        }
        assert found == {((2, 10), (2, 4), (2, 4))}


def test_a_single_output_takes_a_number_for_each_image():
    """To 1e-5: two float32 models and losses, which add up in another order."""
    pictures, labels = images(), np.arange(len(images())) % 2
    model = model_of(classes=1)
    packed = vit_keras.pack(model, tokens=40, images=3)
    packed.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    logits = np.stack(one_by_one(model, pictures))[:, 0].astype("float64")
    expected = np.mean(np.logaddexp(0, logits) - labels * logits)
    assert packed.evaluate(packed.batches(pictures, labels, rows=8), verbose=0) == pytest.approx(expected, abs=1e-5)


@pytest.mark.core
@pytest.mark.parametrize(
    "layer",
    [
        *(layers.RotaryPositions(8, kind=kind, dtype="bfloat16") for kind in ("centered", "axial", "axial_xy")),
        layers.rotary.MixedRotaryPositions(1, 2, 8, dtype="bfloat16"),
        lambda places: layers.AddSinCosPositionEmbs(dtype="bfloat16")(np.zeros((1, 600, 8), "float32"), patches=places),
    ],
    ids=["centered", "axial", "axial_xy", "mixed", "sincos2d"],
)
def test_places_are_whole_numbers_in_half_precision(layer):
    """To 0.01, twice the last bit of bfloat16 near 1: a place that is one off changes them by up to 1."""
    config = ViTConfig(**{**BASE, "patch_size": 2, "pooling": "gap"})
    places = arrange([np.zeros((1200, 2, 3), "float32")], config, 600, 1).inputs["places"]
    alone, packed = (keras.tree.flatten(layer(x)) for x in (np.zeros((1, 600, 1, 8), "float32"), places))
    for wanted, found in zip(alone, packed, strict=True):
        wanted, found = (keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")) for x in (wanted, found))
        np.testing.assert_allclose(found.reshape(wanted.shape), wanted, atol=0.01)


@pytest.mark.slow
def test_a_packed_model_is_saved_and_opened_by_a_stranger(tmp_path):
    model = model_of(rope_theta=100.0)
    packed = vit_keras.pack(model, tokens=40, images=3)
    packed.save(tmp_path / "packed.keras")
    np.savez(tmp_path / "images.npz", *images())
    program = (
        "import numpy as np, vit_keras; packed = vit_keras.load_model('packed.keras'); "
        "images = list(np.load('images.npz').values()); np.save('out.npy', packed.predict_images(images))"
    )
    subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), one_by_one(model, images()), rtol=0, atol=2e-5)


@pytest.mark.parametrize("options", [{"registers": 1}, {"pooling": "map"}])
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis")  # of one probe over one patch
def test_recordings_are_those_of_the_images_one_by_one(options):
    """To 2e-5, as the outputs; the maps follow from the recordings."""
    model = model_of(**options)
    pictures = [np.random.default_rng(n).integers(0, 256, (*size, 3), "uint8") for n, size in enumerate(SIZES[:4])]
    packed = vit_keras.pack(model, tokens=40)
    found = visualize.record_packed(packed, [model.preprocess(picture)[0] for picture in pictures])
    for recording, picture in zip(found, pictures, strict=True):
        alone = visualize.record(model, picture)
        assert (recording.grid, recording.prefix, recording.layers) == (alone.grid, alone.prefix, alone.layers)
        np.testing.assert_array_equal(recording.images[0], picture)
        for field in ("attention", "values", "tokens", "features", "projections", "readout", "logits"):
            np.testing.assert_allclose(getattr(recording, field), getattr(alone, field), rtol=0, atol=2e-5)
        rollouts = (visualize.attention_rollout(each) for each in (recording, alone))
        np.testing.assert_allclose(*rollouts, rtol=0, atol=2e-5)


def test_the_model_that_was_packed_is_as_before():
    model = model_of()
    vit_keras.pack(model, tokens=40).predict_images(images())
    assert model.get_layer("ExtractToken").output.shape == (None, 32)  # no layer has a second output
    assert len(model.variables) == len(model_of().variables)


@pytest.mark.parametrize(
    "use",
    [
        *(lambda model, path, end=end: vit_keras.export(model, path / f"tiny{end}") for end in (".onnx", ".pt2", "")),
        lambda model, path: visualize.attention_map(model, np.zeros((32, 32, 3), "uint8")),
        lambda model, path: visualize.record(model, np.zeros((32, 32, 3), "uint8")),
    ],
)
def test_where_images_are_needed_a_packed_model_is_refused(use, tmp_path):
    model = vit.build_model(32, 8, 1, 32, 2, "tiny", 32, classes=2)
    message = "'tiny_packed' takes packed sequences of patches, not images. Pass the model in it, 'tiny'"
    with pytest.raises(ValueError, match=message):
        use(vit_keras.pack(model, tokens=17), tmp_path)
    assert not [*tmp_path.iterdir()]


def test_sequences_are_filled():
    config = ViTConfig(**BASE)
    packing = arrange(images(), config, tokens=40, slots=8)
    counts = [1 + (h // 8) * (w // 8) for h, w in SIZES]
    assert packing.inputs["images"].shape[0] == math.ceil(sum(counts) / 40) and packing.fill > 0.6
    assert [int(stop - start) for start, stop in packing.spans] == counts
    batches = batches_of(counts, tokens=40, slots=2, rows=1, order=range(7))
    assert sorted(n for batch in batches for n in batch) == list(range(7)) and max(map(len, batches)) <= 2
    assert all(sum(counts[n] for n in batch) <= 40 for batch in batches)


def test_sizes_are_as_large_as_they_may_be():
    """Compared with all grids of the same shape: none that is larger has so few patches."""
    rng = np.random.default_rng(0)
    for height, width, patches in zip(
        rng.integers(1, 3000, 200), rng.integers(1, 3000, 200), rng.integers(1, 600, 200)
    ):
        down, across = (side // 16 for side in fitting_size((int(height), int(width)), (16, 16), int(patches)))
        assert 1 <= down * across <= patches or (down, across) == (1, 1)
        scales = np.linspace(0, 20, 20001)[1:] * 16 * math.sqrt(patches / (height * width))
        grids = np.maximum(1, np.ceil(height * scales / 16)) * np.maximum(1, np.ceil(width * scales / 16))
        assert down * across >= grids[grids <= patches].max()


def test_pictures_keep_their_shape():
    packed = vit_keras.pack(model_of(), tokens=40)
    tall, wide = packed.preprocess([np.zeros((300, 100, 3), "uint8"), np.zeros((90, 270, 3), "uint8")], patches=30)
    assert tall.shape == (72, 24, 3) and wide.shape == (24, 72, 3) and tall.min() == tall.max() == -1
    assert packed.preprocess(np.zeros((50, 50, 3), "uint8"))[0].shape == (32, 32, 3)  # as many as in the table


@pytest.mark.parametrize(
    ("options", "wrong", "message"),
    [
        ({}, [np.zeros((8, 8), "float32")], r"\(height, width, 3\).*\(8, 8\)"),
        ({}, [np.zeros((4, 8, 3), "float32")], "one patch"),
        ({}, [np.zeros((80, 80, 3), "float32")], "80 x 80 .*101 tokens.* 40"),
        ({}, [], "There are no images"),
        ({"resnet": (1,), "patch_size": 1}, None, "resnet needs the whole grid"),
        ({"resnet": (), "patch_size": 1}, None, "resnet needs the whole grid"),
        ({"image_size": 32, "relative_positions": True, **NO_TABLE}, None, "relative_positions needs"),
        ({"image_size": 32, "position_grid": None, "merge_tokens": 1}, None, "merge_tokens needs"),
    ],
)
def test_what_cannot_be_packed_is_refused(options, wrong, message):
    model = vit.build(ViTConfig(**{**BASE, **options}))
    with pytest.raises(ValueError, match=message):
        vit_keras.pack(model, tokens=40).predict_images(wrong)


def test_a_packed_model_asks_for_sequences_and_names_what_takes_images():
    packed = vit_keras.pack(model_of(), 64)
    packed.compile("sgd", "sparse_categorical_crossentropy")
    labels = np.zeros(len(SIZES))
    for given in (images(), np.stack(images([(32, 32)] * 2))):
        for ask in (packed, packed.predict, lambda x: packed.fit(x, labels), lambda x: packed.evaluate(x, labels)):
            with pytest.raises(ValueError, match="predict_images"):
                ask(given)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["cat", "dog"], "must be numbers.*'cat', 'dog'"),
        ([0, None], "must be numbers"),
        ([0, 5], r"from 0 to 4\. Received: \[5\]"),
        ([-1, 0], r"from 0 to 4\. Received: \[-1\]"),
        ([math.nan, 0], "from 0 to 4"),
        ([0], "a target for each image. Received: 2 and 1"),
    ],
)
def test_batches_need_class_numbers_of_the_model(targets, message):
    packed, two = vit_keras.pack(model_of(), 64), images(SIZES[:2])
    with pytest.raises(ValueError, match=message):
        packed.batches(two, targets)
    packed.batches(two, np.eye(5)[:2])  # probabilities
    vit_keras.pack(model_of(include_top=False), 64).batches(two, [70, -3])  # targets of the user's own loss

"""Feature maps: the patches after chosen blocks, in their places; equal to what the layers show, to timm's and to
transformers'."""

import functools
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops
from support import ROOT, tiny_model

import vit_keras
from vit_keras import anatomy, feature_maps, load_model, merge_tokens, visualize
from vit_keras.anatomy.inputs import input_range
from vit_keras.layers import TransformerBlock

tiny = functools.partial(tiny_model, image_size=(24, 40), num_layers=3, scale=0.3)


def pictures(height=24, width=40, count=2):
    return np.random.default_rng(0).uniform(-1, 1, (count, height, width, 3)).astype("float32")


def arrays(outputs):
    return keras.tree.map_structure(ops.convert_to_numpy, outputs)


MODELS = {
    "rotary positions, registers": {"rope_theta": 100.0, "position": None, "registers": 2},
    "class token": {},
    "distillation token": {"distillation_token": True, "pooling": "token+dist"},
    "attention pooling": {"pooling": "map"},
    "a norm of what is pooled": {"pooling": "gap", "final_norm": "pooled"},
    "hybrid": {"resnet": (1, 1), "patch_size": 1},
    "relative positions": {"relative_positions": True, "position": None},
    "norms after the branches": {"post_norm": True, "pre_norm": True},
    "any size": {"image_size": None, "position_grid": (2, 2)},
    "half precision": {"dtype": "mixed_bfloat16"},
}


@pytest.mark.few_cases(5)
@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.parametrize("name", MODELS)
def test_maps_are_what_the_blocks_show(name):
    model, images = tiny(**MODELS[name]), pictures()
    recording = visualize.record(model, images, keep=("tokens",))
    prefix, (down, across) = len(recording.prefix), recording.grid
    plain = arrays(feature_maps(model, [-2, 0], norm=False, prefix=bool(prefix))(images))
    plain, before = plain if prefix else (plain, [])
    tolerance = 0.05 if "half" in name else 1e-5
    for found, block in zip(plain, (0, 1), strict=True):
        expected = recording.tokens[block + 1, :, prefix:].reshape(2, down, across, 16)
        assert np.abs(found.astype("float32") - expected).max() <= tolerance * np.abs(expected).max()
    for found, block in zip(before, (0, 1)):
        expected = recording.tokens[block + 1, :, :prefix]
        assert np.abs(found.astype("float32") - expected).max() <= tolerance * np.abs(expected).max()
    first, last = arrays(feature_maps(model, [0, -1])(images))
    norm = next((layer for layer in model.layers if layer.name == "Transformer_encoder_norm"), lambda x: x)
    expected = arrays(norm(recording.tokens[1, :, prefix:])).reshape(2, down, across, 16).astype("float32")
    assert np.abs(first.astype("float32") - expected).max() <= tolerance * np.abs(expected).max()
    expected = recording.features[:, prefix:].reshape(2, down, across, 16)
    assert np.abs(last.astype("float32") - expected).max() <= tolerance * np.abs(expected).max()


def test_each_place_of_a_map_is_that_of_its_patch():
    model, images = tiny(num_layers=1, position=None), pictures()
    changed = images.copy()
    changed[:, 8:16, 32:40] = 0.5  # the patch in row 1, column 4
    trunk = feature_maps(model, 0, norm=False)
    model.get_layer("Transformer_encoderblock_0").att.combine_heads.kernel.assign(np.zeros((16, 16)))  # no attention
    moved = np.abs(arrays(trunk(images)) - arrays(trunk(changed))).max(axis=(0, 3)) > 1e-4
    assert [tuple(place) for place in np.argwhere(moved)] == [(1, 4)]


def test_one_number_gives_a_map_and_several_a_list_in_the_order_of_the_blocks():
    model = tiny()
    assert feature_maps(model, 1).output_shape == feature_maps(model, np.int64(1)).output_shape == (None, 3, 5, 16)
    assert [layer.name for layer in feature_maps(model, [-1, 0]).layers if "map" in layer.name] == ["map_0", "map_2"]
    assert len(feature_maps(model).outputs) == 3
    maps, tokens = feature_maps(model, [0, 2], prefix=True).output
    assert [each.shape for each in maps] == [(None, 3, 5, 16)] * 2
    assert [each.shape for each in tokens] == [(None, 1, 16)] * 2
    maps, tokens = feature_maps(model, 2, prefix=True).output
    assert (maps.shape, tokens.shape) == ((None, 3, 5, 16), (None, 1, 16))


def test_blocks_after_the_last_chosen_one_are_left_out():
    model = tiny(stochastic_depth=0.2)
    trunk = feature_maps(model, [0, 1], norm=False)
    assert [layer.name[-1] for layer in anatomy.blocks(trunk)] == ["0", "1"]
    assert not any("norm" in layer.name for layer in trunk.layers)
    assert (trunk.config.num_layers, trunk.config.stochastic_depth, trunk.config.final_norm) == (2, 0.1, None)
    assert {id(weight) for weight in trunk.weights} < {id(weight) for weight in model.weights}  # shared


def test_predict_joins_batches_of_all_outputs():
    trunk, images = feature_maps(tiny(), [0, 2], prefix=True), pictures(count=3)
    expected = arrays(trunk(images))
    found = trunk.predict(images, batch_size=2, verbose=0)
    keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found, expected)


def segmenter(trunk):
    images = keras.Input(trunk.input_shape[1:])
    x = keras.layers.Concatenate()(trunk(images))
    return keras.Model(images, keras.layers.UpSampling2D(8)(keras.layers.Conv2D(4, 1)(x)))


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_segmenter_trains_and_shows_its_attention():
    model = tiny()
    segment, images = segmenter(feature_maps(model, [0, 1])), pictures()
    before = [arrays(block.weights[0]).copy() for block in anatomy.blocks(model)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    segment.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    segment.fit(images, np.ones((2, 24, 40), "int32"), verbose=0)
    moved = [np.abs(arrays(block.weights[0]) - old).max() > 0 for block, old in zip(anatomy.blocks(model), before)]
    assert moved == [True, True, False]  # the model shares its blocks with the segmenter
    assert visualize.record(segment, images).attention.shape == (2, 2, 2, 16, 16)
    of_a_place = visualize.record(segment, images, target=lambda logits: logits[:, 9, 35, 1])
    assert of_a_place.gradients.any()
    # It does not read the class token. The shares are measured, in float32, with weights that were drawn.
    np.testing.assert_allclose(of_a_place.readout, [[0] + [1 / 15] * 15] * 2, rtol=1e-6)
    maps = visualize.all_maps(segment, images, lambda logits: logits[:, 9, 35, 1])
    assert list(maps) == [name for name in visualize.METHODS if name != "legrad"]
    with pytest.raises(ValueError, match="several blocks"):
        visualize.attention_map(segment, images, method="legrad", target=lambda logits: logits[:, 9, 35, 1])
    one_vector = keras.layers.GlobalAveragePooling2D()(segment.output)
    with pytest.raises(ValueError, match="no single output"):
        visualize.patch_logit_lens(keras.Model(segment.input, one_vector), images)


def test_what_stands_before_the_vit_is_applied_and_what_it_does_at_random_is_not(tmp_path):
    model = tiny()
    noise = keras.layers.Dropout(0.5, seed=1)
    image = keras.Input((24, 40, 3))
    tuned = keras.Model(image, keras.layers.Dense(2)(model(noise(image) / 127.5 - 1)))
    trunk, images = feature_maps(tuned, [0, 2]), pictures()
    pixels, expected = (images + 1) * 127.5, arrays(feature_maps(model, [0, 2])(images))
    assert np.abs(arrays(noise(pixels, training=True)) - pixels).max() > 1
    trunk.save(tmp_path / "trunk.keras")
    for each in (trunk, load_model(tmp_path / "trunk.keras")):
        found = arrays(each(pixels, training=True))
        assert max(np.abs(a - b).max() for a, b in zip(found, expected)) <= 1e-4
    assert input_range(trunk) == "pixels"
    any_size = keras.Sequential([keras.Input((None, None, 3)), vit_keras.preprocessing_layer(model), model])
    assert feature_maps(any_size, 0).output_shape == (None, 3, 5, 16)


@pytest.mark.slow
def test_maps_are_saved_and_opened_where_only_vit_keras_is_imported(tmp_path):
    segment, images = segmenter(feature_maps(tiny(image_size=None, position_grid=(2, 2)), [0, 1])), pictures()
    segment.save(tmp_path / "segment.keras")
    np.save(tmp_path / "images.npy", images)
    code = (
        "import vit_keras, keras, numpy as np; m = keras.saving.load_model('segment.keras');"
        "np.save('found.npy', m.predict(np.load('images.npy'), verbose=0))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": keras.backend.backend()}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), segment.predict(images, verbose=0), atol=1e-4)


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = TransformerBlock(num_heads=2, mlp_dim=16)


REFUSED = {
    "no such block": (lambda: feature_maps(tiny(), [0, 3]), ValueError, "blocks 0 to 2.*3"),
    "no numbers": (lambda: feature_maps(tiny(), "all"), TypeError, "numbers of blocks.*'all'"),
    "merged": (lambda: feature_maps(merge_tokens(tiny(), [0, 2, 2])), ValueError, "block 1.*merge_tokens"),
    "patch dropout": (lambda: feature_maps(tiny(patch_dropout=0.5)), ValueError, "patch_dropout=0"),
    "no prefix": (lambda: feature_maps(tiny(pooling="gap"), prefix=True), ValueError, "prefix=False"),
    "no graph": (lambda: feature_maps(Subclass()), ValueError, "subclass of keras.Model"),
    "no ViT": (lambda: feature_maps(keras.Sequential([keras.layers.Dense(1)])), ValueError, "found 0"),
    "no model": (lambda: feature_maps("vit_b16"), TypeError, "Keras model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_would_work(name):
    call, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        call()

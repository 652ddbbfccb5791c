"""What a model says about itself, in its own terms; the tables over all commands are in the folders of those."""

import re
import subprocess
import sys

import keras
import numpy as np
import PIL.Image
import pytest
from support import ROOT

from vit_keras import anatomy, labels, preprocess, training, visualize, vit
from vit_keras.anatomy.around import head_layers
from vit_keras.anatomy.inputs import batch_preprocessing_of, image_shape, native_size, preprocessing_of
from vit_keras.anatomy.outputs import why_not_classifier
from vit_keras.anatomy.parts import (
    attention_blocks,
    block_numbers,
    find_vit,
    has_attention,
    has_vit,
    patch_grid,
    patch_stride,
    prefix_names,
    set_rates,
)


def tiny(image_size=32, name="tiny", **options):
    return vit.build_model(image_size, 16, 2, 16, 2, name, 32, classes=3, **options)


def before(*layers):
    return keras.Sequential([keras.Input((32, 32, 3)), *layers, tiny()])


@pytest.mark.parametrize(
    "behind", [[], [keras.layers.Softmax()], [keras.layers.Dropout(0.1), keras.layers.Activation("softmax")]], ids=len
)
def test_class_names_come_through_what_stands_behind_the_vit(behind):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=10)
    image = keras.Input((32, 32, 3))
    output = model(image)
    for layer in behind:
        output = layer(output)
    around = keras.Model(image, output)
    nested = keras.Sequential([keras.Input((32, 32, 3)), around, keras.layers.Identity()])
    assert [anatomy.class_names(each) for each in (model, around, nested)] == [None] * 3
    assert anatomy.name_classes(nested, labels.CIFAR10)
    assert [anatomy.class_names(each) for each in (model, around, nested)] == [labels.CIFAR10] * 3
    assert not anatomy.name_classes(nested, ("cat", "dog"))
    model.labels = around.labels = nested.labels = np.array(labels.CIFAR10)
    assert anatomy.class_names(nested) == labels.CIFAR10


def test_blocks_are_in_order_in_a_model_around_the_vit():
    model = vit.build_model(32, 16, 3, 16, 2, "tiny", 32, classes=2)
    image = keras.Input((32, 32, 3))
    around = keras.Model(image, keras.layers.Dense(2)(model(image)))
    names = [block.name for block in anatomy.blocks(model)]
    assert [block.name for block in anatomy.blocks(around)] == sorted(names) == names


def test_a_new_head_has_not_the_names_of_the_old_one():
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=10)
    anatomy.name_classes(model, labels.CIFAR10)
    assert anatomy.class_names(keras.Sequential([model, keras.layers.Dense(10)])) is None


def transfer(vit_model):
    """A user's functional model of a ViT's tensors, which is flat: the ViT itself is not in it."""
    return keras.Model(vit_model.input, keras.layers.Dense(5)(vit_model.output))


@pytest.mark.compiles_long
@pytest.mark.core
def test_a_flat_model_remembers_the_preprocessing_of_its_vit(tmp_path):
    source = tiny()
    model = transfer(source)
    assert preprocessing_of(model).mean == preprocess.GOOGLE.mean
    source.preprocessing = preprocess.CLIP  # also of a model that was made before
    assert preprocessing_of(model) == preprocess.CLIP.replace(image_size=32)
    picture = np.random.RandomState(1).randint(0, 255, (40, 48, 3), "uint8")
    expected = keras.ops.convert_to_numpy(model(preprocess.CLIP(picture, 32)))
    for name in ("flat.keras", "flat.h5"):
        model.save(tmp_path / name)
        again = keras.models.load_model(tmp_path / name, compile=False)
        found = again.predict(preprocessing_of(again)(picture), verbose=0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert keras.models.clone_model(source).preprocessing == preprocess.CLIP


def test_evaluation_and_maps_of_a_flat_model_take_the_pixels_of_its_vit(tmp_path):
    source = tiny()
    model = transfer(source)
    source.preprocessing = preprocess.CLIP
    model.save(tmp_path / "flat.keras")
    again = keras.models.load_model(tmp_path / "flat.keras", compile=False)
    picture = np.random.RandomState(1).randint(0, 255, (32, 32, 3), "uint8")
    PIL.Image.fromarray(picture).save(tmp_path / "one.png")
    seen = training.embed(again, [tmp_path / "one.png"])
    np.testing.assert_allclose(seen, training.embed(source, [tmp_path / "one.png"]), rtol=0, atol=1e-5)
    theirs, ours = (visualize.attention_map(m, picture) for m in (source, again))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
    source.preprocessing = preprocess.GOOGLE
    assert np.abs(visualize.attention_map(source, picture) - ours).max() > 1e-3


def test_googles_preprocessing_is_not_written_down():
    assert "preprocessing" not in tiny().get_layer("embedding").get_config()
    mixer = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3, tokens_mlp_dim=8, pooling="gap", position=None)
    mixer.preprocessing = preprocess.CLIP
    assert preprocessing_of(transfer(mixer)).mean == preprocess.CLIP.mean


# --- what the outputs mean ----------------------------------------------------------------------------------------

NAMES = {"single": "abc", "multi": "abc", "regression": "xyz", "ordinal": ("mild", "medium", "hot", "very hot")}


def with_task(task):
    keras.utils.set_random_seed(2)
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=1 if task == "ordinal" else 3)
    for weight in model.get_layer("head").weights:
        weight.assign(np.random.default_rng(0).normal(0, 1, weight.shape))
    assert anatomy.name_classes(model, tuple(NAMES[task]), task)
    return model


@pytest.mark.slow
def test_a_task_is_known_in_a_new_process(tmp_path):
    with_task("ordinal").save(tmp_path / "model.keras")
    code = (
        "import sys, keras, vit_keras.anatomy.outputs as a; from vit_keras import vit\n"
        "m = keras.saving.load_model(sys.argv[1]); print(a.task(m), *a.output_names(m), a.class_names(m))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model.keras")], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.stdout.split("\n")[-2] == "ordinal mild medium hot very hot None", ran.stderr


def test_what_outputs_stand_for_follows_the_task():
    logits = np.array([[0.3, -20.0, 900.0]], "float32")
    single, multi, numbers, ordinal = map(with_task, labels.TASKS)
    np.testing.assert_allclose(anatomy.predictions(single, logits), [[0, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(anatomy.predictions(multi, logits), [[0.574443, 2.061e-9, 1]], rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(anatomy.predictions(numbers, logits), logits)
    np.testing.assert_array_equal(anatomy.predictions(ordinal, logits[:, :1]), logits[:, :1])
    one = vit.build_model(32, 16, 1, 16, 2, "one", 32, classes=1)
    np.testing.assert_allclose(anatomy.predictions(one, [[-3.0], [3.0]]), [[0.047426], [0.952574]], rtol=1e-5)
    assert anatomy.levels([0.3, 0.5001, -4, 17], 4).tolist() == [0, 1, 0, 3]
    behind = keras.Sequential([multi, keras.layers.Activation("sigmoid")])  # probabilities already
    np.testing.assert_array_equal(anatomy.predictions(behind, [[0.25, 0.5, 1.0]]), [[0.25, 0.5, 1.0]])
    with pytest.raises(ValueError, match="task is 'regression'"):
        anatomy.probabilities(numbers, logits)
    with pytest.raises(ValueError, match="task must be"):
        anatomy.name_classes(single, "abc", "clustering")
    assert not anatomy.name_classes(numbers, ("x",), "regression") and anatomy.task(numbers) == "regression"
    assert anatomy.class_names(multi) == ("a", "b", "c") and anatomy.class_names(ordinal) is None


def test_the_stride_of_a_part_of_a_model_of_any_size_is_asked_for():
    model = vit.build_model(None, 16, 1, 16, 2, "tiny", 32, classes=2, position_grid=(2, 2))
    part = keras.Model(model.input, model.layers[-2].output)
    assert patch_stride(model, None) == (16, 16)
    with pytest.raises(ValueError, match="Pass image_size="):
        patch_stride(part, None)


class Opaque(keras.Model):
    """A model without a graph: nothing tells what its outputs are."""

    def call(self, images):
        return images[:, 0, :3, 0]


@pytest.mark.parametrize(
    "outputs, are_probabilities",
    [
        ([[0.2, 0.3, 0.5], [1, 0, 0]], True),
        ([[0.2, 0.3, 0.505]], True),  # half precision
        ([[0.2, 0.3, 0.52]], False),
        ([[0.2, -0.3, 1.1]], False),
        ([[0.2, 0.3, 0.5], [1, 1, 0]], False),
        ([[-0.2, 0.3, 0.9], [0.2, 0.3, 0.5]], False),
    ],
)
def test_outputs_of_an_unknown_kind_are_probabilities_if_each_image_sums_to_1(outputs, are_probabilities):
    found, outputs = anatomy.probabilities(Opaque(), outputs), np.array(outputs, "float32")
    softmax = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, outputs if are_probabilities else softmax, rtol=1e-6)  # float32
    assert found.dtype == "float32"
    np.testing.assert_array_equal(anatomy.probabilities(tiny(activation="softmax"), outputs), outputs)  # known
    np.testing.assert_allclose(anatomy.probabilities(tiny(), outputs), softmax, rtol=1e-6)


def test_softmax_is_the_one_of_scipy():
    special = pytest.importorskip("scipy.special")
    for shape, scale in (((3, 5), 1), ((2, 3, 5), 1000), ((4, 4), 1e30)):
        logits = np.random.default_rng(0).normal(0, scale, shape).astype("float32")
        found = anatomy.outputs.softmax(logits)
        np.testing.assert_allclose(found, special.softmax(logits.astype("float64"), axis=-1), rtol=1e-6, atol=1e-12)
        assert found.dtype == "float32"


@pytest.mark.parametrize(
    "layers, expected",
    [
        (None, (0, 1, 2)),
        (0, (0,)),
        (-1, (2,)),
        ([2, 0, -3], (0, 2)),
        (np.array([1, -1]), (1, 2)),
        (range(3), (0, 1, 2)),
    ],
)
def test_block_numbers(layers, expected):
    assert block_numbers(layers, 3) == expected


@pytest.mark.parametrize("layers", [[], 3, -4, [0, 3], [-4, 0], range(4)])
def test_block_numbers_that_do_not_exist(layers):
    with pytest.raises(ValueError, match=re.escape(f"layers={layers}")):
        block_numbers(layers, 3)


@pytest.mark.parametrize("layers", [1.0, "last", [0, 1.5], [None]])
def test_block_numbers_that_are_not_integers(layers):
    with pytest.raises(TypeError, match="layers are numbers of blocks"):
        block_numbers(layers, 3)


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        ({}, "cls"),
        ({"pooling": "token+dist", "distillation_token": True, "registers": 1}, "cls dist reg0"),
        ({"pooling": "gap", "class_token": False}, ""),
        ({"pooling": "map", "class_token": False, "registers": 3}, "reg0 reg1 reg2"),
    ],
)
def test_which_tokens_come_before_the_patches(options, prefix):
    assert prefix_names(tiny(**options)) == tuple(prefix.split())


def test_which_models_have_a_vit_and_attention():
    mixer = tiny(tokens_mlp_dim=8, pooling="gap", position=None)
    assert has_attention(tiny()) and has_vit(mixer) and not has_attention(mixer)
    for other in (of_another(), "vit_b16", None):
        assert not has_vit(other) and not has_attention(other)


def rates(model):
    inside = [layer for block in anatomy.blocks(model) for layer in block._flatten_layers()]
    return [layer.rate for layer in inside if isinstance(layer, keras.layers.Dropout)]


def test_new_rates_are_those_of_a_model_that_is_built_with_them():
    model = tiny(dropout=0.3)
    set_rates(model, dropout=0.1, stochastic_depth=0.2)
    assert rates(model) == rates(tiny(dropout=0.1, stochastic_depth=0.2))
    assert (model.config.dropout, model.config.embedding_dropout) == (0.1, 0.3)


def test_rates_do_not_go_with_remat_in_a_model_without_a_config_either():
    model = keras.models.clone_model(tiny(dropout=0.0, remat=True))
    with pytest.raises(ValueError, match="cannot go with remat"):
        set_rates(model, stochastic_depth=0.2)
    set_rates(model, dropout=0.0)


def test_nothing_is_named_in_a_model_of_several_outputs():
    model = tiny()
    for outputs in ([model.output] * 2, {"a": model.output, "b": model.output}):
        several = keras.Model(model.input, outputs)
        assert anatomy.class_names(several) is None and not anatomy.name_classes(several, "abc")


def of_another():
    """A model without a ViT of this package."""
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Conv2D(2, 3, name="conv"), keras.layers.Flatten()])


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (lambda: [of_another(), keras.layers.Dense(2, name="behind")], ["behind"]),
        (lambda: [*of_another().layers, keras.layers.Dense(2, name="behind")], ["behind"]),
        (lambda: [keras.Sequential([of_another(), keras.layers.Dense(2, name="inside")])], ["inside"]),
        (lambda: [of_another()], ["conv"]),
        (
            lambda: [keras.layers.Conv2D(3, 1, name="stem"), tiny(), keras.layers.Dense(2, name="behind")],
            ["stem", "head", "behind"],
        ),
    ],
)
def test_the_layers_that_turn_features_into_classes(layers, names):
    model = keras.Sequential([keras.Input((32, 32, 3)), *layers()])
    assert [layer.name for layer in head_layers(model)] == names


def test_a_model_without_a_head_has_no_layers_to_train():
    image, one, other = keras.Input((32, 32, 3)), *(tiny(name=name, include_top=False) for name in ("one", "other"))
    for model, remedy in (
        (one, "put a Dense layer"),
        (keras.Sequential([image, keras.layers.Flatten()]), "put a Dense layer"),
        (keras.Model(image, keras.layers.Add()([one(image), other(image)])), "train=None"),
    ):
        with pytest.raises(ValueError, match=f"{model.name}.*no head to train.*{remedy}"):
            head_layers(model)


def test_what_is_missing_is_said():
    mixer = tiny(tokens_mlp_dim=8, pooling="gap", position=None)
    with pytest.raises(ValueError, match="'tiny' has no attention layer"):
        attention_blocks(mixer)
    features = tiny(include_top=False)
    features.task = "regression"
    with pytest.raises(ValueError, match="'tiny' does not predict numbers: it has no head"):
        anatomy.predictions(features, np.zeros((1, 16)))
    one, other = (tiny(name=name, include_top=False) for name in ("one", "other"))
    image = keras.Input((32, 32, 3))
    both = keras.Model(image, keras.layers.Add()([one(image), other(image)]), name="both")
    with pytest.raises(ValueError, match=r"'both', found 2: one, other\. Pass one of them\."):
        find_vit(both)
    with pytest.raises(ValueError, match=r"'other', found 0\.$"):
        find_vit(keras.Sequential([image, keras.layers.Flatten()], name="other"))


def cut(model):
    """The tokens of a model, as a model of its own without a config."""
    return keras.Model(model.input, model.get_layer("Transformer_encoder_norm").output)


def test_the_grid_of_patches():
    wide, open_ = tiny(image_size=(64, 16)), tiny(image_size=None, name="any", position_grid=(2, 2))
    assert patch_grid(wide) == patch_grid(cut(wide)) == (4, 1)
    assert patch_grid(open_, (32, 80)) == (2, 5) and patch_grid(wide, (32, 80)) == (4, 1)
    assert patch_stride(open_, None) == patch_stride(cut(wide), (64, 16)) == (16, 16)
    mixer = tiny(image_size=(32, 48), tokens_mlp_dim=8, pooling="gap", position=None)  # without positions
    assert patch_grid(cut(mixer)) == (2, 3) and patch_stride(cut(mixer), (32, 48)) == (16, 16)
    with pytest.raises(ValueError, match="'any' .*image_size="):
        patch_grid(open_)
    mixer = tiny(tokens_mlp_dim=8, pooling="gap", position=None)
    tokens = anatomy.blocks(mixer)[0].output
    behind = keras.Model(tokens, anatomy.blocks(mixer)[1](tokens))
    with pytest.raises(ValueError, match="Cannot infer the patch grid"):
        patch_grid(behind)


def test_the_size_of_the_images():
    fixed, open_ = tiny(), tiny(image_size=None, position_grid=(2, 2))
    for given in (None, "native", 32, (32, 32)):
        assert native_size(fixed, given) == (32, 32)
    with pytest.raises(ValueError, match=r"\(32, 32\).*image_size=48"):
        native_size(fixed, 48)
    assert native_size(open_, (48, 16)) == (48, 16)
    open_.preprocessing = open_.preprocessing.replace(image_size=None)
    assert native_size(open_) is None and native_size(open_, "native") is None
    open_.preprocessing = open_.preprocessing.replace(image_size=(80, 64))
    assert native_size(open_) == (80, 64)
    assert image_shape(open_) == (None, None, None, 3) and image_shape(fixed) == (None, 32, 32, 3)
    image, number = keras.Input((32, 32, 3)), keras.Input((1,))
    joined = keras.Model([number, image], keras.layers.Concatenate()([number, fixed(image)]))
    assert image_shape(joined) == (None, 32, 32, 3)
    held = keras.Sequential([keras.Input((48, None, 3)), keras.layers.Resizing(32, 32), fixed])
    assert image_shape(held) == (None, 48, None, 3)


def test_the_preprocessing_that_is_left_to_the_caller():
    def asked(model, image_size=None):
        found = preprocessing_of(model, image_size)
        return found.image_size, found.crop, found.mean[0], found.std[0], found.channels

    def behind(size, *layers):
        model = tiny()
        model.preprocessing = preprocess.CLIP.replace(crop=0.875, image_size=32)
        return keras.Sequential([keras.Input((*size, 3)), *layers, model])

    own = preprocess.CLIP.mean[0], preprocess.CLIP.std[0]
    rescaling, pixels = keras.layers.Rescaling(1 / 127.5, -1), (0, pytest.approx(1 / 255))
    assert asked(behind((32, 32))) == ((32, 32), 0.875, *own, 3)
    assert asked(behind((32, 32), rescaling)) == ((32, 32), 0.875, *pixels, 3)
    assert asked(behind((32, 32), keras.layers.Normalization(mean=0.5, variance=0.25))) == ((32, 32), 0.875, 0, 1, 3)
    assert asked(behind((48, 40), keras.layers.Resizing(32, 32))) == ((48, 40), None, *own, 3)
    for size in ((None, None), (48, None), (None, 48)):
        resizing = behind(size, keras.layers.Resizing(32, 32))
        assert [asked(resizing, given) for given in (None, "native")] == [(None, None, *own, 3)] * 2
        assert asked(resizing, (64, 48)) == ((64, 48), None, *own, 3)
    open_ = tiny(image_size=None, position_grid=(2, 2))
    assert asked(open_, (64, 48))[:2] == ((64, 48), preprocess.GOOGLE.crop)
    grey = vit.build_model(32, 16, 1, 16, 2, "grey", 32, classes=3, channels=1)
    assert asked(grey)[-1] == 1


def through(images, *layers):
    """The images after the layers before a ViT that takes images of any size: each alone, and prepared for a batch."""
    front = [keras.Input((None, None, 3)), *layers]
    model, front = keras.Sequential([*front, tiny()]), keras.Sequential(front)
    prepared = batch_preprocessing_of(model)
    alone = [front(preprocessing_of(model)(image)) for image in images]
    return prepared, *(keras.ops.convert_to_numpy(x) for x in (keras.ops.concatenate(alone), front(prepared(images))))


@pytest.mark.parametrize(
    ("layers", "size", "crop", "interpolation"),
    [
        (lambda: [keras.layers.Resizing(32, 32)], 32, None, "bilinear"),
        (lambda: [keras.layers.Resizing(32, 32, interpolation="nearest")], 32, None, "nearest"),
        (lambda: [keras.layers.Resizing(40, 48), keras.layers.CenterCrop(32, 32)], (40, 48), None, "bilinear"),
        (
            lambda: [keras.layers.Resizing(48, 48, crop_to_aspect_ratio=True), keras.layers.CenterCrop(32, 32)],
            48,
            1.0,
            "bilinear",
        ),
        (lambda: [preprocess.Preprocess(preprocess.GOOGLE), keras.layers.Resizing(32, 32)], 32, None, "bilinear"),
        (lambda: [preprocess.Preprocess(preprocess.CLIP.replace(crop=None), 32)], 32, None, "bicubic_antialias"),
        (lambda: [preprocess.Preprocess(preprocess.CLIP.replace(crop=0.8), 32)], 40, 1.0, "bicubic_antialias"),
        (
            lambda: [preprocess.Preprocess(preprocess.CLIP.replace(crop=0.8, crop_mode="squash"), 32)],
            40,
            None,
            "bicubic_antialias",
        ),
        (lambda: [preprocess.Preprocess(preprocess.GOOGLE, 64), keras.layers.CenterCrop(32, 32)], 64, None, "bilinear"),
    ],
)
def test_images_of_a_batch_reach_the_vit_as_they_do_alone(layers, size, crop, interpolation):
    down, across = np.mgrid[0:48, 0:64]
    slopes = np.stack([across * 4, down * 5, (across + down) * 2], axis=-1).astype("uint8")
    prepared, alone, batch = through([slopes, slopes.transpose(1, 0, 2)[::-1]], *layers())
    size = size if isinstance(size, tuple) else (size, size)
    assert (prepared.image_size, prepared.crop, prepared.interpolation) == (size, crop, interpolation)
    # Gray levels are rounded before the layers instead of in or behind them, and a crop may be a pixel away.
    np.testing.assert_allclose(batch, alone, rtol=0, atol=0.02 * np.ptp(alone))


@pytest.mark.parametrize(
    ("layer", "does"),
    [
        (lambda: keras.layers.CenterCrop(32, 32), "crops"),
        (lambda: keras.layers.Resizing(32, 32, pad_to_aspect_ratio=True), "pads"),
    ],
)
def test_images_that_cannot_reach_the_vit_as_they_do_alone_are_warned_of(layer, does):
    model = keras.Sequential([keras.Input((None, None, 3)), layer(), tiny()])
    with pytest.warns(UserWarning, match=f"{does} each image by its own size"):
        assert batch_preprocessing_of(model).image_size == (32, 32)


def test_a_batch_of_a_model_without_resizing_has_its_preprocessing():
    for model in (tiny(), before(keras.layers.Rescaling(1 / 255))):
        assert batch_preprocessing_of(model) == preprocessing_of(model)


def test_why_a_model_is_not_a_classifier():
    model = tiny()
    two = keras.Model(model.input, [model.output, model.output])
    for each, lack in (
        (model, None),
        (Opaque(), None),
        (tiny(activation="tanh"), None),
        (two, "it has 2 outputs"),
        (tiny(pooling=None, include_top=False), "its output has the shape (None, 5, 16)"),
        (tiny(include_top=False), "it has no head, and returns 16 features"),
    ):
        assert why_not_classifier(each) == lack
        if lack:
            with pytest.raises(ValueError, match=f"{each.name}.*{lack[:8]}"):
                anatomy.probabilities(each, np.zeros((1, 3)))

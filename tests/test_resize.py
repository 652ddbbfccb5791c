"""Models of every family at other sizes: any size, resized copies, saved files, half precision, attention, maps.

`test_families.py` and `test_golden.py` say that a model built for a size gives what the original gives at that size;
here such models are the reference.
"""

import functools
import math
import tempfile

import keras
import make_google_npz
import numpy as np
import pytest
from family_files import load, write
from support import ASSUMED, DATA, OTHER_PIXELS

import vit_keras
from vit_keras import from_checkpoint, layers, visualize, vit
from vit_keras.anatomy import find_vit
from vit_keras.config import ViTConfig
from vit_keras.layers.patches import PatchNormalization
from vit_keras.resampling import resize_bilinear

pytestmark = [ASSUMED, OTHER_PIXELS]

BACKEND = keras.backend.backend()
OLD = DATA / "vit_keras_0"
# One of each way to resample positions, to put tokens before the patches, to pool and to embed patches.
ANY_SIZE = [
    "timm_vit", "hf_vit", "dino_original", "dinov2_hub_reg4", "deit3_original", "timm_deit_distilled",
    "torchvision_vit", "open_clip", "dinov3_original", "hf_siglip_vision", "vit_pytorch", "timm_hybrid_r8",
    "BV-mu_16-sincos", "R+ViT-mu_16",
]  # fmt: skip
RELATIVE = ["timm_beit", "hf_beit", "hf_beit_shared"]
# On the other backends the layers are the same: a few are enough.
FEW = ["timm_vit", "deit3_original", "dinov3_original", "hf_beit", "hf_siglip_vision", "timm_hybrid_r8"]
if BACKEND != "tensorflow":
    ANY_SIZE = [name for name in FEW if name not in RELATIVE]


def first(names, count=3):
    """A few by default, all with the slow tests: what differs is the family, not the mechanism."""
    return [name if n < count else pytest.param(name, marks=pytest.mark.slow) for n, name in enumerate(names)]


@functools.cache
def file_of(name):
    """Path of a checkpoint, and what has to be said about it."""
    folder = tempfile.mkdtemp(prefix="vit_keras-")
    if not (DATA / "families" / f"{name}.npz").is_file():
        path = f"{folder}/weights.npz"
        make_google_npz.save(path, make_google_npz.make(name, image_size=64, classes=10))
        return path, {}
    golden = load(name)
    options = {key: value for key, value in golden.options.items() if key != "image_size"}
    options |= {"dino_original": {"family": "dino"}, "dinov3_original": {"image_size": 32}}.get(name, {})
    return write(golden, folder), options


def open_file(name, **options):
    path, known = file_of(name)
    model = from_checkpoint(path, **{**known, **options})
    model.run_eagerly = True  # few models here run twice at one size: compiling would take longer than it saves
    return model


@functools.cache
def native(name):
    return open_file(name)


def numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def run(model, images):
    model.run_eagerly = True
    return numpy(model(images))


def pictures(height, width, n=2):
    return np.random.default_rng(0).uniform(-1, 1, (n, height, width, 3)).astype("float32")


def assert_same(found, expected, name=""):
    """Two correct float32 computations differ by about 1e-6 of the largest value; ResNets by ten times that."""
    tolerance = (1e-4 if "hybrid" in name or name.startswith("R") else 1e-5) * max(1, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def two_sizes(name, more=(0, 0)):
    """Images of two sizes other than the native one, and what fixed models make of them."""
    stride = native(name).config.stride
    for n, grid in ((2, (3, 5)), (3, (5, 2))):
        size = [patches * pixels for patches, pixels in zip(grid, stride)]
        images = pictures(size[0] + more[0], size[1] + more[1], n)
        yield images, run(open_file(name, image_size=size), images[:, : size[0], : size[1]])


# ------------------------------------------------------------------ any size --


@pytest.mark.core
@pytest.mark.parametrize(
    "name",
    ["timm_vit", "open_clip", "torchvision_vit", "timm_hybrid_r8"],
)
@pytest.mark.compiles_long
def test_a_model_of_any_size_gives_what_the_original_gave(name):
    golden, model = load(name), open_file(name, image_size=None)
    assert_same(run(model, golden.inputs), golden.output, name)
    assert_same(run(model, golden.inputs_2), golden.output_2, name)


@pytest.mark.core
@pytest.mark.compiles_long
@pytest.mark.parametrize("name", ["timm_vit", "dinov3_original"])
def test_it_does_so_however_it_is_called(name, tmp_path):
    model = open_file(name, image_size=None)
    model.run_eagerly = False
    inputs = keras.Input((None, None, 3))
    sequential, nested = keras.Sequential([inputs, model]), keras.Model(inputs, model(inputs))
    model.save(tmp_path / "any.keras")
    loaded = keras.models.load_model(tmp_path / "any.keras", safe_mode=True)
    loaded.run_eagerly = nested.run_eagerly = True
    assert loaded.config == model.config and loaded.config.image_size is None
    for images, expected in two_sizes(name):
        for call in (
            model,
            functools.partial(model.predict, verbose=0, batch_size=2),
            sequential,
            functools.partial(nested.predict, verbose=0),
            loaded,
        ):
            assert_same(numpy(call(images)), expected)


@pytest.mark.slow
def test_it_is_exported_with_its_sizes_open(tmp_path):
    if BACKEND != "tensorflow":
        pytest.skip("a SavedModel is TensorFlow's")
    import tensorflow as tf

    name = "dinov2_hub_reg4"
    model = open_file(name, image_size=None)
    function = tf.function(model, input_signature=[tf.TensorSpec((None, None, None, 3))])
    model.export(tmp_path / "saved", verbose=False)
    saved = tf.saved_model.load(tmp_path / "saved")
    for images, expected in two_sizes(name):
        assert_same(numpy(function(images)), expected)
        assert_same(numpy(saved.serve(images)), expected)


@pytest.mark.slow
@pytest.mark.core
def test_it_learns_from_images_of_several_sizes():
    model = open_file("timm_vit", image_size=None)
    model.run_eagerly = False
    model.compile("sgd", "mse")
    table = model.get_layer("Transformer_posembed_input").pe
    for images, expected in two_sizes("timm_vit"):
        before = numpy(table)
        model.fit(images, expected + 1, epochs=1, verbose=0)
        assert np.isfinite(numpy(table)).all() and not np.array_equal(numpy(table), before)


@pytest.mark.parametrize("name", ["timm_vit", "vit_pytorch"])
def test_what_is_left_over_after_whole_patches_is_lost_if_that_is_wanted(name):
    model = open_file(name, image_size=None, drop_remainder=True)
    for images, expected in two_sizes(name, more=(7, 3)):
        assert_same(run(model, images), expected)
        size = images.shape[1:3]
        assert_same(run(open_file(name, image_size=size, drop_remainder=True), images), expected)
        with pytest.raises(ValueError, match="whole number of patches"):
            open_file(name, image_size=size)


@pytest.mark.parametrize("name", ["hf_beit", "timm_mixer"])
def test_weights_for_one_grid_refuse_to_take_any_size(name):
    with pytest.raises(ValueError, match="made for one grid of patches"):
        open_file(name, image_size=None)


# -------------------------------------------------------------------- resize --


@pytest.mark.parametrize("name", first([*ANY_SIZE, *RELATIVE]))
def test_a_resized_model_is_the_one_that_its_file_makes(name):
    model = native(name)
    before = model.get_weights()
    size = (model.config.stride[0] * 3, model.config.stride[1] * 5)
    resized, expected = vit_keras.resize(model, size), open_file(name, image_size=size)
    assert resized.config == expected.config
    assert resized.preprocessing == expected.preprocessing and resized.labels == expected.labels
    for found, wanted in zip(resized.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    for weight, old in zip(model.get_weights(), before):
        np.testing.assert_array_equal(weight, old)


@pytest.mark.parametrize("name", ["timm_vit", "dinov3_original"])
def test_to_any_size_and_back(name):
    model = native(name)
    size = model.config.image_size
    again = vit_keras.resize(vit_keras.resize(model, None), size)
    for found, wanted in zip(again.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert again.config == model.config


@pytest.mark.parametrize("fields", [{}, {"resnet": (1,)}, {"patch_size": (8, 4), "rope_theta": 9.0}])
def test_a_model_of_any_size_refuses_incomplete_patches(fields):
    sizes = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "mlp_dim": 16, "classes": 3, "patch_size": 8}
    config = ViTConfig(**{**sizes, "image_size": None, "position_grid": (2, 3), **fields})
    model, cutting = vit.build(config), vit.build(config.replace(drop_remainder=True))
    height, width = config.stride[0] * 2, config.stride[1] * 3
    with pytest.raises(ValueError, match="image_size="):
        model(np.ones((1, height, 1, 3), "float32"))
    for size in [(height + 1, width), (height, width + 1)]:
        images = np.ones((1, *size, 3), "float32")
        for call in (model, model.predict):
            with pytest.raises(ValueError, match="image_size=.*nearest"):
                call(images)
        np.testing.assert_array_equal(run(cutting, images), run(model, images[:, :height, :width]))
    if config.resnet is None:
        with pytest.raises(ValueError, match="image_size=.*nearest"):
            vit_keras.pack(model).arrange([images[0]])


@pytest.mark.core
def test_relative_positions_of_a_rectangle_are_resampled_to_the_upright_one():
    tall = vit_keras.resize(native("hf_beit"), (40, 24))
    wide = vit_keras.resize(tall, (24, 40))  # the table has as many rows
    name = "Transformer_encoderblock_0"
    tables = [numpy(model.get_layer(name).att.relative_position_bias) for model in (tall, wide)]
    assert tables[0].shape == tables[1].shape and not np.array_equal(*tables)


def test_patches_of_another_size():
    expected = open_file("timm_vit", patch_size=16, image_size=64)
    resized = vit_keras.resize(native("timm_vit"), 64, patch_size=16)
    for found, wanted in zip(resized.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_another_pooling_keeps_the_class_token_as_its_file_does():
    expected = open_file("timm_vit", pooling="gap")
    resized = vit_keras.resize(native("timm_vit"), expected.config.image_size, pooling="gap")
    assert resized.config.has_class_token
    for found, wanted in zip(resized.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_nested_model_and_a_policy():
    model = open_file("timm_vit", dtype="mixed_bfloat16")
    model.labels = tuple("abcdefghij")
    resized = find_vit(vit_keras.resize(keras.Sequential([model, keras.layers.Dense(2)]), (24, 40)))
    assert [layer.dtype_policy.name for layer in resized.layers[1:]] == [
        layer.dtype_policy.name for layer in model.layers[1:]
    ]
    assert resized.labels == model.labels and resized.preprocessing.image_size == (24, 40)
    assert vit_keras.resize(model, (24, 40), classes=3).labels is None
    wide = vit_keras.resize(model, (24, 40), dtype="float32")
    assert {layer.compute_dtype for layer in wide.layers} == {"float32"}
    for found, expected in zip(wide.get_weights(), resized.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_adapters_are_not_named_as_weights_around_the_vit():
    model = vit.build_model(32, 8, 1, 16, 2, "base", 16, classes=3)
    model.get_layer("head").enable_lora(2)
    assert vit_keras.resize(model, 32).output_shape == (None, 3)


def test_another_number_of_channels():
    grey = vit_keras.resize(native("timm_vit"), 32, channels=1)
    assert grey.preprocess(np.zeros((48, 64, 3), "uint8")).shape == (1, 32, 32, 1)
    fresh = vit.build_model(32, 8, 1, 32, 2, "grey", 32, classes=3, channels=1)
    assert fresh.preprocess(np.zeros((48, 64, 3), "uint8")).shape == (1, 32, 32, 1)


@pytest.mark.parametrize("size", [None, 64, (40, 24)])
def test_a_mixer_has_one_size(size):
    with pytest.raises(ValueError, match="is a Mixer"):
        vit_keras.resize(native("timm_mixer"), size)


# --------------------------------------------------------------------- files --


@pytest.mark.parametrize("name", first([*FEW, "vit_pytorch", "timm_deit_distilled", "timm_dinov2_reg4", "timm_mixer"]))
def test_files_round_trip(name, tmp_path):
    model = native(name)
    images = pictures(*model.input_shape[1:3])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert again.config == model.config
    assert again.preprocessing == model.preprocessing and again.labels == model.labels
    np.testing.assert_array_equal(run(again, images), run(model, images))
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = vit.build(model.config)
    fresh.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(run(fresh, images), run(model, images))


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("name", ["dino_original", "hf_beit", "deit3_original"])
def test_saved_weights_are_resampled_by_the_way_of_their_family(name, tmp_path):
    square, path = native(name), tmp_path / "some.weights.h5"
    for source, size in ((square, (24, 40)), (vit_keras.resize(square, (24, 48)), (40, 16))):
        source.save_weights(path)
        model = vit.build(square.config.replace(image_size=size))
        model.load_weights(path)
        expected = vit_keras.resize(source, size)
        for found, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "name", first([*FEW, "vit_pytorch", "timm_deit_distilled", "timm_dinov2_reg4", "BV-mu_16-sincos"])
)
def test_every_layer_is_made_again_from_its_config(name):
    for layer in native(name).layers[1:]:
        again = type(layer).from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        shape = keras.tree.map_structure(lambda tensor: tensor.shape, layer.input)
        if isinstance(shape, list) and not isinstance(layer, (keras.layers.Average, keras.layers.Concatenate)):
            shape = shape[0]  # what else there is are positions
        again.build(shape)
        assert tuple(again.compute_output_shape(shape)) == tuple(layer.output.shape)
        assert [v.shape for v in again.weights] == [v.shape for v in layer.weights]


@pytest.mark.core
@pytest.mark.parametrize("channels", [8, 9])
def test_patch_normalisation_alone(channels):
    images = np.random.default_rng(1).normal(size=(2, 19, 16, channels)).astype("float32")
    layer = PatchNormalization((8, 4), epsilon=1e-5)
    found = numpy(layer(images))
    assert found.shape == layer.compute_output_shape(images.shape) == (2, 16, 16, channels)
    patch = images[0, 8:16, 4:8].astype("float64")
    expected = (patch - patch.mean()) / np.sqrt(patch.var() + 1e-5)
    np.testing.assert_allclose(found[0, 8:16, 4:8], expected, rtol=0, atol=1e-5)  # float32 of values up to 4


@pytest.mark.parametrize(
    "name", ["v010.h5", "v010.keras", "v010.weights.h5", "v010_weights.h5", "v020.h5", "v020.keras"]
)
def test_files_of_vit_keras_0_give_their_outputs(name):
    data = np.load(OLD / f"{name[:4]}.npz")
    model = from_checkpoint(OLD / name, num_heads=2, activation="softmax")
    found = run(model, vit.preprocess_inputs(data["images"]))
    np.testing.assert_allclose(found, data["outputs"], rtol=0, atol=1e-6)  # probabilities: a few roundings


# ---------------------------------------------------------- dtypes, attention --


@pytest.mark.parametrize("name", first([*FEW, "vit_pytorch", "timm_mixer"]))
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_policies(name, policy):
    if policy == "float64" and BACKEND == "jax":
        pytest.skip("JAX has float64 only when it is switched on for the whole process")
    images = pictures(*native(name).input_shape[1:3])
    expected, output = run(native(name), images), open_file(name, dtype=policy)(images)
    assert np.isfinite(numpy(output)).all()
    # bfloat16 has 8 bits, float16 has 11: the roundings of two blocks of large random weights; float64 has what
    # float32 has.
    tolerance = {"mixed_float16": 0.02, "mixed_bfloat16": 0.15, "float64": 1e-5}[policy]
    np.testing.assert_allclose(numpy(output), expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))
    if native(name).config.include_top:
        wide = "float64" if policy == "float64" else "float32"
        assert keras.backend.standardize_dtype(output.dtype) == wide


@pytest.mark.few_cases(3)
@pytest.mark.core
@pytest.mark.parametrize("name", ["timm_vit", "BV-mu_16-sincos", "dinov3_original"])
@pytest.mark.parametrize("policy", ["mixed_float16", "float64"])
@pytest.mark.compiles_long
def test_policies_of_a_model_of_any_size(name, policy):
    if policy == "float64" and BACKEND == "jax":
        pytest.skip("JAX has float64 only when it is switched on for the whole process")
    images, expected = next(two_sizes(name))
    found = run(open_file(name, image_size=None, dtype=policy), images)
    tolerance = {"mixed_float16": 0.02, "float64": 1e-5}[policy]  # as above
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


@pytest.mark.core
@pytest.mark.parametrize("name", first([*FEW, "timm_deit_distilled", "timm_dinov2_reg4"]))
def test_attention_is_recorded_and_returned(name):
    model = native(name)
    config, images = model.config, pictures(*model.input_shape[1:3])
    with layers.record_attention() as recorded:
        run(model, images)
    tokens = config.prefix_tokens + math.prod(config.grid)
    # The blocks' alone: what pools by attention is none.
    assert [tuple(scores.shape) for scores in recorded] == [(2, config.num_heads, tokens, tokens)] * config.num_layers
    for scores in recorded:
        np.testing.assert_allclose(numpy(scores).sum(axis=-1), 1, rtol=0, atol=1e-5)  # up to 21 float32 are added

    block = model.get_layer(f"Transformer_encoderblock_{config.num_layers - 1}")
    given = keras.tree.flatten(block.input)
    taken = keras.Model(model.inputs[0], [*given, block.output])(images)
    rope = {"rope": taken[1]} if len(given) == 2 else {}
    output, scores = block(taken[0], return_attention_scores=True, **rope)
    assert_same(numpy(output), numpy(taken[-1]))
    np.testing.assert_allclose(numpy(scores), numpy(recorded[-1]), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.core
def test_rope_with_remat_learns_the_same():
    sizes = {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "mlp_dim": 64, "classes": 3, "patch_size": 8}
    config = ViTConfig(image_size=None, position=None, rope_theta=100.0, registers=2, **sizes)
    plain, remat = vit.build(config), vit.build(config.replace(remat=True))
    remat.set_weights(plain.get_weights())
    start = plain.get_weights()
    for model in (plain, remat):
        model.compile("sgd", "mse")
        model.train_on_batch(pictures(32, 32), np.ones((2, 3)))
    for a, b in zip(plain.get_weights(), remat.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)  # one step of 0.01 times a gradient below 10
    assert any(not np.array_equal(a, b) for a, b in zip(start, plain.get_weights()))


# ---------------------------------------------------------------------- maps --


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    "name",
    ["timm_dinov2_reg4", "timm_deit_distilled", "dinov3_original", "hf_beit", "hf_siglip_vision", "timm_hybrid_r8"],
)
def test_maps_have_the_grid_of_the_model(name):
    image = np.random.default_rng(2).integers(0, 256, (64, 96, 3), dtype="uint8")
    model = native(name)
    fixed = visualize.attention_map(model, image, return_map=True)
    assert fixed.shape == model.config.grid
    assert visualize.attention_map(model, image).shape == image.shape
    model.preprocessing = model.preprocessing.replace(crop=None)  # a map is of the whole picture
    inside = keras.Sequential([keras.Input((*model.input_shape[1:3], 3)), vit_keras.preprocessing_layer(model), model])
    resized = np.rint(resize_bilinear(image, model.input_shape[1:3], align_corners=False))
    np.testing.assert_allclose(
        visualize.attention_map(inside, resized.astype("uint8"), return_map=True),
        visualize.attention_map(model, resized.astype("uint8"), return_map=True),
        rtol=0,
        atol=1e-5,  # shares of at most 1 of a float32 model
    )
    if name != "hf_beit":
        anyone = open_file(name, image_size=None)
        assert visualize.attention_map(anyone, image, return_map=True).shape == anyone.config.grid_of((64, 96))


def test_maps_are_of_images_as_the_model_knows_them():
    model = open_file("timm_deit_distilled")
    image = np.random.default_rng(2).integers(0, 256, (32, 32, 3), dtype="uint8")
    assert model.preprocessing.mean != (0.5, 0.5, 0.5)
    own = visualize.attention_map(model, image, return_map=True)
    named = visualize.attention_map(model, image, return_map=True, preprocess=model.preprocessing.normalize)
    np.testing.assert_array_equal(own, named)
    other = visualize.attention_map(model, image, return_map=True, preprocess=vit.preprocess_inputs)
    assert np.abs(own - other).max() > 1e-4


COPIES = {"clone": keras.models.clone_model, "functional": lambda model: keras.Model(model.input, model.output)}


def copied(copy, **options):
    """A model, and a copy of it that has no configuration."""
    model = vit.build_model(32, 8, 2, 32, 4, "small", 64, classes=3, **options)
    model.preprocessing = model.preprocessing.replace(mean=0.4, interpolation="bicubic")
    for weight in model.weights:
        weight.assign(np.random.RandomState(0).normal(0, 0.2, weight.shape))
    plain = COPIES[copy](model)
    plain.set_weights(model.get_weights())
    return model, plain


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    "options",
    [
        {"position_resize": "bicubic", "head_bias": False, "dropout": 0.1, "stochastic_depth": 0.1},
        {"dropout": 0.1, "emb_dropout": 0.0, "patch_dropout": 0.5},
        {"pooling": None, "include_top": False, "final_norm": None},
        {"post_norm": True, "layer_scale": 0.1, "gated_mlp": True, "qkv_bias": False},
        {"position_prefix": False, "relative_positions": True, "activation": keras.layers.LeakyReLU(0.2)},
    ],
)
def test_a_copy_without_a_configuration_is_resized_as_its_model(copy, options):
    model, plain = copied(copy, **options)
    ours, theirs = vit_keras.resize(plain, (48, 32)), vit_keras.resize(model, (48, 32))
    assert ours.config.replace(name="", classes=3, drop_remainder=False) == theirs.config.replace(name="")
    assert ours.preprocessing == theirs.preprocessing
    assert vit_keras.preprocessing_layer(plain).preprocessing == vit_keras.preprocessing_layer(model).preprocessing
    for our, their in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_array_equal(our, their)


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    "options", [{"pooling": "gap", "class_token": True}, {"pooling": "token+gap"}, {"rope_theta": 100.0}]
)
def test_a_copy_whose_layers_do_not_say_all_is_refused(copy, options):
    _, plain = copied(copy, **options)
    with pytest.raises(ValueError, match="has no ViTConfig"):
        vit_keras.resize(plain, 64)


def test_classes_for_a_model_of_tokens_need_a_pooling():
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, pooling=None, include_top=False)
    with pytest.raises(ValueError, match="which no head takes.*or a pooling"):
        vit_keras.resize(model, 64, classes=3)
    assert vit_keras.resize(model, 64, classes=3, pooling="gap").output_shape == (None, 3)

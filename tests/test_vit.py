"""Building models: the table, the options, what is drop-in for vit-keras 0.2, and wrong arguments."""

import inspect
import warnings

import keras
import numpy as np
import pytest

import vit_keras
from vit_keras import utils, variants, vit
from vit_keras.checkpoints.weights import Weights

TINY = {"patch_size": 8, "num_layers": 2, "hidden_size": 32, "num_heads": 2, "mlp_dim": 64, "name": "tiny"}


def tiny(image_size=32, classes=10, **options):
    return vit.build_model(image_size=image_size, classes=classes, **{**TINY, **options})


def run(model, *shape):
    images = np.random.RandomState(0).uniform(-1, 1, size=(2, *(shape or model.input_shape[1:]))).astype("float32")
    return keras.ops.convert_to_numpy(model(images))


# --- the graph ---------------------------------------------------------------------------------------------


def test_layers_have_the_names_and_the_order_of_vit_keras():
    model = tiny(representation_size=16)
    assert [layer.name for layer in model.layers][1:] == [
        "embedding",
        model.layers[2].name,
        "class_token",
        "Transformer_posembed_input",
        "Transformer_encoderblock_0",
        "Transformer_encoderblock_1",
        "Transformer_encoder_norm",
        "ExtractToken",
        "pre_logits",
        "head",
    ]
    assert isinstance(model.layers[2], keras.layers.Reshape)
    block = model.get_layer("Transformer_encoderblock_0")
    assert block.att.name == "MultiHeadDotProductAttention_1"
    assert block.mlpblock.name == "MlpBlock_3"
    assert (block.layernorm1.name, block.layernorm2.name) == ("LayerNorm_0", "LayerNorm_2")
    assert isinstance(block.dropout_layer, keras.layers.Dropout)


@pytest.mark.parametrize(
    ("factory", "name", "image_size"),
    [
        ("vit_ti16", "vit-ti16", (224, 224)),
        ("vit_s16", "vit-s16", (224, 224)),
        ("vit_s32", "vit-s32", (224, 224)),
        ("vit_b8", "vit-b8", (224, 224)),
        ("vit_b16", "vit-b16", (224, 224)),
        ("vit_b32", "vit-b32", (224, 224)),
        ("vit_l16", "vit-l16", (384, 384)),
        ("vit_l32", "vit-l32", (384, 384)),
        ("vit_h14", "vit-h14", (224, 224)),
    ],
)
def test_factories_have_the_arguments_and_defaults_of_vit_keras(factory, name, image_size):
    parameters = inspect.signature(getattr(vit, factory)).parameters
    assert list(parameters)[:7] == [
        "image_size",
        "classes",
        "activation",
        "include_top",
        "pretrained",
        "pretrained_top",
        "weights",
    ]
    assert parameters["image_size"].default == image_size
    assert parameters["pretrained"].default is True
    assert parameters["pretrained_top"].default is None
    model = getattr(vit, factory)(image_size=64 if name != "vit-h14" else 56, pretrained=False, num_layers=1)
    assert model.name == name


def test_dropout_is_the_references_by_default_and_settable():
    assert {name: preset.dropout for name, preset in variants.VARIANTS.items() if preset.dropout} == {
        "L_16": 0.1,
        "H_14": 0.1,
    }
    model = vit.vit_ti16(image_size=32, pretrained=False, dropout=0.3, emb_dropout=0.2, attention_dropout=0.1)
    block = model.get_layer("Transformer_encoderblock_3")
    assert (block.dropout_layer.rate, block.mlpblock.dropout, block.att.dropout) == (0.3, 0.3, 0.1)
    assert model.get_layer("Transformer_posembed_input").dropout_layer.rate == 0.2


# --- sizes and options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"image_size": (32, 64)}, (2, 10)),
        ({"image_size": (32, 48), "patch_size": (8, 16)}, (2, 10)),
        ({"channels": 1}, (2, 10)),
        ({"channels": 13}, (2, 10)),
        ({"dim_head": 24}, (2, 10)),
        ({"pooling": "gap"}, (2, 10)),
        ({"pooling": "mean"}, (2, 10)),
        ({"pooling": "cls"}, (2, 10)),
        ({"include_top": False}, (2, 32)),
        ({"include_top": False, "pooling": "gap"}, (2, 32)),
        ({"include_top": False, "pooling": None}, (2, 17, 32)),
        ({"include_top": False, "representation_size": 5}, (2, 5)),
        ({"representation_size": 5}, (2, 10)),
        ({"image_size": 37, "drop_remainder": True}, (2, 10)),
        ({"hidden_size": 33, "dim_head": 7}, (2, 10)),
        ({"dropout": 0.1, "emb_dropout": 0.2}, (2, 10)),
    ],
)
def test_options_give_the_right_output(options, shape):
    model = tiny(**options)
    assert run(model).shape == shape
    assert tuple(model.output_shape) == (None, *shape[1:])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_logits_are_float32_in_half_precision(policy):
    model = tiny(dtype=policy)
    assert model.get_layer("Transformer_encoderblock_0").compute_dtype == policy[6:]
    assert keras.backend.standardize_dtype(model(np.zeros((1, 32, 32, 3), "float32")).dtype) == "float32"
    keras.config.set_dtype_policy(policy)
    try:
        assert tiny().get_layer("Transformer_encoderblock_0").compute_dtype == policy[6:]
    finally:
        keras.config.set_dtype_policy("float32")


# --- what a factory loads ----------------------------------------------------------------------------------


@pytest.fixture
def ti16(google_npz):
    return lambda **options: google_npz("ViT-Ti_16", **{"image_size": 32, "classes": 7, **options})


def equals(layer, path, name):
    return np.array_equal(layer.get_weights()[0], Weights(path)[name])


def test_classes_default_to_the_checkpoints(ti16):
    path = ti16()
    model = vit.vit_ti16(image_size=32, weights=path)
    assert model.output_shape == (None, 7)
    assert equals(model.get_layer("head"), path, "head/kernel")
    assert not model.load_report.fresh


def test_other_classes_are_taken_at_their_word_without_a_warning(ti16, recwarn):
    path = ti16()
    model = vit.vit_ti16(image_size=32, weights=path, classes=10)
    assert model.output_shape == (None, 10)
    assert not model.get_layer("head").get_weights()[0].any()
    assert equals(model.get_layer("embedding"), path, "embedding/kernel")
    assert "head dropped" in model.load_report.adapted
    assert not [w for w in recwarn if issubclass(w.category, UserWarning)]


@pytest.mark.parametrize("options", [{}, {"pretrained_top": False}])
def test_without_a_top_features_come_out(ti16, options):
    path = ti16(representation=48)
    model = vit.vit_ti16(image_size=32, weights=path, include_top=False, **options)
    assert model.layers[-1].name == "ExtractToken"
    assert model.output_shape == (None, 192)


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 10}, "pretrained_top .*classes = 7"),
        ({"include_top": False}, "pretrained_top with include_top"),
        ({"pretrained": False, "weights": "augreg-imagenet21k+imagenet2012-224"}, "pretrained_top with pretrained"),
        ({"weights": None}, "pretrained_top with pretrained"),
        ({"representation_size": 12}, "pretrained_top with representation_size"),
    ],
)
def test_a_pretrained_top_that_cannot_be_had_warns(ti16, options, message):
    with pytest.warns(UserWarning, match=message):
        vit.vit_ti16(**{"image_size": 32, "weights": ti16(), "pretrained_top": True, **options})


def test_pretrained_top_false_keeps_the_head_fresh(ti16):
    model = vit.vit_ti16(image_size=32, weights=ti16(), pretrained_top=False)
    assert model.output_shape == (None, 7)
    assert not model.get_layer("head").get_weights()[0].any()


def test_weights_of_another_size_are_refused(ti16):
    with pytest.raises(ValueError, match=r"hidden size 192 and 384"):
        vit.vit_s16(image_size=32, weights=ti16())


def test_load_pretrained_and_validate_pretrained_top_work_as_they_did(ti16):
    path = ti16()
    model = vit.vit_ti16(image_size=32, classes=7, pretrained=False)
    vit.load_pretrained("Ti_16", path, True, model, 32, 16)
    assert equals(model.get_layer("head"), path, "head/kernel")
    with pytest.warns(UserWarning, match="Setting manually"):
        assert vit.validate_pretrained_top(True, True, 10, "imagenet21k") == 21843
    with pytest.raises(ValueError, match="Unexpected weights: nonsense"):
        vit.validate_pretrained_top(True, True, 10, "nonsense")
    with pytest.raises(ValueError, match="with include_top"):
        vit.validate_pretrained_top(False, True, 1000, "imagenet21k+imagenet2012")


# --- strangers' scripts ------------------------------------------------------------------------------------


def test_public_names_of_vit_keras_are_here():
    for name in ("BASE_URL", "CONFIG_B", "CONFIG_L", "ConfigDict", "ImageSizeArg", "SIZES", "WEIGHTS", "build_model"):
        assert hasattr(vit, name)
    assert vit.WEIGHTS == {"imagenet21k": 21843, "imagenet21k+imagenet2012": 1000}
    assert {"B_16", "B_32", "L_16", "L_32"} <= vit.SIZES
    assert vit.CONFIG_B == {"dropout": 0.1, "mlp_dim": 3072, "num_heads": 12, "num_layers": 12, "hidden_size": 768}
    model = vit.build_model(**{**vit.CONFIG_B, "num_layers": 1}, image_size=32, patch_size=16, name="b", classes=2)
    assert model.get_layer("Transformer_encoderblock_0").dropout == 0.1
    assert utils.ImageInputType


@pytest.mark.core
@pytest.mark.parametrize("make", [list, tuple, np.array, lambda p: np.array(p, "uint8"), keras.ops.convert_to_tensor])
def test_preprocess_inputs_takes_many_kinds(make):
    result = vit.preprocess_inputs(make([0, 255, 51]))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(result), [-1, 1, -0.6], atol=1e-7)  # float32 rounding
    assert keras.backend.standardize_dtype(result.dtype) == "float32"


def test_preprocess_inputs_works_in_tf_data():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensors(np.array([0, 255], "uint8")).map(vit.preprocess_inputs)
    np.testing.assert_array_equal(next(iter(dataset)), [-1, 1])


# --- wrong arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [224, (224, 320), [224, 320], np.int64(224), (np.int32(224), 320), np.array([224, 320])]
)
def test_image_sizes_may_be_any_integers(size):
    assert vit.interpret_image_size(size) in ((224, 224), (224, 320))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 33}, "32 or 40, width 32 or 40.*drop_remainder"),
        ({"image_size": (32, 47)}, r"nearest: width 48 or 40\."),
        ({"image_size": 4}, "smaller than one patch"),
        ({"classes": 0}, "classes .*Received: 0"),
        ({"classes": 2.5}, "classes must be a positive integer"),
        ({"classes": "ten"}, "classes must be a positive integer"),
        ({"num_heads": 5}, "hidden_size=32 .*num_heads=5"),
        ({"qkv_bias": "no"}, "qkv_bias must be True or False. Received: 'no'"),
        ({"dropout": 1.5}, r"dropout must be a rate in \[0, 1\)"),
        ({"pooling": "max"}, "pooling .*'token', 'gap'.*'max'"),
        ({"pooling": ["cls"]}, "pooling must be"),
        ({"pooling": None}, "include_top=False"),
        ({"activation": "softmaxx"}, "softmaxx"),
        ({"dropuot": 0.1}, "Unknown option dropuot.*'dropout'"),
        ({"mlp_activation": "gello"}, "gello"),
        ({"channels": 0}, "channels must be"),
        ({"resnet": 3}, "resnet must be the units of each stage"),
        ({"rope_theta": 100.0, "num_heads": 16}, "divisible by 4. Received: num_heads=16"),
        ({"tokens_mlp_dim": 8, "pooling": "gap"}, "A Mixer .*pooling='gap', position=None"),
        ({"image_size": None}, "image_size=None needs position_grid"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        tiny(**options)


def test_a_wrong_option_costs_no_download_and_no_build(monkeypatch):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")  # a request would be a FileNotFoundError
    for options in ({}, {"pretrained": False}):
        with pytest.raises(ValueError, match="Unknown option dropuot"):
            vit.vit_h14(dropuot=0.1, **options)
    with pytest.raises(ValueError, match="Unknown option pretrained"):
        vit_keras.open_model("vit_b16", pretrained=False)
    with pytest.raises(ValueError, match="nearest"):
        vit.vit_b16(image_size=225)


# --- training and export -----------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_model_learns(policy):
    random = np.random.RandomState(0)
    labels = random.randint(0, 2, 64)
    images = random.normal(size=(64, 32, 32, 3)) * 0.3 + labels[:, None, None, None] - 0.5
    images = np.clip(images, -1, 1).astype("float32")
    keras.utils.set_random_seed(0)
    model = tiny(classes=2, dtype=policy)
    model.compile(
        keras.optimizers.AdamW(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(images, labels, batch_size=16, epochs=8, verbose=0).history
    assert history["accuracy"][-1] > 0.95


@pytest.mark.few_cases(1)
@pytest.mark.only_on("tensorflow", reason="SavedModel is TensorFlow's")
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_saved_model_gives_the_same_outputs(tmp_path, policy):
    import tensorflow as tf

    model = tiny(dtype=policy)
    model.set_weights([np.random.RandomState(0).normal(size=w.shape) * 0.3 for w in model.get_weights()])
    model.export(tmp_path / "saved", verbose=False)
    images = np.random.RandomState(0).uniform(-1, 1, size=(3, 32, 32, 3)).astype("float32")
    saved = tf.saved_model.load(tmp_path / "saved")
    expected = keras.ops.convert_to_numpy(model(images))
    # The same graph compiled twice; float16 rounds sums in another order.
    np.testing.assert_allclose(saved.serve(images).numpy(), expected, atol=1e-5 if policy == "float32" else 0.05)


def test_a_file_that_would_not_be_loaded_is_refused(ti16):
    with pytest.raises(ValueError, match="pretrained=False .*weights="):
        vit.vit_ti16(image_size=32, weights=ti16(), pretrained=False)


@pytest.mark.core
@pytest.mark.parametrize("call", [lambda model, x: model.predict(x, verbose=0), lambda model, x: model(x)])
def test_pixels_of_another_range_are_warned_of_once(call):
    pixels = np.random.RandomState(0).randint(0, 256, (2, 32, 32, 3)).astype("uint8")
    for wrong in (pixels, pixels.astype("float32"), pixels.astype("float32") / 255):
        model = tiny()
        if wrong.dtype == np.uint8 and keras.backend.backend() != "tensorflow":
            continue
        with pytest.warns(UserWarning, match="preprocess"):
            call(model, wrong)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            call(model, wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        call(tiny(), vit.preprocess_inputs(pixels))


@pytest.mark.parametrize("call", [lambda model, x: model.predict(x, verbose=0), lambda model, x: model(x)])
def test_images_of_another_shape_are_refused_with_the_right_one(call):
    with pytest.raises(ValueError, match=r"32, 32, 3\).*3, 32, 32.*moveaxis"):
        call(tiny(), np.zeros((1, 3, 32, 32), "float32"))
    with pytest.raises(ValueError, match=r"40, 40, 3.*vit_keras\.resize"):
        call(tiny(), np.zeros((1, 40, 40, 3), "float32"))

"""Against the original implementations: what timm, transformers, open_clip, torchvision and vit-pytorch computed.

`make_family_golden.py` ran them in float64 on seeded weights; the files hold what came out. Here the same weights are
written as a file in the format of each, read, and run.
"""

import json
import shutil
import zipfile

import keras
import numpy as np
import pytest
from family_files import KECAM, MECHANISMS, OPTIONS, PATCH_SIZES, cases, load, matrix, run, write, write_kecam
from support import ASSUMED, DATA, OTHER_PIXELS

from vit_keras import checkpoints, from_checkpoint, load_model, open_model
from vit_keras.checkpoints import describe, keras_hub_json
from vit_keras.checkpoints.weights import Weights
from vit_keras.config import ViTConfig


def tolerance(reference, name=""):
    """Two correct float32 implementations differ by about 1e-6 of the largest value; ResNets by ten times that."""
    return (1e-4 if "hybrid" in name else 1e-5) * max(1, np.abs(reference).max())


pytestmark = [ASSUMED, OTHER_PIXELS]

CASES = cases()
# By default one of each mechanism runs; the others are slow.


AMBIGUOUS = ("timm_deit3", "timm_dinov2_reg4", "timm_radio", "timm_vit_reg1_gap")
"""Files alone whose 16 positions may also be 5 × 3 patches and a class token or register: the size of the test."""


@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.parametrize("name", matrix(CASES))
def test_outputs_are_those_of_the_original(name, tmp_path):
    golden = load(name)
    options = {**golden.options, **OPTIONS.get(name, {})}
    path = write(golden, tmp_path)

    model = from_checkpoint(path, **options)
    np.testing.assert_allclose(
        run(model, golden.inputs), golden.output, rtol=0, atol=tolerance(golden.output, name), err_msg="native size"
    )
    assert model.load_report.fresh == ()

    if golden.output_2 is not None:
        options["image_size"] = golden.inputs_2.shape[1:3]
        if name in AMBIGUOUS:
            options["source_grid"] = (4, 4)
        if name in PATCH_SIZES:
            options["patch_size"] = PATCH_SIZES[name]
        model = from_checkpoint(path, **options)
        np.testing.assert_allclose(
            run(model, golden.inputs_2), golden.output_2, rtol=0, atol=tolerance(golden.output_2, name)
        )


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("name", matrix(CASES))
def test_tokens_are_those_of_the_original(name, tmp_path):
    golden = load(name)
    if golden.tokens is None:
        pytest.skip("the original returns no tokens")
    options = {**golden.options, **OPTIONS.get(name, {})}
    model = from_checkpoint(write(golden, tmp_path), **options)
    if golden.meta["final_norm"] == "tokens":
        layer = "Transformer_encoder_norm"
    else:
        layer = f"Transformer_encoderblock_{model.config.num_layers - 1}"
    tokens = keras.Model(model.inputs[0], model.get_layer(layer).output)
    found = keras.ops.convert_to_numpy(tokens(golden.inputs[:1]))[:, -golden.tokens.shape[1] :]
    np.testing.assert_allclose(found, golden.tokens[:1], rtol=0, atol=tolerance(golden.tokens, name))


def test_every_mechanism_has_a_golden_file():
    assert set(MECHANISMS) <= set(CASES)


def test_flexivit_takes_patches_of_any_size(google_npz, tmp_path):
    """As in big_vision: the kernel by the pseudo-inverse of TensorFlow's resizing, the positions by JAX's."""
    jax = pytest.importorskip("jax")
    path = google_npz("BV-mu_16")
    weights = dict(np.load(path))
    kernel, table = weights["params/embedding/kernel"], weights["params/pos_embedding"]

    def resized(basis):  # by half-pixel bilinear interpolation without antialiasing, which is what tf.image.resize does
        return jax.image.resize(basis, (8, 8), "linear", antialias=False)

    matrix = np.stack([np.asarray(resized(np.eye(256)[n].reshape(16, 16))).reshape(-1) for n in range(256)]).T
    kernel = np.linalg.pinv(matrix.T.astype("float64")) @ kernel.reshape(256, -1)
    weights["params/embedding/kernel"] = kernel.reshape(8, 8, 3, -1).astype("float32")
    table = jax.image.resize(table.reshape(1, 4, 4, -1), (1, 6, 7, table.shape[-1]), "linear")
    weights["params/pos_embedding"] = np.asarray(table, "float32").reshape(1, 42, -1)
    np.savez(tmp_path / "resized.npz", **weights)

    expected = from_checkpoint(tmp_path / "resized.npz", source_grid=(6, 7))
    assert expected.config.patch_size == (8, 8)
    model = from_checkpoint(path, family="flexivit", patch_size=8, image_size=(48, 56))
    inputs = np.random.default_rng(0).uniform(-1, 1, (2, 48, 56, 3)).astype("float32")
    reference = run(expected, inputs)
    # JAX resizes in float32, and the pseudo-inverse makes its rounding about a hundred times larger.
    np.testing.assert_allclose(run(model, inputs), reference, rtol=0, atol=1e-4 * np.abs(reference).max())


@pytest.mark.parametrize(
    "name", ["timm_vit_fc_norm", "timm_siglip", "hf_beit", "timm_deit_distilled", "timm_dinov2_reg4"]
)
def test_all_tokens_are_those_of_the_original(name, tmp_path):
    golden = load(name)
    model = from_checkpoint(write(golden, tmp_path), **golden.options, pooling=None)
    found = run(model, golden.inputs[:1])
    np.testing.assert_allclose(
        found[:, -golden.tokens.shape[1] :], golden.tokens[:1], rtol=0, atol=tolerance(golden.tokens)
    )


@pytest.mark.parametrize("name", sorted(name for name in cases() if load(name).meta["config"]))
def test_what_a_config_would_tell_is_what_the_family_says_without(name, tmp_path):
    """These were made with the defaults of transformers, which are those of the published models."""
    (tmp_path / "with").mkdir()
    (tmp_path / "without").mkdir()
    told = Weights(write(load(name), tmp_path / "with"))
    silent = Weights(write(load(name), tmp_path / "without", config=False))
    assert silent.family is told.family
    for field in {"epsilon", "rope_theta", "mlp_activation"} - set(told.family.choices):
        default = getattr(ViTConfig(), field)
        assert silent.architecture.get(field, default) == told.architecture.get(field, default), field


# --- keras-cv-attention-models: HDF5 files of Keras 2 ------------------------------------------------------------


@pytest.mark.parametrize(
    "case, pooling", [("vit", "token"), ("flexivit", "token"), ("dinov2", "token+gap"), ("eva", "gap")]
)
def test_outputs_are_those_of_kecam(case, pooling, tmp_path):
    path, family = write_kecam(case, tmp_path / "a.h5"), "kecam-gap" if case == "eva" else None
    for size in ((32, 32), (48, 64)):
        model = from_checkpoint(path, image_size=size, num_heads=2, source_grid=(4, 4), family=family)
        images = np.random.default_rng(1).uniform(-1, 1, (2, *size, 3)).astype("float32")
        expected = KECAM[f"{case} {size[0]}"]
        np.testing.assert_allclose(run(model, images), expected, rtol=0, atol=tolerance(expected))
    assert model.config.pooling == pooling and model.load_report.fresh == ()


@pytest.mark.parametrize("extra", ["pre_ln/gamma:0", "reg_token/tokens:0", "block0_attn_query_bias/bias:0"])
def test_models_of_kecam_that_compute_more_are_refused(extra, tmp_path):
    path = write_kecam("vit", tmp_path / "a.h5", [(extra, (1, 1, 32))])
    with pytest.raises(ValueError, match="of a known family"):
        from_checkpoint(path, num_heads=2, strict=False)


# --- KerasHub: folders and files that it saved (tests/data/keras_hub/make.py) ------------------------------------

KERAS_HUB = DATA / "keras_hub"
HUB_CASES = {"token": "token", "gap": "gap", "all": "all", "pre_logits": "token"}


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets")
    for name in ("presets.zip", "towers.zip"):
        with zipfile.ZipFile(KERAS_HUB / name) as archive:
            archive.extractall(folder)
    return folder


def images_for(model):
    return np.random.default_rng(1).uniform(-1, 1, (2, *model.input_shape[1:])).astype("float32")


@pytest.mark.parametrize("case", HUB_CASES)
def test_outputs_of_a_preset_are_those_of_keras_hub(case, presets):
    outputs = np.load(KERAS_HUB / "outputs.npz")
    model = from_checkpoint(presets / case)
    np.testing.assert_allclose(run(model, images_for(model)), outputs[case], rtol=0, atol=tolerance(outputs[case]))
    assert model.config.pooling == HUB_CASES[case] and not model.load_report.assumed
    assert model.config.activation == ("softmax" if case == "pre_logits" else "linear")
    tokens = from_checkpoint(presets / case, pooling=None, include_top=False)
    expected = outputs[f"{case}-backbone"]
    np.testing.assert_allclose(run(tokens, images_for(tokens)), expected, rtol=0, atol=tolerance(expected))


@pytest.mark.parametrize("options", [{}, {"pad_to_aspect_ratio": True}])
def test_images_of_a_preset_are_prepared_as_by_keras_hub(options, presets, tmp_path):
    """Within a few of 255 levels: Keras cuts the image before it is resized, and Pillow rounds."""
    folder = shutil.copytree(presets / "token", tmp_path / "preset")
    text = json.loads((folder / "preprocessor.json").read_text())
    text["config"]["image_converter"]["config"].update(options)
    (folder / "preprocessor.json").write_text(json.dumps(text))
    if options:
        with pytest.warns(UserWarning, match="pad_to_aspect_ratio"):
            from_checkpoint(folder)
        return
    model = from_checkpoint(folder)
    pixels = np.random.default_rng(2).integers(0, 256, (40, 70, 3), "uint8")
    expected = np.load(KERAS_HUB / "outputs.npz")["token-inputs"]
    assert np.abs(model.preprocess(pixels) - expected).mean() < 0.05
    (folder / "preprocessor.json").unlink()  # image_converter.json says the same
    assert Weights(folder).preprocessing == model.preprocessing


TOWERS = {  # options, and the pooling that is read without them
    "dinov2": ({"pooling": None}, "token"),
    "registers": ({"pooling": None}, "token"),
    "deit": ({}, "token"),
    "deit-gap": ({}, "all"),
    "deit-gap.keras": ({}, "all"),
    "siglip": ({}, "map"),
}


@pytest.mark.filterwarnings("ignore:KerasHub resizes these images")
@pytest.mark.parametrize("case", TOWERS)
def test_outputs_of_other_backbones_are_those_of_keras_hub(case, presets):
    (options, pooling), outputs = TOWERS[case], np.load(KERAS_HUB / "towers.npz")
    expected = outputs[case.removesuffix(".keras")]
    model = open_model(presets / case, **options)
    np.testing.assert_allclose(run(model, images_for(model)), expected, rtol=0, atol=tolerance(expected))
    assert not {"epsilon", "mlp_activation", "num_heads"} & set(model.load_report.assumed)
    assert (from_checkpoint(presets / case) if options else model).config.pooling == pooling
    if "deit" in case:
        assert model.config.epsilon == 1e-5
        assert model.config.activation == ("softmax" if "gap" in case else "linear")
    if f"{case}-larger" in outputs:
        expected = outputs[f"{case}-larger"]
        model = open_model(presets / case, image_size=24, **options)
        np.testing.assert_allclose(run(model, images_for(model)), expected, rtol=0, atol=tolerance(expected))


@pytest.mark.parametrize(
    "file, entry, value, error",
    [
        ("config.json", "layer_norm_epsilon", 1e-5, "layer_norm_epsilon=1e-05 differs from the epsilon of the last"),
        ("config.json", "hidden_dim", 16, "about a model of another size"),
    ],
)
def test_settings_of_keras_hub_that_no_model_here_has(file, entry, value, error, presets, tmp_path):
    folder = shutil.copytree(presets / "siglip", tmp_path / "preset")
    text = json.loads((folder / file).read_text())
    text["config"]["vision_encoder"]["config"][entry] = value
    (folder / file).write_text(json.dumps(text))
    with pytest.raises(ValueError, match=error) if entry == "layer_norm_epsilon" else pytest.warns(match=error):
        from_checkpoint(folder)


def test_a_whole_model_of_keras_hub_is_read_as_weights(presets):
    with pytest.raises(ValueError, match=r"open it with vit_keras\.open_model"):
        load_model(presets / "deit-gap.keras")
    model = open_model(presets / "deit-gap.keras", classes=7, image_size=16)
    assert model.output_shape == (None, 7)
    assert "head/kernel" in checkpoints.load_weights(model, presets / "deit-gap.keras").fresh
    assert describe.describe(presets / "deit-gap.keras")["problem"] is None


def test_the_activation_of_keras_hub_may_be_a_function():
    activation = keras.saving.serialize_keras_object(keras.activations.gelu)
    config = {"image_shape": [32, 32, 3], "layer_norm_epsilon": 1e-6, "intermediate_activation": activation}
    assert keras_hub_json.fields({"config": config}, {})["mlp_activation"] == "gelu"


def test_pooling_of_keras_hub_that_no_model_here_has(presets, tmp_path):
    folder = shutil.copytree(presets / "deit-gap", tmp_path / "preset")
    (folder / "task.json").write_text((folder / "task.json").read_text().replace('"gap"', '"max"'))
    with pytest.raises(ValueError, match="pooling must be .*'max'"):
        from_checkpoint(folder)


def test_weights_of_a_classifier_and_of_a_backbone_of_keras_hub(presets, tmp_path):
    outputs = np.load(KERAS_HUB / "outputs.npz")
    model = from_checkpoint(presets / "token.weights.h5")
    np.testing.assert_allclose(run(model, images_for(model)), outputs["token"], rtol=0, atol=1e-6)
    assert {"pooling", "activation"} <= set(model.load_report.assumed)
    model = from_checkpoint(presets / "pre_logits.weights.h5", source_grid=(3, 2), epsilon=1e-5, activation="softmax")
    np.testing.assert_allclose(run(model, images_for(model)), outputs["pre_logits"], rtol=0, atol=1e-6)
    for file in ("config.json", "model.weights.h5"):
        shutil.copy(presets / "all" / file, tmp_path)
    tokens = from_checkpoint(tmp_path, pooling=None)
    np.testing.assert_allclose(run(tokens, images_for(tokens)), outputs["all-backbone"], rtol=0, atol=2e-6)  # of 3.0

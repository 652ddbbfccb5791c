"""Saved models: ours, and those that vit-keras 0.1 and 0.2 really wrote (tests/data/vit_keras_0/make.py)."""

import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
from support import DATA

import vit_keras
from vit_keras import layers, vit
from vit_keras.anatomy.parts import find_vit
from vit_keras.checkpoints import saved_models
from vit_keras.positions import resize_position_embeddings

pytestmark = pytest.mark.core(
    first=(
        "test_models_of_vit_keras_0_give_their_outputs",
        "test_our_models_round_trip_through_keras_own_functions",
        "test_weights_bring_their_activation_with_them",
        "test_a_compiled_prediction_follows_a_file_that_changes_the_activation",
    )
)

OLD = DATA / "vit_keras_0"
# Probabilities of a float32 model: 1e-6 is a few roundings; the other GELU is more than 1e-3 away.
TOLERANCE = 1e-6


def recorded(version, key="outputs"):
    data = np.load(OLD / f"{version}.npz")
    return vit.preprocess_inputs(data["images"]), data[key]


def assert_outputs(model, inputs, outputs, atol=TOLERANCE):
    result = model.predict(inputs, verbose=0)
    assert isinstance(result, np.ndarray)
    assert result.shape == outputs.shape
    np.testing.assert_allclose(result, outputs, atol=atol)


def same_architecture(**options):
    options = {"image_size": 16, "representation_size": 6, "activation": "softmax", **options}
    return vit.build_model(
        patch_size=8, num_layers=2, hidden_size=8, num_heads=2, name="vit-tiny", mlp_dim=16, classes=5, **options
    )


@pytest.mark.parametrize("name", ["v020.keras", "v020.h5", "v010.keras", "v010.h5"])
def test_models_of_vit_keras_0_give_their_outputs(name):
    inputs, outputs = recorded(name[:4])
    model = vit_keras.load_model(OLD / name)
    assert_outputs(model, inputs, outputs, TOLERANCE)


@pytest.mark.parametrize("name", ["v020_nested.keras", "v020_nested.h5", "v010_nested.h5"])
def test_nested_models_of_vit_keras_0_give_their_outputs(name):
    inputs, outputs = recorded(name[:4], "nested_outputs")
    model = vit_keras.load_model(OLD / name)
    # The last layer is linear with outputs of about 1.
    assert_outputs(model, inputs, outputs, 1e-5)


@pytest.mark.parametrize("name", ["v020.weights.h5", "v010.weights.h5", "v010_weights.h5"])
def test_weights_of_vit_keras_0_give_its_outputs(name):
    inputs, outputs = recorded(name[:4])
    model = same_architecture()
    model.load_weights(OLD / name)
    assert_outputs(model, inputs, outputs, TOLERANCE)


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the files hold bytecode of Python 3.11; others crash on it"
)
@pytest.mark.parametrize("name", ["v020.h5", "v020.keras"])
@pytest.mark.compiles_long
def test_keras_own_function_with_custom_objects_opens_them_as_it_did(name):
    inputs, outputs = recorded("v020")
    names = ("ClassToken", "AddPositionEmbs", "MultiHeadSelfAttention", "TransformerBlock")
    objects = {name: getattr(layers, name) for name in names}
    model = keras.models.load_model(OLD / name, custom_objects=objects, safe_mode=False)
    np.testing.assert_allclose(np.squeeze(model.predict(inputs, verbose=0)), outputs, atol=TOLERANCE)


def test_an_old_model_saved_again_opens_with_keras_alone(tmp_path):
    inputs, outputs = recorded("v010")
    vit_keras.load_model(OLD / "v010.h5").save(tmp_path / "new.keras")
    model = keras.models.load_model(tmp_path / "new.keras")
    assert_outputs(model, inputs, outputs, TOLERANCE)


def test_a_foreign_lambda_is_still_refused(tmp_path):
    inputs = keras.Input((4,))
    keras.Model(inputs, keras.layers.Lambda(lambda x: x + 1, name="mine")(inputs)).save(tmp_path / "lambda.keras")
    with pytest.raises(ValueError, match=r"[Ll]ambda"):
        vit_keras.load_model(tmp_path / "lambda.keras")


@pytest.mark.few_cases(4)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("options", [{}, {"pooling": "gap"}, {"mlp_activation": "gelu"}, {"image_size": (16, 32)}])
def test_our_models_round_trip_through_keras_own_functions(tmp_path, suffix, options):
    model = same_architecture(**options)
    randomise(model)
    images = np.random.RandomState(1).uniform(-1, 1, size=(2, *model.input_shape[1:])).astype("float32")
    model.save(tmp_path / f"model{suffix}")
    again = keras.models.load_model(tmp_path / f"model{suffix}")
    np.testing.assert_array_equal(again.predict(images, verbose=0), model.predict(images, verbose=0))
    assert again.config == model.config
    keras.Model.save(model, tmp_path / f"model{suffix}")
    assert vit_keras.load_model(tmp_path / f"model{suffix}").config == model.config


@pytest.mark.parametrize("target", [24, (16, 40)])
def test_weights_of_another_image_size_are_resampled(tmp_path, target):
    model = same_architecture(image_size=(16, 24))
    randomise(model)
    model.save_weights(tmp_path / "some.weights.h5")
    other = same_architecture(image_size=target)
    other.load_weights(tmp_path / "some.weights.h5")
    table = keras.ops.convert_to_numpy(model.get_layer("Transformer_posembed_input").pe)
    expected = resize_position_embeddings(table, other.config.grid, source_grid=(2, 3))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(other.get_layer("Transformer_posembed_input").pe), expected
    )


def test_weights_of_the_same_number_of_patches_in_another_grid_are_resampled(tmp_path):
    model = same_architecture(image_size=(16, 48))
    randomise(model)
    model.save_weights(tmp_path / "wide.weights.h5")
    other = same_architecture(image_size=(48, 16))
    other.load_weights(tmp_path / "wide.weights.h5")
    table = keras.ops.convert_to_numpy(model.get_layer("Transformer_posembed_input").pe)
    assert not np.array_equal(keras.ops.convert_to_numpy(other.get_layer("Transformer_posembed_input").pe), table)


def test_weights_bring_their_activation_with_them(tmp_path):
    exact = same_architecture(mlp_activation="gelu")
    randomise(exact)
    exact.save_weights(tmp_path / "exact.weights.h5")
    model = same_architecture()
    model.load_weights(tmp_path / "exact.weights.h5")
    images = np.random.RandomState(1).uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(model.predict(images, verbose=0), exact.predict(images, verbose=0))


def test_a_path_may_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    model = same_architecture()
    model.save("~/a.keras")
    model.save_weights("~/a.weights.h5")
    with pytest.warns(UserWarning, match="activation='softmax'"):
        vit_keras.save_weights(model, "~/a.npz")
    model.load_weights("~/a.weights.h5")
    for open_it in (vit_keras.load_model, vit_keras.open_model):
        assert open_it("~/a.keras").config == model.config
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.keras", "a.npz", "a.weights.h5"]


def test_old_files_are_not_changed(tmp_path):
    before = (OLD / "v010.h5").read_bytes()
    vit_keras.load_model(OLD / "v010.h5")
    same_architecture().load_weights(OLD / "v010.weights.h5")
    assert (OLD / "v010.h5").read_bytes() == before
    with h5py.File(OLD / "v010.weights.h5") as file:
        assert "_layer_checkpoint_dependencies" in file


@pytest.mark.parametrize("name", ["missing.keras", "missing.h5"])
def test_a_missing_file_is_named(tmp_path, name):
    with pytest.raises(FileNotFoundError, match=name):
        vit_keras.load_model(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"missing\.weights\.h5"):
        same_architecture().load_weights(tmp_path / "missing.weights.h5")


@pytest.mark.parametrize("name", ["v020.keras", "v020.h5", "v010.h5", "v020.weights.h5"])
def test_half_a_file(tmp_path, name):
    data = (OLD / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=name):
        (same_architecture().load_weights if ".weights" in name else vit_keras.load_model)(tmp_path / name)


def loss_of_mine(true, predicted):
    return keras.ops.mean(predicted)


class LossOfMine(keras.losses.Loss):
    def call(self, true, predicted):
        return keras.ops.mean(predicted)


class MetricOfMine(keras.metrics.Mean):
    def update_state(self, true, predicted, sample_weight=None):
        return super().update_state(predicted)


class OptimizerOfMine(keras.optimizers.SGD):
    pass


@pytest.mark.few_cases(5)
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize(
    "made",
    [
        lambda: {
            "optimizer": "sgd",
            "loss": loss_of_mine,
        },  # Keras' words for it in an `.h5` file are those of an index
        lambda: {"optimizer": "sgd", "loss": LossOfMine()},
        lambda: {"optimizer": "sgd", "loss": "mse", "metrics": [MetricOfMine()]},
        lambda: {"optimizer": OptimizerOfMine(), "loss": "mse"},
    ],
)
def test_a_class_of_compiling_that_is_not_known_is_said_to_be_what_can_be_left_out(tmp_path, suffix, made):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 16, classes=2)
    model.compile(**made())
    if suffix == ".h5" and model.metrics:
        model.fit(np.zeros((2, 32, 32, 3), "float32"), np.zeros((2, 2), "float32"), verbose=0)
    path = tmp_path / f"model{suffix}"
    model.save(path)
    with pytest.raises(ValueError, match="custom_objects=, or pass compile=False"):
        vit_keras.load_model(path)
    vit_keras.load_model(path, compile=False)


def test_a_layer_that_is_not_known_is_no_matter_of_compiling(tmp_path):
    class LayerOfMine(keras.layers.Layer):
        pass

    model = keras.Sequential([keras.Input((2,)), LayerOfMine()])
    model.compile("sgd", "mse")
    for path in (tmp_path / "model.keras", tmp_path / "model.h5"):
        model.save(path)
        with pytest.raises(ValueError, match="LayerOfMine") as refused:
            vit_keras.load_model(path)
        assert "compile=False" not in str(refused.value)


def test_a_file_that_is_no_model(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "wrong.keras", "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(ValueError, match=r"wrong\.keras"):
        vit_keras.load_model(tmp_path / "wrong.keras")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(ValueError, match=r"text\.h5"):
        vit_keras.load_model(tmp_path / "text.h5")
    half = (tmp_path / "wrong.keras").read_bytes()[:-1]
    for content, what in ((half, "incomplete archive"), (b"", "an empty file"), (b"<html>", "a web page")):
        (tmp_path / "part.keras").write_bytes(content)
        with pytest.raises(ValueError, match=rf"part\.keras .*{what}"):
            vit_keras.load_model(tmp_path / "part.keras")
    with zipfile.ZipFile(tmp_path / "wrong.keras", "w") as file:
        for name, content in (("config.json", "{}"), ("metadata.json", "[]"), ("model.weights.h5", "")):
            file.writestr(name, content)
    with pytest.raises(ValueError, match=r"metadata\.json is a list, not an object"):
        vit_keras.load_model(tmp_path / "wrong.keras")
    with pytest.raises(ValueError, match=r"v010_weights\.h5 .*No model config found"):
        vit_keras.load_model(OLD / "v010_weights.h5")
    monkeypatch.setattr(saved_models, "LIMIT_TEXT", 100)
    for name in ("v020.keras", "v010.h5"):
        with pytest.raises(ValueError, match=f"{name} .*longer than 100 bytes"):
            vit_keras.load_model(OLD / name)


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("name", ["model", "model.zip", "MODEL.KERAS", "model.hdf5", "model.keras.bak"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_a_whole_model_opens_whatever_its_name(tmp_path, suffix, name):
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)]).save(tmp_path / f"saved{suffix}")
    (tmp_path / f"saved{suffix}").rename(tmp_path / name)
    for opening in (vit_keras.load_model, vit_keras.open_model):
        assert opening(tmp_path / name).output_shape == (None, 3)
    with pytest.raises(ValueError, match=r"whole model.*\['weights'\]"):
        vit_keras.open_model(tmp_path / name, weights="vit_cifar10")


@pytest.mark.compiles_long
def test_training_goes_on_after_a_file_that_changes_nothing(tmp_path):
    model = same_architecture()
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")  # loads weights when fit has already compiled
    for _ in range(2):
        model.fit(np.zeros((2, 16, 16, 3), "float32"), np.array([0, 1]), callbacks=[backup], verbose=0)


def test_a_compiled_prediction_follows_a_file_that_changes_the_activation():
    inputs, outputs = recorded("v020")
    model = same_architecture()
    model.predict(inputs, verbose=0)
    model.load_weights(OLD / "v020.weights.h5")
    assert_outputs(model, inputs, outputs)
    assert model.config.mlp_activation == "gelu"


@pytest.mark.parametrize("into", ["the ViT", "the model around it"])
def test_a_compiled_prediction_follows_the_activation_of_a_file(into, tmp_path):
    """At once in a model of this package; in Keras' own models around it after `compile`, as after other changes."""
    inner = vit.build_model(16, 8, 1, 8, 2, "t", 16, classes=2, mlp_activation="gelu")
    randomise(inner)
    around = [keras.Sequential([keras.Input((16, 16, 3)), inner]), keras.Model(inner.input, inner.output)]
    target = inner if into == "the ViT" else around[0]
    mlp = vit_keras.anatomy.blocks(inner)[0].mlpblock
    mlp.activation = "relu"
    target.save_weights(tmp_path / "relu.weights.h5")
    mlp.activation = "gelu"
    images = np.random.RandomState(1).uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    before, *_ = (each.predict(images, verbose=0) for each in (inner, *around))
    target.load_weights(tmp_path / "relu.weights.h5")
    expected = keras.ops.convert_to_numpy(inner(images))
    assert np.abs(expected - before).max() > 100 * TOLERANCE
    np.testing.assert_allclose(inner.predict(images, verbose=0), expected, atol=TOLERANCE)
    for each in around:
        each.compile()
        np.testing.assert_allclose(each.predict(images, verbose=0), expected, atol=TOLERANCE)


@pytest.mark.parametrize("change", ["activation", "quantization"])
def test_compiled_steps_follow_a_change_of_a_layer_whoever_makes_it(change):
    model = vit.build_model(16, 8, 1, 8, 2, "t", 16, classes=2)
    randomise(model)
    images = np.random.RandomState(1).uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    model.compile("sgd", "mse", jit_compile=False)
    before, loss = model.predict(images, verbose=0), model.evaluate(images, np.zeros((2, 2)), verbose=0)
    if change == "activation":
        vit_keras.anatomy.blocks(model)[0].mlpblock.activation = "relu"
    else:
        keras.Model.quantize(find_vit(model), "int8")
    expected = keras.ops.convert_to_numpy(model(images))
    assert np.abs(expected - before).max() > 100 * TOLERANCE
    np.testing.assert_allclose(model.predict(images, verbose=0), expected, atol=TOLERANCE)
    assert model.evaluate(images, np.zeros((2, 2)), verbose=0) == pytest.approx((expected**2).mean(), rel=1e-4)
    assert model.evaluate(images, np.zeros((2, 2)), verbose=0) != pytest.approx(loss, rel=1e-4)


def test_the_config_follows_weights_that_were_loaded_into_an_outer_model(tmp_path):
    def outer(activation):
        inner = vit.build_model(16, 8, 2, 8, 2, "t", 16, classes=2, mlp_activation=activation)
        return keras.Sequential([keras.Input((16, 16, 3)), inner, keras.layers.Dense(2)]), inner

    saved, _ = outer("relu")
    saved.save_weights(tmp_path / "a.weights.h5")
    model, inner = outer("gelu")
    model.load_weights(tmp_path / "a.weights.h5")
    model.save(tmp_path / "a.keras")
    assert inner.config.mlp_activation == "relu"
    images = np.random.RandomState(1).uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    outputs = keras.ops.convert_to_numpy(inner(images))
    for again in (inner, keras.models.load_model(tmp_path / "a.keras").layers[0]):
        resized = vit_keras.resize(again, 16)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(resized(images)), outputs, atol=TOLERANCE)


def test_weights_of_an_unknown_activation_are_refused():
    block = layers.MlpBlock(4)
    with pytest.raises(ValueError, match="nonsense"):
        block.load_own_variables({"activation": np.frombuffer(b"nonsense", "uint8")})
    assert block.activation == "gelu_tanh"


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_a_file_that_does_not_fit_leaves_the_config_and_the_prediction_with_its_activation(tmp_path):
    vit.build_model(16, 8, 1, 8, 2, "t", 16, classes=3, mlp_activation="relu").save_weights(tmp_path / "a.weights.h5")
    model = vit.build_model(16, 8, 1, 8, 2, "t", 16, classes=2, mlp_activation="gelu")
    randomise(model)
    images = np.random.RandomState(1).uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    model.predict(images, verbose=0)
    with pytest.raises(ValueError, match="shape"):
        model.load_weights(tmp_path / "a.weights.h5")
    assert model.config.mlp_activation == vit_keras.anatomy.blocks(model)[0].mlpblock.activation == "relu"
    outputs = keras.ops.convert_to_numpy(vit_keras.resize(model, 16)(images))
    np.testing.assert_allclose(model.predict(images, verbose=0), outputs, atol=TOLERANCE)


def randomise(model):
    random = np.random.RandomState(0)
    model.set_weights([random.normal(size=w.shape, scale=0.5).astype("float32") for w in model.get_weights()])


def test_the_model_in_the_folder_of_a_run_is_opened_whole(tmp_path):
    vit_model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
    model, image = keras.Sequential([vit_model, keras.layers.Softmax()]), np.ones((1, 32, 32, 3), "float32")
    model.save(tmp_path / "model.keras")
    vit_model.save(tmp_path / "probe.keras")
    opened = vit_keras.open_model(tmp_path)
    np.testing.assert_array_equal(opened.predict(image, verbose=0), model.predict(image, verbose=0))


def saved(model, path):
    vit_keras.save_weights(model, path, "timm") if path.suffix == ".safetensors" else model.save(path)
    return path


WAYS = {
    **{
        name: lambda model, folder, name=name: vit_keras.open_model(saved(model, folder / name))
        for name in ("a.keras", "a.h5", "a.safetensors")
    },
    "weights of a saved model": lambda model, folder: vit_keras.from_checkpoint(saved(model, folder / "a.keras")),
    "resize": lambda model, folder: vit_keras.resize(model, 48, classes=2),
    "merge_tokens": lambda model, folder: vit_keras.merge_tokens(model, 1),
    "feature_maps": lambda model, folder: vit_keras.feature_maps(model),
    "a model around it": lambda model, folder: vit_keras.load_model(
        saved(keras.Sequential([model, keras.layers.Dense(2)]), folder / "a.keras")
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_published_name_that_a_model_began_with_is_kept(tmp_path, way):
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
    assert "origin" not in model.get_config()
    model.origin = "facebook/deit_tiny_patch16_224"
    assert find_vit(WAYS[way](model, tmp_path)).origin == model.origin


def test_loading_weights_changes_the_name_that_a_model_began_with(tmp_path):
    assert vit.vit_cifar10(classes=3).origin == "vit_cifar10"
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3)
    model.save_weights(tmp_path / "a.weights.h5")
    model.origin = "facebook/deit_tiny_patch16_224"
    vit_keras.checkpoints.load_weights(model, tmp_path / "a.weights.h5")
    assert model.origin is None


def test_a_model_around_a_vit_that_was_saved_alone_has_no_names(tmp_path):
    def around(model):
        made = keras.Sequential([model, keras.layers.Dense(3)], name="whole")
        made.build((None, 32, 32, 3))
        return made

    headless = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, include_top=False)
    assert vit_keras.anatomy.name_classes(around(headless), ["cat", "dog", "owl"], "multi")
    headless.save(tmp_path / "alone.keras")
    model = around(vit_keras.open_model(tmp_path / "alone.keras"))
    assert (vit_keras.anatomy.class_names(model), vit_keras.anatomy.task(model)) == (None, "single")


@pytest.mark.parametrize("opening", [vit_keras.load_model, keras.saving.load_model])
def test_two_heads_on_one_vit_keep_their_own_names(tmp_path, opening):
    inner = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, include_top=False)
    named = {"animals": ["cat", "dog", "owl"], "colors": ["red", "green", "blue"]}
    for name, names in named.items():
        model = keras.Sequential([keras.Input((32, 32, 3)), inner, keras.layers.Dense(3)], name=name)
        assert vit_keras.anatomy.name_classes(model, names)
        named[name] = model, names
    for name, (model, _) in named.items():
        model.save(tmp_path / f"{name}.keras")
    for name, (_, names) in named.items():
        again = opening(tmp_path / f"{name}.keras")
        assert vit_keras.anatomy.class_names(again) == tuple(names)

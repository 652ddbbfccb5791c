"""Models that were changed after building: what is saved opens again with the same outputs and optimizer."""

import itertools
import subprocess
import sys
import warnings

import keras
import numpy as np
import pytest
from support import one_at_a_time

import vit_keras
from vit_keras import vit
from vit_keras.anatomy.parts import attention_blocks, find_vit, quantization
from vit_keras.training import Distillation, MaskedAutoencoder, add_lora

pytestmark = pytest.mark.filterwarnings(
    "ignore:Layer .* does not have a `quantize` method", "ignore::UserWarning:keras"
)
RNG = np.random.RandomState(0)
IMAGES, LABELS = RNG.uniform(-1, 1, (4, 16, 16, 3)).astype("float32"), np.arange(4) % 3


def tiny(**options):
    base = {
        "image_size": 16,
        "patch_size": 8,
        "num_layers": 1,
        "hidden_size": 8,
        "num_heads": 2,
        "mlp_dim": 16,
        "dropout": 0.0,
    }
    model = vit.build_model(name="tiny", classes=3, **{**base, **options})
    for weight in model.trainable_variables:
        weight.assign(weight + RNG.normal(0, 0.1, weight.shape))
    return model


def nested():
    vit = tiny(include_top=False)
    return keras.Sequential([keras.Input((16, 16, 3)), vit, keras.layers.Dense(3)])


MODELS = {
    "plain": tiny,
    "nested": nested,
    "map": lambda: tiny(pooling="map"),
    "mean": lambda: tiny(pooling="gap"),
    "registers": lambda: tiny(registers=2, layer_scale=0.1),
    "gated": lambda: tiny(gated_mlp=True, mlp_norm=True),
    "merging": lambda: tiny(merge_tokens=1),
    "relative": lambda: tiny(relative_positions=True),
    "any size": lambda: tiny(image_size=None, position_grid=(2, 2)),
    "mixer": lambda: tiny(tokens_mlp_dim=4, class_token=False, pooling="gap", position=None),
    "bfloat16": lambda: tiny(dtype="mixed_bfloat16"),
}


def with_lora(model):
    add_lora(model, 2, ("query", "value", "Dense_0"))
    for weight in model.trainable_variables:  # factors that are 0 hide mistakes
        weight.assign(weight + RNG.normal(0, 0.1, weight.shape))


def frozen(model):
    find = find_vit(model)
    find.layers[1].trainable = False  # a layer, a layer in a layer, a single weight
    block = attention_blocks(find)[0]
    block.mlpblock.trainable = False
    block.layernorm1.weights[0].trainable = False


def both(model):
    with_lora(model)
    model.quantize("int8")


CHANGES = {
    "unchanged": lambda model: None,
    "frozen": frozen,
    "lora": with_lora,
    **{mode: lambda model, mode=mode: model.quantize(mode) for mode in ("int8", "int4", "float8")},
    "lora, int8": both,
}


def changed(kind, change, trained=True):
    model = MODELS[kind]()
    CHANGES[change](model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    eagerly = change != "float8" or keras.backend.backend() != "tensorflow"  # where Keras' gradient of float8 fails
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), loss, run_eagerly=eagerly)
    if trained:
        model.fit(IMAGES, LABELS, verbose=0, batch_size=4)
    return model


def values(variables):
    return [keras.ops.convert_to_numpy(variable).astype("float32") for variable in variables]


def outputs(model):
    return values([model(IMAGES, training=False)])[0]


def assert_same(model, again):
    again.run_eagerly = model.run_eagerly  # which no file holds: a compiled function rounds otherwise
    np.testing.assert_array_equal(outputs(again), outputs(model))
    trainable = [
        sorted((v.path.split("/")[-2:], tuple(v.shape)) for v in each.trainable_variables) for each in (model, again)
    ]
    assert trainable[0] == trainable[1]
    assert len(model.optimizer.variables) == len(again.optimizer.variables)
    for ours, theirs in zip(values(model.optimizer.variables), values(again.optimizer.variables)):
        np.testing.assert_array_equal(ours, theirs)


QUICK = [*(("plain", change) for change in ("frozen", "lora", "int8", "float8")), ("map", "int8")]
ALL = [each for each in itertools.product(MODELS, CHANGES) if each not in QUICK]
ALL = [(kind, change) for kind, change in ALL if kind != "mixer" or change in ("unchanged", "int8", "int4")]
FILES = ["tiny.npz", "tiny.safetensors", "folder"]
QUICK_AND_ALL = [*QUICK, *[pytest.param(*each, marks=pytest.mark.slow) for each in ALL]]


@pytest.mark.parametrize("own", ["float32", "mixed_float16"])
def test_a_model_has_the_policy_of_its_layers_whatever_the_global_one(own, tmp_path):
    tiny(dtype=own).save(tmp_path / "model.keras")
    other = {"float32": "mixed_float16", "mixed_float16": "float32"}[own]
    keras.config.set_dtype_policy(other)
    try:
        models = [tiny(dtype=own), keras.models.load_model(tmp_path / "model.keras")]
        assert [model.dtype_policy.name for model in models] == [own, own]
        if own == "float32":
            models[1].quantize("int8")  # which Keras refuses for float16
            return
        around = [
            MaskedAutoencoder(tiny(dtype=own), decoder_depth=1, decoder_width=16, decoder_heads=2),
            Distillation(tiny(dtype=own), tiny(dtype=own)),
        ]
        for model in (models[1], *around):
            model.compile("sgd", "sparse_categorical_crossentropy")
            assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(("kind", "change"), QUICK_AND_ALL)
def test_a_saved_model_opens_with_its_outputs_and_its_optimizer(kind, change, tmp_path):
    model = changed(kind, change)
    model.save(tmp_path / "model.keras")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Skipping variable loading")
        assert_same(model, keras.models.load_model(tmp_path / "model.keras"))
        again = vit_keras.load_model(tmp_path / "model.keras")
    for each in (again, model):
        each.fit(
            IMAGES, LABELS, verbose=0, batch_size=4, shuffle=False
        )  # another order of a sum rounds to bfloat16 otherwise
    if change != "float8":  # its scales follow the largest values of several steps
        np.testing.assert_allclose(outputs(again), outputs(model), atol=1e-5)  # a step in float32


def changes(*quick):
    """Return all changes, as cases; those that a test takes no other way through are slow."""
    return [pytest.param(each, marks=() if each in quick else pytest.mark.slow) for each in CHANGES]


@pytest.mark.parametrize(("kind", "change"), QUICK_AND_ALL)
def test_saved_weights_load_into_a_model_that_was_changed_alike(kind, change, tmp_path):
    model, again = changed(kind, change, trained=False), changed(kind, change, trained=False)
    model.save_weights(tmp_path / "model.weights.h5")
    again.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(outputs(again), outputs(model))


@pytest.mark.filterwarnings("ignore:transformers does not do the same")  # Google's images are not antialiased
@pytest.mark.parametrize(("change", "name"), one_at_a_time(["lora", *sorted({*CHANGES} - {"lora"})], FILES))
def test_other_formats_hold_the_same_or_are_refused(change, name, tmp_path):
    model, path = changed("plain", change, trained=False), tmp_path / name
    if quantization(model):
        with pytest.raises(ValueError, match=r"quantized \((int|float)[48]\)"):
            vit_keras.save_weights(model, path, "huggingface" if name == "folder" else None)
        assert not [*tmp_path.iterdir()]
        return
    vit_keras.save_weights(model, path, "huggingface" if name == "folder" else None)
    again = vit_keras.from_checkpoint(path)
    np.testing.assert_allclose(outputs(again), outputs(model), atol=1e-6)  # the adapters are merged: float32


@pytest.mark.parametrize("change", changes("unchanged", "lora", "int8"))
def test_a_resized_model_has_the_same_outputs_or_is_refused(change):
    model = changed("plain", change, trained=False)
    if quantization(model):
        with pytest.raises(ValueError, match="before model.quantize"):
            vit_keras.resize(model, 16)
        with pytest.raises(ValueError, match="before model.quantize"):
            vit_keras.resize(model, 32)
        return
    np.testing.assert_allclose(outputs(vit_keras.resize(model, 16)), outputs(model), atol=1e-6)


@pytest.mark.slow
def test_a_distilled_model_opens_without_its_teacher(tmp_path):
    student = changed("plain", "lora", trained=False)
    model = Distillation(student, tiny())
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    model.fit(IMAGES, LABELS, verbose=0)
    student.save(tmp_path / "student.keras")
    again = keras.models.load_model(tmp_path / "student.keras")
    np.testing.assert_array_equal(outputs(again), outputs(student))


@pytest.mark.slow
def test_saved_models_open_in_a_fresh_process(tmp_path):
    for number, change in enumerate(CHANGES):
        model = changed("plain", change)
        model.save(tmp_path / f"{number}.keras")
        np.save(tmp_path / f"{number}.npy", outputs(model))
    np.save(tmp_path / "images", IMAGES)
    program = (
        "import sys, keras, numpy as np, vit_keras\n"
        "for n in range(int(sys.argv[2])):\n"
        "    model = keras.models.load_model(f'{sys.argv[1]}/{n}.keras')\n"
        "    found = keras.ops.convert_to_numpy(model(np.load(f'{sys.argv[1]}/images.npy'), training=False))\n"
        "    np.testing.assert_array_equal(found, np.load(f'{sys.argv[1]}/{n}.npy'))\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path), str(len(CHANGES))], check=True)


def set_activation(model):
    vit_keras.anatomy.blocks(model)[0].mlpblock.activation = "relu"


def set_function(model):
    vit_keras.anatomy.blocks(model)[0].mlpblock.activation = keras.activations.relu


def set_epsilon(model):
    vit_keras.anatomy.blocks(model)[-1].layernorm2.epsilon = 0.1


def set_final_epsilon(model):
    model.get_layer("Transformer_encoder_norm").epsilon = 0.1


def set_in_pooling(model):
    next(each for each in model.layers if "MAPHead" in each.name).mlpblock.activation = "relu"


@pytest.mark.few_cases(3)
@pytest.mark.parametrize("change", [set_activation, set_function, set_epsilon, set_final_epsilon, set_in_pooling])
def test_a_file_of_weights_refuses_what_it_would_lose_and_copies_keep_it(change, tmp_path):
    model = tiny(num_layers=2, pooling="map" if change is set_in_pooling else "token")
    change(model)
    expected = outputs(model)
    assert np.abs(expected - outputs(tiny(num_layers=2, pooling=model.config.pooling))).max() > 1e-3
    for name in ("a.npz", "a.safetensors"):
        with pytest.raises(ValueError, match="Set them back"):
            vit_keras.save_weights(model, tmp_path / name)
    assert not list(tmp_path.iterdir())
    for copy in (vit_keras.resize(model, model.config.image_size), vit_keras.merge_tokens(model, 0)):
        np.testing.assert_array_equal(outputs(copy), expected)
    model.save_weights(tmp_path / "a.weights.h5")
    model.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(outputs(model), expected)


@pytest.mark.parametrize("name", ["a.keras", "a.h5"])
def test_a_function_that_no_file_can_hold_is_refused(name, tmp_path):
    model = tiny()
    set_function(model)
    with pytest.raises(ValueError, match="cannot hold the function"):
        model.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_activation_of_the_mlp_is_a_name():
    with pytest.raises(TypeError, match="mlp_activation must be of the type str.*<function"):
        tiny(mlp_activation=keras.activations.relu)


@pytest.mark.parametrize("kind", ["plain", "mixer", "map"])
def test_the_config_follows_the_activation_of_loaded_weights(kind, tmp_path):
    model = MODELS[kind]()
    saved = vit_keras.build.build(model.config.replace(mlp_activation="relu"))
    saved.set_weights(model.get_weights())
    saved.save_weights(tmp_path / "a.weights.h5")
    model.load_weights(tmp_path / "a.weights.h5")
    assert model.config.mlp_activation == "relu"
    np.testing.assert_array_equal(outputs(model), outputs(saved))
    np.testing.assert_array_equal(outputs(vit_keras.resize(model, 16)), outputs(saved))

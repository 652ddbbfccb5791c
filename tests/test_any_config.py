"""Random configurations: each that `ViTConfig` accepts is built, run, saved and exported, or refused by name."""

import importlib.util
import math
import warnings

import keras
import numpy as np
import pytest
from support import some_of

import vit_keras
from vit_keras import export, training, visualize, vit
from vit_keras.anatomy.parts import patch_grid
from vit_keras.config import ViTConfig
from vit_keras.positions import GEOMETRIC, METHODS
from vit_keras.resampling import PICTURES

SMALL = {"image_size": (16, 24), "patch_size": (8, 8), "num_layers": 2, "hidden_size": 16, "num_heads": 2}
SMALL |= {"mlp_dim": 12, "classes": 3}

OTHERS = {
    "image_size": (None, (16, 16), (8, 8), (20, 17)),
    "channels": (1, 4),
    "patch_size": ((8, 4), (1, 1), (2, 2)),
    "drop_remainder": (True,),
    "resnet": ((), (1,), (1, 2)),
    "resnet_numerics": ("timm",),
    "patch_bias": (False,),
    "patch_norm": (True,),
    "class_token": (True, False),
    "distillation_token": (True,),
    "registers": (1, 3),
    "position": ("sincos2d", None),
    "position_prefix": (False,),
    "register_positions": (True,),
    "position_grid": ((2, 2), (3, 1)),
    "rope_theta": (100.0, 0.5),
    "rope_kind": ("axial", "axial_xy", "mixed"),
    "rope_grid": ((3, 2),),
    "rope_offset": (0.5,),
    "relative_positions": (True,),
    "num_layers": (1, 3),
    "hidden_size": (12, 8, 6),
    "num_heads": (1, 3, 4),
    "dim_head": (4, 3, 8),
    "mlp_dim": (1, 16),
    "qkv_bias": (False,),
    "key_bias": (True, False),
    "out_bias": (False,),
    "attention_norm": (True,),
    "mlp_norm": (True,),
    "mlp_activation": ("gelu", "quick_gelu", "relu", "silu", "linear"),
    "gated_mlp": (True,),
    "layer_scale": (0.1, 0.0),
    "epsilon": (1e-5, 1e-3),
    "pre_norm": (True,),
    "post_norm": (True,),
    "final_norm": ("pooled", None),
    "tokens_mlp_dim": (5,),
    "merge_tokens": (1, 2, (1, 0), (0, 2)),
    "pooling": ("gap", "token+gap", "token+dist", "all", "map", None),
    "map_heads": (1, 4),
    "map_mlp_dim": (7,),
    "representation_size": (5,),
    "include_top": (False,),
    "classes": (1, 2),
    "head_bias": (False,),
    "activation": ("softmax", "sigmoid", None, "tanh"),
    "dropout": (0.1,),
    "emb_dropout": (0.1, 0.0),
    "attention_dropout": (0.1,),
    "stochastic_depth": (0.2,),
    "patch_dropout": (0.5,),
    "remat": (True,),
    "position_resize": METHODS,
    "patch_resize": METHODS,
    "relative_resize": (*METHODS, *GEOMETRIC),
}
"""Values besides those of `SMALL` and the defaults."""

CHOSEN = {
    "pooling": {None: {"include_top": False}, "token+dist": {"distillation_token": True}},
    "tokens_mlp_dim": {5: {"pooling": "gap", "position": None}},
    "resnet": {(): {"patch_size": (1, 1)}, (1,): {"patch_size": (1, 1)}, (1, 2): {"patch_size": (1, 1)}},
    "image_size": {None: {"position_grid": (2, 3)}, (20, 17): {"drop_remainder": True}},
    "merge_tokens": {2: {"image_size": (32, 24)}},
    "mlp_norm": {True: {"mlp_dim": 16}},  # of a single number, it leaves nothing but its rounding
}
"""What a value needs besides it."""


def drawn(number):
    """Return the configuration of a number: a few fields differ from the usual, and what they need goes with them."""
    rng = np.random.default_rng(number)
    while True:
        fields = [*OTHERS][number % len(OTHERS) :][:1]  # each field in turn
        fields += [field for field in OTHERS if rng.random() < 0.12]
        options = {}
        for field in fields:
            value = OTHERS[field][rng.integers(len(OTHERS[field]))]
            options |= {field: value, **CHOSEN.get(field, {}).get(value, {})}
        try:
            return ViTConfig(**{**SMALL, **options})
        except ValueError:
            continue


def changes(config):
    """Return the fields in which a configuration differs from the usual."""
    usual = ViTConfig(**SMALL)
    return {field: getattr(config, field) for field in OTHERS if getattr(config, field) != getattr(usual, field)}


def model_of(config):
    """Return the model with weights in which each one matters."""
    model, rng = vit.build(config), np.random.default_rng(0)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(0.3 * rng.standard_normal(weight.shape) + (weight.name == "gamma"))
    model.run_eagerly = keras.backend.backend() == "tensorflow"  # compiling takes longer than all else
    return model


def images_of(config, size=None):
    size = size or config.image_size or tuple(n * side for n, side in zip((2, 3), config.stride))
    return np.random.default_rng(1).uniform(-1, 1, (2, *size, config.channels)).astype("float32")


def outputs_of(model, images):
    return keras.ops.convert_to_numpy(model(images, training=False))


def same(found, expected):
    """To 1e-5 of the largest output: the same sums, which a graph, a file or a runtime may add up in another order."""
    expected = np.asarray(expected)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def by_name(error):
    """Whether an error is meant for the user: one of this package that says what was received or what to do."""
    return isinstance(error, (ValueError, TypeError)) and "/vit_keras/" in innermost(error)


def innermost(error):
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename


# --- what is done with a model; each returns, or raises an error that names the reason -----------------------------


def is_saved(model, images, expected, folder):
    model.save(folder / "model.keras")
    opened = vit_keras.load_model(folder / "model.keras")
    assert opened.config == model.config
    same(outputs_of(opened, images), expected)


def keeps_its_weights(model, images, expected, folder):
    model.save_weights(folder / "model.weights.h5")
    fresh = vit.build(model.config)
    fresh.load_weights(folder / "model.weights.h5")
    same(outputs_of(fresh, images), expected)


def is_written_for_others(model, images, expected, folder):
    vit_keras.save_weights(model, folder / "model.safetensors")
    options = {} if model.config.image_size else {"image_size": None}
    try:
        opened = vit_keras.open_model(folder / "model.safetensors", **options)
    except ValueError as error:
        raise AssertionError("What was written is refused") from error
    same(outputs_of(opened, images), expected)


def is_exported(model, images, expected, folder):
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("ONNX Runtime is not installed")
    import onnxruntime

    report = export(model, folder / "model.onnx", preprocessing=False, check=False)
    session = onnxruntime.InferenceSession(report.path)
    same(session.run(None, {session.get_inputs()[0].name: images})[0], expected)


def is_exported_with_its_preprocessing(model, images, expected, folder):
    """An ONNX file takes pixels of any size. Those that it resizes are at most one gray level off.

    The tolerance is twice the largest difference of 500 configurations. That one normalizes patches of 2 by 2 pixels.
    """
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("ONNX Runtime is not installed")
    import onnxruntime

    if images.shape[3] > 3:
        return  # images are not read so: the tests of ONNX have such a model
    own, rng = model.preprocessing, np.random.default_rng(len(model.weights) + expected.size)
    ways = {"interpolation": PICTURES, "crop": (None, 0.875, 0.5), "crop_mode": ("center", "squash")}
    chosen = {name: values[rng.integers(len(values))] for name, values in ways.items()}
    model.preprocessing = own.replace(image_size=images.shape[1:3], mean=0.4, std=0.3, **chosen)
    try:
        report = export(model, folder / "pixels.onnx", check=False)
        session = onnxruntime.InferenceSession(report.path)
        for size in (images.shape[1:3], (50, 31), (9, 70)):
            pixels = rng.integers(0, 256, (1, *size, 3), "uint8")
            wanted = outputs_of(model, model.preprocess(pixels[0], images.shape[1:3]))
            found = session.run(None, {session.get_inputs()[0].name: pixels})[0]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05 * max(1, np.abs(wanted).max()))
    finally:
        model.preprocessing = own


def shows_its_attention(model, images, expected, folder):
    pictures = [np.random.default_rng(n).integers(0, 256, (*images.shape[1:3], 3), "uint8") for n in range(2)]
    for picture, found in zip(pictures, visualize.attention_map(model, pictures)):
        assert np.shape(found) == np.shape(picture)


def has_feature_maps(model, images, expected, folder):
    maps = vit_keras.feature_maps(model, -1)
    same(np.shape(outputs_of(maps, images))[1:3], model.config.grid_of(images.shape[1:3]))
    every = keras.tree.flatten(vit_keras.feature_maps(model)(images))
    same(keras.ops.convert_to_numpy(every[-1]), outputs_of(maps, images))


def is_packed(model, images, expected, folder):
    whole = tuple(n * side for n, side in zip(model.config.grid_of(images.shape[1:3]), model.config.stride))
    packed = vit_keras.pack(model, tokens=model.config.prefix_tokens + math.prod(whole), images=3)
    same(packed.predict_images([*images[:, : whole[0], : whole[1]]]), expected)


def learns_by_low_rank(model, images, expected, folder):
    training.add_lora(model, rank=2)
    same(outputs_of(model, images), expected)
    training.merge_lora(model)
    same(outputs_of(model, images), expected)


def is_resized(model, images, expected, folder):
    native = vit_keras.resize(model, images.shape[1:3])
    same(outputs_of(native, images), expected)
    size = tuple(n * side for n, side in zip((3, 2), model.config.stride))
    larger = vit_keras.resize(model, size)
    assert np.isfinite(outputs_of(larger, images_of(model.config, size))).all()
    assert patch_grid(larger) == (3, 2)


def learns(model, images, expected, folder):
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    model.train_on_batch(images, np.zeros_like(expected))
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


TASKS = (
    *(is_saved, keeps_its_weights, is_written_for_others, is_exported, shows_its_attention, has_feature_maps),
    *(is_packed, is_resized, learns_by_low_rank, is_exported_with_its_preprocessing),
)


def problems(config, folder, tasks=TASKS):
    """Yield what goes wrong with a configuration, as the name of the task and the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, images = model_of(config), images_of(config)
        expected = outputs_of(model, images)
        shape = (2, *model.output_shape[1:])
        assert all(there in (size, None) for there, size in zip(shape, expected.shape)), (shape, expected.shape)
        assert np.isfinite(expected).all()
        if config.image_size is None:
            other = images_of(config, tuple(n * side for n, side in zip((3, 1), config.stride)))
            assert np.isfinite(outputs_of(model, other)).all()
        for task in tasks:
            try:
                task(model, images, expected, folder)
            except Exception as error:
                if not by_name(error):
                    yield task.__name__, error


def check(numbers, folder, tasks=TASKS, share=1):
    found = []
    for number in numbers:
        config = drawn(number)
        try:
            found += [
                (number, changes(config), *each) for each in problems(config, folder, tasks[number % share :: share])
            ]
        except Exception as error:
            found.append((number, changes(config), "building and calling", error))
    assert not found, "\n".join(f"{each[:3]}: {type(each[3]).__name__}: {str(each[3])[:300]}" for each in found)


@pytest.mark.compiles_long
@pytest.mark.core
@pytest.mark.parametrize(("first", "count"), [(0, 3), (3, 6)])
def test_what_a_configuration_allows_works(first, count, tmp_path):
    """Nine configurations: three have each of the tasks once; the slow test has all of 500 with all tasks."""
    check(range(first, first + count), tmp_path, share=3)


@pytest.mark.parametrize("image_size", [(9, 15), (12, 7)])
def test_a_hybrid_of_a_size_that_its_stride_does_not_divide(image_size, tmp_path):
    """Its ResNet pads: images of 9 by 15 pixels have 3 by 4 patches of 4 by 4."""
    hybrid = {"patch_size": (1, 1), "resnet": (1,), "drop_remainder": True, "image_size": image_size}
    assert not [*problems(ViTConfig(**{**SMALL, **hybrid}), tmp_path, [is_written_for_others])]


@pytest.mark.parametrize("what", [{"rope_theta": 100.0, "num_heads": 4}, {"num_heads": 3}], ids="-".join)
def test_a_mixer_ignores_what_only_attention_has(what, tmp_path):
    """Rotary positions, and heads that do not divide its width."""
    mixer = {"tokens_mlp_dim": 5, "position": None, "pooling": "gap", **what}
    assert not [*problems(ViTConfig(**{**SMALL, **mixer}), tmp_path, [is_saved, is_written_for_others])]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("first", some_of(range(0, 500, 50), 2))
def test_what_many_configurations_allow_works(first, tmp_path):
    check(range(first, first + 50), tmp_path)


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("first", some_of(range(0, 200, 50), 1))
def test_a_training_step_of_what_a_configuration_allows(first, tmp_path):
    check(range(first, first + 50), tmp_path, [learns])

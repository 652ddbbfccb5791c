"""The ResNet root: against Google's outputs, against float64 in NumPy, against timm; and as Keras layers."""

import functools
import json
import sys

import keras
import make_google_npz
import numpy as np
import pytest
from support import DATA, one_at_a_time

from benchmarks.contenders import _torchvision
from vit_keras import layers
from vit_keras.config import ViTConfig
from vit_keras.layers import resnet
from vit_keras.positions import resize_position_embeddings

pytestmark = pytest.mark.core(first=("test_a_whole_hybrid_gives_the_outputs_of_the_reference",))

IMAGES = np.random.RandomState(0).uniform(-1, 1, size=(2, 37, 50, 3)).astype("float32")
UNITS = (1, 2)


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def root(units=UNITS, size=IMAGES.shape[1:3], **options):
    inputs = keras.Input((*size, 3))
    return keras.Model(inputs, resnet.resnet_root(inputs, units, **options))


def canonical_name(variable):
    name = variable.path
    for keras_name, google_name in (
        ("class_token/", ""),
        ("Transformer_", "Transformer/"),
        ("_unit", "/unit"),
        ("/gamma", "/scale"),
        ("/beta", "/bias"),
    ):
        name = name.replace(keras_name, google_name)
    return name


def fill(model, weights):
    """Put Google's arrays in; every variable gets one and every array is used."""
    variables = {canonical_name(variable): variable for variable in model.variables}
    assert set(variables) == set(weights)
    for name, variable in variables.items():
        variable.assign(weights[name].reshape(variable.shape))


def random_weights(model):
    """Weights of the sizes that training gives, by canonical name."""
    random = np.random.RandomState(1)
    weights = {}
    for variable in model.variables:
        name, shape = canonical_name(variable), tuple(variable.shape)
        if name.endswith("kernel"):
            weights[name] = random.normal(size=shape, scale=np.prod(shape[:3]) ** -0.5, loc=0.02)
        else:
            weights[name] = random.uniform(size=shape, low=-0.5, high=0.5) + name.endswith("scale")
    return {name: value.astype("float32") for name, value in weights.items()}


# --- Google ---------------------------------------------------------------------------------------------------------


def grid_of(size, units):
    return ViTConfig(patch_size=1, resnet=tuple(units)).grid_of(size)


def hybrid(config, size, classes):
    inputs = keras.Input((size, size, 3))
    x = resnet.resnet_root(inputs, config["resnet"])
    assert tuple(x.shape[1:3]) == grid_of((size, size), config["resnet"])
    x = keras.layers.Conv2D(config["width"], config["patch"], config["patch"], name="embedding")(x)
    x = keras.layers.Reshape((-1, config["width"]))(x)
    x = layers.ClassToken(name="class_token")(x)
    x = layers.AddPositionEmbs(name="Transformer_posembed_input")(x)
    for n in range(config["depth"]):
        name = f"Transformer_encoderblock_{n}"
        x = layers.TransformerBlock(config["heads"], config["mlp_dim"], name=name)(x)
    encoded = keras.layers.LayerNormalization(epsilon=1e-6, name="Transformer_encoder_norm")(x)
    logits = keras.layers.Dense(classes, name="head")(layers.ExtractToken()(encoded))
    return keras.Model(inputs, [encoded, logits])


@pytest.mark.parametrize("case", ["R_ViT-mu_16", "R_ViT-mu_16_64to96", "R8_ViT-mu_16"])
def test_a_whole_hybrid_gives_the_outputs_of_the_reference(case):
    golden = np.load(DATA / f"{case}.npz")
    meta = json.loads(str(golden["meta"]))
    weights = make_google_npz.make(
        meta["variant"], seed=meta["seed"], image_size=meta["ckpt_size"], classes=meta["classes"]
    )
    model = hybrid(meta["config"], meta["size"], meta["classes"])
    if meta["size"] != meta["ckpt_size"]:
        positions = "Transformer/posembed_input/pos_embedding"
        grid = model.get_layer("Transformer_posembed_input").patch_grid
        weights[positions] = resize_position_embeddings(weights[positions], grid)
    fill(model, weights)

    encoded, logits = model(make_google_npz.preprocess(golden["image"]), training=False)
    # Measured 1e-5 at most. timm's numerics are 6e-5 away at the root with units, the exact GELU 2e-4.
    np.testing.assert_allclose(numpy(logits), golden["logits"], rtol=0, atol=3e-5)
    np.testing.assert_allclose(numpy(encoded), golden["encoded"], rtol=0, atol=3e-5)


# --- NumPy in float64 -----------------------------------------------------------------------------------------------


def same_windows(x, kernel_size, strides, fill_value):
    """All windows of TensorFlow's SAME padding, which puts the odd pixel behind: (batch, h, w, channels, k, k)."""
    pads = [(0, 0)]
    for size in x.shape[1:3]:
        pad = max((-(-size // strides) - 1) * strides + kernel_size - size, 0)
        pads.append((pad // 2, pad - pad // 2))
    x = np.pad(x, [*pads, (0, 0)], constant_values=fill_value)
    return np.lib.stride_tricks.sliding_window_view(x, (kernel_size,) * 2, axis=(1, 2))[:, ::strides, ::strides]


def reference_root(images, weights, units, numerics="google"):
    w = {name: value.astype("float64") for name, value in weights.items()}

    def conv(x, name, strides=1):
        kernel = w[f"{name}/kernel"]
        kernel = kernel - kernel.mean((0, 1, 2))
        variance = kernel.var((0, 1, 2))
        kernel = kernel / (np.sqrt(variance) + 1e-5 if numerics == "google" else np.sqrt(variance + 1e-8))
        return np.einsum("bhwcij,ijco->bhwo", same_windows(x, len(kernel), strides, 0.0), kernel, optimize=True)

    def norm(x, name):
        groups = x.reshape(*x.shape[:3], 32, -1)
        groups = groups - groups.mean((1, 2, 4), keepdims=True)
        variance = groups.var((1, 2, 4), keepdims=True) + {"google": 1e-6, "timm": 1e-5}[numerics]
        return (groups / np.sqrt(variance)).reshape(x.shape) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def relu(x):
        return np.maximum(x, 0)

    x = relu(norm(conv(images.astype("float64"), "conv_root", 2), "gn_root"))
    x = same_windows(x, 3, 2, -np.inf).max((-2, -1))
    for stage, count in enumerate(units, start=1):
        for unit in range(1, count + 1):
            p, strides = f"block{stage}/unit{unit}", 2 if stage > 1 and unit == 1 else 1
            residual = norm(conv(x, f"{p}/conv_proj", strides), f"{p}/gn_proj") if unit == 1 else x
            y = relu(norm(conv(x, f"{p}/conv1"), f"{p}/gn1"))
            y = relu(norm(conv(y, f"{p}/conv2", strides), f"{p}/gn2"))
            x = relu(residual + norm(conv(y, f"{p}/conv3"), f"{p}/gn3"))
    return x


# Odd and even sizes, and of the feature maps as well: each pads in its own way at a stride of 2.
@pytest.mark.parametrize(
    ("size", "numerics"), one_at_a_time([(37, 50), (64, 64), (33, 35), (46, 39)], ["google", "timm"]), ids=str
)
@pytest.mark.compiles_long
def test_any_size_agrees_with_float64(numerics, size):
    images = np.random.RandomState(2).uniform(-1, 1, size=(1, *size, 3)).astype("float32")
    model = root(size=size, numerics=numerics)
    weights = random_weights(model)
    fill(model, weights)
    output = numpy(model(images))
    expected = reference_root(images, weights, UNITS, numerics)
    assert output.shape[1:3] == grid_of(size, UNITS)
    # Values up to 9 after twelve float32 convolutions and group normalisations: measured 3e-5 at most. The other
    # numerics are 2e-4 away, padding as PyTorch does 1 and more.
    np.testing.assert_allclose(output, expected, rtol=0, atol=5e-5)


def test_the_two_numerics_differ_where_the_kernel_or_the_map_is_flat():
    kernel = np.random.RandomState(3).normal(size=(3, 3, 32, 64), scale=1e-3).astype("float32")
    standardized = {}
    for numerics in ("google", "timm"):
        conv = resnet.StdConv2D(64, 3, numerics=numerics)
        standardized[numerics] = numpy(conv.standardize(kernel)).std((0, 1, 2))
    # A standard deviation s becomes s / (s + 1e-5), or s / sqrt(s² + 1e-8); 1e-6 is float32's error on it.
    s = kernel.astype("float64").std((0, 1, 2))
    np.testing.assert_allclose(standardized["google"], s / (s + 1e-5), rtol=0, atol=1e-6)
    np.testing.assert_allclose(standardized["timm"], s / np.sqrt(s**2 + 1e-8), rtol=0, atol=1e-6)

    features = np.random.RandomState(3).normal(size=(1, 8, 8, 64), scale=1e-2).astype("float32")
    variance = features.astype("float64").reshape(1, -1, 32, 2).var((1, 3))
    for numerics, epsilon in {"google": 1e-6, "timm": 1e-5}.items():
        model = root((1,), numerics=numerics)
        for norm in (model.get_layer("gn_root"), model.get_layer("block1_unit1").gn1):
            normalized = numpy(norm(features)).reshape(1, -1, 32, 2).var((1, 3))
            np.testing.assert_allclose(normalized, variance / (variance + epsilon), rtol=0, atol=1e-5)  # float32's


def test_group_normalisation_of_a_large_map_keeps_float32s_precision():
    random = np.random.RandomState(8)
    x = (random.normal(size=(1, 112, 112, 64), scale=3.0) + random.normal(size=64, scale=3.0)).astype("float32")
    groups = x.astype("float64").reshape(1, -1, 32, 2)
    expected = (groups - groups.mean((1, 3), keepdims=True)) / np.sqrt(groups.var((1, 3), keepdims=True) + 1e-6)
    # A few steps of float32 at values up to 5. Keras' own layer is 2e-5 away on TensorFlow and PyTorch.
    np.testing.assert_allclose(
        numpy(resnet.GroupNorm(32, epsilon=1e-6)(x)), expected.reshape(x.shape), rtol=0, atol=3e-6
    )


# --- timm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(37, 50), (64, 64)], ids=str)
def test_timm_numerics_are_those_of_timm(size, monkeypatch):
    torch = pytest.importorskip("torch")
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    _torchvision.stand_in()
    timm_layers = pytest.importorskip("timm.layers", exc_type=ImportError)
    resnetv2 = pytest.importorskip("timm.models.resnetv2", exc_type=ImportError)
    for module in {module for module in set(sys.modules) - before if module.split(".")[0] in ("timm", "torchvision")}:
        monkeypatch.delitem(sys.modules, module)  # nobody else shall meet the stand-in

    images = np.random.RandomState(4).uniform(-1, 1, size=(1, *size, 3)).astype("float32")
    model = root(size=size, numerics="timm")
    weights = random_weights(model)
    fill(model, weights)

    timm_model = resnetv2.ResNetV2(
        UNITS,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=functools.partial(timm_layers.StdConv2dSame, eps=1e-8),
    )
    state = {}
    for name, value in weights.items():
        *path, layer, leaf = name.split("/")
        layer = layer.replace("_root", "").replace("gn", "norm")
        if layer.endswith("_proj"):
            layer = f"downsample.{layer.removesuffix('_proj')}"
        stage = [int(part[-1]) - 1 for part in path]
        module = f"stages.{stage[0]}.blocks.{stage[1]}.{layer}" if stage else f"stem.{layer}"
        value = value.transpose(3, 2, 0, 1) if leaf == "kernel" else value
        state[f"{module}.{'bias' if leaf == 'bias' else 'weight'}"] = torch.tensor(value)
    timm_model.load_state_dict(state)
    with torch.no_grad():
        expected = timm_model.double().cpu().eval()(torch.tensor(images.transpose(0, 3, 1, 2)).double())
    # As against float64 above.
    np.testing.assert_allclose(numpy(model(images)), expected.numpy().transpose(0, 2, 3, 1), rtol=0, atol=5e-5)


# --- as Keras layers ------------------------------------------------------------------------------------------------

LAYERS = {
    "StdConv2D": lambda **k: resnet.StdConv2D(32, 3, strides=2, **k),
    "timm's StdConv2D": lambda **k: resnet.StdConv2D(32, 1, numerics="timm", **k),
    "StdConv2D with bias": lambda **k: resnet.StdConv2D(32, 3, padding="valid", use_bias=True, **k),
    "GroupNorm": lambda **k: resnet.GroupNorm(16, **k),
    "ResidualUnit": lambda **k: resnet.ResidualUnit(32, **k),
    "strided ResidualUnit": lambda **k: resnet.ResidualUnit(32, strides=2, **k),
    "ResidualUnit without projection": lambda **k: resnet.ResidualUnit(32, numerics="timm", **k),
}
CHANNELS = {"ResidualUnit without projection": 128}
WEIGHTS = {"StdConv2D": 1, "timm's StdConv2D": 1, "StdConv2D with bias": 2, "ResidualUnit": 12}
WEIGHTS |= {"GroupNorm": 2}
WEIGHTS |= {"strided ResidualUnit": 12, "ResidualUnit without projection": 9}


@pytest.fixture(params=LAYERS)
def name(request):
    return request.param


@pytest.fixture
def features(name):
    return np.random.RandomState(5).normal(size=(2, 7, 10, CHANNELS.get(name, 64))).astype("float32")


def test_build_makes_all_weights(name, features):
    layer = LAYERS[name]()
    layer.build(features.shape)
    assert len(layer.weights) == WEIGHTS[name]
    layer(features)
    assert len(layer.weights) == WEIGHTS[name]


def test_output_shape_is_known_before_the_call(name, features):
    layer = LAYERS[name]()
    symbolic = layer(keras.Input(features.shape[1:]))
    assert tuple(symbolic.shape[1:]) == tuple(layer(features).shape[1:])
    assert tuple(layer.compute_output_shape((None, *features.shape[1:]))) == tuple(symbolic.shape)
    unknown = layer.compute_output_shape((None, None, None, features.shape[-1]))
    assert tuple(unknown) == (None, None, None, symbolic.shape[-1])


def test_config_round_trip_gives_the_same_layer(name, features):
    layer = LAYERS[name](name="it")
    layer.build(features.shape)
    again = type(layer).from_config(layer.get_config())
    again.build(features.shape)
    again.set_weights(layer.get_weights())
    assert again.get_config() == layer.get_config()
    np.testing.assert_array_equal(numpy(again(features)), numpy(layer(features)))


@pytest.mark.compiles_long
def test_a_saved_model_comes_back_under_safe_mode(tmp_path):
    model = root(numerics="timm")
    fill(model, random_weights(model))
    model.save(tmp_path / "root.keras")
    again = keras.saving.load_model(tmp_path / "root.keras", safe_mode=True)
    np.testing.assert_array_equal(numpy(again(IMAGES)), numpy(model(IMAGES)))
    assert again.get_layer("block2_unit1").numerics == "timm"


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "bfloat16"])
def test_half_precision_standardises_and_normalises_in_float32(policy):
    kernel = (1 + np.random.RandomState(6).normal(size=(3, 3, 8, 32), scale=1e-3)).astype("float32")
    conv = resnet.StdConv2D(32, 3, dtype=policy)
    conv.build((None, None, None, 8))
    if policy.startswith("mixed"):
        conv.kernel.assign(kernel)  # rounded to 8 or 11 bits first, it would be nearly constant
        applied = []
        conv.standardize = lambda kernel: applied.append(type(conv).standardize(conv, kernel)) or applied[-1]
    output = conv(IMAGES[..., [0] * 8])
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    if policy.startswith("mixed"):
        # float32 of kernels around 1 with a deviation of 1e-3 keeps 4 digits; half precision 0 or 1.
        expected = kernel - kernel.mean((0, 1, 2), dtype="float64")
        expected = expected / (expected.std((0, 1, 2)) + 1e-5)
        np.testing.assert_allclose(numpy(applied[0]), expected, rtol=0, atol=2e-3)
    else:
        assert keras.backend.standardize_dtype(conv.standardize(conv.kernel).dtype) == "float32"


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.compiles_long
def test_half_precision_is_close_to_float32(policy):
    model, half = root(), root(dtype=policy)
    fill(model, random_weights(model))
    half.set_weights(model.get_weights())
    expected, output = numpy(model(IMAGES)), half(IMAGES)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    # Activations keep 11 or 8 bits in each of ten layers: a thousandth or a hundredth of their size on average.
    error = np.abs(numpy(keras.ops.cast(output, "float32")) - expected).mean() / expected.mean()
    assert error < {"mixed_float16": 0.004, "mixed_bfloat16": 0.03}[policy]


@pytest.mark.compiles_long
def test_training_changes_every_weight():
    inputs = keras.Input(IMAGES.shape[1:])
    x = keras.layers.GlobalAveragePooling2D()(resnet.resnet_root(inputs, (1, 1)))
    model = keras.Model(inputs, keras.layers.Dense(3)(x))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    loss = model.train_on_batch(IMAGES, np.array([0, 2]))
    assert np.isfinite(loss)
    for variable, old in zip(model.weights, before):
        assert np.isfinite(numpy(variable)).all(), variable.path
        assert np.abs(numpy(variable) - old).max() > 0, variable.path


def test_the_layers_are_named_as_in_the_reference():
    model = root((2, 1))
    assert [layer.name for layer in model.layers[1:]] == [
        "conv_root",
        "gn_root",
        "relu_root",
        "pool_root",
        "block1_unit1",
        "block1_unit2",
        "block2_unit1",
    ]
    assert "block1_unit1/gn_proj/gamma" in {variable.path for variable in model.variables}


@pytest.mark.parametrize(
    ("units", "size"), one_at_a_time([(1, 1, 1), (), (2,), (1, 1, 1, 1)], [(1, 33), (224, 224)]), ids=str
)
def test_the_config_knows_the_size_of_the_map(size, units):
    assert root(units, size=size).output_shape[1:3] == grid_of(size, units)


def test_an_image_of_unknown_size():
    assert tuple(resnet.resnet_root(keras.Input((None, 64, 3)), (1, 1)).shape[1:3]) == (None, 8)
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, resnet.resnet_root(inputs, (1, 1)))
    assert model.output_shape == (None, None, None, 512)
    assert tuple(model(IMAGES).shape) == (2, *grid_of(IMAGES.shape[1:3], (1, 1)), 512)


@pytest.mark.parametrize(
    "mistake, message",
    [
        (lambda: resnet.StdConv2D(8, 3, numerics="google32"), "one of 'google', 'timm'.*'google32'"),
        (lambda: resnet.ResidualUnit(32, numerics=None)(np.zeros((1, 5, 5, 64))), "one of 'google', 'timm'.*None"),
        (lambda: resnet.ResidualUnit(48)(np.zeros((1, 5, 5, 64))), "multiple of the number of channels"),
        (lambda: resnet.ResidualUnit(32)(np.zeros((1, 5, 64))), "ndim=3"),
    ],
)
def test_mistakes_are_named(mistake, message):
    with pytest.raises(ValueError, match=message):
        mistake()

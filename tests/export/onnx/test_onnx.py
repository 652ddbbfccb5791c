"""ONNX files against their models."""

import json
import os
import sys

import keras
import numpy as np
import pytest
from export_cases import CASES, randomized, tiny
from keras import ops
from support import peak_memory

import vit_keras
from vit_keras import feature_maps, preprocess
from vit_keras.backend.keras_internals import flat_layers
from vit_keras.export.onnx import build_graph, write
from vit_keras.export.onnx.file import save
from vit_keras.export.onnx.graph import Graph
from vit_keras.export.onnx.trace import trace
from vit_keras.export.plan import Plan, in_float32
from vit_keras.positions import METHODS

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


class Own(keras.layers.Layer):
    """A user's layer of Keras operations: a learned token beside its input, and a gate."""

    def build(self, shape):
        self.token = self.add_weight(shape=(1, shape[-1]), name="token")

    def call(self, x):
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], x.shape[-1]))
        both = ops.stack([x, token], axis=1)
        return ops.max(both * ops.sigmoid(ops.mean(both, axis=-1, keepdims=True)), axis=1)


def lora():
    model = tiny()
    for layer in flat_layers(model):
        if isinstance(layer, keras.layers.Dense) and layer.name == "query":
            layer.enable_lora(2)
    return randomized(model)


def segmenter():
    maps = feature_maps(tiny(image_size=None, position_grid=(2, 2)), [0, 1])
    x = keras.layers.Concatenate()(maps.outputs)
    return randomized(keras.Model(maps.input, keras.layers.Dense(3)(x)))


MORE = {
    "segmenter": segmenter,
    "own layer": lambda: randomized(keras.Sequential([tiny(include_top=False), Own(), keras.layers.Dense(3)])),
    "lora": lora,
    "relative": lambda: tiny(relative_positions=True, class_token=True, position=None, pooling="gap"),
    "sines": lambda: tiny(image_size=None, position="sincos2d", pooling="gap"),
    "any size gap": lambda: tiny(image_size=None, position_grid=(2, 2), class_token=True, pooling="gap"),
    "any size rope": lambda: tiny(image_size=None, position=None, rope_theta=100.0),
    "patch norm": lambda: tiny(patch_norm=True, representation_size=8),
    "quick": lambda: tiny(mlp_activation="quick_gelu", pooling="token+gap", qkv_bias=False),
}
QUICK = ("token", "rope", "nested", "half", "any size", "own layer", "merged", "segmenter")
ALL = {**CASES, **MORE}


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def cases():
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ALL]


@pytest.mark.parametrize("name", cases())
def test_a_file_computes_what_its_model_computes(tmp_path, name):
    model = ALL[name]()
    plan = Plan.of(model, preprocessing=False)
    assert write(plan, tmp_path / "model.onnx") == []
    file = session(tmp_path / "model.onnx")
    shape = [3, *(48 if size is None else size for size in plan.input_shape[1:])]
    images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
    found = dict(zip(plan.output_names, file.run(None, {"images": images})))
    assert [output.name for output in file.get_outputs()] == list(plan.output_names)
    with in_float32(model):
        expected = model.predict(images, verbose=0)
    np.testing.assert_allclose(
        found[plan.output_names[0]], expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max())
    )
    (alone,) = file.run(plan.output_names[:1], {"images": images[:1]})
    np.testing.assert_allclose(alone, expected[:1], rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("opset", [17, pytest.param(13, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["token", *(pytest.param(n, marks=pytest.mark.slow) for n in ALL if n != "token")])
def test_earlier_operators_compute_the_same(tmp_path, name, opset):
    model = ALL[name]()
    outputs = {}
    for version in (None, opset):
        plan = Plan.of(model, preprocessing=False, opset=version)
        write(plan, tmp_path / f"{version}.onnx")
        file = session(tmp_path / f"{version}.onnx")
        shape = [3, *(48 if size is None else size for size in plan.input_shape[1:])]
        images = np.random.default_rng(0).uniform(-1, 1, shape).astype("float32")
        outputs[version] = file.run(None, {"images": images})
    for found, expected in zip(outputs[opset], outputs[None]):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
    assert onnx.load(tmp_path / f"{opset}.onnx").opset_import[0].version == opset


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_weights_are_read_one_by_one(tmp_path):
    graph, size = Graph(), 2048
    x = graph.input("x", ("batch", size), "float32")
    for n in range(4):
        x = graph.matmul(x, graph.lazy(lambda: np.ones((size, size), "float32"), (size, size), "float32", key=n))
    graph.outputs["y"] = x
    with peak_memory() as peak:
        save(graph, tmp_path / "large.onnx", name="large", metadata={})
    assert os.path.getsize(tmp_path / "large.onnx") > 4 * 4 * size**2 > 1.5 * peak()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interpolation": "bicubic", "crop": 0.9},
        {"interpolation": "nearest", "crop": 0.9},
        pytest.param({"interpolation": "lanczos", "crop": 0.8, "crop_mode": "squash"}, marks=pytest.mark.slow),
        pytest.param({"interpolation": "box"}, marks=pytest.mark.slow),
        pytest.param({"interpolation": "bilinear_antialias", "image_size": (29, 43)}, marks=pytest.mark.slow),
    ],
)
def test_pictures_of_any_size_are_resized_inside(tmp_path, options):
    preprocessing = preprocess.IMAGENET.replace(image_size=32, crop=None).replace(**options)
    layer = preprocess.Preprocess(preprocessing)
    graph = trace(lambda x: {"y": layer(x)}, {"images": (("batch", "height", "width", 3), "uint8")})
    save(graph, tmp_path / "pre.onnx", name="pre", metadata={})
    file = session(tmp_path / "pre.onnx")
    for size in ((32, 32), (57, 40), (16, 64), (120, 90)):
        pixels = np.random.default_rng(sum(size)).integers(0, 256, (2, *size, 3)).astype("uint8")
        (found,) = file.run(None, {"images": pixels})
        levels, of_pillow, of_layer = (
            preprocessing.denormalize(each).astype(int)
            for each in (found, preprocessing(pixels), ops.convert_to_numpy(layer(pixels)))
        )
        assert np.abs(levels - of_pillow).max() <= 1
        assert (levels != of_layer).mean() < 5e-3  # where a value lies half-way between two levels


@pytest.mark.only_on("jax", reason="only JAX has no float64")
def test_resizing_is_written_without_a_warning_about_float64(tmp_path):
    vit_keras.export(tiny(), tmp_path / "a.onnx", check=None)  # a warning is an error here


@pytest.mark.few_cases(4)
@pytest.mark.parametrize("method", METHODS)
def test_positions_of_any_size_are_resized_inside(tmp_path, method):
    model = tiny(image_size=None, position_grid=(2, 3), position_resize=method)
    write(Plan.of(model, preprocessing=False), tmp_path / "model.onnx")
    file = session(tmp_path / "model.onnx")
    for down, across in ((2, 3), (3, 2), (2, 5), (1, 1)):
        size = (down * model.config.patch_size[0], across * model.config.patch_size[1])
        images = np.random.default_rng(0).uniform(-1, 1, (1, *size, 3)).astype("float32")
        expected = ops.convert_to_numpy(model(images))
        found = file.run(None, {"images": images})[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def test_images_of_four_channels_are_resized_and_cropped_inside(tmp_path):
    model = tiny(channels=4)
    channels = {"channels": 4, "mean": (0.5, 0.4, 0.3, 0.2), "std": 0.5}
    model.preprocessing = preprocess.GOOGLE.replace(image_size=32, crop=0.875, **channels)
    (found,) = vit_keras.export(model, tmp_path / "model.onnx").comparisons  # drawn images of several sizes
    assert (found.inputs, found.images) == ("images that are resized", 8)
    assert found.difference < 5e-3  # a pixel can be one gray level off


def test_a_file_says_what_it_is(tmp_path):
    plan = Plan.of(tiny(), labels=["a", "b", "c"])
    write(plan, tmp_path / "model.onnx")
    file = session(tmp_path / "model.onnx")
    said = file.get_modelmeta().custom_metadata_map
    assert json.loads(said["labels"]) == ["a", "b", "c"]
    assert json.loads(said["preprocessing"])["image_size"] == [32, 32]
    assert said["weights_sha256"] == plan.metadata["weights_sha256"]
    (images,) = file.get_inputs()
    assert (images.name, images.type, images.shape) == ("images", "tensor(uint8)", ["batch", "height", "width", 3])


def test_large_weights_go_beside_the_file(tmp_path):
    plan = Plan.of(tiny(), preprocessing=False)
    graph = build_graph(plan)
    save(graph, tmp_path / "one.onnx", name="tiny", metadata={})
    files = save(graph, tmp_path / "two.onnx", name="tiny", metadata={}, largest=1000)
    assert [file.name for file in files] == ["two.onnx", "two.onnx.data"]
    onnx.checker.check_model(files[0], full_check=True)
    images = np.random.default_rng(0).normal(size=(1, 32, 32, 3)).astype("float32")
    one, two = (session(tmp_path / name).run(None, {"images": images})[0] for name in ("one.onnx", "two.onnx"))
    np.testing.assert_array_equal(one, two)


def test_a_file_runs_without_this_package(tmp_path):
    report = vit_keras.export(ALL["token"](), tmp_path / "model.onnx", check=True)
    assert report.comparisons[0].difference <= 1e-4


def test_what_onnx_refuses_is_an_error_that_names_the_model(tmp_path):
    class Denied(keras.layers.Layer):
        def call(self, x):
            return ops.cast(ops.logical_not(x), "float32")  # of floats

    model = keras.Sequential([tiny(), Denied()], name="odd")
    with pytest.raises(ValueError, match="'odd' .*denied/Not_"):
        write(Plan.of(model), tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", [keras.layers.LSTM, keras.layers.GRU])
def test_a_recurrent_layer_is_refused_by_name(kind, tmp_path):
    model = keras.Sequential([tiny(include_top=False, pooling=None), kind(3, name="recurrent")])
    with pytest.raises(ValueError, match="recurrent.* ONNX"):
        write(Plan.of(model, preprocessing=False), tmp_path / "a.onnx")


@pytest.mark.slow
@pytest.mark.only_on("torch", reason="the other backends' tracers know all sizes")
@pytest.mark.parametrize("options", [{}, {"pooling": "map"}, {"pooling": "gap", "patch_norm": True}])
def test_keras_own_export_writes_a_model_that_was_made_on_pytorch(tmp_path, options):
    model, images = randomized(tiny(**options)), np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    expected = model.predict(images, verbose=0)
    model.export(tmp_path / "a.onnx", format="onnx", verbose=False)
    session = ort.InferenceSession(tmp_path / "a.onnx")
    (found,) = session.run(None, {session.get_inputs()[0].name: images})
    np.testing.assert_allclose(found, expected, atol=1e-4)

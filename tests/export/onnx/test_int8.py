"""Products with weights in 8 bits, in onnxruntime and in OpenVINO."""

import os

import keras
import numpy as np
import pytest
from export_cases import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from keras import ops

import vit_keras
from vit_keras.export import report
from vit_keras.export.onnx import int8, write
from vit_keras.export.onnx.calibration import calibrated
from vit_keras.export.onnx.file import save
from vit_keras.export.onnx.int8 import quantized
from vit_keras.export.onnx.trace import trace
from vit_keras.export.plan import Plan

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

GENERATOR = np.random.default_rng(0)
ROWS = GENERATOR.normal(size=(2, 5, 48)).astype("float32")
WEIGHTS = (GENERATOR.normal(size=(48, 64)) * GENERATOR.uniform(0.01, 2, 64)).astype("float32")


def wide(**options):
    """A small model with matrices that are large enough."""
    return tiny(hidden_size=64, mlp_dim=128, **options)


def onnxruntime(path):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda x: dict(zip(names, session.run(None, {session.get_inputs()[0].name: x})))


def openvino(path):
    compiled = pytest.importorskip("openvino").Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda x: {output.get_any_name(): value for output, value in compiled([x]).items()}


ACTIVATIONS = {"none": lambda x: x, "gelu": lambda x: keras.activations.gelu(x, approximate=True), "relu": ops.relu}


@pytest.fixture(scope="module", params=[onnxruntime, openvino])
def products(request, tmp_path_factory):
    """Functions that apply an activation and multiply by WEIGHTS in a runtime, by activation."""

    def product(name):
        path = tmp_path_factory.mktemp("product") / f"{name}.onnx"
        graph = trace(lambda x: {"y": ops.matmul(ACTIVATIONS[name](x), WEIGHTS)}, {"x": (("batch", 5, 48), "float32")})
        save(quantized(graph), path, name="product", metadata={})
        run = request.param(path)
        return lambda x: run(x)["y"]

    return {name: product(name) for name in ACTIVATIONS}


@pytest.fixture(scope="module")
def product(products):
    return products["none"]


def reference(x, lowest=None):
    """The same arithmetic in NumPy: 8-bit integers for rows and columns; `lowest` is the least value of a row."""
    if lowest is None:
        middle, half = 0, np.abs(x).max(axis=-1, keepdims=True) + 1e-6
    else:
        half = (x.max(axis=-1, keepdims=True) - lowest) / 2 + 1e-6
        middle = half + lowest
    rows = np.rint((x - middle) / half * 127).astype("int32")
    scales, columns = levels(WEIGHTS)
    return (rows @ columns * (half / 127) + middle * columns.sum(axis=0)) * scales


def levels(weights):
    """The scales of columns and the levels of weights, pair by pair."""
    padded = np.concatenate([weights, np.zeros((len(weights) % 2, weights.shape[1]))])
    same = padded[::2] * padded[1::2] > 0
    sums = np.where(same, np.abs(padded[::2] + padded[1::2]), 0).max(axis=0)
    scales = np.maximum.reduce([sums / 128.99, np.abs(weights).max(axis=0) / 127])
    return scales, np.rint(weights / np.maximum(scales, 1e-30)).astype("int32")


def test_a_product_is_that_of_integers(product):
    expected = reference(ROWS)
    np.testing.assert_allclose(product(ROWS), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    exact = ROWS @ WEIGHTS
    assert 1e-3 < np.abs(expected - exact).max() / np.abs(exact).max() < 0.02


@pytest.mark.parametrize(("name", "lowest"), [("gelu", -0.1701), ("relu", 0.0)])
def test_rows_after_an_activation_are_shifted(products, name, lowest):
    x = 3 * ROWS
    x[0, 1], x[1, 0] = 0, -0.75  # rows of zeros, and of the least that GELU returns
    active = ops.convert_to_numpy(ACTIVATIONS[name](x))
    assert active.min() >= lowest
    expected, exact = reference(active, lowest), active @ WEIGHTS
    # float32 rounds a few values that lie half-way between two levels the other way: one level is 0.003 here
    np.testing.assert_allclose(products[name](x), expected, rtol=0, atol=0.003 * np.abs(exact).max())
    error = {low: np.linalg.norm(reference(active, low) - exact) for low in (lowest, None)}
    assert error[lowest] < 0.9 * error[None]  # half the width of a level in rows, and the same weights


def pmaddubsw(rows, weights):
    """Multiply bytes as x86 without VNNI does: the sum of two neighboring products saturates in 16 bits."""
    padded = [np.pad(each.astype("int32"), [(0, 0), (0, -each.shape[1] % 2)]) for each in (rows, weights.T)]
    pairs = [each.reshape(len(each), -1, 2) for each in padded]
    sums = np.einsum("rpi,cpi->rcp", *pairs)
    return sums.clip(-(2**15), 2**15 - 1).sum(axis=-1)


def worst_rows(weights):
    """Return rows of the largest and the least level that make the sums of pairs of each column extreme."""
    signs = [weights.T > 0, weights.T < 0, np.ones(weights.T.shape, bool)]
    return np.concatenate(signs).astype("uint8") * np.uint8(2 * int8.ROWS)


def matrices():
    """Matrices of weights with few distinct values, so that neighbors are often equal, in very different sizes."""
    values = st.sampled_from([0.0, 1.0, -1.0, 0.999, 0.51, -0.51, 1e-3]) | st.floats(-1, 1, width=32)
    shapes = st.tuples(st.integers(1, 9), st.integers(1, 4))
    sizes = st.sampled_from([1e-30, 1e-3, 1.0, 1e6, 1e30])
    matrix = shapes.flatmap(lambda shape: hnp.arrays("float32", shape, elements=values))
    return st.builds(lambda array, size: (array * size).astype("float32"), matrix, sizes)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(matrices(), st.randoms(use_true_random=False))
def test_no_pair_of_products_overflows_16_bits(weights, random):
    found, scales = int8._levels(weights), int8._scales(weights)
    generator = np.random.default_rng(random.getrandbits(32))
    some = generator.integers(0, 2 * int8.ROWS + 1, (4, len(weights))).astype("uint8")
    for rows in (worst_rows(found), some):
        np.testing.assert_array_equal(pmaddubsw(rows, found), rows.astype("int64") @ found)
    # Half a level is the rounding; float32 adds its own.
    normal = np.abs(weights) > np.finfo("float32").tiny
    assert (np.abs(found * scales - weights)[normal] <= np.broadcast_to(0.501 * scales, weights.shape)[normal]).all()


def test_small_constants_and_products_of_tensors_stay():
    small = np.ones((48, 2), "float32")

    def function(x):
        return {"y": ops.matmul(ops.matmul(x, ops.transpose(x, (0, 2, 1))), x), "z": ops.matmul(x, small)}

    graph = quantized(trace(function, {"x": (("batch", 5, 48), "float32")}))
    assert {node.operator for node in graph.order()} == {"MatMul", "Transpose"}
    assert graph.outputs["z"].inputs[1].make() is small


@pytest.mark.parametrize("options", [{}, {"attention": True}, {"preprocessing": False}])
def test_a_file_computes_nearly_what_its_model_computes(tmp_path, options):
    model = wide(image_size=64, seed=3)
    plans = {name: Plan.of(model, quantize=name, **options) for name in (None, "int8")}
    outputs = {}
    for name, plan in plans.items():
        write(plan, tmp_path / f"{name}.onnx")
        run = onnxruntime(tmp_path / f"{name}.onnx")
        size = (64, 64) if plan.preprocessing is None else (90, 70)
        pictures = np.random.default_rng(0).integers(0, 256, (3, *size, 3)).astype("uint8")
        pictures = pictures if plan.preprocessing else pictures.astype("float32") / 127.5 - 1
        outputs[name] = run(pictures)
        assert list(outputs[name]) == list(plan.output_names)
        for output, value in run(pictures[1:2]).items():
            np.testing.assert_allclose(value, outputs[name][output][1:2], rtol=0, atol=1e-4)
    for output, expected in outputs[None].items():
        difference = np.abs(outputs["int8"][output] - expected).max() / max(1, np.abs(expected).max())
        assert 0 < difference < 0.15  # weights of noise; of the real model it is 0.03


def with_large_channels():
    """A model whose layer normalizations make three channels 500 times as large, and whose weights take that back."""
    model = wide(image_size=64)
    for block in (layer for layer in model.layers if "encoderblock" in layer.name):
        for name, users in (("LayerNorm_0", ("query", "key", "value")), ("LayerNorm_2", ("Dense_0",))):
            (norm,) = (each for each in block._flatten_layers() if each.name == name)
            factors = np.ones(64, "float32")
            factors[[3, 30, 50]] = 500
            norm.gamma.assign(norm.gamma * factors)
            norm.beta.assign(norm.beta * factors)
            for user in (each for each in block._flatten_layers() if each.name in users):
                user.kernel.assign(user.kernel / factors.reshape(-1, *[1] * (len(user.kernel.shape) - 1)))
    return model


@pytest.fixture(scope="module")
def images():
    return list(np.random.default_rng(0).integers(0, 256, (8, 64, 64, 3)).astype("uint8"))


@pytest.mark.parametrize("runtime", [onnxruntime, openvino])
def test_calibration_images_show_which_channels_are_large(tmp_path, images, runtime):
    model = with_large_channels()
    plan = Plan.of(model, quantize="int8")
    plans = {"float": Plan.of(model), "int8": plan, "calibrated": calibrated(plan, images[:4])}
    found = {}
    for name, each in plans.items():
        write(each, tmp_path / f"{name}.onnx")
        found[name] = runtime(tmp_path / f"{name}.onnx")(np.stack(images[4:]))["logits"]
    error = {name: np.linalg.norm(logits - found["float"]) for name, logits in found.items()}
    assert 0 < error["calibrated"] < error["int8"] / 3
    sizes = [os.path.getsize(tmp_path / f"{name}.onnx") for name in ("int8", "calibrated")]
    assert abs(sizes[0] - sizes[1]) < 1000


def test_an_export_is_calibrated_by_a_folder(tmp_path, images):
    (tmp_path / "images").mkdir()
    for number, image in enumerate(images):
        keras.utils.save_img(tmp_path / "images" / f"{number}.png", image)
    found = vit_keras.export(
        wide(image_size=64), tmp_path / "model.onnx", quantize="int8", calibration=tmp_path / "images"
    )
    assert found.metadata["calibrated"] and found.comparisons


@pytest.mark.parametrize(
    ("file", "options", "error", "message"),
    [
        ("model.onnx", {"calibration": [1]}, ValueError, "quantize=None"),
        ("model.tflite", {"quantize": "int8", "calibration": [1]}, ValueError, "Received: the format 'litert'"),
        ("model.onnx", {"quantize": "int8", "calibration": True}, TypeError, "Received: True"),
        ("model.onnx", {"quantize": "int8", "calibration": []}, ValueError, "no images"),
    ],
)
def test_calibration_that_is_of_no_use_is_refused(tmp_path, file, options, error, message):
    with pytest.raises(error, match=message):
        vit_keras.export(wide(), tmp_path / file, **options)
    assert not list(tmp_path.iterdir())


def test_weights_have_8_bits_in_the_file(tmp_path):
    model, stored = wide(classes=100), {}
    for name in (None, "int8"):
        write(Plan.of(model, quantize=name), tmp_path / "model.onnx")
        file = onnx.load(tmp_path / "model.onnx")
        stored[name] = {each.name: onnx.numpy_helper.to_array(each) for each in file.graph.initializer}
    matrices = [array for array in stored["int8"].values() if array.dtype == "int8"]
    assert len(matrices) == 2 * 6 + 1  # of two blocks, and the head
    for matrix in matrices:
        largest = np.abs(matrix.astype(int)).max(axis=0)
        assert largest.min() >= 64 and largest.max() <= 127
        rows = worst_rows(matrix)
        np.testing.assert_array_equal(pmaddubsw(rows, matrix), rows.astype("int64") @ matrix)
    size = {
        name: sum(array.nbytes for array in arrays.values() if array.size >= 1024) for name, arrays in stored.items()
    }
    assert size["int8"] < 0.36 * size[None]
    assert not [n for n, array in stored["int8"].items() if array.size >= 1024 and array.dtype == "float32"]


def test_what_passes():
    def passes(pictures, difference, same_class):
        return report.Comparison("images", pictures, difference, None, same_class).passes

    assert passes(100, 0.5, 90) and not passes(100, 0.01, 89)
    assert passes(5, 0.5, 4) and not passes(5, 0.01, 3)  # one of a few may lie between two classes
    assert passes(1, 0.5, 1) and not passes(1, 0.01, 0) and passes(2, 0.5, 1)  # but no check passes with none right
    assert not passes(100, np.nan, 100) and not passes(100, np.inf, 100)
    assert passes(100, 0.2, None) and not passes(100, 0.3, None) and not passes(100, np.nan, None)

"""Products with weights in 8 bits, in onnxruntime and in OpenVINO."""

import numpy as np
import pytest
from export_cases import tiny
from keras import ops

import vit_keras
from vit_keras.export import Plan, report
from vit_keras.export.onnx import int8, write
from vit_keras.export.onnx.file import save
from vit_keras.export.onnx.int8 import quantized
from vit_keras.export.onnx.narrow import order
from vit_keras.export.onnx.trace import trace

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


@pytest.fixture(scope="module", params=[onnxruntime, openvino])
def product(request, tmp_path_factory):
    """A function that multiplies rows by WEIGHTS in a runtime."""
    path = tmp_path_factory.mktemp("product") / "product.onnx"
    graph = trace(lambda x: {"y": ops.matmul(x, WEIGHTS)}, {"x": (("batch", 5, 48), "float32")})
    save(quantized(graph), path, name="product", metadata={})
    run = request.param(path)
    return lambda x: run(x)["y"]


def reference(x):
    """The same arithmetic in NumPy: integers of 8 bits for rows and columns, each with a scale of its own."""
    largest = np.abs(x).max(axis=-1, keepdims=True) + np.float32(1e-6)
    rows = np.rint(x / largest * 105).astype("int32")
    scales = np.abs(WEIGHTS).max(axis=0) / 77
    columns = np.rint(WEIGHTS / scales).astype("int32")
    return (rows @ columns) * (largest / 105) * scales


def test_a_product_is_that_of_integers(product):
    expected = reference(ROWS)
    np.testing.assert_allclose(product(ROWS), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    exact = ROWS @ WEIGHTS
    assert 1e-3 < np.abs(expected - exact).max() / np.abs(exact).max() < 0.02


def test_two_products_fit_into_16_bits():
    """Without VNNI, onnxruntime and OpenVINO add them by `vpmaddubsw`, which saturates."""
    assert 2 * (int8.MIDDLE + int8.ROWS) * int8.WEIGHTS < 2**15
    assert int8.MIDDLE - int8.ROWS >= 0


def test_the_largest_products_are_exact(product):
    x = np.broadcast_to(np.sign(WEIGHTS[:, 0]) * np.abs(WEIGHTS).max(), (2, 5, 48)).astype("float32")
    expected = reference(x)
    np.testing.assert_allclose(product(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_row_depends_on_no_other_row(product):
    alone = product(ROWS)
    among = ROWS.copy()
    among[0, 1] *= 1e4
    among[1, 0] = 0
    found = product(among)
    np.testing.assert_array_equal(found[1, 0], np.zeros(64, "float32"))
    np.testing.assert_allclose(found[0, 1], 1e4 * alone[0, 1], rtol=1e-5, atol=0.1)
    for row in ((0, 0), (0, 4), (1, 1)):
        np.testing.assert_array_equal(found[row], alone[row])


def test_what_is_small_or_no_matrix_of_weights_stays():
    small = np.ones((48, 2), "float32")

    def function(x):
        return {"y": ops.matmul(ops.matmul(x, ops.transpose(x, (0, 2, 1))), x), "z": ops.matmul(x, small)}

    graph = quantized(trace(function, {"x": (("batch", 5, 48), "float32")}))
    assert {node.operator for node in order(graph)} == {"MatMul", "Transpose"}
    assert graph.outputs["z"].node.inputs[1].make() is small


@pytest.mark.parametrize("options", [{}, {"attention": True}, {"preprocessing": False}])
def test_a_file_computes_nearly_what_its_model_computes(tmp_path, options):
    model = wide(image_size=64)
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


def test_weights_have_8_bits_in_the_file(tmp_path):
    model, stored = wide(classes=100), {}
    for name in (None, "int8"):
        write(Plan.of(model, quantize=name), tmp_path / "model.onnx")
        file = onnx.load(tmp_path / "model.onnx")
        stored[name] = {each.name: onnx.numpy_helper.to_array(each) for each in file.graph.initializer}
    matrices = [array for array in stored["int8"].values() if array.dtype == "int8"]
    assert len(matrices) == 2 * 6 + 1  # of two blocks, and the head
    assert all(np.abs(matrix.astype(int)).max(axis=0).min() == 77 for matrix in matrices)
    size = {
        name: sum(array.nbytes for array in arrays.values() if array.size >= 1024) for name, arrays in stored.items()
    }
    assert size["int8"] < 0.36 * size[None]
    assert not [n for n, array in stored["int8"].items() if array.size >= 1024 and array.dtype == "float32"]


def test_values_that_half_precision_cannot_hold_stay():
    graph = trace(lambda x: {"y": x + np.full((32, 32), 1e6, "float32")}, {"x": (("batch", 32, 32), "float32")})
    assert [node.operator for node in order(quantized(graph))] == ["Add"]
    graph = trace(lambda x: {"y": x + np.full((32, 32), 6e4, "float32")}, {"x": (("batch", 32, 32), "float32")})
    assert [node.operator for node in order(quantized(graph))] == ["Cast", "Add"]


def test_an_export_is_checked(tmp_path):
    found = vit_keras.export(wide(), tmp_path / "model.onnx", quantize="int8")
    assert found.metadata["quantize"] == "int8" and found.milliseconds["file"] > 0
    assert all(each.passes and each.tolerance is None and each.difference > 0 for each in found.comparisons)


def test_what_passes():
    def passes(pictures, difference, same_class):
        return report.Comparison("images", pictures, difference, None, same_class).passes

    assert passes(100, 0.5, 90) and not passes(100, 0.01, 89)
    assert passes(5, 0.5, 4) and not passes(5, 0.01, 3)  # one of a few may lie between two classes
    assert passes(100, 0.2, None) and not passes(100, 0.3, None) and not passes(100, np.nan, None)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["model.onnx", "model.xml"])
def test_the_real_model(tmp_path, file, real_weights, shared):
    if file == "model.xml":
        pytest.importorskip("openvino")
    model = vit_keras.from_checkpoint(real_weights)
    found = vit_keras.export(model, tmp_path / file, quantize="int8", check=shared / "images")
    assert found.bytes < (6.5e6 if file == "model.onnx" else 7.5e6)
    assert sum(each.same_class for each in found.comparisons) >= 29

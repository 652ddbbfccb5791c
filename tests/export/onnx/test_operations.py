"""Operations of Keras, run in onnxruntime and compared with the backend."""

import keras
import numpy as np
import pytest
from keras import ops

from vit_keras.export.formats import OPSETS
from vit_keras.export.onnx.file import save
from vit_keras.export.onnx.graph import Graph
from vit_keras.export.onnx.int8 import quantized
from vit_keras.export.onnx.narrow import narrowed
from vit_keras.export.onnx.older import older
from vit_keras.export.onnx.trace import trace

ort = pytest.importorskip("onnxruntime")
X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")


def run(graph, path, opset=OPSETS[-1], **inputs):
    save(older(graph, opset), path, name="test", metadata={}, opset=opset)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(None, inputs)))


FUNCTIONS = {
    "arithmetic": lambda x: (x * 2 - 1) / (abs(x) + 0.5) + (-x) ** 2 + 3 // (1 + x * x) + ops.mod(x, 0.3),
    "comparisons": lambda x: ops.where((x > 0) & (x != 1), ops.maximum(x, 0.2), ops.minimum(x, -0.2)),
    "functions": lambda x: ops.sin(x) + ops.cos(x) + ops.exp(x) + ops.erf(x) + ops.tanh(x) + ops.sqrt(ops.abs(x)),
    "activations": lambda x: ops.relu(x) + ops.silu(x) + ops.sigmoid(x) + ops.softplus(x) + ops.elu(x) + ops.relu6(x),
    "more activations": lambda x: ops.leaky_relu(x, 0.1) + ops.hard_sigmoid(x) + ops.hard_silu(x) + ops.selu(x),
    "gelu": lambda x: ops.gelu(x, approximate=False) + ops.gelu(x, approximate=True),
    "written gelu": lambda x: 0.5 * x * (1 + ops.erf(x * 0.5**0.5)) + (1 + ops.erf(x / 2**0.5)) * (x * 0.5),
    "not gelu": lambda x: (0.5 * x) * (1 + ops.erf(x * 0.7)) + x * 2 * (1 + ops.erf(x)) + 0.5 * x * (1 + ops.tanh(x)),
    "rounding": lambda x: ops.round(x) + ops.floor(x) + ops.ceil(x) + ops.clip(x, -0.5, 0.5) + ops.sign(x),
    "integers": lambda x: ops.cast(ops.cast(x * 9, "int32") // 4 + ops.cast(x * 9, "int32") % 4, "float32"),
    "reductions": lambda x: ops.mean(x, 1) + ops.sum(x, 1) + ops.max(x, 1) + ops.var(x, 1) + ops.std(x, 1),
    "softmax": lambda x: ops.softmax(x, 1) + ops.log_softmax(x, -1) + ops.normalize(x, axis=-1),
    "places": lambda x: ops.cast(ops.argmax(x, -1), "float32") + ops.sort(x, -1)[..., 0] + ops.top_k(x, 2)[0][..., 1],
    "order": lambda x: ops.take_along_axis(x, ops.argsort(x, axis=-1), axis=-1) + ops.cumsum(x, axis=1),
    "shapes": lambda x: ops.reshape(ops.abs(ops.reshape(x, (-1, 6))), (-1, 2, 6))[:, -1:, 1:-1],
    "axes": lambda x: ops.squeeze(ops.expand_dims(ops.swapaxes(ops.moveaxis(x, 1, 2), 1, 2), 1), 1) + ops.flip(x, 1),
    "parts": lambda x: ops.concatenate(
        [*ops.split(x, 2, axis=-1), ops.stack([x[:, 0], x[..., -1, :]], axis=1)[..., :2]], 1
    ),
    "copies": lambda x: ops.repeat(x, 2, axis=1) + ops.tile(x, (1, 2, 1)) + ops.pad(x, ((0, 0), (1, 2), (0, 0))),
    "products": lambda x: (
        ops.matmul(x, np.ones((4, 2), "float32")) + ops.einsum("bij,jk->bik", x, np.ones((4, 2), "f"))
    ),
    "more products": lambda x: (
        ops.tensordot(x, np.ones((3, 5), "float32"), axes=[[1], [0]]) @ np.eye(5, dtype="float32")
    ),
    "shape of the batch": lambda x: ops.broadcast_to(np.ones((1, 4), "float32"), (ops.shape(x)[0], 4)) * x[:, 0],
    "made of sizes": lambda x: x + ops.cast(ops.arange(ops.shape(x)[0]), "float32")[:, None, None],
    "backwards": lambda x: ops.flip(x, 0) + ops.flip(x),
    "some of the batch": lambda x: x[::2] + x[1:2],
    "likes": lambda x: ops.ones_like(x) + ops.zeros_like(x) + ops.full_like(x, 3),
    "masks and places": lambda x: x[:, np.array([True, False, True])] + x[:, [0, 2]],
    "made of floats": lambda x: x + ops.arange(0.5, ops.shape(x)[0] + 0.5)[:, None, None],
    "variance of integers": lambda x: ops.var(ops.cast(x * 10, "int32"), 1) + ops.std(ops.cast(x * 10, "int32"), 1),
    "bounds": lambda x: ops.max(x, 1, initial=2.0) + ops.min(x, 1, initial=-2.0),
    "clipped by arrays": lambda x: ops.clip(x, np.float32([-1, 0, 0, 0]), np.float32([0, 0.1, 0.2, 0.3])),
    "booleans": lambda x: (
        ops.cast(ops.sum(x > 0, 1), "float32")
        + ops.cast(ops.argmax(x > 0, 1), "float32")
        + ops.cast(((x > 0) + (x < -1)) * (x > -2), "float32")[:, 0]
    ),
    "bits": lambda x: ops.cast(ops.bitwise_and(ops.cast(x * 10, "int32"), 3), "float32"),
    "more": lambda x: ops.hard_silu(x) + ops.prod(x, 1, keepdims=True),
    "attention": lambda x: ops.dot_product_attention(*[ops.reshape(x, (-1, 3, 2, 2))] * 3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # of PyTorch's tensors
def test_an_operation_is_that_of_the_backend(tmp_path, name):
    graph = narrowed(trace(lambda x: {"y": FUNCTIONS[name](x)}, {"x": (("batch", 3, 4), "float32")}))
    expected = ops.convert_to_numpy(FUNCTIONS[name](ops.convert_to_tensor(X)))
    for opset in (OPSETS[-1], OPSETS[0]) if name != "bits" else OPSETS[-1:]:
        found = run(graph, tmp_path / "test.onnx", opset, x=X)["y"]
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "shape"),
    [(FUNCTIONS["bits"], (3, 4)), (lambda x: keras.layers.Resizing(2, 2, antialias=True)(x), (4, 4, 1))],
)
def test_what_only_later_opsets_have_is_refused(function, shape):
    graph = trace(lambda x: {"y": function(x)}, {"x": (("batch", *shape), "float32")})
    with pytest.raises(ValueError, match="opset=18"):
        older(graph, 17)


def test_outputs_of_several_types_keep_them():
    graph = trace(lambda x: {"y": ops.top_k(x, 2)[1]}, {"x": (("batch", 3, 4), "float32")})
    graph.outputs["z"] = graph.cast(graph.outputs["y"], "float32")
    for new in (narrowed(graph), quantized(graph)):
        assert (new.outputs["y"].dtype, new.outputs["z"].dtype) == (graph.outputs["y"].dtype, "float32")
        found = [(x.operator, x.dtype) for x in new.order() if x.operator.startswith("TopK")]
        assert found == [("TopK", "float32"), ("TopK:1", "int64")]


LAYERS = {
    "norms": lambda: [keras.layers.BatchNormalization(), keras.layers.LayerNormalization(axis=[2, 3])],
    "windows": lambda: [keras.layers.Conv2D(4, 3, 2, "same", dilation_rate=1), keras.layers.MaxPooling2D(3, 2, "same")],
    "pixels": lambda: [keras.layers.Rescaling([1, 2, 3.0], 0.5), keras.layers.Normalization(mean=0.2, variance=2.0)],
    "random": lambda: [keras.layers.RandomFlip(), keras.layers.RandomContrast(0.5), keras.layers.Dropout(0.5)],
    "size": lambda: [keras.layers.Resizing(5, 9), keras.layers.CenterCrop(4, 4), keras.layers.AveragePooling2D(2)],
    "flat": lambda: [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4, "gelu"), keras.layers.ReLU(2.0)],
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_keras(tmp_path, name):
    model = keras.Sequential([keras.Input((8, 6, 3)), *LAYERS[name]()])
    graph = trace(lambda x: {"y": model(x, training=False)}, {"x": (("batch", 8, 6, 3), "float32")})
    x = np.random.default_rng(1).normal(size=(2, 8, 6, 3)).astype("float32")
    expected = model.predict(x, verbose=0)
    for opset in (OPSETS[-1], OPSETS[0]):
        np.testing.assert_allclose(run(graph, tmp_path / "test.onnx", opset, x=x)["y"], expected, atol=1e-5)


def test_an_unknown_operation_is_named_with_its_layer():
    class Strange(keras.layers.Layer):
        def call(self, x):
            return ops.logdet(x)

    with pytest.raises(ValueError, match="'strange' .*'Logdet'"):
        trace(lambda x: {"y": Strange()(x)}, {"x": (("batch", 3, 3), "float32")})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x[:, np.array([0, 2]), np.array([1, 3])], "with one array in it"),
        (lambda x: x[np.ones((2, 3), bool)], "along one axis. Received: 2 axes"),
        (lambda x: ops.pad(x, 1), "with a pair for each axis. Received"),
        (lambda x: ops.argmax(x), "argmax is written to ONNX with an axis"),
        (lambda x: ops.take_along_axis(x, ops.argmax(x, -1, keepdims=True), None), "take_along_axis is written"),
        (lambda x: ops.split(x, 2, axis=0)[0], "split .*axis of known size"),
        (lambda x: ops.softmax(x, (1, 2)), "softmax .*along one axis"),
        (lambda x: ops.layer_normalization(x, axis=1), "along the last axes"),
        (lambda x: ops.normalize(x, order=1), "normalize .*order=2"),
        (lambda x: ops.cumsum(x), "cumsum .*with an axis"),
        (lambda x: ops.einsum("b...,b...->b...", x, x), "einsum is written to ONNX as"),
        (lambda x: ops.dot_product_attention(*[x[:, None]] * 3, is_causal=True), "without a mask"),
        (lambda x: ops.max_pool(x, 2), "MaxPool is written to ONNX for images"),
        (lambda x: ops.conv(x, np.ones((2, 4, 5), "float32")), "conv is written to ONNX for images"),
        (lambda x: keras.layers.Resizing(2, 2, "nearest")(x[..., None]), "interpolation='bilinear'"),
        (lambda x: ops.round(x, 1), "decimals=0. Received: decimals=1"),
        (lambda x: keras.layers.ReLU(threshold=1.0)(x), "threshold=0. Received"),
        (lambda x: ops.pad(x, ((0, 0), (1, 1), (0, 0)), "reflect"), "mode='constant'. Received: 'reflect'"),
    ],
)
def test_what_is_not_written_is_named(function, message):
    with pytest.raises(ValueError, match=message):
        trace(lambda x: {"y": function(x)}, {"x": (("batch", 3, 4), "float32")})


def test_a_batch_is_not_normalized_by_its_own_moments():
    def moments(x):
        return {"y": ops.batch_normalization(x, *ops.moments(x, (0, 1)), axis=-1)}

    with pytest.raises(ValueError, match="mean and a variance"):
        trace(moments, {"x": (("batch", 3, 4), "float32")})


def test_an_array_is_that_of_a_constant():
    graph = Graph()
    np.testing.assert_array_equal(graph.constant([1, 2]).array(), [1, 2])
    with pytest.raises(ValueError, match=r"float32 \('batch', 4\)"):
        graph.input("x", ("batch", 4), "float32").array()


def test_weights_alone_are_constants():
    layer = keras.layers.Dense(2)
    layer.build((None, 4))
    graph = trace(lambda x: {"y": ops.matmul(x, layer.kernel * 2 + 1)}, {"x": (("batch", 4), "float32")})
    assert [node.operator for node in graph.order()] == ["MatMul"]

"""Write a tiny ONNX file with the inputs, outputs and properties of an exported model. Its logits are mean colors."""

import json

import numpy as np

LABELS = ("red", "green", "blue", "gray")
WEIGHTS = np.array([[0.1, 0, 0, 0.02], [0, 0.1, 0, 0.02], [0, 0, 0.1, 0.02]], "float32")
PREPROCESSING = {"image_size": [16, 16], "interpolation": "bilinear_antialias", "crop": 0.5, "crop_mode": "center"}
TOKENS = {"stride": [8, 8]}
PATCHES = {"stride": [8, 8], "prefix": 1, "readout": [1.0, 0.0], "crop": 0.5, "crop_mode": "center", "resized": None}


def save(path, *, preprocessing=PREPROCESSING, work=0):
    """Write it.

    Args:
        path: Where to.
        preprocessing: A property of the file.
        work: Number of matrix products that only take time.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {"axes": np.array([1, 2]), "weights": WEIGHTS, "matrix": np.full((600, 600), 1 / 600, "float32")}
    constants |= {"zero": np.float32(0), "one_axis": np.array([1]), "shape": np.array([-1, 1, 1, 1])}
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "axes"], ["means"], keepdims=0),
        helper.make_node("ReduceMean", ["means"], ["level"]),
        helper.make_node("Mul", ["matrix", "level"], ["work0"]),
        *(helper.make_node("MatMul", [f"work{n}", "matrix"], [f"work{n + 1}"]) for n in range(work)),
        helper.make_node("ReduceMean", [f"work{work}"], ["done"], keepdims=0),
        helper.make_node("Mul", ["done", "zero"], ["nothing"]),
        helper.make_node("Add", ["means", "nothing"], ["features"]),
        helper.make_node("MatMul", ["features", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
        helper.make_node("ReduceMean", ["means", "one_axis"], ["mean"], keepdims=1),
        helper.make_node("Reshape", ["mean", "shape"], ["level4"]),
    ]
    shapes = {"logits": ["n", len(LABELS)], "probabilities": ["n", len(LABELS)], "features": ["n", 3]}
    for n in range(2):  # the attention of 2 heads between 1 + 4 tokens
        constants[f"scores{n}"] = np.arange(50, dtype="float32").reshape(1, 2, 5, 5) % 7 / 255 * (n + 1)
        nodes += [
            helper.make_node("Mul", [f"scores{n}", "level4"], [f"raw{n}"]),
            helper.make_node("Softmax", [f"raw{n}"], [f"attention_{n}"], axis=-1),
        ]
        shapes[f"attention_{n}"] = ["n", 2, 5, 5]
    pixels = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", "h", "w", 3])
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", [pixels], outputs, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    patches = {"size": (preprocessing or {}).get("image_size"), **PATCHES}
    properties = {"labels": LABELS, "preprocessing": preprocessing, "patches": patches, "tokens": TOKENS}
    texts = {name: json.dumps(value) for name, value in properties.items()}
    helper.set_model_props(model, {"name": "tiny model", **texts})
    onnx.save(model, str(path))
    return path


def probabilities(pixels):
    """Return the model's probabilities for images `(n, height, width, 3)`."""
    logits = pixels.reshape(len(pixels), -1, 3).astype("float64").mean(1) @ WEIGHTS.astype("float64")
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)

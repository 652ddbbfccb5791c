"""Write a tiny ONNX file with the inputs, outputs and properties of an exported model: it tells the mean colors."""

import json

import numpy as np

LABELS = ("red", "green", "blue", "gray")
WEIGHTS = np.array([[0.1, 0, 0, 0.02], [0, 0.1, 0, 0.02], [0, 0, 0.1, 0.02]], "float32")
PREPROCESSING = {"image_size": [16, 16], "interpolation": "bilinear_antialias", "crop": 0.5, "crop_mode": "center"}


def save(path, *, kind="logits", attention=2, labels=LABELS, preprocessing=PREPROCESSING, work=0, input_type="UINT8"):
    """Write it.

    Args:
        path: Where to.
        kind: "logits", "probabilities" or "features": what there is besides attention. Or "texts", which no server
            sends.
        attention: Number of outputs with the attention of 2 heads between 1 + 4 tokens.
        labels, preprocessing: Properties of the file.
        work: Products of matrices that take time.
        input_type: Type of the pixels.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    pixels = helper.make_tensor_value_info("images", getattr(TensorProto, input_type), ["n", "h", "w", 3])
    constants = {"axes": np.array([1, 2]), "weights": WEIGHTS, "dull": np.float32(0)}
    nodes = [
        helper.make_node("Cast", ["images"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "axes"], ["means"], keepdims=0),
    ]
    last = "means"
    if work:
        constants["matrix"] = np.full((600, 600), 1 / 600, "float32")
        nodes += [
            helper.make_node("ReduceMean", ["means"], ["level"]),
            helper.make_node("Mul", ["matrix", "level"], ["work0"]),
            *(helper.make_node("MatMul", [f"work{n}", "matrix"], [f"work{n + 1}"]) for n in range(work)),
            helper.make_node("ReduceMean", [f"work{work}"], ["done"], keepdims=0),
            helper.make_node("Mul", ["done", "dull"], ["nothing"]),
            helper.make_node("Add", ["means", "nothing"], ["worked"]),
        ]
        last = "worked"
    nodes += [
        helper.make_node("Identity", [last], ["features"]),
        helper.make_node("MatMul", [last, "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=-1),
    ]
    shapes = {
        "logits": ["n", len(LABELS)],
        "probabilities": ["n", len(LABELS)],
        "features": ["n", 3],
        "texts": ["n", 3],
    }
    if kind == "texts":
        nodes.append(helper.make_node("Cast", ["features"], ["texts"], to=TensorProto.STRING))
    if attention:
        constants["shape"] = np.array([-1, 1, 1, 1])
        nodes += [
            helper.make_node("ReduceMean", ["means", "one_axis"], ["mean"], keepdims=1),
            helper.make_node("Reshape", ["mean", "shape"], ["level4"]),
        ]
        constants["one_axis"] = np.array([1])
    for n in range(attention):
        scores = np.arange(50, dtype="float32").reshape(1, 2, 5, 5) % 7 / 255 * (n + 1)
        constants[f"scores{n}"] = scores
        nodes += [
            helper.make_node("Mul", [f"scores{n}", "level4"], [f"raw{n}"]),
            helper.make_node("Softmax", [f"raw{n}"], [f"attention_{n}"], axis=-1),
        ]
        shapes[f"attention_{n}"] = ["n", 2, 5, 5]
    kinds = {"logits": ("logits", "probabilities", "features"), "probabilities": ("probabilities", "features")}
    kept = [*kinds.get(kind, (kind,)), *(f"attention_{n}" for n in range(attention))]
    types = {"texts": TensorProto.STRING}
    outputs = [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shapes[name]) for name in kept]
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "tiny", [pixels], outputs, arrays)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    properties = {"name": "tiny model", "labels": labels, "preprocessing": preprocessing}
    kept = {name: json.dumps(value) for name, value in properties.items() if value is not None}
    helper.set_model_props(model, kept)
    onnx.save(model, str(path))
    return path


def probabilities(pixels):
    """Return what the model says of images `(n, height, width, 3)`."""
    logits = pixels.reshape(len(pixels), -1, 3).astype("float64").mean(1) @ WEIGHTS.astype("float64")
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)

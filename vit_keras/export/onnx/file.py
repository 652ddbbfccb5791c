"""Writing of a graph as an ONNX file. Weights are written one after the other, without a second copy of all of them.

Protobuf allows the fields of a message in any order and piece by piece: the file is the model without its weights,
followed by one field for each. What does not fit into one file of 2 GiB, the most that protobuf reads, goes into a
second file next to it, `<name>.data`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .graph import OMITTED, Graph, Value
from .narrow import order

__all__ = ["IR_VERSION", "OPSET", "save"]

OPSET = 20
"""The first version of ONNX' operators that has `Gelu`; onnxruntime reads it since 1.17, OpenVINO since 2024."""

IR_VERSION = 9
"""The version of the file format that belongs to it."""

LARGEST = 2**31 - 1
SMALL = 1024
PAGE = 4096


def save(graph: Graph, path: Path, *, name: str, metadata: Mapping[str, str], largest: int = LARGEST) -> list[Path]:
    """Write a graph as an ONNX file; the same graph gives the same bytes.

    Returns the paths of what was written: the file, and one of weights where `largest` bytes are too few.
    """
    import onnx

    nodes, constants = _named(graph)
    model = onnx.helper.make_model(
        onnx.helper.make_graph([], name, [_info(x, n) for n, x in graph.inputs.items()], []),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="vit_keras",
    )
    model.graph.output.extend(_info(x, n) for n, x in graph.outputs.items())
    model.graph.node.extend(onnx.helper.make_node(*node, name=label, **more) for label, node, more in nodes)
    onnx.helper.set_model_props(model, dict(metadata))
    total = model.ByteSize() + sum(_bytes(x) + len(n) + 64 for n, x in constants.items())
    if total <= largest:
        with path.open("wb") as file:
            _stream(model, constants, file, file)
        return [path]
    outside = path.with_name(f"{path.name}.data")
    with path.open("wb") as file, outside.open("wb") as data:
        _stream(model, constants, file, data)
    return [path, outside]


def _named(graph: Graph) -> tuple[list[Any], dict[str, Value]]:
    """Return `(name, (operator, inputs, outputs), attributes)` of every node, and the constants by name."""
    names: dict[Value, str] = {OMITTED: "", **{x: name for name, x in graph.inputs.items()}}
    constants: dict[str, Value] = {}
    nodes = []
    for name, x in graph.outputs.items():
        if x.node is None or x in names:  # an input, a constant, or an output under another name
            nodes.append((f"output/{name}", ("Identity", [x], [name]), {}))
        else:
            names[x] = name
    last = nodes
    nodes = []
    for number, node in enumerate(order(graph)):
        label = "/".join(part for part in (node.scope, f"{node.operator}_{number}") if part)
        for n, x in enumerate(node.outputs):
            names.setdefault(x, f"{label}:{n}" if n else label)
        attributes = {k: _onnx_type(v) if k == "to" else v for k, v in node.attributes.items()}
        nodes.append((label, (node.operator, list(node.inputs), list(node.outputs)), attributes))

    taken = set(names.values())

    def text(x: Value | str) -> str:
        if isinstance(x, str):
            return x
        if x not in names:
            tries = itertools.count(1)
            base = x.name or "constant"
            own = base if x.name else f"{base}_{next(tries)}"
            while own in taken:
                own = f"{base}_{next(tries)}"
            taken.add(own)
            names[x] = own
            constants[own] = x
        return names[x]

    written = [
        (label, (operator, [text(x) for x in inputs], [text(x) for x in outputs]), attributes)
        for label, (operator, inputs, outputs), attributes in nodes + last
    ]
    return written, constants


def _onnx_type(dtype: str) -> int:
    import onnx

    return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _info(x: Value, name: str) -> Any:
    import onnx

    return onnx.helper.make_tensor_value_info(name, _onnx_type(x.dtype), list(x.shape))


def _bytes(x: Value) -> int:
    return int(np.prod(x.sizes, dtype=np.int64)) * np.dtype(x.dtype).itemsize


def _array(x: Value) -> np.ndarray:
    return np.ascontiguousarray(x.array(), dtype=np.dtype(x.dtype).newbyteorder("<"))


def _stream(model: Any, constants: Mapping[str, Value], file: BinaryIO, data: BinaryIO) -> None:
    """Write a model, followed by the constants that it lacks, the large ones into `data` if that is another file."""
    import onnx

    heads, inside = {}, {}
    place = 0
    for name, x in constants.items():
        tensor = onnx.TensorProto(name=name, dims=x.sizes, data_type=_onnx_type(x.dtype))
        inside[name] = data is file or _bytes(x) <= SMALL
        if not inside[name]:
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", Path(data.name).name), ("offset", place), ("length", _bytes(x))):
                tensor.external_data.add(key=key, value=str(value))
            place += -(-_bytes(x) // PAGE) * PAGE
        head = tensor.SerializeToString(deterministic=True)
        head += _field(9, _bytes(x)) if inside[name] else b""
        heads[name] = _field(5, len(head) + _bytes(x) * inside[name]) + head
    graph = model.graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    total = len(graph) + sum(len(heads[n]) + _bytes(x) * inside[n] for n, x in constants.items())
    file.write(model.SerializeToString(deterministic=True) + _field(7, total) + graph)
    for name, x in constants.items():
        file.write(heads[name])
        if inside[name]:
            file.write(_array(x).data if x.shape else _array(x).tobytes())
        else:
            data.write(_array(x).data)
            data.write(bytes(-_bytes(x) % PAGE))


def _field(number: int, length: int) -> bytes:
    """Return the head of a protobuf field of bytes: its number and its length."""
    out = bytearray([number << 3 | 2])
    while length > 127:
        out.append(length & 127 | 128)
        length >>= 7
    return bytes(out + bytes([length]))

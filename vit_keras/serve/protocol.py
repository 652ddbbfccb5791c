"""The Open Inference Protocol, version 2: tensors in requests and answers, in JSON or as bytes after it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.responses import Response

from .._internal.plain_json import as_json
from .engine import Engine

__all__ = ["VERSION", "Inference", "json_response", "read_request", "write_response"]

VERSION = "1"
"""The one version of the one model."""
_LENGTH = "inference-header-content-length"
_MAX_OBJECTS = 1000  # in JSON: an empty one takes 64 bytes of memory, and one with a name 240
_AT_ONCE = 1 << 16  # numbers that are written at one time: as objects of Python they take ten times their memory


@dataclasses.dataclass(frozen=True)
class Inference:
    """A parsed request.

    Attributes:
        images: uint8 `(batch, height, width, 3)`.
        outputs: The wanted outputs, and whether each is to be sent as bytes.
        id: What the client calls the request, or `None`.
    """

    images: np.ndarray
    outputs: Mapping[str, bool]
    id: str | None


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in JSON, with null for numbers that are not finite, which a model can return.

    Example:
        >>> json_response({"ready": True, "score": float("nan")}).body
        b'{"ready":true,"score":null}'
    """
    return Response(_json(value), status, headers, "application/json")


def read_request(body: bytes, headers: Mapping[str, str], engine: Engine) -> Inference:
    """Read the body of a request.

    Args:
        body: JSON, and after it the bytes of the tensor if a header tells where they begin.
        headers: Headers of the request, by names in lower case.
        engine: The model.

    Returns:
        What it asks for.

    Raises:
        HTTPException: The request is not one of the protocol, or does not fit the model (status 400).
    """
    end = _header_end(body, headers)
    try:
        if body.count(b"{", 0, end) > _MAX_OBJECTS:
            raise ValueError(f"it has more than {_MAX_OBJECTS} objects")
        request = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"The first {end:,} bytes of the body are not JSON: {error}.") from None
    request = _object(request, "The body")
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise HTTPException(400, f"inputs is a list with one tensor, images. Received: {_shown(inputs)}")
    images = _tensor(_object(inputs[0], "inputs[0]"), body[end:])
    default = _flag(_parameters(request), "binary_data_output", False)
    wanted = request.get("outputs", [])
    if not isinstance(wanted, list):
        raise HTTPException(400, f"outputs is a list of tensors. Received: {_shown(wanted)}")
    outputs = {}
    for each in wanted or [{"name": name} for name in engine.outputs]:
        each = _object(each, "An output")
        name = each.get("name")
        if not isinstance(name, str) or name not in engine.outputs:
            raise HTTPException(400, f"There is no output {_shown(name)}. There are: {', '.join(engine.outputs)}.")
        if "classification" in _parameters(each):
            raise HTTPException(
                400, "The extension classification is not there. Ask for probabilities, or use /predict."
            )
        outputs[name] = _flag(_parameters(each), "binary_data", default)
    if not isinstance(request.get("id", ""), str):
        raise HTTPException(400, f"id is a text. Received: {_shown(request['id'])}")
    return Inference(images, outputs, request.get("id"))


def write_response(inference: Inference, found: Mapping[str, np.ndarray], engine: Engine) -> Response:
    """Write an answer.

    Args:
        inference: What was asked for.
        found: The outputs.
        engine: The model.

    Returns:
        JSON, with bytes after it if any output was wanted as such.
    """
    about = {"model_name": engine.name, "model_version": VERSION}
    about |= {} if inference.id is None else {"id": inference.id}
    text, binary = [f'{_json(about)[:-1]},"outputs":['.encode()], []
    for n, (name, as_bytes) in enumerate(inference.outputs.items()):
        value = found[name]
        tensor: dict[str, Any] = {"name": name, "datatype": engine.outputs[name][0], "shape": list(value.shape)}
        if as_bytes:
            binary.append(np.ascontiguousarray(value, value.dtype.newbyteorder("<")))
            tensor["parameters"] = {"binary_data_size": value.nbytes}
        text.append(("," if n else "").encode() + _json(tensor)[:-1].encode())
        text += [b"}"] if as_bytes else [b',"data":[', *_numbers(value), b"]}"]
    text.append(b"]}")
    if not binary:
        return Response(b"".join(text), 200, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(sum(map(len, text)))}
    return Response(b"".join([*text, *binary]), 200, headers, "application/octet-stream")


def _numbers(value: np.ndarray) -> Iterator[bytes]:
    """Write numbers in JSON, in chunks."""
    flat = value.ravel()
    for start in range(0, flat.size, _AT_ONCE):
        yield ("," if start else "").encode() + _json(flat[start : start + _AT_ONCE].tolist())[1:-1].encode()


def _json(value: Any) -> str:
    return as_json(value, separators=(",", ":"))


def _header_end(body: bytes, headers: Mapping[str, str]) -> int:
    text = headers.get(_LENGTH)
    if text is None:
        return len(body)
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= len(body)):
        message = f"The header {_LENGTH} is a number of bytes, at most those of the body, {len(body):,}."
        raise HTTPException(400, f"{message} Received: {text[:40]!r}")
    return int(text)


def _tensor(tensor: Mapping[str, Any], binary: bytes) -> np.ndarray:
    """Return the images of a request."""
    name, datatype, shape = (tensor.get(field) for field in ("name", "datatype", "shape"))
    if name != "images" or datatype != "UINT8":
        message = "The input is images, of the datatype UINT8."
        raise HTTPException(400, f"{message} Received: name {_shown(name)}, datatype {_shown(datatype)}")
    is_list = isinstance(shape, list) and all(type(size) is int and 0 < size < 1 << 31 for size in shape)
    if shape is None or not is_list or len(shape) != 4 or shape[3] != 3:
        raise HTTPException(400, f"The shape of images is [batch, height, width, 3]. Received: {_shown(shape)}")
    count = math.prod(shape)
    size = _parameters(tensor).get("binary_data_size")
    if size is not None:
        if type(size) is not int or "data" in tensor or size != len(binary) or size != count:
            message = f"The shape {shape} takes {count:,} bytes. Received: binary_data_size {_shown(size)}"
            data = " and data" if "data" in tensor else ""
            raise HTTPException(400, f"{message}{data}, {len(binary):,} bytes after the JSON.")
        return np.frombuffer(binary, "uint8").reshape(shape)
    if binary:
        raise HTTPException(400, f"{len(binary):,} bytes follow the JSON, but images has no binary_data_size.")
    return _from_lists(tensor.get("data"), shape)


def _from_lists(data: Any, shape: list[int]) -> np.ndarray:
    """Return an array of numbers in one list, or in lists of lists. No array is made before all are known to be such.

    Raises:
        HTTPException: They are not whole numbers from 0 to 255, or not as many as the shape says.
    """
    count, values, found = math.prod(shape), data, []
    while isinstance(values, list) and len(found) <= len(shape):
        found.append(len(values) // math.prod(found))
        if not any(isinstance(each, list) for each in values):
            break
        lengths = {len(each) if isinstance(each, list) else -1 for each in values}
        if len(lengths) > 1:
            raise HTTPException(400, f"data is not a tensor: its lists differ in length. Received: {_shown(data)}")
        values = list(itertools.chain.from_iterable(values))
    is_whole = isinstance(values, list) and values and set(map(type, values)) == {int}
    if not is_whole or min(values) < 0 or max(values) > 255:
        raise HTTPException(400, f"data is a list of whole numbers from 0 to 255. Received: {_shown(data)}")
    if found not in ([count], shape):
        raise HTTPException(400, f"The shape {shape} takes {count:,} numbers. Received: the shape {found}")
    return np.frombuffer(bytes(values), "uint8").reshape(shape)


def _parameters(owner: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(owner.get("parameters", {}), "parameters")


def _flag(parameters: Mapping[str, Any], name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise HTTPException(400, f"{name} is true or false. Received: {_shown(value)}")
    return value


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise HTTPException(400, f"{what} is a JSON object. Received: {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, (list, dict)) else f"{type(value).__name__} of {len(value)}"
    if isinstance(value, list) and len(value) <= 8 and all(isinstance(each, (int, float, str)) for each in value):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"

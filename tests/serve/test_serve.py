"""The server: its numbers, its errors, its limits, and that it ends in order."""

import contextlib
import functools
import gc
import json
import math
import re
import signal
import socket
import struct
import sys
import threading
import time
import tracemalloc
import urllib.parse
import warnings
import weakref
import zlib
from typing import ClassVar

import make_tiny_onnx
import numpy as np
import pytest
from ask_server import ask, encoded, metric, random_picture, raw
from PIL import Image

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from starlette.exceptions import HTTPException
from starlette.responses import Response

from vit_keras import serve
from vit_keras.cli import main
from vit_keras.preprocess import Preprocessing, images
from vit_keras.preprocess.images import resize_image
from vit_keras.serve import app, engine, http, jobs, pictures, protocol
from vit_keras.serve.limits import Limits
from vit_keras.serve.multipart import first_part
from vit_keras.visualize import attention_rollout


@pytest.fixture(scope="module")
def address(tiny):
    with serve.running(tiny, body=200_000, pixels=100_000) as address:
        yield address


@pytest.fixture(scope="module")
def strict(tiny):
    """A server without patience."""
    with serve.running(tiny, body=20_000_000, pixels=5_000_000, timeout=0.5) as address:
        yield address


# --- pictures -----------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_picture(address):
    pixels = random_picture()
    status, _, answer = ask(address, "/predict?top=3", encoded(pixels))
    # what vit_keras.Preprocessing makes of it: resized to twice the size, of which the model cuts out the center
    expected = make_tiny_onnx.probabilities(resize_image(pixels, (32, 42), "bilinear_antialias")[None])[0]
    best = np.argsort(-expected)[:3]
    assert (status, answer["model"], answer["size"]) == (200, "tiny_model", [48, 64])
    assert [each["class"] for each in answer["predictions"]] == best.tolist()
    assert [each["label"] for each in answer["predictions"]] == [make_tiny_onnx.LABELS[n] for n in best]
    np.testing.assert_allclose([each["probability"] for each in answer["predictions"]], expected[best], atol=2e-6)
    assert "attention" not in answer


def test_a_resized_picture_is_one_that_preprocessing_leaves_as_it_is():
    for crop, mode in ((None, "center"), (0.875, "center"), (0.9, "squash")):
        for filter in ("bilinear", "bicubic_antialias"):
            preprocessing = Preprocessing(image_size=(32, 24), crop=crop, crop_mode=mode, interpolation=filter)
            for size in ((100, 70), (31, 200), (48, 24)):
                picture = random_picture(*size)
                found = preprocessing(pictures.resized(picture, preprocessing))
                np.testing.assert_array_equal(found, preprocessing(picture))


def test_forms_and_turned_pictures(address):
    pixels = random_picture()
    plain = ask(address, "/predict", encoded(pixels))[2]
    form = b'--b\r\nContent-Disposition: form-data; name="note"\r\n\r\nhello\r\n--b\r\nContent-Disposition: form-data; '
    form += b'name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n' + encoded(pixels) + b"\r\n--b--\r\n"
    assert ask(address, "/predict", form, {"Content-Type": 'multipart/form-data; boundary="b"'})[2] == plain
    turned = Image.Exif()
    turned[0x0112] = 6  # the camera was held upright
    sideways = encoded(np.rot90(pixels).copy(), "PNG", exif=turned)
    assert ask(address, "/predict", sideways)[2] == plain


def test_the_maps_of_attention(address):
    pixels = random_picture(64, 32)
    found = ask(address, "/predict?attention=1", encoded(pixels))[2]["attention"]
    images = pictures.resized(pixels, Preprocessing.from_dict(make_tiny_onnx.PREPROCESSING))
    level = images.astype("float64").mean()
    scores = [np.arange(50).reshape(2, 5, 5) % 7 / 255 * (n + 1) * level for n in range(2)]
    scores = np.stack([np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in scores])
    assert found["grid"] == [2, 2]
    np.testing.assert_allclose(found["box"], [48 / 2 / 64, 8 / 32, 16 / 64, 16 / 32])  # the center of 64 × 32
    np.testing.assert_allclose(found["layers"], scores[:, :, 0, 1:], rtol=6e-3)
    rollout = attention_rollout(scores.mean(1)[:, None], (2, 2))[0]
    np.testing.assert_allclose(found["rollout"], rollout.ravel(), rtol=6e-3)


@pytest.mark.parametrize(
    "tokens, size, grid",
    [
        (197, (224, 224), (14, 14)),
        (201, (224, 224), (14, 14)),
        (196, (224, 224), (14, 14)),
        (1 + 12, (96, 128), (3, 4)),
    ],
)
def test_the_grid_of_tokens(tokens, size, grid):
    scores = [np.full((1, 1, tokens, tokens), 1 / tokens)]
    assert pictures.attention_maps(scores, (50, 60), Preprocessing(image_size=size))["grid"] == list(grid)


def test_no_grid_no_map():
    assert pictures.attention_maps([np.ones((1, 1, 3, 3))], (1000, 10), None) is None


@pytest.mark.parametrize(
    "tokens, picture, patches, grid, box",
    [
        (2 + 16, (32, 64), {"size": [32, 64], "stride": [16, 8], "prefix": 2}, [2, 8], [1, 1]),
        (5 + 4, (50, 60), {"size": [32, 32], "stride": [16, 16], "prefix": 5}, [2, 2], [1, 1]),
        (
            1 + 60,
            (33, 320),
            {"size": None, "stride": [16, 16], "prefix": 1},
            [3, 20],
            [1, 1],
        ),  # of a hybrid, which pads
        (1 + 40, (33, 300), {"size": None, "stride": [16, 16], "prefix": 1}, None, None),
        (10, (160, 31), {"size": None, "stride": [16, 16], "prefix": 0}, [10, 1], [1, 16 / 31]),  # the rest is cut off
        (1 + 4, (90, 90), {"size": [40, 32], "stride": [16, 16], "prefix": 1}, [2, 2], [32 / 40, 1]),
        (4, (32, 32), {"size": None, "stride": [16, 16], "prefix": 5}, None, None),
    ],
)
def test_the_grid_that_a_file_tells(tokens, picture, patches, grid, box):
    scores = [np.full((1, 1, tokens, tokens), 1 / tokens)]
    found = pictures.attention_maps(scores, picture, None, {**patches, "readout": [[0, 1]]})
    assert (found and found["grid"]) == grid and (found and found["box"]) == (box and [0, 0, *box])


def test_a_model_without_classes_returns_features(tmp_path):
    path = make_tiny_onnx.save(tmp_path / "f.onnx", kind="features", attention=0, labels=None, preprocessing=None)
    pixels = random_picture()
    with serve.running(path, name="a/b") as address:
        answer = ask(address, "/predict?attention=1", encoded(pixels))[2]
    np.testing.assert_allclose(answer["features"], pixels.mean((0, 1)), rtol=1e-5)
    assert (answer["model"], answer["attention"], "predictions" in answer) == ("a_b", None, False)


def bomb(width, height):
    """A PNG that says to be of a size, and is not."""
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT": zlib.compress(bytes(20))}
    parts = [struct.pack(">I", len(data)) + name + data for name, data in chunks.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(part + struct.pack(">I", zlib.crc32(part[4:])) for part in parts)


@pytest.mark.parametrize(
    "body, status, message",
    [
        (b"", 400, "empty"),
        (b"/etc/passwd", 415, "not an image. Send one in JPEG"),
        (b"http://127.0.0.1/a.png", 415, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", 415, "not an image"),
        (encoded(random_picture())[:3000], 422, "PNG, 64×48) cannot be decoded"),
        (bomb(400, 300), 413, "400×300 pixels, and at most 100,000"),
        (bomb(60_000, 60_000), 413, "Send a smaller image"),
        (bytes(200_001), 413, "200,001 bytes, and at most 200,000"),
    ],
    ids=["empty", "path", "address", "EPS", "damaged", "large", "bomb", "long"],
)
def test_pictures_that_are_none(address, body, status, message):
    found, _, answer = ask(address, "/predict", body)
    assert found == status and message in answer["error"]


def test_pixels_that_no_server_takes_are_named_right(monkeypatch):
    """With a limit above Pillow's, the limit was named for a bomb, and an image to enlarge was an error of ours."""
    with pytest.raises(HTTPException, match="more pixels than are taken, 178,956,970") as error:
        pictures.read_picture(bomb(60_000, 60_000), 10**10)
    assert error.value.status_code == 413
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1000)  # of a whole image: `read` would say that it is damaged
    with pytest.raises(HTTPException, match="64×48 pixels, and at most 1,000 are"):
        pictures.read_picture(encoded(random_picture()), 10**10)
    narrow = np.zeros((1, 2000, 3), "uint8")
    preprocessing = Preprocessing(image_size=224, crop=0.875)
    with pytest.raises(HTTPException, match=r"2000×1 pixels would be enlarged to .*at most 67,108,864 pixels") as error:
        pictures.resized(narrow, preprocessing, 10**10)
    assert error.value.status_code == 413
    wide = np.zeros((64, 16, 3), "uint8")
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)  # of a step on the way
    with pytest.raises(HTTPException, match="at most 1,000 pixels") as error:
        pictures.resized(wide, Preprocessing(image_size=32))
    assert error.value.status_code == 413


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="threads have filters of their own")
@pytest.mark.parametrize(
    "read", [lambda data: pictures.read_picture(data, 10**6), lambda data: images.read(data, None)]
)
def test_threads_leave_the_filters_of_warnings_alone(monkeypatch, read):
    """What another thread did while an image was opened was forgotten, or everything stayed ignored."""
    opened, go, original = threading.Event(), threading.Event(), Image.open

    def slow(*args, **kwargs):
        opened.set()
        go.wait(10)
        return original(*args, **kwargs)

    monkeypatch.setattr(Image, "open", slow)
    with warnings.catch_warnings():
        thread = threading.Thread(target=read, args=(encoded(random_picture()),))
        thread.start()
        opened.wait(10)
        warnings.simplefilter("error", FutureWarning)
        go.set()
        thread.join()
        assert ("error", None, FutureWarning, None, 0) in warnings.filters
        assert ("ignore", None, Warning, None, 0) not in warnings.filters


@pytest.mark.parametrize("form", [b"", b"--b\r\n\r\n", b"--b\r\nA: b\r\n--b--", b"--b--", b"--b\r\n\r\nx\r\n--c--"])
def test_forms_that_are_none(form):
    with pytest.raises(ValueError):
        first_part(form, "multipart/form-data; boundary=b")
    with pytest.raises(ValueError, match="boundary"):
        first_part(form, "multipart/form-data")


def test_forms_of_many_or_large_parts(monkeypatch):
    part = b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    form = part % (b"a", b"", b"1") + part % (b"b", b'; filename="c"', bytes(3 << 20)) + b"--b--\r\n"
    monkeypatch.setattr("tempfile.NamedTemporaryFile", None)  # no file of a client is written
    assert first_part(form, "multipart/form-data; boundary=b") == bytes(3 << 20)
    assert first_part(part % (b"a", b"", b"1") + b"--b--", "multipart/form-data; boundary=b") == b"1"
    file = part % (b"file", b'; filename="a.png"', b"PNG")
    assert (
        first_part(part % (b"b", b'; filename=""', b"") + file + b"--b--", "multipart/form-data; boundary=b") == b"PNG"
    )
    with pytest.raises(ValueError, match="it has 2 files, and a request takes one"):
        first_part(file + file + b"--b--", "multipart/form-data; boundary=b")
    with pytest.raises(ValueError, match="more than 100 parts"):
        first_part(part % (b"a", b"", b"1") * 101 + b"--b--", "multipart/form-data; boundary=b")


# --- the protocol -------------------------------------------------------------------------------------------------

IMAGES = {"name": "images", "datatype": "UINT8", "shape": [2, 3, 4, 3]}
INFER = "/v2/models/tiny_model/infer"


def test_metadata_and_health(address):
    assert ask(address, "/v2")[2]["extensions"] == ["binary_tensor_data"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/tiny_model/ready"):
        assert ask(address, path)[0] == 200
    for path in ("/v2/models/tiny_model", "/v2/models/tiny_model/versions/1"):
        about = ask(address, path)[2]
        assert about["inputs"] == [{"name": "images", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}]
        outputs = {each["name"]: (each["datatype"], each["shape"]) for each in about["outputs"]}
        assert outputs["probabilities"] == ("FP32", [-1, 4]) and outputs["attention_1"] == ("FP32", [-1, 2, 5, 5])


def test_inference_in_json_and_bytes(address):
    images = random_picture(6, 4).reshape(2, 3, 4, 3)
    expected = make_tiny_onnx.probabilities(images)
    nested, flat = ({"inputs": [IMAGES | {"data": data}]} for data in (images.tolist(), images.ravel().tolist()))
    answer = ask(address, INFER, json.dumps(flat | {"id": "seven"}))[2]
    assert answer == ask(address, f"{INFER[:-6]}/versions/1/infer", json.dumps(nested))[2] | {"id": "seven"}
    names = ["logits", "probabilities", "features", "attention_0", "attention_1"]
    assert [each["name"] for each in answer["outputs"]] == names
    np.testing.assert_allclose(answer["outputs"][1]["data"], expected.ravel(), rtol=1e-4)
    logits = answer["outputs"][0]["data"]

    tensor = IMAGES | {"parameters": {"binary_data_size": images.size}}
    wanted = [{"name": "features"}, {"name": "probabilities", "parameters": {"binary_data": True}}]
    head = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
    status, headers, body = ask(
        address, INFER, head + images.tobytes(), {"Inference-Header-Content-Length": str(len(head))}
    )
    end = int(headers["Inference-Header-Content-Length"])
    answer = json.loads(body[:end])
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert [each["name"] for each in answer["outputs"]] == ["features", "probabilities"]
    np.testing.assert_allclose(answer["outputs"][0]["data"], images.mean((1, 2)).ravel(), rtol=1e-5)
    assert answer["outputs"][1]["parameters"] == {"binary_data_size": len(body) - end}
    np.testing.assert_allclose(np.frombuffer(body[end:], "<f4").reshape(2, 4), expected, rtol=1e-4)
    all_binary = {"inputs": [tensor], "outputs": [{"name": "logits"}], "parameters": {"binary_data_output": True}}
    head = json.dumps(all_binary).encode()
    _, headers, body = ask(address, INFER, head + images.tobytes(), {"Inference-Header-Content-Length": str(len(head))})
    found = np.frombuffer(body[int(headers["Inference-Header-Content-Length"]) :], "<f4")
    np.testing.assert_allclose(found, logits, rtol=1e-6)  # JSON has all digits of a float32


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_numbers_that_json_does_not_have_are_null(address, monkeypatch, number):
    """The page's own `response.json()` could not read NaN."""

    def run(self, images, outputs, *, keep=True):
        return {name: np.full((len(images), 4), number, "float32") for name in outputs}

    monkeypatch.setattr(engine.Engine, "run", run)
    answer = ask(address, "/predict", encoded(random_picture()))[2]
    assert [each["probability"] for each in answer["predictions"]] == [None] * 4
    answer = ask(address, INFER, request_with(outputs=[{"name": "logits"}]))[2]
    assert answer["outputs"][0]["data"] == [None] * 8


def request_with(**changes):
    """A request with other fields; those named in capitals are of the tensor."""
    tensor = IMAGES | {"data": [0] * 72} | {name.lower(): value for name, value in changes.items() if name.isupper()}
    fields = {"inputs": [{name: value for name, value in tensor.items() if value is not ...}]}
    return json.dumps(fields | {name: value for name, value in changes.items() if not name.isupper()}).encode()


@pytest.mark.parametrize(
    "body, message",
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "The body is a JSON object. Received: list of 0|Received: \\[\\]"),
        (b"{}", "inputs is a list with one tensor, images. Received: None"),
        (request_with(inputs=[1, 2]), "one tensor"),
        (request_with(inputs=[[]]), r"inputs\[0\] is a JSON object"),
        (request_with(NAME="image"), "Received: name 'image', datatype 'UINT8'"),
        (request_with(DATATYPE="FP32"), "datatype 'FP32'"),
        (request_with(SHAPE=[2, 3, 4]), r"\[batch, height, width, 3\]. Received: \[2, 3, 4\]"),
        (request_with(SHAPE=[2, 3, 3, 4]), "shape of images"),
        (request_with(SHAPE=[2, 0, 4, 3]), "shape of images"),
        (request_with(SHAPE=[2, True, 4, 3]), "shape of images"),
        (request_with(SHAPE=[2, 3, 4e0, 3]), "shape of images"),
        (request_with(SHAPE=[1 << 30] * 3 + [3]), "takes 3,713,820,117,856,140,824,697,372,672 numbers"),
        (request_with(DATA=[0] * 71), "takes 72 numbers. Received: the shape [71]".replace("[", "\\[")),
        (request_with(DATA=[[0] * 36] * 2), "takes 72 numbers"),
        (request_with(DATA=[256] * 72), "from 0 to 255"),
        (request_with(DATA=[-1] * 72), "from 0 to 255"),
        (request_with(DATA=[0.5] * 72), "from 0 to 255"),
        (request_with(DATA=[True] * 72), "from 0 to 255"),
        (request_with(DATA=[10**30] * 72), "from 0 to 255"),
        (request_with(DATA=[]), "from 0 to 255"),
        (request_with(DATA="x"), "from 0 to 255"),
        (request_with(DATA=...), "from 0 to 255"),
        (request_with(DATA=[[0], [0, 0]]), "data is not a tensor"),
        (request_with(PARAMETERS=[]), "parameters is a JSON object"),
        (request_with(PARAMETERS={"binary_data_size": 72}), "Received: binary_data_size 72 and data, 0 bytes after"),
        (request_with(DATA=..., PARAMETERS={"binary_data_size": 72}), "binary_data_size 72, 0 bytes after"),
        (request_with(DATA=..., PARAMETERS={"binary_data_size": "72"}), "binary_data_size '72'"),
        (request_with(outputs={}), "outputs is a list"),
        (request_with(outputs=None), "outputs is a list"),
        (request_with(outputs=["logits"]), "An output is a JSON object"),
        (request_with(outputs=[{"name": "x"}]), "no output 'x'. There are: logits, probabilities"),
        (request_with(outputs=[{"name": "logits", "parameters": {"classification": 3}}]), "classification"),
        (request_with(parameters={"binary_data_output": 1}), "binary_data_output is true or false"),
        (request_with(id=5), "id is a text"),
    ],
)
def test_requests_that_are_none_of_the_protocol(address, body, message):
    status, _, answer = ask(address, INFER, body)
    assert status == 400 and re.search(message, answer["error"]), answer


@pytest.mark.parametrize("length", ["x", "-1", "1000000", "٣", "9" * 30])
def test_a_header_that_is_no_length(address, length):
    headers = {"Inference-Header-Content-Length": length.encode()}
    status, _, answer = ask(address, INFER, request_with(), headers)
    assert status == 400 and "is a number of bytes" in answer["error"]


def test_bytes_that_nobody_asked_for(address):
    body = request_with()
    status, _, answer = ask(address, INFER, body + b"xyz", {"Inference-Header-Content-Length": str(len(body))})
    assert status == 400 and "3 bytes follow the JSON" in answer["error"]


def test_images_of_a_request_have_a_limit(address, tiny):
    tensor = {"name": "images", "datatype": "UINT8", "shape": [1, 1, 66_000, 3]}
    head = json.dumps({"inputs": [tensor | {"parameters": {"binary_data_size": 198_000}}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    assert ask(address, INFER, head + bytes(198_000), headers)[0] == 200
    with serve.running(tiny, pixels=65_000) as strict:
        assert ask(strict, INFER, head + bytes(198_000), headers)[0] == 413


# --- addresses ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, method, status, message",
    [
        ("/nothing", "GET", 404, "There are: /, /predict"),
        ("/../../etc/passwd", "GET", 404, "There is nothing"),
        ("//v2", "GET", 404, "There is nothing"),
        ("/v2/models/other", "GET", 404, "The one model is tiny_model"),
        ("/v2/models/tiny_model/versions/2/ready", "GET", 404, "in the version 1"),
        ("/predict", "GET", 405, "takes POST. Received: GET"),
        ("/v2", "DELETE", 405, "takes GET, HEAD"),
        ("/predict?top=0", "POST", 400, "top is a whole number from 1"),
        ("/predict?top=x", "POST", 400, "Received: 'x'"),
        ("/predict?attention=2", "POST", 400, "from 0 to 1"),
        ("/predict?topk=3", "POST", 400, "takes the parameters top and attention. Did you mean 'top'?"),
    ],
)
def test_addresses_that_are_none(address, path, method, status, message):
    found, headers, answer = ask(address, path, method=method, body=b"" if method == "POST" else None)
    assert found == status and message in answer["error"]
    assert ("allow" in headers) == (status == 405)


def test_the_description_names_every_address(address):
    paths = ask(address, "/openapi.json")[2]["paths"]
    documented = [each["name"] for each in paths["/predict"]["post"]["parameters"] if each["in"] == "query"]
    assert sorted(documented) == sorted(app._PARAMETERS)  # others are refused
    routes = {(route.address.replace("{model}", "/v2/models/tiny_model"), route.method.lower()) for route in app.ROUTES}
    assert {(path, method) for path, methods in paths.items() for method in methods} == routes


def test_the_page_stands_alone_and_escapes_the_name(address):
    _, headers, page = ask(address, "/")
    assert headers["content-type"].startswith("text/html") and headers["x-content-type-options"] == "nosniff"
    assert "connect-src 'self'" in page.decode() and "frame-ancestors 'none'" in headers["content-security-policy"]
    assert re.findall(r"(?:src|href)=\"(?!data:)([^\"]*)", page.decode()) == ["v2", "openapi.json"]
    assert b"<title>a &lt; b</title>" in app._page("a < b")


def test_numbers_for_prometheus(address):
    before = metric(address, "vit_keras_images_total")
    ask(address, "/predict", encoded(random_picture()))
    ask(address, "/predict", b"nothing")
    assert metric(address, "vit_keras_images_total") == before + 1
    text = ask(address, "/metrics")[2].decode()
    assert 'vit_keras_requests_total{route="/predict",status="415"} ' in text
    assert re.search(r'vit_keras_request_seconds_bucket{le="\+Inf",route="/predict"} [1-9]', text)
    assert "\nvit_keras_pending 0.0\n" in text and "\nvit_keras_connections 1.0\n" in text


# --- connections --------------------------------------------------------------------------------------------------


def test_one_connection_for_many_requests(address):
    one = b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n"
    last = b"HEAD /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    received = raw(address, one + one + last)  # all at once
    assert received.count(b"HTTP/1.1 200 OK") == 3 and received.count(b'{"live":true}') == 2
    assert received.endswith(b"\r\n\r\n")  # a head without a body
    assert raw(address, b"GET /v2/health/live HTTP/1.0\r\n\r\n").endswith(b'{"live":true}')


@pytest.mark.parametrize(
    "data", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n"]
)
def test_what_is_not_http(address, data):
    received = raw(address, data)
    assert received.startswith(b"HTTP/1.1 400 ") and b'{"error":' in received


def test_what_is_http_but_seldom(address, capfd):
    received = raw(address, b"HEAD //[ HTTP/1.0\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 404 ") and received.endswith(b"\r\n\r\n")
    upgrade = b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    last = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    received = raw(address, upgrade + last)
    assert [line[9:12] for line in received.split(b"\r\n") if line.startswith(b"HTTP/")][:1] == [b"200"]
    assert raw(address, last)[9:10] == b"4"
    assert raw(address, b"GET http://other/v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")[9:12] == b"200"
    assert capfd.readouterr().err == ""


def test_a_head_that_does_not_end(address):
    assert raw(address, b"GET / HTTP/1.1\r\nA: " + b"a" * 100_000).startswith(b"HTTP/1.1 431 ")


def test_a_body_that_is_too_long_is_not_read(address):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\n"
    assert raw(address, head + b"Content-Length: 1000000000000\r\n\r\n", end=True).startswith(b"HTTP/1.1 413 ")
    chunks = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    assert raw(address, chunked + 5 * chunks, end=True).startswith(b"HTTP/1.1 413 ")
    picture = encoded(random_picture())
    whole = chunked + f"{len(picture):x}\r\n".encode() + picture + b"\r\n0\r\n\r\n"
    assert raw(address, whole, end=True).startswith(b"HTTP/1.1 200 ")


def test_expect_continue(address):
    picture = encoded(random_picture())
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: "
    received = raw(address, head + f"{len(picture)}\r\n\r\n".encode() + picture)
    assert b"HTTP/1.1 200 OK" in received
    assert raw(address, head + b"999999999\r\n\r\n", end=True).startswith(b"HTTP/1.1 413 ")  # and no "100"
    parts = urllib.parse.urlsplit(address)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as connection:
        connection.sendall(head + f"{len(picture)}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(picture)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_ends_early(address):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n"
    received = raw(address, head + bytes(100), end=True)
    assert received.startswith(b"HTTP/1.1 400 ") and b"received 100 bytes, expected 5000" in received
    assert ask(address, "/v2")[0] == 200


def test_compressed_bodies_are_refused(address):
    headers = {"Content-Encoding": "gzip"}
    assert ask(address, "/predict", zlib.compress(bytes(10_000)), headers)[0] == 415


@pytest.mark.parametrize("data", [b"GET /v2 HTT", b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"])
def test_clients_that_send_slowly_are_cut_off(strict, data):
    start = time.monotonic()
    received = raw(strict, data)
    assert received.startswith(b"HTTP/1.1 408 ") and b"within 0.5 seconds" in received
    assert 0.4 < time.monotonic() - start < 4
    assert metric(strict, "vit_keras_connections") == 1  # that of this question


def eventually(condition):
    until = time.monotonic() + 15
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def test_the_rest_of_a_body_that_is_too_large_is_not_read_for_long(strict):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\nab"
    assert raw(strict, head).startswith(b"HTTP/1.1 413 ")  # and what comes until the server closes


def test_a_client_that_does_not_take_its_answer_is_cut_off():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = http.Server(Response(bytes(50_000_000)), listener, timeout=0.3, on_start=lambda: None)
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname(), timeout=20) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 3)  # the second waits behind the first
            assert client.recv(12) == b"HTTP/1.1 200"
            assert eventually(lambda: not server.server_state.connections)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while data := client.recv(1 << 20):
                    received += len(data)
        assert received < 50_000_000
        server.should_exit = True
        thread.join()


# --- the queue ----------------------------------------------------------------------------------------------------


def waiting(address, path="/predict"):
    """A client that has sent the head of a request, and no body yet."""
    parts = urllib.parse.urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=20)
    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n".encode())
    assert connection.recv(100).startswith(b"HTTP/1.1 100")
    return connection


@pytest.mark.parametrize("limits, status", [({"pending": 2}, 503), ({"per_client": 2}, 429)])
def test_more_requests_than_may_wait(tiny, limits, status):
    with serve.running(tiny, **limits) as address:
        clients = [waiting(address), waiting(address)]
        found, headers, answer = ask(address, "/predict", b"x")
        assert (found, headers["retry-after"]) == (status, "1") and "2 " in answer["error"]
        assert ask(address, "/v2/health/live")[0] == 200
        assert metric(address, "vit_keras_pending") == 2
        for client in clients:
            client.close()
        assert eventually(lambda: metric(address, "vit_keras_pending") == 0)
        assert ask(address, "/predict", encoded(random_picture()))[0] == 200


def test_more_connections_than_may_be(tiny, monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    with serve.running(tiny) as address:
        client = waiting(address)
        status, headers, _ = ask(address, "/v2")
        assert (status, headers["retry-after"]) == (503, "1")
        client.close()


def idle(address, source, count):
    """Connections that wait for a request, from an address of this machine."""
    parts = urllib.parse.urlsplit(address)
    opened = [socket.create_connection((parts.hostname, parts.port), 20, (source, 0)) for _ in range(count)]
    time.sleep(0.1)
    return opened


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
@pytest.mark.parametrize("limits", [{}, {"connections_per_client": 4}])
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_idle_connections_shut_nobody_out(tiny, monkeypatch, limits, source):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 8)
    with serve.running(tiny, **limits) as address:
        busy = waiting(address)
        clients = idle(address, source, 30)
        for _ in range(3):
            assert ask(address, "/predict", encoded(random_picture()))[0] == 200
        assert metric(address, "vit_keras_connections") <= 9
        busy.sendall(b"12345")  # what has sent a request is not closed for others
        assert busy.recv(100).startswith(b"HTTP/1.1 415")
        for client in (busy, *clients):
            client.close()


def test_an_address_has_a_limit_unless_it_is_a_proxy(tiny):
    for limits, statuses in [({}, [429, 200]), ({"proxies": ("127.0.0.0/8",)}, [200, 200])]:
        with serve.running(tiny, connections_per_client=1, **limits) as address:
            client, (second,) = waiting(address), idle(address, "127.0.0.1", 1)
            with contextlib.suppress(ConnectionError):
                second.sendall(b"GET /v2 HTTP/1.1\r\nHost: a\r\n\r\n")
            found = [int(second.recv(12)[-3:])]
            second.close()
            client.close()
            time.sleep(0.1)
            assert [*found, ask(address, "/v2")[0]] == statuses


def test_who_may_ask_for_many():
    for limits, client, most in [
        (Limits(), "127.0.0.1", math.inf),
        (Limits(), "::ffff:127.0.0.9", math.inf),
        (Limits(), "192.0.2.1", 32),
        (Limits(), "fe80::1%eth0", 32),
        (Limits(), "", 32),
        (Limits(per_client=3), "127.0.0.1", 3),
        (Limits(per_client=3, proxies=("192.0.2.0/24", "::1")), "192.0.2.9", math.inf),
        (Limits(per_client=3, proxies=("192.0.2.0/24", "::1")), "::1", math.inf),
    ]:
        assert limits.requests_of(client) == most
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8\. Received: 'nginx'"):
        Limits(proxies=("nginx",))


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_is_given_up_leaves_the_queue(begun):
    class Body:
        pass

    go, body = threading.Event(), Body()
    left = weakref.ref(body)
    workers = jobs.Workers(lambda *_: {}, threads=1)
    work = jobs.Work(np.zeros((1, 1, 1, 3), "uint8"), (), lambda _: None)
    blocking = workers.submit(lambda: go.wait(10) and work)
    job = workers.submit(lambda body=body: body and work)
    del body
    if begun:
        go.set()
        job.result(10)
        blocking.result(10)
        assert eventually(lambda: left() is None)  # the thread waits for the next, and holds nothing
    else:
        job.cancel()
        gc.collect()
        assert left() is None
    go.set()
    workers.close()


def test_a_result_is_freed_with_its_future():
    """It may have 160 MB, so no circle may hold it until garbage is collected."""
    workers = jobs.Workers(lambda *_: {}, threads=1)
    work = jobs.Work(np.zeros((1, 1, 1, 3), "uint8"), (), lambda _: np.zeros(5))
    gc.disable()
    try:
        job = workers.submit(lambda: work)
        left = weakref.ref(job.result(10))
        del job
        assert eventually(lambda: left() is None)
    finally:
        gc.enable()
    workers.close()


def test_a_batch_is_computed_in_parts_and_ends_when_its_time_is_over():
    def run(images, outputs):
        runs.append(len(images))
        time.sleep(0.05)
        return {"sum": images.sum((1, 2, 3), dtype="int64")}

    images = np.arange(7, dtype="uint8")[:, None, None, None].repeat(3, -1)
    workers = jobs.Workers(run, threads=1, at_once=lambda size, outputs: 3)
    runs = []
    found = workers.submit(lambda: jobs.Work(images, ("sum",), lambda found: found["sum"].tolist())).result(10)
    assert (found, runs) == ([0, 3, 6, 9, 12, 15, 18], [3, 3, 1])
    runs = []
    late = workers.submit(lambda: jobs.Work(images, ("sum",), lambda found: found), timeout=0.07)
    with pytest.raises(TimeoutError):
        late.result(10)
    assert 1 <= len(runs) < 3
    workers.close()


class Files:
    """An engine of a file that resizes pictures, or that takes them in any size."""

    outputs: ClassVar = {"features": ("FP32", [-1, 192]), "attention_0": ("FP32", [-1, 3, -1, -1])}

    def __init__(self, image_size):
        self.preprocessing = Preprocessing(image_size=image_size)
        self.metadata = {"tokens": {"stride": [16, 16], "heads": 3, "width": 192}} if image_size is None else {}


@pytest.mark.parametrize(
    "image_size, count, size, outputs, message",
    [
        (224, 900, (1, 1), {"features": True}, None),
        (224, 1000, (1, 1), {"features": True}, "1×1 .*50,176,000 pixels"),
        (224, 60_000, (1, 1), {"features": True}, "3,010,560,000 pixels"),
        (224, 1, (500_000, 1), {"features": True}, "112,000,000 pixels"),
        (224, 1, (1, 500_000), {"features": True}, "would need about 3,60. MB of memory"),
        (224, 16, (224, 224), {"attention_0": True}, None),
        (224, 60, (224, 224), {"attention_0": False}, "60 images of 224×224 .*19. MB"),
        (None, 1, (1024, 1024), {"features": True}, None),
        (None, 1, (2048, 2048), {"features": True}, "2048×2048 .*6,.* MB of memory"),
        (None, 1, (7000, 8000), {"features": True}, "56,000,000 pixels"),
    ],
)
def test_what_a_request_costs_is_known_before_it_is_computed(image_size, count, size, outputs, message):
    check = functools.partial(Limits().check, Files(image_size), count, size, outputs)
    if message is None:
        check()
        return
    with pytest.raises(HTTPException, match=message) as error:
        check()
    assert error.value.status_code == 413


@pytest.mark.parametrize("image_size, size, mb", [(224, (224, 224), 60), (None, (64, 64), 60), (None, (512, 512), 100)])
def test_requests_in_a_batch_keep_to_the_memory_of_one(image_size, size, mb):
    """Each request alone would be taken. 20 of them with attention, a million pixels, took many times the memory."""
    outputs, limits, one = {"attention_0": True}, Limits(memory=mb << 20), Files(image_size)
    count = limits.at_once(one, size, tuple(outputs))
    assert 1 <= count < Limits(memory=1 << 40).at_once(one, size, tuple(outputs))
    limits.check(one, count, size, outputs)
    runs = []
    workers = jobs.Workers(
        lambda x, _: runs.append(len(x)) or {},
        threads=1,
        batch=16,
        wait=0.05,
        at_once=functools.partial(limits.at_once, one),
    )
    work = jobs.Work(np.zeros((1, *size, 3), "uint8"), tuple(outputs), lambda _: None)
    for job in [workers.submit(lambda: work) for _ in range(17)]:
        job.result(10)
    workers.close()
    assert sum(runs) == 17 and max(runs) <= count


def test_large_images_do_not_wait_for_others_of_their_batch():
    """Each may have 150 MB, and a batch has many."""
    done = []
    workers = jobs.Workers(
        lambda x, _: done.append(x.shape[1]) or {}, threads=1, batch=4, wait=0.05, at_once=lambda size, _: 5 - size[0]
    )

    def prepare(side):
        done.append(-side)
        return jobs.Work(np.zeros((1, side, side, 3), "uint8"), (), lambda _: None)

    for job in [workers.submit(functools.partial(prepare, side)) for side in (4, 2, 4, 3)]:
        job.result(10)
    workers.close()
    assert done == [-4, 4, -2, -4, 4, -3, 2, 3]


def test_a_job_whose_time_is_over_is_not_begun():
    begun, go = [], threading.Event()
    workers = jobs.Workers(lambda *_: {}, threads=1)
    first = workers.submit(lambda: go.wait(10) and jobs.Work(np.zeros((1, 1, 1, 3), "uint8"), (), lambda _: None))
    late = workers.submit(lambda: begun.append(1), timeout=0.01)
    time.sleep(0.02)
    go.set()
    first.result(10)
    with pytest.raises(TimeoutError):
        late.result(10)
    workers.close()
    assert not begun


def test_an_image_without_a_patch_is_refused():
    with pytest.raises(HTTPException, match="16×16.*300×9") as error:
        Limits().check(Files(None), 1, (9, 300), {"features": True})
    assert error.value.status_code == 422
    Limits().check(Files(224), 1, (9, 300), {"features": True})


@pytest.mark.parametrize("size", [(200_000, 1), (1, 200_000), (1, 60_000)])
def test_a_narrow_picture_is_refused(address, size):
    status, _, answer = ask(address, "/predict", encoded(np.zeros((*size, 3), "uint8")))
    assert status == 413 and re.search(r"pixels", answer["error"])


@pytest.mark.parametrize(
    "data",
    [["x" * 800_000] + ["y"] * 300, [[], "x" * 800_000], [{}] * 900, [1.0] * 72, [None] * 72, [[1, [2]], [3, 4]]],
    ids=["strings", "mixed", "objects", "floats", "nothing", "ragged"],
)
def test_numbers_are_checked_before_an_array_is_made(data):
    body = request_with(DATA=data)
    tracemalloc.start()
    with pytest.raises(HTTPException) as error:
        protocol.read_request(body, {}, None)
    assert tracemalloc.get_traced_memory()[1] < 10 * len(body) + 1_000_000
    tracemalloc.stop()
    assert error.value.status_code == 400


def test_many_objects_are_not_read():
    with pytest.raises(HTTPException, match="more than 1000 objects"):
        protocol.read_request(b'{"inputs": [' + b"{}," * 1000 + b"{}]}", {}, None)


def test_answers_that_are_not_taken_are_limited(tiny):
    with serve.running(tiny, answer=4000) as address:
        server_app = next(each for each in gc.get_objects() if isinstance(each, app.App) and each.limits.answer == 4000)
        server_app.unsent = lambda: 8001
        status, headers, _ = ask(address, "/predict", encoded(random_picture()))
        assert (status, headers["retry-after"]) == (503, "1")


def test_jobs_are_computed_together_if_they_may():
    running, begin = threading.Event(), threading.Event()
    batches = []

    def run(images, outputs):
        running.set()
        begin.wait(10)
        batches.append((images.shape, outputs))
        if images.shape[1] == 5:
            raise MemoryError("no memory")
        return {name: images.sum((1, 2, 3), dtype="int64") for name in outputs}

    workers = jobs.Workers(run, threads=1, batch=4, wait=0.05)
    work = {
        side: jobs.Work(np.ones((count, side, side, 3), "uint8"), ("a",), lambda found: found["a"].tolist())
        for side, count in ((1, 1), (2, 2), (5, 1))
    }

    def broken():
        raise ValueError("no picture")

    first = workers.submit(lambda: work[1])
    running.wait(10)
    later = [workers.submit(lambda side=side: work[side]) for side in (2, 1, 2, 5)]
    bad, gone = workers.submit(broken), workers.submit(lambda: work[1])
    gone.cancel()
    begin.set()
    assert first.result(10) == [3] and [job.result(10) for job in later[:3]] == [[12, 12], [3], [12, 12]]
    with pytest.raises(MemoryError):
        later[3].result(10)
    with pytest.raises(ValueError):
        bad.result(10)
    workers.close()
    assert [shape for shape, _ in batches] == [(1, 1, 1, 3), (4, 2, 2, 3), (1, 1, 1, 3), (1, 5, 5, 3)]


def test_what_takes_too_long_is_given_up(tiny, monkeypatch):
    monkeypatch.setattr(engine.Engine, "run", lambda *_, **__: time.sleep(0.5) or {})
    with serve.running(tiny, timeout=0.2) as address:
        status, headers, answer = ask(address, "/predict", encoded(random_picture()))
        assert (status, headers["retry-after"]) == (503, "1") and "not computed within 0.2" in answer["error"]


def test_an_error_of_ours_is_said_and_survived(address, monkeypatch, capfd):
    monkeypatch.setattr(engine.Engine, "run", lambda *_, **__: 1 / 0)
    status, _, answer = ask(address, "/predict", encoded(random_picture()))
    assert (status, answer) == (500, {"error": "The server failed. Its log tells why."})
    assert "ZeroDivisionError" in capfd.readouterr().err
    monkeypatch.undo()
    assert ask(address, "/predict", encoded(random_picture()))[0] == 200


# --- files, and the command ---------------------------------------------------------------------------------------


def test_files_that_cannot_be_served(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        engine.Engine(tmp_path / "nothing.onnx")
    for name, message in {
        "text.onnx": "text.onnx is not an ONNX file",
        "tuned.keras": r"Pass vit_keras.open_model",
    }.items():
        (tmp_path / name).write_text("hello")
        with pytest.raises(ValueError, match=message):
            engine.Engine(tmp_path / name)
    path = make_tiny_onnx.save(tmp_path / "pixels.onnx", input_type="FLOAT")
    with pytest.raises(ValueError, match=r"\[-1, -1, -1, 3\].*preprocessing=True"):
        engine.Engine(path)
    path = make_tiny_onnx.save(tmp_path / "texts.onnx", kind="texts")
    with pytest.raises(ValueError, match=r"texts of type tensor\(string\)"):
        engine.Engine(path)
    path = make_tiny_onnx.save(tmp_path / "labels.onnx", labels=("a", "b"))
    with pytest.raises(ValueError, match="2 labels for 4 classes"), serve.running(path):
        pass


@pytest.mark.parametrize("name", ["body", "pixels", "pending", "per_client", "timeout"])
def test_limits_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} .*Received: 0"):
        app.Limits(**{name: 0})


@pytest.mark.parametrize("option", [{"workers": 0}, {"batch": 0}, {"threads": 0}, {"port": 70_000}, {"pending": 0}])
def test_options_out_of_range(tiny, option):
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name} .*Received: {value}"), serve.running(tiny, **option):
        pass


@pytest.mark.parametrize("name", ["onnxruntime", "prometheus_client", "python_multipart", "starlette", "uvicorn"])
def test_a_missing_package_is_named(tiny, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"{name}, .*vit-keras\[serve\]"), serve.running(tiny):
        pass


def test_mistakes_are_found_before_a_model_is_opened(capsys, monkeypatch):
    """Weights were downloaded and opened first."""

    def download(options):
        raise AssertionError("The model is opened.")

    monkeypatch.setattr("vit_keras.cli.pictures.open_with_options", download)
    for option in (["--timeout", "0"], ["--max-mb", "0"], ["--proxy", "nginx"]):
        assert main(["serve", "vit_b16", "--port", "0", *option]) == 1
        assert "Received: " in capsys.readouterr().err
    for option in ("--pending", "--per-client", "--connections-per-client"):
        with pytest.raises(SystemExit):
            main(["serve", "vit_b16", "--port", "0", option, "0"])
        assert f"{option}: expected an integer of at least 1" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["serve", "vit_b16", "--port", str(other.getsockname()[1])]) == 1
    assert "in use" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert main(["serve", "vit_b16", "--port", "0"]) == 1
    assert "needs starlette" in capsys.readouterr().err


def test_mistakes_on_the_command_line(capsys, tiny):
    assert main(["serve", "nothing.onnx", "--port", "0"]) == 1
    assert "no file nothing.onnx" in capsys.readouterr().err
    for path in (str(tiny), f"{tiny}/"):
        assert main(["serve", path, "--port", "0", "--set", "num_heads=3"]) == 1
        assert "has its weights. Remove" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["serve", str(tiny), "--port", str(other.getsockname()[1])]) == 1
    assert "in use" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_server_that_is_told_to_end_answers_what_it_has(command, tmp_path, number):
    process, address = command(make_tiny_onnx.save(tmp_path / "slow.onnx", work=60), "--workers", "1")
    picture, answers = encoded(random_picture()), []
    threads = [
        threading.Thread(target=lambda: answers.append(ask(address, "/predict", picture)[::2])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while metric(address, "vit_keras_pending") < 3 and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(number)
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [200] * 4
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    with pytest.raises(ConnectionRefusedError):
        ask(address, "/v2")

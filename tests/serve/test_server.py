"""The server: its answers, its limits, and its end."""

import contextlib
import http.client
import re
import signal
import struct
import sys
import threading
import time
import urllib.parse
import zlib
from pathlib import Path

import hostile_requests
import make_tiny_onnx
import numpy as np
import pytest
from ask_server import ask, encoded, form, random_picture, raw

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

from vit_keras import serve
from vit_keras.preprocess.images import resize_image
from vit_keras.serve.model import ServedModel

IMAGE = encoded(random_picture())


@pytest.fixture(scope="module")
def address(tiny):
    with serve.running(tiny, max_mb=1, max_megapixels=1, max_images=5, timeout=2) as address:
        yield address


# --- answers ------------------------------------------------------------------------------------------------------


def test_the_answer_to_an_image(address):
    status, _, answer = ask(address, "/predict?top=3", IMAGE)
    # as vit_keras.Preprocessing prepares it: resized to twice the size, and cut to the center
    expected = make_tiny_onnx.probabilities(resize_image(random_picture(), (32, 42), "bilinear_antialias")[None])[0]
    best = np.argsort(-expected)[:3]
    assert (status, answer["model"], answer["size"]) == (200, "tiny model", [48, 64])
    assert [each["class"] for each in answer["predictions"]] == best.tolist()
    assert [each["label"] for each in answer["predictions"]] == [make_tiny_onnx.LABELS[n] for n in best]
    np.testing.assert_allclose([each["probability"] for each in answer["predictions"]], expected[best], atol=2e-6)
    assert "attention" not in answer


def test_one_damaged_image_of_five_gets_an_error_and_four_get_answers(address):
    files = [encoded(random_picture(seed=n)) for n in range(5)]
    body, headers = form(*files[:2], files[2][:3000], *files[3:])
    status, _, answer = ask(address, "/predict?attention=1", body, headers)
    error = answer["answers"].pop(2)
    assert (status, error["status"]) == (200, 422) and "damaged" in error["error"]
    assert answer["answers"] == [ask(address, "/predict?attention=1", files[n])[2] for n in (0, 1, 3, 4)]


def test_images_of_any_size(tmp_path):
    """The file has 2×2 patches of 8×8 pixels for every image."""
    path = make_tiny_onnx.save(tmp_path / "any.onnx", preprocessing={"image_size": None})
    with serve.running(path) as address:
        found = {size: ask(address, "/predict?attention=1", encoded(random_picture(*size))) for size in SIZES}
    maps = {size: answer.get("attention") for size, (_, _, answer) in found.items()}
    assert {size: each and (each["grid"], each["box"]) for size, each in maps.items()} == SIZES
    assert [status for status, _, _ in found.values()] == [200, 200, 200, 413, 413]


SIZES = {
    (19, 20): ([2, 2], [0, 0, 16 / 19, 16 / 20]),
    (9, 15): ([2, 2], [0, 0, 1, 1]),  # a hybrid pads
    (24, 40): None,
    (7, 40): None,  # not one patch
    (500, 500): None,  # 3,906 patches, whose attention the file would return twice
}


def test_health_and_page(address):
    assert ask(address, "/health")[::2] == (200, {"ready": True, "model": "tiny model", "pending": 0})
    status, headers, page = ask(address, "/")
    assert status == 200 and headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"] and b"connect-src 'self'" in page


# --- limits -------------------------------------------------------------------------------------------------------


def bomb(width, height):
    """A PNG file whose header promises a size."""
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT": zlib.compress(bytes(20))}
    parts = [struct.pack(">I", len(data)) + name + data for name, data in chunks.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(part + struct.pack(">I", zlib.crc32(part[4:])) for part in parts)


FIELD = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
FORM = form()[1]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/predict", b"", 400, "no image"),
        ("/predict", b"/etc/passwd", 415, "JPEG, PNG"),
        ("/predict", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", 415, "JPEG, PNG"),
        ("/predict", IMAGE[:3000], 422, "damaged"),
        ("/predict", hostile_requests.scans(200, 150, 300), 422, "100 scans"),
        ("/predict", bomb(1001, 1000), 413, "1000×1001.*1,000,000"),
        ("/predict", bomb(60_000, 60_000), 413, "1,000,000"),
        ("/predict", bomb(1, 140_000), 413, "131,072"),
        ("/predict", encoded(np.zeros((1, 5000, 3), "uint8")), 413, "32×160000"),
        ("/predict", bytes(50 << 20), 413, "1 MB"),
        ("/predict", form(*6 * [IMAGE]), 400, "5"),
        ("/predict", (FIELD * 10_000 + b"--x--\r\n", FORM), 400, "5"),
        ("/predict", (b"hello", FORM), 400, ""),
        ("/predict?top=0", IMAGE, 400, "top .*1.*'0'"),
        ("/predict?topk=3", IMAGE, 400, "topk"),
        ("/predict", None, 405, "POST"),
        ("/nothing", None, 404, "/predict"),
    ],
)
def test_a_request_that_is_refused(address, path, body, status, message):
    body, headers = body if isinstance(body, tuple) else (body, {})
    found, _, answer = ask(address, path, body, headers)
    assert found == status and list(answer) == ["error"]
    assert re.search(message, answer["error"]), answer
    assert ask(address, "/predict", IMAGE)[0] == 200


def test_a_body_without_a_length_is_limited(address):
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    assert raw(address, head + 17 * piece + b"0\r\n\r\n").startswith(b"HTTP/1.1 413 ")
    image = f"{len(IMAGE):x}\r\n".encode() + IMAGE + b"\r\n0\r\n\r\n"
    assert raw(address, head + image).startswith(b"HTTP/1.1 200 ")


def test_a_slow_body_is_given_up_and_delays_nobody(address):
    start, received = time.monotonic(), []
    head = b"POST /predict HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 1000\r\n\r\nPNG"
    slow = [threading.Thread(target=lambda: received.append(raw(address, head))) for _ in range(4)]
    for thread in slow:
        thread.start()
    assert ask(address, "/predict", IMAGE)[0] == 200 and time.monotonic() - start < 1.5
    for thread in slow:
        thread.join()
    assert [each[:13] for each in received] == 4 * [b"HTTP/1.1 503 "] and 2 <= time.monotonic() - start < 4


def test_requests_that_cannot_be_computed_in_time_are_refused(tiny, monkeypatch):
    def slow(*_):
        time.sleep(0.3)
        return {"done": True}

    answers = []
    with serve.running(tiny, workers=1, timeout=1, max_pending=8) as address:
        monkeypatch.setattr(ServedModel, "answer", slow)
        clients = [threading.Thread(target=lambda: answers.append(ask(address, "/predict", IMAGE))) for _ in range(12)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert ask(address, "/predict", IMAGE)[0] == 200  # nothing is left of the requests that were given up
    served = [status for status, _, _ in answers].count(200)
    refused = [(headers["retry-after"], answer["error"]) for status, headers, answer in answers if status == 503]
    assert "time of the request" in ServedModel(tiny).answers([IMAGE], 1, False, 10**6, deadline=0.0)[0]["error"]
    assert served in (2, 3, 4) and served + len(refused) == 12
    assert {after for after, _ in refused} == {"1"} and sum("8 requests wait" in each for _, each in refused) >= 3


def test_an_error_of_ours_is_told_to_the_log_alone(address, monkeypatch, caplog):
    monkeypatch.setattr(ServedModel, "answer", lambda *_: 1 / 0)
    status, _, answer = ask(address, "/predict", IMAGE)
    assert (status, answer) == (500, {"error": "The server failed. Its log tells why."})
    monkeypatch.undo()
    assert ask(address, "/predict", IMAGE)[0] == 200
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_hostile_requests_cost_a_bounded_amount(command, tiny, count):
    process, address = command(tiny, "--workers", "1")
    ask(address, "/predict?attention=1", IMAGE)
    status = Path(f"/proc/{process.pid}/status")
    before, found = int(re.search(r"VmRSS:\s*(\d+)", status.read_text())[1]), []
    for path, body, headers in map(hostile_requests.made, range(count)):
        start = time.monotonic()
        found.append((ask(address, path, body, headers)[0], time.monotonic() - start))
    statuses = {status for status, _ in found}
    assert {200, 413, 415} <= statuses <= {200, 400, 413, 415, 422}
    assert max(seconds for _, seconds in found) < 10
    assert int(re.search(r"VmHWM:\s*(\d+)", status.read_text())[1]) - before < 400 << 10  # 50 megapixels take 300 MB


# --- what is served -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"wokers": 2}, TypeError, "wokers"),
        ({"port": "0"}, ValueError, "port"),
        ({"port": 70_000}, ValueError, "port .*70000"),
        ({"workers": 0}, ValueError, "workers .*0"),
        ({"timeout": 0}, ValueError, "timeout .*0"),
        ({"threads": 0}, ValueError, "threads .*0"),
    ],
)
def test_a_wrong_option_is_named(tiny, options, error, message):
    with pytest.raises(error, match=message), serve.running(tiny, **options):
        pass


def test_a_file_that_cannot_be_served_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.onnx"), serve.running(tmp_path / "nothing.onnx"):
        pass
    (tmp_path / "text.onnx").write_text("hello")
    raw_input = make_tiny_onnx.save(tmp_path / "raw.onnx", preprocessing=None)
    for path in (tmp_path / "text.onnx", raw_input):
        with pytest.raises(ValueError, match=rf"{path.name} .*vit_keras.export"), serve.running(path):
            pass


@pytest.mark.parametrize("name", ["onnxruntime", "python_multipart", "starlette", "uvicorn"])
def test_a_missing_package_is_named(tiny, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=name), serve.running(tiny):
        pass


# --- load, and the end --------------------------------------------------------------------------------------------


class Client(threading.Thread):
    """Sends images of one color on one connection as long as it may, or on a new one each time."""

    def __init__(self, address, seed, count, keep=True):
        super().__init__(daemon=True)
        self.host, self.keep = urllib.parse.urlsplit(address).netloc, keep
        self.colors = np.random.default_rng(seed).integers(0, 256, (count, 3), "uint8")
        self.right, self.wrong, self.lost = 0, [], []

    def run(self):
        connection, headers = http.client.HTTPConnection(self.host, timeout=60), {}
        for color in self.colors:
            pixels = np.broadcast_to(color, (16, 16, 3))
            try:
                if connection.sock is None:
                    connection.connect()
            except ConnectionRefusedError:  # the server has ended
                break
            try:
                headers = {} if self.keep else {"Connection": "close"}
                connection.request("POST", "/predict?top=1", encoded(pixels, "BMP"), headers)
                answer = connection.getresponse().read()
            except (OSError, http.client.HTTPException) as error:
                self.lost.append(error)
                connection.close()
                continue
            expected = make_tiny_onnx.probabilities(pixels[None])[0]
            if f'"class": {expected.argmax()},'.encode() in answer:
                self.right += 1
            else:
                self.wrong.append(answer)
        connection.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize(
    ("number", "keep"),
    [
        (signal.SIGTERM, True),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
    ],
)
def test_a_server_that_ends_under_load_answers_what_it_accepted(command, tmp_path, number, keep):
    process, address = command(make_tiny_onnx.save(tmp_path / "slow.onnx", work=1), "--threads", "1")
    clients = [Client(address, seed, 100_000, keep) for seed in range(16)]
    for client in clients:
        client.start()
    until = time.monotonic() + 60
    while sum(client.right for client in clients) < 100 and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(number)
    for client in clients:
        client.join(30)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert sum(client.right for client in clients) >= 100 and not any(client.wrong for client in clients)
    lost = [error for client in clients for error in client.lost]
    if not keep:  # the system may reset a connection that it has made and the server has not yet accepted
        lost = [error for error in lost if not isinstance(error, ConnectionResetError)]
    assert lost == []
    with contextlib.suppress(ConnectionRefusedError):
        pytest.fail(f"It still answers: {ask(address, '/health')}")

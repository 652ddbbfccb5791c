"""A request costs at most the memory and the time that docs/serving.md states."""

import contextlib
import http.client
import sys
import time
import urllib.parse
from pathlib import Path

import hostile_requests
import make_tiny_onnx
import numpy as np
import pytest
from ask_server import ask, encoded

import vit_keras
from vit_keras import vit

pytest.importorskip("uvicorn")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

MEMORY = (1 << 30) + 25 * (10 << 20)  # for one worker: --max-memory, reading 10 MB of JSON
SECONDS = 35  # --timeout, and one run of the model
ANSWERS = {200, 400, 413, 415, 422, 503}

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def memory(process, name):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def attack(process, address, seeds):
    """Send requests one after the other; return for each its seed, status, seconds and how much the memory grew."""
    model = ask(address, "/openapi.json")[2]["info"]["title"]
    ask(address, "/predict?attention=1", encoded(np.zeros((300, 300, 3), "uint8")))  # memory that stays
    before, found = memory(process, "VmRSS"), []
    for seed in seeds:
        path, body, headers = hostile_requests.made(seed, model)
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
        start = time.monotonic()
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(address).netloc, timeout=2 * SECONDS)
        with contextlib.closing(connection):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused unread
                connection.request("POST", path, body, headers)
            response = connection.getresponse()
            response.read()
        found.append((seed, response.status, time.monotonic() - start, memory(process, "VmHWM") - before))
    return found


def judge(found):
    kinds = {status for _, status, _, _ in found}
    assert kinds <= ANSWERS, [each for each in found if each[1] not in ANSWERS]
    assert {200, 413} <= kinds
    slowest, largest = max(found, key=lambda each: each[2]), max(found, key=lambda each: each[3])
    assert slowest[2] < SECONDS, slowest
    assert largest[3] < MEMORY, largest
    return slowest, largest


def test_hostile_requests_cost_a_bounded_amount(command, tmp_path):
    path = make_tiny_onnx.save(tmp_path / "tiny.onnx", preprocessing=make_tiny_onnx.PREPROCESSING)
    process, address = command(path, "--workers", "1")
    judge(attack(process, address, range(30)))
    assert ask(address, "/predict", encoded(np.zeros((30, 30, 3), "uint8")))[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("size", [224, None], ids=["one size", "any size"])
def test_a_thousand_hostile_requests(command, tmp_path, size):
    model = vit.build_model(size, 16, 2, 192, 3, "small", 768, classes=10, position_grid=(14, 14))
    vit_keras.export(model, tmp_path / "model.onnx", attention=True, check=False)
    process, address = command(tmp_path / "model.onnx", "--workers", "1")
    print(judge(attack(process, address, range(1000, 2000))))
    assert ask(address, "/predict", encoded(np.zeros((30, 30, 3), "uint8")))[0] == 200

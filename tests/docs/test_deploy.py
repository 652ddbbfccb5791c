"""The programs of docs/deploy.md in other languages: each is taken from the page, built and run. All are slow."""

import base64
import importlib.util
import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hub import Files, served
from PIL import Image
from support import ROOT

import vit_keras
from vit_keras.checkpoints.cache import cached_path
from vit_keras.export import web

pytestmark = [pytest.mark.slow, pytest.mark.any_backend]


def program(language):
    """The first program of the page in a language."""
    text = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    return re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture(scope="module")
def animals(tmp_path_factory):
    """A folder with the exported model, a photograph, its class and its probability."""
    data = pytest.importorskip("skimage.data")
    pytest.importorskip("onnx")
    folder = tmp_path_factory.mktemp("animals")
    model = vit_keras.open_model("vit_cifar10")
    vit_keras.export(model, folder / "animals.onnx", check=False)
    picture = Image.fromarray(data.chelsea())
    picture.save(folder / "cat.png")
    picture.save(folder / "cat.ppm")
    logits = model.predict(model.preprocess(picture), verbose=0)[0].astype("float64")
    odds = np.exp(logits - logits.max())
    return folder, int(logits.argmax()), float(odds.max() / odds.sum())


class Handler(Files):
    """Answers as TensorFlow Serving does, and serves the files of a folder."""

    extensions_map = {**Files.extensions_map, ".mjs": "text/javascript"}
    received = []

    def do_POST(self):
        self.received.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        body = b'{"predictions": [{"classes": ["cat"], "scores": [0.84]}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server(animals):
    with served(animals[0], Handler) as address:
        yield address


def run(*command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_cpp_program_gives_the_models_answer(animals, tmp_path):
    spec = importlib.util.find_spec("openvino")
    if spec is None:
        pytest.skip("there is no OpenVINO")
    openvino = Path(spec.origin).parent
    (tmp_path / "classify.cpp").write_text(program("cpp"))
    libraries = openvino.glob("libs/libopenvino.so.*")
    flags = ["-std=c++17", f"-I{openvino}/include", *libraries, f"-Wl,-rpath,{openvino}/libs"]
    run("g++", tmp_path / "classify.cpp", *flags, "-o", tmp_path / "classify")
    folder, best, probability = animals
    number, value = run(tmp_path / "classify", folder / "animals.onnx", folder / "cat.ppm").split()
    assert int(number) == best
    assert float(value) == pytest.approx(probability, abs=1e-3)


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")
def test_the_java_client_sends_a_file_as_tensorflow_serving_takes_it(animals, server, tmp_path):
    (tmp_path / "Classify.java").write_text(program("java"), encoding="utf-8")
    Handler.received.clear()
    answer = run("java", "-Dfile.encoding=UTF-8", tmp_path / "Classify.java", server, animals[0] / "cat.png")
    assert json.loads(answer)["predictions"][0]["classes"] == ["cat"]
    [(path, body)] = Handler.received
    assert path == "/v1/models/animals:predict"
    assert base64.b64decode(body["instances"][0]["b64"]) == (animals[0] / "cat.png").read_bytes()


def test_the_page_gives_the_models_answer(animals, server, browser, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_HOME", str(ROOT / ".pytest_cache" / "downloads"))
    package = cached_path(web.URL)
    if not package.is_file():
        pytest.skip("onnxruntime-web is not there: make test-slow downloads it")
    folder, best, probability = animals
    modules = folder / "node_modules" / "onnxruntime-web" / "dist"
    modules.mkdir(parents=True)
    with tarfile.open(package) as archive:
        for member in archive.getmembers():
            if member.name.startswith("package/dist/ort"):
                (modules / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    (folder / "index.html").write_text(program("html"), encoding="utf-8")
    tab, errors = browser.new_page(), []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.goto(f"{server}/index.html")
    tab.wait_for_selector("body[data-ready]", timeout=60000)
    tab.locator("input").set_input_files(folder / "cat.png")
    tab.wait_for_function("document.querySelector('output').textContent", timeout=60000)
    name, value = tab.locator("output").inner_text().split()
    assert not errors
    assert name == vit_keras.anatomy.class_names(vit_keras.open_model("vit_cifar10"))[best]
    assert float(value) == pytest.approx(probability, abs=1e-3)
    tab.close()

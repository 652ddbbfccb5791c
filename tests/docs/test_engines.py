"""The examples for engines whose workers die, for serving engines, and for libraries that stream."""

import importlib
import io
import os
import subprocess
import sys
import tarfile

import keras
import numpy as np
import pytest
from PIL import Image
from support import ROOT

import vit_keras
from vit_keras import training, vit

pytestmark = [pytest.mark.slow, pytest.mark.any_backend]
PICTURES = 60

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
from pathlib import Path
from vit_keras.training import Embedder

def alone(pictures):
    "What one process computes: the features by the name of the picture."
    paths = sorted(map(str, Path(pictures).rglob("*.jpg")))
    rows = Embedder("vit_cifar10", batch_size=4)({"path": np.array(paths)})
    return {Path(path).name: (row.tobytes(), bool(e)) for path, row, e in zip(paths, rows["features"], rows["error"])}

class Mortal(Embedder):
    def __call__(self, batch):
        time.sleep(0.2)  # so that there is a middle to be killed in
        rows = super().__call__(batch)
        with open("seen", "a") as file:
            file.write(f"{os.getpid()} {len(rows['features'])} ")
        return rows

killed = []
def kill():
    while not (os.path.exists("seen") and len(Path("seen").read_text().split()) > 6):
        time.sleep(0.1)
    killed.append(int(Path("seen").read_text().split()[0]))
    os.kill(killed[0], signal.SIGKILL)
threading.Thread(target=kill, daemon=True).start()

def check(table):
    assert killed and killed[0] != os.getpid()
    rows, found = table.to_pylist(), {}
    for row in rows:
        found[Path(row["path"]).name] = np.array(row["features"], "float32").tobytes(), bool(row["error"])
    expected = alone(sys.argv[1])
    assert len(rows) == len(found) == len(expected) == int(sys.argv[3]) + 1, (len(rows), len(found))
    assert found == expected, [name for name in found if found[name] != expected[name]]
    print("the same bytes")
"""

RAY = """
import ray
import embed_with_ray
import pyarrow.parquet as parquet

environment = {name: os.environ[name] for name in ("PYTHONPATH", "KERAS_BACKEND", "OMP_NUM_THREADS")}
room = {"num_cpus": 6, "_memory": 64 << 30, "object_store_memory": 1 << 30}  # of a pretended machine
ray.init(include_dashboard=False, runtime_env={"env_vars": environment}, **room)
embed_with_ray.BATCH = 4
embed_with_ray.main(sys.argv[1], sys.argv[2], embedder=Mortal)
ray.shutdown()
check(parquet.read_table(sys.argv[2]))
"""

SPARK = """
import embed_with_spark
import pyarrow.parquet as parquet

embed_with_spark.main(sys.argv[1], sys.argv[2], batch_size=4, embedder=Mortal)
check(parquet.read_table(sys.argv[2]))
"""

RAY_SERVE = """
import json, os, signal, socket, sys, threading, time, urllib.error, urllib.request
from pathlib import Path
import ray
from ray import serve
import serve_with_ray
from ask_server import form

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
ray.init(include_dashboard=False, num_cpus=4, object_store_memory=1 << 28)
serve.start(http_options={"port": port})
serve.run(serve_with_ray.app, route_prefix="/predict")
image, answers, again = Path(sys.argv[1]).read_bytes(), [], []

def ask(n):
    body, headers = form(*((image, b"damaged") if n == 0 else (image,)))
    body = body.replace(b'name="f"', b'name="file"')
    request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, headers)
    for _ in range(20):  # asked again: an answer changes nothing
        try:
            answers.append(json.loads(urllib.request.urlopen(request, timeout=60).read()))
            return
        except (OSError, urllib.error.HTTPError) as error:
            again.append(error)
            time.sleep(0.5)

def replicas():
    "The processes of this test's replicas, whose environment names its file."
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = os.environ["MODEL"].encode() in (process / "environ").read_bytes()
            if ours and (process / "cmdline").read_bytes().startswith(b"ray::ServeReplica"):
                found.append(int(process.name))
        except OSError:
            pass
    return found

clients = [threading.Thread(target=lambda k=k: [ask(4 * n + k) for n in range(40)]) for k in range(4)]
for client in clients:
    client.start()
while len(answers) < 20:
    time.sleep(0.05)
before = replicas()
os.kill(before[0], signal.SIGKILL)
for client in clients:
    client.join()
serve.shutdown()
ray.shutdown()
damaged = [answer.pop() for answer in answers if len(answer) == 2]
assert len(before) == 2 and len(answers) == 160, (before, len(answers))
assert len(damaged) == 1 and "error" in damaged[0]
assert all(answer == answers[0] for answer in answers) and len(answers[0][0]) == 5, answers[0]
print("none is lost;", len(again), "asked again")
"""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for n in range(PICTURES):
        path = folder / "ab"[n % 2] / f"{n:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), "uint8")).resize((64, 48)).save(path)
    (folder / "a" / "broken.jpg").write_bytes(b"this is no picture")
    return folder


@pytest.mark.parametrize(("package", "program"), [("ray.data", RAY), ("pyspark.ml", SPARK)])
def test_an_engine_gives_every_picture_once_and_the_bytes_of_one_process(package, program, pictures, tmp_path):
    pytest.importorskip(package)
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])
    own = {"PYTHONPATH": path, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    program = (PROLOGUE + program).replace('"seen"', repr(str(tmp_path / "seen")))
    command = [sys.executable, "-c", program, pictures, tmp_path / "features", str(PICTURES)]
    environment = {**os.environ, **own, "RAY_worker_niceness": "0"}
    done = subprocess.run(
        list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0 and "the same bytes" in done.stdout, done.stdout + done.stderr[-3000:]


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="finds the replicas in /proc")
def test_ray_serve_loses_no_request_with_a_replica(pictures, tmp_path):
    pytest.importorskip("ray.serve")
    pytest.importorskip("onnxruntime")
    vit_keras.export(vit_keras.open_model("vit_cifar10"), tmp_path / "model.onnx", check=False)
    folders = map(str, (ROOT, ROOT / "examples", ROOT / "tests" / "goldens", os.environ.get("PYTHONPATH", "")))
    own = {
        "PYTHONPATH": os.pathsep.join(folders),
        "MODEL": str(tmp_path / "model.onnx"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = [sys.executable, "-c", RAY_SERVE, str(next(pictures.rglob("0*.jpg")))]
    environment = {**os.environ, **own, "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0 and "none is lost" in done.stdout, done.stdout + done.stderr[-3000:]


def test_folders_for_serving_engines(pictures, tmp_path, monkeypatch):
    """The engines themselves are not run: onnxruntime and TensorFlow, which compute in them, are."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    pytest.importorskip("tensorflow")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    importlib.import_module("serve_with_engines").main("vit_cifar10", tmp_path)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    saved = {name for name in files if name.startswith("tensorflow/vit/1/")}
    one, other = "triton/vit/1/model.onnx", "openvino/vit/1/model.onnx"
    assert files - saved == {one, other, "triton/vit/config.pbtxt", "triton/vit/labels.txt"}
    assert "tensorflow/vit/1/saved_model.pb" in saved
    assert (tmp_path / one).read_bytes() == (tmp_path / other).read_bytes()
    session = onnxruntime.InferenceSession(tmp_path / one)
    (probabilities,) = session.run(["probabilities"], {"images": np.zeros((2, 40, 50, 3), "uint8")})
    labels = (tmp_path / "triton/vit/labels.txt").read_text().splitlines()
    config = (tmp_path / "triton/vit/config.pbtxt").read_text()
    assert probabilities.shape == (2, 10) and f"dims: [ {len(labels)} ]" in config and labels[3] == "cat"


def write_shards(library, pictures, folder):
    """Write the pictures as the library reads them; the class of each is its number modulo 3."""
    contents = [path.read_bytes() for path in sorted(pictures.rglob("0*.jpg"))]
    if library == "grain":
        writer = importlib.import_module("array_record.python.array_record_module").ArrayRecordWriter
        file = writer(str(folder / "a.array_record"), "group_size:1")
        for n, content in enumerate(contents):
            file.write(bytes([n % 3]) + content)
        file.close()
        return [str(folder / "a.array_record")]
    if library == "webdataset":
        with tarfile.open(folder / "a.tar", "w") as tar:
            for n, content in enumerate(contents):
                for name, data in ((f"{n:06}.jpg", content), (f"{n:06}.cls", b"%d" % (n % 3))):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        return [str(folder / "a.tar")]
    import pyarrow
    from pyarrow import parquet

    images = [{"bytes": content, "path": None} for content in contents]
    table = pyarrow.table({"image": images, "label": [n % 3 for n in range(len(contents))]})
    parquet.write_table(table, folder / "a.parquet")
    return [str(folder / "a.parquet")]


@pytest.mark.parametrize("library", ["grain", "webdataset", "datasets"])
def test_a_library_streams_pictures_into_fit(library, pictures, tmp_path, monkeypatch):
    pytest.importorskip(library)
    if library == "grain":
        pytest.importorskip("array_record")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    stream, files = importlib.import_module("stream"), write_shards(library, pictures, tmp_path)
    tiny = vit.build_model(32, 8, 1, 16, 2, "tiny", 32, classes=3, dropout=0.0)
    prepared = training.sample(tiny, training.Augmentation())

    def first(count, start=0):
        batches = iter(stream.LIBRARIES[library](files, prepared, batch=8, start=start))
        return [tuple(map(np.asarray, next(batches))) for _ in range(count)]

    seen = first(10)  # more than an epoch
    assert all(images.shape == (8, 32, 32, 3) and images.dtype == np.float32 for images, _ in seen)
    assert {*np.concatenate([labels for _, labels in seen]).tolist()} == {0, 1, 2}
    assert not np.array_equal(seen[0][0], seen[8][0])
    for start in (0, 3, 8):  # in the middle of an epoch, and after one
        for batch, again in zip(seen[start : start + 2], first(2, start)):
            for one, other in zip(batch, again):
                np.testing.assert_array_equal(one, other)

    def fit(model, steps, start=0):
        data = stream.LIBRARIES[library](files, prepared, batch=8, start=start)
        assert np.isfinite(model.fit(data, steps_per_epoch=steps, verbose=0).history["loss"][0])

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    tiny.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss)
    fit(tiny, 3)
    tiny.save(tmp_path / "interrupted.keras")
    fit(tiny, 3, start=3)
    resumed = keras.saving.load_model(tmp_path / "interrupted.keras")
    fit(resumed, 3, start=int(resumed.optimizer.iterations))
    for one, other in zip(tiny.get_weights(), resumed.get_weights()):
        np.testing.assert_array_equal(one, other)

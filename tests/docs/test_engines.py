"""The examples for data that no single machine holds: engines whose workers die, and libraries that stream."""

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

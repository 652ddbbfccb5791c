"""The examples for engines whose workers die, for serving engines, and for libraries that stream."""

import importlib
import io
import tarfile

import keras
import numpy as np
import pytest
from PIL import Image
from support import ROOT

from vit_keras import training, vit

pytestmark = [pytest.mark.slow, pytest.mark.any_backend]
PICTURES = 60


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

"""The public function: which format, what it refuses, what it leaves, and what runs a file."""

import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from export_cases import CASES, tiny
from PIL import Image

import vit_keras
import vit_keras.export
from vit_keras.cli import main
from vit_keras.export import FORMATS, formats, other_backend, report, runtimes, timing, writers
from vit_keras.export.formats import find_format
from vit_keras.export.images import check_images, image_files, model_inputs, resized_images
from vit_keras.export.plan import Plan

ON_TORCH = pytest.mark.only_on("torch", reason="only PyTorch writes it in this process")


def test_the_module_is_the_function():
    assert list(inspect.signature(vit_keras.export).parameters)[:3] == ["model", "path", "format"]
    assert vit_keras.export is sys.modules["vit_keras.export"]
    with pytest.raises(ValueError, match="No format has the ending"):
        vit_keras.export(None, "model.h5")


def test_formats():
    assert find_format("a/model.ONNX") == "onnx"
    assert find_format("a/model") == "saved_model"
    assert find_format("version.2", "saved_model") == "saved_model"
    with pytest.raises(ValueError, match=r"ends in \.onnx"):
        find_format("model.tflite", "onnx")
    with pytest.raises(ValueError, match="'litert'"):
        find_format("model.tflite", "literd")
    assert set(runtimes.RUNTIMES) == set(FORMATS)


def test_what_is_refused_before_anything_is_done(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="quantize=.*'int4'"):
        vit_keras.export(None, tmp_path / "a.tflite", quantize="int4")
    with pytest.raises(ValueError, match="offers none"):
        vit_keras.export(None, tmp_path / "a.pt2", quantize="int8")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="onnxruntime"):
        vit_keras.export(None, tmp_path / "a.onnx")
    with pytest.raises(ImportError, match="needs tensorflow, not"):  # once, though it writes and runs the file
        vit_keras.export(None, tmp_path / "a", "saved_model")
    with pytest.raises(ImportError, match="needs onnx, not"):
        vit_keras.export(None, tmp_path / "a.onnx", check=False)


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("model", {"batch_size": 2}, "batch_size= is for the formats onnx, .*'saved_model'"),
        ("a.xml", {"opset": 17}, "opset= is for the formats onnx. .*'openvino'"),
        ("a.onnx", {"opset": 12}, "from 13 to 20. Received: 12"),
        ("a.onnx", {"batch_size": 0}, "positive integer. Received: 0"),
    ],
)
def test_shapes_and_operators_that_a_format_has_not(tmp_path, monkeypatch, file, options, message):
    model = tiny()  # which imports what it needs by the real `find_spec`
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    with pytest.raises(ValueError, match=message):
        vit_keras.export(model, tmp_path / file, check=False, **options)


def test_a_file_for_batches_of_one_size(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    (compared,) = vit_keras.export(tiny(), tmp_path / "a.onnx", batch_size=3, opset=17).comparisons
    assert (compared.images, compared.same_class) == (9, 9)
    file = onnx.load(tmp_path / "a.onnx")
    (images,) = file.graph.input
    assert [size.dim_value for size in images.type.tensor_type.shape.dim] == [3, 32, 32, 3]
    assert file.opset_import[0].version == 17 and "Shape" not in {node.op_type for node in file.graph.node}
    with pytest.raises(ValueError, match="batch_size="):
        vit_keras.export(CASES["any pixels"](), tmp_path / "a.onnx", batch_size=3)


def test_places(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        formats.check_place(tmp_path / "nothing" / "a.onnx", "onnx")
    with pytest.raises(ValueError, match="is a folder"):
        formats.check_place(tmp_path, "onnx")
    other = tmp_path / "other"
    other.mkdir()
    formats.check_place(other, "saved_model")  # it is empty
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="SavedModel"):
        formats.check_place(other, "saved_model")
    (other / "saved_model.pb").touch()
    formats.check_place(other, "saved_model")
    for path in (".", ".."):
        with pytest.raises(ValueError, match="folder"):
            vit_keras.export(tiny(), path, check=False)
    assert formats.names(tmp_path / "A.ONNX", "onnx")[0] == "A.ONNX.data"
    assert formats.names(tmp_path / "a.v1", "saved_model")[0] == "a.v1"


def test_drawn_pictures():
    plan = Plan.of(tiny())
    drawn = check_images(plan, True)
    assert [each.shape for each in drawn[:4]] == [(32, 32, 3)] * 4
    assert any(each.shape[1] >= 4 * each.shape[0] for each in drawn)
    assert all(np.array_equal(a, b) for a, b in zip(drawn, check_images(plan, True)))
    own = resized_images(plan, drawn)
    np.testing.assert_array_equal(own[0][0], drawn[0])
    for uint8, inputs in zip(own, model_inputs(plan, drawn)):
        np.testing.assert_allclose(plan.preprocessing.normalize(uint8), inputs, atol=1e-6)
    with pytest.raises(ValueError, match="check="):
        check_images(plan, [])
    anything = Plan.of(tiny(image_size=None, position_grid=(2, 2)))  # refuses incomplete patches
    assert all(anything.model(image).shape for image in model_inputs(anything, check_images(anything, True)))


def test_one_picture_and_what_is_none(tmp_path):
    plan, image = Plan.of(tiny()), np.zeros((40, 50, 3), "uint8")
    for one in (image, image[..., 0], Image.fromarray(image)):
        assert len(check_images(plan, one)) == 1
    assert len(check_images(plan, image[None].repeat(2, 0))) == 2
    with io.BytesIO() as file:
        Image.fromarray(image).save(file, "PNG")
        for one in (file.getvalue(), file):
            assert check_images(plan, one) == [one]
    with pytest.raises(TypeError, match="arrays"):
        check_images(plan, 3)


def test_pictures_of_four_channels():
    plan = Plan.of(tiny(channels=4))
    assert len(check_images(plan, np.zeros((40, 50, 4), "uint8"))) == 1
    assert check_images(plan, True)[0].shape == (32, 32, 4)
    rgba = Image.new("RGBA", (9, 5))
    for wrong in (["rgba.png"], rgba, [np.zeros((40, 50, 3), "uint8")], [np.zeros((40, 50, 4), "float32")]):
        with pytest.raises(ValueError, match="4 channels. Pass uint8 arrays"):
            check_images(plan, wrong)


def test_pictures_of_a_folder_and_as_files(tmp_path):
    Image.new("RGB", (9, 5), "red").save(tmp_path / "b.png")
    (tmp_path / "labels.json").write_text("{}")
    found = check_images(Plan.of(tiny()), tmp_path)
    assert [path.name for path in found] == ["b.png"]
    exif, image = Image.Exif(), Image.new("RGB", (9, 5), "red")
    exif[0x0112] = 6
    image.save(tmp_path / "turned.png", exif=exif)
    image.quantize(4).save(tmp_path / "palette.bmp")
    for name, count in (("plain.bmp", 1), ("a.webp", 1), ("turned.png", 2), ("palette.bmp", 2), ("a.tif", 2)):
        if not (tmp_path / name).exists():
            image.save(tmp_path / name)
        assert len(image_files([tmp_path / name])) == count, name
    files = image_files([*found, np.zeros((4, 6, 3), "uint8")])
    assert [pixels.shape for _, pixels in files] == [(5, 9, 3), (4, 6, 3), (4, 6, 3)]
    assert [Image.open(io.BytesIO(data)).format for data, _ in files] == ["PNG", "PNG", "JPEG"]


@pytest.mark.parametrize(
    ("difference", "tolerance", "same", "passes"),
    [
        (1e-5, 1e-4, 4, True),
        (1e-3, 1e-4, 4, False),
        (1e-5, 1e-4, 3, False),
        (float("nan"), 1e-4, 4, False),
        (1e-5, 1e-4, None, True),
        (0.5, None, 4, True),
        (0.5, None, 3, True),
        (0.5, None, 2, False),
    ],
)
def test_what_passes(difference, tolerance, same, passes):
    assert report.Comparison("images", 4, difference, tolerance, same).passes == passes


PRECISION = {
    "jax": lambda: importlib.import_module("jax").config.jax_default_matmul_precision == "highest",
    "tensorflow": lambda: (
        not importlib.import_module("tensorflow").config.experimental.tensor_float_32_execution_enabled()
    ),
    "torch": lambda: convolutions_of_torch() in ("ieee", False),
}


def convolutions_of_torch():
    cudnn = importlib.import_module("torch").backends.cudnn
    return cudnn.conv.fp32_precision if hasattr(cudnn, "conv") else cudnn.allow_tf32


@pytest.mark.skipif(keras.backend.backend() not in PRECISION, reason="OpenVINO has no TF32")
def test_expected_outputs_have_full_precision(monkeypatch):
    """On a GPU, TensorFlow and JAX round to TF32, which is more than the tolerance of the check."""
    full, outputs, seen = PRECISION[keras.backend.backend()], Plan.outputs, []
    monkeypatch.setattr(Plan, "outputs", lambda self, batch: seen.append(full()) or outputs(self, batch))
    with contextlib.ExitStack() as stack:
        if keras.backend.backend() == "jax":  # as without the settings of these tests
            stack.enter_context(importlib.import_module("jax").default_matmul_precision("default"))
        seen.append(full())
        report._expected(Plan.of(tiny()), [np.zeros((1, 32, 32, 3), "float32")])
        seen.append(full())
    assert seen == [False, True, False]


@ON_TORCH
@pytest.mark.slow
def test_a_torch_program_is_written_on_the_cpu(monkeypatch, tmp_path):
    """Where Keras computes on another device, a process writes it."""
    with monkeypatch.context() as patch:
        patch.setattr(importlib.import_module("keras.src.backend.torch.core"), "DEFAULT_DEVICE", "meta")
        assert other_backend._computes_elsewhere()
    run, seen = subprocess.run, []

    def watch(command, env, **options):
        seen.append(env["KERAS_TORCH_DEVICE"])
        return run(command, env=env, **options)

    monkeypatch.setattr(other_backend, "_computes_elsewhere", lambda: True)
    monkeypatch.setattr(subprocess, "run", watch)
    assert other_backend.write_in_its_backend(Plan.of(tiny()), "torch", tmp_path / "model.pt2") == []
    assert (tmp_path / "model.pt2").exists() and seen == ["cpu"]


def run_here(path, inputs):
    """Run tasks as the process of `Running` does, in this one; return its answers and outputs."""
    given, taken = path.with_name("given.npz"), path.with_name("taken.npz")
    np.savez(given, **{str(n): each for n, each in enumerate(inputs)})
    tasks = [{"run": str(given), "into": str(taken)}, {"time": 2}, {}]
    answers = []
    runtimes.work(find_format(path), str(path), map(json.dumps, tasks), answers.append)
    return answers, dict(np.load(taken))


@ON_TORCH
@pytest.mark.slow
@pytest.mark.parametrize("name", ["half", "pixels", "nested", "merged"])
def test_a_torch_program(tmp_path, name):
    pytest.importorskip("torch")
    model = CASES[name]()
    plan = Plan.of(model, labels=("a", "b", "c"))
    path = tmp_path / "model.pt2"
    writers.write_torch(plan, path)
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3)).astype("uint8")
    answers, outputs = run_here(path, [images, images[:1]])
    assert (answers[0]["dtype"], answers[0]["shape"]) == ("uint8", [None, 32, 32, 3])
    assert answers[2]["seconds"] > 0
    inputs = np.concatenate(model_inputs(plan, list(images)))
    (expected,) = report._expected(plan, [inputs[:1]])
    for output in plan.output_names:
        assert outputs[f"0/{output}"].shape[0] == 3
        np.testing.assert_allclose(outputs[f"1/{output}"], expected[output], atol=1e-5)
        np.testing.assert_allclose(outputs[f"0/{output}"][:1], expected[output], atol=1e-5)
    with zipfile.ZipFile(path) as archive:
        (member,) = [each for each in archive.namelist() if each.endswith("vit_keras.json")]
        assert json.loads(archive.read(member))["labels"] == ["a", "b", "c"]


@ON_TORCH
def test_a_file_of_one_size_needs_a_model_of_one_size(tmp_path):
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"takes any\..*format saved_model, onnx, openvino or html "):
        writers.write_torch(Plan.of(CASES["any pixels"]()), tmp_path / "model.pt2")
    wrapped = keras.Sequential([CASES["any pixels"](), keras.layers.Dense(2)])  # resize returns the ViT alone
    with pytest.raises(ValueError, match=r"Build it around the ViT that .*resize"):
        writers.write_torch(Plan.of(wrapped), tmp_path / "model.pt2")


@ON_TORCH
def test_a_failed_check_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "model.pt2"
    path.write_text("earlier")
    monkeypatch.setitem(writers.WRITERS, "torch", lambda plan, path: path.write_text("wrong") and [])

    def fail(*_):
        raise ValueError("other numbers")

    monkeypatch.setattr(report, "compare", fail)
    with pytest.raises(ValueError, match="other numbers"):
        vit_keras.export(tiny(), path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"model.pt2": "earlier"}
    written = vit_keras.export(tiny(), path, check=False)
    assert path.read_text() == "wrong"
    assert json.loads((tmp_path / "model.pt2.report.json").read_text())["sha256"] == written.sha256
    assert "not checked" in str(written)


def test_timing_takes_turns(tmp_path, monkeypatch, capsys):
    order = []

    class Pretended:
        def __init__(self, name, path):
            self.name, self.about = name, {"shape": [None, None, None, 3], "dtype": "uint8", "version": name}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def run(self, inputs):
            assert inputs[0].shape == (4, 224, 224, 3) and inputs[0].dtype == "uint8"

        def time(self):
            order.append(self.name)
            return {"onnx": 0.008, "torch": 0.004}[self.name]

    monkeypatch.setattr(timing, "Running", Pretended)
    for name in ("a.onnx", "a.pt2"):
        (tmp_path / name).write_bytes(b"12345")
    comparison = {"difference": 1e-6, "same_class": 3, "images": 4}
    (tmp_path / "a.onnx.report.json").write_text(json.dumps({"comparisons": [comparison]}))
    rows = timing.benchmark([tmp_path / "a.onnx", tmp_path / "a.pt2"], batch_size=4, rounds=2)
    assert [(row.format, row.milliseconds, row.bytes) for row in rows] == [("torch", 1.0, 5), ("onnx", 2.0, 5)]
    assert (rows[1].difference, rows[1].same_class, rows[0].difference) == (1e-6, 0.75, None)
    assert order == ["torch", "onnx", "onnx", "torch"]
    with pytest.raises(FileNotFoundError, match="no file"):
        timing.benchmark([tmp_path / "b.onnx"])
    (row,) = timing.benchmark(str(tmp_path / "a.onnx"), batch_size=4)
    assert row.format == "onnx"
    assert main(["benchmark", str(tmp_path / "a.onnx"), "--batch-size", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["milliseconds"] == 2.0
    assert main(["benchmark", str(tmp_path / "a.onnx"), "--batch-size", "4"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:6] == ["2.00", "2.00", "2.00", "0.0", "1.0e-06"]
    assert timing.in_turns([lambda: 2.0], rounds=3, most=3.0) == [[2.0, 2.0]]
    (tmp_path / "x.v1").mkdir()
    with pytest.raises(KeyError, match="saved_model"):  # of this test's own times
        timing.benchmark([tmp_path / "x.v1"], batch_size=4)


def test_writing_openvino_tells_nobody(tmp_path, monkeypatch):
    """OpenVINO's converter sends events to Intel."""
    pytest.importorskip("openvino")
    telemetry = pytest.importorskip("openvino_telemetry")
    sent = []
    monkeypatch.setattr(telemetry.Telemetry, "send_event", lambda self, *event, **more: sent.append(event))
    vit_keras.export(tiny(), tmp_path / "A.XML", check=False)
    assert sent == []
    assert {file.name for file in tmp_path.iterdir()} == {"A.XML", "A.bin", "A.XML.report.json"}

"""Every kind of model in every format, run in processes of their own: minutes, hence slow.

`export` itself compares each file with its model, in a process without this package, and raises an error for a
difference.
"""

import base64
import io
import json
import os
import re
import subprocess
import sys

import hostile_requests
import numpy as np
import pytest
from export_cases import CASES, often, tiny
from PIL import Image
from support import ROOT

import vit_keras
from vit_keras.cli import main
from vit_keras.export.plan import Plan
from vit_keras.export.running import Running

pytestmark = pytest.mark.slow

FILES = {
    "saved_model": ("model", "tensorflow"),
    "litert": ("model.tflite", "ai_edge_litert"),
    "torch": ("model.pt2", "torch"),
}
ANY_SIZE = {"any pixels", "any size"}


def exported(model, folder, name, **options):
    """Export, or skip where a package is not there."""
    file, runtime = FILES[name]
    pytest.importorskip("tensorflow" if name == "litert" else runtime)
    pytest.importorskip(runtime)
    return vit_keras.export(model, folder / file, **options)


@pytest.mark.parametrize("case", often(CASES))
@pytest.mark.parametrize("name", FILES)
def test_a_file_computes_what_its_model_computes(tmp_path, name, case):
    model = CASES[case]()
    fixed = case not in ANY_SIZE or (case == "any size" and model.preprocessing.image_size)
    if name != "saved_model" and not fixed:
        with pytest.raises(ValueError, match="takes any"):
            exported(model, tmp_path, name)
        return
    report = exported(model, tmp_path, name)
    assert report.comparisons and all(each.passes for each in report.comparisons)
    assert report.comparisons[0].difference <= 1e-4
    assert report.milliseconds["file"] > 0
    said = json.loads((tmp_path / f"{FILES[name][0]}.report.json").read_text())
    assert said["sha256"] == report.sha256 and said["metadata"]["weights_sha256"]


def test_attention_and_raw_inputs(tmp_path):
    exported(tiny(), tmp_path, "saved_model", attention=True, preprocessing=False)
    with Running("saved_model", tmp_path / "model") as file:
        assert (file.about["dtype"], file.about["shape"]) == ("float32", [None, 32, 32, 3])
        (outputs,) = file.run([np.zeros((2, 32, 32, 3), "float32")])
    assert {"attention_0", "attention_1", "logits"} <= set(outputs)
    np.testing.assert_allclose(outputs["attention_1"].sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize(("name", "file"), [("litert", "model.tflite"), ("torch", "model.pt2"), ("openvino", "a.xml")])
def test_batches_of_one_size(tmp_path, name, file):
    pytest.importorskip({"litert": "ai_edge_litert"}.get(name, name))
    report = vit_keras.export(tiny(), tmp_path / file, batch_size=2)
    assert report.comparisons[0].images == 9
    with Running(name, tmp_path / file) as running:
        assert running.about["shape"] == [2, 32, 32, 3]


def test_a_wrong_file_is_an_error_and_goes(tmp_path, monkeypatch):
    from vit_keras.export import other_backend, report

    right = other_backend.write_in_its_backend
    pytest.importorskip("torch")
    wrong = Plan.of(tiny(seed=1))
    monkeypatch.setattr(other_backend, "write_in_its_backend", lambda plan, *rest: right(wrong, *rest))
    with pytest.raises(ValueError, match="compute"):
        vit_keras.export(tiny(), tmp_path / "model.pt2")
    assert list(tmp_path.iterdir()) == []
    assert report.QUANTIZED_AGREEMENT > 0.5


def test_files_of_pictures_are_read_as_this_package_reads_them(tmp_path):
    pytest.importorskip("tensorflow")
    generator = np.random.default_rng(0)
    pixels = np.clip(generator.normal(128, 40, (30, 40, 3)).repeat(6, 0).repeat(6, 1), 0, 255).astype("uint8")
    image = Image.fromarray(pixels)
    gray = np.asarray(image.convert("L")).astype("uint16") * 211 + 7
    pictures = {
        "gray.jpg": image.convert("L"),
        "progressive.jpg": image,
        "alpha.png": Image.merge("RGBA", (*image.split(), image.split()[0])),
        "gray_alpha.png": Image.merge("LA", image.split()[:2]),
        "palette.png": image.convert("P"),
        "bits.png": image.convert("1"),
        "four_colors.png": image.quantize(4),
        "gray16.png": Image.fromarray(gray),
        "plain.bmp": image,
    }
    paths = []
    for name, picture in pictures.items():
        paths.append(tmp_path / name)
        picture.save(paths[-1], **({"progressive": True} if name.startswith("progressive") else {}))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        paths.append(tmp_path / f"turned_{orientation}.jpg")
        image.save(paths[-1], exif=exif)
    report = vit_keras.export(tiny(), tmp_path / "model", check=paths)
    (of_bytes,) = [each for each in report.comparisons if each.inputs == "bytes"]
    assert of_bytes.images == len(paths)
    assert of_bytes.difference < 0.01
    with Running("saved_model", tmp_path / "model") as file:
        encoded = [base64.b64encode(path.read_bytes()).decode() for path in paths]
        (answer,) = file.run([np.array(encoded)], "serving_default")
    assert answer["classes"].shape == answer["scores"].shape == (len(paths), 3)


@pytest.mark.only_on("tensorflow", reason="decodes in TensorFlow")
def test_the_size_of_a_picture_is_checked_before_it_is_decoded():
    import tensorflow as tf

    from vit_keras.export.decoding import decode_image

    def encoded(size, kind):
        with io.BytesIO() as file:
            Image.new("RGB", size, (9, 99, 199)).save(file, kind)
            return file.getvalue()

    decode = tf.function(decode_image, input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="decoded"):
        decode(encoded((50, 30), "GIF"))
    for kind in ("PNG", "JPEG", "BMP"):
        assert decode(encoded((50, 30), kind)).shape == (30, 50, 3)
    data = bytearray(encoded((50, 30), "BMP"))
    data[22:26] = (-30).to_bytes(4, "little", signed=True)
    assert decode(bytes(data)).shape == (30, 50, 3)
    for kind, start, order in (("PNG", 16, "big"), ("BMP", 18, "little")):
        for size in ((60_000, 60_000), (1, 200_000), (200_000, 1)):
            data = bytearray(encoded((50, 30), kind))
            data[start : start + 8] = b"".join(n.to_bytes(4, order) for n in size)
            with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
                decode(bytes(data))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many pixels"):
        decode(encoded((10_000, 6_000), "JPEG"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="too many scans"):
        decode(hostile_requests.scans(3000, 2000, 1000))
    for data in (b"", b"x", b"\x89PNG", b"\xff\xd8\xff", b"BM"):
        with pytest.raises((tf.errors.InvalidArgumentError, UnicodeDecodeError)):  # the error may quote the bytes
            decode(data)


@pytest.mark.smoke
def test_the_command_line(tmp_path, capsys):
    pytest.importorskip("torch")
    tiny().save(tmp_path / "tiny.keras")
    file = tmp_path / "new" / "tiny.pt2"
    assert main(["export", str(tmp_path / "tiny.keras"), "-o", str(file)]) == 0
    assert re.search(r"images: difference \S+ \(allowed: 0.0001\), same class 9 of 9", capsys.readouterr().out)
    assert main(["benchmark", str(file), "--rounds", "2"]) == 0
    assert "MS/IMAGE" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "tiny.keras"), "-o", str(file), "--quantize", "int8"]) == 1
    assert "has no quantize='int8'" in capsys.readouterr().err


def test_the_guide_runs_from_top_to_bottom(tmp_path):
    for package in ("tensorflow", "torch", "ai_edge_litert", "onnxruntime", "openvino"):
        pytest.importorskip(package)
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    program = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-3:] == ["(2, 10)", "torch.Size([2, 10])", "(2, 10)"]

"""What a file may cost: beyond a bound it is refused, with the bound in the error, before memory is allocated."""

import json
import struct
import zipfile

import h5py
import numpy as np
import pytest
from family_files import load, write, write_safetensors
from torch_pickles import state_dict, tensor, text, torch_zip

import vit_keras
from vit_keras import bounds, checkpoints
from vit_keras.checkpoints.describe import describe
from vit_keras.checkpoints.readers import open_weights
from vit_keras.images import resize_image
from vit_keras.preprocess import PRESETS, Preprocessing


def test_phrases():
    assert bounds.too_many(bounds.LIMIT_ARRAYS) is bounds.too_much(bounds.LIMIT_UNPACKED, 1) is None
    assert bounds.too_much(1 << 40, 1 << 36) is None
    assert "20,001 arrays, and at most 20,000" in bounds.too_many(20_001)
    assert "at most 268,435,456 would be unpacked" in bounds.too_much((1 << 28) + 1, 1 << 10)


@pytest.mark.parametrize("size", [(4097, 4096), (10**9, 1)])
def test_input_of_a_model(size):
    with pytest.raises(ValueError, match="at most 16,777,216 pixels"):
        Preprocessing(image_size=size)
    assert Preprocessing(image_size=4096).image_size == (4096, 4096)
    with pytest.raises(ValueError, match="at most 65,536 patches"):
        bounds.check_input((4096, 4096), (8, 8))


def test_what_is_cut_out_of_more_than_an_input():
    with pytest.raises(ValueError, match="cut from 1/1e-09"):
        Preprocessing(image_size=224, crop=1e-9)
    with pytest.raises(ValueError, match="mean must be"):
        Preprocessing(channels=10**9, mean=0.5)


def test_a_picture_is_not_drawn_out():
    """The shortest side of one row of pixels becomes the model's: the other would have a gigabyte."""
    with pytest.raises(ValueError, match="at most 178,956,970 pixels"):
        PRESETS["timm"](np.zeros((1, 1_000_000, 3), "uint8"), image_size=224)
    with pytest.raises(ValueError, match="at most 178,956,970 pixels"):
        resize_image(np.zeros((1, 1, 3), "uint8"), 10**6)


def test_safetensors_with_too_many_arrays(tmp_path):
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"a{i}": entry for i in range(bounds.LIMIT_ARRAYS + 1)}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match=r"a\.safetensors has 20,001 arrays, and at most 20,000 are read"):
        open_weights(path)


def test_arrays_that_repeat_few_values(tmp_path):
    tensors = {str(i): tensor((1 << 24,), (0,), count=2) for i in range(5)}
    with pytest.raises(ValueError, match="claims to hold 335,544,320"):
        open_weights(torch_zip(tmp_path / "a.pth", state_dict(**tensors), [bytes(8)]))


def test_h5_that_unpacks_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(bounds, "LIMIT_UNPACKED", 1 << 20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.zeros(1 << 21, "u1"), chunks=(1 << 20,), compression="gzip")
    with pytest.raises(ValueError, match="claims to hold 2,097,152"):
        open_weights(tmp_path / "a.h5")


CONFIG = {"module": "keras", "class_name": "Sequential", "config": {"name": "m", "layers": []}}


def archive(path, config=CONFIG, weights=b""):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("config.json", json.dumps(config))
        file.writestr("metadata.json", '{"keras_version": "3.9.0"}')
        file.writestr("model.weights.h5", weights)
    return path


@pytest.mark.parametrize("opening", [vit_keras.load_model, open_weights, vit_keras.open_model])
def test_keras_archive_that_unpacks_to_too_much(tmp_path, monkeypatch, opening):
    monkeypatch.setattr(bounds, "LIMIT_UNPACKED", 1 << 20)
    path = archive(tmp_path / "a.keras", weights=bytes(1 << 21))
    with pytest.raises(ValueError, match=r"a\.keras.*claims to hold 2,097"):
        opening(path)


@pytest.mark.parametrize(("module", "name"), [("os", "system"), ("somebody", "Layer"), (None, "Mine")])
def test_a_class_that_is_not_known_is_named(tmp_path, module, name):
    path = archive(tmp_path / "a.keras", {"module": module, "class_name": name, "config": {}})
    wanted = f"{module}.{name}" if module else name
    with pytest.raises(ValueError, match=rf"a\.keras names {wanted}, which is not known here; nothing was imported"):
        vit_keras.load_model(path)


def test_a_layer_of_a_billion_units(tmp_path):
    layer = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 10**9}}
    config = {**CONFIG, "config": {"name": "m", "layers": [layer]}}
    with pytest.raises(ValueError, match="units=1,000,000,000, and at most 16,777,216"):
        vit_keras.load_model(archive(tmp_path / "a.keras", config))


@pytest.mark.parametrize("name", ["x" * 300 + ".npz", "/" + "x" * 300, "a/" * 3000 + "b.pth", "~nobody-here/a.npz"])
@pytest.mark.parametrize(
    "opening", [checkpoints.Weights, vit_keras.open_model, vit_keras.load_model, open_weights, describe]
)
def test_a_path_that_is_no_path(name, opening):
    with pytest.raises(FileNotFoundError, match="[Tt]here is no"):
        opening(name)


def test_a_class_of_somebodys_own_is_left_out(tmp_path):
    arrays = load("timm_vit").state_dict()
    items = {
        name: tensor(a.shape, [s // 4 for s in a.strides], key=str(i)) for i, (name, a) in enumerate(arrays.items())
    }
    mode = text("mode") + b"c__main__\nMode\nK\x02\x85R"
    program = b"\x80\x02}(" + text("model") + state_dict(**items)[2:-1] + mode + b"u."
    path = torch_zip(tmp_path / "a.pth", program, [a.astype("f4").tobytes() for a in arrays.values()])
    weights = checkpoints.Weights(path)
    assert weights.reader.metadata["left_out"] == ["__main__.Mode"]
    assert "an object of __main__.Mode" in weights.ignored
    np.testing.assert_array_equal(weights.reader["cls_token"], arrays["cls_token"])
    with pytest.raises(ValueError, match=r"wants to run __main__\.Mode; it was not run"):
        open_weights(torch_zip(path, b"\x80\x02}" + mode + b"s."))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"image_size": 10**9}, "at most 16,777,216 pixels"),
        (
            {"pretrained_cfg": {"input_size": [3, 10**9, 10**9]}, "architecture": "vit_tiny_patch16_224"},
            "at most 16,777,216 pixels",
        ),
    ],
)
def test_config_with_a_huge_picture(tmp_path, config, message):
    path = write(load("timm_vit"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message) as error:
        checkpoints.Weights(path)
    assert str(tmp_path / "config.json") in str(error.value)


def test_processor_with_a_huge_picture(tmp_path):
    path = write(load("timm_vit"), tmp_path)
    processor = {"do_normalize": True, "size": {"height": 10**9, "width": 10**9}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    with pytest.warns(UserWarning, match="at most 16,777,216 pixels"):
        assert checkpoints.Weights(path).preprocessing == PRESETS["timm"]


@pytest.mark.parametrize("field", ["registers", "representation_size", "dim_head"])
def test_settings_that_the_arrays_contradict(tmp_path, field):
    settings = json.dumps({"config": {field: 10**9}})
    path = write_safetensors(tmp_path / "a.safetensors", load("timm_vit").state_dict(), {"vit_keras": settings})
    with pytest.raises(ValueError, match=f"{field}.*contradicts the arrays"):
        checkpoints.Weights(path)

"""What a file may cost: beyond a bound it is refused, with the bound in the error, before memory is allocated."""

import json
import struct
import zipfile

import h5py
import keras
import numpy as np
import pytest
from family_files import load, write, write_safetensors
from torch_pickles import state_dict, tensor, text, torch_zip

import vit_keras
from vit_keras._internal import bounds
from vit_keras.checkpoints.readers import hdf5, open_weights
from vit_keras.checkpoints.weights import Weights
from vit_keras.preprocess import PRESETS, Preprocessing


@pytest.mark.parametrize("size", [(4097, 4096), (10**9, 1)])
def test_input_that_a_file_asks_for(size):
    with pytest.raises(ValueError, match="at most 16,777,216 pixels"):
        bounds.check_input(size)
    with pytest.raises(ValueError, match="at most 65,536 patches"):
        bounds.check_input((4096, 4096), (8, 8))
    with pytest.raises(ValueError, match="cut from 1/1e-09"):
        bounds.check_input((224, 224), crop=1e-9)


def test_a_picture_of_no_size_that_memory_holds():
    for wanted in ({"image_size": 10**6}, {"image_size": 224, "crop": 1e-9}):
        with pytest.raises(ValueError, match="at most 67,108,864 pixels"):
            Preprocessing(**wanted)(np.zeros((8, 8, 3), "uint8"))
    with pytest.raises(ValueError, match="mean must be"):
        Preprocessing(channels=10**9, mean=0.5)


def test_safetensors_with_too_many_arrays(tmp_path):
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"a{i}": entry for i in range(bounds.LIMIT_ARRAYS + 1)}).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ValueError, match="5,001 arrays.* at most 5,000"):
        open_weights(path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([f"{i}" for i in range(30)], "has 11 arrays, and at most 10 are read"),
        ([f"g/{i}/vars/" for i in range(30)], "has more than 40 groups and arrays"),
    ],
)
def test_h5_with_too_many_names(tmp_path, monkeypatch, names, message):
    """It is not read beyond the bound."""
    monkeypatch.setattr(bounds, "LIMIT_ARRAYS", 10)
    monkeypatch.setattr(hdf5, "LIMIT_GROUPS", 40)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in names:
            if name.endswith("/"):
                file.create_group(name)
            else:
                file[name] = np.zeros(3, "f4")
    with pytest.raises(ValueError, match=message):
        open_weights(tmp_path / "a.h5")


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
    with pytest.raises(ValueError, match=r"a\.keras"):
        opening(path)


def test_a_layer_of_a_billion_units(tmp_path):
    layer = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 10**9}}
    config = {**CONFIG, "config": {"name": "m", "layers": [layer]}}
    with pytest.raises(ValueError, match="units=1,000,000,000.*16,777,216"):
        vit_keras.load_model(archive(tmp_path / "a.keras", config))


DENSE = {"module": "keras.layers", "class_name": "Dense"}


def perceptron(*units):
    """The configuration of a model of dense layers, without the names that its layers need not have."""
    start = {"module": "keras.layers", "class_name": "InputLayer", "config": {"batch_shape": [None, units[0]]}}
    layers = [start, *({**DENSE, "config": {"units": n}} for n in units[1:])]
    return {**CONFIG, "config": {"name": "m", "layers": layers}}


@pytest.mark.parametrize("units", [[10**5, 10**5], [4000] * 1000], ids=["one-huge", "many"])
def test_layers_with_a_huge_product(tmp_path, units):
    """The error comes before the memory is taken: 40 GB in one layer, 64 MB in each of a thousand."""
    with pytest.raises(ValueError, match=r"[\d,]+.*at most 268,435,456"):
        vit_keras.load_model(archive(tmp_path / "a.keras", perceptron(*units)))
    keras.layers.Dense(4).build((None, 1 << 13))  # nothing is counted later


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "lora", "h5"])
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # it was never built
def test_what_keras_saved_holds_what_it_claims(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(bounds, "LIMIT_UNPACKED", 0)
    dtype = "float16" if kind == "float16" else "float32"
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300, dtype=dtype)])
    path = tmp_path / ("a.h5" if kind == "h5" else "a.keras")
    if kind == "int8":
        model.quantize("int8")
    elif kind == "lora":
        model.layers[0].enable_lora(64)
    elif kind != "h5":
        model.compile("adam", "mse", metrics=["mae"])
    model.save(path)
    assert vit_keras.load_model(path).count_params() == model.count_params()


def test_a_class_of_somebodys_own_is_left_out(tmp_path):
    arrays = load("timm_vit").state_dict()
    items = {
        name: tensor(a.shape, [s // 4 for s in a.strides], key=str(i)) for i, (name, a) in enumerate(arrays.items())
    }
    mode = text("mode") + b"c__main__\nMode\nK\x02\x85R"
    program = b"\x80\x02}(" + text("model") + state_dict(**items)[2:-1] + mode + b"u."
    path = torch_zip(tmp_path / "a.pth", program, [a.astype("f4").tobytes() for a in arrays.values()])
    weights = Weights(path)
    assert weights.reader.metadata["left_out"] == ["__main__.Mode"]
    assert "an object of __main__.Mode" in weights.ignored
    np.testing.assert_array_equal(weights.reader["cls_token"], arrays["cls_token"])
    with pytest.raises(ValueError, match="__main__"):
        open_weights(torch_zip(path, b"\x80\x02}" + mode + b"s."))


@pytest.mark.parametrize(
    "config",
    [
        {"image_size": 10**9},
        {"pretrained_cfg": {"input_size": [3, 10**9, 10**9]}, "architecture": "vit_tiny_patch16_224"},
    ],
)
def test_config_with_a_huge_picture(tmp_path, config):
    path = write(load("timm_vit"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="at most 16,777,216 pixels") as error:
        Weights(path)
    assert str(tmp_path / "config.json") in str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("preprocessor_config.json", {"do_normalize": True, "size": {"height": 10**9, "width": 10**9}}),
        ("config.json", {"pretrained_cfg": {"input_size": [3, 10**9, 10**9]}}),
    ],
)
def test_processor_with_a_huge_picture(tmp_path, name, content):
    path = write(load("timm_vit"), tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.warns(UserWarning, match="at most 16,777,216 pixels"):
        assert Weights(path).preprocessing == PRESETS["timm"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preprocessing": {"image_size": 10**9}}, "at most 16,777,216 pixels"),
        ({"config": {"registers": 10**9}}, "registers.*contradicts"),
        ({"config": {"representation_size": 10**9}}, "representation_size.*contradicts"),
        ({"config": {"dim_head": 10**9}}, "dim_head.*contradicts"),
    ],
)
def test_settings_of_huge_numbers(tmp_path, settings, message):
    said = {"vit_keras": json.dumps(settings)}
    path = write_safetensors(tmp_path / "a.safetensors", load("timm_vit").state_dict(), said)
    with pytest.raises(ValueError, match=message):
        Weights(path)

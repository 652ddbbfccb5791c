"""Files of weights: every format gives its arrays, and no file does anything else."""

import io
import json
import pickle
import re
import struct
import tracemalloc
import zipfile

import h5py
import keras
import ml_dtypes
import numpy as np
import pytest
from support import DATA
from torch_pickles import state_dict, tensor, text, torch_legacy, torch_zip

from vit_keras import from_checkpoint
from vit_keras._internal import bounds
from vit_keras.checkpoints.readers import (
    NpzReader,
    hdf5,
    open_weights,
    sharded,
    torch_pickle,
)

TORCH = DATA / "torch"
FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
INTEGERS = (np.int64, np.int32, np.int16, np.int8, np.uint64, np.uint32, np.uint16, np.uint8, np.bool_)


def numbers(*shape, dtype=np.float32, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * 8).astype(dtype)


def assert_equal(reader, expected):
    """Names, shapes, types and values, exactly: reading only widens, which is exact but from float64."""
    assert set(reader) == set(expected)
    assert len(reader) == len(expected)
    for name, array in expected.items():
        array = np.asarray(array)
        is_float = array.dtype.kind in "fV"
        wanted = array.astype(np.float32) if is_float else array
        assert reader.shape(name) == array.shape
        got = reader[name]
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(got, wanted)


def write(path, data):
    path.write_bytes(data)
    return path


# --- writers, one for each format --------------------------------------------------------------------------

SAFE_NAMES = {
    **{np.dtype(t): f"F{np.dtype(t).itemsize * 8}" for t in FLOATS},
    np.dtype(ml_dtypes.bfloat16): "BF16",
    **{np.dtype(t): f"{'U' if np.dtype(t).kind == 'u' else 'I'}{np.dtype(t).itemsize * 8}" for t in INTEGERS},
    np.dtype(bool): "BOOL",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
    np.dtype(np.complex64): "C64",
}


def safetensors_header(arrays):
    header, start = {}, 0
    for name, array in arrays.items():
        end = start + array.nbytes
        header[name] = {"dtype": SAFE_NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
        start = end
    return header


def safetensors_bytes(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def save_safetensors(path, arrays, **metadata):
    header = {**({"__metadata__": metadata} if metadata else {}), **safetensors_header(arrays)}
    return write(path, safetensors_bytes(header, b"".join(a.tobytes() for a in arrays.values())))


def save_torch(path, arrays):
    kinds = {"f": "FloatStorage", "i": "LongStorage"}
    items, storages = {}, []
    for i, (name, array) in enumerate(arrays.items()):
        strides = [s // array.itemsize for s in array.strides]
        items[name] = tensor(array.shape, strides, key=str(i), kind=kinds[array.dtype.kind])
        storages.append(array.tobytes())
    return torch_zip(path, state_dict(**items), storages)


def save_h5(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def save_keras(path, arrays):
    buffer = io.BytesIO()
    save_h5(buffer, arrays)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", '{"class_name": "Functional"}')
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", buffer.getvalue())
    return path


def save_npz(path, arrays):
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    return path


WRITERS = {
    "npz": save_npz,
    "safetensors": save_safetensors,
    "torch": save_torch,
    "keras_weights": save_h5,
    "keras": save_keras,
}


def example():
    return {"layers/vars/0": numbers(6, 5), "layers/vars/1": numbers(5), "steps/vars/0": np.arange(4)}


@pytest.fixture(params=WRITERS)
def file_of_each_format(request, tmp_path):
    return request.param, WRITERS[request.param](tmp_path / "weights.bin", example())


# --- what all formats share --------------------------------------------------------------------------------


def test_first_bytes_decide(file_of_each_format):
    kind, path = file_of_each_format
    reader = open_weights(str(path))
    assert (reader.format, reader.path) == (kind, path)
    assert_equal(reader, example())
    assert "layers/vars/0" in reader
    assert "nothing" not in reader
    with pytest.raises(KeyError):
        reader["nothing"]
    with pytest.raises(KeyError):
        reader.shape("nothing")
    for name in ("a.onnx", "a.json"):
        assert_equal(open_weights(write(path.with_name(name), path.read_bytes())), example())


def test_truncated(file_of_each_format):
    """A file that is cut off anywhere is an error, on opening or on reading; it is never other values."""
    _, path = file_of_each_format
    data = path.read_bytes()
    for keep in {*range(0, len(data), max(1, len(data) // 60)), 1, 4, 8, 9, 30, len(data) - 1}:
        write(path, data[:keep])
        with pytest.raises(ValueError, match=re.escape(str(path))):
            {name: open_weights(path)[name] for name in open_weights(path)}


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_flipped_bits(file_of_each_format, count):
    """A damaged file is an error that says so, or gives arrays of the shapes that it says."""
    _, path = file_of_each_format
    data = path.read_bytes()
    random = np.random.default_rng(0)
    errors = 0
    for at in random.integers(0, len(data), count):
        damaged = bytearray(data)
        damaged[at] ^= 1 << random.integers(8)
        write(path, damaged)
        try:
            reader = open_weights(path)
            for name in reader:
                assert reader[name].shape == reader.shape(name)
        except ValueError as error:
            assert str(path) in str(error)
            errors += 1
    assert 0 < errors < count


@pytest.mark.parametrize("kind", WRITERS)
def test_memory_is_that_of_one_array(tmp_path, kind):
    arrays = {f"layers/vars/{i}": numbers(1 << 19, seed=i) for i in range(8)}  # 2 MiB each
    path = WRITERS[kind](tmp_path / "weights", arrays)
    open_weights(path)  # imports are not counted
    reader, opening = peak(open_weights, path)
    _, reading = peak(reader.__getitem__, "layers/vars/5")
    # A few pieces of 256 KiB are on the way at any time; a .keras archive is unpacked on opening, piece by piece.
    assert opening < 3 << 19
    assert reading < (1 << 21) + (3 << 19)


@pytest.mark.parametrize(
    "dtype", [np.float16, *(pytest.param(t, marks=pytest.mark.slow) for t in (np.float64, ml_dtypes.bfloat16))]
)
@pytest.mark.parametrize("save", [save_npz, np.savez_compressed, save_safetensors])
def test_widening_takes_no_second_copy(tmp_path, save, dtype):
    path = tmp_path / "weights.npz"
    arguments = {"a": numbers(1 << 21, dtype=dtype)}  # 8 MiB in float32
    save(path, **arguments) if save is np.savez_compressed else save(path, arguments)
    reader = open_weights(path)
    _, reading = peak(reader.__getitem__, "a")
    assert reading < 10 << 20


def peak(function, *arguments):
    tracemalloc.start()
    result = function(*arguments)
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return result, size


# --- what is no file of weights ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "held"),
    [
        ((), "nothing"),
        (("flax_model.msgpack", "config.json"), "config.json, flax_model.msgpack"),
        ("fedcba", "e, …"),
        ("edcba", "d, e"),
    ],
)
def test_a_folder_without_weights_is_described(names, held, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=rf"{held}\. Supported formats: NumPy"):
        open_weights(tmp_path)


def a_zip(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is a PNG image"),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(100), "is a JPEG image"),
        (b"<!DOCTYPE html>\n<html></html>", "is a web page"),
        (b"\n <html><body></body></html>", "is a web page"),
        (b'{"error": "not found"}', "is an error message in XML or JSON"),
        (b'<?xml version="1.0"?><Error/>', "is an error message in XML or JSON"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "is a Git-LFS pointer"),
        (b"", "is an empty file"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(100), "is not a known format of weights"),
        (a_zip(readme=b"text"), "is a zip archive but holds no NumPy arrays, no PyTorch tensors and no Keras model"),
        (a_zip(**{"model/data.pkl": b"\x80\x02", "model/data/0": b""}), "is .*its pickle breaks off"),
        (b"\x10" + bytes(7) + b'{"a":{}}        ', "is .*its header cannot be read"),
        (b"PK\x03\x04" + bytes(50), "is damaged or incomplete"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "is damaged or incomplete"),
        (pickle.dumps({"a": [0.0]}, protocol=2), "is a Python pickle, but not one that torch.save wrote"),
        (pickle.dumps({"a": [0.0]}, protocol=5), "is a Python pickle, but not one that torch.save wrote"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value.replace(" ", "-"),
)
def test_foreign_content_is_named(tmp_path, content, kind):
    path = write(tmp_path / "model.safetensors", content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))} {kind}"):
        open_weights(path)


@pytest.mark.parametrize("name", ["a.onnx", "a.pt2", "a.tflite", "a.XML"])
def test_an_exported_file_is_named(tmp_path, name):
    path = write(tmp_path / name, a_zip(readme=b"text") if name == "a.pt2" else b'<?xml version="1.0"?><net/>')
    with pytest.raises(ValueError, match="looks like an exported file"):
        open_weights(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="empty"):
        open_weights(path)


def test_an_exported_folder_is_named(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ValueError, match="looks like an exported file"):
        open_weights(tmp_path)


def test_missing(tmp_path):
    for read in (open_weights, from_checkpoint):
        with pytest.raises(FileNotFoundError, match=r"at .*nowhere\.pth"):
            read(tmp_path / "nowhere.pth")
        with pytest.raises(FileNotFoundError, match="weights in the folder"):
            read(tmp_path)


def test_what_the_file_says_of_an_array(file_of_each_format):
    """`stored` gives the type in the file, and answers also for an array that cannot be read."""
    reader = open_weights(file_of_each_format[1])
    stored = reader.stored("steps/vars/0")
    assert (stored.shape, stored.dtype, stored.problem) == ((4,), np.dtype("int64"), None)
    np.testing.assert_array_equal(stored.read(), np.arange(4))
    with pytest.raises(KeyError):
        reader.stored("nothing")
    assert "quantized" in open_weights(TORCH / "unreadable.pth").stored("quantised").problem


# --- .npz --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_types(tmp_path, save):
    arrays = {np.dtype(t).name: numbers(3, 4, dtype=t) for t in (*FLOATS, *INTEGERS)}
    arrays |= {"big_endian": numbers(5).astype(">f4"), "scalar": np.float32(2), "empty": numbers(0, 3)}
    arrays["fortran"] = np.asfortranarray(numbers(3, 4, 5))
    save(tmp_path / "a.npz", **arrays)
    reader = open_weights(tmp_path / "a.npz")
    assert isinstance(reader, NpzReader)
    assert_equal(reader, {**arrays, "big_endian": arrays["big_endian"].astype("f4")})


def npy(shape, data=b"", descr="<f4"):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


@pytest.mark.parametrize(
    "member",
    [
        npy((1 << 40,), bytes(64)),
        npy((3,), bytes(16)),
        npy((4,), bytes(8)),
        npy((-4,), bytes(16)),
        npy((-2, -2), bytes(16)),
        npy((1 << 62, 8), b""),
        npy((4,), bytes(16), descr="<f8"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + bytes(64),
        b"\x93NUMPY\x09\x00" + bytes(64),
        b"not an array",
    ],
    ids=["huge", "short", "long", "negative", "negative twice", "overflow", "type", "header", "version", "text"],
)
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_npz_whose_header_lies(tmp_path, member, compression):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", member)

    def fail():
        with pytest.raises(ValueError, match="damaged or incomplete"):
            open_weights(path)

    assert peak(fail)[1] < 1 << 20


def test_npz_of_every_version(tmp_path):
    """NumPy writes version 2 for a header of more than 65,535 bytes, and version 3 for names that are not Latin-1."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for version in (1, 2, 3):
            with archive.open(f"{version}.npy", "w") as file:
                np.lib.format.write_array(file, numbers(2, 3, seed=version), (version, 0))
    assert_equal(open_weights(tmp_path / "a.npz"), {str(n): numbers(2, 3, seed=n) for n in (1, 2, 3)})


def test_npz_with_the_same_name_twice(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.npy", npy((1,), bytes(4)))
        archive.writestr("a.npy", npy((1,), bytes(4)))
    with pytest.raises(ValueError, match=r"two members .*'a\.npy'"):
        open_weights(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("places", "what"),
    [((20,), "contradict one another"), ((24,), "contradict one another"), ((20, 24), "goes beyond the end")],
    ids=["packed", "unpacked", "both"],
)
def test_npz_whose_directory_lies_about_sizes(tmp_path, places, what):
    """A member that is not compressed has two equal sizes, and ends in the file."""
    path = tmp_path / "a.npz"
    np.savez(path, a=numbers(4))
    data = bytearray(path.read_bytes())
    for place in places:
        struct.pack_into("<I", data, data.index(b"PK\x01\x02") + place, len(data))
    with pytest.raises(ValueError, match=rf"'a\.npy' {what}"):
        open_weights(write(path, data))


@pytest.mark.parametrize("claim", [200, 1 << 30])
def test_zip_bomb(tmp_path, claim):
    """The directory says another size than the one to which a member decompresses."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy(((claim - 128) // 4,), bytes(1 << 24)))
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.index(b"PK\x01\x02") + 24, claim)
    write(path, data)

    def fail():
        with pytest.raises(ValueError, match="damaged or incomplete"):
            open_weights(path)["a"]

    assert peak(fail)[1] < 1 << 20


# --- safetensors -------------------------------------------------------------------------------------------


def test_safetensors_types(tmp_path):
    arrays = {str(t): numbers(3, 4, dtype=t) for t in SAFE_NAMES if t.kind != "c"}
    arrays |= {"scalar": np.array(2, np.float32), "empty": numbers(0, 3)}
    reader = open_weights(save_safetensors(tmp_path / "a", arrays, format="pt"))
    assert reader.metadata == {"format": "pt"}
    assert list(reader) == list(arrays)
    assert_equal(reader, arrays)


def test_safetensors_of_the_library(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    arrays = {"b": numbers(3, 4), "a": numbers(5, dtype=np.float16), "c": np.arange(3)}
    library.save_file(arrays, tmp_path / "a", metadata={"x": "y"})
    assert_equal(open_weights(tmp_path / "a"), arrays)


def test_safetensors_with_types_that_are_not_read(tmp_path):
    header = {
        "a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
        "c": {"dtype": "C64", "shape": [1], "data_offsets": [6, 14]},
    }
    reader = open_weights(write(tmp_path / "a", safetensors_bytes(header, bytes(14))))
    assert reader["b"] == [0]
    for name, kind in (("a", "F4"), ("c", "complex64")):
        with pytest.raises(ValueError, match=f"{name!r} .*{kind}"):
            reader[name]


def entry(shape=(1,), start=0, end=4, dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry(shape=[2])}, r"'a' has 4 bytes for the shape \(2,\)"),
        ({"a": entry(dtype="F16")}, r"'a' has 4 bytes for the shape \(1,\) of F16"),
        ({"a": entry(), "b": entry(start=4, end=2, dtype="F6")}, "'b' begins at 4"),
        ({"a": entry(shape=[-1])}, "has the shape"),
        ({"a": entry(shape=[1.0])}, "has the shape"),
        ({"a": entry(shape=[True])}, "has the shape"),
        ({"a": entry(start=4, end=8)}, "begins at 4 where 0"),
        ({"a": entry(start=0, end=-4)}, "the offsets 0, -4"),
        ({"a": entry(), "b": entry()}, "begins at 0 where 4"),
        ({"a": entry(shape=[3], end=12)}, "the arrays end at byte"),
        ({"a": entry(shape=[0], end=0)}, "the arrays end at byte"),
        ({"a": {"dtype": "F32"}}, "data_offsets"),
        ({"a": []}, "its header cannot be read"),
        (b'{"a": ', "its header cannot be read"),
        (b'{"a":' * 100_000, "its header cannot be read"),
        (b'{"a": 1, "a": 2}', "a name comes twice"),
        ({"__metadata__": "pt", "a": entry()}, "its metadata are not a JSON object"),
    ],
)
def test_safetensors_whose_header_lies(tmp_path, header, message):
    content = safetensors_bytes(header, bytes(8 if isinstance(header, dict) and "b" in header else 4))
    with pytest.raises(ValueError, match=message) as error:
        open_weights(write(tmp_path / "a.safetensors", content))
    assert "damaged or incomplete" in str(error.value)


@pytest.mark.parametrize("length", [100, 1 << 26, 1 << 40, (1 << 64) - 1])
def test_safetensors_with_a_header_beyond_the_file(tmp_path, length):
    path = write(tmp_path / "a", struct.pack("<Q", length) + b"{}" + bytes(20))
    with pytest.raises(ValueError, match=f"{length:,} bytes in a file of 30"):
        open_weights(path)


# --- pieces and folders ------------------------------------------------------------------------------------

PIECES = {"a": numbers(2, 3), "b": numbers(4, seed=1), "c": numbers(5, seed=2)}


def in_pieces(folder, save=save_safetensors, index="model.safetensors.index.json", **changes):
    save(folder / "model-1.bin", {n: PIECES[n] for n in "ab"})
    save(folder / "model-2.bin", {"c": PIECES["c"]})
    names = {"a": "model-1.bin", "b": "model-1.bin", "c": "model-2.bin", **changes}
    return write(folder / index, json.dumps({"metadata": {"total_size": 60}, "weight_map": names}).encode())


@pytest.mark.parametrize(
    ("save", "index", "kind"),
    [
        (save_safetensors, "model.safetensors.index.json", "safetensors"),
        (save_torch, "pytorch_model.bin.index.json", "torch"),
    ],
)
def test_pieces(tmp_path, save, index, kind):
    path = in_pieces(tmp_path, save, index)
    for place in (path, tmp_path):
        reader = open_weights(place)
        assert (reader.format, reader.path, reader.metadata) == (kind, path, {"total_size": 60})
        assert_equal(reader, PIECES)


def test_missing_piece_is_named(tmp_path):
    path = in_pieces(tmp_path)
    (tmp_path / "model-2.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"needs model-2\.bin"):
        open_weights(path)


def test_index_names_what_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"'d' is in model-1\.bin"):
        open_weights(in_pieces(tmp_path, d="model-1.bin"))


@pytest.mark.parametrize(
    "name", ["../a.bin", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "C:a", "a\0b", 3, None, [], ["../a"], [["a"]]]
)
def test_pieces_are_beside_the_index(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    save_safetensors(tmp_path / "a.bin", {"d": numbers(2)})
    with pytest.raises(ValueError, match="not an index"):
        open_weights(in_pieces(folder, d=name))


def test_an_index_is_no_piece(tmp_path):
    with pytest.raises(ValueError, match="which is an index itself"):
        open_weights(in_pieces(tmp_path, d="model.safetensors.index.json"))


def test_an_index_has_bounds(tmp_path, monkeypatch):
    path = in_pieces(tmp_path)
    monkeypatch.setattr(bounds, "LIMIT_ARRAYS", 2)  # each piece has at most two
    with pytest.raises(ValueError, match="has 3 arrays"):
        open_weights(path)
    monkeypatch.setattr(sharded, "LIMIT_TEXT", 100)
    with pytest.raises(ValueError, match="it is too large"):
        open_weights(path)


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"[]",
        b'{"weight_map": 3}',
        b'{"weight_map": {}}',
        b'{"weight_map": {}, "metadata": 3}',
        b"{",
        b'{"a":' * 99_999,
    ],
)
def test_no_index(tmp_path, content):
    path = write(tmp_path / "model.safetensors.index.json", content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        open_weights(path)


def test_folder(tmp_path):
    names = ["tf_model.h5", "pytorch_model.bin", "model.safetensors"]  # each better than those before
    (tmp_path / "config.json").write_text("{}")
    for i, name in enumerate(names):
        save_npz(tmp_path / name, {f"a{i}": numbers(2)})
        assert list(open_weights(tmp_path)) == [f"a{i}"]


def test_folder_with_other_names(tmp_path):
    save_npz(tmp_path / "vit.npz", example())
    assert_equal(open_weights(tmp_path), example())
    save_npz(tmp_path / "mixer.npz", example())
    with pytest.raises(ValueError, match=r"several files.*mixer\.npz, vit\.npz"):
        open_weights(tmp_path)


# --- PyTorch -----------------------------------------------------------------------------------------------


def expected(file):
    with np.load(TORCH / "expected.npz") as arrays:
        return {n.removeprefix(f"{file}/"): arrays[n] for n in arrays.files if n.startswith(f"{file}/")}


@pytest.mark.parametrize(
    ("file", "keys"),
    [
        ("plain.pth", [""]),
        ("legacy.pth", [""]),
        ("training.pth", ["model", ""]),
        ("training_legacy.pth", ["model", ""]),
        ("several.pth", ["teacher", "student", "dino_loss"]),
        ("scripted.pt", [""]),
    ],
)
def test_files_of_torch(file, keys):
    reader = open_weights(TORCH / file)
    twin = {"other": "student"} if keys[0] == "teacher" else {}
    assert (reader.format, reader.metadata) == ("torch", {"key": keys[0], "keys": keys, **twin})
    assert len(expected(file)) > 0
    assert_equal(reader, expected(file))


def test_state_dict_of_choice():
    teacher, student = (open_weights(TORCH / "several.pth", key=key) for key in ("teacher", "student"))
    assert list(teacher) == list(student) == ["a"]
    assert teacher["a"].tolist() != student["a"].tolist()
    with pytest.raises(ValueError, match=r"'ema'.*key='teacher' \(1 .*key='stu"):
        open_weights(TORCH / "several.pth", key="ema")


def nested(**dicts):
    return (
        b"\x80\x02}("
        + b"".join(text(n) + program.removeprefix(b"\x80\x02")[:-1] for n, program in dicts.items())
        + b"u."
    )


ONE, TWO = state_dict(a=tensor((2,), (1,))), state_dict(b=tensor((2,), (1,)))


def test_state_dicts_of_equal_standing(tmp_path):
    path = torch_zip(tmp_path / "a.pth", nested(generator=ONE, critic=TWO), [bytes(8)])
    with pytest.raises(ValueError, match="several.*key='generator' .*key='critic'"):
        open_weights(path)
    assert list(open_weights(path, key="critic")) == ["b"]


@pytest.mark.parametrize("better", ["state_dict", "model", "module", "teacher", "target_encoder", "encoder"])
def test_usual_state_dict_is_taken(tmp_path, better):
    path = torch_zip(tmp_path / "a.pth", nested(model_ema=ONE, **{better: TWO}), [bytes(8)])
    assert list(open_weights(path)) == ["b"]
    assert list(open_weights(path, key="model_ema")) == ["a"]


def test_unreadable_tensors_are_refused_when_asked_for():
    reader = open_weights(TORCH / "unreadable.pth")
    np.testing.assert_array_equal(reader["weight"], expected("unreadable.pth")["weight"])
    assert list(reader) == ["weight", "complex", "quantised", "sparse", "meta"]
    for name, why in (("complex", "complex64"), ("quantised", "quantized"), ("sparse", "sparse"), ("meta", "meta")):
        for ask in (reader.__getitem__, reader.shape):
            with pytest.raises(ValueError, match=f"{name!r} .*{why}"):
                ask(name)


@pytest.mark.parametrize(("flag", "is_negative"), [(b"\x88", True), (b"\x89", False)])
def test_a_tensor_whose_sign_is_a_flag_is_refused(tmp_path, flag, is_negative):
    """PyTorch writes `x.conj().imag` with the stored values and `{"neg": True}`."""
    program = tensor((2,), (1,))[:-2] + b"}" + text("neg") + flag + b"stR"
    reader = open_weights(torch_zip(tmp_path / "a.pth", state_dict(a=program), [numbers(2).tobytes()]))
    if is_negative:
        with pytest.raises(ValueError, match=r"'a' .*negative view.*resolve_neg"):
            reader["a"]
    else:
        np.testing.assert_array_equal(reader["a"], numbers(2))


def test_pickled_module():
    with pytest.raises(ValueError, match=r"container\.Sequential.*state_dict\(\)"):
        open_weights(TORCH / "module.pth")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_slices_of_a_storage(tmp_path, compression):
    """Views of one storage, also of one that somebody has compressed: the values, wherever they begin."""
    data = numbers(700_000)
    program = state_dict(
        late=tensor((4,), (1,), count=data.size, offset=699_996),
        columns=tensor((3, 2), (1, 3), count=data.size, offset=5),
        same=tensor((2, 3), (0, 0), count=data.size, offset=7),
        sparse=tensor((3,), (200_000,), count=data.size),
    )
    reader = open_weights(torch_zip(tmp_path / "a.pth", program, [data.tobytes()], compression))
    wanted = {
        "late": data[-4:],
        "columns": data[5:11].reshape(2, 3).T,
        "same": np.full((2, 3), data[7]),
        "sparse": data[:600_000:200_000],
    }
    assert_equal(reader, wanted)


def test_checksum(tmp_path):
    path = save_torch(tmp_path / "a.pth", {"a": np.full((64,), 1.5, "f4"), "b": numbers(3)})
    data = path.read_bytes()
    write(path, data.replace(np.full(64, 1.5, "f4").tobytes(), np.full(64, 2.5, "f4").tobytes()))
    reader = open_weights(path)
    with pytest.raises(ValueError, match="'a' .*checksum"):
        reader["a"]
    assert reader["b"].shape == (3,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3,)}, "has 8 bytes where 12 are needed"),
        ({"offset": 1}, "has 8 bytes where 12 are needed"),
        ({"shape": (1, 2), "strides": (1, 1 << 40)}, "bytes where"),
        ({"shape": (1 << 20, 1 << 20), "strides": (0, 0)}, "is made of 1 values"),
        ({"strides": (1, 1)}, r"of shape \(2,\) has the strides \(1, 1\)"),
        ({"strides": (-1,)}, "whole numbers"),
        ({"offset": -1}, "whole numbers"),
        ({"key": "7"}, "the storage '7' is missing"),
        ({"key": "../data.pkl"}, "is missing"),
        ({"shape": (1,) * 40, "strides": (1,) * 40}, "malformed"),
    ],
)
def test_tensor_that_is_not_in_its_storage(tmp_path, changes, message):
    program = state_dict(a=tensor(**{"shape": (2,), "strides": (1,), "count": 2, **changes}))
    with pytest.raises(ValueError, match=message) as error:
        open_weights(torch_zip(tmp_path / "a.pth", program, [bytes(8)]))
    assert "damaged or incomplete" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "storages", "key"),
    [({"shape": (3,)}, 2, "0"), ({"offset": 1}, 2, "0"), ({}, 1, "1")],  # its last value would be the next storage's
    ids=["long", "offset", "missing"],
)
def test_tensor_that_is_not_in_its_storage_of_the_older_format(tmp_path, changes, storages, key):
    fields = {"shape": (2,), "strides": (1,), "count": 2, **changes}
    program = state_dict(a=tensor(**fields), b=tensor((2,), (1,), key="1"))
    with pytest.raises(ValueError, match=f"the storage '{key}' is missing or too short"):
        open_weights(torch_legacy(tmp_path / "a.pth", program, [bytes(8)] * storages))


def test_part_of_a_storage_of_the_older_format(tmp_path):
    torch = pytest.importorskip("torch")
    program = state_dict(a=tensor((2,), (1,), count=4, view=(1, 3), offset=1))
    path = torch_legacy(tmp_path / "a.pth", program, [np.arange(4, dtype="<f4").tobytes()])
    expected = torch.load(path, weights_only=False)["a"].numpy()
    np.testing.assert_array_equal(open_weights(path)["a"], expected)
    assert expected.tolist() == [2, 3]


def test_two_pickles_in_a_file_of_torch(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pth")
    with zipfile.ZipFile(tmp_path / "a.pth", "a") as archive:
        archive.writestr("other/data.pkl", b"\x80\x02}.")
    with pytest.raises(ValueError, match="it has 2 files data.pkl"):
        open_weights(tmp_path / "a.pth")


def test_encrypted_archives_are_refused(tmp_path):
    content = bytearray(save_npz(tmp_path / "a.npz", {"a": numbers(2)}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # the flag of the directory
    with pytest.raises(ValueError, match=r"'a\.npy' is encrypted"):
        open_weights(write(tmp_path / "a.npz", content))


def test_big_endian_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match="big-endian"):
        open_weights(torch_zip(tmp_path / "a.pth", ONE, [bytes(8)], byteorder=b"big"))
    with pytest.raises(ValueError, match="big-endian"):
        open_weights(torch_legacy(tmp_path / "b.pth", ONE, [bytes(8)], little=False))


@pytest.mark.parametrize("changes", [{"version": 1002}, {"program": b"}."}], ids=str)  # a storage that nothing names
def test_a_damaged_head_of_the_older_format(tmp_path, changes):
    with pytest.raises(ValueError, match="damaged or incomplete"):
        open_weights(torch_legacy(tmp_path / "a.pth", **{"program": ONE, "storages": [bytes(8)], **changes}))


@pytest.mark.slow  # files that PyTorch wrote are among the data; this imports it
@pytest.mark.parametrize("legacy", [False, True])
def test_files_written_now(tmp_path, legacy):
    torch = pytest.importorskip("torch")
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    state = model.state_dict()
    torch.save({"state_dict": state}, tmp_path / "a.pth", _use_new_zipfile_serialization=not legacy)
    assert_equal(open_weights(tmp_path / "a.pth"), {name: value.numpy() for name, value in state.items()})
    torch.save(model, tmp_path / "b.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match=r"TransformerEncoderLayer.*state_dict\(\)"):
        open_weights(tmp_path / "b.pth")


# --- hostile pickles ---------------------------------------------------------------------------------------


def short(module, name):
    """STACK_GLOBAL, protocol 4."""
    return b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name)) + b"\x93"


SPACE = b"cargparse\nNamespace\n)\x81"
# A pickle that wants to run what it names; MARK is a command that makes a file, PATH that file. Those whose name
# begins with an exclamation mark do make it when Python's own pickle module opens them.
PAYLOADS = {
    "!os.system": b"cos\nsystem\nMARK\x85R.",
    "!posix.system": b"cposix\nsystem\nMARK\x85R.",
    "!builtins.eval": b"cbuiltins\neval\nEVAL\x85R.",
    "!builtins.exec": b"cbuiltins\nexec\nEVAL\x85R.",
    "!io.open": b"cio\nopen\n(PATHX\x01\0\0\0wtR.",
    "!subprocess.getoutput": b"csubprocess\ngetoutput\nMARK\x85R.",
    "!os.system by STACK_GLOBAL": short("os", "system") + b"MARK\x85R.",
    "!os.system by INST": b"(MARKios\nsystem\n.",
    "!os.system by OBJ": b"(cos\nsystem\nMARKo.",
    "!os.system by NEWOBJ": b"csubprocess\nPopen\n)\x81cos\nsystem\nMARK\x85R.",
    "!os.system by NEWOBJ_EX": SPACE + b"0cargparse\nNamespace\n)}\x92cos\nsystem\nMARK\x85R.",
    "!os.system by __setstate__": SPACE + b"}" + text("__setstate__") + b"cos\nsystem\nsbMARKb.",
    "!os.system in a state": SPACE + b"}" + text("lr") + b"cos\nsystem\nMARK\x85Rsb.",
    "!os.system in a list": b"](cos\nsystem\nMARK\x85Re.",
    "!builtins.getattr": b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n"
    + text("os")
    + b"\x85R"
    + text("system")
    + b"tRMARK\x85R.",
    "!builtins.__import__": b"cbuiltins\n__import__\n" + text("os") + b"\x85R0cos\nsystem\nMARK\x85R.",
    "!functools.partial of os.system": b"cfunctools\npartial\n(cos\nsystem\nMARKtR)R.",
    "!os.system and back": b"cos\nsystem\nMARK\x85R0}.",
    "copyreg.add_extension": b"ccopyreg\nadd_extension\n(" + text("os") + text("system") + b"K\x01tR.",
    "copyreg._reconstructor of os.system": b"ccopyreg\n_reconstructor\n(cos\nsystem\ncbuiltins\nobject\nNtRMARKb.",
    "builtins.map": b"cbuiltins\nmap\n(cos\nsystem\n(MARKltR.",
    "os.system of a tensor's class": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nctorch\nSize\nMARK\x85NtR.",
    "os.system for the hooks": b"ctorch._utils\n_rebuild_parameter\n(NNcos\nsystem\nMARK\x85RtR.",
    "os.system as a storage": b"(" + text("storage") + b"cos\nsystem\nMARKMARKK\x01tQ.",
    "os.system by a dotted name": short("torch", "hub.os.system") + b"MARK\x85R.",
    "os.system through a module": short("posixpath", "os.system") + b"MARK\x85R.",
    "torch.hub.load": b"ctorch.hub\nload\n(PATHX\x01\0\0\0wtR.",
    "numpy.load": b"cnumpy\nload\nPATH\x85R.",
    "somebody.run": b"csomebody\nrun\nMARK\x85R.",
    "partial, called": b"cfunctools\npartial\n(cbuiltins\nstr\nMARKtR)R.",
    "namespace, called": SPACE + b")R.",
    "codec": b"c_codecs\nencode\n(MARK" + text("rot13") + b"tR.",
    "EXT1": b"\x82\x01.",
    "EXT2": b"\x83\x01\x00.",
    "EXT4": b"\x84\x01\x00\x00\x00.",
    "PERSID": b"Pos.system\n.",
    "NEXT_BUFFER": b"\x97.",
    "attribute of a class": b"ccollections\nOrderedDict\n}" + text("__init__") + b"cbuiltins\nstr\nsb.",
}


def payload(name, mark):
    program = PAYLOADS[name].replace(b"EVAL", text(f"open({str(mark)!r}, 'w').close()"))
    return program.replace(b"MARK", text(f"echo > {mark}")).replace(b"PATH", text(str(mark)))


@pytest.mark.parametrize("name", [name for name in PAYLOADS if name.startswith("!")])
def test_payloads_are_live(tmp_path, name):
    """Those that should make a file do, with Python's own machine: the tests below test something."""
    mark = tmp_path / "mark"
    try:
        pickle.loads(b"\x80\x04" + payload(name, mark))
    except Exception as error:  # most break off after they have done their work
        print(error)
    assert mark.exists()


@pytest.mark.parametrize("save", [torch_zip, torch_legacy])
@pytest.mark.parametrize("around", [b"%s", b"}" + text("model") + b"%ss"], ids=["alone", "inside"])
@pytest.mark.parametrize("name", PAYLOADS)
def test_nothing_is_run(tmp_path, monkeypatch, name, around, save):
    def never(*_):
        raise AssertionError("something was imported")

    mark, path = tmp_path / "mark", tmp_path / "a.pth"
    save(path, b"\x80\x04" + around.replace(b"%s", payload(name, mark)[:-1]) + b".")
    monkeypatch.setattr("builtins.__import__", never)
    try:
        with pytest.raises(ValueError, match=re.escape(str(path))) as error:
            open_weights(path)
    finally:
        monkeypatch.undo()
    assert not mark.exists()
    if wanted := re.match(r"!?((os|posix|io|numpy|subprocess|builtins|torch|somebody)\.[\w.]+)", name):
        by = "subprocess.Popen" if name.endswith("NEWOBJ") else wanted[1]
        by = {"os.system through a module": "posixpath.os.system"}.get(name, by)
        by = {"os.system by a dotted name": "torch.hub.os.system"}.get(name, by)
        assert f"wants to run {by}; it was not run" in str(error.value)


def test_unknown_classes_are_notes(tmp_path):
    """An object of a class that is not at hand does not keep the weights from being read; it is not made."""
    config = b"comegaconf.dictconfig\nDictConfig\n)\x81" + text("lr") + b"K\x01sK\x01a}" + text("lr") + b"K\x01sb"
    called = b"cmy_project.settings\nmake\n(" + text("lr") + b"tR"  # a function that the pickle calls
    program = nested(model=ONE)[:-2] + text("config") + config + text("settings") + called + b"u."
    assert list(open_weights(torch_zip(tmp_path / "a.pth", program, [bytes(8)]))) == ["a"]
    module = b"(" + text("module") + b"cmy_project\nNet\n" + text("net.py") + text("class Net: ...") + b"tQ"
    program = nested(model=ONE)[:-2] + text("net") + module + b"u."
    assert list(open_weights(torch_legacy(tmp_path / "b.pth", program, [bytes(8)]))) == ["a"]
    build, arguments = tensor((2,), (1,)).split(b"(", 1)
    typed = b"ctorch._tensor\n_rebuild_from_type_v2\n(" + build + b"cmy_project\nTensor\n(" + arguments[:-1] + b"NtR"
    found = open_weights(torch_zip(tmp_path / "c.pth", state_dict(a=typed), [np.float32([1, 2]).tobytes()]))
    np.testing.assert_array_equal(found["a"], [1, 2])


@pytest.mark.parametrize(
    "program",
    [
        b"\x8b" + struct.pack("<i", (1 << 31) - 1) + bytes(20),
        b"\x8e" + struct.pack("<Q", 1 << 60) + bytes(20),
        b"\x8d" + struct.pack("<Q", 1 << 60) + bytes(20),
        b"X" + struct.pack("<I", (1 << 32) - 1) + bytes(20),
        b"\x96" + struct.pack("<Q", 1 << 40) + bytes(20),
        b"}r" + struct.pack("<I", (1 << 32) - 1) + b"j" + struct.pack("<I", 7) + b".",
        text("x" * 100_000) + b"q\0" + text("latin1") + b"\x86q\x01" + b"c_codecs\nencode\nh\x01R" * 2000 + b".",
        b"}\x8a\x20" + bytes(31) + b"\x01Ns.",
        b"}]Ns.",
        b"c" + b"a" * 100_000 + b"\nb\n.",
        b"L" + b"9" * 1_000_000 + b"L\n.",
        # A tuple of 2 to the power of 40 items, were it written out.
        b"ctorch._utils\n_rebuild_tensor_v3\n(NK\0))\x89N)" + b"2\x86" * 40 + b"tR.",
        b"K\x01",
        b"",
        b".",
        b"0.",
        b"e.",
        b"tR.",
        b"K\x01K\x02s.",
        b"h\x09.",
        b"(K\x01d.",
        b"NN}b.",
        b"\x80\x09.",
        b"\xff.",
        b"I1x\n.",
        b"(Q.",
        b")Q.",
        b"(" + text("storage") + b"NNNNtQ.",
        b"(" + text("storage") + b"tQ.",
        b"NN\x93.",
        b"N)\x81.",
        b"ccollections\nOrderedDict\n]R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0))tR.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(NNNNtR.",
    ],
    ids=lambda program: repr(program[:12]),
)
@pytest.mark.parametrize("save", [torch_zip, torch_legacy])
def test_pickle_bombs(tmp_path, program, save):
    path = save(tmp_path / "a.pth", b"\x80\x02" + program)

    def fail():
        with pytest.raises(ValueError, match=re.escape(str(path))):
            open_weights(path)

    assert peak(fail)[1] < 20 << 20  # 16 MiB may be copied


@pytest.mark.parametrize(
    "program",
    [b"]" * 11_000, b"(" * 11_000, b")" + b"\x85" * 2_000, b"})" + b"\x85" * 2_000 + b"Ns"],
    ids=["lists", "marks", "nested", "nested-key"],
)
@pytest.mark.parametrize("times", [1, pytest.param(100, marks=pytest.mark.slow)])
def test_pickles_of_many_steps(tmp_path, monkeypatch, program, times):
    monkeypatch.setattr(torch_pickle, "LIMIT_STEPS", 10_000 * times)
    step = max(set(program), key=program.count).to_bytes(1, "little")
    program = program.replace(step * 2_000, step * 2_000 * times)
    path = torch_zip(tmp_path / "a.pth", b"\x80\x02" + program + b".")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        open_weights(path)


@pytest.mark.parametrize("limit", [1 << 22, pytest.param(torch_pickle.LIMIT_BYTES, marks=pytest.mark.slow)])
def test_pickle_that_is_too_long(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(torch_pickle, "LIMIT_BYTES", limit)
    program = b"\x80\x02B" + struct.pack("<I", 2 * limit) + bytes(2 * limit) + b"."
    path = torch_zip(tmp_path / "a.pth", program, compression=zipfile.ZIP_DEFLATED)
    length = len(program)
    del program

    def fail():
        with pytest.raises(ValueError, match=f"{length:,} bytes.* at most {limit:,}"):
            open_weights(path)

    assert peak(fail)[1] < 1 << 20


def test_pickles_that_refer_to_themselves(tmp_path):
    loop = b"\x80\x02}q\0" + text("model") + b"h\0s" + text("a") + tensor((2,), (1,)) + b"s."
    assert list(open_weights(torch_zip(tmp_path / "a.pth", loop, [bytes(8)]))) == ["a"]
    script = b"\x80\x02c__torch__\nA\n)\x81q\0}" + text("a") + b"h\0sb."
    with pytest.raises(ValueError, match="nested too deeply"):
        open_weights(torch_zip(tmp_path / "b.pth", script))


@pytest.mark.parametrize("count", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_random_programs(tmp_path, count):
    """Damage in a real program is an error that names the file, or another state dict; never anything else."""
    random = np.random.default_rng(0)
    for file in ("training.pth", "scripted.pt"):
        with zipfile.ZipFile(TORCH / file) as archive:
            members = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
        program = members.pop("data.pkl")
        for _ in range(count):
            damaged = bytearray(program)
            for at in random.integers(0, len(program), 3):
                damaged[at] = random.integers(256)
            path = torch_zip(tmp_path / "a.pth", bytes(damaged), **members)
            try:
                reader = open_weights(path)
            except ValueError as error:
                assert str(path) in str(error)
            else:
                assert reader.metadata["keys"]


def test_machine_gives_plain_data():
    value = {"a": [1, 2.5, None, True, -(2**40), b"x", ("y", {"z": "é"})], "b": {1: {2, 3}}}
    wanted = {**value, "b": {1: [2, 3]}}
    for protocol in range(6):
        program = pickle.dumps(value, protocol)
        assert torch_pickle.load(io.BytesIO(program)) == wanted
    ordered = b"\x80\x02ccollections\nOrderedDict\n"
    made = b"\x80\x02ccopy_reg\n_reconstructor\n(ccollections\nOrderedDict\nc__builtin__\ndict\n}tR"
    pairs, item = b"(]]X\x01\0\0\0aaK\x01aatR.", b")\x81X\x01\0\0\0aK\x01s."
    for program in (ordered + pairs, ordered + item, made + b".", b"((0K\x01t."):
        assert torch_pickle.load(io.BytesIO(program)) == pickle.loads(program)


# --- HDF5 and .keras ---------------------------------------------------------------------------------------


def small_model():
    layers = [keras.Input((4,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(2, name="second")]
    return keras.Sequential(layers, name="tiny")


def test_keras_3(tmp_path):
    model = small_model()
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "a.weights.h5")
    for name, kind in (("a.keras", "keras"), ("a.weights.h5", "keras_weights")):
        reader = open_weights(tmp_path / name)
        assert reader.format == kind
        got = sorted((reader[n].tolist() for n in reader if reader.shape(n)), key=str)
        assert got == sorted((w.tolist() for w in model.get_weights()), key=str)
        assert all("/vars/" in n for n in reader)
    config = open_weights(tmp_path / "a.keras").metadata["config"]
    assert config["class_name"] == "Sequential"


def test_legacy_h5_of_keras_3(tmp_path):
    model = small_model()
    model.save(tmp_path / "a.h5")
    reader = open_weights(tmp_path / "a.h5")
    assert reader.format == "h5"
    names = [f"{layer}/{name}" for layer in ("first", "second") for name in ("kernel", "bias")]
    assert [n.removeprefix("tiny/") for n in reader] == names
    for name, wanted in zip(reader, model.get_weights()):
        np.testing.assert_array_equal(reader[name], wanted)


@pytest.mark.parametrize("file", ["v010.h5", "v010_weights.h5", "v020.h5"])
def test_h5_of_keras_2(file):
    reader = open_weights(DATA / "vit_keras_0" / file)
    assert reader.format == "h5"
    assert {"embedding/kernel", "embedding/bias", "class_token/cls", "head/kernel"} < set(reader)
    assert not any(":" in name for name in reader)
    assert all(reader[name].shape == reader.shape(name) for name in reader)


def keras_2(path, layers, weights, top=(), root=""):
    with h5py.File(path, "w") as file:
        group = file.require_group(root) if root else file
        group.attrs["layer_names"] = [name.encode() for name in layers]
        for layer in layers:
            group.require_group(layer).attrs["weight_names"] = [n.encode() for n in weights.get(layer, ())]
        group.require_group("top_level_model_weights").attrs["weight_names"] = [n.encode() for n in top]
        for layer, names in {**weights, "top_level_model_weights": top}.items():
            for i, name in enumerate(names):
                group[f"{layer}/{name}"] = np.full((2,), i, "f4")
    return path


def test_name_of_the_model_is_left_out(tmp_path):
    """Hugging Face's TensorFlow models write the name of their class before each name, and a number behind it."""
    for scope in ("tf_vi_t_for_image_classification", "tf_vi_t_for_image_classification_1", "tfclip_vision_model"):
        weights = {
            "vit": [f"{scope}/vit/encoder/layer_._0/attention/attention/query/kernel:0", f"{scope}/vit/norm/beta:0"],
            "classifier": [f"{scope}/classifier/kernel:0"],
        }
        path = keras_2(tmp_path / "tf_model.h5", list(weights), weights, top=[f"{scope}/vit/cls:0"])
        assert list(open_weights(path)) == [
            "vit/encoder/layer_._0/attention/attention/query/kernel",
            "vit/norm/beta",
            "classifier/kernel",
            "vit/cls",
        ]


def test_h5_whose_names_contradict_its_arrays(tmp_path):
    path = keras_2(tmp_path / "a.h5", ["a"], {"a": ["x:0", "x"]})
    with pytest.raises(ValueError, match="two weights have the same name"):
        open_weights(path)
    path = keras_2(tmp_path / "b.h5", ["a"], {"a": ["x:0", "y:0"]})
    with h5py.File(path, "a") as file:
        del file["a/y:0"]
    with pytest.raises(ValueError, match="it names 'a/y:0' as a weight, which is not in it"):
        open_weights(path)
    with h5py.File(path, "a") as file:
        del file["a"]
    with pytest.raises(ValueError, match=r"b\.h5 is damaged or incomplete: .*'a'"):
        open_weights(path)


@pytest.mark.parametrize("groups", [64, 65])
def test_h5_of_deep_groups(groups, tmp_path):
    name = "/".join(["g"] * groups + ["x"])
    save_h5(tmp_path / "a.h5", {name: numbers(2)})
    if groups == 64:
        assert_equal(open_weights(tmp_path / "a.h5"), {name: numbers(2)})
    else:
        with pytest.raises(ValueError, match="more than 64 deep"):
            open_weights(tmp_path / "a.h5")


def test_weights_of_a_model_itself(tmp_path):
    """A model's own variables are at the root of Keras' file."""

    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.scale = self.add_weight(shape=(3,), initializer="ones")
            self.built = True

    Scaled().save_weights(tmp_path / "a.weights.h5")
    reader = open_weights(tmp_path / "a.weights.h5")
    assert reader.format == "keras_weights"
    assert_equal(reader, {"vars/0": np.ones(3, "f4")})


def test_names_in_several_attributes(tmp_path):
    """HDF5 has no attributes over 64 kB, so Keras cuts up the longer ones."""
    path = keras_2(tmp_path / "a.h5", ["a"], {"a": ["x:0", "y:0", "z:0"]})
    with h5py.File(path, "a") as file:
        del file["a"].attrs["weight_names"]
        file["a"].attrs["weight_names0"] = [b"x:0", b"y:0"]
        file["a"].attrs["weight_names1"] = [b"z:0"]
    assert list(open_weights(path)) == ["x", "y", "z"]


def test_h5_types(tmp_path):
    arrays = {np.dtype(t).name: numbers(3, 4, dtype=t) for t in (*FLOATS[:3], *INTEGERS)}
    arrays |= {"big_endian": numbers(5).astype(">f4"), "scalar": np.float32(2), "empty": numbers(0, 3)}
    save_h5(tmp_path / "a.h5", arrays)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("bfloat16", data=numbers(3, 4, dtype=ml_dtypes.bfloat16))
        file["bfloat16"].attrs["dtype"] = "bfloat16"
        file.create_dataset("compressed", data=np.zeros((300, 300), "f4"), compression="gzip", chunks=True)
        file["text"] = "text"
    arrays |= {"bfloat16": numbers(3, 4, dtype=ml_dtypes.bfloat16), "compressed": np.zeros((300, 300), "f4")}
    reader = open_weights(tmp_path / "a.h5")
    with pytest.raises(ValueError, match="'text' cannot be read"):
        reader["text"]
    arrays["big_endian"] = arrays["big_endian"].astype("f4")
    for name, array in arrays.items():
        wanted = np.asarray(array, np.float32 if np.asarray(array).dtype.kind in "fV" else None)
        assert reader.shape(name) == wanted.shape
        assert (reader[name].shape, reader[name].dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(reader[name], wanted)


def test_bfloat16_weights_of_keras(tmp_path):
    layer = keras.layers.Dense(3, dtype="bfloat16")
    model = keras.Sequential([keras.Input((4,)), layer])
    model.save_weights(tmp_path / "a.weights.h5")
    reader = open_weights(tmp_path / "a.weights.h5")
    (name,) = [n for n in reader if reader.shape(n) == (4, 3)]
    wanted = keras.ops.convert_to_numpy(keras.ops.cast(layer.kernel, "float32"))
    np.testing.assert_array_equal(reader[name], wanted)


def test_h5_that_claims_or_borrows(tmp_path):
    secret = write(tmp_path / "secret", bytes(64))
    save_h5(tmp_path / "other.h5", {"x": numbers(3)})
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["weight"] = numbers(3)
        file.create_dataset("huge", (1 << 40,), "f4")
        file.create_dataset("chunked", (1 << 40,), "f4", chunks=(1 << 10,), compression="gzip")
        file.create_dataset("outside", (4,), "f4", external=[(str(secret), 0, 16)])
        layout = h5py.VirtualLayout((3,), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (3,))
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink("other.h5", "x")
        partly = file.create_dataset(
            "partly", (1 << 20,), "f4", chunks=(1 << 10,)
        )  # it could be larger when compressed
        partly[: 1 << 10] = 1
        file["empty"] = h5py.Empty("f4")
        file["single"] = numbers(3)
        file["single"].attrs["dtype"] = "bfloat16"  # which has two bytes
    reader = open_weights(tmp_path / "a.h5")
    assert set(reader) == {"weight", "huge", "chunked", "outside", "virtual", "partly", "empty", "single"}
    for name, message in (("partly", "it claims 4,194,304 bytes and has 4,096"), ("empty", "it is empty")):
        with pytest.raises(ValueError, match=message):
            reader[name]
    np.testing.assert_array_equal(reader["single"], numbers(3))
    for name in ("huge", "chunked"):
        with pytest.raises(ValueError, match=f"{name!r} .*4,398,046,511,104"):
            reader[name]
    for name in ("outside", "virtual"):
        with pytest.raises(ValueError, match=f"{name!r} .*another file"):
            reader[name]


def test_h5_without_weights(tmp_path):
    with pytest.raises(ValueError, match="an HDF5 file without weights"):
        open_weights(save_h5(tmp_path / "a.h5", {}))


@pytest.mark.parametrize("limit", [1 << 20, pytest.param(hdf5.LIMIT_TEXT, marks=pytest.mark.slow)])
def test_keras_archive_with_a_bomb(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(hdf5, "LIMIT_TEXT", limit)
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", bytes(limit + 1))
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ValueError, match=f"{limit + 1:,} bytes.* at most {limit:,}"):
        open_weights(path)


def test_keras_archive_that_claims_too_much(tmp_path, monkeypatch):
    path = save_keras(tmp_path / "a.keras", {"layers/dense/vars/0": numbers(2)})
    monkeypatch.setattr(bounds, "LIMIT_UNPACKED", 1000)
    monkeypatch.setattr(bounds, "LIMIT_RATIO", 0.5)
    with pytest.raises(ValueError, match="claims to hold"):
        open_weights(path)


def test_keras_archive_without_a_configuration(tmp_path):
    save_h5(tmp_path / "model.weights.h5", {"layers/dense/vars/0": numbers(2)})
    with zipfile.ZipFile(tmp_path / "a.keras", "w") as archive:
        archive.write(tmp_path / "model.weights.h5", "model.weights.h5")
    assert open_weights(tmp_path / "a.keras").metadata == {"config": None}

"""Hostile and broken input, generated: one function a kind, each case from a seed.

A function yields `(name, call, source)` for each of its cases, after writing the files of that case into `folder`.
`call` says what is done with `source`: "model" opens it, "arrays" reads all arrays, "picture" reads an image. A payload
that is executed makes the file `canary`.
"""

import io
import itertools
import json
import marshal
import pickle
import random
import struct
import tarfile
import zipfile
import zlib

import h5py
import numpy as np
from family_files import load
from torch_pickles import state_dict, tensor, text, torch_legacy, torch_zip

ABSURD = (10**9, -1, 0, 1.5, "x", None, [], {}, True, [1] * 5, float("nan"), float("inf"), 10**400, [10**9, 10**9])


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def weights():
    """The arrays of a small Vision Transformer, by timm's names."""
    return load("timm_vit").state_dict()


def safetensors(arrays, metadata=None, **changes):
    header, start = {"__metadata__": metadata} if metadata else {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        start += array.nbytes
    return framed({**header, **changes}, b"".join(array.tobytes() for array in arrays.values()))


def framed(header, data=b""):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + data


def archive(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def broken(path, data, seed, count=12):
    """A file that breaks off, and one with wrong bytes, at places by the seed."""
    random_ = random.Random(seed)
    for i in range(count):
        write(path, data[: random_.randrange(1, len(data))])
        yield f"cut-{i}", path
        wrong = bytearray(data)
        for _ in range(1 + i):
            wrong[random_.randrange(len(data) if i % 2 else min(len(data), 4096))] = random_.randrange(256)
        write(path, bytes(wrong))
        yield f"wrong-bytes-{i}", path


def npy(header, data=b"", version=b"\x01\x00"):
    header = header.encode("latin1")
    size = struct.pack("<H" if version == b"\x01\x00" else "<I", len(header))
    return b"\x93NUMPY" + version + size + header + data


def npz(folder, canary):
    path, good = folder / "a.npz", io.BytesIO()
    np.savez(good, **weights())
    for name, file in broken(path, good.getvalue(), 1):
        yield name, "model", file
    header = "{'descr': %s, 'fortran_order': False, 'shape': %s, }\n"
    evil = f"__import__('os').system('touch {canary}')"
    headers = [
        ("'<f4'", shape) for shape in ("(4294967296,)", "(-4,)", "(1, 2", "(1.5,)", "(True,)", "(" + "1," * 99 + ")")
    ]
    headers += [("'<f4'", f"({'9' * 5000},)"), ("'<f4'", "(" * 20000), (evil, "(4,)"), ("'<f4'", evil)]
    headers += [
        (kind, "(4,)") for kind in ("'|O'", "'<f99'", "'<U9'", "[('a', '<f4')]", "'<c8'", "'<M8[s]'", "'V4'", "None")
    ]
    headers += [("'|V999999999'", "(1,)"), ("[" + "('a', '<f4')," * 3000 + "]", "(1,)")]
    for i, parts in enumerate(headers):
        members = [(f"{name}.npy", save(array)) for name, array in weights().items()]
        write(path, archive([*members, ("z.npy", npy(header % parts, bytes(16)))]))
        yield f"header-{i}", "model", path
        yield f"header-{i}-arrays", "arrays", path
    write(path, archive([("a.npy", save(np.array([Payload(canary)], object)))]))
    yield "pickle", "arrays", path
    for i, name in enumerate(
        ("../../a.npy", "/etc/a.npy", "a\0b.npy", "x" * 60000 + ".npy", ".npy", "C:\\a.npy", "é\n.npy")
    ):
        write(path, archive([(name, save(np.zeros(4, "f4")))]))
        yield f"name-{i}", "model", path
    data = archive([("a.npy", npy(header % ("'<f4'", "(268435456,)"), bytes(1 << 24)))], zipfile.ZIP_DEFLATED)
    yield "bomb", "arrays", write(path, data)
    for offset, fmt, value in (
        (24, "<I", 1 << 31),
        (20, "<I", 1 << 31),
        (8, "<H", 1),
        (10, "<H", 99),
        (42, "<I", 1 << 31),
    ):
        lie = bytearray(archive([("a.npy", save(np.zeros(4, "f4")))]))
        struct.pack_into(fmt, lie, lie.index(b"PK\x01\x02") + offset, value)
        yield f"directory-{offset}", "arrays", write(path, bytes(lie))
    yield "overlap", "arrays", write(path, overlapping(2000))
    yield "many", "arrays", write(path, archive([(f"{i}.npy", b"") for i in range(20_001)]))


def overlapping(count):
    """An archive whose members are all the same bytes of the file."""
    data = archive([("a.npy", save(np.zeros(1 << 16, "f4")))])
    start = data.index(b"PK\x01\x02")
    entry = data[start : start + 46]
    entries = b"".join(entry[:28] + struct.pack("<H", 10) + entry[30:46] + b"%06d.npy" % i for i in range(count))
    return data[:start] + entries + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(entries), start, 0)


def save(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


class Payload:
    """An object whose pickle makes a file."""

    def __init__(self, canary, by="os.system"):
        self.canary, self.by = str(canary), by

    def __reduce__(self):
        import os

        if self.by == "os.system":
            return os.system, (f"touch {self.canary}",)
        return {"eval": eval, "exec": exec}[self.by], (f"open({self.canary!r}, 'w').close()",)


def tensors(folder, canary):
    """Files of safetensors."""
    path, good = folder / "model.safetensors", safetensors(weights())
    for name, file in broken(path, good, 2):
        yield name, "model", file
    for length in (0, 1, 7, 1 << 20, 1 << 32, (1 << 63) - 1, (1 << 64) - 1):
        yield f"length-{length}", "model", write(path, struct.pack("<Q", length) + good[8:])
    for i, header in enumerate(
        (b"{" * 200_000, b'{"a":' * 200_000, b"[" * 100_000, b"{}", b"null", b"{\xff}", b'{"a": NaN}')
    ):
        yield f"json-{i}", "arrays", write(path, framed(header))
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    for key, value in itertools.product(entry, ABSURD):
        yield f"{key}-{str(value)[:12]}", "arrays", write(path, framed({"a": {**entry, key: value}}, bytes(4)))
    yield "overlap", "arrays", write(path, framed({"a": entry, "b": entry}, bytes(4)))
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    yield "many", "model", write(path, framed({f"a{i}": empty for i in range(100_000)}))
    yield "long-name", "model", write(path, safetensors({**weights(), "x" * 100_000: np.zeros(1, "f4")}))
    for i, dtype in enumerate(("F4", "C64", "BOOL", "I64", "F8_E8M0")):
        changed = {"norm.bias": {"dtype": dtype, "shape": [3], "data_offsets": [0, 3]}}
        yield f"dtype-{i}", "model", write(path, safetensors(weights(), **changed))
    fields = (
        "image_size",
        "registers",
        "representation_size",
        "dim_head",
        "num_layers",
        "classes",
        "resnet",
        "num_heads",
    )
    for field, value in itertools.product(fields, (10**9, "x", [10**6, 10**6])):
        settings = {"vit_keras": json.dumps({"config": {field: value}})}
        yield f"settings-{field}-{type(value).__name__}", "model", write(path, safetensors(weights(), settings))
    for i, value in enumerate(({"image_size": 10**9}, {"channels": 10**9, "mean": 0.5}, {"crop": 1e-9}, [], {"a": 1})):
        settings = {"vit_keras": json.dumps({"config": {}, "preprocessing": value})}
        yield f"preprocessing-{i}", "model", write(path, safetensors(weights(), settings))


def torch(folder, canary):
    path = folder / "a.pth"
    one = tensor((2,), (1,))
    for by, protocol in itertools.product(("os.system", "eval", "exec"), range(6)):
        payload = pickle.dumps({"model": Payload(canary, by)}, protocol)
        yield f"{by}-{protocol}-zip", "arrays", torch_zip(path, payload, [bytes(8)])
        yield f"{by}-{protocol}-legacy", "arrays", torch_legacy(path, payload, [bytes(8)])
        yield f"{by}-{protocol}-plain", "arrays", write(path, payload)
    good = torch_zip(folder / "good.pth", state_dict(a=one, b=one), [bytes(8)]).read_bytes()
    for name, file in broken(path, good, 3):
        yield name, "arrays", file
    bombs = {
        "memo": b"\x80\x02]q\0" + b"(h\0h\0h\0h\0h\0h\0h\0h\0lq\0" * 5000 + b".",
        "stack": b"\x80\x02" + b"(" * 900_000 + b".",
        "depth": b"\x80\x02" + b"]" + b"]a" * 200_000 + b".",
        "dup": b"\x80\x02" + text("x" * 60_000) + b"2" * 500_000 + b".",
        "long": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b".",
        "cycle": b"\x80\x02}q\0" + text("model") + b"h\0s.",
        "key": b"\x80\x02}" + b"(" * 500 + b"t" * 500 + b"Ns.",
        "get": b"\x80\x02h\xff.",
        "newobj": b"\x80\x02csubprocess\nPopen\n" + text(f"touch {canary}") + b"\x85\x81.",
        "codec": b"\x80\x02c_codecs\nencode\n(" + text("x" * 1_000_000) + text("utf-8") + b"tR.",
    }
    for name, program in bombs.items():
        yield name, "arrays", torch_zip(path, program, [bytes(8)])
    for i, changes in enumerate(
        ({"offset": 1 << 40}, {"shape": (1 << 40,)}, {"strides": (1 << 40,)}, {"key": "../../a"}, {"count": -1})
    ):
        program = state_dict(a=tensor(**{"shape": (2,), "strides": (1,), **changes}))
        yield f"storage-{i}", "arrays", torch_zip(path, program, [bytes(8)])
    repeated = state_dict(**{str(i): tensor((1 << 24,), (0,), count=2) for i in range(100)})
    yield "repeated", "arrays", torch_zip(path, repeated, [bytes(8)])
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("../storages")
        info.size = 4
        tar.addfile(info, io.BytesIO(b"abcd"))
    yield "tar", "arrays", path
    arrays = weights()
    items = {name: tensor(a.shape, strides(a), key=str(i)) for i, (name, a) in enumerate(arrays.items())}
    enum = b"}" + text("mode") + b"c__main__\nMode\nK\x02\x85Rs"
    beside = b"\x80\x02}(" + text("model") + state_dict(**items)[2:-1] + text("args") + enum + b"u."
    yield "enum-beside-good-weights", "model", torch_zip(path, beside, [a.tobytes() for a in arrays.values()])


def strides(array):
    return tuple(step // array.itemsize for step in array.strides)


def hdf5(folder, canary):
    path, good = folder / "a.h5", io.BytesIO()
    with h5py.File(good, "w") as file:
        for name, array in weights().items():
            file[f"layers/{name}"] = array
    for name, broken_file in broken(path, good.getvalue(), 4):
        yield name, "arrays", broken_file
    write(folder / "secret", bytes(64))

    def new():
        return h5py.File(path, "w")

    with new() as file:
        file["a"] = h5py.ExternalLink("/etc/passwd", "/")
        file["b"] = h5py.SoftLink("/c")
        file["c"] = h5py.SoftLink("/b")
    yield "links", "arrays", path
    with new() as file:
        group = file.create_group("g")
        group["again"] = group
        file["a"] = np.zeros(3, "f4")
    yield "loop", "arrays", path
    with new() as file:
        file.create_dataset("a", (4,), "f4", external=[(str(folder / "secret"), 0, 16)])
        layout = h5py.VirtualLayout((3,), "f4")
        layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
        file.create_virtual_dataset("b", layout)
    yield "elsewhere", "arrays", path
    for i, options in enumerate(
        ({}, {"chunks": (1024,)}, {"chunks": (1024,), "compression": "gzip"}, {"fillvalue": 1})
    ):
        with new() as file:
            file.create_dataset("a", (1 << 40,), "f4", **options)
        yield f"huge-{i}", "arrays", path
    with new() as file:
        file.create_dataset("a", data=np.zeros(1 << 28, "u1"), chunks=(1 << 20,), compression="gzip")
        file.create_dataset("b", data=np.zeros(1 << 20, "u1"), chunks=(1 << 20,), compression="gzip")
    yield "bomb", "arrays", path
    with new() as file:
        file.create_dataset("a", data=np.zeros(100, "f4"), chunks=(10,), compression="lzf", shuffle=True)
    data = path.read_bytes().replace(struct.pack("<H", 32000), struct.pack("<H", 32777))
    yield "filter", "arrays", write(path, data)
    with new() as file:
        file.create_group("/".join("g" * 300))
        file["a"] = np.zeros(3, "f4")
    yield "depth", "arrays", path
    with new() as file:
        for i in range(5001):
            file.create_dataset(str(i), (1,), "f4")
    yield "many", "arrays", path
    for i, value in enumerate((["missing"], ["../a"], [b"\xff"], 3, np.zeros((3, 3)), "a")):
        with new() as file:
            file.attrs["layer_names"] = value
            file.create_group("a").attrs["weight_names"] = value
        yield f"layer-names-{i}", "arrays", path
    for i, value in enumerate(
        ("{", "[]", "3", "null", '{"class_name": "os"}', "[" * 100_000, b"\xff", json.dumps(lambda_of(canary)))
    ):
        with new() as file:
            if len(value) < 60_000:
                file.attrs["model_config"] = value
        yield f"model-config-{i}", "model", path


def lambda_of(canary):
    """A configuration with Python's bytecode in it."""
    import base64

    code = compile(f"open({str(canary)!r}, 'w')", "a", "eval")
    function = {"class_name": "__lambda__", "config": {"code": base64.b64encode(marshal.dumps(code)).decode()}}
    layer = {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "a", "function": function}}
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "m", "layers": [layer]}}


def sequential(*layers):
    layers = [{"module": module, "class_name": name, "config": config} for module, name, config in layers]
    return {"module": "keras", "class_name": "Sequential", "config": {"name": "m", "layers": layers}}


def keras(folder, canary):
    path, store = folder / "a.keras", io.BytesIO()
    with h5py.File(store, "w") as file:
        file["layers/dense/vars/0"] = np.zeros((4, 4), "f4")
    store = store.getvalue()

    def saved(config, *more, compression=zipfile.ZIP_STORED, weights=store, metadata=b'{"keras_version": "3.9.0"}'):
        text_ = config if isinstance(config, bytes) else json.dumps(config).encode()
        members = [("config.json", text_), ("metadata.json", metadata), ("model.weights.h5", weights), *more]
        return write(path, archive(members, compression))

    start = ("keras.layers", "InputLayer", {"batch_shape": [None, 4]})
    data = saved(sequential(start, ("keras.layers", "Dense", {"units": 4}))).read_bytes()
    for name, file in broken(path, data, 5, 8):
        yield name, "model", file
    foreign = (("os", "system"), ("subprocess", "Popen"), ("builtins", "eval"), ("somebody", "Layer"), (None, "Mine"))
    foreign += (("keras.src.utils.python_utils", "func_load"), ("keras.utils", "get_file"), ("../a", "b"), (3, "b"))
    for i, (module, name) in enumerate(foreign):
        yield f"foreign-{i}", "model", saved({"module": module, "class_name": name, "config": {}})
        function = {"module": module, "class_name": "function", "config": name, "registered_name": name}
        layer = ("keras.layers", "Dense", {"units": 4, "activation": function})
        yield f"function-{i}", "model", saved(sequential(start, layer))
    yield "lambda", "model", saved(lambda_of(canary))
    yield "python-lambda", "model", saved(lambda_of(canary)["config"]["layers"][0]["config"]["function"])
    for i, config in enumerate(
        (b"{", b"[]", b"3", b"null", b"{}", b"[" * 200_000, b'{"a":' * 200_000, b"\xff", b'"x"')
    ):
        yield f"json-{i}", "model", saved(config)
        yield f"metadata-{i}", "model", saved({}, metadata=config)
    for i, value in enumerate(ABSURD):
        yield f"units-{i}", "model", saved(sequential(start, ("keras.layers", "Dense", {"units": value})))
    dense = ("keras.layers", "Dense", {"units": 4})
    yield "layers", "model", saved(sequential(start, *[dense] * 2000))
    inside = {"module": "keras.layers", "class_name": "Dense", "config": {"units": 4}}
    nested = ("keras.layers", "TimeDistributed", {"layer": inside})
    yield "nested-layers", "model", saved(sequential(start, *[nested] * 2000))
    for i, config in enumerate(({"units": "x" * 5_000_000}, {"y" * 5_000_000: 1}, {"y" * 5_000_000: 10**12})):
        yield f"long-{i}", "model", saved(sequential(start, ("keras.layers", "Dense", config)))
    yield "long-class", "model", saved(sequential(start, ("keras.layers", "D" * 5_000_000, {})))
    wide = ("keras.layers", "InputLayer", {"batch_shape": [None, 10**5]})
    yield "product", "model", saved(sequential(wide, ("keras.layers", "Dense", {"units": 10**5})))
    for place in ("config", "weights", "other"):
        bomb = bytes(400 << 20) if place != "config" else b" " * (20 << 20)
        parts = {"config": (bomb, store, ()), "weights": ({}, bomb, ()), "other": ({}, store, [("assets/a", bomb)])}
        config, content, more = parts[place]
        for call in ("model", "arrays"):
            file = saved(config, *more, weights=content, compression=zipfile.ZIP_DEFLATED)
            yield f"bomb-{place}-{call}", call, file
    for i, name in enumerate((f"../{canary.name}", str(canary), f"assets/../../{canary.name}")):
        yield f"traversal-{i}", "model", saved(sequential(start), (name, b"x"))


def hub(folder, canary):
    """A folder as on a hub, with one file wrong."""
    config = {"architecture": "vit_tiny_patch16_224", "num_features": 64, "num_classes": 10}
    write(folder / "model.safetensors", safetensors(weights()))
    fields = ("pretrained_cfg", "vision_config", "image_size", "num_attention_heads", "layer_norm_eps", "rope_theta")
    for field, value in itertools.product((*fields, "architectures", "hidden_act", "id2label"), ABSURD):
        write(folder / "config.json", json.dumps({**config, field: value}).encode())
        yield f"config-{field}-{str(value)[:12]}", "model", folder
    for field, value in itertools.product(
        ("input_size", "mean", "std", "crop_pct", "interpolation", "crop_mode"), ABSURD
    ):
        write(folder / "config.json", json.dumps({**config, "pretrained_cfg": {field: value}}).encode())
        yield f"timm-{field}-{str(value)[:12]}", "model", folder
    for i, (field, value) in enumerate(
        (("global_pool", "x" * 5_000_000), ("x" * 5_000_000, 1), ("architecture", "x" * 9**7))
    ):
        write(folder / "config.json", json.dumps({**config, field: value, "model_args": {field: value}}).encode())
        yield f"long-{i}", "model", folder
    (folder / "config.json").unlink()
    good = {"do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    more = {"size": {"height": 10**9, "width": 10**9}, "crop_size": 10**9}
    for field, value in [*itertools.product((*good, "resample", "rescale_factor"), ABSURD), *more.items()]:
        changed = {**good, field: value, "do_center_crop": field == "crop_size"}
        write(folder / "preprocessor_config.json", json.dumps(changed).encode())
        yield f"processor-{field}-{str(value)[:12]}", "model", folder
    for name, content in itertools.product(
        ("config.json", "preprocessor_config.json"), (b"[" * 200_000, b"{", b"\xff", b"[1]")
    ):
        write(folder / name, content)
        yield f"{name}-{content[:3]}", "model", folder
        (folder / name).unlink()
    (folder / "config.json").symlink_to(folder / "config.json")
    yield "link-to-itself", "model", folder
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    yield "weights-link-to-itself", "model", folder
    (folder / "model.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    names = ("../a", "/etc/passwd", "x" * 5000, "", ".", "a\0b", None, 3, {}, index.name)
    for i, piece in enumerate(names):
        write(index, json.dumps({"weight_map": {"a": piece}}).encode())
        yield f"piece-{i}", "model", folder
    for i, value in enumerate(ABSURD):
        write(index, json.dumps({"weight_map": value, "metadata": value}).encode())
        yield f"index-{i}", "model", folder


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, data=b"", *more, bits=8, colors=2):
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colors, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def pictures(folder, canary):
    from PIL import Image

    for suffix in ("png", "jpeg", "gif", "bmp", "tiff", "webp"):
        buffer = io.BytesIO()
        noise = np.random.default_rng(0).integers(0, 255, (40, 50, 3), "uint8")
        Image.fromarray(noise).save(buffer, suffix)
        for name, file in broken(folder / f"a.{suffix}", buffer.getvalue(), 6, 6):
            yield f"{suffix}-{name}", "picture", file
    path = folder / "b.png"
    for size in ((1 << 31) - 1, 100_000, 20_000, 0):
        yield f"size-{size}", "picture", write(path, png(size, size, bytes(1000)))
    yield "stripe", "picture", write(path, png(1, 1_000_000, bytes(4_000_000)))
    bomb = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(200 << 20)))
    yield "text-bomb", "picture", write(path, png(4, 4, bytes(52), bomb))
    yield "palette", "picture", write(path, png(4, 4, bytes(20), colors=3))
    for i, start in enumerate(
        (
            b"GIF89a",
            b"BM",
            b"II*\0",
            b"RIFF\xff\xff\xff\xffWEBP",
            b"P6 9999999 9999999 255\n",
            b"%!PS-Adobe-3.0 EPSF",
            b"",
        )
    ):
        yield f"start-{i}", "picture", write(folder / "c.png", start + random.Random(i).randbytes(300))


def names(folder, canary):
    """Names of no file: paths, published names, addresses."""
    long = [
        "x" * 300,
        "x" * 5000 + ".npz",
        "a/" * 3000 + "b.pth",
        str(folder / ("y" * 300)) + ".keras",
        "/" + "z" * 400 + ".h5",
    ]
    odd = [
        "",
        ".",
        "..",
        "~nobody-here/a.npz",
        "a\0b.npz",
        "a\nb",
        "\udcff.npz",
        "-",
        "*",
        "%s%n",
        "vit_b16\0",
        "B_16/../x",
    ]
    urls = [
        "hf://a/b",
        "ftp://a/b.npz",
        "file:///etc/passwd",
        "http://",
        "https://[",
        "https://" + "a" * 9000,
        "http://a b/c.npz",
    ]
    for i, name in enumerate((*long, *odd, *urls, "imagenet21k", "timm/" + "a" * 100_000, "os.system")):
        yield f"name-{i}", "model", name
        yield f"picture-{i}", "picture", name


KINDS = {
    "npz": npz,
    "safetensors": tensors,
    "torch": torch,
    "hdf5": hdf5,
    "keras": keras,
    "hub": hub,
    "pictures": pictures,
    "names": names,
}

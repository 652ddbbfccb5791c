"""Files of PyTorch's, written byte by byte without it."""

import pickle
import struct
import zipfile

import numpy as np


def torch_zip(path, program, storages=(), compression=zipfile.ZIP_STORED, **more):
    """A file as torch.save writes it, of a pickle and the bytes of its storages."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", program)
        for name, data in {**{f"data/{i}": s for i, s in enumerate(storages)}, **more}.items():
            archive.writestr(f"archive/{name}", data)
    return path


def torch_legacy(path, program, storages=(), version=1001, little=True):
    """A file as torch.save wrote it before PyTorch 1.6."""
    head = [0x1950A86A20F9469CFC6C, version, {"little_endian": little}]
    start = b"".join(pickle.dumps(part, 2) for part in head)
    keys = pickle.dumps([str(i) for i in range(len(storages))], 2)
    data = b"".join(struct.pack("<q", len(s) // 4) + s for s in storages)
    path.write_bytes(start + program + keys + data)
    return path


def text(value):
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value):
    return b"\x8a\x09" + struct.pack("<q", value) + b"\0"


def tensor(
    shape, strides, *, key="0", count=None, offset=0, kind="FloatStorage", function="_rebuild_tensor_v2", view=None
):
    """The pickle instructions that torch.save writes for a tensor; `view`: the part of a storage, (first, count)."""
    count = int(np.prod(shape)) if count is None else count
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(count)
    part = b"(" + text("part") + b"".join(map(number, view)) + b"t" if view else b""
    storage += part + b"tQ"
    sizes = [b"(" + b"".join(map(number, values)) + b"t" for values in (shape, strides)]
    rest = b"\x89ccollections\nOrderedDict\n)R"
    return f"ctorch._utils\n{function}\n(".encode() + storage + number(offset) + b"".join(sizes) + rest + b"tR"


def state_dict(**items):
    return b"\x80\x02}(" + b"".join(text(name) + program for name, program in items.items()) + b"u."

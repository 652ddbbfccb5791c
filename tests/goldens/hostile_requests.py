"""Requests that a server should refuse, or compute within its limits: made from a seed."""

import io
import math
import random
import struct
import zlib

from PIL import Image

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
MODES = ("1", "L", "P", "RGB", "RGBA", "CMYK", "I;16")


def made(seed):
    """Return the path, the body and the headers of a request."""
    rng = random.Random(seed)
    return rng.choice((picture, picture, header_of_a_bomb, bomb, broken, form))(rng)


def side(rng, most):
    return max(1, round(math.exp(rng.uniform(0, math.log(most)))))


def file_of(rng, pixels=4_000_000):
    width = side(rng, 200_000)
    height = min(side(rng, 200_000), max(1, pixels // width))
    mode, format = rng.choice(MODES), rng.choice(FORMATS)
    image = Image.new("RGB", (width, height), tuple(rng.randrange(256) for _ in range(3)))
    image = image.convert("L" if mode == "I;16" else mode)
    with io.BytesIO() as file:
        try:
            image.save(file, format)
        except (OSError, ValueError, OverflowError, KeyError, struct.error):  # not every format takes every image
            file = io.BytesIO()
            image.convert("RGB").save(file, "PNG")
        return file.getvalue()


def query(rng):
    return rng.choice(("", "?attention=1", "?top=100000", "?attention=1&top=3", "?top=-1"))


def picture(rng):
    return f"/predict{query(rng)}", file_of(rng), {}


def header_of_a_bomb(rng):
    size = (side(rng, 2**31 - 1), side(rng, 2**31 - 1))
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", *size, rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 6)), 0, 0, 0),
        b"IDAT": zlib.compress(bytes(rng.choice((20, 10**6)))),
    }
    parts = [struct.pack(">I", len(data)) + name + data for name, data in chunks.items()]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(part + struct.pack(">I", zlib.crc32(part[4:])) for part in parts)
    return "/predict", data, {}


def bomb(rng):
    """A few bytes that cost a decoder as much as thousands of pictures."""
    make, most = rng.choice(((scans, 20_000), (gif, 300)))
    return "/predict", make(side(rng, 7000), side(rng, 7000), side(rng, most)), {}


def scans(width, height, count):
    """A progressive JPEG whose last scan is there several times."""
    with io.BytesIO() as file:
        Image.new("L", (width, height), 90).save(file, "JPEG", progressive=True)
        data = file.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def gif(width, height, count):
    """An animation of equal frames."""
    with io.BytesIO() as file:
        Image.new("L", (width, height), 90).save(file, "GIF")
        data = file.getvalue()
    frame = data[data.rindex(b"\x2c" + bytes(4) + struct.pack("<HH", width, height)) : -1]
    return data[:-1] + frame * (count - 1) + data[-1:]


def broken(rng):
    data = bytearray(file_of(rng, pixels=200_000))
    for _ in range(rng.randrange(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return f"/predict{query(rng)}", bytes(data[: rng.randrange(1, len(data) + 1)]), {}


def form(rng):
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n%s\r\n'
    count = rng.choice((1, 2, 100, 5000))
    body = b"".join(part % (file_of(rng, 10_000) if n == 0 else b"a") for n in range(count)) + b"--x--\r\n"
    return "/predict", body, {"Content-Type": "multipart/form-data; boundary=x"}

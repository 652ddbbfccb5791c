"""Reading images from anywhere, and resizing them."""

import http.server
import io
import pathlib
import struct
import threading
import zlib

import keras
import numpy as np
import pytest
from hub import running
from PIL import Image, features

from vit_keras.preprocess import images

H, W = 6, 10  # not a square, so that swapped axes show


def noise(*shape, high=256, dtype="uint8", seed=0):
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def smooth():
    """Colours that survive a round trip through LAB and YCbCr: none at the edge of the RGB cube."""
    y, x = np.mgrid[0:H, 0:W]
    return np.stack([90 + 10 * y, 150 - 8 * x, 100 + 3 * x + 4 * y], axis=-1).astype("uint8")


def on_white(rgb, alpha):
    alpha = alpha[..., None] / 255
    return rgb * alpha + 255 * (1 - alpha)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def png_header(width, height):
    """A PNG that says how large it is and ends there."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"")
    chunks = [struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in (chunk, data)]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


# -------------------------------------------------------------------- modes --


def bilevel():
    bits = noise(H, W, high=2).astype(bool)
    return Image.fromarray(bits), "PNG", {}, grey(bits * 255)


def grey(values):
    return np.repeat(values[..., None].astype("float64"), 3, axis=-1)


def grey_alpha():
    pixels = noise(H, W, 2)
    return Image.fromarray(pixels), "PNG", {}, on_white(grey(pixels[..., 0]), pixels[..., 1])


def palette(transparent=None, kind="P"):
    colours, indices = noise(16, 3, seed=1), noise(H, W, high=16)
    image = Image.fromarray(indices).convert("P")
    image.putpalette(colours.tobytes())
    expected = colours[indices].astype("float64")
    if kind == "PA":
        alpha = noise(H, W, seed=2)
        image = image.convert("PA")
        image.putalpha(Image.fromarray(alpha))
        return image, "TIFF", {}, on_white(expected, alpha)
    if transparent is not None:
        expected[indices == transparent] = 255
        return image, "PNG", {"transparency": transparent}, expected
    return image, "PNG", {}, expected


def rgb_with_transparent_colour():
    pixels = noise(H, W, 3)
    expected = pixels.astype("float64")
    expected[2, 3] = 255
    return Image.fromarray(pixels), "PNG", {"transparency": tuple(pixels[2, 3].tolist())}, expected


def rgba():
    pixels = noise(H, W, 4)
    return Image.fromarray(pixels), "PNG", {}, on_white(pixels[..., :3].astype("float64"), pixels[..., 3])


def cmyk():
    pixels = noise(H, W, 4)
    light = 255.0 - pixels
    return Image.frombytes("CMYK", (W, H), pixels.tobytes()), "TIFF", {}, light[..., :3] * light[..., 3:] / 255


def converted(mode):
    return Image.fromarray(smooth()).convert(mode), "TIFF", {}, smooth()


def sixteen_bits(kind):
    values = noise(H, W, high=65536, dtype="uint16")
    return Image.fromarray(values), kind, {}, grey(values / 257)


def integers():
    values = noise(H, W, high=65536, dtype="int32")
    return Image.fromarray(values), "TIFF", {}, grey(values / 257)


def floats():
    values = noise(H, W).astype("float32") / 255
    return Image.fromarray(values), "TIFF", {}, grey(values * 255)


# How each mode is made; what it must look like is computed here and not by Pillow, but for YCbCr and LAB, which go
# there and back. The tolerance is in grey levels: half a level or one where something is rounded, 3 and 4 for YCbCr
# and LAB, whose colours have whole steps only.
MODES = {
    "1": (bilevel, 0),
    "L": (lambda: (Image.fromarray(noise(H, W)), "PNG", {}, grey(noise(H, W))), 0),
    "LA": (grey_alpha, 1),
    "P": (palette, 0),
    "P transparent": (lambda: palette(transparent=5), 0),
    "PA": (lambda: palette(kind="PA"), 1),
    "RGB": (lambda: (Image.fromarray(noise(H, W, 3)), "PNG", {}, noise(H, W, 3)), 0),
    "RGB transparent": (rgb_with_transparent_colour, 0),
    "RGBA": (rgba, 1),
    "CMYK": (cmyk, 1),
    "YCbCr": (lambda: converted("YCbCr"), 3),
    "LAB": (lambda: converted("LAB"), 4),
    "I;16 PNG": (lambda: sixteen_bits("PNG"), 0.5),
    "I;16 TIFF": (lambda: sixteen_bits("TIFF"), 0.5),
    "I": (integers, 0.5),
    "F": (floats, 0.5),
}

WAYS = {
    "path": lambda path: str(path),
    "pathlib": lambda path: path,
    "bytes": lambda path: path.read_bytes(),
    "bytesio": lambda path: io.BytesIO(path.read_bytes()),
    "file": lambda path: open(path, "rb"),  # noqa: SIM115
    "pil": lambda path: Image.open(path),
}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # which the caller has opened
@pytest.mark.filterwarnings("ignore:A float image is meant to be")  # mode F: true, and not the point here
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_read_gives_rgb_of_every_mode_from_everywhere(mode, way, tmp_path):
    make, tolerance = MODES[mode]
    image, kind, options, expected = make()
    path = tmp_path / f"image.{kind.lower()}"
    image.save(path, kind, **options)
    with Image.open(path) as opened:
        held = opened.mode
    if mode == "YCbCr" and held == "RGB":
        pytest.skip("Pillow before 13 cannot read the YCbCr TIFF that it writes")
    assert held == mode.split()[0]  # the file holds what the test is about
    result = images.read(WAYS[way](path), None)
    assert result.shape == (H, W, 3) and result.dtype == np.uint8
    assert np.abs(result - expected.astype("float64")).max() <= tolerance + 1e-9


@pytest.mark.filterwarnings("ignore:A float image is meant to be")
@pytest.mark.parametrize("mode", ["1", "L", "RGB", "RGBA", "I;16 TIFF", "I", "F"])
def test_read_of_an_array_equals_that_of_the_file(mode):
    image, kind, options, _ = MODES[mode][0]()
    expected = images.read(encoded(image, kind, **options), None)
    np.testing.assert_array_equal(images.read(np.asarray(image), None), expected)


# Modes that no file has, at 4 levels: HSV has whole steps only, and premultiplied alpha was rounded once already.


@pytest.mark.filterwarnings("ignore:A float image is meant to be")
@pytest.mark.parametrize(
    "values",
    [
        noise(H, W, 3).astype("float64"),
        noise(H, W, 3).astype("float32") / 255,
        noise(H, W, 3).astype("float32") / 127.5 - 1,
        noise(H, W, 3).astype("uint16") * 257,
        noise(H, W, 3).astype("int64"),
    ],
    ids=["0..255", "0..1", "-1..1", "16 bits", "int64"],
)
def test_read_brings_arrays_of_any_range_to_8_bits(values):
    np.testing.assert_array_equal(images.read(values, None), noise(H, W, 3))


def test_alpha_is_laid_on_white():
    pixels = np.array([[[200, 0, 100, 0], [200, 0, 100, 255], [200, 0, 100, 51]]], "uint8")
    result = images.read(pixels, None)[0]
    np.testing.assert_array_equal(result[:2], [[255, 255, 255], [200, 0, 100]])
    assert np.abs(result[2] - [244.0, 204.0, 224.0]).max() <= 1  # a fifth of the colour; 1 level for rounding


ORIENTATIONS = {  # how a viewer turns what is stored
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: np.rot90(a, 1),
}


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(noise(H, W, 3)), exif=exif)


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("way", [lambda data: data, lambda data: Image.open(io.BytesIO(data))], ids=["bytes", "pil"])
def test_read_turns_the_image_upright(orientation, way):
    expected = ORIENTATIONS[orientation](noise(H, W, 3))
    np.testing.assert_array_equal(images.read(way(turned(orientation)), None), expected)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_damaged_exif_in_an_image_with_sound_pixels_is_ignored(kind):
    buffer = io.BytesIO()
    Image.fromarray(noise(H, W, 3)).save(buffer, kind, exif=b"Exif\0\0garbage not a tiff", dpi=(72, 72))
    assert images.read(buffer.getvalue(), None).shape == (H, W, 3)


def test_the_size_is_that_of_the_upright_image():
    expected = images.read(np.ascontiguousarray(ORIENTATIONS[6](noise(H, W, 3))), (20, 8))
    np.testing.assert_array_equal(images.read(turned(6), (20, 8)), expected)


# --------------------------------------------------------------------- sizes --

SOURCES = {
    "array": lambda: noise(H, W, 3),
    "pil": lambda: Image.fromarray(noise(H, W, 3)),
    "bytes": lambda: encoded(Image.fromarray(noise(H, W, 3))),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (7, (7, 7)),
        ((4, 9), (4, 9)),
        ([4, 9], (4, 9)),
        (np.int64(7), (7, 7)),
        ((np.int32(4), np.uint8(9)), (4, 9)),
        (np.array([4, 9]), (4, 9)),
        (None, (H, W)),
        ((H, W), (H, W)),
    ],
)
def test_size_is_height_and_width(source, size, expected):
    assert images.read(SOURCES[source](), size).shape == (*expected, 3)


@pytest.mark.parametrize("size", [(16, 24), (64, 80), (17, 90), (224, 224), (1, 1)])
def test_the_default_interpolation_is_tensorflows(size):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("compares with tf.image.resize")
    import tensorflow as tf

    image = noise(37, 53, 3)
    expected = tf.image.resize(image, size, method="bilinear", antialias=False).numpy()
    # Half a level of rounding, and 1e-3 because TensorFlow computes in float32.
    assert np.abs(images.read(image, size) - expected).max() <= 0.5 + 1e-3


@pytest.mark.parametrize(
    ("name", "resampling"),
    [
        ("nearest", Image.Resampling.NEAREST),
        ("box", Image.Resampling.BOX),
        ("bilinear_antialias", Image.Resampling.BILINEAR),
        ("bicubic_antialias", Image.Resampling.BICUBIC),
        ("lanczos", Image.Resampling.LANCZOS),
    ],
)
@pytest.mark.parametrize("size", [(16, 24), (64, 80)])
def test_pillows_interpolations_are_pillows(name, resampling, size):
    image = noise(37, 53, 3)
    expected = np.asarray(Image.fromarray(image).resize((size[1], size[0]), resampling))
    np.testing.assert_array_equal(images.read(image, size, interpolation=name), expected)
    np.testing.assert_array_equal(images.resize_image(image.astype("int64"), size, name), expected)


@pytest.mark.parametrize(
    ("image", "error", "message"),
    [
        (noise(2, H, W, 3), ValueError, r"\(2, 6, 10, 3\)"),
        (noise(0, W, 3), ValueError, r"\(0, 10, 3\)"),
        (noise(H, W, 3).astype("complex64"), TypeError, "dtype complex64"),
        (np.full((H, W, 3), 1000, "uint16"), ValueError, "uint16 from 1000 to 1000"),
        (np.full((H, W), -1, "int64"), ValueError, "from 0 to 255. Received: int64 from -1"),
    ],
)
def test_what_cannot_be_resized(image, error, message):
    with pytest.raises(error, match=message):
        images.resize_image(image, 4)
    with pytest.raises(ValueError, match="at most .* pixels. Received: 99999×99999"):
        images.resize_image(noise(H, W, 3), 99999)


# -------------------------------------------------------------------- errors --


@pytest.mark.parametrize("way", [str, pathlib.Path])
@pytest.mark.parametrize("name", ["nothing.jpg", "."])  # a folder is not an image
def test_a_missing_file(way, name, tmp_path):
    with pytest.raises(FileNotFoundError, match=f"find image .*{(tmp_path / name).name}"):
        images.read(way(tmp_path / name), 8)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # which the caller has opened
@pytest.mark.parametrize("content", [b"This is a text.\n", b"", b"<!doctype html><html></html>"])
@pytest.mark.parametrize("way", ["path", "bytes", "bytesio", "file"])
def test_what_is_no_image(content, way, tmp_path):
    path = tmp_path / "image.jpg"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="read (?!.*object at 0x)"):
        images.read(WAYS[way](path), 8)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "TIFF", "WEBP", "AVIF"])
@pytest.mark.parametrize("part", [0.02, 0.5, 0.97])
def test_a_truncated_image(kind, part, tmp_path):
    if kind in ("WEBP", "AVIF") and not features.check(kind.lower()):
        pytest.skip(f"this Pillow cannot write {kind}")
    data = encoded(Image.fromarray(noise(64, 64, 3)), kind)
    path = tmp_path / "cut"
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(ValueError, match=f"read .*{path.name}"):
        images.read(path, 8)


def one_pixel(value):
    image = np.zeros((8, 8, 3))
    image[3, 4, 1] = value
    return image


@pytest.mark.parametrize(
    ("image", "options", "error", "message"),
    [
        *((wrong, {}, TypeError, "An image is") for wrong in (None, 5, [[1, 2]], {"a": 1})),
        (io.StringIO("text"), {}, TypeError, "binary mode"),
        *(
            (np.zeros(shape, "uint8"), {}, ValueError, "pixels has the shape")
            for shape in [(8,), (8, 8, 2), (8, 8, 5), (1, 8, 8, 3), (0, 8, 3), (8, 0), ()]
        ),
        (np.zeros((3, 32, 40), "uint8"), {}, ValueError, "channels seem to be first: pass image.transpose"),
        (np.zeros((1, 32, 40), "uint8"), {}, ValueError, "channels seem to be first"),
        (np.zeros((2, 8, 8, 3), "uint8"), {}, ValueError, "a batch: pass one image"),
        *(
            (np.zeros((8, 8), dtype), {}, TypeError, "array of dtype")
            for dtype in ("complex64", "object", "U1", "datetime64[s]")
        ),
        *((one_pixel(value), {}, ValueError, "not finite") for value in (np.nan, np.inf, -np.inf)),
        (png_header(30_000, 30_000), {}, ValueError, "the image .*900,000,000 .*178,956,970"),  # unopened
        (png_header(3000, 2000), {"max_pixels": 5_000_000}, ValueError, "3000×2000 .*5,000,000 .*max_pixels"),
        (noise(H, W, 3), {"interpolation": "cubic"}, ValueError, "'bilinear'.*'lanczos'.*'cubic'"),
        *(
            (noise(H, W, 3), {"size": size}, ValueError, "2 integers or a single integer")
            for size in (0, -4, (4,), (4, 5, 6), (4, 0), 2.5, "4", True)
        ),
    ],
)
def test_wrong_images_and_options(image, options, error, message):
    with pytest.raises(error, match=message):
        images.read(image, **{"size": 8, **options})


# ---------------------------------------------------------------------- URLs --


@pytest.fixture(scope="module")
def server():
    """A web server on this machine; the paths are named for what they do."""
    image, finished = encoded(Image.fromarray(noise(H, W, 3))), threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/slow":
                finished.wait(10)
            if self.path == "/not-http":
                self.wfile.write(b"I am no web server.\r\n\r\n")
                return
            self.send_response({"/missing": 404, "/gone": 410, "/broken": 500, "/forbidden": 403}.get(self.path, 200))
            if self.path == "/breaks-off":
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"1000\r\n" + image[:20])
                return
            body = b"<html>Sign in first</html>" if self.path == "/page" else image
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.path == "/stalls":
                self.wfile.write(body[:20])
                self.wfile.flush()
                finished.wait(10)
            elif self.path == "/short":
                self.wfile.write(body[: len(body) // 2])
            else:
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    with running(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as web:
        yield f"http://127.0.0.1:{web.server_port}"
        finished.set()


@pytest.fixture
def url(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return server


def test_read_of_a_url(url):
    np.testing.assert_array_equal(images.read(f"{url}/image.png", None), noise(H, W, 3))


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("missing", FileNotFoundError, "/missing"),
        ("gone", FileNotFoundError, "/gone"),
        ("broken", ConnectionError, "/broken.*500"),
        ("forbidden", ConnectionError, "/forbidden.*403"),
        ("page", ValueError, "Could not read"),
        ("short", ValueError, "Could not read"),
        ("breaks-off", ConnectionError, "/breaks-off"),
        ("not-http", ConnectionError, "/not-http"),
    ],
)
def test_a_url_without_an_image(url, path, error, message):
    with pytest.raises(error, match=(url + message) if message.startswith("/") else message):
        images.read(f"{url}/{path}", 8)


@pytest.mark.parametrize("path", ["slow", "stalls"])
def test_a_slow_server(url, path):
    with pytest.raises(ConnectionError, match=f"{url}/{path}.*timed out"):
        images.read(f"{url}/{path}", 8, timeout=0.2)


def test_a_download_that_is_too_large(url):
    size = len(encoded(Image.fromarray(noise(H, W, 3))))
    assert images.read(f"{url}/image.png", None, max_bytes=size).shape == (H, W, 3)
    with pytest.raises(ValueError, match=f"larger than {size - 1} bytes"):
        images.read(f"{url}/image.png", None, max_bytes=size - 1)

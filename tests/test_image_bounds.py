"""What reading and resizing an image may cost, whatever its size: memory, and the order in which it is resized."""

import contextlib
import io
import itertools
import os
import sys
import time
from pathlib import Path

import hostile_requests
import numpy as np
import pytest
from PIL import Image
from support import one_at_a_time, peak_memory

from vit_keras import preprocess, resampling, vit
from vit_keras.preprocess import PRESETS, Preprocessing, images, pixels
from vit_keras.visualize import record
from vit_keras.visualize.pictures import MAX_DRAWN, no_larger, read_pictures

MB = 1 << 20
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self")


def png(width, height):
    with io.BytesIO() as file:
        Image.new("RGB", (width, height), (10, 200, 30)).save(file, "PNG")
        return file.getvalue()


SIZES = [(1, 500_000), (500_000, 1)]
LARGE = [(3, 200_000), (200_000, 3), (4_000_000, 1), (1, 4_000_000)]
LARGE = [pytest.param(*case, marks=pytest.mark.slow) for case in itertools.product(resampling.PICTURES, LARGE)]


@on_linux
@pytest.mark.parametrize(("interpolation", "size"), [*one_at_a_time(resampling.PICTURES, SIZES), *LARGE])
def test_a_narrow_image_costs_little_more_than_its_pixels(size, interpolation):
    data = png(*size)
    # Pillow takes 4 bytes a pixel and 16 a row, and as much for a copy to resize; the array takes 3. Lanczos' filter
    # takes 6 numbers of 8 bytes for each pixel of a side.
    bound = 60 * MB + 12 * size[0] * size[1] + 32 * size[1] + 48 * max(size)
    with peak_memory() as peak:
        read = images.read(data, 224, interpolation=interpolation)
        made = Preprocessing(image_size=224, interpolation=interpolation)(data)
        with contextlib.suppress(ValueError):  # too long once the short side has 224 pixels
            Preprocessing(image_size=224, interpolation=interpolation, crop=0.9)(data)
    assert peak() < bound
    assert (read == (10, 200, 30)).all() and made.shape == (1, 224, 224, 3)


@pytest.mark.parametrize("way", ["bytes", "file", "PIL"])
def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(way, tmp_path):
    path = tmp_path / "scans.jpg"
    path.write_bytes(data := hostile_requests.scans(2000, 1500, 300))
    source = {"bytes": data, "file": path, "PIL": Image.open(io.BytesIO(data))}[way]
    start = time.process_time()
    with pytest.raises(ValueError, match=f"{path if way == 'file' else 'The image'} .*100 scans"):
        images.read(source, 224)
    assert time.process_time() - start < 0.3


def test_only_scans_of_the_image_itself_are_counted():
    """Not those in a thumbnail, nor what looks like one in data behind the image, as of a photograph with a video."""
    data = hostile_requests.scans(80, 60, 5)
    exif = b"\xff\xe1" + (2 + 200 * 4 + 2).to_bytes(2, "big") + b"\xff\xda\0\0" * 200 + b"\xff\xd9"
    read = images.read(data[:2] + exif + data[2:] + b"\xff\xda" * 500, None)
    np.testing.assert_array_equal(read, images.read(data, None))


def test_an_image_resized_down_first_is_pillows():
    column = np.random.default_rng(0).integers(0, 256, (300_000, 1, 3), dtype="uint8")
    for name in ("bilinear_antialias", "bicubic_antialias", "lanczos", "box"):
        short = Image.fromarray(column).resize((1, 224), getattr(Image.Resampling, name.split("_")[0].upper()))
        made = images.resize_in_steps(column, (224, 224), name)
        np.testing.assert_array_equal(made, np.repeat(np.asarray(short), 224, axis=1))


@pytest.mark.parametrize("size", [(480, 640), (640, 30), (30, 640), (3000, 200), (20_000, 90)])
def test_an_ordinary_image_is_resized_across_and_then_down(size):
    image = np.random.default_rng(1).integers(0, 256, (*size, 3), dtype="uint8")
    across = Image.fromarray(image).resize((224, size[0]), Image.Resampling.BICUBIC)
    expected = np.asarray(across.resize((224, 224), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(images.resize_in_steps(image, (224, 224), "bicubic_antialias"), expected)


@pytest.mark.parametrize(
    ("preset", "size"),
    one_at_a_time(["imagenet", "clip", "torchvision", "beit"], [(1, 500_000), (500_000, 1), (2, 20_000)]),
)
def test_a_narrow_image_that_would_become_huge_is_refused_by_name(preset, size):
    with pytest.raises(ValueError, match=f"{size[0]}×{size[1]} .*67,108,864"):
        PRESETS[preset](png(*size), 224)


def interpolated(array, size, align_corners):
    """Interpolate the axes one after the other, each cell from two cells of the whole axis."""
    array = array.astype("float64")
    for axis, target in enumerate(size):
        source = array.shape[axis]
        if source == target:
            continue
        at = np.linspace(0, source - 1, target)
        if not align_corners:
            at = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
        low = np.minimum(np.floor(at).astype(int), source - 1)
        high = np.minimum(low + 1, source - 1)
        weight = (at - low).reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        array = np.take(array, low, axis) * (1 - weight) + np.take(array, high, axis) * weight
    return array


def test_leaving_out_cells_changes_no_bit():
    rng = np.random.default_rng(2)
    for source, target, channels in itertools.product(
        [(1, 1), (1, 50), (50, 1), (37, 53), (90, 8)], [(1, 1), (8, 8), (37, 60), (100, 3)], [(), (3,)]
    ):
        array = rng.integers(0, 256, (*source, *channels), dtype="uint8")
        for align_corners in (False, True):
            expected = interpolated(array, target, align_corners)
            found = resampling.resize_bilinear(array, target, align_corners=align_corners)
            np.testing.assert_array_equal(found, expected)
            part = slice(target[0] // 3, target[0])
            found = resampling.resize_bilinear(array, target, align_corners=align_corners, rows=part)
            np.testing.assert_array_equal(found, expected[part])


MODES = ("1", "L", "P", "RGB", "RGBA", "LA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")


def of_mode(mode):
    rng = np.random.default_rng(3)
    if mode in ("I", "F", "I;16"):
        kind = {"I": "int32", "F": "float32", "I;16": "uint16"}[mode]
        return Image.fromarray(rng.integers(0, 256 if mode == "F" else 60_000, (17, 23)).astype(kind))
    image = Image.fromarray(rng.integers(0, 256, (17, 23, 4), dtype="uint8"))
    return image if mode == "RGBA" else image.convert("RGB").convert(mode)


@pytest.mark.filterwarnings("ignore:A float image is meant to be")
@pytest.mark.parametrize(("mode", "orientation"), one_at_a_time(MODES, [6, 1, 2, 3, 4, 5, 7, 8]))
def test_a_few_rows_at_a_time_are_all_rows_at_once(mode, orientation, monkeypatch):
    image = of_mode(mode)
    image.getexif()[0x0112] = orientation
    expected = images.read(image, None)
    resized = images.resize_image(expected, (40, 31))
    normalized = PRESETS["imagenet"].normalize(expected)
    monkeypatch.setattr(images, "_AT_ONCE", 50)
    monkeypatch.setattr(images, "_RESIZED_AT_ONCE", 50)
    monkeypatch.setattr(pixels, "_AT_ONCE", 7)
    monkeypatch.setattr(preprocess, "_AT_ONCE", 7)
    np.testing.assert_array_equal(images.read(image, None), expected)
    np.testing.assert_array_equal(images.resize_image(expected, (40, 31)), resized)
    np.testing.assert_array_equal(PRESETS["imagenet"].normalize(expected), normalized)


@on_linux
@pytest.mark.parametrize("mode", ["RGB", "RGBA", "CMYK", "I;16"])
def test_a_photograph_is_not_held_in_floats(mode):
    image = of_mode(mode).resize((4000, 2000), Image.Resampling.NEAREST)
    own = 8_000_000 * (2 if mode == "I;16" else 4)
    with peak_memory() as peak:
        PRESETS["google"](image, 224)
        read_pictures(image, 3)
    assert peak() < 60 * MB + 2 * own + 2 * 24_000_000


def test_a_drawn_photograph_has_at_most_a_stated_size():
    photograph = np.zeros((3000, 4000, 3), "uint8")
    assert no_larger(photograph).shape == (1536, MAX_DRAWN, 3)
    assert no_larger(photograph[:50, :70]).shape == (50, 70, 3)


@on_linux
def test_a_recording_holds_one_photograph_at_a_time(tmp_path):
    paths = [str(tmp_path / f"{n}.png") for n in range(5)]
    Image.effect_noise((4000, 3000), 50).convert("RGB").save(paths[0], compress_level=0)
    for path in paths[1:]:
        os.link(paths[0], path)
    model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
    record(model, paths[:1])
    with peak_memory() as peak:
        found = record(model, paths)
    assert [image.shape for image in found.images] == [(1536, MAX_DRAWN, 3)] * 5
    assert peak() < 60 * MB + 2 * 36_000_000 + 5 * 1536 * MAX_DRAWN * 3
    np.testing.assert_array_equal(record(model, paths[1:2]).tokens, found.tokens[:, 1:2])


def test_what_read_pictures_returns_is_not_the_callers():
    image = np.zeros((4, 4, 3), "uint8")
    read_pictures(image, 3)[0][:] = 1
    assert not image.any()


def test_the_limit_of_pillow_is_named_where_ours_is_larger(tmp_path):
    path = Path(tmp_path, "huge.png")
    data = bytearray(png(4, 4))
    data[16:24] = (30_000).to_bytes(4, "big") * 2
    import zlib

    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    path.write_bytes(data)
    with pytest.raises(ValueError, match="900,000,000 .*MAX_IMAGE_PIXELS"):
        images.read(path, 8, max_pixels=10**9)

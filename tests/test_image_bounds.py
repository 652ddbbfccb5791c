"""What reading and resizing an image may cost, whatever its size: memory, and the order in which it is resized."""

import contextlib
import io
import itertools
import os
import sys
import time
import warnings
import zlib

import hostile_requests
import numpy as np
import pytest
from PIL import Image
from support import one_at_a_time, peak_memory

from vit_keras import resampling, vit
from vit_keras.preprocess import PRESETS, Preprocessing, images
from vit_keras.visualize import record
from vit_keras.visualize.pictures import MAX_DRAWN, ModelInputs

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


@pytest.mark.parametrize(
    ("preset", "size"),
    one_at_a_time(["imagenet", "clip", "torchvision", "beit"], [(1, 500_000), (500_000, 1), (2, 20_000)]),
)
def test_a_narrow_image_that_would_become_huge_is_refused_by_name(preset, size):
    with pytest.raises(ValueError, match=f"{size[0]}×{size[1]} .*67,108,864"):
        PRESETS[preset](png(*size), 224)


def test_a_drawn_photograph_has_at_most_a_stated_size():
    inputs = ModelInputs(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2))
    _, (large, small) = inputs([np.zeros((3000, 4000, 3), "uint8"), np.zeros((50, 70, 3), "uint8")])
    assert large.shape == (1536, MAX_DRAWN, 3) and small.shape == (50, 70, 3)


@pytest.mark.slow
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
    assert peak() < 72 * MB + 2 * 36_000_000 + 5 * 1536 * MAX_DRAWN * 3
    alone = record(model, paths[1:2]).tokens
    np.testing.assert_allclose(alone, found.tokens[:, 1:2], rtol=0, atol=1e-5)  # float32, in a batch of another size


def of_side(side, path):
    """A .png file that claims to have this many pixels on each side."""
    data = bytearray(png(4, 4))
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    path.write_bytes(data)
    return path


def test_pillow_warns_of_a_large_image_as_in_any_program_and_may_be_told_to_refuse_it(tmp_path):
    path = of_side(10_000, tmp_path / "large.png")
    with pytest.warns(Image.DecompressionBombWarning), images.decode(path, path) as image:
        assert image.size == (10_000, 10_000)
    with warnings.catch_warnings(), pytest.raises(ValueError, match="100,000,000 .*MAX_IMAGE_PIXELS"):
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        images.decode(path, path)

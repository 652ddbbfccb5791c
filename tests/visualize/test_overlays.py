"""Maps over pictures: colors, overlays, the paper's and vit-keras 0.2's drawings."""

import keras
import numpy as np
import pytest
from PIL import Image, ImageFilter
from recordings import grey_image, lit, tiles, warmest
from support import DATA, noise

from vit_keras.visualize import colors, overlays


def brightest(picture, grid):
    brightness = tiles(picture, grid).sum(axis=-1)
    return np.unravel_index(brightness.argmax(), brightness.shape)


# ------------------------------------------------------------------- colours --


@pytest.mark.parametrize("name", ["inferno", "viridis", "magma"])
def test_a_colour_table_is_matplotlibs(name):
    matplotlib = pytest.importorskip("matplotlib")
    values = np.linspace(0, 1, 256)
    expected = 255 * matplotlib.colormaps[name](values)[:, :3]
    np.testing.assert_allclose(colors.color(values, name), expected, rtol=0, atol=1.25)  # every fifth color is kept


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_function_for_colours(as_bytes):
    def blue(values):
        colours = np.stack([np.zeros_like(values), np.zeros_like(values), values], axis=-1)
        return np.rint(255 * colours).astype("uint8") if as_bytes else colours

    heat = np.array([[0, 0.4, 1]])
    result = overlays.overlay(grey_image(), heat, cmap=blue, alpha=1, clip=100, interpolation="nearest")
    np.testing.assert_array_equal(result[30, 60], [36, 36, 0.6 * 60 + np.rint(0.4 * 0.4 * 255)])  # 0.4 of the blue 0.4
    np.testing.assert_array_equal(result[30, 100], [0, 0, 255])


def test_a_colour_map_of_matplotlib():
    matplotlib = pytest.importorskip("matplotlib")
    image, heat = noise(60, 120, 3), np.random.default_rng(0).random((3, 6))
    result = overlays.overlay(image, heat, cmap=matplotlib.colormaps["inferno"]).astype(int)
    assert np.abs(result - overlays.overlay(image, heat)).max() <= 3  # its 256 steps, and our every fifth


# ------------------------------------------------------------------- overlay --

CORNERS = [(0, 0), (0, 6), (2, 0), (2, 6), (1, 4)]


@pytest.mark.parametrize("place", CORNERS)
@pytest.mark.parametrize("style", ["bilinear", "nearest", "paper", "vit_keras"])
def test_the_place_of_a_patch(place, style):
    grid, image = (3, 7), grey_image(60, 140)
    heat = lit(place, grid)
    if style in ("bilinear", "nearest"):
        assert warmest(overlays.overlay(image, heat, interpolation=style), grid) == place
    else:
        drawn = {"paper": overlays.paper_style, "vit_keras": overlays.vit_keras_style}[style](image, heat)
        assert brightest(drawn, grid) == place
        assert drawn.max() >= 90  # of 100: not black
        assert drawn.min() <= 5


def test_nearest_shows_patches_with_sharp_edges():
    heat = np.random.default_rng(0).random((3, 6))
    result = overlays.overlay(grey_image(), heat, interpolation="nearest")
    assert (result.reshape(3, 20, 6, 20, 3) == result.reshape(3, 20, 6, 20, 3)[:, :1, :, :1]).all()
    assert not (overlays.overlay(grey_image(), heat) == result).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_does_not_spoil_the_rest(bad):
    heat = np.random.default_rng(0).random((3, 6))
    heat[0, :2] = 0, 1  # the scale of the others
    heat[1, 2] = 1 if bad == np.inf else 0
    options = {"interpolation": "nearest", "clip": (0, 100)}
    expected = overlays.overlay(grey_image(), heat, **options)
    heat[1, 2] = bad
    np.testing.assert_array_equal(overlays.overlay(grey_image(), heat, **options), expected)


def test_all_kinds_of_images_look_alike():
    grey = noise(24, 36)
    rgb = np.stack([grey] * 3, axis=-1)
    heat = np.random.default_rng(1).random((2, 3))
    expected = overlays.overlay(rgb, heat)
    transparent = np.dstack([rgb, np.full((24, 36), 255, "uint8")])
    arrays = (grey, grey[..., None], grey / 255, rgb / 255, rgb.astype("float32"), transparent)
    for image in (*arrays, Image.fromarray(grey), keras.ops.convert_to_tensor(rgb)):
        np.testing.assert_array_equal(overlays.overlay(image, heat[None]), expected)
    np.testing.assert_allclose(overlays.overlay(rgb / 127.5 - 1, heat), expected, atol=1)  # a level of rounding


@pytest.mark.parametrize(
    ("heat", "options", "message"),
    [
        (np.zeros(6), {}, r"Received: \(6,\)"),
        (np.zeros((0, 6)), {}, r"Received: \(0, 6\)"),
        (np.eye(3), {"cmap": "jett"}, "cmap .*'jet'.*'jett'"),
        (np.eye(3), {"cmap": 3}, "a name or a function. Received: int"),
        (np.eye(3), {"cmap": lambda v: v}, r"\(..., 3\) or \(..., 4\).*\(60, 120\)"),
        (np.eye(3), {"alpha": 1.5}, r"alpha must be in \[0, 1\]. Received: 1.5"),
        (np.eye(3), {"clip": (50, 20)}, r"two percentiles.*Received: \(50, 20\)"),
        (np.eye(3), {"clip": 120}, "Received: 120"),
        (np.eye(3), {"interpolation": "cubic"}, "'bilinear' or 'nearest'.*'cubic'"),
    ],
)
def test_what_cannot_be_laid_over(heat, options, message):
    with pytest.raises(ValueError, match=message):
        overlays.overlay(grey_image(), heat, **options)


@pytest.mark.parametrize("function", [overlays.overlay, overlays.paper_style, overlays.vit_keras_style])
def test_an_image_of_the_wrong_shape(function):
    with pytest.raises(ValueError, match=r"pixels .*\(2, 8, 8, 3\)"):
        function(np.zeros((2, 8, 8, 3), "uint8"), np.eye(2))
    with pytest.raises(ValueError, match=r"one of several.*\(2, 4, 4\)"):
        function(np.zeros((8, 8, 3), "uint8"), np.zeros((2, 4, 4)))


# ------------------------------------------------------------- other drawings --


@pytest.mark.parametrize("case", range(4))
def test_vit_keras_style_is_what_opencv_draws(case):
    # Written by opencv-python-headless 5.0.0 from random maps and images, as vit-keras 0.2 called it:
    # (cv2.resize(heat / heat.max(), (width, height))[..., None] * image).astype("uint8")
    with np.load(DATA / "vit_keras_drawing.npz") as golden:
        image, heat, expected = (golden[f"{name}_{case}"] for name in ("image", "heat", "drawn"))
    assert image.shape[:2] != image.shape[1::-1] or case == 0  # only the first is a square
    result = overlays.vit_keras_style(image, heat).astype(int)
    assert np.abs(result - expected).max() <= 1  # products just below and just above a whole number are cut off
    assert (result == expected).mean() > 0.999


def test_the_paper_style_step_by_step():
    # A square image of whole patches, where the paper's code and Pillow's rules leave no choice.
    image, heat = noise(56, 56, 3), np.random.default_rng(0).random((7, 7))
    mask = Image.fromarray((heat / heat.max()).astype("float32")).resize((56, 56), Image.Resampling.LANCZOS)
    mask = Image.fromarray((np.asarray(mask).clip(0, 1) * 255).astype("uint8"))
    mask = np.asarray(mask.filter(ImageFilter.GaussianBlur(8)), "float64")
    mask = (mask - mask.min()) / (mask.max() - mask.min())
    np.testing.assert_allclose(overlays.paper_style(image, heat), image * mask[..., None], rtol=0, atol=0.51)


@pytest.mark.parametrize("function", [overlays.paper_style, overlays.vit_keras_style])
def test_maps_without_contrast(function):
    image = noise(60, 120, 3)
    np.testing.assert_array_equal(function(image, np.full((3, 6), 0.3)), image)
    assert function(image, np.zeros((3, 6))).max() == 0
    heat = np.random.default_rng(0).random((3, 6))
    heat[1, 1] = 0
    expected = function(image, heat)
    heat[1, 1] = np.nan
    np.testing.assert_array_equal(function(image, heat), expected)


# ------------------------------------------------------------------- upsample --


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), (2, 2)), r"down, across\).*\(3,\)"),
        ((np.eye(2), (2, 0)), r"size .*\(2, 0\)"),
        ((np.eye(2), (2, 2), "lanczos"), "Received: 'lanczos'"),
    ],
)
def test_what_cannot_be_upsampled(arguments, message):
    with pytest.raises(ValueError, match=message):
        overlays.upsample(*arguments)

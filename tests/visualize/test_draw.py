"""Pictures of maps: overlays, the paper's and vit-keras 0.2's drawings, figures and animations."""

import builtins
import dataclasses
import gc
import io
import pickle
import tracemalloc
import weakref

import numpy as np
import pytest
from PIL import Image, ImageFilter
from support import DATA

from vit_keras.visualize import draw, maps
from vit_keras.visualize.record import Recording


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype="uint8")


def grey_image(height=60, width=120, level=100):
    return np.full((height, width, 3), level, "uint8")


def lit(place, grid):
    """A map of one patch."""
    heat = np.zeros(grid)
    heat[place] = 1
    return heat


def tiles(picture, grid):
    """Mean colour of each patch, `(down, across, 3)`."""
    down, across = grid
    height, width = picture.shape[0] // down * down, picture.shape[1] // across * across
    return picture[:height, :width].reshape(down, height // down, across, width // across, -1).mean(axis=(1, 3))


def warmest(picture, grid):
    warmth = (tiles(picture, grid) * (1, 0, -1)).sum(axis=-1)
    return np.unravel_index(warmth.argmax(), warmth.shape)


def brightest(picture, grid):
    brightness = tiles(picture, grid).sum(axis=-1)
    return np.unravel_index(brightness.argmax(), brightness.shape)


def recording(layers=3, batch=2, heads=4, grid=(3, 6), prefix=("cls",), picture=(60, 120), seed=0, **fields):
    """A recording of random attention, with pictures of one grey."""
    tokens = len(prefix) + grid[0] * grid[1]
    attention = np.exp(np.random.default_rng(seed).standard_normal((layers, batch, heads, tokens, tokens)))
    attention /= attention.sum(axis=-1, keepdims=True)
    readout = np.zeros((batch, tokens), "float32")
    readout[:, :1] = 1
    if not prefix:
        readout[:] = 1 / tokens
    fields = {"attention": attention.astype("float32"), **fields}
    pictures = tuple(grey_image(*picture, level=80 + 40 * n) for n in range(batch))
    return Recording(pictures, grid, prefix, tuple(range(layers)), (16, 16), readout, **fields)


def looking_at(places, grid, **options):
    """A recording of one image whose head h looks at the patch `places[layer][h]` in each layer."""
    tokens = 1 + grid[0] * grid[1]
    attention = np.full((len(places), 1, len(places[0]), tokens, tokens), 1e-4, "float32")
    for layer, row in enumerate(places):
        for head, place in enumerate(row):
            attention[layer, 0, head, :, 1 + np.ravel_multi_index(place, grid)] = 1
    return recording(len(places), 1, len(places[0]), grid, attention=attention, **options)


def images_of(figure):
    return [image for axes in figure.axes for image in axes.images]


def texts_of(figure):
    return [text for axes in figure.axes for text in axes.texts if text.get_text()]


def rendered(figure):
    return np.asarray(Image.open(io.BytesIO(figure._repr_png_())).convert("RGB"))


# ------------------------------------------------------------------- colours --


@pytest.mark.parametrize("name", ["inferno", "viridis", "cividis", "magma", "turbo"])
def test_a_colour_table_is_matplotlibs(name):
    matplotlib = pytest.importorskip("matplotlib")
    values = np.linspace(0, 1, 256)
    expected = 255 * matplotlib.colormaps[name](values)[:, :3]
    # Every fifth colour is kept: 1.2 levels off in between, and 3.9 at cividis' one kink.
    limit = 4 if name == "cividis" else 1.25
    np.testing.assert_allclose(draw.colour(values, name), expected, rtol=0, atol=limit)


@pytest.mark.parametrize("name", ["inferno", "viridis", "cividis", "magma"])
def test_a_colour_is_brighter_where_the_value_is_higher(name):
    brightness = draw.colour(np.linspace(0, 1, 101), name) @ (0.2126, 0.7152, 0.0722)
    assert (np.diff(brightness) > 0).all()


def test_the_table_of_old_is_there():
    assert draw.INFERNO.shape[1] == 3
    np.testing.assert_array_equal(draw.colour(np.array([0.0, 1.0])), [(0, 0, 4), (252, 255, 164)])


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_function_for_colours(as_bytes):
    def blue(values):
        colours = np.stack([np.zeros_like(values), np.zeros_like(values), values], axis=-1)
        return np.rint(255 * colours).astype("uint8") if as_bytes else colours

    heat = np.array([[0, 0.4, 1]])
    result = draw.overlay(grey_image(), heat, cmap=blue, alpha=1, clip=100, interpolation="nearest")
    np.testing.assert_array_equal(result[30, 60], [36, 36, 0.6 * 60 + np.rint(0.4 * 0.4 * 255)])  # 0.4 of the blue 0.4
    np.testing.assert_array_equal(result[30, 100], [0, 0, 255])


def test_the_opacity_of_a_function_for_colours_counts():
    def half(values):
        return np.stack([np.ones_like(values)] * 3 + [0.5 * np.ones_like(values)], axis=-1)

    result = draw.overlay(grey_image(level=100), np.eye(2), cmap=half, alpha=1, interpolation="nearest")
    np.testing.assert_array_equal(result[0, 0], np.rint(0.5 * 255 + 0.5 * 60))


def test_a_colour_map_of_matplotlib():
    matplotlib = pytest.importorskip("matplotlib")
    image, heat = noise(60, 120, 3), np.random.default_rng(0).random((3, 6))
    result = draw.overlay(image, heat, cmap=matplotlib.colormaps["inferno"]).astype(int)
    assert np.abs(result - draw.overlay(image, heat)).max() <= 3  # its 256 steps, and our every fifth


# ------------------------------------------------------------------- overlay --

CORNERS = [(0, 0), (0, 6), (2, 0), (2, 6), (1, 4)]


@pytest.mark.parametrize("place", CORNERS)
@pytest.mark.parametrize("style", ["bilinear", "nearest", "paper", "vit_keras"])
def test_the_place_of_a_patch(place, style):
    grid, image = (3, 7), grey_image(60, 140)
    heat = lit(place, grid)
    if style in ("bilinear", "nearest"):
        assert warmest(draw.overlay(image, heat, interpolation=style), grid) == place
    else:
        drawn = {"paper": draw.paper_style, "vit_keras": draw.vit_keras_style}[style](image, heat)
        assert brightest(drawn, grid) == place
        assert drawn.max() >= 90  # of 100: not black
        assert drawn.min() <= 5


def test_nearest_shows_patches_with_sharp_edges():
    heat = np.random.default_rng(0).random((3, 6))
    result = draw.overlay(grey_image(), heat, interpolation="nearest")
    assert (result.reshape(3, 20, 6, 20, 3) == result.reshape(3, 20, 6, 20, 3)[:, :1, :, :1]).all()
    assert not (draw.overlay(grey_image(), heat) == result).all()


def test_alpha_is_the_opacity_of_the_highest_value():
    heat = np.array([[0.0, 1.0]])
    base = np.rint(0.6 * 100)
    for alpha in (0, 0.5, 1):
        result = draw.overlay(grey_image(2, 4), heat, alpha=alpha, interpolation="nearest")
        np.testing.assert_array_equal(result[:, :2], np.full((2, 2, 3), base))
        expected = np.rint((1 - alpha) * base + alpha * np.array([252, 255, 164]))
        np.testing.assert_array_equal(result[:, 2:], np.broadcast_to(expected, (2, 2, 3)))


def test_a_tall_image_is_drawn_as_a_wide_one():
    image, heat = noise(600, 20, 3), np.random.default_rng(0).random((6, 2))
    result = draw.overlay(image, heat)
    np.testing.assert_array_equal(result.swapaxes(0, 1), draw.overlay(image.swapaxes(0, 1), heat.T))


def test_the_clip_is_two_percentiles():
    heat = np.arange(101.0).reshape(1, 101)
    np.testing.assert_allclose(draw.stretch(heat, (10, 60))[0, [5, 10, 35, 60, 100]], [0, 0, 0.5, 1, 1], atol=1e-12)
    image = noise(20, 101, 3)
    expected = draw.overlay(image, heat, clip=(0, 60))
    np.testing.assert_array_equal(draw.overlay(image, heat, clip=60), expected)
    np.testing.assert_array_equal(draw.overlay(image, heat, percentile=60), expected)
    assert not (draw.overlay(image, heat, clip=(10, 60)) == expected).all()


def test_a_clip_that_falls_on_one_value_gives_way_to_the_whole_range():
    heat = lit((0, 0), (20, 20))  # its 99th percentile is 0
    np.testing.assert_array_equal(draw.stretch(heat), heat)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_does_not_spoil_the_rest(bad):
    heat = np.random.default_rng(0).random((3, 6))
    heat[0, :2] = 0, 1  # the scale of the others
    heat[1, 2] = 1 if bad == np.inf else 0
    options = {"interpolation": "nearest", "clip": (0, 100)}
    expected = draw.overlay(grey_image(), heat, **options)
    heat[1, 2] = bad
    np.testing.assert_array_equal(draw.overlay(grey_image(), heat, **options), expected)


@pytest.mark.parametrize("heat", [np.zeros((3, 6)), np.full((3, 6), np.nan), np.full((3, 6), 7.0)])
def test_a_map_that_says_nothing_dims_the_image(heat):
    result = draw.overlay(grey_image(level=100), heat)
    np.testing.assert_array_equal(result, grey_image(level=60))


def test_all_kinds_of_images_look_alike():
    grey = noise(24, 36)
    rgb = np.stack([grey] * 3, axis=-1)
    heat = np.random.default_rng(1).random((2, 3))
    expected = draw.overlay(rgb, heat)
    for image in (grey, grey[..., None], grey / 255, rgb / 255, rgb.astype("float32"), Image.fromarray(grey)):
        np.testing.assert_array_equal(draw.overlay(image, heat), expected)
    transparent = np.dstack([rgb, np.full((24, 36), 255, "uint8")])
    np.testing.assert_array_equal(draw.overlay(transparent, heat), expected)
    np.testing.assert_allclose(draw.overlay(rgb / 127.5 - 1, heat), expected, atol=1)  # a level of rounding


def test_one_map_in_a_batch():
    heat = np.random.default_rng(0).random((3, 6))
    np.testing.assert_array_equal(draw.overlay(grey_image(), heat[None]), draw.overlay(grey_image(), heat))


@pytest.mark.parametrize(
    ("heat", "options", "message"),
    [
        (np.zeros((2, 3, 6)), {}, r"shape \(down, across\); take one of several. Received: \(2, 3, 6\)"),
        (np.zeros(6), {}, r"Received: \(6,\)"),
        (np.zeros((0, 6)), {}, r"Received: \(0, 6\)"),
        ("heat", {}, "arrays of numbers. Received: str"),
        (np.eye(3), {"cmap": "jet"}, "cmap is one of inferno, viridis.*matplotlib.colormaps.*Received: 'jet'"),
        (np.eye(3), {"cmap": 3}, "a name or a function. Received: int"),
        (np.eye(3), {"cmap": lambda v: v}, r"must return \(..., 3\) or \(..., 4\).*It returned \(60, 120\)"),
        (np.eye(3), {"alpha": 1.5}, r"alpha is in \[0, 1\]. Received: 1.5"),
        (np.eye(3), {"clip": (50, 20)}, r"two percentiles.*Received: \(50, 20\)"),
        (np.eye(3), {"clip": 120}, "Received: 120"),
        (np.eye(3), {"interpolation": "cubic"}, "'bilinear' or 'nearest'. Received: 'cubic'"),
    ],
)
def test_what_cannot_be_laid_over(heat, options, message):
    with pytest.raises(ValueError, match=message):
        draw.overlay(grey_image(), heat, **options)


@pytest.mark.parametrize("function", [draw.overlay, draw.paper_style, draw.vit_keras_style])
def test_an_image_of_the_wrong_shape(function):
    with pytest.raises(ValueError, match=r"An array of pixels has the shape.*Received: \(2, 8, 8, 3\)"):
        function(np.zeros((2, 8, 8, 3), "uint8"), np.eye(2))
    with pytest.raises(ValueError, match=r"take one of several. Received: \(2, 4, 4\)"):
        function(np.zeros((8, 8, 3), "uint8"), np.zeros((2, 4, 4)))


# ------------------------------------------------------------- other drawings --


@pytest.mark.parametrize("case", range(4))
def test_vit_keras_style_is_what_opencv_draws(case):
    # Written by opencv-python-headless 5.0.0 from random maps and images, as vit-keras 0.2 called it:
    # (cv2.resize(heat / heat.max(), (width, height))[..., None] * image).astype("uint8")
    with np.load(DATA / "vit_keras_drawing.npz") as golden:
        image, heat, expected = (golden[f"{name}_{case}"] for name in ("image", "heat", "drawn"))
    assert image.shape[:2] != image.shape[1::-1] or case == 0  # only the first is a square
    result = draw.vit_keras_style(image, heat).astype(int)
    assert np.abs(result - expected).max() <= 1  # products just below and just above a whole number are cut off
    assert (result == expected).mean() > 0.999


def test_the_paper_style_step_by_step():
    # A square image of whole patches, where the paper's code and Pillow's rules leave no choice.
    image, heat = noise(56, 56, 3), np.random.default_rng(0).random((7, 7))
    mask = Image.fromarray((heat / heat.max()).astype("float32")).resize((56, 56), Image.Resampling.LANCZOS)
    mask = Image.fromarray((np.asarray(mask).clip(0, 1) * 255).astype("uint8"))
    mask = np.asarray(mask.filter(ImageFilter.GaussianBlur(8)), "float64")
    mask = (mask - mask.min()) / (mask.max() - mask.min())
    np.testing.assert_allclose(draw.paper_style(image, heat), image * mask[..., None], rtol=0, atol=0.51)


@pytest.mark.parametrize(("size", "grid"), [((64, 192), (4, 12)), ((64, 192), (4, 4)), ((90, 61), (3, 7))])
def test_the_paper_style_blurs_by_one_patch_each_way(size, grid):
    heat = np.zeros(grid)
    heat[grid[0] // 2, grid[1] // 2] = 1
    mask = draw.paper_style(grey_image(*size, level=255), heat)[..., 0].astype("float64")
    # A patch spreads by its own variance and that of the blur, about 1/12 + 1 patches; less where the border cuts it off.
    profiles = mask.sum(axis=1), mask.sum(axis=0)
    spread = []
    for profile, patches in zip(profiles, grid):
        profile = profile - profile.min()
        at = (np.arange(len(profile)) + 0.5) * patches / len(profile)
        mean = (at * profile).sum() / profile.sum()
        spread.append(np.sqrt((((at - mean) ** 2) * profile).sum() / profile.sum()))
    assert all(0.5 < s < 1.3 for s in spread)


@pytest.mark.parametrize("function", [draw.paper_style, draw.vit_keras_style])
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


def test_upsampling_keeps_leading_axes_and_orientation():
    heat = np.random.default_rng(0).random((2, 5, 3, 4))
    for interpolation in ("bilinear", "nearest"):
        result = draw.upsample(heat, (30, 80), interpolation)
        assert result.shape == (2, 5, 30, 80) and result.dtype == np.float32
        single = draw.upsample(heat[1, 3], (30, 80), interpolation)
        np.testing.assert_array_equal(result[1, 3], single)
        np.testing.assert_array_equal(draw.upsample(heat[1, 3].T, (80, 30), interpolation).T, single)
    nearest = draw.upsample(heat, (30, 80), "nearest")
    np.testing.assert_array_equal(nearest, heat.repeat(10, axis=-2).repeat(20, axis=-1).astype("float32"))


def test_bilinear_has_half_pixel_centres():
    result = draw.upsample(np.array([[0.0, 1.0, 4.0]]), (2, 6))
    np.testing.assert_allclose(result, [[0, 0.25, 0.75, 1.75, 3.25, 4]] * 2, rtol=0, atol=1e-6)  # float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(3), (2, 2)), r"shape \(..., down, across\). Received: \(3,\)"),
        ((np.eye(2), (2, 0)), r"size is \(height, width\) in pixels. Received: \(2, 0\)"),
        ((np.eye(2), (2, 2), "lanczos"), "Received: 'lanczos'"),
    ],
)
def test_what_cannot_be_upsampled(arguments, message):
    with pytest.raises(ValueError, match=message):
        draw.upsample(*arguments)


# -------------------------------------------------------------------- figures --


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def test_a_figure_is_unknown_to_pyplot_and_displays_itself(matplotlib):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    figure = draw.plot_maps({"one": np.eye(3)}, grey_image())
    assert pyplot.get_fignums() == []
    assert figure._repr_png_()[:8] == b"\x89PNG\r\n\x1a\n"
    assert pickle.loads(pickle.dumps(figure))._repr_png_()[:4] == b"\x89PNG"


def test_a_figure_is_freed(matplotlib):
    figure = draw.plot_maps({"one": np.eye(3)}, grey_image())
    figure._repr_png_()
    gone = weakref.ref(figure)
    del figure
    gc.collect()
    assert gone() is None


def test_without_matplotlib(monkeypatch):
    load = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError(f"No module named {name!r}", name="matplotlib")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw.new_figure(2, 2)


def test_maps_beside_each_other(matplotlib):
    heats = {"left": lit((1, 0), (3, 6)), "right": lit((1, 5), (3, 6))}
    figure = draw.plot_maps(heats, grey_image())
    assert [t.get_text() for t in texts_of(figure)][:3] == ["image", "left", "right"]
    image, left, right, _ = (i.get_array() for i in images_of(figure))
    np.testing.assert_array_equal(image, grey_image())
    assert warmest(left, (3, 6)) == (1, 0) and warmest(right, (3, 6)) == (1, 5)


def test_what_is_rendered_is_where_it_belongs(matplotlib):
    # The whole way, to the pixels of the PNG: each panel has its warm spot in its own corner.
    places = {"a": (0, 0), "b": (0, 5), "c": (2, 0), "d": (2, 5)}
    heats = {name: lit(place, (3, 6)) for name, place in places.items()}
    figure = draw.plot_maps(heats, grey_image(), show_image=False, columns=2)
    png = rendered(figure)
    for image, place in zip(images_of(figure), places.values()):
        box = image.get_window_extent()
        x0, x1 = round(box.x0), round(box.x1)
        y0, y1 = len(png) - round(box.y1), len(png) - round(box.y0)
        assert abs((x1 - x0) / (y1 - y0) - 2) < 0.05  # as wide as the picture
        assert warmest(png[y0:y1, x0:x1], (3, 6)) == place


@pytest.mark.parametrize("picture", [(60, 120), (90, 90), (120, 60)])
def test_no_text_overlaps_another_or_leaves_the_figure(matplotlib, picture):
    long = "rollout of the last four layers, of which each discards ninety percent"
    heats = {"a": np.eye(3), long: np.eye(3), "relevance_map_without_a_single_space_in_it": np.eye(3), "d": np.eye(3)}
    made = recording(layers=12, batch=1, heads=12, grid=(3, 6), picture=picture)
    figures = [
        draw.plot_maps(heats, grey_image(*picture)),
        draw.plot_maps({long: np.eye(3)}, grey_image(*picture), show_image=False),
        draw.plot_heads(made),
        draw.plot_layers(made, scale="same"),
    ]
    for figure in figures:
        figure._repr_png_()
        boxes = [t.get_window_extent() for t in texts_of(figure)]
        pictures = [i.get_window_extent() for i in images_of(figure)]
        assert all(t.get_fontsize() >= 8 for t in texts_of(figure))
        for n, box in enumerate(boxes):
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in [*boxes[:n], *pictures])


def test_the_scale_is_stated(matplotlib):
    heats = {"low": np.array([[1e-9, 0.1]]), "high": np.array([[1e-9, 0.4]])}
    each, same = (
        draw.plot_maps(heats, grey_image(), scale=scale, clip=(0, 100), show_image=False) for scale in ("each", "same")
    )
    texts = [t.get_text() for t in texts_of(each)]
    assert texts[2:] == ["lowest", "highest", "each map on its own scale"]
    assert [t.get_text() for t in texts_of(same)][2:] == ["0", "0.4"]
    first, second, _ = (i.get_array() for i in images_of(each))
    np.testing.assert_array_equal(first, second)
    first, second, bar = (i.get_array().astype(int) for i in images_of(same))
    assert first[:, -1].max() < second[:, -1].max()
    # The bar shows what a value looks like over grey, so the map's colour at 0.1 of 0.4 is a quarter along it.
    expected = draw.overlay(grey_image(1, 256, 128), np.linspace(0, 1, 256)[None], clip=(0, 100))
    np.testing.assert_array_equal(bar, expected)


def test_every_head(matplotlib):
    places = [[(0, 0), (0, 5), (2, 0), (2, 5)], [(2, 5), (2, 0), (1, 3), (0, 0)]]
    made = looking_at(places, (3, 6))
    for layer in (0, 1, -1):
        figure = draw.plot_heads(made, layer=layer)
        drawn = [warmest(image.get_array(), (3, 6)) for image in images_of(figure)[:4]]
        assert drawn == places[layer]
        assert [t.get_text() for t in texts_of(figure)][:4] == ["head 0", "head 1", "head 2", "head 3"]


def test_heads_are_read_as_the_output_is(matplotlib):
    # Without a class token: a MAP head that reads from patch 7 only, which looks at patch (2, 5).
    made = recording(layers=1, batch=1, heads=1, prefix=())
    attention = np.full_like(made.attention, 0.01)
    attention[..., 0] = 1
    attention[..., 7, :] = lit((2, 5), (3, 6)).ravel()
    readout = lit((0, 7), (1, 18)).astype("float32")
    made = dataclasses.replace(made, attention=attention, readout=readout)
    for plot in (draw.plot_heads, draw.plot_layers):
        assert warmest(images_of(plot(made))[0].get_array().repeat(10, 0).repeat(10, 1), (3, 6)) == (2, 5)


def test_the_heads_of_a_map_head(matplotlib):
    places = [(0, 0), (0, 5), (2, 0)], [(2, 5), (1, 3), (0, 0)]
    pooling = np.array([[lit(place, (3, 6)).ravel() for place in row] for row in places], "float32")
    made = recording(prefix=(), pooling_attention=pooling)
    figure = draw.plot_heads(made, layer=None, image=1)
    assert [warmest(i.get_array(), (3, 6)) for i in images_of(figure)[:3]] == places[1]


def test_the_image_that_is_asked_for(matplotlib):
    made = recording()
    expected = draw.overlay(made.images[1], maps.cls_attention(made, 1)[1, 2])
    np.testing.assert_array_equal(images_of(draw.plot_heads(made, layer=1, image=1))[2].get_array(), expected)
    with pytest.raises(ValueError, match="has 2 images. Received: image=2"):
        draw.plot_heads(made, image=2)


def test_every_head_of_every_layer(matplotlib):
    places = [[(0, 0), (0, 5)], [(2, 0), (2, 5)], [(1, 3), (1, 1)]]
    figure = draw.plot_layers(looking_at(places, (3, 6), picture=(60, 120)))
    panels = images_of(figure)[:6]
    bright = [np.unravel_index(p.get_array().sum(axis=-1).argmax(), (3, 6)) for p in panels]
    assert bright == [place for row in places for place in row]
    figure._repr_png_()
    boxes = [p.get_window_extent() for p in panels]
    assert all(abs(box.width / box.height - 2) < 1e-6 for box in boxes)
    assert boxes[0].y0 > boxes[2].y0 > boxes[4].y0  # layers downwards
    assert boxes[0].x0 < boxes[1].x0 and boxes[0].y0 == boxes[1].y0  # heads to the right
    assert {"layer", "head", "0", "1", "2"} <= {t.get_text() for t in texts_of(figure)}


@pytest.mark.parametrize("rows", ["all", "readout"])
def test_layers_whose_heads_were_fused(matplotlib, rows):
    places = [[(0, 5)], [(2, 0)]]
    made = looking_at(places, (3, 6))
    attention = made.attention.mean(axis=2)
    attention = attention if rows == "all" else attention[:, :, 0]
    figure = draw.plot_layers(dataclasses.replace(made, attention=attention, heads="mean"))
    assert [warmest(i.get_array(), (3, 6)) for i in images_of(figure)[:2]] == [(0, 5), (2, 0)]
    assert [t.get_text() for t in texts_of(figure)][:2] == ["layer 0", "layer 1"]


def test_axes_that_are_given(matplotlib):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4))
    axes = figure.subplots(1, 2)
    heats = {"first of all": np.eye(3), "second of all": np.eye(3), "third of all": np.eye(3)}
    assert draw.plot_maps(heats, grey_image(), ax=axes[0], columns=2) is figure
    assert draw.plot_layers(recording(), ax=axes[1]) is figure
    figure.canvas.draw()
    assert len(axes[0].images) == 5 and len(axes[1].images) == 13
    for one in axes:
        outer = one.get_subplotspec().get_position(figure).transformed(figure.transFigure)
        boxes = [text.get_window_extent() for text in one.texts if text.get_text()]
        assert not any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[:n])
        assert all(
            outer.x0 - 1 <= i.get_window_extent().x0 and i.get_window_extent().x1 <= outer.x1 + 1 for i in one.images
        )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw.plot_maps({}, grey_image()), r"maps is \{name: map\} with one or more. Received: \{\}"),
        (lambda: draw.plot_maps([np.eye(3)], grey_image()), "Received: list"),
        (lambda: draw.plot_maps({"a": np.zeros((2, 3, 3))}, grey_image()), r"Received: \(2, 3, 3\)"),
        (lambda: draw.plot_maps({"a": np.eye(3)}, grey_image(), scale="both"), "'each' or 'same'. Received: 'both'"),
        (lambda: draw.plot_maps({"a": np.eye(3)}, grey_image(), columns=0), "at least 1. Received: 0"),
        (lambda: draw.plot_heads(recording(attention=None)), "has no attention: keep 'attention' in record"),
        (lambda: draw.plot_layers(recording(attention=None)), "has no attention: keep 'attention' in record"),
        (lambda: draw.plot_heads(recording(), layer=7), "Recorded were the blocks 0, 1, 2. Received: 7"),
        (lambda: draw.plot_heads(dataclasses.replace(recording(), heads="mean")), "heads=None"),
    ],
)
def test_what_cannot_be_plotted(matplotlib, call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ----------------------------------------------------------------- animations --


def frames_of(gif):
    with Image.open(io.BytesIO(gif)) as file:
        for n in range(file.n_frames):
            file.seek(n)
            yield np.asarray(file.convert("RGB")), file.info["duration"]


def moving_square(count=6, background=None):
    background = noise(40, 60, 3) // 8 if background is None else background
    for n in range(count):
        frame = background.copy()
        frame[10:20, 8 * n : 8 * n + 8] = (250, 200, 40)
        yield frame


def test_frames_come_back(tmp_path):
    path = tmp_path / "square.gif"
    assert draw.animate(moving_square(), path, fps=4) == path
    result = list(frames_of(path.read_bytes()))
    assert len(result) == 6
    for (frame, duration), expected in zip(result, moving_square()):
        assert duration == 250
        # 256 colours for 32 ** 3 and one more: 16 levels are twice the spacing of a cube of 6 ** 3 over 32 levels.
        assert np.abs(frame.astype(int) - expected).max() <= 16
    assert [p.name for p in tmp_path.iterdir()] == ["square.gif"]


def test_it_plays_for_ever_and_the_bytes_are_the_file(tmp_path):
    gif = draw.animate(moving_square())
    draw.animate(moving_square(), tmp_path / "same.gif")
    assert (tmp_path / "same.gif").read_bytes() == gif
    assert Image.open(io.BytesIO(gif)).info["loop"] == 0


def test_what_does_not_move_does_not_flicker():
    result = np.stack([frame for frame, _ in frames_of(draw.animate(moving_square()))])
    still = result[:, 20:]
    assert (still == still[:1]).all()


def test_a_cut_brings_a_palette_of_its_own():
    red, blue = np.zeros((40, 60, 3), "uint8"), np.zeros((40, 60, 3), "uint8")
    red[..., 0], blue[..., 2] = noise(40, 60), noise(40, 60, seed=1)
    (first, _), (second, _), (third, _) = frames_of(draw.animate([red, blue, red]))
    for frame, expected in ((first, red), (second, blue), (third, red)):
        assert np.abs(frame.astype(int) - expected).mean() < 3  # red's palette would be 40 off


def test_a_frame_that_does_not_change_has_its_time():
    frame = noise(20, 30, 3)
    gif = draw.animate([frame] * 5, fps=10)
    assert sum(duration for _, duration in frames_of(gif)) == 500
    assert len(gif) < 1.3 * len(draw.animate([frame]))


def test_times_add_up_where_a_frame_is_no_whole_hundredth():
    gif = draw.animate(moving_square(7), fps=30)
    assert sum(duration for _, duration in frames_of(gif)) == 230  # 7 / 30 s to the hundredth


class Frame(np.ndarray):
    __hash__ = object.__hash__  # so that a WeakSet can count them

    def __eq__(self, other):
        return self is other


def test_a_video_is_not_held_in_memory(tmp_path):
    alive = weakref.WeakSet()
    most = 0

    def video():
        nonlocal most
        for n in range(12):
            frame = np.full((120, 160, 3), 20 * n, "uint8").view(Frame)
            alive.add(frame)
            most = max(most, len(alive))
            yield frame
            del frame

    draw.animate(video(), tmp_path / "video.gif")
    assert most <= 2


def test_the_memory_of_a_long_video_is_that_of_a_short_one(tmp_path):
    def peak(count):
        tracemalloc.start()
        draw.animate((noise(120, 160, 3, seed=n) for n in range(count)), tmp_path / "noise.gif")
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(2)
    frame = 120 * 160  # bytes of one frame of 8 bits
    assert peak(30) - peak(5) < 5 * frame


def test_a_recording_by_depth(tmp_path):
    # Each layer looks at its own patch only, so one patch is added by each.
    places = [[(0, 0)], [(2, 5)], [(0, 5)]]
    made = looking_at(places, (3, 6), picture=(120, 240))
    result = [frame for frame, _ in frames_of(draw.animate(made, over="layers", interpolation="nearest"))]
    assert len(result) == 3
    coloured = [np.abs(tiles(frame[:120], (3, 6)) - 0.6 * 80).max(axis=-1) > 5 for frame in result]
    found = [{(int(row), int(column)) for row, column in zip(*where.nonzero())} for where in coloured]
    assert found == [{(0, 0)}, {(0, 0), (2, 5)}, {(0, 0), (2, 5), (0, 5)}]
    for n, frame in enumerate(result, start=1):
        part = dataclasses.replace(made, layers=made.layers[:n], attention=made.attention[:n])
        heat = maps.attention_rollout(part)[0]
        expected = draw.overlay(made.images[0], heat, interpolation="nearest").astype(int)
        assert np.abs(frame[:120] - expected).mean() < 4  # 256 colours
        assert frame[120:].max() > 200  # the caption


def test_a_recording_by_discard_ratio():
    made = recording(picture=(120, 240))
    result = [frame[:120] for frame, _ in frames_of(draw.animate(made, over="discard", image=1))]
    assert len(result) == 10
    for n in (0, 5, 9):
        expected = draw.overlay(made.images[1], maps.attention_rollout(made, discard_ratio=n / 10)[1])
        assert np.abs(result[n].astype(int) - expected).mean() < 4  # 256 colours


def test_a_recording_with_fused_heads_and_a_large_picture():
    made = recording(batch=1, picture=(300, 600))
    made = dataclasses.replace(made, attention=made.attention.mean(axis=2), heads="mean")
    frame, _ = next(frames_of(draw.animate(made, size=200, cmap="viridis")))
    assert frame.shape == (124, 200, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: draw.animate([], path), "There are no frames"),
        (lambda path: draw.animate([noise(4, 6, 3), noise(6, 4, 3)], path), r"Frame 1 has \(4, 6\).*\(6, 4\)"),
        (lambda path: draw.animate([noise(4, 6, 3)], path.with_suffix(".mp4")), "name it .gif. Received: .*mp4"),
        (lambda path: draw.animate([noise(4, 6, 3)], path, fps=0), r"\(0, 50\].*Received: 0"),
        (lambda path: draw.animate([noise(4, 6, 3)], path, fps=60), "Received: 60"),
        (lambda path: draw.animate("frames.mp4", path), "an iterable of images. Received: str"),
        (lambda path: draw.animate(recording(), path, over="heads"), "'layers' or 'discard'. Received: 'heads'"),
        (lambda path: draw.animate(recording(attention=None), path), "has no attention"),
    ],
)
def test_what_cannot_be_animated_leaves_nothing(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "bad.gif")
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_breaks_off_leaves_the_old_file(tmp_path):
    def broken():
        yield noise(4, 6, 3)
        raise RuntimeError("the camera fell")

    path = tmp_path / "video.gif"
    draw.animate([noise(4, 6, 3)], path)
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="the camera fell"):
        draw.animate(broken(), path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["video.gif"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no folder .*nowhere to write a.gif to"):
        draw.animate([noise(4, 6, 3)], tmp_path / "nowhere" / "a.gif")

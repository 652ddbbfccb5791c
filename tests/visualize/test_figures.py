"""Figures of maps: what is drawn, where it stands, and what the scale says."""

import dataclasses
import io
import pickle
import sys

import numpy as np
import pytest
from PIL import Image
from recordings import grey_image, lit, looking_at, recording, tiles, warmest

from vit_keras.visualize import animate, figures


def images_of(figure):
    return [image for axes in figure.axes for image in axes.images]


def texts_of(figure):
    axes = [each for each in figure.axes if each.axison]
    labels = [x for a in axes for x in (a.xaxis.label, a.yaxis.label, *a.get_xticklabels(), *a.get_yticklabels())]
    return [each.title for each in figure.axes] + labels


def rendered(figure):
    return np.asarray(Image.open(io.BytesIO(figure._repr_png_()[0])).convert("RGB"))


# -------------------------------------------------------------------- figures --


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib")


def test_a_misspelled_option_is_named_with_the_right_one(matplotlib):
    """It was an error about `Look`, which nobody has called."""
    found = recording()
    for function, given in [
        (figures.plot_maps, (grey_image(), {"a": np.eye(2)})),
        (figures.plot_heads, (found,)),
        (figures.plot_layers, (found,)),
        (animate, (found,)),
    ]:
        with pytest.raises(TypeError, match=f"{function.__name__}.*'cmaps'"):
            function(*given, cmaps="turbo")
    with pytest.raises(TypeError, match="plot_maps.*'colums'"):
        figures.plot_maps(grey_image(), {"a": np.eye(2)}, colums=2)


def test_a_figure_is_unknown_to_pyplot_and_displays_itself(matplotlib):
    from matplotlib import pyplot

    pyplot.switch_backend("agg")
    figure = figures.plot_maps(grey_image(), {"one": np.eye(3)})
    assert pyplot.get_fignums() == []
    png, shown = pickle.loads(pickle.dumps(figure))._repr_png_()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    with Image.open(io.BytesIO(png)) as picture:  # twice as fine as a notebook shows it
        assert abs(picture.width - 2 * shown["width"]) <= 2 and abs(picture.height - 2 * shown["height"]) <= 2


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="Matplotlib"):
        figures.new_figure(2, 2)


def test_what_is_rendered_is_where_it_belongs(matplotlib):
    # The whole way, to the pixels of the PNG: each panel has its warm spot in its own corner.
    places = {"a": (0, 0), "b": (0, 5), "c": (2, 0), "d": (2, 5)}
    heats = {name: lit(place, (3, 6)) for name, place in places.items()}
    figure = figures.plot_maps(grey_image(), heats, show_image=False, columns=2)
    png = rendered(figure)
    for image, place in zip(images_of(figure), places.values()):
        box = image.get_window_extent()
        x0, x1 = round(box.x0), round(box.x1)
        y0, y1 = len(png) - round(box.y1), len(png) - round(box.y0)
        assert abs((x1 - x0) / (y1 - y0) - 2) < 0.05  # as wide as the picture
        assert warmest(png[y0:y1, x0:x1], (3, 6)) == place


@pytest.mark.slow
@pytest.mark.parametrize("picture", [(60, 120), (90, 90), (120, 60)])
def test_no_text_overlaps_another_or_leaves_the_figure(matplotlib, picture):
    long = "rollout of the last four layers, of which each discards ninety percent"
    heats = {"a": np.eye(3), long: np.eye(3), "relevance_map_without_a_single_space_in_it": np.eye(3), "d": np.eye(3)}
    made = recording(layers=12, batch=1, heads=12, grid=(3, 6), picture=picture)
    drawn = [
        figures.plot_maps(grey_image(*picture), heats),
        figures.plot_maps(grey_image(*picture), {long: np.eye(3)}, show_image=False),
        figures.plot_heads(made),
        figures.plot_layers(made),
    ]
    for figure in drawn:
        figure._repr_png_()
        shown = [text for text in texts_of(figure) if text.get_text() and text.get_window_extent().width > 1]
        boxes = [t.get_window_extent() for t in shown]
        pictures = [i.get_window_extent() for i in images_of(figure)]
        assert all(t.get_fontsize() >= 8 for t in shown)
        for n, box in enumerate(boxes):
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in [*boxes[:n], *pictures])


def test_every_head_of_every_layer(matplotlib):
    places = [[(0, 0), (0, 5)], [(2, 0), (2, 5)], [(1, 3), (1, 1)]]
    figure = figures.plot_layers(looking_at(places, (3, 6), picture=(60, 120)))
    axes, sheet = figure.axes[0], images_of(figure)[0].get_array()
    names = [[label.get_text() for label in axis.get_ticklabels()] for axis in (axes.yaxis, axes.xaxis)]
    assert names == [["0", "1", "2"], ["0", "1"]]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("layer", "head")
    panels = [half for row in np.array_split(sheet, 3) for half in np.array_split(row, 2, axis=1)]
    bright = []
    for panel in panels:
        panel = np.where((panel > 250).all(axis=-1, keepdims=True), 0, panel)  # the gaps
        bright.append(np.unravel_index(tiles(panel, (3, 6)).sum(axis=-1).argmax(), (3, 6)))
    assert bright == [place for row in places for place in row]
    figure._repr_png_()
    box = images_of(figure)[0].get_window_extent()
    assert abs(box.width / 2 / (box.height / 3) - 2) < 0.1  # with the gaps


@pytest.mark.parametrize("rows", ["all", "readout"])
def test_layers_whose_heads_were_fused(matplotlib, rows):
    places = [[(0, 5)], [(2, 0)]]
    made = looking_at(places, (3, 6))
    attention = made.attention.mean(axis=2)
    attention = attention if rows == "all" else attention[:, :, 0]
    figure = figures.plot_layers(dataclasses.replace(made, attention=attention, head_fusion="mean"))
    assert [warmest(i.get_array(), (3, 6)) for i in images_of(figure)[:2]] == [(0, 5), (2, 0)]
    assert [axes.get_title() for axes in figure.axes[:2]] == ["layer 0", "layer 1"]


def test_methods_of_several_images(matplotlib):
    pictures, maps = [grey_image(), grey_image(90, 60)], [{"a": np.eye(3), "b": np.eye(3)}, {"a": np.eye(3)}]
    figure = figures.plot_methods(pictures, maps, ["one", "$2"])
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["image", "a", "b", "image", "a"]
    figure._repr_png_()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: figures.plot_maps(grey_image(), {}), r"maps .*Received: \{\}"),
        (lambda: figures.plot_maps(grey_image(), [np.eye(3)]), "Received: list"),
        (lambda: figures.plot_maps(grey_image(), {"a": np.zeros((2, 3, 3))}), r"Received: \(2, 3, 3\)"),
        (lambda: figures.plot_maps(grey_image(), {"a": np.eye(3)}, columns=0), "columns must be .*Received: 0"),
        (lambda: figures.plot_heads(recording(attention=None)), "has no attention: pass keep="),
        (lambda: figures.plot_layers(recording(attention=None)), "has no attention: pass keep="),
        (lambda: figures.plot_heads(recording(), layer=7), "blocks 0, 1, 2.* 7"),
        (lambda: figures.plot_heads(recording(), image=7), "has 2 images. Received: image=7"),
        (lambda: figures.plot_heads(dataclasses.replace(recording(), head_fusion="mean")), "head_fusion=None"),
    ],
)
def test_what_cannot_be_plotted(matplotlib, call, message):
    with pytest.raises(ValueError, match=message):
        call()

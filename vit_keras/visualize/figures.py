"""Figures of maps, drawn with Matplotlib.

Matplotlib is imported when a figure is drawn. Figures are not registered with `pyplot`, so none is left over or shown
twice in a notebook.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import math
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._internal.imports import extra
from .._internal.validate import instance, positive_integer
from .colors import Clip, Cmap, color, limits_of, percentiles, stretch
from .options import check_options, parameters_of
from .overlays import as_map, as_picture, in_size, lay, upsample
from .recording import Recording, of_images

__all__ = ["new_figure", "plot_heads", "plot_layers", "plot_maps", "plot_methods"]


def new_figure(width: float, height: float, dpi: float = 200) -> Any:
    """Return an empty Matplotlib figure.

    It is not registered with `pyplot`: nothing has to be closed, and a notebook shows it once, as the last value of a
    cell.

    Args:
        width: Inches.
        height: Inches.
        dpi: Pixels per inch.

    Raises:
        ImportError: Matplotlib is not installed.

    Example:
        >>> new_figure(4, 3).add_subplot().set_title("empty").get_text()
        'empty'
    """
    figure = extra("matplotlib.figure", "Figures are drawn with Matplotlib").Figure(
        figsize=(width, height), dpi=dpi, layout="constrained"
    )
    # What a notebook asks for that has not imported pyplot:
    figure._repr_png_ = functools.partial(_png, figure)  # pyright: ignore[reportAttributeAccessIssue] (added here)
    return figure


def _png(figure: Any) -> tuple[bytes, dict[str, int]]:
    """Return the figure as PNG, and the size at which a notebook shows it: 100 pixels to an inch."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    width, height = figure.get_size_inches()
    return file.getvalue(), {"width": round(100 * width), "height": round(100 * height)}


def plot_maps(
    image: Any,
    maps: Mapping[str, np.ndarray],
    *,
    columns: int | None = None,
    show_image: bool = True,
    **look: Any,
) -> Any:
    """Draw several maps of one image side by side.

    Args:
        image: See `overlay`.
        maps: Names and maps, `(down, across)` each.
        columns: Panels in a row; `None`: chosen so that the figure is about half as wide again as high.
        show_image: Whether to begin with the image itself.
        **look: `cmap`, `alpha`, `clip` and `interpolation` as in `overlay`. Every map has a scale of its own.

    Returns:
        The figure.

    Raises:
        ValueError: There are no maps, or an argument cannot be drawn.
        TypeError: There is no such option.
        ImportError: Matplotlib is not installed.

    Example:
        >>> maps = {"left": np.array([[1, 0]]), "right": np.array([[0, 1]])}
        >>> plot_maps(np.zeros((32, 64, 3), "uint8"), maps).savefig("maps.png")  # doctest: +SKIP
    """
    if not isinstance(maps, Mapping) or not maps:
        received = "{}" if isinstance(maps, Mapping) else type(maps).__name__
        raise ValueError(f"maps must be {{name: map}} with one map or more. Received: {received}")
    return _small_multiples(maps, as_picture(image), look_of(look, plot_maps), columns, show_image, 2.2)


def plot_methods(images: Sequence[Any], maps: Sequence[Mapping[str, np.ndarray]], titles: Sequence[str]) -> Any:
    """Draw the maps of several images by several methods, one row per image; those of one image side by side."""
    titles = [title.replace("$", r"\$") for title in titles]  # or Matplotlib reads it as a formula
    pixels, columns = [as_picture(image) for image in images], max(map(len, maps)) + 1
    if len(pixels) == 1:
        figure = _small_multiples(maps[0], pixels[0], Look(), None, True, 2.2)
        figure.suptitle(titles[0], size=11)
        return figure
    heights = [1.6 * image.shape[0] / image.shape[1] + 0.9 for image in pixels]
    figure = new_figure(1.6 * columns, sum(heights))
    parts = figure.subfigures(len(pixels), squeeze=False, height_ratios=heights)[:, 0]
    for part, image, shown, title in zip(parts, pixels, maps, titles):
        width = 1.6 * math.sqrt(image.shape[0] / image.shape[1])
        _small_multiples(shown, image, Look(), columns, True, width, part)
        part.suptitle(title, x=0.01, ha="left", size=11)
    return figure


def plot_heads(
    recording: Any,
    layer: int | None = -1,
    image: int = 0,
    *,
    columns: int | None = None,
    **look: Any,
) -> Any:
    """Draw the attention of each head of a layer, from the class token or the token that the output is read from.

    Args:
        recording: A recording with attention, heads not fused.
        layer: Number of a block, negative from the end; `None` for the heads of a MAP head.
        image: Index of the image in the recording.
        columns: See `plot_maps`.
        **look: See `plot_maps`.

    Returns:
        The figure.

    Raises:
        ValueError: The recording has no attention, or its heads were fused; there is no such layer or image.
        TypeError: There is no such option.
        ImportError: Matplotlib is not installed.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model, picture = vit.vit_cifar10(), np.zeros((32, 32, 3), "uint8")
        >>> figure = plot_heads(visualize.record(model, picture), layer=-1)
        >>> figure.savefig("heads.png")
    """
    from .maps import cls_attention

    recording = of_one_image(recording, image)
    maps = {f"head {n}": heat for n, heat in enumerate(cls_attention(recording, layer)[0])}
    return _small_multiples(maps, recording.images[0], look_of(look, plot_heads), columns, False, 1.6)


def plot_layers(recording: Any, image: int = 0, **look: Any) -> Any:
    """Draw the attention of every head: one row per layer, one column per head.

    Layers go across and heads down where the figure would otherwise be more than four times as high as wide.

    Where the heads were fused there is one map per layer, drawn over the image.

    Args:
        recording: A recording with attention.
        image: Index of the image in the recording.
        **look: See `plot_maps`. Maps of single heads are opaque and show the patches as they are
            (`interpolation="nearest"`). Their scale ends at the highest value that is not an outlier (`clip="inner"`),
            or a few attention sinks would leave the rest of a map black; outliers are light blue.

    Returns:
        The figure.

    Raises:
        ValueError: The recording has no attention, or there is no such image.
        TypeError: There is no such option.
        ImportError: Matplotlib is not installed.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model, picture = vit.vit_cifar10(), np.zeros((32, 32, 3), "uint8")
        >>> figure = plot_layers(visualize.record(model, picture))
        >>> figure.savefig("layers.png")
    """
    from .maps import cls_attention

    chosen, recording = look_of(look, plot_layers), of_one_image(recording, image)
    if recording.head_fusion is not None:
        rows = recording.attention[:, 0]
        rows = rows if rows.ndim == 2 else np.einsum("q,lqk->lk", recording.readout[0], rows)
        maps = {f"layer {n}": heat for n, heat in zip(recording.layers, recording.patches(rows))}
        return _small_multiples(maps, recording.images[0], chosen, None, False, 1.6)
    maps = np.stack([cls_attention(recording, layer)[0] for layer in recording.layers])
    opaque = Look(**{"interpolation": "nearest", "clip": "inner", **look})
    return _matrix(maps, recording.layers, recording.images[0].shape[:2], opaque)


@dataclasses.dataclass(frozen=True)
class Look:
    """The way in which maps become colors, and its legend."""

    cmap: Cmap = "inferno"
    alpha: float = 0.75
    clip: Clip = (0, 99)
    interpolation: str = "bilinear"

    def legend(self, maps: Sequence[np.ndarray]) -> tuple[str, str, str]:
        """Return the ends of the scale, and a remark."""
        if self.clip == "inner":
            low, high = "lowest", "highest without outliers"
        else:
            names = {0.0: "lowest", 100.0: "highest"}
            low, high = (names.get(p, f"{p:g}th percentile") for p in percentiles(self.clip))
        return low, high, "each map on its own scale" if len(maps) > 1 else ""

    def over(self, pixels: np.ndarray, values: np.ndarray) -> np.ndarray:
        return lay(pixels, values, self.cmap, self.alpha, self.interpolation)


def look_of(options: Mapping[str, Any], function: Callable[..., Any]) -> Look:
    """Return the look that a function's further options describe, or raise a TypeError for unknown ones."""
    known = [*parameters_of(function, without=("look",)), *(field.name for field in dataclasses.fields(Look))]
    check_options(options, known, function.__name__)
    return Look(**options)


def of_one_image(recording: Any, image: int) -> Any:
    """Return the part of a recording with attention that belongs to one image."""
    count = len(instance(recording, Recording, "recording").images)
    if not -count <= operator.index(image) < count:
        raise ValueError(f"The recording has {count} images. Received: image={image}")
    if recording.attention is None:
        raise ValueError("The recording has no attention: pass keep=('attention',) to record, or more.")
    return of_images(recording, slice(image % count, image % count + 1))


_TITLE, _SMALL = 9, 8  # points
_LINE = 1.3 / 72  # inches to a point of size


def _small_multiples(
    maps: Mapping[str, np.ndarray],
    pixels: np.ndarray,
    look: Look,
    columns: int | None,
    show_image: bool,
    width: float,
    part: Any = None,
) -> Any:
    """Draw maps over one image, in rows, with their names above, in a new figure or a part of one."""
    heats = [as_map(heat) for heat in maps.values()]
    pixels = in_size(pixels, min(640, max(pixels.shape[:2])))
    pictures = [look.over(pixels, values) for values in [stretch(heat, look.clip) for heat in heats]]
    names = [*(["image"] if show_image else []), *map(str, maps)]
    pictures = [*([pixels] if show_image else []), *pictures]
    ratio = pixels.shape[0] / pixels.shape[1]
    width = width / math.sqrt(ratio)  # portraits as large as landscapes
    across = _columns_for(len(names), ratio) if columns is None else positive_integer(columns, "columns")
    across = min(across, len(names)) if part is None else across
    names = ["\n".join(textwrap.wrap(name, max(4, int(width / (0.65 * _TITLE / 72))))) for name in names]
    rows, lines = math.ceil(len(names) / across), max(name.count("\n") + 1 for name in names)
    legend = look.legend(heats)
    if part is None:
        title = (0.6 + lines) * _TITLE * _LINE
        part = new_figure(max(across * width, 2.5), rows * (ratio * width + title) + 0.6)
    axes = part.subplots(rows, across, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    for ax, picture, name in zip(axes.flat, pictures, names):
        ax.imshow(picture)
        ax.set_title(name, size=_TITLE)
    _draw_scale(axes, look.over(np.full((1, 256, 3), 128, "uint8"), np.linspace(0, 1, 256)[None])[0], *legend)
    return part


_OUTLIER = (90, 220, 255)
"""The color of values above a scale: none of `inferno`, and light in all others."""


def _matrix(maps: np.ndarray, layers: Sequence[int], size: tuple[int, int], look: Look) -> Any:
    """Draw maps `(layers, heads, down, across)` as a table, each in the proportions of the image."""
    count, heads, down, across = maps.shape
    ratio = size[0] / size[1]
    width = 0.65 / math.sqrt(ratio)
    names = [("layer", layers), ("head", range(heads))]
    if count * ratio > 4 * heads:
        names, maps = names[::-1], maps.swapaxes(0, 1)
    (side, rows), (above, columns) = names
    heats = list(maps.reshape(-1, down, across))
    fine = math.ceil(120 * math.sqrt(ratio) / down) * down, math.ceil(120 / math.sqrt(ratio) / across) * across
    outliers = [(look.clip == "inner") & (heat > limits_of(heat, look.clip)[1]) for heat in heats]
    low, high, remark = look.legend(heats)
    if any(map(np.any, outliers)):
        remark += "\nlight blue: outliers"
    tiles = []
    for heat, over in zip([stretch(heat, look.clip) for heat in heats], outliers):
        tile = np.rint(color(upsample(heat, fine, look.interpolation), look.cmap)).astype("uint8")
        tile[upsample(over.astype("float64"), fine, "nearest") > 0.5] = _OUTLIER
        tiles.append(tile)
    sheet = mosaic(np.reshape(tiles, (len(rows), len(columns), *fine, 3)), 255)
    figure = new_figure(0.7 + len(columns) * width, 1.3 + len(rows) * ratio * width)
    ax = figure.add_subplot()
    ax.imshow(sheet, aspect=ratio * fine[1] / fine[0], interpolation="antialiased")
    label_tiles(ax, (rows, columns), fine, gap_of(fine), _SMALL)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel(above, size=_TITLE)
    ax.set_ylabel(side, size=_TITLE)
    scale = np.rint(color(np.linspace(0, 1, 256), look.cmap)).astype("uint8")
    _draw_scale(ax, scale, low, high, remark.lstrip("\n"))
    return figure


def _draw_scale(axes: Any, colors: np.ndarray, low: str, high: str, remark: str) -> None:
    """Draw colors, uint8 `(values, 3)`, as a bar between the names of its ends below axes, above a remark."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    figure = np.ravel(axes)[0].figure
    shrink = min(1, 3 * figure.dpi / figure.bbox.width)  # to three inches
    scale = ScalarMappable(cmap=ListedColormap(colors / 255))
    bar = figure.colorbar(scale, ax=axes, location="bottom", aspect=25, shrink=shrink)
    bar.set_ticks([0, 1], labels=[low, high], size=_SMALL)
    bar.ax.tick_params(length=0)
    for label, side in zip(bar.ax.get_xticklabels(), ("left", "right")):
        label.set_ha(side)
    bar.outline.set_visible(False)
    bar.set_label(remark, size=_SMALL)
    figure.get_layout_engine().set(h_pad=0.08)


def mosaic(tiles: np.ndarray, between: float) -> np.ndarray:
    """Return tiles `(down, across, height, width, ...)` as one image, with a gap between them."""
    gap, (down, across, height, width) = gap_of(tiles.shape[2:4]), tiles.shape[:4]
    edges = [(0, 0), (0, 0), (0, gap), (0, gap), *[(0, 0)] * (tiles.ndim - 4)]
    tiles = np.pad(tiles, edges, constant_values=between).swapaxes(1, 2)
    return tiles.reshape(down * (height + gap), across * (width + gap), *tiles.shape[4:])[:-gap, :-gap]


def gap_of(size: tuple[int, ...]) -> int:
    """Return the pixels between two tiles of a size."""
    return max(1, round(max(size) / 16))


def label_tiles(ax: Any, names: Sequence[Sequence[Any]], size: tuple[int, int], gap: int, letters: float) -> None:
    """Write the names of the rows and columns of a mosaic at its axes."""
    for axis, shown, length in zip((ax.yaxis, ax.xaxis), names, size):
        places = [n * (length + gap) + (length - 1) / 2 for n in range(len(shown))]
        axis.set_ticks(places, [str(name) for name in shown])
    ax.tick_params(length=0, labelsize=letters)
    ax.spines[:].set_visible(False)


def _columns_for(count: int, ratio: float) -> int:
    """Return how many panels are in a row of a figure 1.5 times as wide as high, with a full last row if possible."""
    if count <= 4:
        return count
    rows = math.ceil(count / math.ceil(math.sqrt(1.5 * count * ratio)))
    return math.ceil(count / rows)

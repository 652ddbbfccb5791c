"""Figures of maps, drawn with Matplotlib.

Matplotlib is imported when a figure is drawn. Figures are not registered with `pyplot`, so none is left over or shown
twice in a notebook.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import math
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from .._internal.imports import extra
from .colors import Clip, Cmap, color, limits_of, percentiles, scaled, stretch
from .options import check_options, parameters_of
from .overlays import as_map, as_picture, lay, upsample
from .recording import of_images

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
    ax: Any = None,
    *,
    columns: int | None = None,
    show_image: bool = True,
    **look: Any,
) -> Any:
    """Draw several maps of one image side by side.

    Args:
        image: See `overlay`.
        maps: Names and maps, `(down, across)` each.
        ax: Matplotlib axes to draw in; `None` for a new figure.
        columns: Panels in a row; `None`: chosen so that the figure is about half as wide again as high.
        show_image: Whether to begin with the image itself.
        **look: `cmap`, `alpha`, `clip` and `interpolation` as in `overlay`; and `scale`: `"each"`, every map has a
            scale of its own, or `"same"`, all share one, and the color bar has numbers.

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
    return _small_multiples(dict(maps), as_picture(image), look_of(look, plot_maps), ax, columns, show_image, 2.2)


def plot_methods(images: Sequence[Any], maps: Sequence[Mapping[str, np.ndarray]], titles: Sequence[str]) -> Any:
    """Draw the maps of several images by several methods, one row per image; those of one image side by side."""
    titles = [title.replace("$", r"\$") for title in titles]  # or Matplotlib reads it as a formula
    pixels = [as_picture(image) for image in images]
    if len(pixels) == 1:
        figure = plot_maps(pixels[0], maps[0])
        figure.suptitle(titles[0], size=11)
        return figure
    width = 1.6  # inches of a map
    heights = [width * image.shape[0] / image.shape[1] + 0.8 for image in pixels]
    columns = max(map(len, maps)) + 1
    figure = new_figure(width * columns, sum(heights))
    axes = figure.subplots(len(pixels), 1, height_ratios=heights)
    for ax, image, shown, title in zip(axes, pixels, maps, titles):
        plot_maps(image, shown, ax, columns=columns)
        ax.set_title(title, loc="left", size=9)
    return figure


def plot_heads(
    recording: Any,
    layer: int | None = -1,
    image: int = 0,
    ax: Any = None,
    *,
    columns: int | None = None,
    **look: Any,
) -> Any:
    """Draw the attention of each head of a layer, from the class token or the token that the output is read from.

    Args:
        recording: A recording with attention, heads not fused.
        layer: Number of a block, negative from the end; `None` for the heads of a MAP head.
        image: Index of the image in the recording.
        ax: See `plot_maps`.
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
    return _small_multiples(maps, recording.images[0], look_of(look, plot_heads), ax, columns, False, 1.6)


def plot_layers(
    recording: Any,
    image: int = 0,
    ax: Any = None,
    **look: Any,
) -> Any:
    """Draw the attention of every head: one row per layer, one column per head.

    Layers go across and heads down where the figure would otherwise be more than four times as high as wide.

    Where the heads were fused there is one map per layer, drawn over the image.

    Args:
        recording: A recording with attention.
        image: Index of the image in the recording.
        ax: See `plot_maps`.
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
        return _small_multiples(maps, recording.images[0], chosen, ax, None, False, 1.6)
    maps = np.stack([cls_attention(recording, layer)[0] for layer in recording.layers])
    opaque = Look(**{"interpolation": "nearest", "clip": "inner", **look})
    return _matrix(maps, recording.layers, recording.images[0].shape[:2], opaque, ax)


@dataclasses.dataclass(frozen=True)
class Look:
    """The way in which maps become colors, and its legend."""

    cmap: Cmap = "inferno"
    alpha: float = 0.75
    clip: Clip = (0, 99)
    interpolation: str = "bilinear"
    scale: str = "each"

    def __post_init__(self) -> None:
        if self.scale not in ("each", "same"):
            raise ValueError(f"scale must be 'each' or 'same'. Received: {self.scale!r}")

    def legend(self, maps: Sequence[np.ndarray]) -> tuple[str, str, str]:
        """Return the ends of the scale, and a remark."""
        if self.clip == "inner":
            low, high = "lowest", "highest without outliers"
        else:
            names = {0.0: "lowest", 100.0: "highest"}
            low, high = (names.get(p, f"{p:g}th percentile") for p in percentiles(self.clip))
        if self.scale == "same":
            low, high = self.limits(maps)
            return f"{low if abs(low) > abs(high) / 200 else 0:.2g}", f"{high:.2g}", ""
        return low, high, "each map on its own scale" if len(maps) > 1 else ""

    def limits(self, maps: Sequence[np.ndarray]) -> tuple[float, float]:
        return limits_of(np.concatenate([np.ravel(m) for m in maps]), self.clip)

    def values(self, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.scale == "same":
            return [scaled(m, self.limits(maps)) for m in maps]
        return [stretch(m, self.clip) for m in maps]

    def outliers(self, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return which values of each map lie above the scale, if the scale leaves out outliers."""
        shared = self.limits(maps) if self.scale == "same" else None
        return [(self.clip == "inner") & (np.asarray(m) > (shared or limits_of(m, self.clip))[1]) for m in maps]

    def over(self, pixels: np.ndarray, values: np.ndarray) -> np.ndarray:
        return lay(pixels, values, self.cmap, self.alpha, self.interpolation)


def look_of(options: Mapping[str, Any], function: Callable[..., Any]) -> Look:
    """Return the look that a function's further options describe, or raise a TypeError for unknown ones."""
    known = [*parameters_of(function, without=("look",)), *(field.name for field in dataclasses.fields(Look))]
    check_options(options, known, function.__name__)
    return Look(**options)


def of_one_image(recording: Any, image: int) -> Any:
    """Return the part of a recording with attention that belongs to one image."""
    count = len(recording.images)
    if not -count <= operator.index(image) < count:
        raise ValueError(f"The recording has {count} images. Received: image={image}")
    if recording.attention is None:
        raise ValueError("The recording has no attention: pass keep=('attention',) to record, or more.")
    return of_images(recording, slice(image % count, image % count + 1))


_POINT = 1 / 72  # inches
_TITLE, _SMALL = 9, 8  # points
_LINE = 1.3 * _POINT  # inches to a point of size
_GAP = 0.08  # inches between panels


def _small_multiples(
    maps: dict[str, np.ndarray],
    pixels: np.ndarray,
    look: Look,
    ax: Any,
    columns: int | None,
    show_image: bool,
    width: float,
) -> Any:
    """Draw maps over one image, in rows, with their names above."""
    heats = [as_map(heat) for heat in maps.values()]
    pixels = sized(pixels, min(640, max(pixels.shape[:2])))
    pictures = [look.over(pixels, values) for values in look.values(heats)]
    names = [*(["image"] if show_image else []), *map(str, maps)]
    pictures = [*([pixels] if show_image else []), *pictures]
    ratio = pixels.shape[0] / pixels.shape[1]
    width = width / math.sqrt(ratio)  # portraits as large as landscapes
    across = columns_for(len(names), ratio) if columns is None else operator.index(columns)
    if across < 1:
        raise ValueError(f"columns must be at least 1. Received: {columns}")
    letters = max(4, int(width / (0.55 * _TITLE * _POINT)))
    names = ["\n".join(textwrap.wrap(name, letters)) for name in names]
    across = min(across, len(names))
    rows = [names[n : n + across] for n in range(0, len(names), across)]
    titles = [_TITLE * _LINE * max(name.count("\n") + 1 for name in row) for row in rows]
    starts = list(itertools.accumulate((title + ratio * width + _GAP for title in titles), initial=0))
    place = [(n % across * (width + _GAP), starts[n // across] + titles[n // across]) for n in range(len(names))]
    sheet = _Sheet(ax, across * (width + _GAP) - _GAP, starts[-1])
    for picture, name, (x, y) in zip(pictures, names, place):
        sheet.draw(picture, x, y, width, ratio * width)
        sheet.write(name, x + width / 2, y - 0.3 * _TITLE * _POINT, _TITLE, "center", "bottom")
    sheet.legend(look.over(np.full((1, 256, 3), 128, "uint8"), np.linspace(0, 1, 256)[None]), *look.legend(heats))
    return sheet.figure


_OUTLIER = (90, 220, 255)
"""The color of values above a scale: none of `inferno`, and light in all others."""


def _matrix(maps: np.ndarray, layers: Sequence[int], size: tuple[int, int], look: Look, ax: Any) -> Any:
    """Draw maps `(layers, heads, down, across)` as a table, each in the proportions of the image."""
    count, heads, down, across = maps.shape
    ratio = size[0] / size[1]
    width = 0.62 / math.sqrt(ratio)
    height, gap, margin = ratio * width, 0.03, 0.42
    top = 2 * _SMALL * _LINE
    names = [("layer", layers), ("head", range(heads))]
    if top + count * (height + gap) > 4 * (margin + heads * (width + gap)):
        names, maps = names[::-1], maps.swapaxes(0, 1)
    (side, rows), (above, columns) = names
    heats = list(maps.reshape(-1, down, across))
    # Whole pixels for each patch at the figure's resolution: Matplotlib would blur an image that it enlarges less.
    dpi = min(300, max(200, math.ceil(4 * max(down / height, across / width))))
    pixels = (math.ceil(dpi * height / down), math.ceil(dpi * width / across))
    fine = (2 * pixels[0] * down, 2 * pixels[1] * across)
    right, bottom = margin + len(columns) * (width + gap), top + len(rows) * (height + gap)
    outliers = look.outliers(heats)
    low, high, remark = look.legend(heats)
    if any(map(np.any, outliers)):
        remark += "\nlight blue: outliers"
    sheet = _Sheet(ax, right, bottom, dpi, lines=2 + remark.count("\n"))
    for n, (heat, over) in enumerate(zip(look.values(heats), outliers)):
        row, column = divmod(n, len(columns))
        tile = np.rint(color(upsample(heat, fine, look.interpolation), look.cmap)).astype("uint8")
        tile[upsample(over.astype("float64"), fine, "nearest") > 0.5] = _OUTLIER
        place = margin + column * (width + gap), top + row * (height + gap), width, height
        sheet.draw(tile, *place, "nearest" if look.interpolation == "nearest" else "antialiased")
    for n, name in enumerate(columns):
        sheet.write(name, margin + n * (width + gap) + width / 2, top - gap, _SMALL, "center", "bottom")
    for n, name in enumerate(rows):
        sheet.write(name, margin - 2 * gap, top + n * (height + gap) + height / 2, _SMALL, "right", "center")
    sheet.write(above, (margin + right) / 2, 0, _TITLE, "center", "top")
    sheet.write(side, 0, (top + bottom) / 2, _TITLE, "left", "center", rotation=90)
    bar = np.rint(color(np.linspace(0, 1, 256)[None], look.cmap)).astype("uint8")
    sheet.legend(bar, low, high, remark)
    return sheet.figure


def columns_for(count: int, ratio: float) -> int:
    """Return how many panels are in a row of a figure 1.5 times as wide as high, with a full last row if possible."""
    if count <= 4:
        return count
    rows = math.ceil(count / math.ceil(math.sqrt(1.5 * count * ratio)))
    return math.ceil(count / rows)


def sized(pixels: np.ndarray, longest: int) -> np.ndarray:
    """Resize an image so that its longest side has `longest` pixels."""
    height, width = pixels.shape[:2]
    by = longest / max(height, width)
    if by == 1:
        return pixels
    size = max(1, round(by * width)), max(1, round(by * height))
    return np.asarray(
        Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS if by < 1 else Image.Resampling.BICUBIC)
    )


class _Sheet:
    """Axes in inches from the upper left; in given axes that are smaller, images and letters shrink alike."""

    def __init__(self, ax: Any, width: float, height: float, dpi: float = 200, lines: int = 2):
        self.width, self.bottom = width, height
        height += 0.1 + lines * _SMALL * _LINE  # the legend
        self.ax = new_figure(width + 0.2, height + 0.2, dpi).add_subplot() if ax is None else ax
        self.figure = self.ax.figure
        self.ax.set_axis_off()
        self.ax.set_aspect("equal")
        self.ax.set_autoscale_on(False)
        self.ax.set_xlim(0, width)
        self.ax.set_ylim(height, 0)
        box = self.ax.get_window_extent()
        self.shrink = min(1, box.width / self.figure.dpi / width, box.height / self.figure.dpi / height)
        self.shrink = 1 if ax is None else self.shrink

    def draw(
        self, picture: np.ndarray, x: float, y: float, width: float, height: float, interpolation: str = "antialiased"
    ) -> None:
        # "antialiased" is "nearest" where pixels are large; shrinking is smooth
        self.ax.imshow(picture, extent=(x, x + width, y + height, y), interpolation=interpolation, aspect="equal")

    def write(self, text: Any, x: float, y: float, size: float, across: str, down: str, **options: Any) -> None:
        self.ax.text(x, y, str(text), size=size * self.shrink, ha=across, va=down, linespacing=1.1, **options)

    def legend(self, bar: np.ndarray, low: str, high: str, remark: str) -> None:
        """Draw the scale: a bar between its ends, and a remark in the next line."""
        y, letter = self.bottom + 0.1, 0.55 * _SMALL * _POINT
        start = (len(low) + 1) * letter
        length = max(0.3, min(1.5, self.width - start - (len(high) + 1) * letter))
        middle = y + _SMALL * _LINE / 2
        self.write(low, 0, middle, _SMALL, "left", "center")
        self.draw(bar, start, middle - 0.05, length, 0.1)
        self.write(high, start + length + letter, middle, _SMALL, "left", "center")
        self.write(remark.lstrip("\n"), 0, y + _SMALL * _LINE * 1.1, _SMALL, "left", "top")

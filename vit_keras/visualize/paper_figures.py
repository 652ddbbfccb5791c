"""Draw the ViT paper's Figures 6 and 7, and the results of `vit_keras.visualize.analysis`."""

from __future__ import annotations

import functools
import math
import os
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from PIL import Image

from .._internal.imports import extra
from .._internal.validate import as_array, numbers, one_of, positive_integer
from ..anatomy.parts import find_vit, has_attention
from ..preprocess.images import read
from ..preprocess.pixels import to_uint8
from .analysis import embedding_filters, mean_attention_distance, position_similarity
from .attention import attention_map
from .colors import Clip
from .figures import gap_of, label_tiles, mosaic, new_figure
from .overlays import as_picture, overlay, paper_style, vit_keras_style
from .recorder import Recorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "figure6",
    "figure7",
    "plot_by_layer",
    "plot_cka",
    "plot_embedding_filters",
    "plot_position_similarity",
]


def figure6(
    model: keras.Model,
    images: Any,
    *,
    columns: int = 1,
    method: str | None = None,
    target: Any = None,
    style: str = "paper",
    clip: Clip = 90,
    preprocess: Any = "own",
    grid: tuple[int, int] | None = None,
    **options: Any,
) -> Figure:
    """Draw the ViT paper's Figure 6: images, each next to what the output attends to in it, by attention rollout.

    Args:
        model: A ViT of this package, or a model with one inside.
        images: Whatever `record` takes, or an iterable of such images; they go through the model one at a time.
        columns: Pairs in a row.
        method: Which map: see `attention_map`. `None`: rollout, or with a target relevance.
        target: See `attention_map`.
        style: `"paper"`, `"overlay"` or `"vit_keras"`: see `attention_map`.
        clip: Percentiles of each map between which it is drawn; a number is the upper one, and `"inner"` leaves out
            outliers (see `overlay`). The paper's is 100, which leaves an image dark where a few patches get nearly all
            attention. `"vit_keras"` does not use it.
        preprocess: What the model's input needs: see `record`.
        grid: Patches down and across, where the model does not tell: see `record`.
        **options: Options of the method, such as `start_layer` or `discard_ratio`.

    Returns:
        A Matplotlib figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: There are no images, or as `attention_map` says.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> figure6(model, np.zeros((2, 32, 32, 3), "uint8")).savefig("figure6.png")  # doctest: +SKIP
    """
    extra("matplotlib.figure", "Figures are drawn with Matplotlib")  # before anything is computed
    columns = positive_integer(columns, "columns")
    draw = {
        "paper": functools.partial(paper_style, clip=clip),
        "overlay": functools.partial(overlay, clip=clip),
        "vit_keras": vit_keras_style,
    }[one_of(style, "style", ("paper", "overlay", "vit_keras"))]
    given, pairs = [*_pictures(images)], []
    one = isinstance(target, str) or np.ndim(target) == 0
    targets = [target] * len(given) if one else [*target] * (len(given) if len(target) == 1 else 1)
    if len(targets) != len(given):
        raise ValueError(
            f"There are {len(given)} images and {len(targets)} targets. Pass one target, or one for each image."
        )
    for picture, chosen in zip(given, targets):
        heat = attention_map(
            model, picture, method=method, target=chosen, style="raw", preprocess=preprocess, grid=grid, **options
        )
        shown = _displayed(picture)
        pairs.append((shown, draw(shown, heat)))
    if not pairs:
        raise ValueError("There are no images to draw.")
    return _pairs_side_by_side(pairs, min(columns, len(pairs)))


def _displayed(picture: Any) -> np.ndarray:
    """Return an image of any number of channels as RGB."""
    if isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.shape[-1] not in (1, 3):
        picture = picture.mean(axis=-1).astype(picture.dtype)
    return as_picture(picture)


def figure7(model: keras.Model, images: Any, *, preprocess: Any = "own", grid: tuple[int, int] | None = None) -> Figure:
    """Draw the ViT paper's Figure 7: embedding filters, similarities of positions, and how far the heads attend.

    Where a model has no such thing (a hybrid embeds no colors, rotary positions are not embeddings) its panel says so.

    Args:
        model: A ViT of this package, or a model with one inside.
        images: Images, over which the distances are averaged (the paper took 128): whatever `record` takes, or an
            iterable of such, a generator too; they go through the model one at a time.
        preprocess: What the model's input needs: see `record`.
        grid: Patches down and across, where the model does not tell: see `record`.

    Returns:
        A Matplotlib figure with three panels.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: There are no images, or as `record` says.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> figure7(model, np.zeros((2, 32, 32, 3), "uint8")).savefig("figure7.png")  # doctest: +SKIP
    """
    vit = find_vit(model)
    figure = new_figure(12.5, 3.5)
    figure.get_layout_engine().set(wspace=0.04)
    filters, positions, distances = figure.subplots(1, 3, gridspec_kw={"width_ratios": (1.6, 1.1, 1.1)})
    for plot, ax in ((plot_embedding_filters, filters), (plot_position_similarity, positions)):
        try:
            plot(vit, ax=ax)
        except ValueError as reason:
            _note(ax, reason)
    if has_attention(vit):
        recorder = Recorder(model, keep=("attention",), preprocess=preprocess, grid=grid)
        values, layers = _mean_distance(recorder, images)
        plot_by_layer(values, "Mean attention distance (pixels)", layers=layers, ax=distances)
    else:
        _note(distances, f"The model {vit.name!r} has no attention.")
    distances.set_title(vit.name)
    return figure


def plot_embedding_filters(model: keras.Model, n: int = 28, *, ax: Axes | None = None) -> Figure:
    """Draw `embedding_filters`, as in the ViT paper's Figure 7 left."""
    filters = embedding_filters(model, n)
    count, height, width, channels = filters.shape
    if channels not in (1, 3):
        raise ValueError(
            f"The patch embedding takes {height}x{width} patches of {channels} channels, "
            "which cannot be drawn as colors."
        )
    across = min(7, count)
    filters = np.pad(filters, [(0, -count % across), (0, 0), (0, 0), (0, 0)], constant_values=1.0)
    axes = _axes(ax, 5.5, 3.6)
    sheet = mosaic(filters.reshape(-1, across, height, width, channels), 1.0)
    axes.imshow(sheet[..., 0] if channels == 1 else sheet, cmap="gray", vmin=0, vmax=1)
    axes.set_axis_off()
    axes.set_anchor("N")  # elsewhere Matplotlib does not keep its place for the title
    kind = "RGB embedding filters" if channels == 3 else "Embedding filters"
    axes.set_title(f"{kind}\n(first {count} principal components)")
    return axes.figure


def plot_position_similarity(
    model: keras.Model, grid: tuple[int, int] | None = None, *, ax: Axes | None = None
) -> Figure:
    """Draw `position_similarity`, as in the ViT paper's Figure 7 center: a tile for each patch, at its place."""
    similarity = position_similarity(model, grid)
    down, across = similarity.shape[:2]
    chosen = [range(0, n, math.ceil(n / 16)) for n in (down, across)]
    tiles = similarity[np.ix_(*chosen)]
    axes = _axes(ax, 4.4, 3.6)
    picture = axes.imshow(mosaic(tiles, np.nan), cmap="viridis", vmin=-1, vmax=1, interpolation_stage="rgba")
    every = [math.ceil(len(shown) / 7) for shown in chosen]
    names = [["" if n % step else number for n, number in enumerate(shown)] for shown, step in zip(chosen, every)]
    label_tiles(axes, names, (down, across), gap_of((down, across)), 10)
    axes.set_anchor("N")
    axes.set(xlabel="Input patch column, from 0", ylabel="Input patch row, from 0")
    axes.set_title("Position embedding similarity")
    _color_bar(axes, picture, "Cosine similarity", (-1, 1))
    return axes.figure


def plot_by_layer(
    values: np.ndarray, label: str, *, layers: Iterable[int] | None = None, ax: Axes | None = None
) -> Figure:
    """Draw a number for each layer and head as dots, such as `mean_attention_distance` or `attention_entropy`.

    Args:
        values: `(layers, heads)`.
        label: What they are, with the unit.
        layers: Numbers of the layers, such as `recording.layers`; `None`: from 0.
        ax: Matplotlib's axes to draw in; `None` for a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: `values` is not two-dimensional.

    Example:
        >>> plot_by_layer(np.ones((12, 3)), "Entropy (nats)").axes[0].get_ylabel()
        'Entropy (nats)'
    """
    values = np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"values is an array (layers, heads). Received: shape {values.shape}")
    axes = _axes(ax, 4.4, 3.6)
    import matplotlib  # after `_axes`, which says how to install it

    depth = np.arange(len(values)) if layers is None else np.asarray(list(layers))
    heads = values.shape[1]
    order = (np.arange(heads) * 0.618 % 1).argsort().argsort()  # neighbors in the legend should look different
    colors = matplotlib.colormaps["viridis"](np.linspace(0, 0.92, heads)[order])
    for head, color in enumerate(colors):
        name = f"Head {head}" if head < 3 or heads <= 4 else "…" if head == 3 else None
        axes.scatter(depth, values[:, head], s=16, color=color, label=name, linewidths=0, clip_on=False, zorder=3)
    axes.set(xlabel="Network depth (layer)", ylabel=label, ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=True, fontsize=8, handletextpad=0.1, loc="best")
    return axes.figure


def plot_cka(cka: np.ndarray, *, ax: Axes | None = None) -> Figure:
    """Draw `layer_cka`, the first layers at the lower left.

    Args:
        cka: `(layers + 1, layers + 1)`.
        ax: Matplotlib's axes to draw in; `None` for a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: Matplotlib is not installed.

    Example:
        >>> plot_cka(np.eye(13)).axes[0].get_xlabel()
        'Layer'
    """
    cka = numbers(cka, "cka", axes=2)
    axes = _axes(ax, 4.4, 3.6)
    picture = axes.imshow(cka, cmap="viridis", vmin=0, vmax=1, origin="lower", interpolation="nearest")
    axes.set(ylabel="Layer", xlabel="Layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    _color_bar(axes, picture, "Linear CKA", (0, 1))
    return axes.figure


def _pairs_side_by_side(pairs: list[tuple[np.ndarray, np.ndarray]], columns: int) -> Figure:
    """Draw pairs of images in their own shapes, all equally wide; one more than twice as high as wide is narrower."""
    pictures, side = [picture for pair in pairs for picture in pair], 1.6
    ratios = [min(picture.shape[0] / picture.shape[1], 2) for picture, _ in pairs]
    heights = [max(ratios[n : n + columns]) for n in range(0, len(pairs), columns)]
    figure = new_figure(2 * columns * side, side * sum(heights) + 0.3)
    axes = figure.subplots(len(heights), 2 * columns, squeeze=False, height_ratios=heights).flat
    for n, ax in enumerate(axes):
        ax.set_axis_off()
        ax.set_anchor("N")
        if n < 2 * columns:
            ax.set_title(("Input", "Attention")[n % 2], fontsize=10)
        if n < len(pictures):
            ax.imshow(pictures[n])
    return figure


def _mean_distance(recorder: Recorder, images: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return `mean_attention_distance` over many images, read one at a time, and the numbers of the layers."""
    distances, recording = [], None
    for picture in _pictures(images):
        recording = recorder(picture)
        distances.append(mean_attention_distance(recording))
    if recording is None:
        raise ValueError("There are no images to record.")
    return np.mean(distances, axis=0), recording.layers


def _pictures(images: Any) -> Iterator[Any]:
    """Yield one image after the other, out of one, a batch, or an iterable of either."""
    one, axes = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image), len(getattr(images, "shape", ()))
    if hasattr(images, "read"):  # a file, which can be read only once
        yield read(images, None)
        return
    if isinstance(images, one) or axes in (2, 3) or not hasattr(images, "__iter__"):
        yield images
        return
    if axes == 4:
        images = to_uint8(as_array(images))  # one range of floats for all
    for image in images:
        yield from _pictures(image)


def _axes(ax: Axes | None, width: float, height: float) -> Any:
    """Return the given axes or new ones; untyped, for axes of a part of a figure have that part as their figure."""
    return new_figure(width, height).add_subplot() if ax is None else ax


def _color_bar(ax: Axes, picture: Any, label: str, ends: tuple[float, float]) -> None:
    """Draw a color bar as high as the axes."""
    ax.figure.colorbar(picture, cax=ax.inset_axes((1.03, 0, 0.04, 1)), ticks=ends, label=label)


def _note(ax: Axes, text: Any) -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, textwrap.fill(str(text), 38), ha="center", va="center", fontsize=8, transform=ax.transAxes)

"""Maps and pictures in, pictures and figures out.

Overlays and animations need Pillow and NumPy only. Figures need Matplotlib, which is imported when one is drawn; they are not
registered with `pyplot`, so none is left over or shown twice in a notebook.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import math
import operator
import os
import struct
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter, ImageFont, ImageStat

from ..atomic import complete
from ..images import grey, read
from ..positions import resize_bilinear

# Every fifth of the 256 colours of Matplotlib's maps, from black or blue to bright: inferno, viridis and magma by N. Smith and
# S. van der Walt (CC0), cividis by Nuñez, Anderton and Renslow (2018), turbo by A. Mikhailov (Google, Apache-2.0).
_TABLES = {
    "inferno": (
        "00000402020c0504170a072210092d160b391e0c45260c512f0a5b380962400a67490b6a510e6c59106e61136e69166e71196e78"
        "1c6d801f6c88226a902568982766a02a63a82e5fb0315bb73557bf3952c63d4dcc4248d34743d94d3ddf5337e45a31e9612bed69"
        "25f1711ff47918f78212f98b0bfa9407fb9d07fca60cfcb014fbba1ffac42af8cd37f6d746f4e156f2ea69f2f27df5f992fcffa4"
    ),
    "viridis": (
        "44015446085c471063481769481d6f482475472a7a46307e453781433d844142873f48893d4e8a3a538b38598c355e8d33638d31"
        "688e2e6d8e2c718e2a768e297b8e27808e25848e23898e218e8d20928c1f978b1e9c891fa18821a58524aa8328ae802eb37c35b7"
        "793dbc7446c06f50c46a5ac86465cb5e70cf577cd25089d54895d840a2da37b0dd2fbddf26cae11fd8e219e5e419f1e51dfde725"
    ),
    "cividis": (
        "00224e002656002a5f002d68003070083370163770203a6f273e6e2e416d34456c3a486c3f4c6c444f6c49536c4e566c535a6d57"
        "5d6d5c616e60646f656870696b716d6f727272747676767a7a787e7d788381798885788d8878928c789690779b9476a09875a59c"
        "74aaa073afa471b5a86fbaac6dbfb06bc4b468c9b965cfbd62d4c15fdac65bdfca57e5cf52ead34cf0d846f6dd3ffce236fee838"
    ),
    "turbo": (
        "30123b36215f3b2f803f3e9c424bb54559cb4666dd4773eb4680f6458cfd4099ff38a5fb2fb2f427bee91fc9dd1ad4d018ddc21a"
        "e4b622ebaa2ff19b3ff68a52fa7a65fd6979fe598bff4b9cfe40a9fb39b7f735c3f134d0ea34dbe236e5d938eecf3af5c53afaba"
        "39fdae35fea130fe932afc8423f9751df46617ef5811e84b0ce14109d83706ce2d04c32503b71d02a916019b0f018b09027a0403"
    ),
    "magma": (
        "00000402020b0504160907200e0b2b140e361a104221114e29115a311165390f6e420f754a107952137c5a167e6219806a1c8172"
        "1f81792282812581892881912b81992d80a1307eaa337db2357bba3878c23b75ca3e72d2426fd9466be04c67e75263ec5860f160"
        "5df4695cf7725cf97b5dfb8560fc8e64fd9869fea16efeaa74feb47bfebd82fec68afecf92fed89afde2a3fdebacfcf4b6fcfdbf"
    ),
}
COLOURS = {name: np.frombuffer(bytes.fromhex(table), "uint8").reshape(-1, 3) for name, table in _TABLES.items()}
INFERNO = COLOURS["inferno"]

Clip = float | tuple[float, float]
Cmap = str | Callable[[np.ndarray], np.ndarray]


# --- maps over pictures -----------------------------------------------------------------------------------------


def overlay(
    image: Any,
    heat: np.ndarray,
    *,
    cmap: Cmap = "inferno",
    alpha: float = 0.75,
    clip: Clip = (0, 99),
    interpolation: str = "bilinear",
    percentile: float | None = None,
) -> np.ndarray:
    """Lay a map over an image so that a person can read both.

    The map is stretched between two of its percentiles, because one patch that draws all attention would otherwise leave the
    rest black; it colours a dimmed, half grey copy of the image, more opaque where it is higher.

    Args:
        image: A picture: an array `(height, width)` or `(height, width, 1, 3 or 4)` of 8 bits or of floats, a PIL image, or
            anything else that `vit_keras.utils.read` reads. The map covers it from edge to edge.
        heat: `(down, across)`, any scale; one map in a batch will do. Cells that are not a number are left without colour.
        cmap: `"inferno"`, `"viridis"`, `"cividis"`, `"magma"` (as bright as the value is high, and safe for the colour-blind) or
            `"turbo"`; or a function of an array of values in [0, 1] to colours `(..., 3)` or `(..., 4)` in [0, 1], such as a
            colour map of Matplotlib.
        alpha: Opacity of the highest value, in [0, 1].
        clip: Percentiles of the map that become the lowest and the highest colour; a number is the upper one.
        interpolation: `"bilinear"`, or `"nearest"` to show the patches as they are.
        percentile: The same as `clip=(0, percentile)`.

    Returns:
        uint8 `(height, width, 3)`. A constant map dims the image and does not colour it.

    Raises:
        ValueError: An argument has a shape or a value that cannot be drawn.

    Example:
        >>> overlay(np.zeros((224, 224, 3), "uint8"), np.eye(14)).shape
        (224, 224, 3)
    """
    values = stretch(_map(heat), clip if percentile is None else percentile)
    return _lay(_picture(image), values, cmap, alpha, interpolation)


def paper_style(image: Any, heat: np.ndarray) -> np.ndarray:
    """Draw a map as the ViT paper does (Figure 6 and appendix D.8): what is looked at comes out of the dark.

    The map over its maximum is resized with Lanczos' filter to 8 bits, blurred by one patch and stretched to the full range; it
    is the opacity of the image over black (M. Minderer in google-research/vision_transformer, discussion 27).

    Args:
        image: See `overlay`.
        heat: See `overlay`.

    Returns:
        uint8 `(height, width, 3)`. A constant map leaves the image as it is, a map of zeros gives black.

    Raises:
        ValueError: The map or the image has a shape that cannot be drawn.

    Example:
        >>> paper_style(np.zeros((224, 448, 3), "uint8"), np.ones((14, 28))).shape
        (224, 448, 3)
    """
    pixels, share = _picture(image), np.clip(_share_of_maximum(_map(heat)), 0, 1).astype("float32")
    (height, width), (down, across) = pixels.shape[:2], share.shape
    # Pillow blurs as far down as across, so where the patches are not square the mask is made as if they were.
    side = max(1, round(math.sqrt(height / down * width / across)))
    square = height * across == width * down
    size = (width, height) if square else (side * across, side * down)
    mask = np.asarray(Image.fromarray(share).resize(size, Image.Resampling.LANCZOS))
    mask = Image.fromarray((np.clip(mask, 0, 1) * 255).astype("uint8")).filter(ImageFilter.GaussianBlur(side))
    mask = np.asarray(mask.resize((width, height), Image.Resampling.BILINEAR), "float32")
    mask = (mask - mask.min()) / np.ptp(mask) if np.ptp(mask) else mask / 255
    return np.rint(pixels * mask[..., None]).astype("uint8")


def vit_keras_style(image: Any, heat: np.ndarray) -> np.ndarray:
    """Draw a map as vit-keras 0.2 did: the image times the map over its maximum, to within one level of 255.

    Args:
        image: See `overlay`.
        heat: See `overlay`.

    Returns:
        uint8 `(height, width, 3)`. A constant map leaves the image as it is, a map of zeros gives black.

    Raises:
        ValueError: The map or the image has a shape that cannot be drawn.

    Example:
        >>> vit_keras_style(np.full((4, 6, 3), 200, "uint8"), np.array([[0.5, 1.0]]))[0, :, 0]
        array([100, 100, 133, 166, 200, 200], dtype=uint8)
    """
    pixels = _picture(image)
    mask = upsample(np.clip(_share_of_maximum(_map(heat)), 0, 1), pixels.shape[:2])
    return (mask[..., None] * pixels).astype("uint8")


def upsample(maps: np.ndarray, size: tuple[int, int], interpolation: str = "bilinear") -> np.ndarray:
    """Bring maps to the size of a picture.

    Args:
        maps: `(..., down, across)`.
        size: `(height, width)`.
        interpolation: `"bilinear"`, with half-pixel centres (as `cv2.resize` and `tf.image.resize` do), or `"nearest"`.

    Returns:
        float32 `(..., height, width)`.

    Raises:
        ValueError: The arguments are not of these kinds.

    Example:
        >>> upsample(np.array([[0.0, 1.0]]), (1, 4))
        array([[0.  , 0.25, 0.75, 1.  ]], dtype=float32)
    """
    maps = _numbers(maps, "maps")
    if maps.ndim < 2 or 0 in maps.shape:
        raise ValueError(f"Maps have the shape (..., down, across). Received: {maps.shape}")
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size is (height, width) in pixels. Received: {size}")
    if interpolation == "nearest":
        rows, columns = (
            ((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, maps.shape[-2:], strict=True)
        )
        return maps[..., rows[:, None], columns].astype("float32")
    if interpolation != "bilinear":
        raise ValueError(f"interpolation is 'bilinear' or 'nearest'. Received: {interpolation!r}")
    first = np.moveaxis(maps, (-2, -1), (0, 1))
    return np.moveaxis(resize_bilinear(first, size, align_corners=False), (0, 1), (-2, -1)).astype("float32")


def stretch(heat: np.ndarray, clip: Clip = (0, 99)) -> np.ndarray:
    """Bring a map to [0, 1]: its two percentiles become 0 and 1.

    Where the two are equal, its minimum and maximum take their place. A constant map becomes 0, and so does what is not a number.

    Example:
        >>> stretch(np.array([2.0, 4.0, np.nan, 10.0]), (0, 100))
        array([0.  , 0.25, 0.  , 1.  ])
    """
    return _scaled(heat, _limits(heat, clip))


def colour(values: np.ndarray, cmap: Cmap = "inferno") -> np.ndarray:
    """Colours in [0, 255] of shape `(*values.shape, 3)` for values in [0, 1]; see `overlay` for `cmap`."""
    return _colour(values, cmap)[0]


def _picture(image: Any) -> np.ndarray:
    if not hasattr(image, "convert") and not isinstance(image, np.ndarray) and hasattr(image, "__array__"):
        image = np.asarray(image)  # a tensor
    with warnings.catch_warnings():  # floats in [0, 1] are fine here: nothing goes into a model
        warnings.filterwarnings("ignore", "A float image is meant", UserWarning)
        return read(image, None)


def _numbers(values: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(values).astype("float64")
    except (TypeError, ValueError):
        raise ValueError(f"{name} are arrays of numbers. Received: {type(values).__name__}") from None


def _map(heat: Any) -> np.ndarray:
    heat = _numbers(heat, "maps")
    if heat.ndim == 3 and len(heat) == 1:
        heat = heat[0]
    if heat.ndim != 2 or 0 in heat.shape:
        raise ValueError(f"A map has the shape (down, across); take one of several. Received: {heat.shape}")
    return heat


def _share_of_maximum(heat: np.ndarray) -> np.ndarray:
    heat = np.where(np.isfinite(heat), heat, 0)
    return heat / heat.max() if heat.max() > 0 else np.zeros_like(heat)


def _percentiles(clip: Clip) -> tuple[float, float]:
    low, high = clip if np.ndim(clip) else (0, clip)
    if not 0 <= low < high <= 100:
        raise ValueError(f"clip is two percentiles, 0 <= low < high <= 100, or the upper one. Received: {clip}")
    return float(low), float(high)


def _limits(heat: np.ndarray, clip: Clip) -> tuple[float, float]:
    heat = np.asarray(heat, "float64")
    heat = heat[np.isfinite(heat)]
    if not heat.size:
        return 0.0, 0.0
    low, high = np.percentile(heat, _percentiles(clip))
    return (low, high) if high > low else (heat.min(), heat.max())  # equal: a single patch above the rest


def _scaled(heat: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    heat, (low, high) = np.asarray(heat, "float64"), limits
    if not high > low:
        return np.zeros_like(heat)
    return np.where(np.isnan(heat), 0, np.clip((heat - low) / (high - low), 0, 1))


def _colour(values: np.ndarray, cmap: Cmap) -> tuple[np.ndarray, np.ndarray | float]:
    """Colours in [0, 255] and their opacity."""
    if isinstance(cmap, str):
        if cmap not in COLOURS:
            raise ValueError(
                f"cmap is one of {', '.join(COLOURS)}, or a function such as matplotlib.colormaps['gray']. Received: {cmap!r}"
            )
        steps = np.linspace(0, 1, len(COLOURS[cmap]))
        return np.stack([np.interp(values, steps, channel) for channel in COLOURS[cmap].T], axis=-1), 1.0
    if not callable(cmap):
        raise ValueError(f"cmap is a name or a function. Received: {type(cmap).__name__}")
    colours = np.asarray(cmap(values))
    if colours.shape not in ((*np.shape(values), 3), (*np.shape(values), 4)):
        raise ValueError(
            f"cmap must return (..., 3) or (..., 4) for values of the shape {np.shape(values)}. It returned {colours.shape}"
        )
    colours = colours / 255 if np.issubdtype(colours.dtype, np.integer) else colours
    return 255 * np.clip(colours[..., :3], 0, 1), colours[..., 3:] if colours.shape[-1] == 4 else 1.0


def _lay(pixels: np.ndarray, values: np.ndarray, cmap: Cmap, alpha: float, interpolation: str) -> np.ndarray:
    """`overlay` of what has been brought to [0, 1]."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is in [0, 1]. Received: {alpha}")
    values = upsample(values, pixels.shape[:2], interpolation)
    result = np.empty_like(pixels)
    for top in range(0, len(pixels), 256):  # a few rows at a time: a large photograph in floats takes a gigabyte
        rows = slice(top, top + 256)
        colours, opacity = _colour(values[rows], cmap)
        cover = alpha * values[rows, :, None] * opacity
        base = 0.6 * (0.5 * pixels[rows] + 0.5 * grey(pixels[rows]))
        result[rows] = np.rint(base + cover * (colours - base))
    return result


# --- figures ----------------------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> Any:
    """An empty figure of Matplotlib's, in inches.

    `pyplot` does not know it: nothing has to be closed, and a notebook shows it once, where it is the last value of a cell.

    Raises:
        ImportError: Matplotlib is not installed.

    Example:
        >>> new_figure(4, 3).add_subplot().set_title("empty").get_text()
        'empty'
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise ImportError("Figures are drawn with Matplotlib, which is not installed: pip install matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = functools.partial(_png, figure)  # what a notebook asks for that has not imported pyplot
    return figure


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def plot_maps(
    maps: Mapping[str, np.ndarray],
    image: Any,
    ax: Any = None,
    *,
    columns: int | None = None,
    show_image: bool = True,
    **look: Any,
) -> Any:
    """Draw several maps of one image side by side.

    Args:
        maps: Names and maps, `(down, across)` each.
        image: See `overlay`.
        ax: Axes of Matplotlib's to draw in; `None` for a new figure.
        columns: How many stand in a row; `None`: as many as look well.
        show_image: Whether to begin with the image itself.
        **look: `cmap`, `alpha`, `clip` and `interpolation` as in `overlay`; and `scale`: `"each"`, every map is stretched for
            itself, or `"same"`, all alike, and the scale has numbers.

    Returns:
        The figure.

    Raises:
        ValueError: There are no maps, or an argument cannot be drawn.
        ImportError: Matplotlib is not installed.

    Example:
        >>> figure = plot_maps({"left": np.array([[1, 0]]), "right": np.array([[0, 1]])}, np.zeros((32, 64, 3), "uint8"))
        >>> figure.savefig("maps.png")  # doctest: +SKIP
    """
    if not isinstance(maps, Mapping) or not maps:
        raise ValueError(
            f"maps is {{name: map}} with one or more. Received: {maps if maps == {} else type(maps).__name__}"
        )
    return _small_multiples(dict(maps), _picture(image), _Look(**look), ax, columns, show_image, 2.2)


def plot_heads(
    recording: Any,
    layer: int | None = -1,
    image: int = 0,
    ax: Any = None,
    *,
    columns: int | None = None,
    **look: Any,
) -> Any:
    """Draw what each head of a layer attends to, from the class token or from whatever the model's output is read from.

    Args:
        recording: With attention, heads not fused.
        layer: Which block, from the end if negative; `None` for the heads of a MAP head.
        image: Which image of the recording.
        ax: See `plot_maps`.
        columns: See `plot_maps`.
        **look: See `plot_maps`.

    Returns:
        The figure.

    Raises:
        ValueError: The recording has no attention, or its heads were fused; there is no such layer or image.
        ImportError: Matplotlib is not installed.
    """
    from .maps import cls_attention

    recording = _of_one_image(recording, image)
    maps = {f"head {n}": heat for n, heat in enumerate(cls_attention(recording, layer)[0])}
    return _small_multiples(maps, recording.images[0], _Look(**look), ax, columns, False, 1.6)


def plot_layers(
    recording: Any,
    image: int = 0,
    ax: Any = None,
    **look: Any,
) -> Any:
    """Draw what each head of each layer attends to: a row for a layer, a column for a head.

    Where the heads were fused there is one map for a layer, drawn over the image.

    Args:
        recording: With attention.
        image: Which image of the recording.
        ax: See `plot_maps`.
        **look: See `plot_maps`. Of unfused heads the patches are shown as they are (`interpolation="nearest"`) and opaque.

    Returns:
        The figure.

    Raises:
        ValueError: The recording has no attention, or there is no such image.
        ImportError: Matplotlib is not installed.
    """
    from .maps import cls_attention

    recording = _of_one_image(recording, image)
    if recording.heads is not None:
        rows = recording.attention[:, 0]
        rows = rows if rows.ndim == 2 else np.einsum("q,lqk->lk", recording.readout[0], rows)
        maps = {f"layer {n}": heat for n, heat in zip(recording.layers, recording.patches(rows))}
        return _small_multiples(maps, recording.images[0], _Look(**look), ax, None, False, 1.6)
    maps = np.stack([cls_attention(recording, layer)[0] for layer in recording.layers])
    look = _Look(**{"interpolation": "nearest", **look})
    return _matrix(maps, recording.layers, recording.images[0].shape[:2], look, ax)


@dataclasses.dataclass(frozen=True)
class _Look:
    """How maps become colours, and what the legend says of it."""

    cmap: Cmap = "inferno"
    alpha: float = 0.75
    clip: Clip = (0, 99)
    interpolation: str = "bilinear"
    scale: str = "each"

    def __post_init__(self):
        if self.scale not in ("each", "same"):
            raise ValueError(f"scale is 'each' or 'same'. Received: {self.scale!r}")

    def legend(self, maps: Sequence[np.ndarray]) -> tuple[str, str, str]:
        """The ends of the scale, and a remark."""
        low, high = ({0.0: "lowest", 100.0: "highest"}.get(p, f"{p:g}th percentile") for p in _percentiles(self.clip))
        if self.scale == "same":
            low, high = self.limits(maps)
            return f"{low if abs(low) > abs(high) / 200 else 0:.2g}", f"{high:.2g}", ""
        return low, high, "each map on its own scale" if len(maps) > 1 else ""

    def limits(self, maps: Sequence[np.ndarray]) -> tuple[float, float]:
        return _limits(np.concatenate([np.ravel(m) for m in maps]), self.clip)

    def values(self, maps: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.scale == "same":
            return [_scaled(m, self.limits(maps)) for m in maps]
        return [stretch(m, self.clip) for m in maps]

    def over(self, pixels: np.ndarray, values: np.ndarray) -> np.ndarray:
        return _lay(pixels, values, self.cmap, self.alpha, self.interpolation)


def _of_one_image(recording: Any, image: int) -> Any:
    count = len(recording.images)
    if not -count <= operator.index(image) < count:
        raise ValueError(f"The recording has {count} images. Received: image={image}")
    if recording.attention is None:
        raise ValueError("The recording has no attention: keep 'attention' in record.")
    one = slice(image % count, image % count + 1)
    pooling = recording.pooling_attention
    return dataclasses.replace(
        recording,
        images=recording.images[one],
        readout=recording.readout[one],
        attention=recording.attention[:, one],
        pooling_attention=None if pooling is None else pooling[one],
    )


_POINT = 1 / 72  # inches
_TITLE, _SMALL = 9, 8  # points
_LINE = 1.3 * _POINT  # inches to a point of size
_GAP = 0.08  # inches between panels


def _small_multiples(
    maps: dict[str, np.ndarray],
    pixels: np.ndarray,
    look: _Look,
    ax: Any,
    columns: int | None,
    show_image: bool,
    width: float,
) -> Any:
    """Maps over one picture, in rows, with their names above."""
    heats = [_map(heat) for heat in maps.values()]
    pixels = _shrunk(pixels, 640)
    pictures = [look.over(pixels, values) for values in look.values(heats)]
    names = [*(["image"] if show_image else []), *map(str, maps)]
    pictures = [*([pixels] if show_image else []), *pictures]
    ratio = pixels.shape[0] / pixels.shape[1]
    width = width / math.sqrt(ratio)  # portraits as large as landscapes
    across = columns_for(len(names), ratio) if columns is None else operator.index(columns)
    if across < 1:
        raise ValueError(f"columns is at least 1. Received: {columns}")
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


def _matrix(maps: np.ndarray, layers: Sequence[int], size: tuple[int, int], look: _Look, ax: Any) -> Any:
    """Maps `(layers, heads, down, across)` as a table, in the proportions of the picture that they are of."""
    count, heads, down, across = maps.shape
    ratio = size[0] / size[1]
    width = 0.62 / math.sqrt(ratio)
    height, gap, margin = ratio * width, 0.03, 0.42
    top = 2 * _SMALL * _LINE
    values = look.values(maps.reshape(-1, down, across))
    fine = (down, across) if look.interpolation == "nearest" else (8 * down, 8 * across)
    sheet = _Sheet(ax, margin + heads * (width + gap), top + count * (height + gap))
    for n, heat in enumerate(values):
        layer, head = divmod(n, heads)
        tile = np.rint(colour(upsample(heat, fine, look.interpolation), look.cmap)).astype("uint8")
        sheet.draw(tile, margin + head * (width + gap), top + layer * (height + gap), width, height)
    for head in range(heads):
        sheet.write(head, margin + head * (width + gap) + width / 2, top - gap, _SMALL, "center", "bottom")
    for row, layer in enumerate(layers):
        sheet.write(layer, margin - 2 * gap, top + row * (height + gap) + height / 2, _SMALL, "right", "center")
    sheet.write("head", margin + heads * (width + gap) / 2, 0, _TITLE, "center", "top")
    sheet.write("layer", 0, top + count * (height + gap) / 2, _TITLE, "left", "center", rotation=90)
    sheet.legend(
        np.rint(colour(np.linspace(0, 1, 256)[None], look.cmap)).astype("uint8"),
        *look.legend(maps.reshape(-1, down, across)),
    )
    return sheet.figure


def columns_for(count: int, ratio: float) -> int:
    """So many that the whole is about half as wide again as high, and the last row as full as can be; a few in one row."""
    if count <= 4:
        return count
    rows = math.ceil(count / math.ceil(math.sqrt(1.5 * count * ratio)))
    return math.ceil(count / rows)


def _shrunk(pixels: np.ndarray, longest: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    by = longest / max(height, width)
    if by >= 1:
        return pixels
    size = max(1, round(by * width)), max(1, round(by * height))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


class _Sheet:
    """Axes whose unit is the inch, from the upper left; in axes that are smaller, pictures and letters shrink alike."""

    def __init__(self, ax: Any, width: float, height: float):
        self.width, self.bottom = width, height
        height += 0.1 + 2 * _SMALL * _LINE  # the legend
        self.ax = new_figure(width + 0.2, height + 0.2).add_subplot() if ax is None else ax
        self.figure = self.ax.figure
        self.ax.set_axis_off()
        self.ax.set_aspect("equal")
        self.ax.set_autoscale_on(False)
        self.ax.set_xlim(0, width)
        self.ax.set_ylim(height, 0)
        box = self.ax.get_window_extent()
        self.shrink = min(1, box.width / self.figure.dpi / width, box.height / self.figure.dpi / height)
        self.shrink = 1 if ax is None else self.shrink

    def draw(self, picture: np.ndarray, x: float, y: float, width: float, height: float) -> None:
        # "nearest" where pixels are large; shrinking is smooth
        self.ax.imshow(picture, extent=(x, x + width, y + height, y), interpolation="antialiased", aspect="equal")

    def write(self, text: Any, x: float, y: float, size: float, across: str, down: str, **options: Any) -> None:
        self.ax.text(x, y, str(text), size=size * self.shrink, ha=across, va=down, linespacing=1.1, **options)

    def legend(self, bar: np.ndarray, low: str, high: str, remark: str) -> None:
        """The scale: a bar between its ends, and a remark in the next line."""
        y, letter = self.bottom + 0.1, 0.55 * _SMALL * _POINT
        start = (len(low) + 1) * letter
        length = max(0.3, min(1.5, self.width - start - (len(high) + 1) * letter))
        middle = y + _SMALL * _LINE / 2
        self.write(low, 0, middle, _SMALL, "left", "center")
        self.draw(bar, start, middle - 0.05, length, 0.1)
        self.write(high, start + length + letter, middle, _SMALL, "left", "center")
        self.write(remark, 0, y + _SMALL * _LINE * 1.5, _SMALL, "left", "center")


# --- animations -------------------------------------------------------------------------------------------------


def animate(
    frames: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    over: str = "layers",
    fps: float = 2.0,
    image: int = 0,
    size: int = 480,
    **look: Any,
) -> Any:
    """Make an animated GIF, of a recording or of frames that are ready.

    Frames share one palette, so that what does not move does not flicker; a frame that it does not fit, as after a cut, brings
    a new one. Frames are written as they come: a video does not have to fit into memory.

    Args:
        frames: A recording with attention; or frames of one size, an iterable of whatever `overlay` takes as an image.
        path: Where to write, a name ending in .gif; `None` to get the bytes. A file appears when it is complete.
        over: What a recording runs over: `"layers"`, attention rollout up to each of them; or `"discard"`, rollout with more and more
            of the lowest attentions left out, from none to 90 %.
        fps: Frames in a second, at most 50.
        image: Which image of a recording.
        size: Longest side of the frames of a recording, in pixels. Ready frames stay as they are.
        **look: See `plot_maps`, for a recording.

    Returns:
        `path`, or the bytes of the file.

    Raises:
        ValueError: There are no frames, they differ in size, or an argument is out of range.
        FileNotFoundError: The folder does not exist.

    Example:
        >>> frames = (overlay(np.zeros((32, 48, 3), "uint8"), np.eye(4) * n) for n in range(3))
        >>> animate(frames)[:6]
        b'GIF89a'
    """
    if not 0 < fps <= 50:
        raise ValueError(f"fps is in (0, 50], the most that a GIF can. Received: {fps}")
    samples: Sequence[Any] = ()
    if hasattr(frames, "attention"):
        frames = samples = _recorded_frames(_of_one_image(frames, image), over, size, _Look(**look))
    elif isinstance(frames, (str, bytes, os.PathLike, Image.Image)) or not isinstance(frames, Iterable):
        raise ValueError(f"frames is a recording or an iterable of images. Received: {type(frames).__name__}")
    if path is None:
        file = io.BytesIO()
        _write_gif(file, frames, fps, samples)
        return file.getvalue()
    target = Path(path).expanduser()
    if target.suffix.lower() != ".gif":
        raise ValueError(f"An animation is a GIF: name it .gif. Received: {path}")
    with complete(target) as part, part.open("wb") as file:
        _write_gif(file, frames, fps, samples)
    return path


def _recorded_frames(recording: Any, over: str, size: int, look: _Look) -> list[np.ndarray]:
    from .maps import attention_rollout

    pixels = _shrunk(recording.images[0], size)
    how = {} if recording.heads is None else {"head_fusion": recording.heads}
    if over == "layers":
        depths = range(1, len(recording.layers) + 1)
        steps = [
            dataclasses.replace(recording, layers=recording.layers[:n], attention=recording.attention[:n])
            for n in depths
        ]
        maps = [attention_rollout(step, **how) for step in steps]
        names = [f"up to layer {layer}" for layer in recording.layers]
    elif over == "discard":
        ratios = [n / 10 for n in range(10)]
        maps = [attention_rollout(recording, discard_ratio=ratio, **how) for ratio in ratios]
        names = [f"{100 * ratio:.0f} % discarded" for ratio in ratios]
    else:
        raise ValueError(f"over is 'layers' or 'discard'. Received: {over!r}")
    pictures = [look.over(pixels, values) for values in look.values([m[0] for m in maps])]
    return [_captioned(picture, name) for picture, name in zip(pictures, names)]


def _captioned(picture: np.ndarray, text: str) -> np.ndarray:
    """A picture above a line of text."""
    height, width = picture.shape[:2]
    sheet = Image.new("RGB", (width, height + 24), "black")
    sheet.paste(Image.fromarray(picture))
    ImageDraw.Draw(sheet).text((6, height + 5), text, fill="white", font=caption_font(13))
    return np.asarray(sheet)


def caption_font(size: int) -> Any:
    """Pillow's own font."""
    try:
        return ImageFont.load_default(size)
    except (TypeError, ImportError):  # Pillow before 10.1, or without FreeType: its bitmap font
        return ImageFont.load_default()


def _write_gif(file: Any, frames: Iterable[Any], fps: float, samples: Sequence[Any]) -> None:
    """Write frames one by one, where Pillow's own `save_all` would collect all of them before it writes the first."""
    number, before, common = -1, None, None
    palette = _palette([Image.fromarray(s) for s in samples]) if len(samples) else None
    limit = math.inf
    for number, frame in enumerate(frames):
        frame = Image.fromarray(_picture(frame))
        if before is not None and frame.size != before.size:
            raise ValueError(
                f"Frames have one size. Frame {number} has {frame.size}, those before {before.size} pixels."
            )
        if palette is not None:
            coded, shown, error = _code(frame, palette)
        if palette is None or error > limit:
            palette = _palette([frame])
            coded, shown, error = _code(frame, palette)
            limit = 2 * error + 1
        if before is None:
            common, box = palette, (0, 0, *frame.size)
            file.write(_gif_header(frame.size, common))
        else:  # nothing may have changed, but the frame has its time
            box = ImageChops.difference(shown, before).getbbox() or (0, 0, 1, 1)
        hundredths = round(100 * (number + 1) / fps) - round(100 * number / fps)
        file.write(_gif_frame(coded, box, hundredths, None if palette is common else palette))
        before = shown
    if number < 0:
        raise ValueError("There are no frames.")
    file.write(b";")


def _palette(pictures: Sequence[Image.Image]) -> Image.Image:
    """An image that carries the colours which suit all of the pictures."""
    small = [p.resize((min(p.width, 160), min(p.height, 160)), Image.Resampling.NEAREST) for p in pictures]
    sheet = Image.new("RGB", (small[0].width, sum(p.height for p in small)))
    for place, picture in zip(itertools.accumulate((p.height for p in small), initial=0), small):
        sheet.paste(picture, (0, place))
    return sheet.quantize(256, Image.Quantize.FASTOCTREE)  # which loses no rare colour, such as the brightest


def _code(frame: Image.Image, palette: Image.Image) -> tuple[Image.Image, Image.Image, float]:
    """A frame in the colours of a palette, what it looks like then, and by how many levels it is off."""
    coded = frame.quantize(palette=palette, dither=Image.Dither.NONE)
    shown = coded.convert("RGB")
    return coded, shown, max(ImageStat.Stat(ImageChops.difference(frame, shown)).mean)


def _gif_header(size: tuple[int, int], palette: Image.Image) -> bytes:
    """The size, the common palette, and that it plays for ever."""
    screen = struct.pack("<HHBBB", *size, 0xF7, 0, 0)
    return b"GIF89a" + screen + _gif_colours(palette) + b"\x21\xff\x0bNETSCAPE2.0\x03\x01\x00\x00\x00"


def _gif_frame(
    coded: Image.Image, box: tuple[int, int, int, int], hundredths: int, palette: Image.Image | None
) -> bytes:
    """A part of a frame, drawn over the one before for some hundredths of a second, perhaps with a palette of its own."""
    file = io.BytesIO()
    coded.crop(box).save(file, "GIF", optimize=False, interlace=0)
    data = file.getvalue()
    start = 13 + (3 << (data[10] & 7) + 1 if data[10] & 0x80 else 0)  # after the screen and its palette
    while data[start : start + 1] == b"\x21":  # extensions: blocks of a length each, up to an empty one
        start += 2
        while data[start]:
            start += data[start] + 1
        start += 1
    left, top, right, bottom = box
    control = b"\x21\xf9\x04" + struct.pack("<BHBB", 1 << 2, hundredths, 0, 0)
    place = b"," + struct.pack("<HHHHB", left, top, right - left, bottom - top, 0x87 if palette else 0)
    return control + place + (_gif_colours(palette) if palette else b"") + data[start + 10 : -1]


def _gif_colours(palette: Image.Image) -> bytes:
    return bytes(palette.getpalette())[:768].ljust(768, b"\0")

"""What a model has learned, and how it works inside: the paper's Figures 6 and 7 and their relatives.

First come the numbers, as NumPy arrays on the grid of patches: of a model's weights (`embedding_filters`, `position_similarity`),
of the attention in a recording (`mean_attention_distance`, `attention_entropy`, `attention_sinks`), and of the tokens in one
(`token_pca`, `patch_similarity`, `token_norms`, `outlier_tokens`, `layer_cka`). Then come figures of them, which need Matplotlib
and are returned, never shown.

>>> import numpy as np
>>> from vit_keras import vit, visualize
>>> model = vit.build_model((32, 48), 8, 2, 64, 2, "tiny", 128, classes=10)
>>> recording = visualize.record(model, np.zeros((100, 150, 3), "uint8"))
>>> mean_attention_distance(recording).shape, token_pca(recording).shape
((2, 2), (1, 4, 6, 3))
"""

from __future__ import annotations

import math
import operator
import os
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import numpy as np
from PIL import Image

from ..config import size_pair
from ..layers import AddPositionEmbs, AddSinCosPositionEmbs, RotaryPositions, TransformerBlock, find_vit, patch_grid
from ..positions import resize_position_embeddings, sincos2d
from .draw import new_figure, paper_style
from .maps import attention_rollout
from .record import Recorder, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ------------------------------------------------------------------------------------------------------- of a model --


def embedding_filters(model: keras.Model, n: int = 28) -> np.ndarray:
    """The principal components of the filters of the patch embedding (ViT paper, Figure 7 left).

    The hidden units are the samples, centred; each component is stretched to [0, 1] by itself. The sign of a
    component, which means nothing, is such that its largest value by magnitude is positive.

    Args:
        model: A ViT of this package, or a model with one inside.
        n: How many components.

    Returns:
        float32 `(n, patch_height, patch_width, channels)`, the strongest first; fewer where there are no more. Of a hybrid
        the patches are of the ResNet's output.

    Raises:
        ValueError: `n` is not positive, or there is no ViT or no patch embedding in the model.

    Example:
        >>> from vit_keras import vit
        >>> embedding_filters(vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)).shape
        (28, 8, 8, 3)
    """
    if operator.index(n) < 1:
        raise ValueError(f"n is a number of components, at least 1. Received: {n!r}")
    kernel = _embedding_kernel(model)
    components = _principal_components(kernel.reshape(-1, kernel.shape[-1]).T, n)
    low, high = components.min(axis=1, keepdims=True), components.max(axis=1, keepdims=True)
    stretched = np.divide(components - low, high - low, out=np.full_like(components, 0.5), where=high > low)
    return stretched.reshape(-1, *kernel.shape[:3]).astype("float32")


def position_similarity(model: keras.Model, grid: tuple[int, int] | None = None) -> np.ndarray:
    """How similar the position embeddings of any two patches are (ViT paper, Figure 7 centre).

    Args:
        model: A ViT of this package, or a model with one inside, with learned position embeddings or sines and cosines.
        grid: Patches down and across to which the embeddings are resampled first; `None`: the model's own. A model
            with sines and cosines that takes images of any size needs it.

    Returns:
        float32 `(grid_h, grid_w, grid_h, grid_w)`: `[row, column]` is the map of the cosine similarities, in [-1, 1], of
        the patch there with all others. The class token's embedding is left out.

    Raises:
        ValueError: The model adds no position embeddings to its patches: it has rotary or relative positions, or none.

    Example:
        >>> from vit_keras import vit
        >>> position_similarity(vit.build_model((32, 48), 8, 2, 64, 2, "tiny", 128, classes=10)).shape
        (4, 6, 4, 6)
    """
    table, grid = _position_table(find_vit(model), None if grid is None else size_pair(grid, "grid"))
    unit = _unit(table)
    return np.clip(unit @ unit.T, -1, 1).reshape(*grid, *grid).astype("float32")


def _embedding_kernel(model: keras.Model) -> np.ndarray:
    vit = find_vit(model)
    layer = next((layer for layer in vit.layers if layer.name == "embedding"), None)
    if layer is None:
        raise ValueError(f"The model {vit.name!r} has no layer 'embedding', whose filters are wanted.")
    return np.asarray(keras.ops.convert_to_numpy(layer.kernel), "float64")


def _position_table(vit: keras.Model, grid: tuple[int, int] | None) -> tuple[np.ndarray, tuple[int, int]]:
    """The position embeddings `(patches, hidden_size)` of the patches, and their grid."""
    for layer in vit.layers:
        if isinstance(layer, AddPositionEmbs):
            own = layer.patch_grid or patch_grid(vit)
            table = np.asarray(keras.ops.convert_to_numpy(layer.pe), "float32")
            prefix = table.shape[1] - math.prod(own)
            grid = grid or own
            table = resize_position_embeddings(table, grid, prefix_tokens=prefix, source_grid=own, method=layer.resize)
            return table[0, prefix:].astype("float64"), grid
        if isinstance(layer, AddSinCosPositionEmbs):
            if grid is None and None in vit.input_shape[1:3]:
                raise ValueError(f"The model {vit.name!r} takes images of any size: say which grid=(down, across).")
            grid = grid or patch_grid(vit)
            return sincos2d(grid, layer.output.shape[-1])[0].astype("float64"), grid
    raise ValueError(
        f"The model {vit.name!r} adds no position embeddings to its patches that could be compared: {_other_positions(vit)}."
    )


def _other_positions(vit: keras.Model) -> str:
    if any(isinstance(layer, RotaryPositions) for layer in vit.layers):
        return "its positions are rotations of queries and keys (RoPE)"
    if any(isinstance(layer, TransformerBlock) and layer.att.relative_grid for layer in vit.layers):
        return "its positions are relative, biases in the attention"
    return "it has no positions"


# ---------------------------------------------------------------------------------------------------- of attention --


def mean_attention_distance(recording: Recording, renormalize: bool = False, unit: str = "px") -> np.ndarray:
    """How far each head looks: the mean distance between a patch and what it attends to (ViT paper, Figure 7 right).

    It is the counterpart of the size of a receptive field. For each query patch the distances to all patches are
    averaged with the attention as weights, then over queries and images.

    Args:
        recording: A recording with attention.
        renormalize: Whether the attention to the patches is made to sum to 1 first. By default, as in the
            reference, what goes to the class token and registers counts as distance 0, and lowers the mean.
        unit: `"px"`: pixels of the model's input, along the real sides of a rectangular patch. `"patch"`: steps on the grid.

    Returns:
        float32 `(layers, heads)`.

    Raises:
        ValueError: There is no attention of single heads in the recording, or there is no such unit.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> mean_attention_distance(recording).round(1)
        array([[116.5]], dtype=float32)
    """
    steps = _choose(unit, {"px": recording.patch_size, "patch": (1, 1)}, "unit")
    y, x = np.indices(recording.grid).reshape(2, -1)
    distances = np.hypot(steps[0] * (y[:, None] - y), steps[1] * (x[:, None] - x)).astype("float32")
    first, result = len(recording.prefix), []
    for scores in _attention(recording):
        scores = scores[..., first:, first:]
        reached = np.einsum("bhqk,qk->bhq", scores, distances)
        if renormalize:
            total = scores.sum(axis=-1)
            reached = np.divide(reached, total, out=np.zeros_like(reached), where=total > 0)
        result.append(reached.mean(axis=(0, 2), dtype="float64"))
    return np.array(result, "float32")


def attention_entropy(recording: Recording, rows: str = "all") -> np.ndarray:
    """How widely each head spreads its attention: the mean entropy of the rows, in nats.

    It runs from 0 (all on one token) to log N (evenly on all N tokens). Its exponential, the perplexity, reads more
    easily: `np.exp(attention_entropy(recording))` is the number of tokens that a head looks at.

    Args:
        recording: A recording with attention.
        rows: `"all"`: the mean over all tokens that ask; `"cls"`: the class token alone.

    Returns:
        float32 `(layers, heads)`.

    Raises:
        ValueError: There is no attention of single heads in the recording, or no class token, or no such rows.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> np.exp(attention_entropy(recording)).round(2)
        array([[196.]], dtype=float32)
    """
    asking = _choose(rows, {"all": slice(None), "cls": None}, "rows")
    if rows == "cls":
        asking = slice(index := _class_token(recording, "rows='all'"), index + 1)
    smallest = np.finfo("float32").tiny
    result = []
    for scores in _attention(recording):
        heads = np.moveaxis(scores[:, :, asking], 1, 0)
        result.append([-np.mean(np.sum(a * np.log(np.maximum(a, smallest)), axis=-1), dtype="float64") for a in heads])
    return np.array(result, "float32")


def attention_sinks(recording: Recording, queries: str = "all") -> np.ndarray:
    """The share of all attention that each token receives: where a rollout has one bright dot, this tells the token.

    Args:
        recording: A recording with attention, also with `heads="mean"`.
        queries: Who asks: `"all"` tokens, `"patches"`, or `"cls"`, the class token alone.

    Returns:
        float32 `(layers, images, tokens)`, the mean over heads and queries. A row sums to 1; multiplied with the number
        of tokens, it tells how many times more than its even share a token draws. The first `len(recording.prefix)` tokens
        are the class token and its like.

    Raises:
        ValueError: There is no attention in the recording, or no class token, or no such queries.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> attention_sinks(recording).shape
        (1, 1, 196)
    """
    asking = _choose(
        queries, {"all": slice(None), "patches": slice(len(recording.prefix), None), "cls": None}, "queries"
    )
    if queries == "cls":
        asking = slice(index := _class_token(recording, "queries='patches'"), index + 1)
    layers = (scores[..., asking, :] for scores in _attention(recording, (None, "mean")))
    shares = [scores.mean(axis=tuple(range(1, scores.ndim - 1)), dtype="float64") for scores in layers]
    return np.array(shares, "float32")


# ------------------------------------------------------------------------------------------------------- of tokens --


def token_pca(
    recording: Recording,
    layer: int = -1,
    joint: bool = False,
    foreground: bool = False,
    clip: tuple[float, float] = (2, 98),
) -> np.ndarray:
    """The patches coloured by the three principal components of their tokens (DINOv2, arXiv 2304.07193, Figure 1).

    Patches of the same colour are alike to the model. A component's sign, which means nothing, is such that its largest
    loading by magnitude is positive, so that the same tokens always get the same colours.

    Args:
        recording: A recording with tokens.
        layer: Which tokens: -1 for those after the final normalisation, the number of a block for those that enter it (and so 0
            for the embedded patches), one more than the last number for those that leave the last block, before the normalisation.
        joint: Whether the components are those of all images together, so that colours of one image mean the same in another.
        foreground: Whether to colour only the foreground, with components of its own, and leave the rest black. It is taken to be
            the smaller of the two sides into which the first component divides an image.
        clip: Percentiles of each component that become 0 and 1.

    Returns:
        float32 `(images, grid_h, grid_w, 3)` in [0, 1], red the first component.

    Raises:
        ValueError: There are no such tokens in the recording, or `clip` is not two rising percentiles.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> recording = visualize.record(model, np.zeros((32, 32, 3), "uint8"))
        >>> token_pca(recording).shape
        (1, 4, 4, 3)
    """
    if len(clip) != 2 or not 0 <= clip[0] < clip[1] <= 100:
        raise ValueError(f"clip is two percentiles, 0 <= low < high <= 100. Received: {clip!r}")
    patches = _patches(recording, layer)
    coloured = np.ones(patches.shape[:2], bool)
    if foreground:
        coloured = np.stack([_smaller_side(tokens) for tokens in patches])
    colours = np.zeros((*patches.shape[:2], 3))
    for group in [slice(None)] if joint else [slice(i, i + 1) for i in range(len(patches))]:
        chosen = coloured[group]
        colours[group][chosen] = _three_components(patches[group][chosen], clip)
    return colours.reshape(len(patches), *recording.grid, 3).astype("float32")


def patch_similarity(
    recording: Recording,
    query: tuple[int, int],
    image: int = 0,
    other: int | Recording | None = None,
    layer: int = -1,
) -> np.ndarray:
    """How similar all patches are to one of them: the cosine of their tokens ("click on a patch").

    Args:
        recording: A recording with tokens.
        query: Row and column of the patch, negative ones from the end.
        image: The number of the image it is in.
        other: Where to look for similar patches: `None` for the same image, the number of another one, or all images of another
            recording, of the same model and at any grid.
        layer: Which tokens: see `token_pca`.

    Returns:
        float32 in [-1, 1]: `(grid_h, grid_w)` for an image, `(images, grid_h, grid_w)` for another recording.

    Raises:
        ValueError: There are no such tokens in a recording, no such image or patch, or tokens of different widths.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> recording = visualize.record(model, np.zeros((32, 32, 3), "uint8"))
        >>> patch_similarity(recording, (0, 3)).shape
        (4, 4)
    """
    target = recording if other is None or not isinstance(other, Recording) else other
    patches, others = _patches(recording, layer), _patches(target, layer)
    if patches.shape[-1] != others.shape[-1]:
        raise ValueError(
            f"Tokens of {patches.shape[-1]} and {others.shape[-1]} numbers cannot be compared: record both of one model."
        )
    if np.shape(query) != (2,):
        raise ValueError(f"query is the row and the column of a patch. Received: {query!r}")
    row, column = (
        _number(i, n, name) for i, n, name in zip(query, recording.grid, ("rows of patches", "columns of patches"))
    )
    token = patches[_number(image, len(patches), "images"), row * recording.grid[1] + column]
    maps = np.clip(_unit(others) @ _unit(token), -1, 1).reshape(-1, *target.grid).astype("float32")
    return maps if target is other else maps[_number(image if other is None else other, len(maps), "images")]


def token_norms(recording: Recording) -> np.ndarray:
    """The lengths of the patches' tokens on their way through the model.

    A few tokens many times longer than the rest are artefacts: patches of background in which a model without
    registers keeps something else (arXiv 2309.16588). They show before the final normalisation only. See `outlier_tokens`.

    Args:
        recording: A recording with tokens.

    Returns:
        float32 `(layers + 1, images, grid_h, grid_w)`: at the input of each recorded block, and at the output of the last.

    Raises:
        ValueError: There are no tokens in the recording.

    Example:
        >>> tokens = np.ones((2, 1, 4, 9), "float32")  # before and after one layer, of one image; 2 x 2 patches
        >>> tokens[1, 0, 3] = 10
        >>> recording = Recording((), (2, 2), (), (0,), (16, 16), readout=tokens[0, :, :, 0], tokens=tokens)
        >>> token_norms(recording)[:, 0].tolist()
        [[[3.0, 3.0], [3.0, 3.0]], [[3.0, 3.0], [3.0, 30.0]]]
    """
    return recording.patches(np.stack([np.linalg.norm(tokens, axis=-1) for tokens in _kept(recording, "tokens")]))


class OutlierToken(NamedTuple):
    """A patch whose token is much longer than those of the others; see `outlier_tokens`."""

    layer: int
    """The number of the block that it enters, or one more than the last number at the output of the last one."""
    image: int
    patch: tuple[int, int]
    """Row and column."""
    norm: float
    """Its length, as a multiple of the median of the image's patches there."""
    attention: float | None
    """What it draws of all attention in that block, as a multiple of the even share; `None` at the output of the
    last one, or without attention in the recording."""


def outlier_tokens(recording: Recording, ratio: float = 3.0) -> list[OutlierToken]:
    """The patches that a model uses for something else, as their length tells (arXiv 2309.16588).

    Args:
        recording: A recording with tokens, and with attention if it is to be told how much they draw.
        ratio: How many times longer than the median of its image a token must be.

    Returns:
        One `OutlierToken` for each layer and patch, the longest first.

    Raises:
        ValueError: There are no tokens in the recording, or `ratio` is not above 1.

    Example:
        >>> tokens = np.ones((2, 1, 4, 9), "float32")  # before and after one layer, of one image; 2 x 2 patches
        >>> tokens[1, 0, 3] = 10
        >>> recording = Recording((), (2, 2), (), (0,), (16, 16), readout=tokens[0, :, :, 0], tokens=tokens)
        >>> outlier_tokens(recording)
        [OutlierToken(layer=1, image=0, patch=(1, 1), norm=10.0, attention=None)]
    """
    if not ratio > 1:
        raise ValueError(f"ratio is a multiple of the median length, above 1. Received: {ratio!r}")
    norms = token_norms(recording).astype("float64")
    median = np.median(norms, axis=(2, 3), keepdims=True)
    relative = np.divide(norms, median, out=np.ones_like(norms), where=median > 0)
    sinks = None if recording.attention is None else attention_sinks(recording)
    found = []
    for layer, image, row, column in np.argwhere(relative > ratio).tolist():
        share = None
        if sinks is not None and layer < len(sinks):
            draws = sinks[layer, image]
            share = float(draws[len(recording.prefix) + row * recording.grid[1] + column] * len(draws))
        number = recording.layers[layer] if layer < len(recording.layers) else recording.layers[-1] + 1
        found.append(OutlierToken(number, image, (row, column), float(relative[layer, image, row, column]), share))
    return sorted(found, key=lambda token: -token.norm)


def layer_cka(recording: Recording, other: Recording | None = None, unit_length: bool = False) -> np.ndarray:
    """How alike the layers represent the patches: linear CKA (arXiv 1905.00414; of ViTs, arXiv 2108.08810).

    The samples are the patches of all images. For numbers to trust there should be many more than the
    tokens are wide: some ten images at least.

    Args:
        recording: A recording with tokens.
        other: A recording of the same pictures on the same grid in another model; `None`: the layers among themselves.
        unit_length: Whether each token is brought to length 1 first. Otherwise a few tokens much longer than the rest
            (`outlier_tokens`), where a model has them, decide alone.

    Returns:
        float32 `(layers + 1, layers' + 1)` in [0, 1], counted as in `recording.tokens`. Where all patches are the same it is
        undefined, and NaN.

    Raises:
        ValueError: There are no tokens in a recording, or the recordings are not of the same patches.

    Example:
        >>> tokens = np.stack([np.eye(4, 9), 5 - 2 * np.eye(4, 9)])[:, None].astype("float32")  # 2 x 2 patches
        >>> recording = Recording((), (2, 2), (), (0,), (16, 16), readout=tokens[0, :, :, 0], tokens=tokens)
        >>> layer_cka(recording).round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    left, right = _layers_of_patches(recording), _layers_of_patches(recording if other is None else other)
    if left.shape[1:3] != right.shape[1:3] or (other is not None and recording.grid != other.grid):
        raise ValueError(
            "The recordings are not of the same patches: "
            f"{left.shape[1]} images of {recording.grid} and {right.shape[1]} of {(other or recording).grid}. Record the same pictures."
        )
    left = [_samples(tokens, unit_length) for tokens in left]
    right = left if other is None else [_samples(tokens, unit_length) for tokens in right]
    own_left = [_cross_covariance(x, x) for x in left]
    own_right = own_left if other is None else [_cross_covariance(y, y) for y in right]
    cka = np.full((len(left), len(right)), np.nan)
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            if other is None and j < i:
                cka[i, j] = cka[j, i]
            elif own_left[i] > 0 and own_right[j] > 0:
                cka[i, j] = _cross_covariance(x, y) / math.sqrt(own_left[i] * own_right[j])
    return cka.astype("float32")


# --------------------------------------------------------------------------------------------------------- figures --


def figure6(
    model: keras.Model, images: Any, *, columns: int = 1, preprocess: Any = "own", grid: tuple[int, int] | None = None
) -> Figure:
    """The ViT paper's Figure 6: pictures beside what the output attends to in them, by attention rollout.

    Args:
        model: A ViT of this package, or a model with one inside.
        images: Pictures: whatever `record` takes, or an iterable of such; they go through the model one at a time.
        columns: How many pairs stand in a row.
        preprocess: What the model's input needs: see `record`.
        grid: Patches down and across, where the model does not tell: see `record`.

    Returns:
        A Matplotlib figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: There are no pictures, or as `record` says.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> figure6(model, np.zeros((2, 32, 32, 3), "uint8")).savefig("figure6.png")  # doctest: +SKIP
    """
    if columns < 1:
        raise ValueError(f"columns is a number of pairs in a row, at least 1. Received: {columns!r}")
    pairs = []
    recorder = Recorder(model, keep=("attention",), heads="mean", preprocess=preprocess, grid=grid)
    for picture in _pictures(images):
        recording = recorder(picture)
        pairs.append((recording.images[0], paper_style(recording.images[0], attention_rollout(recording)[0])))
    if not pairs:
        raise ValueError("There are no images to draw.")
    return _pairs_side_by_side(pairs, min(columns, len(pairs)))


def figure7(model: keras.Model, images: Any, *, preprocess: Any = "own", grid: tuple[int, int] | None = None) -> Figure:
    """The ViT paper's Figure 7: embedding filters, similarity of position embeddings, and how far the heads attend.

    Where a model has no such thing (a hybrid embeds no colours, rotary positions are no embeddings) its panel says so.

    Args:
        model: A ViT of this package, or a model with one inside.
        images: Pictures, over which the distances are averaged (the paper took 128): whatever `record` takes, or an iterable of
            such, a generator too; they go through the model one at a time.
        preprocess: What the model's input needs: see `record`.
        grid: Patches down and across, where the model does not tell: see `record`.

    Returns:
        A Matplotlib figure with three panels.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: There are no pictures, or as `record` says.

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
    if any(isinstance(layer, TransformerBlock) for layer in vit._flatten_layers()):
        recorder = Recorder(model, keep=("attention",), preprocess=preprocess, grid=grid)
        values, layers = _mean_distance(recorder, images)
        plot_by_layer(values, "Mean attention distance (pixels)", layers=layers, ax=distances)
    else:
        _note(distances, f"The model {vit.name!r} has no attention.")
    distances.set_title(vit.name)
    return figure


def plot_embedding_filters(model: keras.Model, n: int = 28, *, ax: Axes | None = None) -> Figure:
    """Draw `embedding_filters`, as in the ViT paper's Figure 7 left.

    Args:
        model: A ViT of this package, or a model with one inside.
        n: How many components.
        ax: Matplotlib's axes to draw in; `None` for a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: The patches are not of one channel or three, so that they have no colours.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> plot_embedding_filters(model).savefig("filters.png")  # doctest: +SKIP
    """
    filters = embedding_filters(model, n)
    count, height, width, channels = filters.shape
    if channels not in (1, 3):
        raise ValueError(
            f"The patch embedding takes {height}x{width} patches of {channels} channels, which cannot be drawn as colours."
        )
    across = min(7, count)
    filters = np.pad(filters, [(0, -count % across), (0, 0), (0, 0), (0, 0)], constant_values=1.0)
    ax = _axes(ax, 5.5, 3.6)
    mosaic = _mosaic(filters.reshape(-1, across, height, width, channels), 1.0)
    ax.imshow(mosaic[..., 0] if channels == 1 else mosaic, cmap="gray", vmin=0, vmax=1)
    ax.set_axis_off()
    ax.set_anchor("N")  # elsewhere Matplotlib does not keep its place for the title
    kind = "RGB embedding filters" if channels == 3 else "Embedding filters"
    ax.set_title(f"{kind}\n(first {count} principal components)")
    return ax.figure


def plot_position_similarity(
    model: keras.Model, grid: tuple[int, int] | None = None, *, ax: Axes | None = None
) -> Figure:
    """Draw `position_similarity`, as in the ViT paper's Figure 7 centre: a tile for each patch, at its place.

    Of a grid of more than 16 patches down or across, only every second (third …) row or column has tiles.

    Args:
        model: A ViT of this package, or a model with one inside.
        grid: See `position_similarity`.
        ax: Matplotlib's axes to draw in; `None` for a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: Matplotlib is not installed.
        ValueError: See `position_similarity`.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> plot_position_similarity(model).savefig("positions.png")  # doctest: +SKIP
    """
    similarity = position_similarity(model, grid)
    down, across = similarity.shape[:2]
    chosen = [range(0, n, math.ceil(n / 16)) for n in (down, across)]
    tiles = similarity[np.ix_(*chosen)]
    ax = _axes(ax, 4.4, 3.6)
    picture = ax.imshow(_mosaic(tiles, np.nan), cmap="viridis", vmin=-1, vmax=1, interpolation_stage="rgba")
    gap = _gap(tiles)
    for axis, numbers, size in ((ax.yaxis, chosen[0], down), (ax.xaxis, chosen[1], across)):
        every = math.ceil(len(numbers) / 7)
        axis.set_ticks(
            [i * (size + gap) + (size - 1) / 2 for i in range(0, len(numbers), every)],
            [str(n + 1) for n in numbers[::every]],
        )
    ax.tick_params(length=0)
    ax.set_anchor("N")
    ax.spines[:].set_visible(False)
    ax.set(xlabel="Input patch column", ylabel="Input patch row", title="Position embedding similarity")
    _colour_bar(ax, picture, "Cosine similarity", (-1, 1))
    return ax.figure


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
        ValueError: `values` has not two axes.

    Example:
        >>> plot_by_layer(np.ones((12, 3)), "Entropy (nats)").axes[0].get_ylabel()
        'Entropy (nats)'
    """
    values = np.asarray(values)
    if values.ndim != 2:
        raise ValueError(f"values is an array (layers, heads). Received: shape {values.shape}")
    ax = _axes(ax, 4.4, 3.6)
    depth = np.arange(len(values)) if layers is None else np.asarray(list(layers))
    heads = values.shape[1]
    order = (np.arange(heads) * 0.618 % 1).argsort().argsort()  # neighbours in the legend should look different
    colours = _colour_map("viridis")(np.linspace(0, 0.92, heads)[order])
    for head, colour in enumerate(colours):
        name = f"Head {head}" if head < 3 or heads <= 4 else "…" if head == 3 else None
        ax.scatter(depth, values[:, head], s=16, color=colour, label=name, linewidths=0)
    ax.set(xlabel="Network depth (layer)", ylabel=label, ylim=(0, None))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(frameon=True, fontsize=8, handletextpad=0.1, loc="best")
    return ax.figure


def plot_cka(cka: np.ndarray, *, labels: tuple[str, str] = ("Layer", "Layer"), ax: Axes | None = None) -> Figure:
    """Draw `layer_cka`, the first layers at the lower left.

    Args:
        cka: `(layers + 1, layers' + 1)`.
        labels: Of the first axis, drawn upwards, and of the second.
        ax: Matplotlib's axes to draw in; `None` for a new figure.

    Returns:
        The figure.

    Raises:
        ImportError: Matplotlib is not installed.

    Example:
        >>> plot_cka(np.eye(13)).axes[0].get_xlabel()
        'Layer'
    """
    ax = _axes(ax, 4.4, 3.6)
    picture = ax.imshow(cka, cmap="viridis", vmin=0, vmax=1, origin="lower", interpolation="nearest")
    ax.set(ylabel=labels[0], xlabel=labels[1])
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    _colour_bar(ax, picture, "Linear CKA", (0, 1))
    return ax.figure


def _pairs_side_by_side(pairs: list[tuple[np.ndarray, np.ndarray]], columns: int) -> Figure:
    """Pictures and what was made of them, in their own shapes: all as wide as each other, and no gaps but these."""
    side, gap, title = 1.6, 0.08, 0.3  # inches
    rows = [pairs[i : i + columns] for i in range(0, len(pairs), columns)]
    heights = [side * max(picture.shape[0] / picture.shape[1] for picture, _ in row) for row in rows]
    width, height = 2 * columns * (side + gap) + gap, title + sum(heights) + gap * len(rows)
    figure, top = new_figure(width, height), height - title
    figure.set_layout_engine("none")
    for row, row_height in zip(rows, heights):
        for place, picture in enumerate(picture for pair in row for picture in pair):
            tall = side * picture.shape[0] / picture.shape[1]
            left = gap + place * (side + gap)
            ax = figure.add_axes((left / width, (top - tall) / height, side / width, tall / height))
            ax.imshow(picture, aspect="auto")
            ax.set_axis_off()
            if row is rows[0]:
                ax.set_title(("Input", "Attention")[place % 2], fontsize=10)
        top -= row_height + gap
    return figure


def _mean_distance(recorder: Recorder, images: Any) -> tuple[np.ndarray, tuple[int, ...]]:
    """`mean_attention_distance` over many pictures, of which one at a time is in memory, and the numbers of the layers."""
    distances, recording = [], None
    for picture in _pictures(images):
        recording = recorder(picture)
        distances.append(mean_attention_distance(recording))
    if recording is None:
        raise ValueError("There are no images to record.")
    return np.mean(distances, axis=0), recording.layers


def _pictures(images: Any) -> Iterator[Any]:
    """One picture after the other, out of one, a batch, or an iterable of either."""
    is_one = isinstance(images, (str, bytes, os.PathLike, Image.Image)) or len(getattr(images, "shape", ())) in (2, 3)
    if is_one or not hasattr(images, "__iter__"):
        yield images
        return
    for image in images:
        yield from _pictures(image)


def _mosaic(tiles: np.ndarray, between: float) -> np.ndarray:
    """Tiles `(down, across, height, width, ...)` as one picture, with a gap between them."""
    gap, (down, across, height, width) = _gap(tiles), tiles.shape[:4]
    edges = [(0, 0), (0, 0), (0, gap), (0, gap), *[(0, 0)] * (tiles.ndim - 4)]
    tiles = np.pad(tiles, edges, constant_values=between).swapaxes(1, 2)
    mosaic = tiles.reshape(down * (height + gap), across * (width + gap), *tiles.shape[4:])
    return mosaic[:-gap, :-gap]


def _gap(tiles: np.ndarray) -> int:
    return max(1, round(max(tiles.shape[2:4]) / 8))


def _axes(ax: Axes | None, width: float, height: float) -> Axes:
    return new_figure(width, height).add_subplot() if ax is None else ax


def _colour_bar(ax: Axes, picture: Any, label: str, ends: tuple[float, float]) -> None:
    """A colour bar as high as the axes."""
    ax.figure.colorbar(picture, cax=ax.inset_axes((1.03, 0, 0.04, 1)), ticks=ends, label=label)


def _colour_map(name: str):
    import matplotlib

    return matplotlib.colormaps[name]


def _note(ax: Axes, text: Any) -> None:
    ax.set_axis_off()
    ax.text(0.5, 0.5, textwrap.fill(str(text), 38), ha="center", va="center", fontsize=8, transform=ax.transAxes)


# -------------------------------------------------------------------------------------------------- of recordings --


def _kept(recording: Recording, name: str) -> np.ndarray:
    kept = getattr(recording, name)
    if kept is None:
        raise ValueError(f"There is no {name} in the recording: record it with keep=({name!r},) or more.")
    return kept


def _attention(recording: Recording, heads: tuple[str | None, ...] = (None,)) -> np.ndarray:
    """All rows of the attention, of single heads or of heads that were fused in one of these ways."""
    attention = _kept(recording, "attention")
    if recording.heads not in heads:
        ways = " or ".join(f"heads={way!r}" for way in heads)
        raise ValueError(f"The recorded heads were fused, by heads={recording.heads!r}: record them with {ways}.")
    if attention.ndim != (5 if recording.heads is None else 4):
        raise ValueError("The recording has only the rows that the output is read from: record it with rows='all'.")
    return attention


def _class_token(recording: Recording, remedy: str) -> int:
    if "cls" not in recording.prefix:
        raise ValueError(f"The recorded model has no class token; say {remedy}.")
    return recording.prefix.index("cls")


def _layers_of_patches(recording: Recording) -> np.ndarray:
    return _kept(recording, "tokens")[:, :, len(recording.prefix) :]


def _patches(recording: Recording, layer: int) -> np.ndarray:
    """The tokens of the patches `(images, patches, hidden_size)` at one place, named as in `token_pca`."""
    chosen = recording.features if layer == -1 else _kept(recording, "tokens")
    if chosen is None:
        _kept(recording, "tokens")
        raise ValueError(
            "The last block is not in the recording, and so not what comes after the final normalisation: record it, or give "
            "the number of a layer."
        )
    if layer != -1:
        places = [*recording.layers, recording.layers[-1] + 1]
        if layer not in places:
            raise ValueError(
                f"The recording has the tokens of layer {', '.join(map(str, places))}, and -1 after them all. Received: {layer!r}"
            )
        chosen = chosen[places.index(layer)]
    return chosen[:, len(recording.prefix) :].astype("float64")


def _number(value: int, count: int, name: str) -> int:
    if not -count <= operator.index(value) < count:
        raise ValueError(f"The recording has {count} {name}, from 0 on. Received: {value}")
    return value % count


def _choose(value: str, choices: dict[str, Any], argument: str) -> Any:
    if value not in choices:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, choices))}. Received: {value!r}")
    return choices[value]


# --------------------------------------------------------------------------------------------------------- algebra --


def _principal_components(samples: np.ndarray, n: int) -> np.ndarray:
    """At most n principal components of `(samples, features)`, as rows of length 1 whose largest value is positive."""
    centred = samples - samples.mean(axis=0)
    _, strength, components = np.linalg.svd(centred, full_matrices=False)
    components = components[strength > 1e-6 * np.linalg.norm(samples)][:n]  # the others are what float32 rounds off
    largest = np.abs(components).argmax(axis=1)
    return components * np.sign(components[np.arange(len(components)), largest])[:, None]


def _three_components(samples: np.ndarray, clip: tuple[float, float]) -> np.ndarray:
    """Samples projected on their first three components, each stretched to [0, 1]; 0.5 where there is nothing to tell."""
    result = np.full((len(samples), 3), 0.5)
    if not len(samples):
        return result
    projected = (samples - samples.mean(axis=0)) @ _principal_components(samples, 3).T
    low, high = np.percentile(projected, clip, axis=0)
    spread = np.where(high > low, high - low, np.inf)
    stretched = np.clip((projected - low) / spread, 0, 1)
    result[:, : projected.shape[1]] = np.where(high > low, stretched, 0.5)
    return result


def _smaller_side(tokens: np.ndarray) -> np.ndarray:
    """Which of the tokens lie on the side of the first principal component where there are fewer."""
    component = _principal_components(tokens, 1)
    if not len(component):
        return np.zeros(len(tokens), bool)
    positive = ((tokens - tokens.mean(axis=0)) @ component[0]) > 0
    return positive if positive.sum() * 2 <= len(tokens) else ~positive


def _unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1, along the last axis; one of length 0 stays, and is like no other."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)


def _samples(tokens: np.ndarray, unit_length: bool) -> np.ndarray:
    """Tokens `(images, patches, hidden_size)` as centred samples, `(images * patches, hidden_size)`."""
    tokens = tokens.reshape(-1, tokens.shape[-1])
    tokens = _unit(tokens) if unit_length else tokens
    return tokens - tokens.mean(axis=0, dtype="float64").astype("float32")


def _cross_covariance(x: np.ndarray, y: np.ndarray) -> float:
    """The squared Frobenius norm of `x.T @ y`."""
    product = x.T @ y
    return float(np.einsum("ij,ij->", product, product, dtype="float64"))

"""Analysis of recorded tokens: colors, similarity, lengths, and the similarity of layers."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import NamedTuple

import numpy as np

from ..._internal.validate import instance
from ..colors import percentiles
from ..recording import Recording
from .attention import attention_sinks, kept
from .components import principal_components, unit

__all__ = [
    "OutlierToken",
    "layer_cka",
    "outlier_tokens",
    "patch_similarity",
    "token_norms",
    "token_pca",
]


def token_pca(
    recording: Recording,
    layer: int | str = "final_norm",
    joint: bool = False,
    foreground: bool = False,
    clip: tuple[float, float] | float = (2, 98),
) -> np.ndarray:
    """Color the patches by the three principal components of their tokens (DINOv2, arXiv 2304.07193, Figure 1).

    Patches of the same color are alike to the model. The sign of a component is arbitrary; here its largest loading by
    magnitude is positive, so that the same tokens always get the same colors.

    Args:
        recording: A recording with tokens.
        layer: Which tokens: `"final_norm"` for those after the final normalization; the number of a block, negative
            from the end, for those that enter it (0: the embedded patches); one more than the last number for those
            that leave the last block, before the normalization.
        joint: Whether the components are those of all images together, so that a color means the same in all of them.
        foreground: Whether to color only the foreground, with components of its own, and leave the rest black. The
            foreground is the smaller of the two sides into which the first component divides an image.
        clip: Percentiles of each component that become 0 and 1; a number is the upper one.

    Returns:
        float32 `(images, grid_h, grid_w, 3)` in [0, 1], red the first component.

    Raises:
        ValueError: There are no such tokens in the recording, or `clip` is neither two rising percentiles nor one.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> recording = visualize.record(model, np.zeros((32, 32, 3), "uint8"))
        >>> token_pca(recording).shape
        (1, 4, 4, 3)
    """
    instance(recording, Recording, "recording")
    clip = percentiles(clip)
    patches = _patches(recording, layer)
    colored = np.ones(patches.shape[:2], bool)
    if foreground:
        colored = np.stack([_smaller_side(tokens) for tokens in patches])
    colors = np.zeros((*patches.shape[:2], 3))
    for group in [slice(None)] if joint else [slice(i, i + 1) for i in range(len(patches))]:
        chosen = colored[group]
        colors[group][chosen] = _three_components(patches[group][chosen], clip)
    return colors.reshape(len(patches), *recording.grid, 3).astype("float32")


def patch_similarity(
    recording: Recording,
    query: tuple[int, int],
    image: int = 0,
    other: int | Recording | None = None,
    layer: int | str = "final_norm",
) -> np.ndarray:
    """Return the similarity of all patches to one of them: the cosines of their tokens.

    Args:
        recording: A recording with tokens.
        query: Row and column of the patch, negative ones from the end.
        image: The number of the image it is in.
        other: Where to look for similar patches: `None` for the same image, the number of another one, or all images of
            another recording, of the same model and at any grid.
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
    target = other if isinstance(other, Recording) else recording
    patches, others = _patches(recording, layer), _patches(target, layer)
    if patches.shape[-1] != others.shape[-1]:
        raise ValueError(
            f"Tokens of {patches.shape[-1]} and {others.shape[-1]} numbers cannot be compared. "
            "Record both of one model."
        )
    if np.shape(query) != (2,):
        raise ValueError(f"query must be the row and the column of a patch. Received: {query!r}")
    row, column = (
        _number(i, n, name) for i, n, name in zip(query, recording.grid, ("rows of patches", "columns of patches"))
    )
    token = patches[_number(image, len(patches), "images"), row * recording.grid[1] + column]
    maps = np.clip(unit(others) @ unit(token), -1, 1).reshape(-1, *target.grid).astype("float32")
    if isinstance(other, Recording):
        return maps
    return maps[_number(image if other is None else other, len(maps), "images")]


def token_norms(recording: Recording) -> np.ndarray:
    """Return the lengths of the patches' tokens in each layer.

    A few tokens many times longer than the rest are artifacts: patches of background in which a model without registers
    stores global information (arXiv 2309.16588). They show before the final normalization only. See `outlier_tokens`.

    Args:
        recording: A recording with tokens.

    Returns:
        float32 `(layers + 1, images, grid_h, grid_w)`: at the input of each recorded block, and at the output of the
        last.

    Raises:
        ValueError: There are no tokens in the recording.

    Example:
        >>> tokens = np.ones((2, 1, 4, 9), "float32")  # before and after one layer, of one image; 2 x 2 patches
        >>> tokens[1, 0, 3] = 10
        >>> recording = Recording((), (2, 2), (), (0,), (16, 16), readout=tokens[0, :, :, 0], tokens=tokens)
        >>> token_norms(recording)[:, 0].tolist()
        [[[3.0, 3.0], [3.0, 3.0]], [[3.0, 3.0], [3.0, 30.0]]]
    """
    instance(recording, Recording, "recording")
    return recording.patches(np.stack([np.linalg.norm(tokens, axis=-1) for tokens in kept(recording, "tokens")]))


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
    last one, or where the recording does not have all rows of attention, of single heads or their mean."""


def outlier_tokens(recording: Recording, ratio: float = 3.0) -> list[OutlierToken]:
    """Find the patches whose tokens are much longer than the others (arXiv 2309.16588).

    Args:
        recording: A recording with tokens; with attention too, to find how much of it they draw.
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
    instance(recording, Recording, "recording")
    if not ratio > 1:
        raise ValueError(f"ratio must be a multiple of the median length, above 1. Received: {ratio!r}")
    norms = token_norms(recording).astype("float64")
    median = np.median(norms, axis=(2, 3), keepdims=True)
    relative = np.divide(norms, median, out=np.ones_like(norms), where=median > 0)
    sinks = None
    with contextlib.suppress(ValueError):  # no attention, or not all of it
        sinks = attention_sinks(recording)
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
    """Return the similarity of layers: linear CKA of their patches (arXiv 1905.00414; for ViTs, arXiv 2108.08810).

    The samples are the patches of all images. For numbers to trust there should be many more than the
    tokens are wide: some ten images at least.

    Args:
        recording: A recording with tokens.
        other: A recording of the same images on the same grid in another model; `None`: the layers among themselves.
        unit_length: Whether each token is brought to length 1 first. Otherwise a few tokens much longer than the rest
            (`outlier_tokens`), where a model has them, decide alone.

    Returns:
        float32 `(layers + 1, layers' + 1)` in [0, 1], counted as in `recording.tokens`. Where all patches are the same
        it is undefined, and NaN.

    Raises:
        ValueError: There are no tokens in a recording, or the recordings are not of the same patches.

    Example:
        >>> tokens = np.stack([np.eye(4, 9), 5 - 2 * np.eye(4, 9)])[:, None].astype("float32")  # 2 x 2 patches
        >>> recording = Recording((), (2, 2), (), (0,), (16, 16), readout=tokens[0, :, :, 0], tokens=tokens)
        >>> layer_cka(recording).round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    instance(recording, Recording, "recording")
    left, right = _layers_of_patches(recording), _layers_of_patches(recording if other is None else other)
    if left.shape[1:3] != right.shape[1:3] or (other is not None and recording.grid != other.grid):
        raise ValueError(
            "The recordings are not of the same patches: "
            f"{left.shape[1]} images of {recording.grid} and {right.shape[1]} of {(other or recording).grid}. "
            "Record the same images."
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


def _layers_of_patches(recording: Recording) -> np.ndarray:
    return kept(recording, "tokens")[:, :, len(recording.prefix) :]


def _patches(recording: Recording, layer: int | str) -> np.ndarray:
    """Return the tokens of the patches `(images, patches, hidden_size)` at one place; see `token_pca`."""
    if layer == "final_norm":
        chosen = recording.features
        if chosen is None:
            kept(recording, "tokens")
            raise ValueError(
                "The recording has no tokens after the final normalization, because it does not have the last block. "
                "Record that block too, or pass layer=, the number of a block."
            )
    else:
        chosen = kept(recording, "tokens")
        numbers = [*recording.layers, recording.layers[-1] + 1]
        negative = isinstance(layer, (int, np.integer)) and -len(recording.layers) <= layer < 0
        if isinstance(layer, str) or not (negative or layer in numbers):
            raise ValueError(
                f"layer must be one of {', '.join(map(str, numbers))}, negative from the last block, or 'final_norm'. "
                f"Received: {layer!r}"
            )
        chosen = chosen[layer + len(recording.layers) if negative else numbers.index(layer)]
    return chosen[:, len(recording.prefix) :].astype("float64")


def _number(value: int, count: int, name: str) -> int:
    if not -count <= operator.index(value) < count:
        raise ValueError(f"The recording has {count} {name}, from 0 on. Received: {value}")
    return value % count


def _three_components(samples: np.ndarray, clip: tuple[float, float]) -> np.ndarray:
    """Return samples projected on their first three components, each stretched to [0, 1]; constant ones become 0.5."""
    result = np.full((len(samples), 3), 0.5)
    if not len(samples):
        return result
    projected = (samples - samples.mean(axis=0)) @ principal_components(samples, 3).T
    low, high = np.percentile(projected, clip, axis=0)
    spread = np.where(high > low, high - low, np.inf)
    stretched = np.clip((projected - low) / spread, 0, 1)
    result[:, : projected.shape[1]] = np.where(high > low, stretched, 0.5)
    return result


def _smaller_side(tokens: np.ndarray) -> np.ndarray:
    """Return which tokens lie on the side of the first principal component that has fewer of them."""
    component = principal_components(tokens, 1)
    if not len(component):
        return np.zeros(len(tokens), bool)
    positive = ((tokens - tokens.mean(axis=0)) @ component[0]) > 0
    return positive if positive.sum() * 2 <= len(tokens) else ~positive


def _samples(tokens: np.ndarray, unit_length: bool) -> np.ndarray:
    """Return tokens `(images, patches, hidden_size)` as centered samples, `(images * patches, hidden_size)`."""
    tokens = tokens.reshape(-1, tokens.shape[-1])
    tokens = unit(tokens) if unit_length else tokens
    return tokens - tokens.mean(axis=0, dtype="float64").astype("float32")


def _cross_covariance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared Frobenius norm of `x.T @ y`."""
    product = x.T @ y
    return float(np.einsum("ij,ij->", product, product, dtype="float64"))

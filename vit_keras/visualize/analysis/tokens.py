"""Analysis of recorded tokens: colors, similarity, lengths, and the similarity of layers."""

from __future__ import annotations

import math
import operator
from typing import NamedTuple

import numpy as np

from ..._internal.validate import instance
from ..colors import percentiles
from ..recording import Recording
from .attention import kept
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
    colors = np.zeros((*patches.shape[:2], 3))
    for group in [slice(None)] if joint else [slice(i, i + 1) for i in range(len(patches))]:
        samples = patches[group].reshape(-1, patches.shape[-1])
        colors[group] = _three_components(samples, clip).reshape(colors[group].shape)
    return colors.reshape(len(patches), *recording.grid, 3).astype("float32")


def patch_similarity(
    recording: Recording,
    query: tuple[int, int],
    image: int = 0,
    other: int | None = None,
    layer: int | str = "final_norm",
) -> np.ndarray:
    """Return the similarity of all patches to one of them: the cosines of their tokens.

    Args:
        recording: A recording with tokens.
        query: Row and column of the patch, negative ones from the end.
        image: The number of the image it is in.
        other: The number of the image in which to look for similar patches; `None` for the same one.
        layer: Which tokens: see `token_pca`.

    Returns:
        float32 `(grid_h, grid_w)` in [-1, 1].

    Raises:
        ValueError: There are no such tokens in the recording, or no such image or patch.

    Example:
        >>> from vit_keras import vit, visualize
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> recording = visualize.record(model, np.zeros((32, 32, 3), "uint8"))
        >>> patch_similarity(recording, (0, 3)).shape
        (4, 4)
    """
    patches = _patches(instance(recording, Recording, "recording"), layer)
    if np.shape(query) != (2,):
        raise ValueError(f"query must be the row and the column of a patch. Received: {query!r}")
    row, column = (
        _number(i, n, name) for i, n, name in zip(query, recording.grid, ("rows of patches", "columns of patches"))
    )
    token = patches[_number(image, len(patches), "images"), row * recording.grid[1] + column]
    others = patches[_number(image if other is None else other, len(patches), "images")]
    return np.clip(unit(others) @ unit(token), -1, 1).reshape(recording.grid).astype("float32")


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


def outlier_tokens(recording: Recording, ratio: float = 3.0) -> list[OutlierToken]:
    """Find the patches whose tokens are much longer than the others (arXiv 2309.16588).

    Args:
        recording: A recording with tokens.
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
        [OutlierToken(layer=1, image=0, patch=(1, 1), norm=10.0)]
    """
    instance(recording, Recording, "recording")
    if not ratio > 1:
        raise ValueError(f"ratio must be a multiple of the median length, above 1. Received: {ratio!r}")
    norms = token_norms(recording).astype("float64")
    median = np.median(norms, axis=(2, 3), keepdims=True)
    relative = np.divide(norms, median, out=np.ones_like(norms), where=median > 0)
    found = []
    for layer, image, row, column in np.argwhere(relative > ratio).tolist():
        number = recording.layers[layer] if layer < len(recording.layers) else recording.layers[-1] + 1
        found.append(OutlierToken(number, image, (row, column), float(relative[layer, image, row, column])))
    return sorted(found, key=lambda token: -token.norm)


def layer_cka(recording: Recording, unit_length: bool = False) -> np.ndarray:
    """Return the similarity of layers: linear CKA of their patches (arXiv 1905.00414; for ViTs, arXiv 2108.08810).

    The samples are the patches of all images. For numbers to trust there should be many more than the
    tokens are wide: some ten images at least.

    Args:
        recording: A recording with tokens.
        unit_length: Whether each token is brought to length 1 first. Otherwise a few tokens much longer than the rest
            (`outlier_tokens`), where a model has them, decide alone.

    Returns:
        float32 `(layers + 1, layers + 1)` in [0, 1], counted as in `recording.tokens`. Where all patches are the same
        it is undefined, and NaN.

    Raises:
        ValueError: There are no tokens in the recording.

    Example:
        >>> tokens = np.stack([np.eye(4, 9), 5 - 2 * np.eye(4, 9)])[:, None].astype("float32")  # 2 x 2 patches
        >>> recording = Recording((), (2, 2), (), (0,), (16, 16), readout=tokens[0, :, :, 0], tokens=tokens)
        >>> layer_cka(recording).round(3).tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    instance(recording, Recording, "recording")
    layers = [_samples(tokens, unit_length) for tokens in kept(recording, "tokens")[:, :, len(recording.prefix) :]]
    own = [_cross_covariance(x, x) for x in layers]
    cka = np.full((len(layers), len(layers)), np.nan)
    for i, j in np.ndindex(cka.shape):
        if j < i:
            cka[i, j] = cka[j, i]
        elif own[i] > 0 and own[j] > 0:
            cka[i, j] = _cross_covariance(layers[i], layers[j]) / math.sqrt(own[i] * own[j])
    return cka.astype("float32")


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
    projected = (samples - samples.mean(axis=0)) @ principal_components(samples, 3).T
    low, high = np.percentile(projected, clip, axis=0)
    spread = np.where(high > low, high - low, np.inf)
    stretched = np.clip((projected - low) / spread, 0, 1)
    result[:, : projected.shape[1]] = np.where(high > low, stretched, 0.5)
    return result


def _samples(tokens: np.ndarray, unit_length: bool) -> np.ndarray:
    """Return tokens `(images, patches, hidden_size)` as centered samples, `(images * patches, hidden_size)`."""
    tokens = tokens.reshape(-1, tokens.shape[-1])
    tokens = unit(tokens) if unit_length else tokens
    return tokens - tokens.mean(axis=0, dtype="float64").astype("float32")


def _cross_covariance(x: np.ndarray, y: np.ndarray) -> float:
    """Return the squared Frobenius norm of `x.T @ y`."""
    product = x.T @ y
    return float(np.einsum("ij,ij->", product, product, dtype="float64"))

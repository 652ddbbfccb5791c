"""Analysis of recorded attention: distance, entropy and sinks."""

from __future__ import annotations

import numpy as np

from ..._internal.validate import instance, one_of
from ..recording import Recording

__all__ = ["attention_entropy", "attention_sinks", "mean_attention_distance"]


def mean_attention_distance(recording: Recording, renormalize: bool = False, unit: str = "px") -> np.ndarray:
    """Return the attention distance of each head: the mean distance between a patch and the tokens it attends to.

    This is the ViT paper's Figure 7, right.

    It is the counterpart of the size of a receptive field. For each query patch the distances to all patches are
    averaged with the attention as weights, then over queries and images.

    Args:
        recording: A recording with attention.
        renormalize: Whether the attention to the patches is made to sum to 1 first. By default, as in the
            reference, what goes to the class token and registers counts as distance 0, and lowers the mean.
        unit: `"px"`: pixels of the model's input, along the real sides of a rectangular patch. `"patch"`: steps on the
            grid.

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
    instance(recording, Recording, "recording")
    steps = recording.patch_size if one_of(unit, "unit", ("px", "patch")) == "px" else (1, 1)
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


def attention_entropy(recording: Recording, query: str = "all") -> np.ndarray:
    """Return the attention entropy of each head: the mean entropy of its rows, in nats.

    It runs from 0 (all on one token) to log N (evenly on all N tokens). Its exponential, the perplexity, reads more
    easily: `np.exp(attention_entropy(recording))` is the number of tokens that a head looks at.

    Args:
        recording: A recording with attention.
        query: The query tokens, of which the mean is taken: `"all"`, `"patches"`, or `"cls"`, the class token alone.

    Returns:
        float32 `(layers, heads)`.

    Raises:
        ValueError: There is no attention of single heads in the recording, or no class token, or no such query.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> np.exp(attention_entropy(recording)).round(2)
        array([[196.]], dtype=float32)
    """
    instance(recording, Recording, "recording")
    asking = _queries(recording, query)
    smallest = np.finfo("float32").tiny
    result = []
    for scores in _attention(recording):
        heads = np.moveaxis(scores[:, :, asking], 1, 0)
        result.append([-np.mean(np.sum(a * np.log(np.maximum(a, smallest)), axis=-1), dtype="float64") for a in heads])
    return np.array(result, "float32")


def attention_sinks(recording: Recording, query: str = "all") -> np.ndarray:
    """Return the share of all attention that each token receives, which reveals attention sinks.

    Args:
        recording: A recording with attention, also with `head_fusion="mean"`.
        query: The query tokens: `"all"`, `"patches"`, or `"cls"`, the class token alone.

    Returns:
        float32 `(layers, images, tokens)`, the mean over heads and queries. A row sums to 1; multiplied with the number
        of tokens, it says how many times its even share a token draws. The first `len(recording.prefix)` tokens
        are the class token and its like.

    Raises:
        ValueError: There is no attention in the recording, or no class token, or no such query.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> attention_sinks(recording).shape
        (1, 1, 196)
    """
    instance(recording, Recording, "recording")
    asking = _queries(recording, query)
    layers = (scores[..., asking, :] for scores in _attention(recording, (None, "mean")))
    shares = [scores.mean(axis=tuple(range(1, scores.ndim - 1)), dtype="float64") for scores in layers]
    return np.array(shares, "float32")


def kept(recording: Recording, name: str) -> np.ndarray:
    """Return an array of a recording that may not have been kept."""
    array = getattr(recording, name)
    if array is None:
        raise ValueError(f"There is no {name} in the recording. Record it with keep=({name!r},) or more.")
    return array


def _attention(recording: Recording, heads: tuple[str | None, ...] = (None,)) -> np.ndarray:
    """Return all rows of the attention, of single heads or of heads fused in one of these ways."""
    attention = kept(recording, "attention")
    if recording.head_fusion not in heads:
        ways = " or ".join(f"head_fusion={way!r}" for way in heads)
        raise ValueError(
            f"The recorded heads were fused, by head_fusion={recording.head_fusion!r}. Record with {ways}."
        )
    if attention.ndim != (5 if recording.head_fusion is None else 4):
        raise ValueError("The recording has only the rows that the output is read from. Record with query='all'.")
    return attention


def _queries(recording: Recording, query: str) -> slice:
    """Return the rows of attention that belong to these query tokens."""
    one_of(query, "query", ("all", "patches", "cls"))
    if query == "cls":
        if "cls" not in recording.prefix:
            raise ValueError("The recorded model has no class token. Pass query='patches'.")
        return slice(index := recording.prefix.index("cls"), index + 1)
    return slice(len(recording.prefix) if query == "patches" else 0, None)

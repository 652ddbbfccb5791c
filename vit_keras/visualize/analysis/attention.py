"""Analysis of recorded attention: distance, entropy and sinks."""

from __future__ import annotations

import numpy as np

from ..._internal.validate import instance
from ..recording import Recording

__all__ = ["attention_entropy", "attention_sinks", "mean_attention_distance"]


def mean_attention_distance(recording: Recording) -> np.ndarray:
    """Return the attention distance of each head: the mean distance between a patch and the tokens it attends to.

    This is the ViT paper's Figure 7, right, and the counterpart of the size of a receptive field. For each query patch
    the distances to all patches are averaged with the attention as weights, then over queries and images. As in the
    reference, what goes to the class token and registers counts as distance 0, and lowers the mean.

    Args:
        recording: A recording with attention.

    Returns:
        float32 `(layers, heads)`: pixels of the model's input, along the real sides of a rectangular patch.

    Raises:
        ValueError: The recording has no attention of single heads.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> mean_attention_distance(recording).round(1)
        array([[116.5]], dtype=float32)
    """
    instance(recording, Recording, "recording")
    (down, across), (y, x) = recording.patch_size, np.indices(recording.grid).reshape(2, -1)
    distances = np.hypot(down * (y[:, None] - y), across * (x[:, None] - x)).astype("float32")
    first, result = len(recording.prefix), []
    for scores in _attention(recording):
        reached = np.einsum("bhqk,qk->bhq", scores[..., first:, first:], distances)
        result.append(reached.mean(axis=(0, 2), dtype="float64"))
    return np.array(result, "float32")


def attention_entropy(recording: Recording) -> np.ndarray:
    """Return the attention entropy of each head: the mean entropy of its rows, in nats.

    It runs from 0 (all on one token) to log N (evenly on all N tokens). Its exponential, the perplexity, reads more
    easily: `np.exp(attention_entropy(recording))` is the number of tokens that a head looks at.

    Args:
        recording: A recording with attention.

    Returns:
        float32 `(layers, heads)`.

    Raises:
        ValueError: The recording has no attention of single heads.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> np.exp(attention_entropy(recording)).round(2)
        array([[196.]], dtype=float32)
    """
    instance(recording, Recording, "recording")
    smallest = np.finfo("float32").tiny
    result = []
    for scores in _attention(recording):
        heads = np.moveaxis(scores, 1, 0)
        result.append([-np.mean(np.sum(a * np.log(np.maximum(a, smallest)), axis=-1), dtype="float64") for a in heads])
    return np.array(result, "float32")


def attention_sinks(recording: Recording) -> np.ndarray:
    """Return the share of all attention that each token receives, which reveals attention sinks.

    Args:
        recording: A recording with attention, also with `head_fusion="mean"`.

    Returns:
        float32 `(layers, images, tokens)`, the mean over heads and queries. A row sums to 1; multiplied with the number
        of tokens, it says how many times its even share a token draws. The first `len(recording.prefix)` tokens
        are the class token and its like.

    Raises:
        ValueError: There is no attention in the recording.

    Example:
        >>> even = np.full((1, 1, 1, 196, 196), 1 / 196, "float32")  # one layer, image and head; 14 x 14 patches
        >>> recording = Recording((), (14, 14), (), (0,), (16, 16), readout=even[0, 0, 0, :1], attention=even)
        >>> attention_sinks(recording).shape
        (1, 1, 196)
    """
    instance(recording, Recording, "recording")
    layers = _attention(recording, (None, "mean"))
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

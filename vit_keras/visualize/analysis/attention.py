"""What recorded attention shows: distance, entropy and sinks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...validate import one_of
from ..recording import Recording

__all__ = ["attention_entropy", "attention_sinks", "mean_attention_distance"]


def mean_attention_distance(recording: Recording, renormalize: bool = False, unit: str = "px") -> np.ndarray:
    """Return how far each head looks: the mean distance between a patch and what it attends to (ViT paper, Figure 7
    right).

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
    """Return how widely each head spreads its attention: the mean entropy of the rows, in nats.

    It runs from 0 (all on one token) to log N (evenly on all N tokens). Its exponential, the perplexity, reads more
    easily: `np.exp(attention_entropy(recording))` is the number of tokens that a head looks at.

    Args:
        recording: A recording with attention.
        rows: `"all"`: the mean over all query tokens; `"cls"`: the class token alone.

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
    """Return the share of all attention that each token receives, to find tokens that draw most of it.

    Args:
        recording: A recording with attention, also with `heads="mean"`.
        queries: The query tokens: `"all"`, `"patches"`, or `"cls"`, the class token alone.

    Returns:
        float32 `(layers, images, tokens)`, the mean over heads and queries. A row sums to 1; multiplied with the number
        of tokens, it says how many times its even share a token draws. The first `len(recording.prefix)` tokens
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


def kept(recording: Recording, name: str) -> np.ndarray:
    """Return an array of a recording that may not have been kept."""
    array = getattr(recording, name)
    if array is None:
        raise ValueError(f"There is no {name} in the recording. Record it with keep=({name!r},) or more.")
    return array


def _attention(recording: Recording, heads: tuple[str | None, ...] = (None,)) -> np.ndarray:
    """Return all rows of the attention, of single heads or of heads fused in one of these ways."""
    attention = kept(recording, "attention")
    if recording.heads not in heads:
        ways = " or ".join(f"heads={way!r}" for way in heads)
        raise ValueError(f"The recorded heads were fused, by heads={recording.heads!r}. Record with {ways}.")
    if attention.ndim != (5 if recording.heads is None else 4):
        raise ValueError("The recording has only the rows that the output is read from. Record with rows='all'.")
    return attention


def _class_token(recording: Recording, remedy: str) -> int:
    if "cls" not in recording.prefix:
        raise ValueError(f"The recorded model has no class token. Pass {remedy}.")
    return recording.prefix.index("cls")


def _choose(value: str, choices: dict[str, Any], argument: str) -> Any:
    return choices[one_of(value, argument, choices)]

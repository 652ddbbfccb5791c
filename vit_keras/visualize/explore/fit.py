"""What of the attention fits into a page of a size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ..record import Recording
from .source import _Source

_FEWEST_LAYERS = 6


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How many layers to keep, how many of those (from the last) with all heads, and whether to pool queries."""

    layers: int
    heads: int
    pooled: bool

    def kept(self, layers: int) -> list[int]:
        """Places of the layers that stay: the last one, and the rest at even steps."""
        count = min(self.layers, layers)
        return [layers - 1] if count == 1 else [round(i * (layers - 1) / (count - 1)) for i in range(count)]

    def blocks(self, layers: int) -> list[tuple[int, bool]]:
        """(place of the layer, whether with all heads)."""
        kept = self.kept(layers)
        return [(layer, n >= len(kept) - self.heads) for n, layer in enumerate(kept)]


def _plans(layers: int) -> Iterator[_Plan]:
    """From everything to as little as can be."""
    few = min(layers, _FEWEST_LAYERS)
    yield _Plan(layers, layers, False)
    yield from (_Plan(layers, heads, False) for heads in range(layers - 1, 4, -1))
    yield from (_Plan(count, 4, False) for count in range(layers, few - 1, -1))
    yield from (_Plan(few, heads, True) for heads in (4, 1, 0))
    yield from (_Plan(count, 0, True) for count in range(few - 1, 0, -1))


def _rows(rec: Recording, layer: int, image: int, full: bool, pooled: bool) -> np.ndarray:
    rows = rec.attention[layer, image]
    rows = rows if rows.ndim == 3 else rows[None]
    rows = rows if full else rows.mean(axis=0, keepdims=True)
    return _pool(rows, len(rec.prefix), rec.grid) if pooled else rows


def _pool(rows: np.ndarray, prefix: int, grid: tuple[int, int]) -> np.ndarray:
    """Average the queries of patches 2 × 2, at the far edges of an odd grid over fewer."""
    patches = rows[:, prefix:].reshape(len(rows), *grid, -1)
    for axis in (1, 2):
        starts = np.arange(0, patches.shape[axis], 2)
        counts = np.diff(np.append(starts, patches.shape[axis]))
        patches = np.add.reduceat(patches, starts, axis=axis) / np.expand_dims(
            counts, [a for a in range(4) if a != axis]
        )
    return np.concatenate([rows[:, :prefix], patches.reshape(len(rows), -1, rows.shape[-1])], axis=1)


def _notes(sources: Sequence[_Source], plan: _Plan, max_mb: float) -> list[str]:
    """What was left out, in sentences."""
    notes = []
    for source in sources:
        rec = source.recording
        whose = f"{source.model}: " if len(sources) > 1 else ""
        blocks = plan.blocks(len(rec.layers))
        averaged = [rec.layers[k] for k, full in blocks if not full]
        dropped = sorted(set(rec.layers) - {rec.layers[k] for k, _ in blocks})
        if averaged and rec.attention.ndim == 5 and rec.attention.shape[2] > 1:
            notes.append(f"{whose}heads are averaged in {_listed(averaged)}.")
        if dropped:
            notes.append(f"{whose}{_listed(dropped)} left out; rollout from a token goes through the others only.")
        if plan.pooled:
            notes.append(f"{whose}patches look in groups of 2 × 2: the attention of neighbours is averaged.")
    if notes:
        notes.append(f"That is to keep the page under {max_mb:g} MB; explorer(…, max_mb=…) keeps more.")
    return [
        note[0].upper() + note[1:] if not note.startswith(tuple(s.model for s in sources if s.model)) else note
        for note in notes
    ]


def _listed(layers: Sequence[int]) -> str:
    """Numbers of layers with runs joined: "layers 0–3, 5"."""
    runs: list[list[int]] = []
    for n in layers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    joined = ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}–{r[-1]}" for r in runs)
    return f"layer{'s' if len(layers) > 1 else ''} {joined}"

"""Selection of the attention that fits into a page of a given size."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ..recording import Recording
from .source import Source, attention_of


@dataclasses.dataclass(frozen=True)
class Plan:
    """The part of the attention that a page keeps."""

    layers: int  # how many layers
    heads: int  # how many of these layers, from the last, with all heads

    def kept(self, layers: int) -> list[int]:
        """Return the indices of the layers that stay: the last one, and the rest at even steps."""
        count = min(self.layers, layers)
        return [layers - 1] if count == 1 else [round(i * (layers - 1) / (count - 1)) for i in range(count)]

    def blocks(self, layers: int) -> list[tuple[int, bool]]:
        """Return pairs of the index of a layer, and whether it keeps all its heads."""
        kept = self.kept(layers)
        return [(layer, n >= len(kept) - self.heads) for n, layer in enumerate(kept)]


def plans(layers: int) -> Iterator[Plan]:
    """Yield plans from the best to the smallest, so that the first that fits is the best that fits."""
    # Layers matter most, because a rollout goes through all of them. So first the heads of more and more layers are
    # averaged, from the first layer on; and then layers are left out.
    yield from (Plan(layers, heads) for heads in range(layers, -1, -1))
    yield from (Plan(count, 0) for count in range(layers - 1, 0, -1))


def rows_of(rec: Recording, layer: int, image: int, full: bool) -> np.ndarray:
    """Return the attention of one layer and image as a plan keeps it, `(heads, queries, keys)`."""
    rows = attention_of(rec)[layer, image]
    rows = rows if rows.ndim == 3 else rows[None]
    return rows if full else rows.mean(axis=0, keepdims=True)


def notes_on(sources: Sequence[Source], plan: Plan, max_mb: float) -> list[str]:
    """Return what the page says of the parts that were left out, in sentences."""
    notes = []
    for source in sources:
        rec, attention = source.recording, attention_of(source.recording)
        said = []
        blocks = plan.blocks(len(rec.layers))
        averaged = [rec.layers[k] for k, full in blocks if not full]
        dropped = sorted(set(rec.layers) - {rec.layers[k] for k, _ in blocks})
        if averaged and attention.ndim == 5 and attention.shape[2] > 1:
            said.append(f"the heads are averaged in {_listed(averaged)}.")
        if dropped:
            said.append(f"{_listed(dropped)} left out; rollout from a token skips them.")
        notes += [f"{source.model}: {note}" if len(sources) > 1 else note[0].upper() + note[1:] for note in said]
    if notes:
        notes.append(f"The page is limited to {max_mb:g} MB; pass a larger max_mb= to explorer to keep more.")
    return notes


def _listed(layers: Sequence[int]) -> str:
    """Return numbers of layers, as "layers 0, 1, 5"."""
    return f"layer{'s' if len(layers) > 1 else ''} {', '.join(map(str, layers))}"

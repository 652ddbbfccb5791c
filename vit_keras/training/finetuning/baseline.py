"""Accuracy of a linear probe of a model's features, before it is fine-tuned."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.dataset import ImageFolder
from ..data.folder import Labeled
from ..embeddings import Probe, ridge_probe
from ..evaluation.frozen import FrozenFeatures
from ..metrics import wilson

__all__ = ["Baseline"]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """How many held-out images a linear probe of frozen features has right."""

    right: int
    held_out: int
    learned: int
    seconds: float
    probe: Probe | None = None

    @classmethod
    def of(cls, frozen: FrozenFeatures, data: Labeled, train: ImageFolder, held_out: ImageFolder) -> Baseline | None:
        """Classify held-out images by their features; `None` without any, or with one class to learn."""
        started = time.monotonic()
        seen, asked = frozen.places(train.rows), frozen.places(held_out.rows)
        known, wanted = data.labels[frozen.rows[seen]], data.labels[frozen.rows[asked]]
        if len(np.unique(known)) < 2 or not len(wanted):
            return None
        probe = frozen.linear_probe(train.rows, data)
        if probe is None:  # which would take minutes
            probe = ridge_probe(frozen.features[seen], known, classes=len(data.names))
        right, seconds = int((probe.predict(frozen.features[asked]) == wanted).sum()), time.monotonic() - started
        return cls(right, len(wanted), len(known), frozen.seconds + seconds, probe)

    @classmethod
    def joined(cls, parts: Sequence[dict[str, Any]]) -> Baseline:
        """Return the baseline of all folds from the `to_dict` of each."""
        counts: dict[str, Any] = {name: sum(part[name] for part in parts) for name in parts[0]}
        return cls(**counts)

    @property
    def accuracy(self) -> float:
        """The accuracy of the probe."""
        return self.right / self.held_out

    @property
    def text(self) -> str:
        """The accuracy in words."""
        low, high = wilson(self.accuracy, self.held_out)
        return f"{self.accuracy:.1%} of {self.held_out:,} held-out images (95 % interval: {low:.1%} to {high:.1%})"

    def verdict(self, accuracy: float, advice: str, *, decides: bool = True) -> str:
        """Return whether fine-tuning to this accuracy helped, with advice if not, or both accuracies alone."""
        found = f"Without fine-tuning, a linear probe of the model's features has right: {self.text}. Fine-tuning gave "
        found += f"{accuracy:.1%}."
        if decides and self.accuracy >= accuracy:
            return f"{found} It did not help: {advice}."
        if decides and accuracy <= wilson(self.accuracy, self.held_out)[1]:
            return f"{found} Only more held-out images would tell whether it helped."
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, as plain JSON."""
        return {name: getattr(self, name) for name in ("right", "held_out", "learned", "seconds")}

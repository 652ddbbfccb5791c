"""Accuracy of simple classifiers of a model's features, before it is fine-tuned."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.dataset import ImageFolder
from ..data.folder import Labeled
from ..embeddings import Probe, knn
from ..evaluation.frozen import FrozenFeatures
from ..metrics import wilson

__all__ = ["Baseline"]

_TEMPERATURE = 0.07
"""Of cosine similarities, as in `knn`."""

_NEVER = -1e4
"""The bias of a class without images: below what features of any usual length give, and a number of half precision."""

NEIGHBORS, CENTROIDS, PROBE = "nearest neighbors", "class means", "linear probe"


@dataclasses.dataclass(frozen=True)
class Baseline:
    """How many held-out images each classifier of frozen features has right, and the best that is linear."""

    right: dict[str, int]
    held_out: int
    learned: int
    seconds: float
    best: str
    probe: Probe | None = None

    @classmethod
    def of(cls, frozen: FrozenFeatures, data: Labeled, train: ImageFolder, held_out: ImageFolder) -> Baseline | None:
        """Classify held-out images by their features; `None` without any, or with one class to learn."""
        started, classes = time.monotonic(), len(data.names)
        seen, asked = frozen.places(train.rows), frozen.places(held_out.rows)
        features, known = frozen.features[seen], data.labels[frozen.rows[seen]]
        queries, wanted = frozen.features[asked], data.labels[frozen.rows[asked]]
        if len(np.unique(known)) < 2 or not len(wanted):
            return None
        right = {NEIGHBORS: int((knn(features, known, queries, k=min(20, len(features))) == wanted).sum())}
        probes = {CENTROIDS: _centroids(features, known, classes)}
        if (probe := frozen.linear_probe(train.rows, data)) is not None:
            probes[PROBE] = probe
        right |= {name: int((probe.predict(queries) == wanted).sum()) for name, probe in probes.items()}
        best, seconds = _best(right), frozen.seconds + time.monotonic() - started
        return cls(right, len(wanted), len(known), seconds, best, probes[best])

    @classmethod
    def joined(cls, parts: Sequence[dict[str, Any]]) -> Baseline:
        """Return the baseline of all folds from the `to_dict` of each."""
        names = set.intersection(*({*part["right"]} for part in parts))
        right = {name: sum(part["right"][name] for part in parts) for name in parts[0]["right"] if name in names}
        held_out, learned, seconds = (sum(part[name] for part in parts) for name in ("held_out", "learned", "seconds"))
        return cls(right, held_out, learned, seconds, _best(right))

    @property
    def accuracy(self) -> float:
        """The accuracy of the best linear classifier."""
        return self.right[self.best] / self.held_out

    @property
    def text(self) -> str:
        """The accuracies in a line."""
        low, high = wilson(self.accuracy, self.held_out)
        others = "; ".join(f"{name} {n / self.held_out:.1%}" for name, n in self.right.items() if name != self.best)
        return f"{self.best} {self.accuracy:.1%} (95 % interval: {low:.1%} to {high:.1%}); {others}"

    def verdict(self, accuracy: float, advice: str, *, decides: bool = True) -> str:
        """Return whether fine-tuning to this accuracy helped, with advice if not, or both accuracies alone."""
        found = f"Without fine-tuning, of {self.held_out:,} held-out images, classifiers of the model's features have "
        found += f"right: {self.text}. Fine-tuning gave {accuracy:.1%}."
        if decides and self.accuracy >= accuracy:
            return f"{found} It did not help: {advice}."
        if decides and accuracy <= wilson(self.accuracy, self.held_out)[1]:
            return f"{found} Only more held-out images would tell whether it helped."
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers, as plain JSON."""
        return {name: getattr(self, name) for name in ("right", "held_out", "learned", "seconds", "best")}


def _best(right: dict[str, int]) -> str:
    """Return the linear classifier that is right most often; the linear probe if both are."""
    return max((name for name in (PROBE, CENTROIDS) if name in right), key=right.__getitem__)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _centroids(features: np.ndarray, labels: np.ndarray, classes: int) -> Probe:
    """Return a classifier by the class mean of the largest cosine similarity, which is linear: lengths cancel."""
    kernel, bias = np.zeros((features.shape[1], classes), "float32"), np.full(classes, _NEVER, "float32")
    for kind in np.unique(labels):
        kernel[:, kind], bias[kind] = _unit(_unit(features[labels == kind]).mean(axis=0)[None])[0] / _TEMPERATURE, 0
    return Probe(kernel, bias, l2=0.0)

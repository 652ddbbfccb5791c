"""Findings from the frozen features of the images before training: near-duplicates, likely wrong labels, a curve."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..data.dataset import ImageFolder
from ..data.duplicates import near_duplicates
from ..data.labeled import Labeled
from ..embeddings import linear_probe
from .calibration import temperature, tempered
from .curve_over_images import ImageCurve, image_curve
from .frozen import MOST_WORK, Frozen
from .wrong_labels import label_issues, out_of_fold

__all__: list[str] = []

IMPROBABLE = 0.05
"""Labels that are less probable are likely wrong; docs/training.md has a test of how many are."""

_MOST_LEARNED = 5000
"""The logistic regressions learn at most this many images, drawn at random; fewer if images × features × classes would
exceed `MOST_WORK`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """Two images, by their numbers in the data, that are nearly the same."""

    train: int
    held_out: int
    distance: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wrong:
    """An image, by its number in the data, whose label is likely wrong; the class that it seems to be; how probable the
    label is.
    """

    row: int
    suggested: int
    probability: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """Findings in the images.

    Attributes:
        images: How many were looked at.
        pairs: Near-duplicates between training and held-out images; those of each of several folds.
        duplicated: Number of held-out images with a near-duplicate, counted in every fold.
        threshold: The cosine distance from which on two images are different; `None` if too few were looked at.
        wrong: Likely wrong labels, the most likely first.
        judge: Who found them, in words; `None` if nobody looked.
        curve: What more images would give; `None` if there are too few, or another task.
    """

    images: int = 0
    pairs: tuple[Pair, ...] = ()
    duplicated: int = 0
    threshold: float | None = None
    wrong: tuple[Wrong, ...] = ()
    judge: str | None = None
    curve: ImageCurve | None = None

    @property
    def lines(self) -> list[str]:
        """Lines to print before training."""
        found = [self.curve.headline] if self.curve is not None else []
        if self.wrong:
            found.append(f"{len(self.wrong):,} labels may be wrong; the report shows which")
        return [*found, *(f"Warning: {remark}" for remark in self.remarks)]

    @property
    def remarks(self) -> list[str]:
        """Remarks to read before the numbers."""
        if not self.pairs:
            return []
        count = self.duplicated
        what = "images are nearly the same as images" if count > 1 else "image is nearly the same as one"
        return [f"{count:,} held-out {what} to learn from, so the result on new images may be worse."]

    def to_dict(self, data: Labeled) -> dict[str, object]:
        """Return the findings as plain JSON, with images named as in the data."""
        curve = self.curve
        return {
            "images": self.images,
            "near_duplicates": [
                {"train": data.ids[pair.train], "held_out": data.ids[pair.held_out], "distance": pair.distance}
                for pair in self.pairs
            ],
            "likely_wrong_labels": [
                {
                    "image": data.ids[each.row],
                    "label": data.names[data.labels[each.row]],
                    "suggested": data.names[each.suggested],
                    "probability": each.probability,
                }
                for each in self.wrong
            ],
            "image_curve": curve
            and {
                "images": curve.counts.tolist(),
                "accuracy": curve.accuracies.tolist(),
                "twice_as_many": {"gain": curve.gain, "interval": list(curve.interval)},
            },
        }


def look_at(frozen: Frozen, data: Labeled, pairs: Sequence[tuple[ImageFolder, ImageFolder]], *, seed: int) -> Findings:
    """Look at the images through a model that has not learned their labels.

    Args:
        frozen: The features of the images.
        data: The images.
        pairs: The images to learn from and those held out; several for folds.
        seed: Seed of everything random.
    """
    if importlib.util.find_spec("sklearn") is None:
        return Findings()
    rows, features = frozen.rows, frozen.features
    parts = [[np.sort(frozen.places(each.rows)) for each in pair] for pair in pairs]  # in the random order of features
    found, threshold, duplicated = {}, None, set[int]()
    for train, held_out in parts:
        if len(train) < 16 or not len(held_out):
            continue
        near = near_duplicates(features[train], features[held_out])
        threshold = near.threshold if threshold is None else threshold
        for first, second, distance in zip(rows[train[near.train]], rows[held_out[near.held_out]], near.distances):
            pair = Pair(train=int(first), held_out=int(second), distance=float(distance))
            found.setdefault(frozenset((first, second)), pair)
            duplicated.add(pair.held_out)
    told: dict[str, Any] = {
        "images": len(rows),
        "pairs": tuple(sorted(found.values(), key=lambda pair: pair.distance)),
        "duplicated": len(duplicated),
        "threshold": threshold,
    }
    return Findings(**told, **(_learned(data, rows, features, parts, seed) if data.task == "single" else {}))


def _learned(data, rows, features, parts, seed) -> dict[str, Any]:
    """Return what logistic regressions tell: likely wrong labels, and the curve over the number of images."""
    labels, found = data.labels[rows], {}
    most = min(_MOST_LEARNED, int(MOST_WORK / (features.shape[1] * len(data.names))))
    train, held_out = (part[:most] for part in parts[0])
    known = np.bincount(labels[train], minlength=len(data.names))
    if len(held_out) < 16 or (known >= 16).sum() < 2:
        return found
    l2 = linear_probe(features[train], labels[train], classes=len(data.names), seed=seed).l2
    found["curve"] = image_curve(features[train], labels[train], features[held_out], labels[held_out], l2=l2, seed=seed)
    if len(parts) == 1:  # folds have better judges
        asked = np.concatenate([train, held_out])[:most]
        shares = out_of_fold(features[asked], labels[asked], classes=len(data.names), l2=l2, seed=seed)
        known = np.bincount(labels[asked])[labels[asked]] > 1  # no model has learned the class of one image
        found |= wrong_labels(rows[asked][known], shares[known], labels[asked][known])
    return found


def wrong_labels(rows: np.ndarray, probabilities: np.ndarray, labels: np.ndarray, judge: str = "") -> dict[str, Any]:
    """Return the fields of `Findings` about likely wrong labels: the improbable ones, after calibration of the judge.

    Args:
        rows: The numbers of the images in the data.
        probabilities: What a model that has not learned them predicts for each.
        labels: The class number of each.
        judge: Who that is, in words.
    """
    issues = label_issues(tempered(probabilities, temperature(probabilities, labels)), labels)
    right = np.mean(probabilities.argmax(axis=1) == labels)
    wrong = (
        Wrong(row=int(rows[image]), suggested=int(suggested), probability=float(probability))
        for image, suggested, probability in zip(issues.images, issues.suggested, issues.probabilities)
        if probability < IMPROBABLE
    )
    judge = judge or "a logistic regression of the frozen features of the other images"
    return {"wrong": tuple(wrong), "judge": f"{judge}, which is right for {right:.0%} of {len(labels):,}"}

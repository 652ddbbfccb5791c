"""Findings in the images before training, each with a section of the report, from features that are frozen."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..._internal.html_page import escape
from ..._internal.imports import INSTALL
from ..data.dataset import ImageFolder
from ..data.duplicates import near_duplicates
from ..data.folder import Labeled
from ..embeddings import linear_probe
from .calibration import temperature, tempered
from .charts import learning_curve_chart
from .frozen import MOST_WORK, FrozenFeatures

__all__: list[str] = []

IMPROBABLE = 0.05  # labels that are less probable are likely wrong; benchmarks/finetuning.md has a test of how many are
_MOST_LEARNED = 5000  # images at most that logistic regressions learn, drawn at random; see also `MOST_WORK`
_SIZES = (1 / 8, 1 / 4, 1 / 2, 1.0)
_DRAWS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """A section of the report, its numbers as plain JSON, and rows of images with captions; texts are HTML."""

    key: str
    told: Any
    heading: str
    text: str
    cards: tuple[tuple[list[int], str], ...] = ()
    chart: str = ""
    line: str = ""
    """To print before the training."""
    remark: str = ""
    """To read before the numbers of the report."""


def analyze(
    frozen: FrozenFeatures, data: Labeled, pairs: Sequence[tuple[ImageFolder, ImageFolder]], *, seed: int
) -> tuple[Finding, ...]:
    """Look at the images through a model that has not learned their labels."""
    parts = [[np.sort(frozen.places(each.rows)) for each in pair] for pair in pairs]  # in the random order of features
    learned = _learned(frozen, data, parts, seed) if data.task == "single" else []
    return tuple(each for each in (_duplicates(frozen, data, parts), *learned) if each is not None)


def _duplicates(frozen: FrozenFeatures, data: Labeled, parts: Sequence[Sequence[np.ndarray]]) -> Finding | None:
    """Return pairs of a held-out image and one to learn from that are nearly the same, of all folds."""
    pairs: dict[frozenset[int], tuple[float, int, int]] = {}
    copies: set[int] = set()
    threshold = None
    for train, held_out in parts:
        if len(train) < 16 or not len(held_out):
            continue
        near = near_duplicates(frozen.features[train], frozen.features[held_out])
        threshold = near.threshold if threshold is None else threshold
        first, second = frozen.rows[train[near.train]], frozen.rows[held_out[near.held_out]]
        for distance, *pair in zip(near.distances.tolist(), first.tolist(), second.tolist()):
            pairs.setdefault(frozenset(pair), (distance, *pair))
        copies |= {*second.tolist()}
    if threshold is None:
        return None
    nearest, count = sorted(pairs.values()), len(copies)
    what = "images are nearly the same as images" if count > 1 else "image is nearly the same as one"
    return Finding(
        key="near_duplicates",
        told=[{"train": data.ids[a], "held_out": data.ids[b], "distance": distance} for distance, a, b in nearest],
        heading="Near-duplicates",
        text=f"Pairs of a held-out image and one to learn from that are nearly the same: {len(pairs):,}. The cosine "
        f"distance of their features is below {threshold:.2g}, far below that of other nearest neighbors "
        "(Tukey's outer fence).",
        cards=tuple(
            ([a, b], f"<b>{_label(data, a)}</b> to learn from, <b>{_label(data, b)}</b> held out, distance {near:.2g}")
            for near, a, b in nearest
        ),
        remark=f"{count:,} held-out {what} to learn from, so the result on new images may be worse." if count else "",
    )


def _learned(frozen: FrozenFeatures, data: Labeled, parts: Sequence[Sequence[np.ndarray]], seed: int) -> list[Finding]:
    """Return what logistic regressions tell: the learning curve, and of one split also likely wrong labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict, learning_curve
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features, labels = frozen.features, data.labels[frozen.rows]
    most = min(_MOST_LEARNED, int(MOST_WORK / (features.shape[1] * len(data.names))))
    train, held_out = (part[:most] for part in parts[0])
    if len(held_out) < 16 or (np.bincount(labels[train]) >= 16).sum() < 2:
        return []
    known = frozen.linear_probe(frozen.rows[parts[0][0]], data)
    l2 = (known or linear_probe(features[train], labels[train], classes=len(data.names))).l2
    judge = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (l2 * len(train)), max_iter=1000, tol=1e-5))
    counts, _, scores = learning_curve(
        judge, features, labels, train_sizes=_SIZES, cv=[(train, held_out)] * _DRAWS, shuffle=True, random_state=seed
    )
    found = [_curve(counts, scores)]
    if len(parts) == 1:  # folds have better judges
        asked = np.concatenate([train, held_out])[:most]
        asked = asked[np.bincount(labels[asked])[labels[asked]] > 1]  # no judge has learned the class of one image
        folds = StratifiedKFold(min(5, int(np.bincount(labels[asked]).max())), shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of classes with fewer images than folds
            shares = cross_val_predict(judge, features[asked], labels[asked], cv=folds, method="predict_proba")
        judged_by = "a logistic regression of the other images' features"
        found.append(wrong_labels(data, frozen.rows[asked], shares, judged_by))
    return found


def _curve(counts: np.ndarray, scores: np.ndarray) -> Finding:
    means, deviations = scores.mean(axis=1), scores.std(axis=1)
    gain = 100 * (means[-1] - means[-2])
    line = f"Twice as many images brought {gain:+.1f} points, from {counts[-2]:,} to {counts[-1]:,}"
    return Finding(
        key="learning_curve",
        told={"images": counts.tolist(), "accuracy": means.tolist(), "deviation": deviations.tolist()},
        heading="More images",
        text=f"<b>{line}.</b> The accuracy of a logistic regression of the features on the held-out images, "
        f"and the deviation between {scores.shape[1]} draws. Training the whole model is better at each number, and "
        "usually gains less.",
        chart=learning_curve_chart(counts, scores),
        line=line,
    )


def wrong_labels(data: Labeled, rows: np.ndarray, shares: np.ndarray, judge: str) -> Finding:
    """Return the images whose label is likely wrong, by the probabilities of a judge that has not learned them."""
    about: dict[str, Any] = {"key": "likely_wrong_labels", "heading": "Likely wrong labels"}
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        return Finding(told=None, text=escape(f"They need cleanlab: {INSTALL}"), **about)
    known, labels = np.unique(data.labels[rows], return_inverse=True)  # cleanlab wants an image of each class
    shares = shares[:, known] if shares.shape[1] > len(known) else shares
    shares = tempered(shares, temperature(shares, labels))
    ranked = find_label_issues(
        labels, shares, filter_by="confident_learning", return_indices_ranked_by="self_confidence", n_jobs=1
    )
    found = [(int(rows[n]), int(known[shares[n].argmax()]), float(shares[n, labels[n]])) for n in ranked]
    found = [each for each in found if each[2] < IMPROBABLE]
    titles = ("image", "label", "suggested", "probability")
    right = np.mean(shares.argmax(axis=1) == labels)
    return Finding(
        told=[dict(zip(titles, (data.ids[n], data.names[data.labels[n]], data.names[k], p))) for n, k, p in found],
        text=f"Images that look like another class, with a probability of the label below {IMPROBABLE:.0%}, by "
        f"confident learning (arXiv 1911.00068): {len(found):,}. Judge: {escape(judge)}, right for {right:.0%} of "
        f"{len(labels):,}: where it is often wrong itself, so are these.",
        cards=tuple(
            ([row], f"labeled <b>{_label(data, row)}</b>, looks like <b>{escape(data.names[k])}</b>")
            for row, k, _ in found
        ),
        line=f"{len(found):,} labels may be wrong; the report shows which" if found else "",
        **about,
    )


def _label(data: Labeled, row: int) -> str:
    return escape(data.names[data.labels[row]]) if data.task == "single" else "image"

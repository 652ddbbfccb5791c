"""Folds: which images are held out together, so that each fold is like the whole and no group is divided."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from ..._internal.imports import extra
from ..._internal.validate import positive_integer
from ..._internal.warn import warn_caller
from .folder import Labeled, check_share, first_few

__all__ = ["check_fold_column", "fold_numbers", "hold_out"]


def fold_numbers(data: Labeled, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each image: scikit-learn's splitters, and iterative stratification for several labels."""
    images, groups = len(data.paths), data.groups
    if positive_integer(folds, "folds", least=2) > images:
        raise ValueError(f"{images} images cannot be divided into {folds} parts. Add images.{_advice(images)}")
    together = "pass as group_column= a column that keeps them together, such as the column of the images"
    _check_duplicates(data, groups, together)
    if groups is not None and (count := len(np.unique(groups))) < folds:
        raise ValueError(
            f"There are {count} groups, which cannot be divided into {folds} parts. Add groups, or divide without "
            f"group_column=.{_advice(count)}"
        )
    if data.task == "multi":
        return _stratified_labels(data.labels, np.arange(len(data.labels)) if groups is None else groups, folds, seed)
    stratified = data.task in ("single", "ordinal")
    name = f"{'Stratified' * stratified}{'Group' * (groups is not None)}KFold"
    splitter = getattr(extra("sklearn.model_selection", "Folds need scikit-learn"), name)
    targets = data.labels.reshape(-1).astype(int) if stratified else np.zeros(len(data.labels))
    if stratified:
        _warn_of_small_classes(data, targets, folds)
    found = np.empty(len(targets), int)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # said already, with its name
        parts = splitter(folds, shuffle=True, random_state=seed).split(targets, targets, groups)
        for number, (_, held_out) in enumerate(parts):
            found[held_out] = number
    return found


def hold_out(data: Labeled, share: float, seed: int) -> list[np.ndarray]:
    """Return the numbers of the images for training and for validation, which is the first of about 1/share folds."""
    check_share(share, 0.5)
    held_out = fold_numbers(data, round(1 / share), seed) == 0
    return [np.flatnonzero(~held_out), np.flatnonzero(held_out)]


def check_fold_column(data: Labeled, folds: np.ndarray, name: str) -> None:
    """Check that a column of folds divides neither an image that is in several rows nor a group."""
    _check_duplicates(data, folds, f"give them one value in the column {name!r}")
    if data.groups is not None:
        _, first, group = np.unique(data.groups, return_index=True, return_inverse=True)
        apart = np.flatnonzero(folds != folds[first][group])
        if len(apart):
            raise ValueError(
                f"The column {name!r} divides groups of group_column=: {first_few([data.ids[row] for row in apart])} "
                "are in another fold than the first image of their group. Leave group_column= out, or pass the number "
                "of folds."
            )


def _check_duplicates(data: Labeled, parts: np.ndarray | None, advice: str) -> None:
    """Raise a `ValueError` where an image is in several rows, and not in one part: it would be learned and held out."""
    first: dict[Any, int] = {}
    there = [(row, path) for row, path in enumerate(data.paths) if row not in data.missing]
    again = [(first[path], row) for row, path in there if first.setdefault(path, row) != row]
    apart = [data.ids[row] for row in sorted({a for a, b in again if parts is None or parts[a] != parts[b]})]
    if apart:
        raise ValueError(
            f"Images that are in several rows could be both learned and held out ({len(apart):,}): "
            f"{first_few(apart)}. Keep one row of each, or {advice}."
        )


def _advice(most: int) -> str:
    """Return how many parts can be made, if any."""
    share = math.ceil(100 / most) / 100
    return f" Or pass folds={most}, or hold out {share:g} (validation_split=, --held-out)." if most > 1 else ""


def _warn_of_small_classes(data: Labeled, targets: np.ndarray, folds: int) -> None:
    counts = np.bincount(targets, minlength=len(data.names))
    small = [data.names[number] for number in np.flatnonzero((counts > 0) & (counts < folds))]
    if (counts < folds).all():
        least = int(counts[counts > 0].min())
        raise ValueError(
            f"No class has {folds} images, one for each of {folds} parts: the smallest, "
            f"{data.names[counts.tolist().index(least)]!r}, has {least}. Add images, leave out the classes of fewest "
            f"images, or merge them.{_advice(least)}"
        )
    if small:
        warn_caller(f"There are fewer than {folds} images of {first_few(small)}: some of {folds} parts have none.")


def _stratified_labels(labels: np.ndarray, groups: np.ndarray, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each row: the rarest label is given out first, to the fold that has least of it."""
    _, group = np.unique(groups, return_inverse=True)
    count = group.max() + 1
    held = np.zeros((count, labels.shape[1]))
    np.add.at(held, group, labels)
    sizes = np.bincount(group)
    random = np.random.default_rng(seed)
    order = random.permutation(count)
    given, rows = np.zeros((folds, labels.shape[1])), np.zeros(folds)
    found, left = np.full(count, -1), np.ones(count, bool)
    while left.any():
        remaining = (held[left] > 0).sum(0)
        rarest = int(np.where(remaining > 0, remaining, np.inf).argmin()) if remaining.any() else None
        members = [g for g in order if left[g] and (rarest is None or held[g, rarest] > 0)]
        for member in members:
            there = rows if rarest is None else given[:, rarest]
            best = np.flatnonzero(there == there.min())
            best = best[rows[best] == rows[best].min()]
            fold = int(random.choice(best))
            found[member], left[member] = fold, False
            given[fold] += held[member]
            rows[fold] += sizes[member]
    return found[group]

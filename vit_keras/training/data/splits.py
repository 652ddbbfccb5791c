"""Folds: which images are held out together, so that each fold is like the whole and no group is divided."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._internal.validate import positive_integer
from ..._internal.warn import warn_caller
from .folder import Labeled, first_few

__all__ = ["check_fold_column", "fold_numbers", "hold_out"]


def fold_numbers(data: Labeled, folds: int, seed: int) -> np.ndarray:
    """Return the fold of each image: scikit-learn's splitters, and iterative stratification for several labels."""
    return _folds(data, positive_integer(folds, "folds", least=2), seed, lambda most: f"Pass folds={most}")


def _folds(data: Labeled, folds: int, seed: int, fewer: Callable[[int], str]) -> np.ndarray:
    """Return the fold of each image; `fewer` is the advice to the caller if there are too many folds."""
    images = len(data.paths)
    if folds > images:
        advice = _advice(images, fewer, "Add images")
        raise ValueError(f"{images} images cannot be divided into {folds} parts. {advice}")
    together = "pass as group_column= a column that keeps them together, such as the column of the images"
    _check_duplicates(data, data.groups, together)
    groups = data.groups
    if groups is not None and len(np.unique(groups)) < folds:
        count = len(np.unique(groups))
        advice = _advice(count, fewer, "Add groups, or divide without group_column=")
        raise ValueError(f"There are {count} groups, which cannot be divided into {folds} parts. {advice}")
    if data.task == "multi":
        return _stratified_labels(data.labels, np.arange(len(data.labels)) if groups is None else groups, folds, seed)
    stratified = data.task in ("single", "ordinal")
    splitter = _splitter(f"{'Stratified' * stratified}{'Group' * (groups is not None)}KFold")
    targets = data.labels.reshape(-1).astype(int) if stratified else np.zeros(len(data.labels))
    if stratified:
        _warn_of_small_classes(data, targets, folds, fewer)
    found = np.empty(len(targets), int)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class", UserWarning)  # said already, with its name
        parts = splitter(folds, shuffle=True, random_state=seed).split(targets, targets, groups)
        for number, (_, held_out) in enumerate(parts):
            found[held_out] = number
    return found


def hold_out(data: Labeled, share: float, seed: int) -> list[np.ndarray]:
    """Return the numbers of the images for training and for validation, which is the first of about 1/share folds."""
    if not 0 < share <= 0.5:
        raise ValueError(
            f"The share to hold out of a table (validation_split=, --held-out) must be above 0 and at most 0.5. "
            f"Received: {share!r}"
        )
    parts = round(1 / share)
    given = f"A share of {share:g} to hold out is one image in {parts}: hold out"

    def fewer(most: int) -> str:
        return f"{given} at least {math.ceil(100 / most) / 100:g} (validation_split=, --held-out)"

    held_out = _folds(data, parts, seed, fewer) == 0
    return [np.flatnonzero(~held_out), np.flatnonzero(held_out)]


def _splitter(name: str) -> Any:
    try:
        from sklearn import model_selection
    except ImportError:
        raise ImportError('Folds need scikit-learn: pip install "vit-keras[table]"') from None
    return getattr(model_selection, name)


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
    rows: dict[Any, list[int]] = {}
    for row, path in enumerate(data.paths):
        if row not in data.missing:
            rows.setdefault(path, []).append(row)
    apart = [
        data.ids[same[0]]
        for same in rows.values()
        if len(same) > 1 and (parts is None or len(set(parts[same].tolist())) > 1)
    ]
    if apart:
        raise ValueError(
            f"Images that are in several rows could be both learned and held out ({len(apart):,}): "
            f"{first_few(apart)}. Keep one row of each, or {advice}."
        )


def _advice(most: int, fewer: Callable[[int], str], other: str) -> str:
    """Return advice that works: the maximum number of parts if it is at least two, or something else."""
    return f"{fewer(most)}, or {other[0].lower()}{other[1:]}." if most > 1 else f"{other}."


def _warn_of_small_classes(data: Labeled, targets: np.ndarray, folds: int, fewer: Callable[[int], str]) -> None:
    counts = np.bincount(targets, minlength=len(data.names))
    small = [data.names[number] for number in np.flatnonzero((counts > 0) & (counts < folds))]
    if (counts < folds).all():
        least = int(counts[counts > 0].min())
        smallest = data.names[int(np.flatnonzero(counts == least)[0])]
        advice = _advice(least, fewer, "Add images, leave out the classes of fewest images, or merge them")
        raise ValueError(
            f"No class has {folds} images, one for each of {folds} parts: the smallest, {smallest!r}, has {least}. "
            f"{advice}"
        )
    if small:
        message = f"There are fewer than {folds} images of {first_few(small)}: some of {folds} parts have none of them."
        warn_caller(message)


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

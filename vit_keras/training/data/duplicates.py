"""Near-duplicates: images of one part of the data that are also, hardly changed, in the other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..._internal.imports import extra
from ..._internal.validate import as_array

__all__ = ["Duplicates", "near_duplicates"]

_SMALLEST = 1e-6  # cosine distances below this one, between the features of equal images, are rounding
_ASKED = 5000  # images whose nearest neighbors decide what is unusually near


@dataclasses.dataclass(frozen=True, eq=False)
class Duplicates:
    """Pairs of images that are nearly the same, the nearest first; made by `near_duplicates`."""

    train: np.ndarray
    held_out: np.ndarray
    distances: np.ndarray
    threshold: float


def near_duplicates(train: Any, held_out: Any, *, threshold: float | None = None) -> Duplicates:
    """Find held-out images that are nearly the same as an image to learn from.

    Two images count as nearly the same if the cosine distance of their features is below a threshold, which the images
    to learn from decide: the logarithm of the distance of each to its nearest neighbor has quartiles, and what lies
    three times their range below the lower one is "far out" (Tukey, "Exploratory Data Analysis", 1977). Of distances
    like those of different images, about one in a million does. Where a quarter of the images to learn from are
    duplicates of each other, as in frames of a video, nothing is unusually near: pass `group_column=` there.

    The search takes a second for 2,000 images and grows with the product of both numbers.

    Args:
        train: Features `(n, features)` of the images to learn from; see `vit_keras.training.embed`.
        held_out: Features `(m, features)` of the others.
        threshold: A cosine distance; `None`: as above.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: There are fewer than three images to learn from.

    Example:
        >>> photos = np.random.default_rng(0).normal(size=(40, 8))
        >>> found = near_duplicates(photos, [photos[7] + 1e-3, -photos[7]])
        >>> found.train, found.held_out
        (array([7]), array([0]))
    """
    neighbors = extra("sklearn.neighbors", "Near-duplicates are found with scikit-learn")
    train, held_out = as_array(train, "float32"), as_array(held_out, "float32")
    if len(train) < 3:
        raise ValueError(f"Nearest neighbors need at least three images to learn from. Received: {len(train)}")
    near = neighbors.NearestNeighbors(n_neighbors=1, metric="cosine").fit(train)
    if threshold is None:
        asked = np.random.default_rng(0).permutation(len(train))[:_ASKED]
        within = near.kneighbors(train[asked], n_neighbors=2)[0][:, 1]
        low, high = np.quantile(np.log(np.maximum(within, _SMALLEST)), (0.25, 0.75))
        threshold = float(max(np.exp(low - 3 * (high - low)), 2 * _SMALLEST))
    distances, images = (found[:, 0] for found in near.kneighbors(held_out))
    order = np.argsort(distances, kind="stable")
    order = order[distances[order] < threshold]
    return Duplicates(images[order], order, distances[order], threshold)

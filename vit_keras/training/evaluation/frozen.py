"""The features of the images before a training: one forward pass of each, which all that looks at them shares."""

from __future__ import annotations

import dataclasses
import time

import keras
import numpy as np

from ...anatomy import find_vit
from ...opening import resize
from ..data.dataset import ImageFolder
from ..embeddings import embed

__all__ = ["FrozenFeatures"]

MOST_WORK = 1e8
"""Images × features × classes up to which a linear probe takes seconds rather than minutes."""

SHARE = 0.1
"""Share of a time limit that the features may take: of images that do not fit, a random part is left out."""


@dataclasses.dataclass(frozen=True)
class FrozenFeatures:
    """Features `(images, width)` of a model that has not learned the images, by their rows, in a random order."""

    rows: np.ndarray
    features: np.ndarray
    seconds: float = 0.0

    @classmethod
    def of(
        cls, given: keras.Model, train: ImageFolder, held_out: ImageFolder, *, seconds: float | None, seed: int
    ) -> FrozenFeatures:
        """Compute the features of all images, or of a random part within a share of the time limit."""
        begun, model = time.monotonic(), resize(find_vit(given), train.image_size)
        order = np.random.default_rng(seed).permutation(len(train.paths) + len(held_out.paths))

        def batches():
            for first in range(0, len(order), train.batch_size):
                if first and seconds is not None and time.monotonic() - begun > SHARE * seconds:
                    return
                chosen = order[first : first + train.batch_size]
                learned = chosen < len(train.paths)
                images = np.empty((len(chosen), *model.input_shape[1:]), "float32")
                for part, where, shift in ((train, learned, 0), (held_out, ~learned, len(train.paths))):
                    if where.any():
                        images[where] = part.arrays(chosen[where] - shift)[0]
                yield images

        features = embed(model, batches(), progress=False)
        rows = np.concatenate([train.rows, held_out.rows])[order]
        return cls(rows[: len(features)], features, time.monotonic() - begun)

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return where in `features` those of some images are; images without features are left out."""
        place = np.full(1 + max(self.rows.max(initial=0), np.max(rows, initial=0)), -1)
        place[self.rows] = np.arange(len(self.rows))
        return place[rows][place[rows] >= 0]

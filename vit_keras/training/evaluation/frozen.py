"""The features of the images before a training: one forward pass of each, which all that looks at them shares."""

from __future__ import annotations

import dataclasses
import time

import keras
import numpy as np

from ...anatomy.parts import find_vit
from ...opening import resize
from ..data.dataset import ImageFolder
from ..data.folder import Labeled
from ..embeddings import Probe, embed, linear_probe
from ..embeddings.batches import slices

__all__ = ["FrozenFeatures"]

MOST_WORK = 1e8
"""Images × features × classes up to which a linear probe takes seconds rather than minutes."""

SHARE = 0.1
"""Share of a time limit that the features may take: of images that do not fit, a random part is left out."""


@dataclasses.dataclass(frozen=True)
class FrozenFeatures:
    """Features `(images, width)` by a model that has not learned the images, in the random order of `rows`."""

    rows: np.ndarray
    features: np.ndarray
    seconds: float = 0.0
    _probes: dict[bytes, Probe | None] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        given: keras.Model,
        train: ImageFolder,
        held_out: ImageFolder,
        *,
        seconds: float | None,
        seed: int,
        progress: bool = False,
    ) -> FrozenFeatures:
        """Compute the features of the images, or of a part of them if a training of so many seconds is too short."""
        begun, model = time.monotonic(), resize(find_vit(given), train.image_size)
        everything = [(part, number) for part in (train, held_out) for number in range(len(part.paths))]
        order = np.random.default_rng(seed).permutation(len(everything))

        def batches():
            for batch in slices(len(order), train.batch_size):
                if batch.start and seconds is not None and time.monotonic() - begun > SHARE * seconds:
                    return
                chosen = (everything[n] for n in order[batch])
                yield np.concatenate([part.arrays([number])[0] for part, number in chosen])

        features = embed(model, batches(), progress=progress)
        rows = np.concatenate([train.rows, held_out.rows])[order]
        return cls(rows[: len(features)], features, time.monotonic() - begun)

    def linear_probe(self, rows: np.ndarray, data: Labeled) -> Probe | None:
        """Return the linear probe of some images, which is trained once; `None` where that would take minutes."""
        places = self.places(np.sort(rows))
        features, labels, key = self.features[places], data.labels[self.rows[places]], places.tobytes()
        if key not in self._probes:
            short = features.size * len(data.names) <= MOST_WORK
            self._probes[key] = linear_probe(features, labels, classes=len(data.names)) if short else None
        return self._probes[key]

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Return where in `features` those of some images are; images without features are left out."""
        place = np.full(1 + max(self.rows.max(initial=0), np.max(rows, initial=0)), -1)
        place[self.rows] = np.arange(len(self.rows))
        return place[rows][place[rows] >= 0]

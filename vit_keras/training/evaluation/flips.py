"""Whether images keep their label when they are mirrored: a test before a model is trained on mirror images."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import keras
import numpy as np

from ... import anatomy
from ..._internal.validate import numbers
from ...anatomy.parts import find_vit
from ...backbone import feature_maps
from ..embeddings import ridge_probe
from ..embeddings.batches import slices
from ..embeddings.probe import targets_of

__all__ = ["FlipTest", "flip_test"]

MOST_IMAGES = 512
_BATCH = 32
_DEPTH = 2 / 3  # share of the blocks before the features: the last blocks know less about left and right
_PARTS = 8  # parts of the images: each is judged by a classifier that has learned the others

_LARGEST_Z = 4.0
"""Standard deviations above which mirror images are different.

`FlipTest.z` was at most 3.4 in 63 draws of seven data sets that may be mirrored, and at least 5.2 in 45 draws of five
others. The drawn data sets of the benchmark came later, with three draws each: there it was at most -0.6 for polygons,
and at least 4.1 for arrows and letters (benchmarks/finetuning.md)."""


@dataclasses.dataclass(frozen=True)
class FlipTest:
    """How many mirror images fit their label less well than the image does. Made by `flip_test`."""

    images: int
    worse: int
    z: float

    @property
    def safe(self) -> bool:
        """Whether nothing speaks against mirror images: they fit their labels about as well."""
        return self.z <= _LARGEST_Z

    @property
    def text(self) -> str:
        """The result in a sentence."""
        found = f"{self.worse} of {self.images} mirror images fit their label less well than the image itself"
        verdict = "can be mirrored:" if self.safe else "should not be mirrored:"
        return f"Images {verdict} {found} (training.flip_test)."


def flip_test(
    model: keras.Model,
    images: Any,
    labels: Any,
    *,
    classes: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> FlipTest | None:
    """Test whether images can be mirrored left to right as augmentation.

    Mirroring helps a model to learn flowers, and prevents it from learning left and right hands, arrows, or letters.
    A ridge regression (`ridge_probe`) learns the labels of seven eighths of the images from the features of their left
    halves and right halves: the means of a feature map over each, after two thirds of the model's blocks. Then it
    predicts the other images and their mirror images. If the label does not depend on left and right, neither is closer
    to it more often or by more.

    The test takes two thirds of two forward passes of at most 512 images. It needs features of a pre-trained model, and
    finds nothing where they do not tell the labels apart.

    Args:
        model: A ViT, or a model that contains one.
        images: `(n, height, width, channels)`, as the model takes them. Of more than 512, a random part is used.
        labels: `(n,)` class numbers; or `(n, outputs)`: numbers, or 1 for each class of an image and 0 for the others.
        classes: The number of classes of class numbers; `None`: one more than the highest label.
        seconds: Time limit, after which fewer images are compared; `None` for no limit.
        seed: Which part, and how the images are divided.

    Returns:
        A `FlipTest`; `None` if the images are too few: without a part of them, all labels are the same.

    Raises:
        TypeError: The images are not numbers, or `model` is not a Keras model.
        ValueError: The labels do not fit the images, or the model has no feature map (see `feature_maps`).

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=2)
        >>> images, labels = np.full((64, 32, 32, 3), -1, "float32"), np.arange(64) % 2
        >>> images[labels == 0, :, :16] = images[labels == 1, :, 16:] = 1
        >>> flip_test(model, images, labels).safe  # the left or the right half is bright
        False
    """
    begun = time.monotonic()
    images = numbers(images, "images", axes=4)
    if not len(images):
        return None
    targets = targets_of(labels, len(images), classes)
    rng = np.random.default_rng(seed)
    block = math.ceil(_DEPTH * len(anatomy.blocks(find_vit(model)))) - 1
    chosen, maps, found = rng.permutation(len(images))[:MOST_IMAGES], feature_maps(model, block), []
    for part in slices(len(chosen), _BATCH):
        if part.start and seconds is not None and time.monotonic() - begun > seconds:
            break
        batch = images[chosen[part]]
        both = np.concatenate([batch, batch[:, :, ::-1]])
        found.append(_halves(np.asarray(maps.predict_on_batch(both), "float32")).reshape(2, len(batch), -1))
    features = np.concatenate(found, axis=1)
    errors = _errors(features, targets[chosen[: features.shape[1]]], rng)
    if errors is None:
        return None
    further = errors[1] - errors[0]
    further = further[further != 0]
    ranks = 1.0 + np.argsort(np.argsort(abs(further)))
    z = float((ranks * np.sign(further)).sum() / math.sqrt((ranks**2).sum() or 1))
    return FlipTest(len(further), int((further > 0).sum()), round(z, 2))


def _halves(maps: np.ndarray) -> np.ndarray:
    """Return the means of the left half and the right half of feature maps, side by side."""
    half = max(1, maps.shape[2] // 2)
    return np.concatenate([maps[:, :, :half].mean(axis=(1, 2)), maps[:, :, -half:].mean(axis=(1, 2))], axis=1)


def _errors(features: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Return the squared errors of images and mirror images, `(2, n)`, by classifiers that have not learned them."""
    errors, part = np.zeros(features.shape[:2]), rng.permutation(len(targets)) % _PARTS
    for number in np.unique(part):
        judged = part == number
        if len(np.unique(targets[~judged], axis=0)) < 2:
            return None
        probe = ridge_probe(features[0, ~judged], targets[~judged])
        for kind, error in zip(features, errors):
            error[judged] = ((probe.logits(kind[judged]) - targets[judged]) ** 2).sum(axis=1)
    return errors

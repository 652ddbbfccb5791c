"""Whether images keep their label when they are mirrored: a test before a model is trained on mirror images."""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import keras
import numpy as np

from ..._internal.validate import numbers
from ...backbone import feature_maps
from ..checks import as_array
from ..embeddings import ridge_probe
from ..embeddings.probe import targets_of

__all__ = ["FlipTest", "flip_test"]

MOST_IMAGES = 256
"""Largest number of images that are compared with their mirror images."""

_BATCH = 32
_HALVINGS = 4
"""How often the images are divided in two. Each image is judged by as many classifiers, which have not learned it."""

_LARGEST_Z = 4.0
"""Standard deviations of a fair coin above which mirror images are different.

On ten data sets with three draws each, images that may be mirrored had at most 2.0, and others at least 6.0
(docs/training.md)."""


@dataclasses.dataclass(frozen=True)
class FlipTest:
    """How many mirror images fit their label less well than the image does. Made by `flip_test`.

    Attributes:
        images: The compared images, without those that equal their mirror image.
        worse: How many of their mirror images are further from the label.

    Example:
        >>> FlipTest(images=256, worse=243).safe, FlipTest(images=256, worse=135).safe
        (False, True)
    """

    images: int
    worse: int

    @property
    def safe(self) -> bool:
        """Whether nothing speaks against mirror images: they fit their labels about as well (a sign test)."""
        return 2 * self.worse - self.images <= _LARGEST_Z * math.sqrt(self.images)

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
    A ridge regression (`ridge_probe`) learns the labels of half of the images from the features of their left halves
    and right halves, the means of the model's last feature map over each. Then it predicts the other images and their
    mirror images. If the label does not depend on left and right, neither is closer to it more often.

    The test takes two forward passes of at most 256 images. It needs features of a pre-trained model.

    Args:
        model: A ViT, or a model that contains one.
        images: `(n, height, width, channels)`, as the model takes them. Of more than 256, a random part is used.
        labels: `(n,)` class numbers; or `(n, outputs)`: numbers, or 1 for each class of an image and 0 for the others.
        classes: The number of classes of class numbers; `None`: one more than the highest label.
        seconds: Time limit, after which fewer images are compared; `None` for no limit.
        seed: Which part, and how the images are divided.

    Returns:
        A `FlipTest`; `None` if the images are too few: all labels are the same, or those of one half of the images.

    Raises:
        TypeError: The images are not numbers, or `model` is not a Keras model.
        ValueError: The labels do not fit the images, or the model has no feature map (see `feature_maps`).

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=2)
        >>> images, labels = np.full((64, 32, 32, 3), -1, "float32"), np.arange(64) % 2
        >>> images[labels == 0, :, :16] = images[labels == 1, :, 16:] = 1
        >>> flip_test(model, images, labels)  # the left or the right half is bright
        FlipTest(images=64, worse=64)
    """
    begun = time.monotonic()
    images = numbers(as_array(images), "images", axes=4)
    if not len(images):
        return None
    targets = targets_of(labels, len(images), classes)
    rng = np.random.default_rng(seed)
    chosen, maps, found = rng.permutation(len(images))[:MOST_IMAGES], feature_maps(model, -1), []
    for first in range(0, len(chosen), _BATCH):
        if first and seconds is not None and time.monotonic() - begun > seconds:
            break
        batch = images[chosen[first : first + _BATCH]]
        both = np.concatenate([batch, batch[:, :, ::-1]])
        found.append(_halves(np.asarray(maps.predict_on_batch(both), "float32")).reshape(2, len(batch), -1))
    features = np.concatenate(found, axis=1)
    errors = _errors(features, targets[chosen[: features.shape[1]]], rng)
    if errors is None:
        return None
    differ = errors[0] != errors[1]
    return FlipTest(int(differ.sum()), int((errors[1] > errors[0]).sum()))


def _halves(maps: np.ndarray) -> np.ndarray:
    """Return the means of the left half and the right half of feature maps, side by side."""
    half = max(1, maps.shape[2] // 2)
    return np.concatenate([maps[:, :, :half].mean(axis=(1, 2)), maps[:, :, -half:].mean(axis=(1, 2))], axis=1)


def _errors(features: np.ndarray, targets: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Return the squared errors of images and of mirror images, `(2, n)`, by classifiers that have not learned them.

    Args:
        features: `(2, n, features)`: of the images, and of their mirror images.
        targets: `(n, outputs)`.
        rng: How the images are divided.
    """
    errors = np.zeros(features.shape[:2])
    halves = [rng.permutation(len(targets)) < len(targets) / 2 for _ in range(_HALVINGS)]
    halves = [first for first in halves if all(len(np.unique(targets[h], axis=0)) > 1 for h in (first, ~first))]
    if not halves:
        return None
    for first in halves:
        for learned, judged in ((first, ~first), (~first, first)):
            probe = ridge_probe(features[0, learned], targets[learned])
            for kind, error in zip(features, errors):
                error[judged] += ((probe.logits(kind[judged]) - targets[judged]) ** 2).sum(axis=1)
    return errors

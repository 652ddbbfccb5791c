"""Augmentation as data: of each image by Pillow, which two cores have time for, and of batches by Keras' own layers.

A seed determines everything: no generator is shared between threads, and no global one is used.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from ..._internal.validate import check_fields, check_switches, is_number, python_numbers

if TYPE_CHECKING:
    import keras

__all__ = ["Augmentation"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Augmentation of training images, applied in this order to pixels in [0, 255].

    The default, a mild crop and a flip, takes about a millisecond an image.

    Args:
        crop: Smallest fraction of an image's area that a random crop may have; the largest is 1. The crop is resized
            to the target size. Its width / height is from 3/4 to 4/3. `None`: no crop.
        flip: Whether images are mirrored left to right with a probability of one half. Not for text or digits.
        three_augment: DeiT-III's 3-Augment: each image becomes gray, solarized or blurred (arXiv 2204.07118).
        color_jitter: Brightness, contrast and saturation change by up to this factor (`RandomColorJitter` of
            Keras).
        rand_augment: `(layers, magnitude)` of RandAugment, the magnitude from 0 to 10 (`RandAugment` of Keras,
            which is slow: it chooses one operation for a batch, not for each image, and computes all of them).
        random_erasing: Probability that a random rectangle of an image becomes noise (`RandomErasing` of Keras).
        mixup: Images are blended in pairs, and their labels too, with weights from Beta(mixup, mixup) (arXiv
            1710.09412).
        cutmix: Rectangles of another image are pasted, with areas from Beta(cutmix, cutmix) (arXiv 1905.04899). With
            both mixup and cutmix, each batch gets one of them, at random.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> Augmentation(mixup=0.8, cutmix=1.0).mixes
        True
    """

    crop: float | None = 0.5
    flip: bool = True
    three_augment: bool = False
    color_jitter: float | None = None
    rand_augment: tuple[int, float] | None = None
    random_erasing: float | None = None
    mixup: float | None = None
    cutmix: float | None = None

    def __post_init__(self) -> None:
        for name, value in python_numbers(vars(self)).items():
            object.__setattr__(self, name, value)
        check_switches(self)
        for name, largest in (("crop", 1), ("color_jitter", 1), ("random_erasing", 1), ("mixup", 1e6), ("cutmix", 1e6)):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < value <= largest):
                raise ValueError(f"{name} must be None or a number above 0, at most {largest:g}. Received: {value!r}")
        if self.rand_augment is not None:
            pair: list[Any] = [*self.rand_augment] if isinstance(self.rand_augment, Sequence) else []
            numbers = len(pair) == 2 and all(map(is_number, pair))
            if not (numbers and pair[0] >= 1 and pair[0] % 1 == 0 and 0 <= pair[1] <= 10):
                raise ValueError(
                    "rand_augment must be (layers, magnitude from 0 to 10), such as (2, 9). "
                    f"Received: {self.rand_augment!r}"
                )
            object.__setattr__(self, "rand_augment", (int(pair[0]), float(pair[1])))

    @property
    def mixes(self) -> bool:
        """Whether labels are mixed, and so must have one number for each class."""
        return bool(self.mixup or self.cutmix)

    def augment_image(self, pixels: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        """Apply what is done to each image alone, of any size, to uint8 pixels; return uint8 `(*size, channels)`."""
        height, width, channels = pixels.shape
        image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
        wanted = size[1], size[0]  # Pillow has the width first
        window = None if self.crop is None else self._window(self.crop, height, width, rng)
        if window or image.size != wanted:
            image = image.resize(wanted, Image.Resampling.BILINEAR, box=window)
        if self.flip and rng.random() < 0.5:
            image = ImageOps.mirror(image)
        if self.three_augment:
            image = _three_augment(image, rng)
        return np.asarray(image).reshape(*size, channels)

    @staticmethod
    def _window(
        smallest: float, height: int, width: int, rng: np.random.Generator
    ) -> tuple[float, float, float, float]:
        """Return (left, top, right, bottom) of a random crop; after ten failed draws, of the largest centered one."""
        narrow, wide = 3 / 4, 4 / 3
        for _ in range(10):
            area = rng.uniform(smallest, 1) * height * width
            aspect = math.exp(rng.uniform(math.log(narrow), math.log(wide)))
            w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
            if w <= width and h <= height:
                left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
                return left, top, left + w, top + h
        w, h = min(width, height * wide), min(height, width / narrow)
        left, top = (width - w) / 2, (height - h) / 2
        return left, top, left + w, top + h

    def augment_batch(self, images: np.ndarray, labels: Any, rng: np.random.Generator) -> tuple[np.ndarray, Any]:
        """Apply what is done to whole batches of pixels in [0, 255], and return them in float32, with their labels."""
        import keras  # here: processes that only read images do without it

        channels = images.shape[-1]
        images = np.repeat(images, 3 if channels == 1 else 1, axis=-1).astype("float32")  # Keras' layers take RGB
        with keras.device("cpu"):
            for layer in self._layers(rng):
                images = np.clip(keras.ops.convert_to_numpy(layer(images, training=True)), 0.0, 255.0)
        images = images[..., :channels]
        return self._mix(images, labels, rng) if self.mixes else (images, labels)

    def _layers(self, rng: np.random.Generator) -> list[keras.layers.Layer]:
        import keras

        wanted: dict[str, dict[str, Any]] = {}
        if self.color_jitter:
            factors = ("brightness_factor", "contrast_factor", "saturation_factor")
            wanted["RandomColorJitter"] = dict.fromkeys(factors, self.color_jitter)
        if self.rand_augment:
            wanted["RandAugment"] = {"num_ops": self.rand_augment[0], "factor": self.rand_augment[1] / 10}
        if self.random_erasing:
            wanted["RandomErasing"] = {"factor": (self.random_erasing,) * 2}
        usual: dict[str, Any] = {"value_range": (0, 255), "dtype": "float32", "data_format": "channels_last"}
        seeds = rng.integers(2**31, size=len(wanted)).tolist()
        return [getattr(keras.layers, name)(seed=n, **usual, **own) for (name, own), n in zip(wanted.items(), seeds)]

    def _mix(self, images: np.ndarray, labels: Any, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Apply mixup or cutmix. On PyTorch, Keras' own layers use the global generator, as other threads do."""
        labels = np.asarray(labels, "float32")
        if labels.ndim != 2 or len(labels) != len(images):
            raise ValueError(
                f"mixup and cutmix need labels of shape (n, classes), as from keras.utils.to_categorical, for "
                f"{len(images)} images. Received: {labels.shape}"
            )
        kinds = [(alpha, cut) for alpha, cut in ((self.cutmix, True), (self.mixup, False)) if alpha is not None]
        alpha, cut = kinds[0] if len(kinds) == 1 or rng.random() < 0.5 else kinds[1]
        kept = rng.beta(alpha, alpha, len(images))
        partner = rng.permutation(len(images))
        if cut:
            other = _rectangles(1 - kept, images.shape[1:3], rng)
            kept = 1 - other.mean((1, 2))
            images = np.where(other[..., None], images[partner], images)
        else:
            weight = kept.astype("float32")[:, None, None, None]
            images = weight * images + (1 - weight) * images[partner]
        weight = kept.astype("float32")[:, None]
        return images, weight * labels + (1 - weight) * labels[partner]

    def replace(self, **changes: Any) -> Augmentation:
        """Return a copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or a value is out of range.

        Example:
            >>> Augmentation().replace(flip=False).flip
            False
        """
        check_fields(Augmentation, changes)
        return dataclasses.replace(self, **changes)


def _three_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Apply one of DeiT-III's three, with its values."""
    choice = rng.integers(3)
    if choice == 0:
        return ImageOps.grayscale(image).convert(image.mode)
    if choice == 1:
        return ImageOps.solarize(image, 128)
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))


def _rectangles(areas: np.ndarray, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return booleans `(n, *size)`: rectangles of these fractions of the area, clipped at the edges (CutMix)."""
    inside = []
    for length in size:
        half = np.sqrt(areas) * length / 2
        center = rng.uniform(0, length, len(areas))
        pixels = np.arange(length) + 0.5
        inside.append((pixels >= (center - half)[:, None]) & (pixels < (center + half)[:, None]))
    return inside[0][:, :, None] & inside[1][:, None, :]

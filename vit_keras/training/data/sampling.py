"""One image as a model takes it: what any library that streams data calls, in any process, without a backend."""

from __future__ import annotations

import dataclasses
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from ...preprocess import Preprocessing
from .augment import Augmentation
from .decoding import Decoder

if TYPE_CHECKING:
    import keras

__all__ = ["Sample", "sample"]

_OF_A_BATCH = ("color_jitter", "rand_augment", "random_erasing", "mixup", "cutmix")


@dataclasses.dataclass(frozen=True)
class Sample:
    """A function from an image to an input of a model. Made by `sample`; can be pickled, and imports no backend."""

    preprocessing: Preprocessing
    augmentation: Augmentation | None = None

    def __call__(self, image: Any, rng: np.random.Generator | int | None = None) -> np.ndarray:
        """Read an image, augment it, and turn it into the model's input."""
        if self.augmentation is None:
            return self.preprocessing(image)[0]
        if rng is None:
            raise ValueError("An augmentation needs rng: a numpy.random.Generator or a seed. Received: None")
        decoder = Decoder(self.preprocessing, roomy=self.augmentation.crop is not None)
        source = io.BytesIO(image) if isinstance(image, bytes) else image
        pixels = self.augmentation.augment_image(decoder(source), decoder.size, np.random.default_rng(rng))
        return self.preprocessing.normalize(pixels)


def sample(
    model: keras.Model | None = None,
    augmentation: Augmentation | None = None,
    *,
    preprocessing: Preprocessing | None = None,
    image_size: int | tuple[int, int] | str | None = "native",
) -> Sample:
    """Return a function from the bytes of an image to an input of a model, for the `map` of any data library.

    Args:
        model: The model to train, which determines preprocessing and size.
        augmentation: Augmentation of each image, such as `recipe.augmentation`, without what needs whole batches.
        preprocessing: How an image becomes an input. `None`: the model's own; without a model Google's.
        image_size: `(height, width)` or one integer. `"native"` or `None`: the model's.

    Returns:
        A `Sample`: (bytes or path, rng) → float32 `(height, width, channels)`.

    Raises:
        ValueError: There is no size, or the augmentation needs whole batches.

    Example:
        >>> prepared = sample(augmentation=Augmentation(), image_size=32)
        >>> prepared("flowers/rose/0.png", np.random.default_rng(0)).shape
        (32, 32, 3)
    """
    whole = [name for name in _OF_A_BATCH if getattr(augmentation, name, None)]
    if whole:
        raise ValueError(
            f"{', '.join(whole)}: these need whole batches. Pass augmentation.replace({whole[0]}=None) here, and apply "
            "Keras' own layers (RandomErasing, MixUp, CutMix …) to the batches."
        )
    from .dataset import preprocessing_for

    return Sample(preprocessing_for(model, preprocessing, image_size), augmentation)

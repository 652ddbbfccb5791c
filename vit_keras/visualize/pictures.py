"""Convert images to the input of a model, and to images to draw on.

Maps cover the whole image: it is stretched to the model's size, never cropped. Which pixels the model takes is
`anatomy`'s answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from .._internal.bounds import whole_patches
from .._internal.validate import as_array
from ..anatomy.inputs import front, image_shape, preprocessing_of
from ..anatomy.parts import find_vit
from ..preprocess.images import read, resize_image
from ..preprocess.pixels import gray, to_pixels
from .overlays import in_size

MAX_DRAWN = 2048
"""Longest side in pixels of an image that is kept to draw on; a larger one is reduced."""


def pictures_of(images: Any, channels: int) -> Iterator[np.ndarray]:
    """Yield each image as a new array `(height, width, channels)` in [0, 255], uint8 or floats."""
    # A gray image becomes RGB, or an RGB image gray, if the model's channels require it.
    if is_list_of_pictures(images):
        if not images:
            raise ValueError("There are no images.")
        for image in images:
            yield from pictures_of(image, channels)
        return
    image = images if isinstance(images, np.ndarray) else read_picture(images)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim not in (3, 4) or 0 in image.shape:
        raise ValueError(
            f"An image has the shape (height, width[, channels]), a batch one more axis. Received: {image.shape}"
        )
    pixels = image.copy() if image.dtype == np.uint8 else to_pixels(image)  # floats of a photograph take 400 MB
    if image.shape[-1] == 1 and channels == 3:
        pixels = np.repeat(pixels, 3, axis=-1)
    elif image.shape[-1] == 3 and channels == 1:
        pixels = gray(pixels)
    elif image.shape[-1] != channels:
        raise ValueError(f"The model takes images of {channels} channels. Received: {image.shape[-1]} channels")
    yield from pixels if image.ndim == 4 else [pixels]


def is_list_of_pictures(images: Any) -> bool:
    """Return whether this is a list of images, and not one image as a list of its rows."""
    return isinstance(images, (list, tuple)) and not (images and isinstance(images[0], (list, tuple, int, float)))


def is_one_picture(images: Any) -> bool:
    """Return whether this is one image, and not a list or a batch of them."""
    return not is_list_of_pictures(images) and len(getattr(images, "shape", ())) < 4


def read_picture(image: Any) -> np.ndarray:
    """Read one image, or a batch as a tensor, as an array."""
    if hasattr(image, "__array__") and not hasattr(image, "convert"):  # a tensor
        return as_array(image)
    return read(image, None)


def displayable(pixels: np.ndarray) -> np.ndarray:
    """Return pixels in [0, 255] of any number of channels as a uint8 image in RGB."""
    if pixels.shape[-1] != 3:
        pixels = np.repeat(pixels.mean(axis=-1, keepdims=True), 3, axis=-1)
    if pixels.dtype == np.uint8:
        return pixels
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")


class ModelInputs:
    """Preprocessing from images in [0, 255] to the input of a model."""

    def __init__(self, model: keras.Model, preprocess: Callable[..., Any] | str | None = "own"):
        if isinstance(preprocess, str) and preprocess != "own":
            raise ValueError(f"preprocess must be 'own', None or a function of pixels. Received: {preprocess!r}")
        self.model = model
        _, height, width, _ = image_shape(model)
        _check_input(model)
        self._size: tuple[int | None, int | None] = height, width
        own = preprocessing_of(model)
        self.channels: int = own.channels
        self._interpolation = own.interpolation
        self._normalize = own.normalize if preprocess == "own" else preprocess

    def size_of(self, pictures: Sequence[np.ndarray]) -> tuple[int, int]:
        """Return the size that images get for the model: its own, or that of the first image in whole patches."""
        height, width = self._size
        sizes = ((height or p.shape[0], width or p.shape[1]) for p in pictures)
        first, *others = dict.fromkeys(map(self._whole, sizes))
        if others and len({self.seen_size(size) for size in (first, *others)}) > 1:
            raise ValueError(
                f"The model {self.model.name!r} takes images of any size, but those of one call must have one size. "
                f"Received: {first[0]} x {first[1]} and {others[0][0]} x {others[0][1]} pixels. Pass one image at a "
                "time, or resize them."
            )
        return first

    def _whole(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the nearest size that a model of any size does not refuse."""
        config = getattr(find_vit(self.model), "config", None)
        if config is None or config.image_size or config.drop_remainder or self.seen_size(size) != size:
            return size
        return whole_patches(size, config.stride)

    def seen_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size in which the ViT inside sees images of a size; a layer before it may resize them."""
        before = front(self.model)
        shapes = [find_vit(self.model).input_shape, *([] if before is None else [before.output.shape])]
        fixed = [shape[1:3] for shape in shapes if None not in shape[1:3]]
        return tuple(fixed[0]) if fixed else size

    def resized(self, pictures: Sequence[np.ndarray]) -> np.ndarray:
        """Return floats `(batch, height, width, channels)` in [0, 255], stretched to the model's size."""
        size = self.size_of(pictures)
        return np.stack([resize_image(picture, size, self._interpolation, rounded=False) for picture in pictures])

    def __call__(self, images: Any) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the model's inputs, float32 `(batch, height, width, channels)`, and uint8 RGB images to draw on."""
        # Images are read one after the other, and only what is returned is kept.
        rows, drawn = [], []
        for picture in pictures_of(images, self.channels):
            size = self.size_of([*rows[-1:], picture])
            rows.append(resize_image(picture, size, self._interpolation, rounded=False))
            drawn.append(in_size(displayable(picture), min(MAX_DRAWN, max(picture.shape[:2]))))
        return self._normalized(np.stack(rows)), drawn

    def prepared(self, pictures: Sequence[np.ndarray]) -> np.ndarray:
        """Return float32 `(batch, height, width, channels)` as the model takes pixels in [0, 255]."""
        return self._normalized(self.resized(pictures))

    def _normalized(self, inputs: np.ndarray) -> np.ndarray:
        return (inputs if self._normalize is None else np.asarray(self._normalize(inputs))).astype("float32")


def _check_input(model: keras.Model) -> None:
    """Raise `ValueError` unless a model takes one batch of images, with the channels last, and nothing else."""
    vit, shapes = find_vit(model), [tuple(x.shape) for x in getattr(model, "inputs", None) or ()]
    channels = image_shape(vit)[3]
    last = len(shapes) == 1 and len(shapes[0]) == 4 and (shapes[0][1] != channels or shapes[0][3] == channels)
    if not shapes or last:
        return
    alone = "one that does" if vit is model else "the Vision Transformer in it: vit_keras.anatomy.find_vit(model)"
    raise ValueError(
        "Maps and recordings need a model whose only input is (batch, height, width, channels). "
        f"{model.name!r} takes {' and '.join(map(str, shapes))}. Pass {alone}."
    )

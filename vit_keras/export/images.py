"""Images to compare a model and its file with."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .._internal.bounds import whole_patches
from .._internal.validate import expanded, received
from ..anatomy.inputs import batch_preprocessing_of, preprocessing_of
from ..anatomy.parts import find_vit
from ..preprocess import Preprocessing
from ..preprocess.images import decode, orientation, read
from ..training.data.folder import images_in
from .plan import Plan

__all__ = ["check_images", "image_files", "model_inputs", "resized_images", "unresized"]


def check_images(plan: Plan, images: Any) -> list[Any]:
    """Return the images that the argument `check` or `calibration` selects: `True` selects drawn ones."""
    # Images of other than 1 or 3 channels are uint8 arrays.
    if images is True:
        return drawn(plan)
    if isinstance(images, (str, os.PathLike)):
        path = expanded(images)
        images = images_in(path) if path.is_dir() else [path]
    elif _is_one(images):
        images = [images]
    elif not isinstance(images, Iterable):
        raise TypeError(f"Images are paths, arrays or a folder. Received: {received(images)}")
    found, channels = list(images), plan.image_shape[3]
    if not found:
        raise ValueError("There are no images. Pass paths, arrays or a folder, or check=True for drawn images.")
    for each in found if channels != 3 else ():
        if getattr(each, "dtype", None) != "uint8" or np.shape(each)[2:] != (channels,):
            raise ValueError(
                f"The model {plan.model.name!r} takes images of {channels} channels. Pass uint8 arrays (height, width, "
                f"{channels}). Received: {received(each)}"
            )
    return found


def _is_one(images: Any) -> bool:
    given = isinstance(images, (Image.Image, bytes, bytearray)) or hasattr(images, "read")  # an open file
    return given or getattr(images, "ndim", 4) in (2, 3)


def drawn(plan: Plan) -> list[np.ndarray]:
    """Return images of the model's own size, and of others where files resize: waves, noise, and both."""
    channels = plan.image_shape[3]
    height, width = unresized(plan) or (224, 224)
    sizes = [*[(height, width)] * 4, (height + 37, width * 2 + 5), (max(height // 2, 8), width), (64, 256), (32, 32)]
    config = getattr(find_vit(plan.model), "config", None)
    if config is not None and not config.drop_remainder and unresized(plan) is None:
        sizes = [whole_patches(size, config.stride) for size in sizes]
    return [_draw(number, *size, channels) for number, size in enumerate(sizes)]


def unresized(plan: Plan) -> tuple[int, int] | None:
    """Return the `(height, width)` of images that neither file nor model resizes; `None` where that is any size."""
    return plan.image_size or batch_preprocessing_of(plan.model).image_size


def _draw(number: int, height: int, width: int, channels: int) -> np.ndarray:
    generator = np.random.default_rng(number)
    down, across = np.mgrid[0:height, 0:width].astype("float64")
    smooth = [127 + 90 * np.sin(a * down + b * across + number) for a, b in generator.uniform(0.01, 0.2, (channels, 2))]
    noise = generator.uniform(0, 256, (height, width, channels))
    return np.clip((number % 3 * noise + (2 - number % 3) * np.stack(smooth, axis=-1)) / 2, 0, 255).astype("uint8")


def model_inputs(plan: Plan, images: Sequence[Any], preprocessing: Preprocessing | None = None) -> list[np.ndarray]:
    """Return the model's input of each image, `(1, height, width, channels)`, made outside of any file."""
    preprocessing = preprocessing_of(plan.model) if preprocessing is None else preprocessing
    if plan.image_shape[3] == 3:
        return [preprocessing(image) for image in images]
    pixels = preprocessing.for_channels(1).replace(mean=0.0, std=1 / 255)  # each channel as a gray image
    split = [[pixels(channel) for channel in np.moveaxis(image, -1, 0)] for image in images]
    return [preprocessing.normalize(np.concatenate(channels, axis=-1)) for channels in split]


def resized_images(plan: Plan, images: Sequence[Any]) -> list[np.ndarray]:
    """Return each image in the size of the model, uint8: what a file that resizes nothing is given."""
    raw = preprocessing_of(plan.model).for_channels(plan.image_shape[3]).replace(mean=0.0, std=1 / 255)
    return [np.rint(inputs).astype("uint8") for inputs in model_inputs(plan, images, raw)]


def image_files(images: Sequence[Any]) -> list[tuple[bytes, np.ndarray]]:
    """Return images as encoded files, and the pixels in them."""
    # Files that TensorFlow reads as this package does are left as they are; all others become PNG and JPEG.
    encoded: list[bytes] = []
    for image in images:
        if isinstance(image, (str, os.PathLike)) and os.path.isfile(image) and _is_read_alike(image):
            encoded.append(Path(image).read_bytes())
            continue
        image = Image.fromarray(read(image, None))
        for kind in ("PNG", "JPEG"):
            with io.BytesIO() as file:
                image.save(file, kind)
                encoded.append(file.getvalue())
    return [(data, read(data, None)) for data in encoded]


def _is_read_alike(path: str | os.PathLike[str]) -> bool:
    """Return whether `decoding` reads a file as `vit_keras.utils.read` does."""
    with decode(path, path) as image:
        if image.format == "JPEG":
            return image.mode != "CMYK"
        upright = orientation(image) == 1
        plain = image.format == "PNG" or image.mode in ("L", "RGB")
        return upright and plain and image.format in ("PNG", "WEBP", "BMP")

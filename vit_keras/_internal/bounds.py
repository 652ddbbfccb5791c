"""Bounds on what a file may cost, whatever it claims. A file beyond one of them is refused before memory is allocated.

All are far beyond any published Vision Transformer, and none depends on the machine.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence

from .validate import size_pair

__all__ = [
    "LIMIT_ARRAYS",
    "LIMIT_CHANNELS",
    "LIMIT_GROUPS",
    "LIMIT_INPUT",
    "LIMIT_LAYERS",
    "LIMIT_MESSAGE",
    "LIMIT_PATCHES",
    "LIMIT_TEXT",
    "LIMIT_UNPACKED",
    "about",
    "check_input",
    "not_divisible",
    "patch_cells",
    "patch_stride",
    "shortened",
    "too_many",
    "too_much",
    "whole_patches",
]

LIMIT_ARRAYS = 5_000
"""Arrays in one file. The largest ViT has about a thousand, and three times as many with its optimizer."""
LIMIT_GROUPS = 4 * LIMIT_ARRAYS
"""Groups and arrays in one HDF5 file: Keras writes about two groups for each array."""
LIMIT_UNPACKED = 1 << 28
"""Bytes to which any file may unpack, however small it is."""
LIMIT_RATIO = 20
"""A larger file may unpack to this multiple of its size. Trained weights do not shrink to less than half."""
LIMIT_TEXT = 1 << 24
"""Bytes of JSON: the header of a safetensors file, an index, a configuration."""
LIMIT_INPUT = 1 << 24
"""Pixels of the input that a file may ask for: 4096 × 4096. Models built in Python may be larger."""
LIMIT_PATCHES = 1 << 16
"""Patches of that input: 256 × 256."""
LIMIT_CHANNELS = 4096
"""Channels of that input."""


LIMIT_LAYERS = 1_000
"""Layers in the configuration of a saved model, which Keras takes minutes to build if they are many."""
LIMIT_MESSAGE = 2_000
"""Characters of a message about a file, which quotes names and values from it."""


def shortened(message: str) -> str:
    """Return a message cut to `LIMIT_MESSAGE` characters."""
    return message if len(message) <= LIMIT_MESSAGE else f"{message[:LIMIT_MESSAGE]} …"


@contextlib.contextmanager
def about(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let every `ValueError` name a file, in at most `LIMIT_MESSAGE` characters."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        text = shortened(text if os.fspath(path) in text[:LIMIT_MESSAGE] else f"{path}: {text}")
        if text == str(error):
            raise
        raise ValueError(text) from error.__cause__


def too_many(arrays: int) -> str | None:
    """Return why a file with this number of arrays is not read, as a phrase that follows its name, or `None`."""
    if arrays <= LIMIT_ARRAYS:
        return None
    return f"has {arrays:,} arrays, and at most {LIMIT_ARRAYS:,} are read: no Vision Transformer has as many."


def too_much(unpacked: int, size: int) -> str | None:
    """Return why a file that unpacks to this number of bytes is not read, as a phrase after its name, or `None`."""
    most = max(LIMIT_UNPACKED, LIMIT_RATIO * size)
    if unpacked <= most:
        return None
    return f"has {size:,} bytes and claims to hold {unpacked:,}: at most {most:,} would be unpacked."


def check_input(size: Sequence[int], stride: Sequence[int] = (1, 1), crop: float = 1) -> None:
    """Raise a ValueError if a file asks for more than `LIMIT_INPUT` pixels or `LIMIT_PATCHES` patches."""
    # `crop` is the part of a side that is kept when an image is cut.
    if math.prod(size) > LIMIT_INPUT * crop * crop:
        before = f", cut from 1/{crop} of that" if crop < 1 else ""
        raise ValueError(
            f"A file may ask for an input of at most {LIMIT_INPUT:,} pixels (4096×4096). "
            f"Received: image_size={tuple(size)}{before}"
        )
    patches = math.prod(n // s for n, s in zip(size, stride))
    if tuple(stride) != (1, 1) and patches > LIMIT_PATCHES:
        raise ValueError(
            f"A file may ask for an input of at most {LIMIT_PATCHES:,} patches. Received: {size[0]}×{size[1]} pixels, "
            f"{patches:,} patches"
        )


def patch_stride(patch_size: tuple[int, int], resnet: tuple[int, ...] | None = None) -> tuple[int, int]:
    """Pixels of the image between two patches; in a hybrid the ResNet has halved it a few times before."""
    root, patch_size = _halvings(resnet), size_pair(patch_size, "patch_size")
    return patch_size[0] * root, patch_size[1] * root


def patch_cells(image_size: tuple[int, int], resnet: tuple[int, ...] | None = None) -> tuple[int, int]:
    """Return the size of the patch embedding's input: pixels, or in a hybrid cells of the ResNet's output."""
    # The ResNet pads an image, a patch embedding does not.
    root = _halvings(resnet)
    return -(-image_size[0] // root), -(-image_size[1] // root)


def _halvings(resnet: tuple[int, ...] | None) -> int:
    return 1 if resnet is None else 4 * 2 ** max(0, len(resnet) - 1)


def not_divisible(image_size: tuple[int, int], stride: tuple[int, int]) -> str:
    """Return what is wrong with an image size that is not a whole number of patches, and which ones are near."""
    nearest = []
    for axis, size, patch in zip(("height", "width"), image_size, stride):
        below, above = max(1, size // patch) * patch, -(-size // patch) * patch
        if size % patch:
            nearest.append(f"{axis} {' or '.join(map(str, sorted({below, above}, key=lambda n, s=size: abs(n - s))))}")
    return (
        f"image_size={image_size} is not a whole number of patches of {stride} pixels; nearest: {', '.join(nearest)}. "
        "A model that is built with drop_remainder=True ignores the rest, as the reference implementation does."
    )


def whole_patches(image_size: tuple[int, int], stride: tuple[int, int]) -> tuple[int, int]:
    """Return the nearest size that is a whole number of patches."""
    height, width = (max(1, round(size / patch)) * patch for size, patch in zip(image_size, stride))
    return height, width

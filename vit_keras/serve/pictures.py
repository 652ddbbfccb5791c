"""Decode images for the model, and compute attention maps."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image
from starlette.exceptions import HTTPException

from .._internal.warn import ignore_in_process
from ..preprocess import Preprocessing
from ..preprocess.images import MAX_ENLARGED, MAX_PIXELS, ManyScans, read, resize_in_steps
from ..visualize.maps import attention_rollout
from ..visualize.recording import Recording

__all__ = ["attention_maps", "read_picture", "resized"]

MAX_SIDE = 1 << 17
"""Pixels of the longest side that is decoded: Pillow takes six times as much memory for rows of one pixel."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
"""What is decoded. Pillow knows more formats, and would start another program for some."""


def read_picture(data: bytes, max_pixels: int) -> np.ndarray:
    """Return an image as upright RGB. Its size is checked before it is decoded.

    Args:
        data: The content of a file.
        max_pixels: Larger ones are refused, and those that `vit_keras.utils.read` does not decode.

    Returns:
        uint8 `(height, width, 3)`.

    Raises:
        HTTPException: It is not an image (status 415), damaged (422) or too large (413).

    Example:
        >>> file = io.BytesIO()
        >>> Image.new("L", (6, 4)).save(file, "PNG")
        >>> read_picture(file.getvalue(), max_pixels=24).shape
        (4, 6, 3)
    """
    max_pixels = min(max_pixels, MAX_PIXELS, 2 * (Image.MAX_IMAGE_PIXELS or MAX_PIXELS))  # above, Pillow refuses
    ignore_in_process(Warning, r"PIL\.")  # which clients cause, and which quote their files
    Image.init()
    known = [name for name in FORMATS if name in Image.OPEN]
    try:
        image = Image.open(io.BytesIO(data), formats=known)
    except Image.DecompressionBombError:
        message = f"The image has more pixels than are taken, {max_pixels:,}. Send a smaller image."
        raise HTTPException(413, message) from None
    except Exception:  # Pillow's decoders raise errors of any kind
        message = f"{len(data):,} bytes were received that are not an image. Send one in {', '.join(known)}."
        raise HTTPException(415, message) from None
    with image:
        if image.width * image.height > max_pixels:
            message = f"The image has {image.width}×{image.height} pixels, and at most {max_pixels:,} are taken."
            raise HTTPException(413, f"{message} Send a smaller one.")
        if max(image.size) > MAX_SIDE:
            message = f"The image has {image.width}×{image.height} pixels, and a side at most {MAX_SIDE:,}."
            raise HTTPException(413, f"{message} Send another one.")
        try:
            return read(image, None)
        except ManyScans as error:
            raise HTTPException(422, str(error)) from None
        except ValueError:
            message = f"The image ({image.format}, {image.width}×{image.height}) cannot be decoded. Send a whole one."
            raise HTTPException(422, message) from None


def resized(picture: np.ndarray, preprocessing: Preprocessing | None, max_pixels: int = MAX_ENLARGED) -> np.ndarray:
    """Resize an image as the exported file would, so that it has nothing left to resize and no large image is in it.

    Args:
        picture: uint8 `(height, width, 3)`.
        preprocessing: The model's; `None` to leave the image as it is.
        max_pixels: An image that would be enlarged to more is refused.

    Returns:
        uint8 `(height, width, 3)`, not cropped.

    Raises:
        HTTPException: It would be enlarged to more pixels (status 413).

    Example:
        >>> resized(np.zeros((480, 640, 3), "uint8"), Preprocessing(image_size=224, crop=0.875)).shape
        (256, 341, 3)
    """
    if preprocessing is None or preprocessing.image_size is None:
        return picture
    (height, width), (size, _) = picture.shape[:2], preprocessing.geometry(picture.shape[:2], preprocessing.image_size)
    max_pixels = min(max_pixels, MAX_ENLARGED)
    if size[0] * size[1] > max(max_pixels, height * width):
        message = f"The image of {width}×{height} pixels would be enlarged to {size[1]}×{size[0]} for the model, and"
        raise HTTPException(413, f"{message} at most {max_pixels:,} pixels are taken. Crop it.")
    try:
        return resize_in_steps(picture, size, preprocessing.interpolation)
    except ValueError as error:  # on its way, it would have more pixels than are made for any caller
        raise HTTPException(413, str(error)) from None


def attention_maps(
    scores: Sequence[np.ndarray],
    picture: tuple[int, int],
    preprocessing: Preprocessing | None,
    patches: Mapping[str, Any] | None = None,
) -> Mapping[str, Any] | None:
    """Return attention maps of an image: those of the tokens that the model's output is read from.

    Args:
        scores: The attention `(1, heads, tokens, tokens)` of each block.
        picture: Its `(height, width)`.
        preprocessing: The model's; `None` if the whole image reaches the model.
        patches: What the file says of its tokens (`export.Plan.patches`). `None`, as in files of earlier versions:
            inferred from the shape of the image; the output is read from the first token, or from all if all are
            patches.

    Returns:
        `grid`, the patches down and across; `box`, what they cover: top, left, height and width as shares of the
        image; `rollout`, the map of all blocks, and `layers`, one of each head of each block: numbers of the patches
        in rows. `None` if tokens and patches cannot be told apart.

    Example:
        >>> found = attention_maps([np.full((1, 2, 5, 5), 0.2)], (40, 40), None)
        >>> found["grid"], found["box"], found["rollout"]
        ([2, 2], [0.0, 0.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.1])
    """
    size = picture if preprocessing is None or preprocessing.image_size is None else preprocessing.image_size
    tokens = scores[0].shape[-1]
    grid = _grid(tokens, size) if patches is None else _known_grid(tokens, patches["size"] or size, patches)
    if grid is None or any(each.shape[1:] != (each.shape[1], tokens, tokens) for each in scores):
        return None
    prefix = tokens - grid[0] * grid[1]
    start = np.zeros((1, tokens))
    readout = [[0, 1] if prefix else [0, None]] if patches is None else patches["readout"]
    for part in (slice(*ends) for ends in readout):
        start[:, part] += 1 / start[0, part].size / len(readout)
    rows = [np.einsum("q,hqk->hk", start[0], each[0])[:, prefix:] for each in scores]
    fused = np.stack([each.mean(axis=1) for each in scores])
    blocks, names = tuple(range(len(scores))), tuple(map(str, range(prefix)))
    recording = Recording((), grid, names, blocks, (1, 1), start, head_fusion="mean", attention=fused)
    top, left, *box = _box(picture, preprocessing, patches or {})
    if patches is not None:  # what is left below and to the right of whole patches is cut off
        sides = zip(box, grid, patches["stride"], patches["size"] or size)
        box = [share * min(1, count * step / side) for share, count, step, side in sides]
    return {
        "grid": list(grid),
        "box": [top, left, *box],
        "rollout": _rounded(attention_rollout(recording)[0]),
        "layers": [[_rounded(head) for head in layer] for layer in rows],
    }


def _grid(tokens: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return the patches down and across: as many of the tokens as can have the shape of the image."""
    for patches in range(tokens, max(0, tokens - 17), -1):
        down = round(math.sqrt(patches * size[0] / size[1]))
        if down and patches % down == 0 and abs(down * size[1] - patches // down * size[0]) * 50 <= down * size[1]:
            return down, patches // down
    return None


def _known_grid(tokens: int, size: Sequence[int], patches: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the patches down and across, of which the file says how far apart they are."""
    height, width = (side / stride for side, stride in zip(size, patches["stride"]))
    for rounded in (math.floor, math.ceil):  # up in a hybrid, whose ResNet pads
        down, across = rounded(height), rounded(width)
        if 0 < down * across == tokens - patches["prefix"]:
            return down, across
    return None


def _box(picture: tuple[int, int], preprocessing: Preprocessing | None, patches: Mapping[str, Any]) -> list[float]:
    if patches.get("size") and "crop" in patches:  # files of earlier versions do not tell how a model crops itself
        size, crop, mode = patches["size"], patches["crop"], patches["crop_mode"]
        preprocessing = Preprocessing(image_size=size, crop=crop, crop_mode=mode or "center")
        picture = patches["resized"] or picture
    if preprocessing is None or preprocessing.image_size is None:
        return [0.0, 0.0, 1.0, 1.0]
    (height, width), (top, left) = preprocessing.geometry(picture, preprocessing.image_size)
    down, across = preprocessing.image_size
    return [top / height, left / width, down / height, across / width]


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.3g}") for value in values.ravel().tolist()]

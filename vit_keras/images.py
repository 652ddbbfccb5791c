"""Reading images, and what range their pixels are in."""

from __future__ import annotations

import http.client
import io
import os
import urllib.error
import urllib.parse
import urllib.request
import warnings
from typing import IO, Any, Union

import numpy as np
from PIL import Image, ImageOps

from .config import size_pair
from .resampling import picture_filter, resize_bilinear

ImageInputType = Union[str, "os.PathLike[str]", bytes, IO[bytes], Image.Image, np.ndarray]

MAX_PIXELS = 178_956_970
MAX_DOWNLOAD = 100 << 20

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear_antialias": Image.Resampling.BILINEAR,
    "bicubic_antialias": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def read(
    filepath_or_buffer: ImageInputType,
    size: int | tuple[int, int] | None,
    timeout: float | None = 30.0,
    *,
    interpolation: str = "bilinear",
    max_pixels: int = MAX_PIXELS,
    max_bytes: int = MAX_DOWNLOAD,
) -> np.ndarray:
    """Read an image from anywhere as 8-bit RGB, turned upright, and squeeze it to a size.

    Whatever Pillow opens will do: a rotation in the EXIF data is carried out, transparency is laid on
    white, 16-bit and floating-point grey is brought to 8 bits, palettes, CMYK and grey become RGB.

    Args:
        filepath_or_buffer: A path, an `http(s)` URL, the bytes of a file, an open binary file, a PIL
            image, or an array `(height, width)` or `(height, width, 1, 3 or 4)` of pixels: integers
            of 8 or 16 bits, or floats in [0, 1], [-1, 1] or [0, 255].
        size: New size, `(height, width)` or one integer for a square; `None` keeps the image's own.
            The aspect ratio is not kept, as in the reference's evaluation.
        timeout: Seconds to wait for the server of a URL.
        interpolation: `"bilinear"` is the reference's (`tf.image.resize`: no antialiasing).
            `"bilinear_antialias"`, `"bicubic_antialias"` (or `"bicubic"`), `"lanczos"`, `"box"` and `"nearest"`
            are Pillow's; see `vit_keras.resampling`.
        max_pixels: Larger images are refused before they are decoded.
        max_bytes: Larger downloads are refused.

    Returns:
        uint8 array `(height, width, 3)`.

    Raises:
        FileNotFoundError: There is nothing at the path or URL.
        ConnectionError: The server of the URL could not be reached.
        ValueError: It is not an image, it is damaged, or it is too large.
        TypeError: It is none of the above.

    Example:
        >>> read(np.zeros((480, 640), "uint8"), size=(224, 224)).shape
        (224, 224, 3)
    """
    interpolation = picture_filter(interpolation)
    size = None if size is None else size_pair(size, "size")
    image = _upright_rgb(_open(filepath_or_buffer, timeout, max_bytes), filepath_or_buffer, max_pixels)
    return np.asarray(image).copy() if size is None else resize(np.asarray(image), size, interpolation)


def resize(image: np.ndarray, size: tuple[int, int], interpolation: str = "bilinear") -> np.ndarray:
    """Resize an image `(height, width, channels)` to `(height, width)`; see `read` for the ways.

    Of uint8 the result is rounded to uint8; floats, of which there may be any number of channels, are not rounded.

    Example:
        >>> resize(np.zeros((4, 6, 3), "uint8"), (2, 2)).shape
        (2, 2, 3)
    """
    interpolation = picture_filter(interpolation)
    if tuple(image.shape[:2]) == tuple(size):
        return image.copy()
    is_float = image.dtype.kind == "f"
    if interpolation == "bilinear":
        resized = resize_bilinear(image, size, align_corners=False)
        return resized if is_float else np.rint(resized).astype("uint8")
    parts = np.moveaxis(image.astype("float32"), -1, 0) if is_float else [image]
    resized = [np.asarray(Image.fromarray(part).resize(size[::-1], _FILTERS[interpolation])) for part in parts]
    return np.stack(resized, axis=-1) if is_float else resized[0]


def grey(image: np.ndarray) -> np.ndarray:
    """The luminance (ITU-R 601) of an RGB image `(..., 3)`, as `(..., 1)`.

    Example:
        >>> grey(np.full((2, 2, 3), 255.0))[0, 0]
        array([255.])
    """
    return np.asarray(image, "float64") @ np.array([[0.299], [0.587], [0.114]])


def _open(source: Any, timeout: float | None, max_bytes: int) -> Image.Image | np.ndarray:
    """A PIL image not yet decoded, or an array."""
    if isinstance(source, (Image.Image, np.ndarray)):
        return source
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        source = _request(source, timeout, max_bytes)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(io.BytesIO(source), "the bytes given")
    if isinstance(source, (str, os.PathLike)):
        path = os.path.expanduser(os.fspath(source))
        if not os.path.isfile(path):
            raise FileNotFoundError(f"Could not find image at path: {path}")
        return _decode(path, path)
    if hasattr(source, "read"):
        return _decode(io.BytesIO(source.read()), getattr(source, "name", source))
    raise TypeError(
        f"An image is a path, a URL, bytes, an open file, a PIL image or an array. Received: {type(source).__name__}"
    )


def _request(url: str, timeout: float | None, max_bytes: int) -> bytes:
    try:
        url = urllib.parse.quote(url, safe="%/:?#[]@!$&'()*+,;=~")
        request = urllib.request.Request(url, headers={"User-Agent": "vit_keras"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            data = response.read(max_bytes + 1)
    except urllib.error.HTTPError as error:
        kind = FileNotFoundError if error.code in (404, 410) else ConnectionError
        raise kind(f"Could not find image at {url}: the server answered {error.code} {error.reason}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(f"Could not reach {url}: {getattr(error, 'reason', None) or repr(error)}.") from None
    if len(data) > max_bytes:
        raise ValueError(f"{url} is larger than {max_bytes:,} bytes (max_bytes).")
    return data


def _decode(file: Any, what: Any) -> Image.Image:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            return Image.open(file)
    except Image.DecompressionBombError as error:
        raise ValueError(f"An error occurred reading {what}: {error}") from None
    except OSError as error:
        raise ValueError(f"An error occurred reading {what}: {error}. It is not an image that Pillow knows.") from None


def _upright_rgb(image: Image.Image | np.ndarray, what: Any, max_pixels: int) -> Image.Image:
    height, width = image.shape[:2] if isinstance(image, np.ndarray) and image.ndim > 1 else (1, 1)
    width, height = image.size if isinstance(image, Image.Image) else (width, height)
    if width * height > max_pixels:
        raise ValueError(f"The image has {width}×{height} pixels; at most {max_pixels:,} are read (max_pixels).")
    if isinstance(image, np.ndarray):
        return _array_to_rgb(image)
    try:
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I;16"):
            return _array_to_rgb(np.asarray(image).astype("uint16"))
        if image.mode in ("I", "F"):
            return _array_to_rgb(np.asarray(image))
        image = image.convert("LA") if image.mode == "La" else image  # Pillow knows no other way out of it
        if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa"):
            image = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
        return image.convert("RGB")
    except Exception as error:  # Pillow's decoders raise whatever comes to pass
        name = what if isinstance(what, (str, os.PathLike)) else type(what).__name__
        raise ValueError(f"An error occurred reading {name}: {error}. The file is damaged.") from None


def _array_to_rgb(array: np.ndarray) -> Image.Image:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise ValueError(
            f"An array of pixels has the shape (height, width) or (height, width, 1, 3 or 4). Received: {array.shape}"
        )
    array = to_uint8(array)
    if array.shape[2] == 1:
        array = np.repeat(array, 3, axis=2)
    if array.shape[2] == 3:
        return Image.fromarray(array)
    rgba = Image.fromarray(array)
    return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")


def to_pixels(image: np.ndarray) -> np.ndarray:
    """Bring an image to [0, 255], judging its range from the dtype and the values.

    Args:
        image: 8-bit or 16-bit unsigned integers; wider ones (8-bit values if none is over 255, else 16-bit);
            booleans; or floats in [-1, 1] (if any is negative), [0, 1] or [0, 255].

    Returns:
        float64 of the same shape.

    Raises:
        ValueError: Values are not finite.
        TypeError: The dtype is not a number's.

    Warns:
        UserWarning: Floats are not in [-1, 1], which is what the models take; they are read as what they look like.

    Example:
        >>> to_pixels(np.array([-1.0, 0.0, 1.0]))
        array([  0. , 127.5, 255. ])
    """
    image = np.asarray(image)
    if image.dtype == bool:
        return image * 255.0
    if not np.issubdtype(image.dtype, np.integer) and not np.issubdtype(image.dtype, np.floating):
        raise TypeError(f"Pixels are numbers. Received an array of dtype {image.dtype}.")
    pixels = image.astype("float64")
    if not np.isfinite(pixels).all():
        raise ValueError("The image has pixels that are not finite numbers.")
    if np.issubdtype(image.dtype, np.integer):
        return pixels / 257 if image.dtype == np.uint16 or pixels.max(initial=0) > 255 else pixels
    found = pixel_range(image)
    if found != "[-1, 1]":
        warnings.warn(
            f"A float image is meant to be in [-1, 1] (vit.preprocess_inputs); this one is read as {found}. "
            "An image in 8 bits leaves no doubt.",
            UserWarning,
            stacklevel=3,
        )
    scale, offset = {"[-1, 1]": (127.5, 127.5), "[0, 1]": (255.0, 0.0), "[0, 255]": (1.0, 0.0)}[found]
    return pixels * scale + offset


def to_uint8(image: np.ndarray) -> np.ndarray:
    """`to_pixels`, rounded to 8 bits.

    Example:
        >>> to_uint8(np.array([0, 65535], "uint16"))
        array([  0, 255], dtype=uint8)
    """
    image = np.asarray(image)
    return image if image.dtype == np.uint8 else np.clip(np.rint(to_pixels(image)), 0, 255).astype("uint8")


def pixel_range(images: np.ndarray) -> str:
    """Judge what range pixels are in: `"[-1, 1]"`, `"[0, 1]"` or `"[0, 255]"`.

    Example:
        >>> pixel_range(np.array([0.0, 0.7]))
        '[0, 1]'
    """
    images = np.asarray(images)
    low, high = (float(images.min()), float(images.max())) if images.size else (0.0, 0.0)
    if high > 2 or np.issubdtype(images.dtype, np.integer):  # resampling may overshoot 1 a little
        return "[0, 255]"
    return "[-1, 1]" if low < 0 else "[0, 1]"


def check_pixels(images: Any, expected: str = "[-1, 1]") -> bool:
    """Warn if images are not in the range that the models expect, the commonest reason why a ViT does not learn.

    Call it on a batch before `fit` or `predict`.

    Args:
        images: A batch of images as it goes into the model.
        expected: The range the model was trained with.

    Returns:
        Whether the range is the expected one.

    Warns:
        UserWarning: It is not; the message says what would be right.

    Example:
        >>> check_pixels(np.array([-1.0, 1.0], "float32"))
        True
    """
    array = np.asarray(images)
    found = pixel_range(array)
    if found != expected:
        warnings.warn(
            f"These pixels look like {found} (from {array.min():.3g} to {array.max():.3g}), where {expected} is "
            f"meant: use vit_keras.vit.preprocess_inputs on pixels in [0, 255].",
            UserWarning,
            stacklevel=2,
        )
    return found == expected

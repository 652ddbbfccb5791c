"""Reading images from anywhere, and resizing them."""

from __future__ import annotations

import contextlib
import http.client
import io
import math
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import IO, Any, TypeAlias, Union

import numpy as np
from PIL import ExifTags, Image

from .._internal.validate import instance, size_pair
from ..resampling import picture_filter, resize_bilinear
from .pixels import to_uint8

__all__ = ["MAX_PIXELS", "ImageInputType", "check_readable", "decode", "orientation", "read", "resize_image"]

ImageInputType: TypeAlias = Union[str, "os.PathLike[str]", bytes, IO[bytes], "Image.Image", np.ndarray]
"""What `read` reads."""

MAX_PIXELS = 178_956_970
"""Pixels of the largest image that is decoded. Pillow warns from half of them on (`PIL.Image.MAX_IMAGE_PIXELS`)."""
MAX_ENLARGED = 1 << 26
"""Pixels to which an image is enlarged for a model: a narrow image whose short side gets a model's size is long."""
MAX_SCANS = 100
"""Scans of a JPEG that is decoded: a few bytes make one, which costs a pass over all pixels. Ten are usual."""
MAX_DOWNLOAD = 100 << 20
"""Bytes of the largest image that is downloaded."""
_AT_ONCE = 1 << 20  # pixels that are converted at one time: a copy of a whole photograph in floats takes a gigabyte
_RESIZED_AT_ONCE = 1 << 14  # pixels of the result: small arrays are not given back to the system and asked for again

_MARKER = re.compile(rb"\xff[\x02-\xcf\xd8-\xfe]")  # of a JPEG; others have no length
_END, _SCAN, _START = b"\xff\xd9", b"\xff\xda", b"\xff\xd8"

_PILLOW = {
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
    """Read an image as upright 8-bit RGB, and resize it.

    All formats that Pillow opens are read. A rotation in the EXIF data is applied, transparency is placed on white,
    16-bit and floating-point gray is converted to 8 bits, and palettes, CMYK and gray become RGB.

    Args:
        filepath_or_buffer: A path, an `http(s)` URL, the bytes of a file, an open binary file, a PIL
            image, or an array `(height, width)` or `(height, width, 1, 3 or 4)` of pixels: integers
            of 8 or 16 bits, or floats in [0, 1], [-1, 1] or [0, 255].
        size: New size, `(height, width)` or one integer for a square; `None` keeps the size of the image.
            The aspect ratio is not kept, as in the evaluation of the reference.
        timeout: Seconds to wait for the server of a URL.
        interpolation: `"bilinear"` is the method of the reference (`tf.image.resize`, without antialiasing).
            `"bilinear_antialias"`, `"bicubic_antialias"` (or `"bicubic"`), `"lanczos"`, `"box"` and `"nearest"`
            are Pillow's methods; see `vit_keras.resampling`.
        max_pixels: Maximum number of pixels. Larger images are refused before they are decoded.
        max_bytes: Maximum size of a download in bytes.

    Returns:
        uint8 array `(height, width, 3)`.

    Raises:
        FileNotFoundError: There is nothing at the path or URL.
        ConnectionError: The server of the URL cannot be reached.
        ValueError: The file is not an image, is damaged or is too large, or an array has the wrong shape.
        TypeError: The argument is none of the above.

    Example:
        >>> read(np.zeros((480, 640), "uint8"), size=(224, 224)).shape
        (224, 224, 3)
    """
    interpolation = picture_filter(interpolation)
    size = None if size is None else size_pair(size, "size")
    with contextlib.ExitStack() as opened:
        image = _open(filepath_or_buffer, timeout, max_bytes, max_pixels)
        if isinstance(image, Image.Image) and image is not filepath_or_buffer:
            opened.enter_context(image)  # Pillow keeps the file of an animation open
        pixels = _upright_rgb(image, filepath_or_buffer, max_pixels)
    if size is not None:
        return resize_image(pixels, size, interpolation)
    given = isinstance(filepath_or_buffer, np.ndarray) and np.may_share_memory(pixels, filepath_or_buffer)
    return pixels.copy() if given else pixels


def resize_image(
    image: np.ndarray, size: int | tuple[int, int], interpolation: str = "bilinear", *, rounded: bool = True
) -> np.ndarray:
    """Resize an image.

    Args:
        image: `(height, width)` or `(height, width, channels)`, with any number of channels. uint8 is rounded to
            uint8, and so are other integers, which must be from 0 to 255. Floats are not rounded.
        size: `(height, width)`, or one integer for a square.
        interpolation: See `read`.
        rounded: Whether uint8 stays uint8. Otherwise, the result is the same as for the same pixels in floats.

    Returns:
        `(*size, channels)`, or `size` without channels.

    Raises:
        ValueError: The image does not have two or three axes, integers are not from 0 to 255, or the interpolation is
            unknown.
        TypeError: The dtype of the image is not supported.

    Example:
        >>> resize_image(np.zeros((4, 6, 3), "uint8"), (2, 2)).shape
        (2, 2, 3)
    """
    interpolation, size = picture_filter(interpolation), size_pair(size, "size")
    if instance(image, np.ndarray, "image").ndim not in (2, 3) or 0 in image.shape:
        raise ValueError(f"An image has the shape (height, width, channels). Received: {image.shape}")
    if image.dtype.kind not in "fiu":
        raise TypeError(f"An image is resized in uint8 or floats. Received: an array of dtype {image.dtype}")
    is_float = image.dtype.kind == "f" or not rounded
    if not is_float and image.dtype != np.uint8:
        if image.min() < 0 or image.max() > 255:
            raise ValueError(
                f"Integers are resized as 8-bit pixels, from 0 to 255. Received: {image.dtype} from {image.min()} to "
                f'{image.max()}. Pass image.astype("float32") for a result in floats.'
            )
        image = image.astype("uint8")
    if image.shape[:2] == size:
        return image.copy() if rounded or image.dtype.kind == "f" else image.astype("float64")
    if size[0] * size[1] > MAX_PIXELS:
        raise ValueError(f"An image is resized to at most {MAX_PIXELS:,} pixels. Received: {size[0]}×{size[1]}")
    if interpolation == "bilinear" and is_float:
        return resize_bilinear(image, size, align_corners=False)
    if interpolation == "bilinear":

        def part(rows):
            return np.rint(resize_bilinear(image, size, align_corners=False, rows=rows))

        return _by_rows((*size, *image.shape[2:]), part, _RESIZED_AT_ONCE)
    if not is_float and (image.ndim == 2 or image.shape[2] == 3):
        return np.asarray(Image.fromarray(image).resize((size[1], size[0]), _PILLOW[interpolation]))
    if image.ndim == 2:
        return resize_image(image[..., None], size, interpolation, rounded=rounded)[..., 0]
    channels = (image[..., n].astype("float32") if is_float else image[..., n] for n in range(image.shape[2]))
    resized = [Image.fromarray(channel).resize((size[1], size[0]), _PILLOW[interpolation]) for channel in channels]
    return np.stack([np.asarray(channel) for channel in resized], axis=-1)


def resize_in_steps(image: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    """Return a uint8 image `(height, width, 3)` resized across, then down, rounded to 8 bits after each."""
    # Otherwise the order is that of Pillow's version. An image so narrow and high that the first step would make it
    # many times larger is resized down first.
    (height, width), pixels = image.shape[:2], size[0] * size[1]
    if pixels > max(MAX_ENLARGED, height * width):
        raise ValueError(
            f"An image of {width}×{height} pixels would be enlarged to {size[1]}×{size[0]}; at most {MAX_ENLARGED:,} "
            "pixels are made. Crop it: its sides differ too much."
        )
    if interpolation != "bilinear":
        disproportionate = height * size[1] > max(1 << 24, 4 * height * width, 4 * pixels)
        step = (size[0], width) if disproportionate else (height, size[1])
        image = resize_image(image, step, interpolation)
    return resize_image(image, size, interpolation)


def check_readable(channels: int) -> None:
    """Raise a TypeError if images cannot be read with a number of channels: only with 1 or 3."""
    if channels not in (1, 3):
        raise TypeError(
            f"The model takes {channels} channels, and images are read with 1 or 3. Resize arrays of {channels} "
            "channels yourself and pass them to preprocessing.normalize."
        )


def _open(source: Any, timeout: float | None, max_bytes: int, max_pixels: int) -> Image.Image | np.ndarray:
    """Return a PIL image that is not decoded yet, or the array or image given."""
    if isinstance(source, (Image.Image, np.ndarray)):
        return source
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        source = _request(source, timeout, max_bytes)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return decode(io.BytesIO(source), "the bytes given", max_pixels)
    if isinstance(source, (str, os.PathLike)):
        path = os.path.expanduser(os.fspath(source))
        if os.path.isdir(path):
            raise FileNotFoundError(
                f"Could not find image at path: {path} is a folder. Pass the path of an image in it."
            )
        if not os.path.isfile(path):
            raise FileNotFoundError(f"Could not find image at path: {path}")
        return decode(path, path, max_pixels)
    if hasattr(source, "read"):
        name, data = getattr(source, "name", "the open file"), source.read()
        if isinstance(data, str):
            raise TypeError(f"{name} is open as text. Open an image in binary mode: open(path, 'rb').")
        return decode(io.BytesIO(data), name, max_pixels)
    raise TypeError(
        f"An image is a path, a URL, bytes, an open file, a PIL image or an array. Received: {type(source).__name__}"
    )


def _request(url: str, timeout: float | None, max_bytes: int) -> bytes:
    try:
        address = urllib.parse.quote(url, safe="%/:?#[]@!$&'()*+,;=~")
        request = urllib.request.Request(address, headers={"User-Agent": "vit_keras"})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            data = response.read(max_bytes + 1)
    except urllib.error.HTTPError as error:
        error.close()  # its connection
        kind = FileNotFoundError if error.code in (404, 410) else ConnectionError
        raise kind(f"Could not find image at {url}: the server answered {error.code} {error.reason}.") from None
    except (OSError, ValueError, http.client.HTTPException) as error:  # a ValueError: it is no address
        raise ConnectionError(f"Could not reach {url}: {getattr(error, 'reason', None) or repr(error)}.") from None
    if len(data) > max_bytes:
        raise ValueError(f"{url} is larger than {max_bytes:,} bytes. Pass a larger max_bytes=.")
    return data


def decode(file: Any, what: Any, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image with Pillow, without decoding its pixels, or raise a ValueError that names it."""
    # `max_pixels` is the number that the error names if Pillow's own limit is lower.
    try:
        return Image.open(file)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # a warning that is an error
        raise ValueError(f"Could not read {what}: {_of_pillows_limit(error, max_pixels)}") from None
    except (FileNotFoundError, PermissionError) as error:
        raise ValueError(f"Could not read {what}: {error}") from None
    except (OSError, ValueError, SyntaxError, OverflowError, RuntimeError) as error:
        reason = str(error).replace(f" {file!r}", "")  # an address in memory, where the file is bytes
        raise ValueError(f"Could not read {what}: {reason}. It is not an image that Pillow knows.") from None


def _of_pillows_limit(error: Exception, max_pixels: int) -> str:
    """Return what is wrong with an image that Pillow refused for its size."""
    pixels = int((re.findall(r"\d+", str(error)) or [0])[0])
    limit = Image.MAX_IMAGE_PIXELS or math.inf
    if max_pixels <= 2 * limit and not isinstance(error, Warning):  # Pillow's limit is at least ours
        return f"the image has {pixels:,} pixels; at most {max_pixels:,} are read."
    return f"the image has {pixels:,} pixels. Pillow refuses it: raise PIL.Image.MAX_IMAGE_PIXELS, or set it to None."


def _upright_rgb(image: Image.Image | np.ndarray, what: Any, max_pixels: int) -> np.ndarray:
    height, width = image.shape[:2] if isinstance(image, np.ndarray) and image.ndim > 1 else (1, 1)
    width, height = image.size if isinstance(image, Image.Image) else (width, height)
    if width * height > max_pixels:
        raise ValueError(
            f"{_called(what)} has {width}×{height} pixels; at most {max_pixels:,} are read. Pass a larger max_pixels=."
        )
    if isinstance(image, np.ndarray):
        return _array_to_rgb(image)
    if _scans(image) > MAX_SCANS:
        raise ValueError(f"{_called(what)} has more than {MAX_SCANS} scans, which no program writes. Save it again.")
    try:
        image.load()
        return _upright(_image_to_rgb(image), orientation(image))
    except Exception as error:  # Pillow's decoders raise errors of any kind
        name = what if isinstance(what, (str, os.PathLike)) else type(what).__name__
        raise ValueError(f"Could not read {name}: {error}. The file is damaged.") from None


def _called(what: Any) -> str:
    return str(what) if isinstance(what, (str, os.PathLike)) else "The image"


def _scans(image: Image.Image) -> int:
    """Return how many scans a JPEG has that is not decoded yet. Thumbnails, further images and videos do not count."""
    file = getattr(image, "fp", None)  # only of an image that was opened
    if file is None or image.format not in ("JPEG", "MPO") or not getattr(image, "tile", None):
        return 0
    place = file.tell()
    file.seek(0)
    data = file.read()
    file.seek(place)
    count = data.count(_SCAN)
    if count <= MAX_SCANS:  # without a look at what they are in
        return count
    count, found = 0, _MARKER.search(data)
    while found and found[0] != _END:
        count += found[0] == _SCAN
        length = 0 if found[0] == _START else int.from_bytes(data[found.end() : found.end() + 2], "big")
        found = _MARKER.search(data, found.end() + length)
    return count


def orientation(image: Image.Image) -> int:
    """Return the orientation in an image's EXIF data; 1, which is upright, if there is none or it is damaged."""
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # as Pillow's decoders; the pixels are sound
        return 1


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Turn an image as its EXIF orientation says."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _image_to_rgb(image: Image.Image) -> np.ndarray:
    """Convert an image of any mode, some rows at a time."""
    if image.mode.startswith("I;16"):
        return _array_to_rgb(np.asarray(image).astype("uint16"))
    if image.mode in ("I", "F"):
        return _array_to_rgb(np.asarray(image))
    on_white = "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "La", "RGBa")

    def part(rows):
        some = image.crop((0, rows.start, image.width, rows.stop))
        some = some.convert("LA") if some.mode == "La" else some  # the only conversion that Pillow has
        return _on_white(some) if on_white else some.convert("RGB")

    return _by_rows((image.height, image.width, 3), part)


def _by_rows(shape: tuple[int, ...], part: Callable[[slice], Any], at_once: int | None = None) -> np.ndarray:
    """Return a uint8 array that a function of rows makes, called with as many rows as are in memory at one time."""
    result = np.empty(shape, "uint8")
    step = max(1, (at_once or _AT_ONCE) // shape[1])
    for start in range(0, shape[0], step):
        rows = slice(start, min(start + step, shape[0]))
        result[rows] = part(rows)
    return result


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _array_to_rgb(array: np.ndarray) -> np.ndarray:
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise ValueError(
            "An array of pixels has the shape (height, width) or (height, width, 1, 3 or 4). "
            f"Received: {array.shape}{_likely_mistake(array.shape)}"
        )
    array = to_uint8(array)
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    if array.shape[2] == 3:
        return array
    return _by_rows((*array.shape[:2], 3), lambda rows: _on_white(Image.fromarray(array[rows])))


def _likely_mistake(shape: tuple[int, ...]) -> str:
    """Return a hint for a shape that no image has."""
    if len(shape) == 3 and shape[0] in (1, 3, 4):
        return ". The channels seem to be first: pass image.transpose(1, 2, 0)."
    if len(shape) == 3:
        return ". A stack of gray images has a last axis: pass images[..., None]."
    if len(shape) == 4:
        return ". It seems to be a batch: pass one image at a time."
    return ""

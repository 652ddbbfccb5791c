"""From an image to the input of a model: one description of it, applied in NumPy or inside a graph.

Every family of checkpoints was trained and measured with its own way to bring an image to size and range.
`Preprocessing` describes one as data, and applies it in NumPy and Pillow when it is called. This module does not import
Keras; the layer is in `preprocess.layer`.

`vit_keras.preprocess` is this module, `Preprocessing` the description, and `Preprocess` the Keras layer that applies it
to a batch of pixels; `vit_keras.preprocessing_layer(model)` makes it for a model. `model.preprocessing` is the
description of its checkpoint, and `model.preprocess(images)` applies it. `preprocess_inputs(pixels)` is Google's
normalization alone (vit-keras 0.x). In training, `preprocessing=` takes a `Preprocessing`; in visualization,
`preprocess=` takes `"own"`, a function from pixels to the model's input, or `None`.

>>> import numpy as np
>>> GOOGLE(np.zeros((480, 640, 3), "uint8"), image_size=224).shape
(1, 224, 224, 3)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .._internal.bounds import LIMIT_CHANNELS
from .._internal.imports import attach
from .._internal.validate import as_array, check_fields, is_number, positive_integer, size_pair
from ..resampling import picture_filter
from .images import check_readable, read, resize_in_steps
from .json_formats import IMAGENET_MEAN, IMAGENET_STD, hugging_face_fields, timm_fields
from .pixels import gray_levels, in_tensorflow_graph, is_plausible_range, rescaled, to_uint8

if TYPE_CHECKING:
    from .layer import Preprocess

__all__ = ["GOOGLE", "IMAGENET", "PRESETS", "Preprocess", "Preprocessing"]

_AT_ONCE = 1 << 20  # pixels that are in float64 at one time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The steps from an image to the input of a model: resize, crop, normalize.

    Args:
        image_size: `(height, width)` or one integer for a square. With `None`, pass the size in the call; otherwise
            images keep their size.
        mean: Number that is subtracted from pixels / 255: one per channel, or one for all channels.
        std: Number by which the result is divided: one per channel, or one for all channels.
        interpolation: `"bilinear"` (as in the reference: `tf.image.resize`, without antialiasing), or Pillow's
            `"bilinear_antialias"`, `"bicubic_antialias"` (or `"bicubic"`), `"lanczos"`, `"box"`, `"nearest"`; see
            `vit_keras.resampling`.
        crop: Fraction of a side that is kept: the image is resized to `floor(size / crop)`, and its center is cut out.
            With `None`, the whole image is stretched to the size, as in the evaluation of the reference.
        crop_mode: What is resized if there is a `crop`. `"center"`: the shortest side, keeping the aspect ratio
            (timm, torchvision). `"squash"`: each side (DeiT and others at Hugging Face).
        channels: Channels of the model's input. With 1, images are converted to gray (luminance), and a `mean` and
            `std` of three channels are averaged.

    Raises:
        ValueError: A value is out of range.

    Example:
        >>> Preprocessing(image_size=224, mean=0.5, std=0.5).mean
        (0.5, 0.5, 0.5)
    """

    image_size: tuple[int, int] | None = None
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    interpolation: str = "bilinear"
    crop: float | None = None
    crop_mode: str = "center"
    channels: int = 3

    def __post_init__(self) -> None:
        def put(field: str, value: Any) -> None:
            object.__setattr__(self, field, value)

        put("channels", positive_integer(self.channels, "channels"))
        if self.image_size is not None:
            put("image_size", size_pair(self.image_size, "image_size"))
        for field in ("mean", "std"):
            put(field, _per_channel(getattr(self, field), self.channels, field))
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive. Received: {self.std}")
        put("interpolation", picture_filter(self.interpolation))
        if self.crop is not None:
            if not is_number(self.crop) or not 0 < self.crop <= 1:
                raise ValueError(
                    f"crop must be None or the fraction of a side to keep, in (0, 1]. Received: {self.crop!r}"
                )
            put("crop", float(self.crop))
        if self.crop_mode not in ("center", "squash"):
            raise ValueError(f"crop_mode must be 'center' or 'squash'. Received: {self.crop_mode!r}")
        if self.crop is None:  # without effect: equal descriptions must compare equal
            put("crop_mode", "center")

    def __call__(self, images: Any, image_size: Any = None) -> np.ndarray:
        """Read, resize, crop and normalize images.

        Resized pixels are rounded to whole gray levels, as in Pillow and in `utils.read`: with `"bilinear"`, the
        result is at most half a level from the reference's `tf.image.resize`. The luminance of colors is rounded too.

        Args:
            images: One image, or a list, tuple or batch `(n, height, width, channels)` of them: whatever
                `vit_keras.utils.read` reads, a path, URL, PIL image or array; or a tensor. Paths may be in an array.
            image_size: Another size than this one's own.

        Returns:
            float32 `(n, height, width, channels)`; for one image, n is 1.

        Raises:
            FileNotFoundError: There is nothing at a path or URL.
            ValueError: An image cannot be read, or images of several sizes keep them.
            TypeError: It is not an image, or the model takes other than 1 or 3 channels.
        """
        check_readable(self.channels)
        size = self.image_size if image_size is None else size_pair(image_size, "image_size")
        pixels = [self._resize(read(image, None), size) for image in _batch(images)]
        shapes = sorted({p.shape[:2] for p in pixels})
        if not shapes:
            raise ValueError("There are no images.")
        if len(shapes) > 1:
            raise ValueError(
                f"Images of a batch must have one size. Received: {str(shapes)[1:-1]}. Pass image_size= to resize them."
            )
        return self.normalize(gray_levels(np.stack(pixels)) if self.channels == 1 else np.stack(pixels))

    def _resize(self, image: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
        if size is None:
            return image
        resized, (top, left) = self.geometry(image.shape[:2], size)
        return resize_in_steps(image, resized, self.interpolation)[top : top + size[0], left : left + size[1]]

    def geometry(self, source: tuple[Any, Any], size: tuple[int, int]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return the size an image is resized to and where it is cropped, by timm's and torchvision's rules.

        Args:
            source: `(height, width)` of the image: integers, or integer tensors.
            size: `(height, width)` of the result.

        Returns:
            `(height, width)` of the whole image after resizing, and `(top, left)` of the window of `size` in it.

        Example:
            >>> Preprocessing(crop=0.875).geometry((480, 640), (224, 224))
            ((256, 341), (16, 58))
        """
        if self.crop is None:
            return size, (0, 0)
        height, width = (math.floor(s / self.crop) for s in size)
        if self.crop_mode == "center":
            (h, w), largest = source, _maximum(source)
            if height == width:
                height, width = largest(height, height * h // w), largest(width, width * w // h)
            else:
                height, width = (
                    largest(height, (2 * width * h + w) // (2 * w)),
                    largest(width, (2 * height * w + h) // (2 * h)),
                )
        return (height, width), (_half(height - size[0]), _half(width - size[1]))

    def normalize(self, pixels: Any) -> np.ndarray:
        """Convert pixels in [0, 255] to the model's input.

        Args:
            pixels: `(..., channels)` of any real dtype: an array or a tensor, also inside `tf.data`.

        Returns:
            float32 of the same shape: `(pixels / 255 - mean) / std`. A NumPy array, or inside `tf.data` a tensor.

        Raises:
            ValueError: The number of channels is another one.

        Example:
            >>> GOOGLE.normalize(np.array([[0, 127.5, 255]]))
            array([[-1.,  0.,  1.]], dtype=float32)
        """
        scale, offset = self._affine()
        if in_tensorflow_graph(pixels):
            if pixels.shape.rank and pixels.shape[-1] is not None:
                _check_channels(pixels.shape, self.channels)
            return rescaled(pixels, scale.tolist(), offset.tolist())
        pixels = as_array(pixels)
        _check_channels(pixels.shape, self.channels)
        result = np.empty(pixels.shape, "float32")
        flat, made = pixels.reshape(-1, self.channels), result.reshape(-1, self.channels)
        for start in range(0, len(flat), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            made[part] = flat[part] * scale + offset
        return result

    def denormalize(self, inputs: Any) -> np.ndarray:
        """Convert the model's input back to pixels.

        Args:
            inputs: `(..., channels)`: an array, or a tensor of the backend.

        Returns:
            uint8 of the same shape; values outside [0, 255] are clipped.

        Raises:
            ValueError: The number of channels is another one.

        Example:
            >>> GOOGLE.denormalize(np.array([[-1.0, 0.2, 1.0]]))
            array([[  0, 153, 255]], dtype=uint8)
        """
        inputs = as_array(inputs, "float64")
        _check_channels(inputs.shape, self.channels)
        scale, offset = self._affine()
        return np.clip(np.rint((inputs - offset) / scale), 0, 255).astype("uint8")

    def _affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scale and offset, float64: `normalize` is `pixels * scale + offset`."""
        mean, std = np.array(self.mean), np.array(self.std)
        return 1 / (255 * std), (0.0 - mean) / std

    @property
    def range(self) -> tuple[float, float]:
        """The least value of a black image and the largest of a white one, over all channels.

        Example:
            >>> GOOGLE.range
            (-1.0, 1.0)
        """
        scale, offset = self._affine()
        return float(offset.min()), float((255 * scale + offset).max())

    def range_warning(self, inputs: Any) -> str | None:
        """Return why a batch of images does not look like what this preprocessing makes; `None` if it does.

        Args:
            inputs: A batch as it goes into a model, `(..., channels)`. Of a constant image nothing is said.

        Example:
            >>> GOOGLE.range_warning(np.array([[0.0, 127.0, 255.0]]))
            'The pixels are between 0 and 255. The model was trained with pixels between -1 and 1.'
        """
        inputs = as_array(inputs)
        received = (float(inputs.min()), float(inputs.max())) if inputs.size else (0.0, 0.0)
        if received[0] == received[1] or is_plausible_range(received, self.range):
            return None
        found, trained = ("{:.3g} and {:.3g}".format(*pair) for pair in (received, self.range))
        return f"The pixels are between {found}. The model was trained with pixels between {trained}."

    def replace(self, **changes: Any) -> Preprocessing:
        """Return a copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or a value is out of range.

        Example:
            >>> GOOGLE.replace(image_size=384).image_size
            (384, 384)
        """
        check_fields(Preprocessing, changes)
        return dataclasses.replace(self, **changes)

    def for_channels(self, channels: int) -> Preprocessing:
        """Return the same for another number of channels, all with the average of the old `mean` and `std`.

        Example:
            >>> IMAGENET.for_channels(4).channels
            4
        """
        if self.channels == channels:
            return self
        means = {field: float(np.mean(getattr(self, field))) for field in ("mean", "std")}
        return self.replace(channels=channels, **means)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON.

        Example:
            >>> GOOGLE.to_dict()["mean"]
            [0.5, 0.5, 0.5]
        """
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """Return the inverse of `to_dict`; missing fields get their defaults.

        Raises:
            ValueError: A field does not exist, or a value is out of range.

        Example:
            >>> Preprocessing.from_dict(GOOGLE.to_dict()) == GOOGLE
            True
        """
        check_fields(cls, fields)
        return cls(**fields)

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> Preprocessing:
        """Read a `preprocessor_config.json` of Hugging Face.

        If the crop leaves an odd number of pixels, it is placed as by torchvision (their fast processors); the slow
        processors' is up to a pixel away.

        Args:
            config: The parsed JSON.

        Raises:
            ValueError: It asks for something that is not supported here.

        Example:
            >>> Preprocessing.from_hugging_face({"size": {"height": 224, "width": 224}, "resample": 2}).interpolation
            'bilinear_antialias'
        """
        return cls(**hugging_face_fields(config))

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Preprocessing:
        """Read timm's `pretrained_cfg`, or the `config.json` of a timm model that contains one.

        Args:
            config: The parsed JSON.

        Raises:
            ValueError: It asks for something that is not supported here.

        Example:
            >>> Preprocessing.from_timm({"input_size": [3, 384, 384], "crop_pct": 1.0}).image_size
            (384, 384)
        """
        return cls(**timm_fields(config))


def _per_channel(value: Any, channels: int, field: str) -> tuple[float, ...]:
    try:
        values = tuple(float(v) for v in (value if hasattr(value, "__iter__") else [value]))
    except (TypeError, ValueError):
        values = ()
    if channels == 1 and len(values) == 3:
        values = (sum(values) / 3,)
    if len(values) == 1 and channels <= LIMIT_CHANNELS:
        values *= channels
    if len(values) != channels or not all(map(math.isfinite, values)):
        raise ValueError(f"{field} must be a number, or one for each of {channels} channels. Received: {value!r}")
    return values


def _check_channels(shape: tuple[int, ...], channels: int) -> None:
    if not shape or shape[-1] != channels:
        first = len(shape) > 2 and shape[-3] == channels
        hint = ". The channels seem to be first: move them to the end." if first else ""
        raise ValueError(f"The last axis must have {channels} channels. Received: the shape {tuple(shape)}{hint}")


def _batch(images: Any) -> Any:
    """Return an iterable of images."""
    if isinstance(images, (list, tuple)):
        return map(_to_numpy, images)
    images = _to_numpy(images)
    if isinstance(images, np.ndarray) and images.ndim == 4 and images.size:
        return to_uint8(images)  # one range of floats for all: alone, a dark image would seem to be in another
    many = isinstance(images, np.ndarray) and (images.ndim == 4 or (images.ndim == 1 and images.dtype.kind in "OU"))
    return images if many else [images]


def _to_numpy(images: Any) -> Any:
    """Return a tensor as an array, and anything without a shape as it is."""
    if isinstance(images, (np.ndarray, np.generic)) or not hasattr(images, "shape"):
        return images
    if in_tensorflow_graph(images):
        raise TypeError("A tensor inside tf.data has no values yet. Use vit_keras.preprocessing_layer(model) there.")
    images = as_array(images)
    return images.item() if images.dtype.kind in "OSU" and not images.ndim else images  # a file that TensorFlow read


def _maximum(sizes: Iterable[Any]) -> Callable[..., Any]:
    """Return the maximum function for such sizes: integers, or integer tensors."""
    if all(isinstance(size, int) for size in sizes):
        return max
    from keras import ops

    return ops.maximum


def _half(rest: Any) -> Any:
    """Return `round(rest / 2)` in integers: a half goes to the even neighbor."""
    return rest // 2 + (rest % 2) * (rest // 2 % 2)


CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean or standard deviation of red, green and blue, in [0, 1], of the images that CLIP was trained with."""

_imagenet = Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD, interpolation="bicubic_antialias", crop=0.9)
_half_bicubic = Preprocessing(interpolation="bicubic_antialias", crop=0.9)

PRESETS = {
    "google": Preprocessing(),
    "timm": _half_bicubic,
    "timm-384": _half_bicubic.replace(crop=1.0),
    "timm-mixer": _half_bicubic.replace(crop=0.875),
    "miil": Preprocessing(mean=(0.0,), std=(1.0,), interpolation="bilinear_antialias", crop=0.875),
    "hugging-face": Preprocessing(interpolation="bilinear_antialias"),
    "imagenet": _imagenet,
    "imagenet-384": _imagenet.replace(crop=1.0),
    "dinov2": _imagenet.replace(crop=1.0),
    "dinov3-sat": _imagenet.replace(mean=(0.43, 0.411, 0.296), std=(0.213, 0.156, 0.143), crop=1.0),
    "torchvision": _imagenet.replace(interpolation="bilinear_antialias", crop=0.875),
    "torchvision-swag": _imagenet.replace(crop=1.0),
    "clip": Preprocessing(mean=CLIP_MEAN, std=CLIP_STD, interpolation="bicubic_antialias", crop=1.0),
    "siglip": _half_bicubic.replace(crop=None),
    "beit": _half_bicubic,
    "beitv2": _imagenet,
}
"""The preprocessing of each family's own evaluation. The size is the model's."""

GOOGLE, IMAGENET, CLIP, SIGLIP, BEIT = (PRESETS[name] for name in ("google", "imagenet", "clip", "siglip", "beit"))
"""The preset of this name in `PRESETS`: how the authors of such checkpoints prepare images."""

__getattr__, _ = attach(__name__, names={"Preprocess": "layer"})  # Keras is imported on first use

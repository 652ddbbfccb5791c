"""From a picture to what a model takes: one description of it, carried out in NumPy or inside a graph.

Every family of checkpoints was trained and measured with its own way to bring a picture to size and range.
`Preprocessing` describes one as data; called, it does it in NumPy and Pillow. `Preprocess` is a Keras layer that
does the same to a batch of pixels, so that a deployed model can take raw ones. It is in `preprocess_layer`, which
imports Keras; this module does not.

>>> import numpy as np
>>> GOOGLE(np.zeros((480, 640, 3), "uint8"), image_size=224).shape
(1, 224, 224, 3)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .config import size_pair
from .images import grey, read, resize
from .resampling import PICTURES, picture_filter

INTERPOLATIONS = PICTURES
_PIL_CODES = {0: "nearest", 1: "lanczos", 2: "bilinear_antialias", 3: "bicubic_antialias", 4: "box"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes the input of a model: resize, crop, normalise.

    Args:
        image_size: `(height, width)` or one integer for a square; `None`: said when it is called, or else the
            picture's own size, without resizing.
        mean: Subtracted from the pixels/255, a number per channel or one for all.
        std: What the result is divided by, likewise.
        interpolation: `"bilinear"` (the reference's: `tf.image.resize`, no antialiasing), or Pillow's
            `"bilinear_antialias"`, `"bicubic_antialias"`, `"lanczos"`, `"box"`, `"nearest"`; see `vit_keras.resampling`.
            `"bicubic"` is accepted for `"bicubic_antialias"`.
        crop: `None`: the whole picture is squeezed to the size, as in the reference's evaluation. Otherwise the part of
            a side that is left after cropping: the picture is resized to `floor(size / crop)` and its centre cut out.
        crop_mode: What is resized where there is a `crop`. `"center"`: the shortest side, with the aspect ratio kept
            (timm, torchvision). `"squash"`: each side (DeiT and others at Hugging Face).
        channels: Channels of the model's input. Of 1, the pictures become grey (luminance), and `mean` and `std`
            given for three are averaged.

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

        if isinstance(self.channels, bool) or not isinstance(self.channels, int) or self.channels < 1:
            raise ValueError(f"channels must be a positive integer. Received: {self.channels!r}")
        if self.image_size is not None:
            put("image_size", size_pair(self.image_size, "image_size"))
        for field in ("mean", "std"):
            put(field, _per_channel(getattr(self, field), self.channels, field))
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive. Received: {self.std}")
        put("interpolation", picture_filter(self.interpolation))
        if self.crop is not None:
            put("crop", _fraction(self.crop))
        if self.crop_mode not in ("center", "squash"):
            raise ValueError(f"crop_mode must be 'center' or 'squash'. Received: {self.crop_mode!r}")
        if self.crop is None:  # nothing to choose between: equal descriptions shall be equal
            put("crop_mode", "center")

    def __call__(self, images: Any, image_size: Any = None) -> np.ndarray:
        """Read, resize, crop and normalise.

        What is resized is rounded to whole grey levels, as Pillow does and as `utils.read` does too: with
        `"bilinear"`, half a level at most from the reference's `tf.image.resize`.

        Args:
            images: One picture, or a list, tuple or batch `(n, height, width, channels)` of them: whatever
                `vit_keras.utils.read` reads, a path, URL, PIL image or array.
            image_size: Other size than this one's own.

        Returns:
            float32 `(n, height, width, channels)`; of one picture, n is 1.

        Raises:
            FileNotFoundError: There is nothing at a path or URL.
            ValueError: A picture cannot be read, or several of different sizes are to keep them.
            TypeError: It is no picture.
        """
        if self.channels not in (1, 3):
            raise ValueError(
                f"Pictures have 1 or 3 channels, the model takes {self.channels}: bring arrays to its size and use "
                "normalise()."
            )
        size = self.image_size if image_size is None else size_pair(image_size, "image_size")
        pixels = [self._resize(read(image, None), size) for image in _batch(images)]
        shapes = sorted({p.shape[:2] for p in pixels})
        if len(shapes) != 1:
            raise ValueError(
                f"One batch has pictures of one size, and these have {str(shapes)[1:-1]}: say image_size."
                if shapes
                else "There is no picture."
            )
        return self.normalise(grey(np.stack(pixels)) if self.channels == 1 else np.stack(pixels))

    def _resize(self, image: np.ndarray, size: tuple[int, int] | None) -> np.ndarray:
        if size is None:
            return image
        resized, (top, left) = self.geometry(image.shape[:2], size)
        if self.interpolation != "bilinear":  # across, then down: which first depends on Pillow's version otherwise
            image = resize(image, (image.shape[0], resized[1]), self.interpolation)
        return resize(image, resized, self.interpolation)[top : top + size[0], left : left + size[1]]

    def geometry(self, source: tuple[Any, Any], size: tuple[int, int]) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """What size a picture is resized to and where it is cropped, by timm's and torchvision's rules.

        Args:
            source: `(height, width)` of the picture: integers, or integer tensors.
            size: `(height, width)` that is wanted.

        Returns:
            `(height, width)` of the whole picture after resizing, and `(top, left)` of the window of `size` in it.

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

    def normalise(self, pixels: Any) -> np.ndarray:
        """Pixels in [0, 255] become what the model takes.

        Args:
            pixels: `(..., channels)` of any real dtype.

        Returns:
            float32 of the same shape: `(pixels / 255 - mean) / std`.

        Raises:
            ValueError: The number of channels is another one.

        Example:
            >>> GOOGLE.normalise(np.array([[0, 127.5, 255]]))
            array([[-1.,  0.,  1.]], dtype=float32)
        """
        pixels = np.asarray(pixels)
        _check_channels(pixels.shape, self.channels)
        scale, offset = self._affine()
        return (pixels * scale + offset).astype("float32")

    def denormalise(self, inputs: Any) -> np.ndarray:
        """What the model takes becomes pixels again, to be looked at.

        Args:
            inputs: `(..., channels)`: an array, or a tensor of the backend.

        Returns:
            uint8 of the same shape; what is outside [0, 255] is cut off.

        Raises:
            ValueError: The number of channels is another one.

        Example:
            >>> GOOGLE.denormalise(np.array([[-1.0, 0.2, 1.0]]))
            array([[  0, 153, 255]], dtype=uint8)
        """
        inputs = np.asarray(_to_numpy(inputs), "float64")
        _check_channels(inputs.shape, self.channels)
        scale, offset = self._affine()
        return np.clip(np.rint((inputs - offset) / scale), 0, 255).astype("uint8")

    def _affine(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale and offset, float64: normalising is `pixels * scale + offset`."""
        mean, std = np.array(self.mean), np.array(self.std)
        return 1 / (255 * std), -mean / std

    def doubt(self, inputs: Any) -> str | None:
        """Return why pixels do not look like what this preprocessing makes; `None` if they do.

        Args:
            inputs: A batch as it goes into a model, `(..., channels)`.

        Example:
            >>> GOOGLE.doubt(np.array([[0.0, 127.0, 255.0]]))
            'The pixels are from 0 to 255, where the model was trained with -1 to 1.'
        """
        inputs = np.asarray(inputs)
        low, high = (float(inputs.min()), float(inputs.max())) if inputs.size else (0.0, 0.0)
        scale, offset = self._affine()
        least, most = float(offset.min()), float((255 * scale + offset).max())
        margin = 0.25 * (most - least)  # augmentation may overshoot
        others = [
            other for other in ((0, 255), (0, 1), (-1, 1)) if max(np.abs(np.subtract(other, (least, most)))) > 0.02
        ]
        plausible = (
            least - margin <= low
            and high <= most + margin
            and not any(abs(low - first) < 0.02 and abs(high - last) < 0.02 for first, last in others)
            and not (least < -margin and low >= 0 and high <= 1)  # no picture has a dark pixel: they are in [0, 1]
        )
        if plausible or low == high:
            return None
        return (
            f"The pixels are from {low:.3g} to {high:.3g}, where the model was trained with {least:.3g} to {most:.3g}."
        )

    def replace(self, **changes: Any) -> Preprocessing:
        """A copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or a value is out of range.

        Example:
            >>> GOOGLE.replace(image_size=384).image_size
            (384, 384)
        """
        _check_fields(changes)
        return dataclasses.replace(self, **changes)

    def for_channels(self, channels: int) -> Preprocessing:
        """The same for images of another number of channels, of which all have the mean of the old `mean` and `std`.

        Example:
            >>> IMAGENET.for_channels(4).channels
            4
        """
        if self.channels == channels:
            return self
        means = {field: float(np.mean(getattr(self, field))) for field in ("mean", "std")}
        return self.replace(channels=channels, **means)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as plain JSON.

        Example:
            >>> GOOGLE.to_dict()["mean"]
            [0.5, 0.5, 0.5]
        """
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_dict`; a field that is left out has its default.

        Raises:
            ValueError: A field does not exist, or a value is out of range.

        Example:
            >>> Preprocessing.from_dict(GOOGLE.to_dict()) == GOOGLE
            True
        """
        _check_fields(fields)
        return cls(**fields)

    @classmethod
    def from_hugging_face(cls, config: Mapping[str, Any]) -> Preprocessing:
        """Read a `preprocessor_config.json` of Hugging Face.

        Where the crop leaves an odd number of pixels over, it is laid as torchvision does (their fast processors);
        the slow ones lie up to a pixel beside it.

        Args:
            config: The parsed JSON.

        Raises:
            ValueError: It says something that cannot be done here.

        Example:
            >>> Preprocessing.from_hugging_face({"size": {"height": 224, "width": 224}, "resample": 2}).interpolation
            'bilinear_antialias'
        """
        scale = 255 * (config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0)
        normalised = config.get("do_normalize", True)
        mean = config.get("image_mean", 0.5) if normalised else 0.0
        std = config.get("image_std", 0.5) if normalised else 1.0
        code = config.get("resample", 2)
        if code not in _PIL_CODES:
            raise ValueError(f"resample={code!r} is not one of Pillow's filters {list(_PIL_CODES)}.")
        return cls(
            **_hugging_face_size(config),
            mean=tuple(m / scale for m in np.atleast_1d(mean)),
            std=tuple(s / scale for s in np.atleast_1d(std)),
            interpolation=_PIL_CODES[code],
        )

    @classmethod
    def from_timm(cls, config: Mapping[str, Any]) -> Preprocessing:
        """Read timm's `pretrained_cfg`, or the `config.json` of a timm model with one inside.

        Args:
            config: The parsed JSON.

        Raises:
            ValueError: It says something that cannot be done here.

        Example:
            >>> Preprocessing.from_timm({"input_size": [3, 384, 384], "crop_pct": 1.0}).image_size
            (384, 384)
        """
        config = config.get("pretrained_cfg", config)
        channels, *size = config.get("input_size") or (3, 224, 224)
        name = config.get("interpolation") or "bilinear"
        crop, mode = config.get("crop_pct") or 0.875, config.get("crop_mode") or "center"
        if mode == "border":
            raise ValueError("crop_mode='border' (a picture with a frame) is not supported: use 'center' or 'squash'.")
        return cls(
            image_size=tuple(size),
            mean=tuple(config.get("mean") or IMAGENET_MEAN),
            std=tuple(config.get("std") or IMAGENET_STD),
            interpolation="bilinear_antialias" if name == "bilinear" else name,
            crop=None if (crop, mode) == (1.0, "squash") else crop,
            crop_mode=mode,
            channels=channels,
        )


def _per_channel(value: Any, channels: int, field: str) -> tuple[float, ...]:
    try:
        values = tuple(float(v) for v in (value if hasattr(value, "__iter__") else [value]))
    except (TypeError, ValueError):
        values = ()
    if channels == 1 and len(values) == 3:
        values = (sum(values) / 3,)
    if len(values) == 1:
        values *= channels
    if len(values) != channels or not all(map(math.isfinite, values)):
        raise ValueError(f"{field} must be a number, or one for each of {channels} channels. Received: {value!r}")
    return values


def _fraction(crop: Any) -> float:
    try:
        fraction = float(crop)
    except (TypeError, ValueError):
        fraction = 0.0
    if not 0 < fraction <= 1:
        raise ValueError(f"crop is None or the part of a side that is left, in (0, 1]. Received: {crop!r}")
    return fraction


def _check_fields(fields: Mapping[str, Any]) -> None:
    known = [f.name for f in dataclasses.fields(Preprocessing)]
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ValueError(f"Unknown {', '.join(unknown)}. A preprocessing has: {', '.join(known)}.")


def _check_channels(shape: tuple[int, ...], channels: int) -> None:
    if not shape or shape[-1] != channels:
        raise ValueError(f"The last axis must have {channels} channels. Received the shape {tuple(shape)}.")


def _batch(images: Any) -> Any:
    """What is iterated over for one picture after the other."""
    if isinstance(images, (list, tuple)):
        return images
    if hasattr(images, "shape") and not isinstance(images, np.ndarray):
        images = np.asarray(_to_numpy(images))
    return images if isinstance(images, np.ndarray) and images.ndim == 4 else [images]


def _to_numpy(images: Any) -> Any:
    """Return a tensor of the backend as an array, and anything else as it is."""
    if isinstance(images, np.ndarray) or not hasattr(images, "shape"):
        return images
    from keras import ops

    return ops.convert_to_numpy(images) if ops.is_tensor(images) else images


def _maximum(sizes: Iterable[Any]) -> Callable:
    """Return what compares sizes of this kind: integers, or integer tensors."""
    if all(isinstance(size, int) for size in sizes):
        return max
    from keras import ops

    return ops.maximum


def _half(rest: Any) -> Any:
    """`round(rest / 2)`, in integers: a half goes to the even neighbour."""
    return rest // 2 + (rest % 2) * (rest // 2 % 2)


def _hugging_face_size(config: Mapping[str, Any]) -> dict[str, Any]:
    """`image_size`, `crop` and `crop_mode` of a Hugging Face configuration."""
    cropped = config.get("do_center_crop", False)
    size = config.get("size", 224)
    if not config.get("do_resize", True):
        if cropped:
            raise ValueError("A crop without a resize (do_resize=false, do_center_crop=true) is not supported.")
        return {}
    if isinstance(size, int):  # before 2022; CLIP's meant the shortest edge
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type"))
        size = {"shortest_edge": size} if "CLIP" in kind else {"height": size, "width": size}
    if not {"height", "width"} <= set(size) and "shortest_edge" not in size:
        raise ValueError(f"size must have a height and a width, or a shortest_edge. Received: {size}")
    if not cropped:
        if "shortest_edge" in size:
            raise ValueError(f"size={size} without a crop leaves pictures of no one size: it is not supported.")
        return {"image_size": (size["height"], size["width"])}
    window = config.get("crop_size", size)
    window = {"height": window, "width": window} if isinstance(window, int) else window
    if not {"height", "width"} <= set(window):
        raise ValueError(f"crop_size must be an integer, or have a height and a width. Received: {window}")
    window = (window["height"], window["width"])
    edges = {size["shortest_edge"]} if "shortest_edge" in size else {size["height"], size["width"]}
    if len(edges) != 1 or window[0] != window[1] or window[0] > min(edges):
        raise ValueError(f"A crop must be a square inside a square. Received: size={size}, crop_size={window}")
    edge = edges.pop()
    mode = "center" if "shortest_edge" in size else "squash"
    if mode == "squash" and edge == window[0]:
        return {"image_size": window}
    return {"image_size": window, "crop": crop_fraction(window[0], edge), "crop_mode": mode}


def crop_fraction(size: int, edge: int) -> float:
    """The `crop` of a `Preprocessing` that resizes to `edge` and cuts out `size`.

    Example:
        >>> crop_fraction(224, 256)
        0.875
    """
    crop = size / edge
    return math.nextafter(crop, 0) if math.floor(size / crop) < edge else crop


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

_imagenet = Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD, interpolation="bicubic_antialias", crop=0.9)
_half_bicubic = Preprocessing(interpolation="bicubic_antialias", crop=0.9)

# What the families' own evaluations do. The size is the model's.
PRESETS = {
    "google": Preprocessing(),
    "timm": _half_bicubic,
    "timm-384": _half_bicubic.replace(crop=1.0),
    "timm-mixer": _half_bicubic.replace(crop=0.875),
    "miil": Preprocessing(mean=0.0, std=1.0, interpolation="bilinear_antialias", crop=0.875),
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
GOOGLE = PRESETS["google"]
IMAGENET = PRESETS["imagenet"]
CLIP = PRESETS["clip"]
SIGLIP = PRESETS["siglip"]
BEIT = PRESETS["beit"]


def __getattr__(name):
    if name != "Preprocess":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .preprocess_layer import Preprocess

    return Preprocess


def __dir__():
    return sorted({*globals(), "Preprocess"})


def preprocess_inputs(X: Any) -> Any:
    """Bring pixels from [0, 255] to the [-1, 1] that Google's models expect: `(x - 127.5) / 127.5` (vit-keras 0.x).

    Args:
        X: Pixels in [0, 255] of any shape and real dtype: an array, a list, a PIL image, or a tensor (also inside
            `tf.data`, whatever the backend). It is not changed.

    Returns:
        float32 of the same shape: a NumPy array, or a tensor where a tensor came in.

    Example:
        >>> preprocess_inputs(np.array([0, 255], "uint8"))
        array([-1.,  1.], dtype=float32)
    """
    if isinstance(X, (np.ndarray, np.generic, list, tuple)) or not hasattr(X, "dtype"):
        return (np.asarray(X, "float32") - np.float32(127.5)) / np.float32(127.5)
    import keras

    return keras.layers.Rescaling(1 / 127.5, offset=-1.0, dtype="float32")(X)

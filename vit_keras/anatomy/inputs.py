"""Input shape, pixel range and preprocessing of a model."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from .._internal.validate import size_pair
from .._internal.warn import warn_caller
from ..backend.keras_internals import flat_layers, kept, origin
from ..preprocess import Preprocessing
from ..preprocess.layer import Preprocess
from .parts import blocks, find_vit, keeper, learner

_NORMALIZING = (Preprocess, keras.layers.Rescaling, keras.layers.Normalization)
_RESIZING = (Preprocess, keras.layers.Resizing, keras.layers.CenterCrop)


class _Entry:
    """The layers between a model's input and the first block of its ViT."""

    def __init__(self, model: keras.Model, vit: keras.Model):
        # `image` is the symbolic tensor of the images (None if the model has no graph), and `preprocessing_models` a
        # chain of functional models from it to the input of the ViT, empty if they are the same.
        self.image, self.preprocessing_models, passed, has_graph = None, [], [], True
        for outer, inner in _way_to(model, vit):
            if isinstance(outer, keras.Sequential) and not outer.built:
                any_size = any(isinstance(layer, _RESIZING) for layer in outer.layers)
                outer.build((None, None, None, vit.input_shape[-1]) if any_size else vit.input_shape)
            entering = _entering(outer, inner)
            if entering is None:  # a subclass of keras.Model: its layers are known, and taken for a chain
                passed += outer.layers[: outer.layers.index(inner)]
                has_graph = False
                continue
            operations, image = _upstream(entering)
            self.image = image if self.image is None else self.image
            passed += operations
            if operations and image is not None:  # it may have another shape, as for `TimeDistributed`
                self.preprocessing_models.append(keras.Model(image, entering))
            elif operations:
                has_graph = False
        passed = [part for each in passed for part in (flat_layers(each) if _is_layer(each) else [each])]
        first = next(iter(blocks(vit)), None)
        entering = None if first is None else _entering(vit, first)
        operations, image = ([], None) if entering is None else _upstream(entering)
        self.image = image if self.image is None else self.image
        inside = [layer for layer in operations if isinstance(layer, _NORMALIZING)]
        self.normalizing = [layer for layer in passed if isinstance(layer, _NORMALIZING)] + inside
        self.resizing = [layer for layer in passed + operations if isinstance(layer, _RESIZING)]
        # Models whose output shows which pixel range is expected; without a graph, the layers that normalize, in order.
        self.probe = self.preprocessing_models + ([keras.Model(image, inside[-1].output)] if inside else [])
        self.probe = self.probe if has_graph else self.normalizing
        learned = any(layer.weights for layer in passed if _is_layer(layer))
        if learned and not self.normalizing:  # features of the user's own, and no preprocessing
            self.probe = []


def _entry(model: keras.Model) -> _Entry:
    model = learner(model)
    return kept(model, "entry", lambda: _Entry(model, find_vit(model)))


def _is_layer(operation):
    return isinstance(operation, keras.layers.Layer)


def _way_to(model, vit):
    """Yield pairs of a model and the layer in it that is or contains the ViT, the outermost first."""
    while model is not vit:
        parts = [layer for layer in model.layers if any(part is vit for part in flat_layers(layer))]
        if not parts:
            return
        yield model, parts[0]
        model = parts[0]
        if not isinstance(model, keras.Model):  # a layer that wraps the ViT
            return


def _entering(model, layer):
    """Return the symbolic tensor that a layer takes in the graph of a model; `None` if either is missing."""
    pending, seen = list(getattr(model, "outputs", None) or ()), set()
    while pending:
        tensor = pending.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        operation, inputs = origin(tensor)
        if operation is layer:
            return inputs[0]
        pending += inputs
    return None


def _upstream(tensor):
    """Return the operations that compute a symbolic tensor, first to last, and the images that they start from."""
    operations, image, pending, seen = [], None, [tensor], set()
    while pending:
        tensor = pending.pop()
        operation, inputs = origin(tensor)
        if id(operation) in seen:
            continue
        seen.add(id(operation))
        if inputs:
            operations.append(operation)
        elif len(tensor.shape) == 4:
            image = tensor
        pending += inputs
    return operations[::-1], image


def preprocessing_models(model: keras.Model) -> list[keras.Model]:
    """Return the layers before the ViT in a model (preprocessing, augmentation), as a chain of functional models."""
    return list(_entry(model).preprocessing_models)


def image_shape(model: keras.Model) -> tuple[int | None, int | None, int | None, int | None]:
    """Return `(batch, height, width, channels)` of the images that a model takes, with `None` for any size."""
    if takes := getattr(model, "takes", None):
        raise ValueError(
            f"The model {model.name!r} takes {takes}, not images. Pass the model in it, {find_vit(model).name!r}: "
            "anatomy.find_vit(model) returns it, and they share their weights."
        )
    image = _entry(model).image
    return tuple(find_vit(model).input_shape if image is None else image.shape)


def check_batch(model: keras.Model, images: Any) -> None:
    """Raise an error if a model of images gets a single image, or a dictionary without its input."""
    # A model with several inputs, or without a graph, is not checked.
    shape = getattr(model, "input_shape", None)
    if not (isinstance(shape, tuple) and len(shape) == 4):
        return
    if getattr(getattr(images, "shape", None), "rank", 0) is None:
        raise ValueError(
            f"The model {model.name!r} takes a batch of images. Received: a tensor of unknown rank. Tell TensorFlow "
            f"its shape, in a tf.data.Dataset by map: tf.ensure_shape(images, {shape})."
        )
    given = tuple(getattr(images, "shape", ()))
    if len(given) == 3:
        raise ValueError(
            f"The model {model.name!r} takes a batch of images. Received: a single one, of shape {given}. It is a "
            "batch of one: images[None]. A tf.data.Dataset of single images: dataset.batch(32)."
        )
    if isinstance(images, dict) and model.inputs[0].name not in images:
        raise TypeError(
            f"The model {model.name!r} takes a batch of images. Received: a dictionary of {', '.join(images)}. Pass "
            "the images alone. A tf.data.Dataset of dictionaries: "
            'dataset.map(lambda each: (each["image"], each["label"])).'
        )


def native_size(model: keras.Model, image_size: Any = None) -> tuple[int, int] | None:
    """Return the image size of a model: its fixed input size, or else the given or the checkpoint's."""
    given = None if image_size in (None, "native") else size_pair(image_size, "image_size")
    height, width = fixed = image_shape(model)[1:3]
    if height is None or width is None:
        return given or own_preprocessing(find_vit(model)).image_size
    if given not in (None, fixed):
        raise ValueError(
            f"{model.name!r} takes images of {fixed} pixels only. Received: image_size={image_size!r}. "
            "vit_keras.resize makes a model of another size."
        )
    return height, width


def input_range(model: keras.Model) -> str:
    """Return the pixel range of a model, found by sending black and white images through the layers before its ViT."""
    entry = _entry(model)
    if not entry.probe:
        return "normalized"
    height, width, channels = (find_vit(model).input_shape if entry.image is None else entry.image.shape)[1:]
    channels = channels or own_preprocessing(find_vit(model)).channels  # as many as the ViT where any number may come

    def reaching(value):
        x = np.full((1, height or 32, width or 32, channels), value, "float32")
        for part in entry.probe:
            x = part(x, training=False)
        return ops.convert_to_numpy(x)

    black, grey, white = (reaching(value) for value in (0, 1, 255))
    if np.allclose(black, 0, atol=1e-3) and np.allclose(white, 255, atol=1):
        return "normalized"
    for name, values in (("pixels", (black, white)), ("unit", (black, grey))):
        if all(np.abs(x).max() < _LARGEST for x in values):
            return name
    return "normalized"


_LARGEST = 10.0
"""No normalization of images makes values as large as this: ImageNet's makes 2.7 of white, CLIP's 2.2."""


def preprocessing_of(model: keras.Model, image_size: Any = None) -> Preprocessing:
    """Return the preprocessing that this model expects.

    It is the checkpoint's own preprocessing (`GOOGLE` if there is none), without the steps that the model does itself:
    a model that normalizes gets pixels, and a model that resizes gets the whole image.

    Args:
        model: A ViT of this package, or a model with one inside.
        image_size: Input size in pixels, for a model that takes any size; `"native"`: the size of its checkpoint.

    Returns:
        A `Preprocessing`. Its `image_size` is `None` if the model takes images of any size and resizes them itself.

    Raises:
        ValueError: `image_size` is not the size of the model's input.

    Example:
        >>> import vit_keras
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> served = keras.Sequential([keras.Input((None, None, 3)), vit_keras.preprocessing_layer(tiny), tiny])
        >>> preprocessing_of(tiny).image_size, preprocessing_of(served).image_size
        ((32, 32), None)
    """
    own, channels = own_preprocessing(find_vit(model)), image_shape(model)[3]
    own = own if channels is None else own.for_channels(channels)
    size = native_size(model, image_size)
    if _entry(model).resizing:
        any_size = None in image_shape(model)[1:3] and image_size in (None, "native")
        own = own.replace(image_size=None if any_size else size, crop=None)
    else:
        own = own.replace(image_size=size)
    scale = {"normalized": {}, "pixels": {"mean": 0.0, "std": 1 / 255}, "unit": {"mean": 0.0, "std": 1.0}}
    return own.replace(**scale[input_range(model)])


def batch_preprocessing_of(model: keras.Model) -> Preprocessing:
    """Return the preprocessing that turns images of different sizes into one batch for this model."""
    own = preprocessing_of(model)
    if own.image_size is not None:
        return own
    first = _sizing(model)
    if isinstance(first, Preprocess):
        inside: Any = first.preprocessing  # which has a size
        if inside.crop is None:
            return own.replace(image_size=inside.image_size, interpolation=inside.interpolation)
        larger = tuple(math.floor(pixels / inside.crop) for pixels in inside.image_size)
        crop = None if inside.crop_mode == "squash" else 1.0
        return own.replace(image_size=larger, interpolation=inside.interpolation, crop=crop)
    if isinstance(first, keras.layers.CenterCrop) or getattr(first, "pad_to_aspect_ratio", False):
        does = "crops" if isinstance(first, keras.layers.CenterCrop) else "pads"
        warn_caller(
            f"The layer {first.name!r} of the model {model.name!r} {does} each image by its own size. To become one "
            "batch, images of different sizes are stretched instead. To keep their aspect ratios, use "
            "keras.layers.Resizing(height, width, crop_to_aspect_ratio=True)."
        )
    if first is None:
        return own.replace(image_size=native_size(find_vit(model)))
    size = (first.height, first.width)
    if not isinstance(first, keras.layers.Resizing):
        return own.replace(image_size=size)
    kind = (first.interpolation, first.antialias)
    interpolation, crop = _INTERPOLATIONS.get(kind, own.interpolation), 1.0 if first.crop_to_aspect_ratio else None
    return own.replace(image_size=size, interpolation=interpolation, crop=crop)


_INTERPOLATIONS = {
    ("nearest", False): "nearest",
    ("nearest", True): "nearest",
    ("bilinear", False): "bilinear",
    ("bilinear", True): "bilinear_antialias",
    ("bicubic", True): "bicubic_antialias",
    ("lanczos3", True): "lanczos",
}
"""Those of `Preprocessing`, by the arguments `interpolation` and `antialias` of `keras.layers.Resizing`."""


def _sizing(model: keras.Model) -> Any:
    """Return the first layer before the ViT that gives images of any size one size; `None` if there is none."""
    for layer in _entry(model).resizing:
        if not isinstance(layer, Preprocess) or layer.preprocessing.image_size is not None:
            return layer
    return None


def own_preprocessing(vit: keras.Model) -> Preprocessing:
    """Return the preprocessing of a ViT's checkpoint, or Google's if none was set."""
    return keeper(vit).preprocessing


def remember_preprocessing(vit: keras.Model, preprocessing: Preprocessing) -> None:
    """Set the preprocessing of a ViT; see `own_preprocessing`."""
    keeper(vit).preprocessing = preprocessing

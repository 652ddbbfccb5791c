"""Input shape, pixel range and preprocessing of a model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras

from .._internal.validate import size_pair
from .._internal.warn import warn_caller
from ..backend.keras_internals import flat_layers, kept, origin
from ..preprocess import Preprocessing
from ..preprocess.layer import Preprocess
from .around import upstream
from .dry_run import RESIZING, input_range, resizing
from .parts import find_vit, input_shape, keeper, learner


def entering(model: keras.Model, vit: keras.Model) -> Iterator[tuple[keras.Model, keras.layers.Layer, Any]]:
    """Yield models around a ViT, the outermost first, the layer in each that is or holds it, and what that layer takes.

    It is a symbolic tensor, or `None` in a subclass of `keras.Model`, which has no graph.
    """
    while model is not vit:
        inner = next((layer for layer in model.layers if vit in flat_layers(layer)), None)
        if inner is None:
            return
        if isinstance(model, keras.Sequential) and not model.built:
            any_size = any(isinstance(layer, RESIZING) for layer in model.layers)
            model.build((None, None, None, vit.input_shape[-1]) if any_size else vit.input_shape)
        taken = upstream(*getattr(model, "outputs", None) or ()).get(inner)
        yield model, inner, taken[0] if taken else None
        if not isinstance(inner, keras.Model):  # a layer that wraps the ViT
            return
        model = inner


def front(model: keras.Model) -> keras.Model | None:
    """Return the layers before the ViT in a model as a functional model; `None` if there are none, or no graph."""
    model = learner(model)
    steps = [*entering(model, find_vit(model))]

    def make():
        found = None
        for outer, _, tensor in steps:
            starts = [x for x in outer.inputs if origin(x)[0] in upstream(tensor)]
            if tensor is not starts[0]:
                part = keras.Model(starts if starts[1:] else starts[0], tensor)
                found = part if found is None else keras.Model(found.input, part(found.output))
        return found

    if any(tensor is None for _, _, tensor in steps):
        return None
    return kept(model, ("front", *(id(tensor) for _, _, tensor in steps)), make)


def image_shape(model: keras.Model) -> tuple[int | None, int | None, int | None, int | None]:
    """Return `(batch, height, width, channels)` of the images that a model takes, with `None` for any size."""
    if takes := getattr(model, "takes", None):
        raise ValueError(
            f"The model {model.name!r} takes {takes}, not images. Pass the model in it, {find_vit(model).name!r}: "
            "anatomy.find_vit(model) returns it, and they share their weights."
        )
    model = learner(model)
    vit = find_vit(model)
    graphs = [upstream(tensor) for _, _, tensor in entering(model, vit) if tensor is not None]
    starts = [[layer.output for layer, taken in graph.items() if not taken] for graph in graphs[:1]] or [vit.inputs]
    images = [tuple(x.shape) for x in starts[0] if len(x.shape) == 4] or [tuple(input_shape(vit))]
    return next((shape for shape in images if shape[-1] == input_shape(vit)[-1]), images[0])


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
        return given or keeper(find_vit(model)).preprocessing.image_size
    if given not in (None, fixed):
        raise ValueError(
            f"{model.name!r} takes images of {fixed} pixels only. Received: image_size={image_size!r}. "
            "vit_keras.resize makes a model of another size."
        )
    return height, width


def preprocessing_of(model: keras.Model, image_size: Any = None) -> Preprocessing:
    """Return the preprocessing of a model's checkpoint, without the steps that the model does itself."""
    own, channels = keeper(find_vit(model)).preprocessing, image_shape(model)[3]
    own = own if channels is None else own.for_channels(channels)
    size = native_size(model, image_size)
    if resizing(model):
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
    steps: list[Any] = resizing(model)  # the first that gives all images one size counts
    first = next((x for x in steps if not isinstance(x, Preprocess) or x.preprocessing.image_size is not None), None)
    if first is None:
        return own.replace(image_size=native_size(find_vit(model)))
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

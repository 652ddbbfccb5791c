"""Input shape, pixel range and preprocessing of a model."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from .._internal.validate import size_pair
from ..backend.keras_internals import flat_layers, kept, origin
from ..preprocess import GOOGLE, Preprocessing
from ..preprocess.layer import Preprocess
from .parts import blocks, checked, find_vit

_NORMALIZING = (Preprocess, keras.layers.Rescaling, keras.layers.Normalization)
_RESIZING = (Preprocess, keras.layers.Resizing, keras.layers.CenterCrop)


class _Entry:
    """What images go through between a model's input and the first block of its ViT.

    Attributes:
        image: The symbolic tensor of the images that go in; `None` where the model has no graph.
        front: Functional models, one after the other, from that tensor to the input of the ViT; none where that is the
            same.
        normalizing: Layers that are known to normalize pixels, those in the ViT's own graph included.
        resizing: Layers that resize or crop.
        probe: Functional models, one after the other, whose output tells which pixels are meant to go in.
    """

    def __init__(self, model: keras.Model, vit: keras.Model):
        self.image, self.front, passed = None, [], []
        for outer, inner in _way_to(model, vit):
            if isinstance(outer, keras.Sequential) and not outer.built:
                any_size = any(isinstance(layer, _RESIZING) for layer in outer.layers)
                outer.build((None, None, None, vit.input_shape[-1]) if any_size else vit.input_shape)
            entering = _entering(outer, inner)
            if entering is None:  # a subclass of keras.Model: its layers are known, their order is not
                passed += [layer for layer in outer.layers if layer is not inner]
                continue
            operations, image = _upstream(entering)
            self.image = image if self.image is None else self.image
            passed += operations
            if operations:
                self.front.append(keras.Model(image, entering))
        passed = [part for each in passed for part in (flat_layers(each) if _is_layer(each) else [each])]
        first = next(iter(blocks(vit)), None)
        entering = None if first is None else _entering(vit, first)
        operations, image = ([], None) if entering is None else _upstream(entering)
        self.image = image if self.image is None else self.image
        inside = [layer for layer in operations if isinstance(layer, _NORMALIZING)]
        self.normalizing = [layer for layer in passed if isinstance(layer, _NORMALIZING)] + inside
        self.resizing = [layer for layer in passed + operations if isinstance(layer, _RESIZING)]
        self.probe = self.front + ([keras.Model(image, inside[-1].output)] if inside else [])
        learned = any(layer.weights for layer in passed if _is_layer(layer))
        if learned and not self.normalizing:  # features of the user's own, and no preprocessing
            self.probe = []


def _entry(model: keras.Model) -> _Entry:
    return kept(checked(model), "entry", lambda: _Entry(model, find_vit(model)))


def _is_layer(operation):
    return isinstance(operation, keras.layers.Layer)


def _way_to(model, vit):
    """Yield pairs of a model and the layer in it that is, or contains, the ViT, from the outermost on."""
    while model is not vit:
        parts = [layer for layer in model.layers if any(part is vit for part in flat_layers(layer))]
        if not parts:
            return
        yield model, parts[0]
        model = parts[0]
        if not isinstance(model, keras.Model):  # a layer that wraps the ViT
            return


def _entering(model, layer):
    """Return the symbolic tensor that a layer takes in the graph of a model; `None` where either is missing."""
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


def front(model: keras.Model) -> list[keras.Model]:
    """Return the layers before the ViT in a model (preprocessing, augmentation), as a chain of functional models.

    Returns:
        Models from the model's images to the ViT's. An empty list where there is nothing, or where the model has no
        graph (a subclass of `keras.Model`).

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> len(front(tiny)), len(front(keras.Sequential([keras.layers.RandomFlip(), tiny])))
        (0, 1)
    """
    return list(_entry(model).front)


def image_shape(model: keras.Model) -> tuple[int | None, int | None, int | None, int | None]:
    """Return `(batch, height, width, channels)` of the images that a model takes; `None` for what may be of any size.

    A model with several inputs has the shape of the one that leads to the ViT; one without a graph, the ViT's.

    Raises:
        ValueError: It takes no images, as a packed model does; the error names the model inside that does.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> image_shape(tiny)
        (None, 32, 32, 3)
    """
    if takes := getattr(model, "takes", None):
        raise ValueError(
            f"The model {model.name!r} takes {takes}, not images. Pass the model in it, {find_vit(model).name!r}: "
            "anatomy.find_vit(model) returns it, and they share their weights."
        )
    image = _entry(model).image
    return tuple(find_vit(model).input_shape if image is None else image.shape)


def native_size(model: keras.Model, image_size: Any = None) -> tuple[int, int] | None:
    """Return the size in which a model takes images: its input's, or where that is open the given or the checkpoint's.

    Args:
        model: The model.
        image_size: Pixels, `(height, width)` or one integer, for a model that takes any size. `None` or `"native"`: the
            checkpoint's.

    Returns:
        `(height, width)`; `None` where the size is open and neither the caller nor the checkpoint names one.

    Raises:
        ValueError: `image_size` is not the size of the model's input.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> native_size(tiny)
        (32, 32)
    """
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
    """Return which pixels a model takes, found by sending black and white images through the layers before its ViT.

    Returns:
        `"normalized"`: as its checkpoint's preprocessing makes them; `"pixels"`: [0, 255], because the model normalizes
        them itself; `"unit"`: [0, 1], likewise.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> input_range(tiny), input_range(keras.Sequential([keras.layers.Rescaling(1 / 127.5, -1), tiny]))
        ('normalized', 'pixels')
    """
    entry = _entry(model)
    image = entry.image
    if not entry.probe or image is None:
        return "pixels" if entry.normalizing else "normalized"

    height, width, channels = image.shape[1:]
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

    It is the checkpoint's own preprocessing (`GOOGLE` where there is none), less what the model does itself: a model
    that normalizes is given pixels, and one that resizes is given the whole image.

    Args:
        model: A ViT of this package, or a model with one inside.
        image_size: See `native_size`.

    Returns:
        A `Preprocessing`. Its `image_size` is `None` where the model takes images of any size and resizes them
        itself.

    Raises:
        ValueError: `image_size` is not the size of the model's input.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> served = keras.Sequential([keras.Input((None, None, 3)), vit.preprocessing(tiny), tiny])
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


def batch_preprocessing_of(model: keras.Model, image_size: Any = None) -> Preprocessing:
    """Return the preprocessing that turns images of different sizes into one batch for this model.

    It is `preprocessing_of`, with a size also for a model that takes images of any size and resizes them itself. That
    size is the one that the model's own resizing leaves as it is: the size of its ViT or, where the model crops, the
    larger one before the crop. So each image reaches the ViT as if it alone had been given to the model.

    Args:
        model: A ViT of this package, or a model with one inside.
        image_size: See `native_size`.

    Returns:
        A `Preprocessing`. Its `image_size` is `None` where neither the model nor its checkpoint names one.

    Raises:
        ValueError: `image_size` is not the size of the model's input.

    Example:
        >>> from vit_keras import preprocess, vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> cropping = preprocess.Preprocess(preprocess.GOOGLE.replace(crop=0.8), image_size=32)
        >>> served = keras.Sequential([keras.Input((None, None, 3)), cropping, tiny])
        >>> batch_preprocessing_of(served).image_size
        (40, 40)
    """
    own = preprocessing_of(model, image_size)
    if own.image_size is not None:
        return own
    inside = [layer.preprocessing for layer in _entry(model).resizing if isinstance(layer, Preprocess)]
    sized = [preprocessing for preprocessing in inside if preprocessing.image_size is not None]
    if not sized:
        return own.replace(image_size=native_size(find_vit(model)))
    size, crop, mode = sized[0].image_size, sized[0].crop, sized[0].crop_mode
    if crop is not None and size is not None:
        size = (math.floor(size[0] / crop), math.floor(size[1] / crop))
    whole = crop is None or mode == "squash"
    return own.replace(image_size=size, interpolation=sized[0].interpolation, crop=None if whole else 1.0)


def own_preprocessing(vit: keras.Model) -> Preprocessing:
    """Return how the images of a ViT's checkpoint are prepared: Google's way, if none was set.

    Also of a user's functional model that has the layers of a ViT: the first block remembers it.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> tiny.preprocessing = tiny.preprocessing.replace(mean=0.4)
        >>> own_preprocessing(keras.Model(tiny.input, keras.layers.Dense(3)(tiny.output))).mean
        (0.4, 0.4, 0.4)
    """
    return next((block.preprocessing for block in blocks(vit)), None) or GOOGLE


def remember_preprocessing(vit: keras.Model, preprocessing: Preprocessing) -> None:
    """Let a ViT know how its images are prepared; see `own_preprocessing`.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> remember_preprocessing(tiny, tiny.preprocessing.replace(interpolation="lanczos"))
        >>> tiny.preprocessing.interpolation
        'lanczos'
    """
    blocks(vit)[0].preprocessing = preprocessing

"""What any model with a Vision Transformer in it says about itself: the one place that answers.

The ViT may be the model itself, or nested in it at any depth; what stands before it (augmentation, preprocessing) and after it
(dropout, a head, a softmax) is looked at too. Whoever asks what pixels a model takes, whether its outputs are logits, or where its
blocks and its head are, asks here, so that all answers agree.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from typing import Any

import keras
import numpy as np
from keras import ops

from . import layers
from .config import size_pair
from .keras_internals import add_seed_generator, flat_layers, origin
from .preprocess import GOOGLE, Preprocess, Preprocessing

HEAD = ("pre_logits", "head", "head_dist")
"""Names of the layers of a ViT that are made anew for other classes."""

_PARTS = (layers.AddPositionEmbs, layers.AddSinCosPositionEmbs, layers.TransformerBlock, layers.MixerBlock)
_NORMALIZING = (Preprocess, keras.layers.Rescaling, keras.layers.Normalization)
_RESIZING = (Preprocess, keras.layers.Resizing, keras.layers.CenterCrop)

# --- the Vision Transformer and its parts -------------------------------------------------------------------------


def find_vit(model: keras.Model) -> keras.Model:
    """Find the Vision Transformer in a model: the model itself, or one nested in it at any depth.

    Args:
        model: Any Keras model.

    Returns:
        The innermost model whose own layers include this package's `AddPositionEmbs`, `TransformerBlock` or `MixerBlock`.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: There is no Vision Transformer, or more than one.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a Keras model. Received: {type(model).__name__}")
    models = [layer for layer in flat_layers(model) if isinstance(layer, keras.Model)]
    found = [m for m in models if any(isinstance(layer, _PARTS) for layer in m.layers)]
    if len(found) != 1:
        raise ValueError(
            f"Expected one Vision Transformer of vit_keras in the model {model.name!r}, found {len(found)}"
            + (": " + ", ".join(m.name for m in found) + ". Pass one of them." if found else ".")
        )
    return found[0]


def has_vit(model: Any) -> bool:
    """Return whether there is one Vision Transformer in a model."""
    with contextlib.suppress(TypeError, ValueError):
        return bool(find_vit(model))
    return False


def blocks(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the encoder blocks of a model in order: `TransformerBlock` or, in an MLP-Mixer, `MixerBlock`.

    Example:
        >>> from vit_keras import vit
        >>> len(blocks(vit.build_model(32, 16, 3, 16, 2, "tiny", 32, classes=2)))
        3
    """
    return [layer for layer in flat_layers(model) if isinstance(layer, (layers.TransformerBlock, layers.MixerBlock))]


def attention_blocks(model: keras.Model) -> list[layers.TransformerBlock]:
    """Return the transformer blocks of a model in order.

    Raises:
        ValueError: There are none, as in an MLP-Mixer.
    """
    found = [block for block in blocks(model) if isinstance(block, layers.TransformerBlock)]
    if not found:
        raise ValueError(f"The model {model.name!r} has no attention layer of vit_keras in it.")
    return found


def has_attention(model: Any) -> bool:
    """Return whether a model has one Vision Transformer, and that one has attention (an MLP-Mixer has none)."""
    return has_vit(model) and any(isinstance(block, layers.TransformerBlock) for block in blocks(find_vit(model)))


def prefix_names(vit: keras.Model) -> tuple[str, ...]:
    """Return the names of the tokens before the patches: `"cls"`, `"dist"`, `"reg0"` and so on."""
    inside = flat_layers(vit)
    single = ["dist" if "dist" in layer.name else "cls" for layer in inside if isinstance(layer, layers.ClassToken)]
    registers = sum(layer.count for layer in inside if isinstance(layer, layers.RegisterTokens))
    return (*sorted(single), *(f"reg{n}" for n in range(registers)))  # the class token comes before the other


def readout(vit: keras.Model) -> list[slice]:
    """Return the tokens of the last block that the output is read from; it is the mean of their means."""
    inside = flat_layers(vit)
    single = [slice(layer.index, layer.index + 1) for layer in inside if isinstance(layer, layers.ExtractToken)]
    means = [slice(layer.prefix_tokens, None) for layer in inside if isinstance(layer, layers.MeanToken)]
    prefix = prefix_names(vit)
    return single + means or [slice(0, 1) if "cls" in prefix else slice(len(prefix), None)]


def patch_grid(vit: keras.Model, image_size: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the patches down and across in a Vision Transformer.

    Args:
        vit: The model.
        image_size: Pixels of the images, `(height, width)`, for a model that takes any size.

    Raises:
        ValueError: The grid cannot be inferred: the model was cut out of another and its patches are not a square, or it takes
            images of any size and `image_size` was not given.
    """
    config = getattr(vit, "config", None)
    if config is not None and config.image_size is None:
        if image_size is None:
            raise ValueError(
                f"The model {vit.name!r} takes images of any size. Pass image_size=(height, width) to know its patch grid."
            )
        return config.grid_of(image_size)
    positions = next((layer for layer in vit.layers if isinstance(layer, layers.AddPositionEmbs)), None)
    if positions is not None and positions.grid:
        return positions.grid
    try:  # no position embeddings; or a model of vit-keras 0.x, whose layers did not know the grid
        return tuple(vit.get_layer("embedding").output.shape[1:3])
    except (ValueError, AttributeError):
        if positions is None or positions.patch_grid is None:
            raise ValueError(
                f"Cannot infer the patch grid of the model {vit.name!r}: its layer 'embedding' is not there and its position "
                "embeddings are not a square."
            ) from None
        return positions.patch_grid


def patch_stride(vit: keras.Model, image_size: tuple[int, int]) -> tuple[int, int]:
    """Return the pixels between two patches, down and across, in images of a size."""
    config = getattr(vit, "config", None)
    if config is not None:
        return config.stride
    return tuple(pixels // cells for pixels, cells in zip(image_size, patch_grid(vit, image_size)))


def heads(vit: keras.Model) -> list[keras.layers.Dense]:
    """Return the layers of a ViT that turn features into classes: one, DeiT's two, or none.

    Example:
        >>> from vit_keras import vit
        >>> [layer.name for layer in heads(vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10))]
        ['head']
    """
    dense = [layer for layer in vit.layers if isinstance(layer, keras.layers.Dense) and layer.name != "pre_logits"]
    return [layer for layer in dense if layer.name in HEAD] or dense[-1:]


def head_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return all layers that turn features into classes, those that a user put around the ViT too.

    Args:
        model: A Keras model.

    Returns:
        Of a model with this package's Vision Transformer in it: its `pre_logits` and heads, and all layers outside of it. Of
        another: the layers beside the models nested in it or, without any such, the last layer with weights.

    Raises:
        ValueError: There is no such layer.

    Example:
        >>> from vit_keras import vit
        >>> [layer.name for layer in head_layers(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=3))]
        ['head']
    """
    try:
        backbone = {id(layer) for layer in find_vit(model).layers if layer.name not in HEAD}
        found = [layer for layer in leaves(model) if layer.weights and id(layer) not in backbone]
    except ValueError:  # another's model
        weighted = [layer for layer in model.layers if layer.weights]
        found = [layer for layer in weighted if not isinstance(layer, keras.Model)]
        if len(weighted) == 1 and not found:
            return head_layers(weighted[0])
        found = found if len(found) < len(weighted) else found[-1:]
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no head to train. Build it with classes=…, or put a Dense layer behind it."
        )
    return found


def leaves(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers of a model that are not models themselves, those of nested models included."""
    return [leaf for layer in model.layers for leaf in (leaves(layer) if isinstance(layer, keras.Model) else [layer])]


def set_rates(vit: keras.Model, dropout: float | None = None, stochastic_depth: float | None = None) -> None:
    """Change the rates of dropout and of stochastic depth in the blocks of a model that exists; compile it afterwards.

    Args:
        vit: A Vision Transformer; see `find_vit`.
        dropout: As in `ViTConfig`, but only in the blocks. `None`: unchanged.
        stochastic_depth: As in `ViTConfig`, the rate of the last block. `None`: unchanged.

    Raises:
        ValueError: A rate is out of range, or cannot go with `remat`.
    """
    given = {"dropout": dropout, "stochastic_depth": stochastic_depth}
    given = {field: rate for field, rate in given.items() if rate is not None}
    config = getattr(vit, "config", None)
    if config is not None:
        # The rate after the embedding followed the old one, and stays.
        after_embedding = {"emb_dropout": config.embedding_dropout} if "dropout" in given else {}
        vit.config = config.replace(**given, **after_embedding)
    found = blocks(vit)
    for n, block in enumerate(found):
        if dropout is not None:
            for layer in (block, *(part for part in flat_layers(block) if isinstance(part, layers.MlpBlock))):
                layer.dropout = dropout
                for part in (getattr(layer, "dropout_layer", None), *getattr(layer, "layers", ())):
                    if isinstance(part, keras.layers.Dropout):
                        _set_rate(part, dropout)
        if stochastic_depth is not None and hasattr(block, "drop_path"):
            _set_rate(block.drop_path, stochastic_depth * n / max(len(found) - 1, 1))


def _set_rate(dropout, rate):
    dropout.rate = rate
    if rate:
        add_seed_generator(dropout)


# --- what goes in -------------------------------------------------------------------------------------------------


class _Entry:
    """What images go through between a model's input and the first block of its ViT.

    Attributes:
        image: The symbolic tensor of the images that go in; `None` where the model has no graph.
        front: Functional models, one after the other, from that tensor to the input of the ViT; none where that is the same.
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
        first = next(iter(blocks(vit)), None)
        entering = None if first is None else _entering(vit, first)
        operations, image = ([], None) if entering is None else _upstream(entering)
        self.image = image if self.image is None else self.image
        inside = [layer for layer in operations if isinstance(layer, _NORMALIZING)]
        self.normalizing = [layer for layer in passed if isinstance(layer, _NORMALIZING)] + inside
        self.resizing = [layer for layer in passed + operations if isinstance(layer, _RESIZING)]
        self.probe = self.front + ([keras.Model(image, inside[-1].output)] if inside else [])
        learned = any(layer.weights for layer in passed if isinstance(layer, keras.layers.Layer))
        if learned and not self.normalizing:  # features of the user's own, and no preprocessing
            self.probe = []


_entries: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _entry(model: keras.Model) -> _Entry:
    if model not in _entries:
        _entries[model] = _Entry(model, find_vit(model))
    return _entries[model]


def _way_to(model, vit):
    """Pairs of a model and the layer in it that is, or contains, the ViT, from the outermost on."""
    while model is not vit:
        parts = [layer for layer in model.layers if any(part is vit for part in flat_layers(layer))]
        if not parts:
            return
        yield model, parts[0]
        model = parts[0]
        if not isinstance(model, keras.Model):  # a layer that wraps the ViT
            return


def _entering(model, layer):
    """The symbolic tensor that a layer takes in the graph of a model; `None` where there is no graph, or not this layer in it."""
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
    """What a symbolic tensor is computed by, first to last, and the images that it is computed from."""
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
    """Return what stands before the ViT in a model (preprocessing, augmentation), as functional models one after the other.

    Returns:
        Models from the model's images to the ViT's. An empty list where there is nothing, or where the model has no graph
        (a subclass of `keras.Model`).

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> len(front(tiny)), len(front(keras.Sequential([keras.layers.RandomFlip(), tiny])))
        (0, 1)
    """
    return list(_entry(model).front)


def image_shape(model: keras.Model) -> tuple[int | None, ...]:
    """Return `(batch, height, width, channels)` of the images that a model takes; `None` for what may be of any size.

    Of a model with several inputs it is that of the one that leads to the ViT; of one without a graph, the ViT's.
    """
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
    """
    given = None if image_size in (None, "native") else size_pair(image_size, "image_size")
    fixed = image_shape(model)[1:3]
    if None in fixed:
        return given or _own_preprocessing(model).image_size
    if given not in (None, fixed):
        raise ValueError(
            f"{model.name!r} takes images of {fixed} pixels only. Received: image_size={image_size!r}. "
            "vit_keras.resize makes a model of another size."
        )
    return fixed


def input_range(model: keras.Model) -> str:
    """Return which pixels a model takes, found by sending black and white images through what stands before its ViT.

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
    if not entry.probe:
        return "pixels" if entry.normalizing else "normalized"

    def reaching(value):
        x = np.full((1, *(size or 32 for size in entry.image.shape[1:3]), entry.image.shape[3]), value, "float32")
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
    """Return what makes of a picture the input of this very model.

    It is the checkpoint's own preprocessing (`GOOGLE` where there is none), less what the model does itself: a model that
    normalizes is given pixels, and one that resizes is given the whole picture.

    Args:
        model: A ViT of this package, or a model with one inside.
        image_size: See `native_size`.

    Returns:
        A `Preprocessing`. Its `image_size` is `None` where the model takes pictures of any size and resizes them itself.

    Raises:
        ValueError: `image_size` is not the size of the model's input.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> served = keras.Sequential([keras.Input((None, None, 3)), vit.preprocessing(tiny), tiny])
        >>> preprocessing_of(tiny).image_size, preprocessing_of(served).image_size
        ((32, 32), None)
    """
    own = _own_preprocessing(model).for_channels(image_shape(model)[3])
    size = native_size(model, image_size)
    if _entry(model).resizing:
        any_size = None in image_shape(model)[1:3] and image_size in (None, "native")
        own = own.replace(image_size=None if any_size else size, crop=None)
    else:
        own = own.replace(image_size=size)
    scale = {"normalized": {}, "pixels": {"mean": 0.0, "std": 1 / 255}, "unit": {"mean": 0.0, "std": 1.0}}
    return own.replace(**scale[input_range(model)])


def batch_preprocessing_of(model: keras.Model, image_size: Any = None) -> Preprocessing:
    """Return what makes of pictures of different sizes one batch for this very model.

    It is `preprocessing_of`, and has a size also where the model takes pictures of any size and resizes them itself. That is
    the size in which the model's own resizing changes nothing: that of its ViT or, where the model crops, the larger one before
    the crop. So each picture reaches the ViT as if the model had been given it alone.

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
    if crop is not None:
        size = tuple(math.floor(side / crop) for side in size)
    whole = crop is None or mode == "squash"
    return own.replace(image_size=size, interpolation=sized[0].interpolation, crop=None if whole else 1.0)


def _own_preprocessing(model: keras.Model) -> Preprocessing:
    return getattr(find_vit(model), "preprocessing", GOOGLE)


# --- what comes out -----------------------------------------------------------------------------------------------


def outputs_of(model: keras.Model) -> list:
    """Return the symbolic outputs of a model.

    Raises:
        ValueError: It has none, being a subclass of `keras.Model`.
    """
    outputs = getattr(model, "outputs", None)
    if not outputs:
        raise ValueError(
            f"Cannot infer what the output of the model {model.name!r} comes from: it is a subclass of keras.Model."
        )
    return list(outputs)


def last_activation(model: keras.Model) -> str:
    """Return the name of the function that a model's first output comes from: `"linear"` means logits, or features.

    Raises:
        ValueError: The model is a subclass of `keras.Model`, which has no graph to look at.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> last_activation(keras.Sequential([tiny, keras.layers.Softmax(), keras.layers.Dropout(0.1)]))
        'softmax'
    """
    return _activation(_source(outputs_of(model)[0]))


def last_layer(model: keras.Model) -> Any:
    """Return the layer that gives a model's output, however deep it is nested; `None` where that cannot be inferred."""
    layer: Any = model
    while isinstance(layer, keras.Model):
        outputs = getattr(layer, "outputs", None)
        one = outputs is not None and len(outputs) == 1 and not isinstance(layer, keras.Sequential)
        layer = origin(outputs[0])[0] if one else layer.layers[-1] if layer.layers else None
    return layer


def _source(output):
    """What gives a tensor its values: the operations that change none, or only scale them, are passed over."""
    while True:
        operation, inputs = origin(output)
        if isinstance(operation, keras.Model):
            output = outputs_of(operation)[0]
        elif _activation(operation) == "linear" and isinstance(operation, _PASSING) and inputs:
            output = inputs[0]
        else:
            return operation


def _activation(operation) -> str:
    if isinstance(operation, keras.layers.Layer) and not isinstance(operation, keras.layers.Softmax):
        return getattr(getattr(operation, "activation", None), "__name__", "linear")
    name = type(operation).__name__.lower()  # a layer, or an operation of keras.ops
    return name if name in _PROBABILITIES else "linear"


_PROBABILITIES = ("softmax", "sigmoid")
_PASSING = (
    keras.layers.Activation,
    keras.layers.Average,
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Identity,
    keras.layers.Rescaling,
    keras.layers.Reshape,
)


def output_kind(model: keras.Model) -> str | None:
    """Return what the output of a model is.

    Returns:
        `"logits"` or `"probabilities"` of classes; `"features"` of a model without a head; `None` where it cannot be inferred
        (a subclass of `keras.Model`, or an operation that is not known).

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> output_kind(tiny), output_kind(keras.Sequential([tiny, keras.layers.Softmax()]))
        ('logits', 'probabilities')
        >>> output_kind(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, include_top=False))
        'features'
    """
    if not getattr(model, "outputs", None):
        return None
    source = _source(model.outputs[0])
    if _activation(source) in _PROBABILITIES:
        return "probabilities"
    if isinstance(source, keras.layers.Dense) and _activation(source) == "linear":
        return "logits"
    known = isinstance(source, keras.layers.Layer) and not isinstance(source, keras.layers.Lambda)
    return "features" if known else None


def lack_of_classes(model: keras.Model) -> str | None:
    """Return why a model is no classifier of one output `(batch, classes)`; `None` if it is one.

    Example:
        >>> from vit_keras import vit
        >>> lack_of_classes(vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2, include_top=False))
        'it has no head, and returns 16 features'
    """
    outputs = getattr(model, "outputs", None)
    if outputs is not None and len(outputs) != 1:
        return f"it has {len(outputs)} outputs"
    shape = tuple(getattr(model, "output_shape", None) or ())
    if outputs is not None and len(shape) != 2:
        return f"its output has the shape {shape}"
    if output_kind(model) == "features":
        return f"it has no head, and returns {shape[1]} features"
    return None


def probabilities(model: keras.Model, outputs: Any) -> np.ndarray:
    """Return the probabilities of the classes that a classifier's outputs stand for.

    Args:
        model: The classifier.
        outputs: `(batch, classes)`, what it returned.

    Returns:
        float32 `(batch, classes)`: of logits their softmax, else the outputs. Where `output_kind` cannot tell, outputs that are
        not negative and sum to 1 count as probabilities.

    Raises:
        ValueError: The model is no classifier.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> probabilities(tiny, np.zeros((1, 2)))
        array([[0.5, 0.5]], dtype=float32)
    """
    if lack := lack_of_classes(model):
        raise ValueError(f"The model {model.name!r} is no classifier: {lack}.")
    outputs = np.asarray(ops.convert_to_numpy(outputs) if ops.is_tensor(outputs) else outputs, "float32")
    kind = output_kind(model)
    # Half precision sums to 1 within a hundredth.
    sums_to_1 = bool((outputs >= 0).all()) and np.allclose(outputs.sum(axis=-1), 1, atol=1e-2)
    return outputs if kind == "probabilities" or (kind is None and sums_to_1) else softmax(outputs)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, in float32.

    Example:
        >>> softmax(np.array([[0.0, 0.0]]))
        array([[0.5, 0.5]], dtype=float32)
    """
    powers = np.exp(logits - np.max(logits, axis=-1, keepdims=True), dtype="float64")
    return (powers / powers.sum(axis=-1, keepdims=True)).astype("float32")

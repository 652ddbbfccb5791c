"""Which layers of a model are trained: all, the head, or the last blocks with it."""

from __future__ import annotations

from collections.abc import Iterator

import keras

from .. import layers

# The part of a Vision Transformer that is made anew for other classes.
HEAD = ("pre_logits", "head", "head_dist")


def train_only(model: keras.Model, what: str | int) -> None:
    """Freeze all layers of a model but some; compile it afterwards.

    Args:
        model: A Keras model.
        what: `"all"`: none is frozen. `"head"`: what turns features into classes, see `head_layers`. A number: also the last
            normalisation and so many of the last blocks of the Vision Transformer.

    Raises:
        ValueError: There is no head, or there are no blocks.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3)
        >>> train_only(model, "head")
        >>> [variable.path for variable in model.trainable_variables]
        ['head/kernel', 'head/bias']
    """
    trained = list(_leaves(model)) if what == "all" else head_layers(model)
    if isinstance(what, int):
        vit_layers = layers.find_vit(model).layers
        blocks = [index for index, layer in enumerate(vit_layers) if "encoderblock_" in layer.name]
        trained += vit_layers[blocks[-min(what, len(blocks))] :]
    trained = {id(layer) for layer in trained}
    model.trainable = True
    for layer in _leaves(model):
        _set_trainable(layer, id(layer) in trained)


def head_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """What turns features into classes.

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
        backbone = {id(layer) for layer in layers.find_vit(model).layers if layer.name not in HEAD}
        found = [layer for layer in _leaves(model) if layer.weights and id(layer) not in backbone]
    except ValueError:  # another's model
        weighted = [layer for layer in model.layers if layer.weights]
        found = [layer for layer in weighted if not isinstance(layer, keras.Model)]
        if len(weighted) == 1 and not found:
            return head_layers(weighted[0])
        found = found if len(found) < len(weighted) else found[-1:]
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no head to train: give it one (classes=…), or put a Dense layer behind it."
        )
    return found


def _leaves(model: keras.Model) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _leaves(layer)
        else:
            yield layer


def _set_trainable(layer, value):
    """Freeze or thaw a layer, all layers inside of it, and all their variables, whatever was set on each before."""
    for part in layer._flatten_layers():
        part.trainable = not value  # TensorFlow ignores what is no change, and does not reach the variables
        part.trainable = value

"""What is around the Vision Transformer in a model, by its graph: what leads to the last block is the ViT's own."""

from __future__ import annotations

from typing import Any

import keras

from ..backend.keras_internals import OWN_VARIABLES, flat_layers, origin
from ..layers.tokens import MeanToken
from .parts import BLOCKS, HEADS, find_vit, learner

_BEHIND = ("Transformer_encoder_norm", "fc_norm", "MAPHead_0")
"""Names of the layers with weights that a ViT has behind its last block, except its head."""


def backbone(model: keras.Model) -> set[keras.layers.Layer]:
    """Return all layers of the ViT in a model, at any depth: what leads to its last block, its norm and its pooling."""
    vit = find_vit(model)
    blocks = [layer for layer in vit.layers if isinstance(layer, BLOCKS)]
    graph = upstream(*getattr(vit, "outputs", None) or ())
    if not blocks:
        own = list(vit.layers)
    elif blocks[-1] in graph:
        own = [blocks[-1], *upstream(*graph[blocks[-1]])]
    else:  # a subclass of keras.Model: its layers are known, and taken for a chain
        own = vit.layers[: vit.layers.index(blocks[-1]) + 1]
    own += [layer for layer in vit.layers if layer.name in _BEHIND]
    return {part for each in own if isinstance(each, keras.layers.Layer) for part in flat_layers(each)}


def around(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers with weights of their own around the ViT, at any depth: heads, and what a user added."""
    model = learner(model)
    inside = backbone(model)
    return [layer for layer in flat_layers(model) if layer not in inside and own_variables(layer)]


def heads(vit: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that take a ViT's features in its own graph: its head, DeiT's two, a user's own, or none."""
    inside, graph = backbone(vit), upstream(*getattr(vit, "outputs", None) or ())
    mine = [each for each in vit.layers if any(mixes(x) and x not in inside for x in flat_layers(each))]
    mine = [each for each in mine if each in graph and each.name != "pre_logits"]
    above = {each: upstream(*graph[each]) for each in mine}
    last = [layer for layer in vit.layers if isinstance(layer, BLOCKS)][-1:]
    return [x for x in mine if not {*mine} & {*above[x]} and all(block in above[x] for block in last)]


def head_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that are trained for new classes: those around the ViT, or the last ones of another's model."""
    model = learner(model)
    try:
        found = around(model)
    except ValueError:  # another's model
        weighted = [layer for layer in model.layers if layer.weights]
        found = [layer for layer in weighted if not isinstance(layer, keras.Model)]
        if len(weighted) == 1 and not found:
            return head_layers(weighted[0])
        found = found if len(found) < len(weighted) else found[-1:]
    if not found:
        raise ValueError(
            f"The model {model.name!r} has no head to train. Build it with classes=…, put a Dense layer behind it, or "
            "freeze layers by layer.trainable = False and pass train=None."
        )
    return found


_LAST = (
    *_BEHIND,
    *("ExtractToken", "ExtractDistillationToken", "token_and_mean", "pre_logits", "tokens_average"),
    *(*HEADS, "heads_average"),
)


def last_layer_of(vit: keras.Model) -> keras.layers.Layer:
    """Return the last layer of a ViT as `build` makes it; a user may have put others behind it in the same graph."""
    own = [each for each in vit.layers if each.name in _LAST or isinstance(each, (*BLOCKS, MeanToken))]
    after = [each for each in vit.layers if each.name == "activation" and own[-1].name == "heads_average"]
    return (after or own)[-1]


def alone(vit: keras.Model) -> keras.Model:
    """Return a ViT without the layers that a user has put behind it in the same graph, if any."""
    last = last_layer_of(vit).output
    if keras.tree.flatten(vit.output) == [last]:
        return vit
    before = upstream(last)
    inputs = [x for x in vit.inputs if origin(x)[0] in before]
    return keras.Model(inputs if inputs[1:] else inputs[0], last, name=vit.name)


def operations_around(model: keras.Model) -> list[Any]:
    """Return the layers and operations around the ViT in a model, at any depth, that change the outputs."""
    vit, found = find_vit(model), []
    own = {*alone(vit).operations}
    for holder in flat_layers(learner(model)):
        if isinstance(holder, keras.Model) and vit in flat_layers(holder):
            found += getattr(holder, "operations", None) or holder.layers
    silent = (keras.layers.InputLayer, keras.layers.Dropout, keras.layers.Identity)
    found = [each for each in found if each not in own and not isinstance(each, silent)]
    return [each for each in found if not (isinstance(each, keras.layers.Layer) and vit in flat_layers(each))]


def own_variables(layer: keras.layers.Layer, learned: bool = False) -> list[keras.Variable]:
    """Return the variables of a layer itself, without layers inside it and random generators; or those it learns."""
    return [variable for name in OWN_VARIABLES[: 1 if learned else 2] for variable in getattr(layer, name)]


def mixes(layer: keras.layers.Layer) -> bool:
    """Return whether a layer has a kernel of its own; a normalization or a scale has only vectors."""
    return any(len(variable.shape) > 1 for variable in own_variables(layer))


def upstream(*tensors: Any) -> dict[Any, list[Any]]:
    """Return the operations that symbolic tensors come from, the last first, each with the tensors that it takes."""
    found: dict[Any, list[Any]] = {}
    waiting = list(tensors)
    while waiting:
        operation, inputs = origin(waiting.pop())
        if operation not in found:
            found[operation] = inputs
            waiting += inputs
    return found

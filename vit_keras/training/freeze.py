"""Freeze a model except for its head, or for its head and its last blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import keras

from .._internal.validate import one_of, positive_integer
from ..anatomy import blocks
from ..anatomy.around import head_layers, own_variables
from ..anatomy.parts import find_vit, learner
from ..backend.keras_internals import flat_layers

__all__ = ["head_layers", "train_only"]


def train_only(model: keras.Model, what: str | int) -> None:
    """Freeze all layers of a model but some. Compile the model afterwards."""
    count = None if isinstance(what, str) else positive_integer(what, "what, the number of last blocks,")
    if count is None:
        one_of(what, "what", ("all", "head"))
        trained = [learner(model)] if what == "all" else head_layers(model)
    else:
        trained, vit = heads_if_any(model), find_vit(model)
        last = blocks(vit)[-count:]
        if not last:
            raise ValueError(f"The model {vit.name!r} has no blocks to train. Pass 'all' or 'head'.")
        trained += vit.layers[vit.layers.index(last[0]) :]
    train_layers(model, trained)


def heads_if_any(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the `head_layers` of a model; none for a backbone, whose features are trained."""
    with contextlib.suppress(ValueError):
        return head_layers(model)
    return []


def train_layers(model: keras.Model, trained: Sequence[keras.layers.Layer]) -> None:
    """Freeze all layers of a model, or of its student or encoder, but these."""
    model, chosen = learner(model), {part for layer in trained for part in flat_layers(layer)}
    for layer in flat_layers(model):  # a layer that is frozen freezes those inside it
        wanted = layer is model or not chosen.isdisjoint(flat_layers(layer))
        layer.trainable = not wanted  # TensorFlow skips an unchanged value, and its variables with it
        layer.trainable = wanted
    for layer in flat_layers(model):
        for variable in () if layer in chosen else own_variables(layer):
            variable.trainable = False

"""What a compiled function has read of layers: once any of it has changed, the function is compiled again.

Setting an attribute of a layer of this package gives the layer a new number. Of other layers, all attributes count.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import keras

from .keras_internals import OWN_VARIABLES

_numbers = itertools.count(1)
latest: int = 0
"""The number of the layer that has changed last."""

KEPT_BY_KERAS = {"_called", "_parent_path", "_path", "_losses_override", "_torch_params", "_build_shapes_dict"}
"""Attributes that Keras sets while it builds or calls a layer, and that no output depends on."""

NUMBER = "_changed"
"""The attribute with the number of a layer of this package."""


def note(layer: Any) -> None:
    """Give a layer that has changed the next number."""
    global latest
    latest = layer.__dict__[NUMBER] = next(_numbers)


def watch(layer: keras.layers.Layer) -> tuple[list[Any], list[keras.Variable]]:
    """Return what a function compiled of a layer has read of it and of the layers inside it, and their variables."""
    state, variables, waiting = [], [], [layer]
    while waiting:
        each = waiting.pop()
        own = each.__dict__
        state.append(type(each).call)
        if NUMBER in own:
            state.append(own[NUMBER])
        elif not isinstance(each, keras.Model):
            state += own.values()
        for name in OWN_VARIABLES:
            variables += own[name]
        waiting += own["_layers"]
    return state, variables


def is_same(state: Any, other: Any) -> bool:
    """Return whether two states have the same objects: as long as a state is kept, no other object has their ids."""
    return len(state) == len(other) and all(map(operator.is_, state, other))

"""A function of a model and of batches of tensors, compiled once for all later calls.

TensorFlow and JAX run a model many times slower operation by operation than as one compiled function, and a user who writes
`model(images)` should not have to know. PyTorch needs nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any

import keras

_compiled: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


# So many functions of a model are kept compiled; of more, those that were not called for longest are forgotten.
_KEPT = 32


def run(model: keras.Model, function: Callable, *tensors: Any, key: Hashable) -> Any:
    """Call `function(model, *tensors)` compiled; it must not change a variable, save for drawing random numbers.

    There is one compilation for each `key`, image size and dtype; the batch may be of any size (JAX compiles for each).
    What is set on the model's layers and is read while compiling (which variables there are, activations, rates of dropout) is watched:
    after a change there is another compilation. A model with `run_eagerly` set is not compiled.

    Args:
        model: Any Keras model that is built.
        function: What to compute: from the model and the tensors to a structure of tensors.
        tensors: Each `(batch, ...)`; the images first.
        key: What tells this function from others that the same model is run with.

    Returns:
        What `function` returns.
    """
    if model.run_eagerly:
        return function(model, *tensors)
    runs, state = _compiled.setdefault(model, {}), _state(model)
    if runs.get("state") != state:
        runs.clear()
        runs["state"] = state
    key = (key, *((tuple(t.shape[1:]), keras.backend.standardize_dtype(t.dtype)) for t in tensors))
    compiled = runs.pop(key, None) or _COMPILERS[keras.backend.backend()](weakref.ref(model), function, tensors)
    runs[key] = compiled  # the last of them, as the one that was called last
    while len(runs) > _KEPT + 1:
        runs.pop(next(key for key in runs if key != "state"))
    return compiled(*tensors)


def _state(model: keras.Model) -> tuple:
    layers = tuple(model._flatten_layers())
    return (
        tuple(id(v) for v in model.variables),
        tuple((getattr(layer, "activation", None), getattr(layer, "rate", None)) for layer in layers),
    )


def _tensorflow(model: weakref.ref, function: Callable, tensors: tuple) -> Callable:
    import tensorflow as tf

    signature = [tf.TensorSpec((None, *t.shape[1:]), t.dtype) for t in tensors]
    # A partial, and not a function in here: TensorFlow would take all of these for one that is traced again and again, and warn.
    return tf.function(functools.partial(_call, model, function), input_signature=signature, autograph=False)


def _call(model: weakref.ref, function: Callable, *tensors: Any) -> Any:
    return function(model(), *tensors)


def _jax(model: weakref.ref, function: Callable, tensors: tuple) -> Callable:
    import jax

    variables = model().variables  # in this order for good: freezing a layer must not change it

    @jax.jit
    def compiled(values, *x):
        with keras.StatelessScope(state_mapping=list(zip(variables, values))):
            return function(model(), *x)

    return lambda *x: compiled([v.value for v in variables], *x)


def _torch(model: weakref.ref, function: Callable, tensors: tuple) -> Callable:
    return functools.partial(_call, model, function)


_COMPILERS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}

"""A function of a model and of batches of tensors, compiled once for all later calls.

TensorFlow and JAX run a model many times slower operation by operation than as one compiled function, and a user who
writes `model(images)` should not have to know. PyTorch needs nothing (`direct`).

A model of this package also notices when what Keras compiled of it, a step of `fit` for one, was compiled from layers
that have changed since. Keras' own models, also around ours, do as Keras does: their `compile` drops such steps.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import keras

from . import distribution, openvino
from .changes import is_same, watch
from .keras_internals import flat_layers, kept, outside_of_scopes

KEPT = 32
"""Size of the cache of compiled functions of a model: the ones that were not called for longest are dropped."""


class _Cache:
    """The compiled functions of one model, and the state of the model that they were compiled in."""

    def __init__(self):
        self.state: list[Any] = []
        self.functions: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()
        self.lock = threading.Lock()  # a server calls one model from several threads

    def get(self, state: list[Any], key: Hashable, compile: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        with self.lock:
            if not is_same(state, self.state):
                self.functions.clear()
                self.state = state
            if key not in self.functions:
                self.functions[key] = compile()
            self.functions.move_to_end(key)
            while len(self.functions) > KEPT:
                self.functions.popitem(last=False)
            return self.functions[key]


def run(
    model: keras.Model, function: Callable[..., Any], *tensors: Any, key: Hashable, training: bool | None = None
) -> Any:
    """Return `function(model, *tensors)`, compiled; it may draw random numbers, but not change other variables."""
    # One compilation for each `key`, image size and dtype serves any batch (JAX compiles for each size). A
    # function with `training` only calls the model, and TensorFlow compiles it once for all sizes that the model takes.
    # After a change, functions are compiled again. A compiled call adds nothing to `losses`.
    if model.run_eagerly:
        return function(model, *tensors)
    backend = keras.backend.backend()
    shapes = [tuple(t.shape[1:]) for t in tensors]
    if training is not None and backend == "tensorflow":
        shapes = [x.shape[1:] for x in model.inputs]
    specs = tuple((shape, keras.backend.standardize_dtype(t.dtype)) for shape, t in zip(shapes, tensors))

    def compile():
        adds_losses = any(vars(layer).get("activity_regularizer") is not None for layer in flat_layers(model))
        return _COMPILERS["torch" if adds_losses else backend](weakref.ref(model), function, specs)

    compiled = kept(model, "compiled functions", _Cache).get(_state(model), (key, *specs), compile)
    with outside_of_scopes():
        return compiled(*tensors)


_STEPS = ("train_function", "test_function", "predict_function", "ov_compiled_model")


def is_outdated(model: keras.Model, step: str) -> bool:
    """Return whether a model has changed since this was last asked for a step, so that Keras must compile it again."""
    if keras.backend.backend() == "torch":  # where Keras compiles nothing, and torch.compile looks for changes itself
        return False
    states, now = kept(model, _STATES, dict), _state(model)
    outdated = not is_same(states.setdefault(step, now), now)
    states[step] = now
    if outdated and openvino.is_active():
        model.ov_compiled_model = None
    return outdated


_STATES = "states of the compiled steps"


def forget(model: keras.Model, **others: Any) -> None:
    """Drop the compiled steps of `fit`, `evaluate` and `predict` of a model of any class, or put others there."""
    model.train_function, model.test_function, model.predict_function, own = (others.get(step) for step in _STEPS)
    if openvino.is_active():
        model.ov_compiled_model = own


@contextlib.contextmanager
def set_aside(model: keras.Model) -> Iterator[None]:
    """Let a model compile steps of its own in the block, and have those of before after it."""
    states, steps = kept(model, _STATES, dict), {step: vars(model).get(step) for step in _STEPS}
    before = dict(states)
    forget(model)
    try:
        yield
    finally:
        forget(model, **steps)
        states.clear()
        states.update(before)


def _state(model: keras.Model) -> list[Any]:
    """Return what a change of the model changes, and on OpenVINO, which compiles the weights too, these."""
    return [*watch(model)[0], *(openvino.values(model) if openvino.is_active() else ())]


def _tensorflow(model: weakref.ref, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
    import tensorflow as tf

    signature = [tf.TensorSpec((None, *shape), dtype) for shape, dtype in specs]
    # A partial, and no function defined here: TensorFlow would take all of these for one that is traced again and
    # again.
    return tf.function(functools.partial(_call, model, function), input_signature=signature, autograph=False)


def _call(model: weakref.ref, function: Callable[..., Any], *tensors: Any) -> Any:
    return function(model(), *tensors)


def _jax(model: weakref.ref, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
    import jax

    alive = model()
    if alive is None:
        raise ReferenceError("The model is deleted: it cannot be compiled.")
    variables = alive.variables  # in this order for good: freezing a layer must not change it
    del alive

    @functools.partial(jax.jit, out_shardings=distribution.whole_outputs())
    def compiled(values, *x):
        with keras.StatelessScope(state_mapping=list(zip(variables, values))):
            return function(model(), *x)

    return lambda *x: compiled([v._value for v in variables], *x)


def _torch(model: weakref.ref, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
    return functools.partial(_call, model, function)


def _openvino(model: weakref.ref, function: Callable[..., Any], specs: tuple[Any, ...]) -> Callable[..., Any]:
    compiled = openvino.compile_function(functools.partial(_call, model, function), specs)
    compiled.values = openvino.values(model())  # as long as these are alive, no others have their ids
    return compiled


_COMPILERS = {"tensorflow": _tensorflow, "jax": _jax, "openvino": _openvino, "torch": _torch}

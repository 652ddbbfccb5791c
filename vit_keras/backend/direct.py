"""PyTorch without Keras' bookkeeping: a layer's `call` is called directly where `Layer.__call__` would add nothing.

Of a small model, two fifths of the time were spent in `Layer.__call__`, some 130 times an image. What it does (casting,
hooks, regularizers, masks, building, scopes) is looked up at once for a layer and all layers inside it, such as a
block. What their attributes say is known until one has been set (`changes`). If there is nothing to do, `call` runs
alone. If a check fails, Keras runs as usual.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras

from . import changes
from .keras_internals import OWN_POLICY, call_outermost, distribution, is_outermost, thread_state

logger: logging.Logger = logging.getLogger("vit_keras")

enabled: bool = os.environ.get("VIT_KERAS_DIRECT", "1").lower() not in ("0", "false", "no", "off")
"""Whether calls may be direct: the environment variable `VIT_KERAS_DIRECT`, until a check of a layer fails."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of PyTorch's modules that hold the hooks of each. These names are private, as some below."""

STOCK = (keras.layers.Conv2D, keras.layers.Dense, keras.layers.LayerNormalization, keras.layers.Reshape)
"""Keras' own layers in a ViT, which rely on nothing but their `call`; a subclass may rely on anything."""

_Inside = dict[Any, tuple[Any, ...]]
_ASK: _Inside = {}
_KERAS: _Inside = {}
_here: contextvars.ContextVar[_Inside] = contextvars.ContextVar("vit_keras_direct", default=_ASK)
"""The layers that are called directly inside the layer around, and what they take (`_what_is_taken`). Another layer
looks for those inside it; with `_ASK`, also for what takes part in the calls of all layers; with `_KERAS`, for none."""


@contextlib.contextmanager
def asked_once(directly: bool) -> Iterator[None]:
    """Let all layers rely on what takes part in the calls of all layers now; if not `directly`, Keras calls them."""
    token = _here.set({} if directly and _here.get() is not _KERAS and _process_is_plain() else _KERAS)
    try:
        yield
    finally:
        _here.reset(token)


def is_ours(cls: type) -> bool:
    """Return whether a class is of this package."""
    return cls.__module__.partition(".")[0] == __name__.partition(".")[0]  # a user's may rely on anything


class Direct(keras.layers.Layer):
    """A base of layers: `call` runs alone where nothing else is to be done."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _is_compiling():  # which stops at context variables
            here = _here.get()
            inside = here if self in here else _looked_up(self, args, here)  # as `plain_inside`, without its call
            if inside and _takes(inside[self], args, kwargs):
                if not inside[self][1]:
                    kwargs.pop("training", None)  # as Keras does
                if inside is here:
                    return self.call(*args, **kwargs)
                token = _here.set(inside)
                try:
                    return self.call(*args, **kwargs)
                finally:
                    _here.reset(token)
        return super().__call__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        is_change = own.get("built") and own.get(name, self) is not value and name not in changes.KEPT_BY_KERAS
        super().__setattr__(name, value)
        if name in own.get("_modules", ()):  # PyTorch looks there last, which takes a microsecond
            own[name] = own["_modules"][name]
        if is_change:
            changes.note(self)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__.get("_modules", ()):
            self.__dict__.pop(name, None)
        super().__delattr__(name)
        changes.note(self)


def call_model(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], by_keras: Callable[..., Any]) -> Any:
    """Call a functional model of one input: without Keras' bookkeeping if no layer is around it."""
    is_plain = not kwargs.keys() - {"training"} and plain_inside(model, args, kwargs)
    if is_plain and is_outermost(model, args[0]):
        return call_outermost(model, args[0], kwargs.get("training"))
    return by_keras(*args, **kwargs)


def stock_call(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that calls an operation: its own `call` if it is in `STOCK` and nothing prevents it."""
    kind = type(layer)
    if kind not in STOCK or _PATH is None or kind.__call__ is not _PATH[2]:
        return call

    def directly(*args, **kwargs):
        if not plain_inside(layer, args, kwargs):
            return call(*args, **kwargs)
        if kind is keras.layers.Reshape and -1 not in layer.target_shape:  # which computes it at each call
            return args[0].reshape(len(args[0]), *layer.target_shape)
        return layer.call(*args, **kwargs)

    return directly


def plain_inside(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Inside | None:
    """Return what is called directly inside, if `layer(*args, **kwargs)` does no more than `call` would, or `None`."""
    inside = _KERAS if _is_compiling() else _here.get()
    if layer not in inside:
        inside = _looked_up(layer, args, inside)
    return inside if inside and _takes(inside[layer], args, kwargs) else None


def _takes(taken: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether Keras would pass these arguments on as they are to a layer that takes what is `taken`."""
    # Asked 140 times an image: every microsecond here is half a percent of the smallest model.
    dtype, reads_training, axes = taken
    if len(args) != 1 or type(x := args[0]) is not _torch.Tensor or x.dtype is not dtype:
        return False
    for axis, size in axes:
        if x.shape[axis] != size:
            return False
    if reads_training and kwargs.get("training") is None:  # which Keras looks for
        return False
    for value in kwargs.values():
        if value is not False and value is not None and value is not True and not _is_passed_on(value, dtype):
            return False
    return True


def is_direct(x: Any) -> bool:
    """Return whether operations on a tensor may be PyTorch's own instead of those of `keras.ops`."""
    if _is_compiling() or type(x) is not _torch.Tensor or x.is_meta:
        return False  # Keras infers shapes with tensors of the device "meta"
    return enabled and _here.get() is not _KERAS


def give_up(error: Exception) -> None:
    """Call every layer through Keras from now on, and log why."""
    global enabled
    if enabled:
        enabled = False
        logger.info("All layers are called through Keras now: %s: %s", type(error).__name__, error)


def _path() -> tuple[Any, ...]:
    """Return the functions that the call of a layer goes through."""
    module, layer = _torch.nn.Module, keras.layers.Layer
    return module.__call__, module._call_impl, layer.__call__, layer.forward, keras.Operation.__call__


_torch: Any = sys.modules.get("torch") if keras.backend.backend() == "torch" else None
_PATH: Any = _path() if _torch else None
_is_compiling: Callable[[], bool] = _torch.compiler.is_dynamo_compiling if _torch else lambda: True
"""Whether `call` must not run alone: `torch.compile` follows it, or the backend is another one."""


def _process_is_plain() -> bool:
    """Return whether nothing takes part in the calls of all layers."""
    try:
        if _path() != _PATH or _torch.nn.modules.module._has_any_global_hook():
            return False
        profiled = _torch.autograd.profiler._is_profiler_enabled
        return not (profiled or _torch.jit.is_tracing()) and distribution() is None
    except Exception as error:
        give_up(error)
        return False


_KNOWN = "_known_to_direct"  # the attribute with what is known of a layer until any layer of this package changes


def _looked_up(layer: Any, args: tuple[Any, ...], here: _Inside) -> _Inside | None:
    """Return what is called directly inside a layer, with the layer itself, or nothing if Keras must call it."""
    if not enabled or here is _KERAS or (here is _ASK and not _process_is_plain()):
        return None
    try:
        own = layer.__dict__
        number, inside, hooks = own.get(_KNOWN, (None, {}, ()))
        if number != changes.latest or any(hooks):
            number, inside = changes.latest, _inside_of(layer)
            hooks = [each.__dict__[name] for each in inside for name in HOOKS]
            if inside and changes.NUMBER in own:
                own[_KNOWN] = number, inside, hooks
        if {type(each).forward for each in inside} - {_PATH[3]}:
            return None
        policy, spec, scope = own[OWN_POLICY], own["_input_spec"], thread_state().get("autocast_scope")
        if policy.compute_dtype != (policy.variable_dtype if scope is None else scope.dtype):
            return None  # variables are read in another dtype here
        is_whole = bool(inside and args) and _is_passed_on(args[0], inside[layer][0])
        return inside if is_whole and (spec is None or args[0].ndim >= (spec.min_ndim or 0)) else None
    except Exception as error:
        give_up(error)
        return None


def _inside_of(layer: Any) -> _Inside:
    """Return what each layer takes that is called directly: this one, and inside it those of this package."""
    inside, waiting = {}, [layer]
    for each in waiting:  # which grows
        is_one = is_ours(type(each)) or (each is layer and type(each) in STOCK)
        if is_one and (taken := _what_is_taken(each, each.__dict__, layer.__dict__[OWN_POLICY])):
            inside[each] = taken
            waiting += each.__dict__["_layers"] if changes.NUMBER in each.__dict__ else ()
    return inside


def _what_is_taken(layer: Any, own: dict[str, Any], around: Any) -> tuple[Any, ...] | None:
    """Return the dtype that a layer takes, if it reads `training`, and sizes by axis; or `None` if Keras must look."""
    if not own["built"] or "forward" in own or any(own[name] for name in HOOKS):
        return None
    if layer._compiled_call_impl is not None or own["activity_regularizer"] is not None:
        return None
    policy, spec, reads_training = own[OWN_POLICY], own["_input_spec"], getattr(layer, "_reads_training", False)
    if own["_remat_mode"] is not None or type(policy) is not keras.DTypePolicy:
        return None  # a policy that quantizes
    if policy.name != around.name or (not own["autocast"] and any(each._autocast for each in layer.variables)):
        return None  # variables are read in another dtype than those of the layer around
    if reads_training and "training" not in own.get("call_signature_parameters", ("training",)):
        return None  # Keras does not pass it on: `call` was another function when the layer was made
    if spec is not None and (spec.shape or spec.ndim or spec.max_ndim or spec.dtype):
        return None  # a dense layer says what it takes in another way
    return getattr(_torch, policy.compute_dtype), reads_training, [*spec.axes.items()] if spec else []


def _is_passed_on(x: Any, dtype: Any) -> bool:
    """Whether Keras would pass this tensor on as it is."""
    if type(x) is not _torch.Tensor or (x.dtype is not dtype and x.is_floating_point()):
        return False
    return not x.is_meta and getattr(x, "_keras_mask", None) is None

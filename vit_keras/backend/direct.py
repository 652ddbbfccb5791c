"""PyTorch without Keras' bookkeeping: a layer's `call` is called directly where `Layer.__call__` would add nothing.

Of a small model, two fifths of the time were spent in `Layer.__call__`, some 130 times an image. What it does (casting,
hooks, regularizers, masks, building, scopes) is looked up at each call. If there is nothing to do, `call` runs alone.
If a check fails, Keras runs as usual. Attributes of a layer of this package are checked again when one has been set
(`changes`).
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import keras

from .changes import NUMBER
from .keras_internals import OWN_POLICY, call_outermost, distribution, is_outermost, thread_state

logger: logging.Logger = logging.getLogger("vit_keras")

if TYPE_CHECKING:
    _Layer = keras.layers.Layer
else:
    _Layer = object

_PACKAGE: str = __name__.partition(".")[0]

enabled: bool = os.environ.get("VIT_KERAS_DIRECT", "1").lower() not in ("0", "false", "no", "off")
"""Whether calls may be direct: the environment variable `VIT_KERAS_DIRECT`, until a check of a layer fails."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of PyTorch's modules that hold the hooks of each. These names are private, as some below."""

STOCK = (keras.layers.Conv2D, keras.layers.Dense, keras.layers.LayerNormalization, keras.layers.Reshape)
"""Keras' own layers in a ViT, which rely on nothing but their `call`; a subclass may rely on anything."""

_is_plain: contextvars.ContextVar[bool | None] = contextvars.ContextVar("vit_keras_is_plain", default=None)
"""Whether nothing takes part in the calls of all layers here, or `None` if it is asked at each call."""


@contextlib.contextmanager
def _assume(is_plain: bool | None) -> Iterator[None]:
    token = _is_plain.set(is_plain)
    try:
        yield
    finally:
        _is_plain.reset(token)


def through_keras() -> contextlib.AbstractContextManager[None]:
    """Return a context in which every layer is called through Keras."""
    return _assume(False)


def asked_once() -> contextlib.AbstractContextManager[None]:
    """Return a context in which all layers rely on what takes part in the calls of all layers now."""
    # For each layer, the check takes half as long as PyTorch's own Python code.
    unknown = _PATH is None or _torch.compiler.is_compiling()
    return _assume(None if unknown else _is_plain.get() is not False and _process_is_plain())


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == _PACKAGE  # a user's own class may rely on anything


class Direct(_Layer):
    """A base of layers, before `keras.layers.Layer`: `call` runs alone where nothing else is to be done."""

    _is_ours = False
    _reads_training = True  # whether `training=None` means the value of the layer around

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._is_ours = _is_ours(cls)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_ours and may_skip_keras(self, args, kwargs, self._reads_training):
            if not self._reads_training:
                kwargs.pop("training", None)  # as Keras does
            return self.call(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        own = self.__dict__
        if name in own.get("_modules", ()):  # PyTorch looks there last, which takes a microsecond
            own[name] = own["_modules"][name]

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__.get("_modules", ()):
            self.__dict__.pop(name, None)
        super().__delattr__(name)


def call_model(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], by_keras: Callable[..., Any]) -> Any:
    """Call a functional model of one input: without Keras' bookkeeping if no layer is around it."""
    is_plain = _is_ours(type(model)) and not kwargs.keys() - {"training"}
    if is_plain and may_skip_keras(model, args, kwargs, False) and is_outermost(model, args[0]):
        return call_outermost(model, args[0], kwargs.get("training"))
    return by_keras(*args, **kwargs)


def stock_call(layer: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that calls an operation: its own `call` if it is in `STOCK` and nothing prevents it."""
    kind = type(layer)
    if kind not in STOCK or _PATH is None or kind.__call__ is not _PATH[2]:
        return call

    def directly(*args, **kwargs):
        if not may_skip_keras(layer, args, kwargs, False):
            return call(*args, **kwargs)
        if kind is keras.layers.Reshape and -1 not in layer.target_shape:  # which computes it at each call
            return args[0].reshape(len(args[0]), *layer.target_shape)
        return layer.call(*args, **kwargs)

    return directly


def may_skip_keras(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reads_training: bool) -> bool:
    """Return whether `layer(*args, **kwargs)` does no more than `layer.call` would; false if a check fails."""
    # `reads_training`: whether `training=None` means the value of the layer around. Asked 140 times an image: every
    # microsecond here is half a percent of the smallest model. So attributes are read where they are kept, and nothing
    # has a function of its own: a call takes as long as three lines here.
    if not enabled or _PATH is None or len(args) != 1 or _torch.compiler.is_compiling():
        return False
    try:
        is_plain, (x,) = _is_plain.get(), args
        if not (_process_is_plain() if is_plain is None else is_plain) or type(layer).forward is not _FORWARD:
            return False
        own = layer.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or own["_backward_hooks"] or own["_backward_pre_hooks"]:
            return False
        number, known = own.get(NUMBER), own.get(_KNOWN)
        if known is None or known[0] != number:
            known = _what_is_known(layer, own, reads_training)
            if known is None:
                return False
            if number is not None:
                own[_KNOWN] = known
        _, computed, stored, dtype, axes, min_ndim = known
        if reads_training and kwargs.get("training") is None:  # which Keras looks for
            return False
        scope = thread_state().get("autocast_scope")
        if scope is not None or computed != stored:
            if scope is None or own["autocast"]:
                is_read_as_here = computed == (stored if scope is None else scope.dtype)
            else:
                is_read_as_here = not any(each._autocast for each in layer.variables)
            if not is_read_as_here:
                return False  # variables are read in another dtype here
        if type(x) is not _torch.Tensor or (x.dtype is not dtype and x.is_floating_point()):
            return False
        if x.is_meta or getattr(x, "_keras_mask", None) is not None or (min_ndim and x.ndim < min_ndim):
            return False
        for axis, size in axes:
            if x.shape[axis] != size:
                return False
        for value in kwargs.values():
            if value is not None and value is not False and value is not True and not _is_passed_on(value, dtype):
                return False
        return True
    except Exception as error:
        give_up(error)
        return False


def is_direct(x: Any) -> bool:
    """Return whether operations on a tensor may be PyTorch's own instead of those of `keras.ops`."""
    if _PATH is None or type(x) is not _torch.Tensor or x.is_meta or _torch.compiler.is_compiling():
        return False  # Keras infers shapes with tensors of the device "meta"
    return enabled and _is_plain.get() is not False


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
_PATH = _path() if _torch else None
_FORWARD = None if _PATH is None else _PATH[3]


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


_KNOWN = "_known_to_direct"
"""The attribute with what `_what_is_known` of a layer of this package."""


def _what_is_known(layer: Any, own: dict[str, Any], reads_training: bool) -> tuple[Any, ...] | None:
    """Return a layer's number, dtypes and what it takes; or `None` if its attributes leave Keras anything to do."""
    if not own["built"] or "forward" in own:
        return None
    if layer._compiled_call_impl is not None or own["activity_regularizer"] is not None:
        return None
    policy, spec = own[OWN_POLICY], own["_input_spec"]
    if own["_remat_mode"] is not None or type(policy) is not keras.DTypePolicy:
        return None  # a policy that quantizes
    if reads_training and "training" not in own.get("call_signature_parameters", ("training",)):
        return None  # Keras does not pass it on: `call` was another function when the layer was made
    dtypes = policy.compute_dtype, policy.variable_dtype, getattr(_torch, policy.compute_dtype)
    if spec is None:
        return own.get(NUMBER), *dtypes, (), 0
    if spec.shape or spec.ndim or spec.max_ndim or spec.dtype:  # a dense layer says what it takes in another way
        return None
    return own.get(NUMBER), *dtypes, [*spec.axes.items()], spec.min_ndim


def _is_passed_on(x: Any, dtype: Any) -> bool:
    """Whether Keras would pass this tensor on as it is."""
    if type(x) is not _torch.Tensor or (x.dtype is not dtype and x.is_floating_point()):
        return False
    return not x.is_meta and getattr(x, "_keras_mask", None) is None

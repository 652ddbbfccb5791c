"""PyTorch: a model as one function for `torch.compile`, and one compiled function for all blocks that are alike.

`torch.compile` checks each attribute that it has read of a layer at every call: 45,000 for a ViT-Ti. It does not look
into a function that is traced as `jax.jit` traces one. What such a function reads of layers is read before, or is the
same for all layers of its name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .._internal.tap import is_watched, taps
from .changes import NUMBER, is_same, watch
from .direct import HOOKS, is_ours
from .keras_internals import OWN_POLICY, OWN_VARIABLES, draw_by_torch, flat_layers, kept

logger: logging.Logger = logging.getLogger("vit_keras")

_torch: Any = sys.modules.get("torch") if keras.backend.backend() == "torch" else None
_dynamo: Any = sys.modules.get("torch._dynamo") if _torch else None
_layers: weakref.WeakValueDictionary[str, keras.layers.Layer] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_NAME = "_traced_as"


def is_inside() -> bool:
    """Return whether `torch.compile` follows the code around this call."""
    return _torch is not None and _torch.compiler.is_dynamo_compiling() and not _torch.compiler.is_exporting()


def name_for_tracing(model: keras.Model) -> None:
    """Let `inline` find a model by a text, which `torch.compile` compares at each call."""
    model.__dict__[_NAME] = name = f"model {next(_numbers)}"
    _layers[name] = model


# --- a model inside `torch.compile` ---------------------------------------------------------------------------------


def inline(model: keras.Model, inputs: Any, training: Any) -> Any:
    """Call a model inside `torch.compile`, which sees one function of the inputs and the variables."""
    # It checks what is read here at each later call. Floats are compared, as it takes those that change for inputs.
    name, waiting, state, values = model.__dict__[_NAME], [model], [_unique()], []
    if taps:
        return _plainly(name, inputs, training)
    while waiting:  # as `changes.watch`, by what `torch.compile` follows
        each = waiting.pop()
        own = each.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"]:
            return _plainly(name, inputs, training)
        if NUMBER in own:
            state.append(str(own[NUMBER]))
        elif not isinstance(each, keras.Model):
            state.append(own[OWN_POLICY].name)
            for attribute, value in own.items():
                if attribute[0] != "_" and isinstance(value, float) and value != _float(name, len(state), attribute):
                    state.append(attribute)
        for kind in OWN_VARIABLES:
            for variable in own[kind]:
                values.append(variable._value)
        for layer in own["_layers"]:
            waiting.append(layer)
    return _run(name, " ".join(state), bool(training), [], (inputs,), {}, values)


def _unique() -> str:
    return str(next(_numbers))


def _float(name: str, place: int, attribute: str) -> Any:
    """Return an attribute of the layer that a walk through a model meets at a place."""
    waiting: list[Any] = [_layers[name]]
    for _ in range(place):
        each = waiting.pop()
        waiting += vars(each)["_layers"]
    return vars(each)[attribute]


def _plainly(name: str, inputs: Any, training: Any) -> Any:
    return keras.layers.Layer.__call__(_layers[name], inputs, training=training)


def _run(name: str, state: str, training: bool, rates: Any, args: Any, kwargs: Any, values: Any) -> Any:
    """Call a layer with other values of its variables, and with `rates` of its stochastic depth."""
    layer = _layers[name]
    call = getattr(layer, "call_by_keras", layer.call)
    with contextlib.ExitStack() as stack:
        stack.enter_context(draw_by_torch())
        stack.enter_context(keras.StatelessScope(state_mapping=list(zip(watch(layer)[1], values))))
        for each, rate in zip(_depths(layer) if rates else (), rates):
            each.__dict__["call"] = functools.partial(_drop_images, rate)
            stack.callback(each.__dict__.pop, "call")
        return call(*args, training=training, **kwargs)


def _drop_images(rate: Any, inputs: Any, training: Any = None) -> Any:
    shape = [len(inputs), *[1] * (inputs.ndim - 1)]
    keep = _torch.rand(shape, device=inputs.device) >= rate
    return inputs * (keep / (1 - rate)).to(inputs.dtype)


if _dynamo:
    _unique._dynamo_marked_constant = _float._dynamo_marked_constant = True
    _plainly = _dynamo.disable(_plainly)
    _run = _dynamo.nonstrict_trace(_run)


# --- blocks ---------------------------------------------------------------------------------------------------------


class CompiledBlock:
    """A block that runs as the compiled function of all blocks with its settings, where there can be one."""

    _call_context_args = ("training",)  # for Keras, which passes it on then

    def __init__(self, block: keras.layers.Layer):
        self.block = block

    def __call__(self, *args: Any, training: bool | None = None, **kwargs: Any) -> Any:
        block, own = self.block, kept(self.block, "compiled", dict)
        state, variables = watch(block)
        if not is_same(own.get("state", ()), state):
            layers = flat_layers(block)
            rates = [float(layer.rate) for layer in _depths(block)]
            own.update(state=state, name=_settings(layers), layers=layers, rates=rates)
        name = own["name"]
        hooked = any(vars(layer)[hooks] for layer in own["layers"] for hooks in HOOKS)
        if name is None or hooked or is_watched() or "failed" in own or (training and block.remat):
            return block(*args, training=training, **kwargs)
        _layers[name] = block  # which is traced, if anything is
        values = [variable._value for variable in variables]
        rates = [_torch.tensor(rate, device=values[0].device) for rate in own["rates"] if training]
        try:
            return _compiled(name)(name, "", bool(training), rates, args, kwargs, values)
        except _dynamo.exc.TorchDynamoException as error:
            logger.warning("The blocks run without torch.compile, which failed: %.300s", error)
            own["failed"] = True
            return block(*args, training=training, **kwargs)


def _depths(block: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Return the layers of a block that drop images, at a rate that differs from block to block."""
    kind = keras.layers.Dropout
    return [each for each in flat_layers(block) if isinstance(each, kind) and each.noise_shape and each.rate]


@functools.lru_cache(maxsize=32)
def _compiled(name: str) -> Callable[..., Any]:
    # PyTorch compiles the code of a function a few times at most, so each name has a code of its own.
    code = _block.__code__.replace(co_name=name.partition(" ")[0])
    return _torch.compile(types.FunctionType(code, globals()))


def _block(*args: Any) -> Any:
    return _run(*args)


def _settings(layers: list[keras.layers.Layer]) -> str | None:
    """Return all that layers of this package compute by but their variables' values, or `None` if it is not known."""
    try:
        return f"block {[_described(each) for each in layers]}"
    except TypeError:
        return None


def _described(layer: keras.layers.Layer) -> Any:
    own = vars(layer)
    if not is_ours(type(layer)) or {"call", "forward"} & own.keys() or own["activity_regularizer"] is not None:
        raise TypeError
    names = sorted(name for name in own if name[0] != "_" and name not in _NO_SETTINGS)
    if isinstance(layer, keras.layers.Dropout) and layer.noise_shape and layer.rate:
        names.remove("rate")  # an argument of the compiled function
    variables = [(tuple(v.shape), v.dtype) for kind in OWN_VARIABLES for v in own[kind]]
    return type(layer).__qualname__, layer.dtype_policy.name, variables, [(name, _text(own[name])) for name in names]


_NO_SETTINGS = {"name", "build", "quantize", "training", "stochastic_depth", "seed"}


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return str([*map(_text, value)])
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return repr(value)
    kind = value if isinstance(value, types.FunctionType) else type(value)
    if not kind.__module__.startswith("keras.") and not isinstance(value, keras.layers.Layer):
        raise TypeError  # anything of a user's
    return f"{kind.__module__}.{kind.__qualname__}"

"""Inspect or replace intermediate tensors while a model computes."""

from __future__ import annotations

import contextlib
import contextvars
import threading
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras

Visitor = Callable[[keras.layers.Layer, str, Any], Any]
Hook = Callable[[keras.layers.Layer, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


# What sees the tensors inside of this package's layers, if anything does.
_visitor: contextvars.ContextVar[Visitor | None] = contextvars.ContextVar("vit_keras_visitor", default=None)
_watched: contextvars.ContextVar[bool] = contextvars.ContextVar("vit_keras_watched", default=False)
# As many as there are taps in all threads: torch.compile stops at a context variable, which is not asked without a tap.
taps: list[None] = []
# The hooks of this thread on layers; and of all threads, how many each layer has, and the call that it had before.
_hooks: contextvars.ContextVar[Mapping[int, tuple[Hook, ...]]] = contextvars.ContextVar(
    "vit_keras_hooks", default=types.MappingProxyType({})
)
_hooked: dict[int, list[Any]] = {}
_lock = threading.RLock()


@contextlib.contextmanager
def tap(visitor: Visitor, layers: Iterable[keras.layers.Layer] | None = None) -> Iterator[None]:
    """Show a function the tensors inside of this package's layers while they compute, and let it change them.

    It works however deep a layer sits in other models, needs no change to them, and costs nothing outside the `with`
    block. In a compiled function, enter it inside the function. Of nested blocks the inner one watches. Inside,
    attention is computed the plain way, with all its scores, whatever fused kernel there is.

    Args:
        visitor: Called as `visitor(layer, name, tensor)`; what it returns takes the tensor's place. The names:

            - of a `TransformerBlock`: `"tokens"`, its input; `"normed"`, after its first normalization; `"output"`;
              where tokens are merged, `"merging"`, `(batch, tokens left, tokens)`, 1 where a token went into another
              (changing it has no effect), and last `"sizes"`, the patches in each;
            - of a `MultiHeadSelfAttention`: `"values"`, `(batch, heads, tokens, width)`; `"attention"`, `(batch,
              heads, tokens, tokens)`, the very tensor that multiplies the values; `"pooling"` in its place where other
              tokens ask (`AttentionPooling`);
            - of a `MeanToken`: `"tokens"`, its input.
        layers: Keras layers of any kind. The visitor then sees their `"input"` and `"output"` in place of the names
            above, and attention is computed as usual.

    Example:
        >>> from vit_keras.layers import TransformerBlock
        >>> def look(layer, name, tensor):
        ...     print(name, tuple(tensor.shape))
        ...     return tensor
        >>> with tap(look):
        ...     _ = TransformerBlock(num_heads=2, mlp_dim=16)(np.zeros((1, 5, 8), "float32"))
        tokens (1, 5, 8)
        normed (1, 5, 8)
        values (1, 2, 5, 4)
        attention (1, 2, 5, 5)
        output (1, 5, 8)
    """
    tokens = _watched.set(True), _visitor.set(visitor if layers is None else _visitor.get())
    taps.append(None)
    try:
        with hooked(layers or (), _showing(visitor)):
            yield
    finally:
        taps.pop()
        _watched.reset(tokens[0])
        _visitor.reset(tokens[1])


def _showing(visitor: Visitor) -> Hook:
    """Return a hook that shows a visitor the input and the output of a layer."""

    def hook(layer, call, args, kwargs):
        return visitor(layer, "output", call(visitor(layer, "input", args[0]), *args[1:], **kwargs))

    return hook


@contextlib.contextmanager
def hooked(layers: Iterable[keras.layers.Layer], hook: Hook) -> Iterator[None]:
    """Let `hook(layer, call, args, kwargs)` return what layers return in this thread, however deep they sit in models.

    Models compile no call of their own inside. Of nested hooks of a layer, `call` of the inner one is the outer one.
    """
    layers = list(layers)
    mine = {id(layer): (*_hooks.get().get(id(layer), ()), hook) for layer in layers}
    tokens = _watched.set(True), _hooks.set({**_hooks.get(), **mine})
    taps.append(None)
    with _lock:
        for layer in layers:
            _hook(layer)
    try:
        yield
    finally:
        with _lock:
            for layer in layers:
                _unhook(layer)
        taps.pop()
        _watched.reset(tokens[0])
        _hooks.reset(tokens[1])


def _hook(layer: keras.layers.Layer) -> None:
    """Replace the call of a layer, for as long as a thread has a hook on it."""
    if (known := _hooked.get(id(layer))) is not None:
        known[0] += 1
        return
    name = "quantized_call" if getattr(layer, "quantization_mode", None) else "call"
    _hooked[id(layer)] = [1, name, vars(layer).get(name)]
    plain = getattr(layer, name)

    def through_hooks(*args, **kwargs):
        return _run(_hooks.get().get(id(layer), ()), layer, plain)(*args, **kwargs)

    object.__setattr__(layer, name, through_hooks)


def _unhook(layer: keras.layers.Layer) -> None:
    known = _hooked[id(layer)]
    known[0] -= 1
    if not known[0]:
        _, name, before = _hooked.pop(id(layer))
        object.__delattr__(layer, name) if before is None else object.__setattr__(layer, name, before)


def _run(hooks: tuple[Hook, ...], layer: keras.layers.Layer, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a layer through hooks, of which the last comes first."""
    if not hooks:
        return plain
    return lambda *args, **kwargs: hooks[-1](layer, _run(hooks[:-1], layer, plain), args, kwargs)


def is_tapped() -> bool:
    """Return whether a `tap` sees what is inside of layers here."""
    return bool(taps) and _visitor.get() is not None


def is_hooked() -> bool:
    """Return whether this runs while layers have hooks, as in a dry run of a model."""
    return bool(taps) and bool(_hooks.get())


def is_watched() -> bool:
    """Return whether this runs inside any `tap`: a model must not compile its own call."""
    return bool(taps) and _watched.get()


def visit(layer: Any, name: str, tensor: Any) -> Any:
    """Return what the visitor of the current `tap` makes of a tensor; without a tap, the tensor."""
    visitor = _visitor.get() if taps else None
    return tensor if visitor is None else visitor(layer, name, tensor)


@contextlib.contextmanager
def record_attention() -> Iterator[list[Any]]:
    """Collect the attention scores of every `MultiHeadSelfAttention` that is called inside: a `tap` of one kind.

    Yields:
        A list that grows by one tensor `(batch, heads, tokens, tokens)` a call, in the order of the calls.

    Example:
        >>> from vit_keras.layers import TransformerBlock
        >>> with record_attention() as scores:
        ...     _ = TransformerBlock(num_heads=2, mlp_dim=16)(np.zeros((1, 5, 8), "float32"))
        >>> tuple(scores[0].shape)
        (1, 2, 5, 5)
    """
    scores: list[Any] = []

    def collect(layer, name, tensor):
        if name == "attention":
            scores.append(tensor)
        return tensor

    with tap(collect):
        yield scores

"""Inspect or replace intermediate tensors while a model computes."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

Visitor = Callable[[keras.layers.Layer, str, Any], Any]


# What sees the tensors inside of this package's layers, if anything does.
_visitor: contextvars.ContextVar[Visitor | None] = contextvars.ContextVar("vit_keras_visitor", default=None)
_watched: contextvars.ContextVar[bool] = contextvars.ContextVar("vit_keras_watched", default=False)
# As many as there are taps in all threads: torch.compile stops at a context variable, which is not asked without a tap.
taps: list[None] = []


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
        with contextlib.ExitStack() as stack:
            for layer in layers or ():
                stack.enter_context(_shown(layer, visitor))
            yield
    finally:
        taps.pop()
        _watched.reset(tokens[0])
        _visitor.reset(tokens[1])


@contextlib.contextmanager
def _shown(layer: keras.layers.Layer, visitor: Visitor) -> Iterator[None]:
    """Let a visitor see, or replace, the input and the output of a layer."""
    call, outer = layer.call, vars(layer).get("call")

    def watched(inputs, *args, **kwargs):
        return visitor(layer, "output", call(visitor(layer, "input", inputs), *args, **kwargs))

    object.__setattr__(layer, "call", watched)
    try:
        yield
    finally:
        object.__delattr__(layer, "call")
        if outer is not None:
            object.__setattr__(layer, "call", outer)


def is_tapped() -> bool:
    """Return whether a `tap` sees what is inside of layers here."""
    return bool(taps) and _visitor.get() is not None


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

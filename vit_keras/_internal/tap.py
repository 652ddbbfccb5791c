"""Inspect or replace intermediate tensors while a model computes."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import keras

Visitor = Callable[[keras.layers.Layer, str, Any], Any]


# What watches the layers at work, if anything does.
_visitor: contextvars.ContextVar[Visitor | None] = contextvars.ContextVar("vit_keras_visitor", default=None)
# As many as there are taps in all threads: torch.compile stops at a context variable, which is not asked without a tap.
_taps: list[None] = []


@contextlib.contextmanager
def tap(visitor: Visitor) -> Iterator[None]:
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
    token = _visitor.set(visitor)
    _taps.append(None)
    try:
        yield
    finally:
        _taps.pop()
        _visitor.reset(token)


def is_tapped() -> bool:
    """Return whether this runs inside a `tap`.

    Example:
        >>> with tap(lambda layer, name, tensor: tensor):
        ...     print(is_tapped())
        True
    """
    return bool(_taps) and _visitor.get() is not None


def visit(layer: Any, name: str, tensor: Any) -> Any:
    """Return what the visitor of the current `tap` makes of a tensor; without a tap, the tensor."""
    visitor = _visitor.get() if _taps else None
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

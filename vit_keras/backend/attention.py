"""Attention without a full score matrix: with a fused kernel if there is one, otherwise in chunks of queries."""

from __future__ import annotations

import functools
import logging
import math
import sys
from typing import Any

import keras
from keras import ops

from . import openvino, products
from .backward import recomputed

logger: logging.Logger = logging.getLogger("vit_keras")


def has_fused_attention() -> bool:
    """Return whether the backend has a fused kernel: PyTorch, and JAX on an accelerator."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() != "cpu"
    return backend in ("torch", "openvino")


def fused_attention(query: Any, key: Any, value: Any, bias: Any = None) -> Any:
    """Return the output of the fused kernel for inputs `(batch, heads, tokens, width)`."""
    # PyTorch's own function is called, because Keras' transposes the axes, and older versions accept no bias.
    if keras.backend.backend() == "torch":
        if not (bias is None and query.dtype is key.dtype is value.dtype):
            dtype = keras.backend.result_type(*(x.dtype for x in (query, key, value)))
            query, key, value, bias = (x if x is None else ops.cast(x, dtype) for x in (query, key, value, bias))
        if bias is None:
            return products.attend(query, key, value)
        return sys.modules["torch"].nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    if openvino.is_active():
        return openvino.attend(query, key, value, bias)
    odd = _is_odd_on_gpu(query, key, bias)
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))  # the heads last
    attended = _attend_to_odd(query, key, value, bias) if odd else None
    if attended is None:
        attended = ops.dot_product_attention(query, key, value, bias=bias)
    return ops.transpose(attended, (0, 2, 1, 3))


def _is_odd_on_gpu(query, key, bias) -> bool:
    """Whether JAX computes this attention by cuDNN, but not its gradients: those of an odd number of tokens."""
    halves = all(keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16") for x in (query, key))
    (_, heads, queries, _), keys = query.shape, key.shape[2]
    if not halves or None in (queries, keys) or not (queries % 2 or keys % 2):
        return False
    if bias is not None and tuple(bias.shape) != (1, heads, queries, keys):  # a mask, or sizes of merged tokens
        return False
    return keras.backend.backend() == "jax" and sys.modules["jax"].default_backend() == "gpu"


def _attend_to_odd(query: Any, key: Any, value: Any, bias: Any) -> Any:
    """Return the attention by cuDNN, padded to an even number of tokens, or `None`."""
    # Inputs are `(batch, tokens, heads, width)`, the bias `(1, heads, queries, keys)` or `None`. The padding is masked.
    # JAX refuses the gradients of an odd number: its check is meant for a bias, and takes the placeholder of no bias
    # for one. Keras then logs an error for each block and computes all scores: a training step of ViT-B/16 on an H200
    # took 1.28 times as long. Without gradients, padding would only cost time.
    jax = sys.modules["jax"]
    by_cudnn = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")

    def even(query, key, value, bias):
        batch, queries, keys = query.shape[0], query.shape[1], key.shape[1]
        lengths = {"query_seq_lengths": queries, "key_value_seq_lengths": keys}
        lengths = {name: jax.numpy.full((batch,), count, "int32") for name, count in lengths.items()}
        query = jax.numpy.pad(query, ((0, 0), (0, queries % 2), (0, 0), (0, 0)))
        key, value = (jax.numpy.pad(x, ((0, 0), (0, keys % 2), (0, 0), (0, 0))) for x in (key, value))
        if bias is not None:
            bias = jax.numpy.pad(bias, ((0, 0), (0, 0), (0, queries % 2), (0, keys % 2)))
        return by_cudnn(query, key, value, bias, **lengths)[:, :queries]

    attend = jax.custom_vjp(by_cudnn)
    attend.defvjp(lambda *given: jax.vjp(even, *given), lambda pull, gradient: pull(gradient))
    try:
        return attend(query, key, value, bias)
    except (RuntimeError, TypeError, ValueError) as error:  # cuDNN or JAX is too old, or the heads are too wide
        logger.info("Keras computes the attention: %s: %s", type(error).__name__, error)
        return None


def in_chunks(
    attend: Any, query: Any, key: Any, value: Any, bias: Any = None, *, most: Any, training: bool | None
) -> Any:
    """Attend for one chunk of queries after the other if the scores of an image take more than `most` bytes."""
    # In training, the scores are computed again in the backward pass. If the number of tokens is not fixed, there is
    # one chunk.
    _, heads, tokens, width = query.shape
    chunks = 1 if tokens is None else math.ceil(4 * heads * tokens**2 / most)
    beside = () if bias is None else (bias,)
    if chunks == 1:
        return attend(query, key, value, *beside)
    rows = math.ceil(tokens / chunks)

    def cut(x):
        x = ops.pad(x, ((0, 0), (0, 0), (0, chunks * rows - tokens), (0, 0)))
        return ops.transpose(ops.reshape(x, (-1, x.shape[1], chunks, rows, x.shape[3])), (2, 0, 1, 3, 4))

    attend = recomputed(attend) if training else attend
    if bias is None or bias.shape[2] == 1:  # the same for all queries
        output = _in_turn(lambda chunk: attend(chunk, key, value, *beside), cut(query))
    else:
        output = _in_turn(lambda chunk, its: attend(chunk, key, value, its), cut(query), cut(bias))
    output = ops.transpose(output, (1, 2, 0, 3, 4))
    return ops.reshape(output, (-1, heads, chunks * rows, width))[:, :, :tokens]


def _in_turn(function: Any, chunks: Any, *others: Any) -> Any:
    """Apply a function to each chunk, whose shape its result has; `others` are cut into as many chunks."""
    # On JAX each result replaces its chunk. `ops.map` would allocate one more array, and XLA allocates the arrays of
    # all layers at the start.
    if keras.backend.backend() != "jax":
        return ops.map(lambda own: function(*own), (chunks, *others))
    from jax import lax

    def step(number, chunks):
        own = [lax.dynamic_index_in_dim(x, number, keepdims=False) for x in (chunks, *others)]
        return lax.dynamic_update_index_in_dim(chunks, function(*own), number, axis=0)

    return lax.fori_loop(0, chunks.shape[0], step, chunks)

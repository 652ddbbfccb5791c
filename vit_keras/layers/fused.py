"""Attention without all of its scores at once: whether there is a fused kernel, and chunks of queries where not."""

from __future__ import annotations

import math

import keras
from keras import ops

from ._base import recomputed


def has_fused_attention():
    """Return whether Keras' `dot_product_attention` is a fused kernel here: on PyTorch, and on JAX's accelerators."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() != "cpu"
    return backend == "torch"


def in_chunks(attend, query, *beside, chunks, training):
    """Attend for one chunk of the queries after the other.

    Args:
        attend: From queries, `(batch, heads, tokens, width)`, and what stands beside them to the output of their shape.
        query: The queries, of a fixed number of tokens.
        *beside: Keys, values, and a bias where there is one.
        chunks: Number of chunks.
        training: Whether the scores are computed again in the backward pass.

    Returns:
        The output of all queries.
    """
    _, heads, tokens, width = query.shape
    rows = math.ceil(tokens / chunks)
    query = ops.pad(query, ((0, 0), (0, 0), (0, chunks * rows - tokens), (0, 0)))
    query = ops.reshape(query, (-1, heads, chunks, rows, width))
    attend = recomputed(attend) if training else attend
    output = ops.map(lambda chunk: attend(chunk, *beside), ops.transpose(query, (2, 0, 1, 3, 4)))
    output = ops.transpose(output, (1, 2, 0, 3, 4))
    return ops.reshape(output, (-1, heads, chunks * rows, width))[:, :, :tokens]

"""The layers of a Vision Transformer, in the order in which an image meets them.

Paper: "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1 and appendix A.
Reference: google-research/vision_transformer, `vit_jax/models_vit.py`.

Every layer works alone: `build` creates all weights, `get_config` is complete, dtype policies are
honoured, and the same code runs on TensorFlow, JAX and PyTorch. Attribute names, names of weights
and the order of sub-layers are those of vit-keras 0.x, so that its files of weights load here.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from .config import NO_REMAT_WITH_DROPOUT
from .positions import (
    relative_position_index,
    resize_grid,
    resize_position_embeddings,
    resize_relative_position_bias,
    rope_sincos,
    sincos2d,
    square_grid,
)

logger = logging.getLogger("vit_keras")

Visitor = Callable[[keras.layers.Layer, str, Any], Any]

# What watches the layers at work, if anything does.
_visitor: contextvars.ContextVar[Visitor | None] = contextvars.ContextVar("vit_keras_visitor", default=None)


@contextlib.contextmanager
def tap(visitor: Visitor) -> Iterator[None]:
    """Show a function the tensors inside of this package's layers while they compute, and let it change them.

    It works however deep a layer sits in other models, needs no change to them, and costs nothing outside the `with`
    block. In a compiled function, enter it inside the function. Of nested blocks the inner one watches. Inside, attention
    is computed the plain way, with all its scores, whatever fused kernel there is.

    Args:
        visitor: Called as `visitor(layer, name, tensor)`; what it returns takes the tensor's place. The names:

            - of a `TransformerBlock`: `"tokens"`, its input; `"normed"`, after its first normalisation; `"output"`;
            - of a `MultiHeadSelfAttention`: `"values"`, `(batch, heads, tokens, width)`; `"attention"`, `(batch, heads, tokens,
              tokens)`, the very tensor that multiplies the values; `"pooling"` in its place where other tokens ask
              (`AttentionPooling`);
            - of a `MeanToken`: `"tokens"`, its input.

    Example:
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
    try:
        yield
    finally:
        _visitor.reset(token)


def is_tapped() -> bool:
    """Whether this runs inside of a `tap`."""
    return _visitor.get() is not None


def _visit(layer, name, tensor):
    visitor = _visitor.get()
    return tensor if visitor is None else visitor(layer, name, tensor)


@contextlib.contextmanager
def record_attention() -> Iterator[list]:
    """Collect the attention scores of every `MultiHeadSelfAttention` that is called inside: a `tap` of one kind.

    Yields:
        A list that grows by one tensor `(batch, heads, tokens, tokens)` a call, in the order of the calls.

    Example:
        >>> with record_attention() as scores:
        ...     _ = TransformerBlock(num_heads=2, mlp_dim=16)(np.zeros((1, 5, 8), "float32"))
        >>> tuple(scores[0].shape)
        (1, 2, 5, 5)
    """
    scores: list = []

    def collect(layer, name, tensor):
        if name == "attention":
            scores.append(tensor)
        return tensor

    with tap(collect):
        yield scores


def _register(cls: type) -> type:
    """Make a layer loadable under its own name and under the one that vit-keras 0.x saved."""
    keras.saving.register_keras_serializable("vit_keras")(cls)
    keras.saving.get_custom_objects().setdefault(f"Custom>{cls.__name__}", cls)
    return cls


@_register
class ClassToken(keras.layers.Layer):
    """Put a learned token before a sequence of tokens (paper, equation 1: `x_class`).

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, 1 + tokens, hidden_size)`

    Example:
        >>> ClassToken()(np.zeros((2, 196, 768), "float32")).shape[1]
        197
    """

    def build(self, input_shape):
        self.hidden_size = _token_width(self, input_shape)
        self.cls = self.add_weight(shape=(1, 1, self.hidden_size), initializer="zeros", name="cls")

    def call(self, inputs):
        cls = ops.cast(self.cls, inputs.dtype)
        cls = ops.broadcast_to(cls, (ops.shape(inputs)[0], 1, self.hidden_size))
        return ops.concatenate([cls, inputs], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, width = input_shape
        return batch, None if tokens is None else tokens + 1, width

    def get_config(self):  # Keras wants to see this method where a dtype policy may have been given
        return super().get_config()


@_register
class RegisterTokens(keras.layers.Layer):
    """Put learned tokens that stand for nothing after the class token ("Vision Transformers Need Registers", arXiv 2309.16588).

    Args:
        count: How many.
        after: Tokens that stay before them.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, tokens + count, hidden_size)`

    Example:
        >>> RegisterTokens(4, after=1)(np.zeros((2, 197, 768), "float32")).shape[1]
        201
    """

    def __init__(self, count, after=1, **kwargs):
        super().__init__(**kwargs)
        self.count = count
        self.after = after

    def build(self, input_shape):
        shape = (1, self.count, _token_width(self, input_shape))
        self.registers = self.add_weight(
            shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.02), name="registers"
        )

    def call(self, inputs):
        registers = ops.cast(self.registers, inputs.dtype)
        registers = ops.broadcast_to(registers, (ops.shape(inputs)[0], *self.registers.shape[1:]))
        return ops.concatenate([inputs[:, : self.after], registers, inputs[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, width = input_shape
        return batch, None if tokens is None else tokens + self.count, width

    def get_config(self):
        return {**super().get_config(), "count": self.count, "after": self.after}


@_register
class AddPositionEmbs(keras.layers.Layer):
    """Add a learned embedding to each token (paper, equation 1: `E_pos`), then drop out (appendix B.1).

    A file of weights that was saved at another image size loads all the same: its table is resampled
    to this layer's grid (`vit_keras.positions`).

    Args:
        grid: Patches down and across of the table. `None`: the patches are taken to be a square, with or without
            one class token before them.
        dropout: Rate of the dropout after the addition.
        resize: How the table is resampled to another grid: one of `vit_keras.positions.METHODS`; the default is Google's way.
        prefix_tokens: Rows of the table before those of the patches. `None`: as many as there are tokens besides the grid.

    Call arguments:
        inputs: Tokens.
        patches: What the tokens were made of, `(batch, down, across, ...)`: the table is resampled to this grid in the graph.
            Needed where the number of tokens is not fixed.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> AddPositionEmbs(grid=(14, 28))(np.zeros((1, 1 + 14 * 28, 8), "float32")).shape[1]
        393
    """

    is_part_of_a_vit = True

    def __init__(self, grid=None, dropout=0.0, resize="bilinear_align_corners", prefix_tokens=None, **kwargs):
        super().__init__(**kwargs)
        self.grid = None if grid is None else tuple(grid)
        self.dropout = dropout
        self.resize = resize
        self.prefix_tokens = prefix_tokens
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = _token_width(self, input_shape)
        rows = input_shape[1]
        if self.grid is not None and self.prefix_tokens is not None:
            rows = self.prefix_tokens + math.prod(self.grid)
        if rows is None:
            raise ValueError(f"{self.name} needs a fixed number of tokens. Received: input shape {input_shape}")
        self.pe = self.add_weight(
            shape=(1, rows, width),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="pos_embedding",
        )

    def call(self, inputs, training=None, patches=None):
        table = self.pe if patches is None else self._table_for(_grid_of(patches))
        return self.dropout_layer(inputs + ops.cast(table, inputs.dtype), training=training)

    def _table_for(self, grid):
        """The table resampled to a grid that only the graph may know, by the same matrices as in NumPy."""
        table = ops.convert_to_tensor(self.pe)
        if _array_module(grid) is np and tuple(grid) == self.grid:
            return table
        width = table.shape[-1]
        prefix, patches = table[:, : self.prefix_tokens], table[0, self.prefix_tokens :]
        patches = resize_grid(ops.reshape(patches, (*self.grid, width)), grid, self.resize, xp=ops)
        return ops.concatenate([prefix, ops.reshape(patches, (1, -1, width))], axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Patches down and across of the table, as told or, for a square, as counted; `None` if unknown."""
        tokens = self.pe.shape[1]
        return self.grid or square_grid(tokens - 1) or square_grid(tokens)

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.grid:
            store["grid"] = np.array(self.grid, "int32")

    def load_own_variables(self, store):
        table = np.asarray(store["0"])
        if self.patch_grid:
            grid = self.patch_grid
            source_grid = tuple(np.asarray(store["grid"]).tolist()) if "grid" in store.keys() else None
            if source_grid is None and table.shape == tuple(self.pe.shape):
                source_grid = grid
            prefix_tokens = self.pe.shape[1] - math.prod(grid)
            table = resize_position_embeddings(
                table, grid, prefix_tokens=prefix_tokens, source_grid=source_grid, method=self.resize
            )
            if source_grid != grid:
                logger.info("Resampled the position embeddings of %s to the grid %s.", self.name, grid)
        self.pe.assign(table)

    def get_config(self):
        return {
            **super().get_config(),
            "grid": self.grid,
            "dropout": self.dropout,
            "resize": self.resize,
            "prefix_tokens": self.prefix_tokens,
        }


@_register
class AddSinCosPositionEmbs(keras.layers.Layer):
    """Add fixed sines and cosines of a patch's row and column (MoCo v3, arXiv 2104.02057; big_vision's `sincos2d`).

    Args:
        dropout: Rate of the dropout after the addition.

    Call arguments:
        inputs: Tokens, one for each patch.
        patches: What they were made of, `(batch, down, across, ...)`.

    Input shape:
        `(batch, down * across, hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> patches = np.zeros((1, 4, 6, 8), "float32")
        >>> tuple(AddSinCosPositionEmbs()(patches.reshape(1, 24, 8), patches=patches).shape)
        (1, 24, 8)
    """

    is_part_of_a_vit = True

    def __init__(self, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        _token_width(self, input_shape)

    def call(self, inputs, patches, training=None):
        grid = _grid_of(patches)
        table = sincos2d(grid, inputs.shape[-1], xp=_array_module(grid))
        return self.dropout_layer(inputs + ops.cast(table, inputs.dtype), training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout}


@_register
class PatchDropout(keras.layers.Layer):
    """Leave out patches at random, others for each image, in training only (PatchDropout, arXiv 2208.07220).

    What is left stands in a random order, which attention does not see: the tokens have their positions already.

    Args:
        rate: Share of the patches that is left out; of a few, one stays.
        prefix_tokens: Tokens before the patches, which all stay.
        seed: Integer that makes it reproducible, or `None`.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; in training, with fewer tokens.

    Example:
        >>> PatchDropout(0.5, prefix_tokens=1)(np.zeros((2, 197, 768), "float32"), training=True).shape[1]
        99
    """

    def __init__(self, rate, prefix_tokens=0, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.prefix_tokens = prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, input_shape):
        _token_width(self, input_shape)

    def call(self, inputs, training=None):
        if not training or not self.rate:
            return inputs
        prefix, patches = inputs[:, : self.prefix_tokens], inputs[:, self.prefix_tokens :]
        batch, count = ops.shape(patches)[0], patches.shape[1] or ops.shape(patches)[1]
        order = ops.argsort(keras.random.uniform((batch, count), seed=self.seed_generator), axis=1)
        if isinstance(count, int):
            kept = max(1, int(count * (1 - self.rate)))
        else:
            kept = ops.maximum(1, ops.cast(ops.cast(count, "float32") * (1 - self.rate), "int32"))
        patches = ops.take_along_axis(patches, order[:, :kept, None], axis=1)
        return ops.concatenate([prefix, patches], axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        own = {"rate": self.rate, "prefix_tokens": self.prefix_tokens, "seed": self.seed}
        return {**super().get_config(), **own}


@_register
class RotaryPositions(keras.layers.Layer):
    """Sines and cosines of the rotations that tell queries and keys where they are (RoPE on patches, as in DINOv3).

    Args:
        dim_head: Width of an attention head.
        theta: Base of the periods.

    Input shape:
        What the tokens were made of, `(batch, down, across, ...)`.

    Output shape:
        `(2, down * across, dim_head)`, for `TransformerBlock`'s `rope=`.

    Example:
        >>> tuple(RotaryPositions(dim_head=64)(np.zeros((1, 4, 6, 8), "float32")).shape)
        (2, 24, 64)
    """

    def __init__(self, dim_head, theta=100.0, **kwargs):
        super().__init__(**kwargs)
        self.dim_head = dim_head
        self.theta = theta

    def build(self, input_shape):
        pass

    def call(self, patches):
        grid = _grid_of(patches)
        sines_and_cosines = rope_sincos(grid, self.dim_head, self.theta, xp=_array_module(grid))
        return ops.cast(ops.stack(sines_and_cosines), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        down, across = input_shape[1:3]
        return 2, None if down is None or across is None else down * across, self.dim_head

    def get_config(self):
        return {**super().get_config(), "dim_head": self.dim_head, "theta": self.theta}


@_register
class MultiHeadSelfAttention(keras.layers.Layer):
    """Multi-head self-attention (paper, appendix A).

    Args:
        num_heads: Number of heads.
        dim_head: Width of a head; `None` for the width of a token divided by `num_heads`.
        dropout: Rate of the dropout on the attention weights.
        qkv_bias: Whether queries, keys and values have a bias.
        key_bias: Whether keys have one; `None`: as `qkv_bias`.
        out_bias: Whether the projection of the output has one.
        relative_grid: Patches down and across, where a learned bias for each relative position (and three for the class
            token) is added to the logits (BEiT, arXiv 2106.08254), or `None`.
        relative_resize: How this table is resampled to another grid: see `vit_keras.positions.resize_relative_position_bias`.

    Call arguments:
        inputs: Tokens.
        rope: Sines and cosines of `RotaryPositions`, for the last tokens; those before are not rotated.
        queries: Other tokens that attend to the inputs, `(1 or batch, queries, hidden_size)`; `None`: the inputs themselves.
        return_attention_scores: Whether to return `(output, scores)` instead of the output alone.
            The scores are the very tensor that multiplies the values: after the softmax, which is
            computed in float32 at least, and after the dropout.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; the scores are `(batch, num_heads, tokens, tokens)`.

    Example:
        >>> attention = MultiHeadSelfAttention(num_heads=4)
        >>> output, scores = attention(np.zeros((1, 5, 32), "float32"), return_attention_scores=True)
        >>> tuple(scores.shape)
        (1, 4, 5, 5)
    """

    attention_name = "attention"  # to who taps

    def __init__(
        self,
        num_heads,
        dim_head=None,
        dropout=0.0,
        qkv_bias=True,
        key_bias=None,
        out_bias=True,
        relative_grid=None,
        relative_resize="bilinear",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dim_head = dim_head
        self.dropout = dropout
        self.qkv_bias = qkv_bias
        self.key_bias = key_bias
        self.out_bias = out_bias
        self.relative_grid = None if relative_grid is None else tuple(relative_grid)
        self.relative_resize = relative_resize

    def build(self, input_shape):
        self.hidden_size = _token_width(self, input_shape)
        if self.dim_head is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"embedding dimension = {self.hidden_size} should be divisible by number of heads = "
                f"{self.num_heads}, or dim_head be given."
            )
        self.projection_dim = self.dim_head or self.hidden_size // self.num_heads
        inner = self.num_heads * self.projection_dim
        key_bias = self.qkv_bias if self.key_bias is None else self.key_bias
        for attribute, name, source, target, bias in (
            ("query_dense", "query", self.hidden_size, inner, self.qkv_bias),
            ("key_dense", "key", self.hidden_size, inner, key_bias),
            ("value_dense", "value", self.hidden_size, inner, self.qkv_bias),
            ("combine_heads", "out", inner, self.hidden_size, self.out_bias),
        ):
            dense = keras.layers.Dense(target, use_bias=bias, name=name, dtype=self.dtype_policy)
            setattr(self, attribute, dense)
            dense.build((None, source))
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)
        if self.relative_grid:
            down, across = self.relative_grid
            self.relative_position_bias = self.add_weight(
                shape=((2 * down - 1) * (2 * across - 1) + 3, self.num_heads),
                initializer="zeros",
                name="relative_position_bias",
            )

    def _relative_bias(self, dtype):
        """`(1, heads, tokens, tokens)` to be added to the logits."""
        index = relative_position_index(self.relative_grid)
        bias = ops.take(ops.convert_to_tensor(self.relative_position_bias), index.reshape(-1), axis=0)
        return ops.cast(ops.transpose(ops.reshape(bias, (1, *index.shape, self.num_heads)), (0, 3, 1, 2)), dtype)

    def separate_heads(self, x, batch_size=None):
        """Turn `(batch, tokens, heads * width)` into `(batch, heads, tokens, width)`."""
        x = ops.reshape(x, (-1, x.shape[1] or ops.shape(x)[1], self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def attention(self, query, key, value, training=None):
        """Attend, given `(batch, heads, tokens, width)` each; return the output and the scores."""
        scores = ops.matmul(query * (self.projection_dim**-0.5), ops.transpose(key, (0, 1, 3, 2)))
        if self.relative_grid:
            scores = scores + self._relative_bias(scores.dtype)
        at_least_float32 = keras.backend.result_type(scores.dtype, "float32")
        scores = ops.cast(ops.softmax(ops.cast(scores, at_least_float32), axis=-1), value.dtype)
        scores = _visit(self, self.attention_name, _drop(self.dropout_layer, scores, training))
        return ops.matmul(scores, value), scores

    def attention_without_scores(self, query, key, value, training=None):
        """`attention`, but the output alone, without dropout, and without keeping a large score matrix.

        PyTorch, and JAX on an accelerator, have a fused kernel for it, which is not used where a subclass overrides
        `attention`. Elsewhere the plain form is the fastest while the scores are few; of many, only the rows of a chunk of
        queries exist at a time.
        """
        overridden = type(self).attention is not MultiHeadSelfAttention.attention
        if _has_fused_attention() and not overridden:
            heads_last = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
            bias = self._relative_bias(query.dtype) if self.relative_grid else None
            return ops.transpose(ops.dot_product_attention(*heads_last, bias=bias), (0, 2, 1, 3))
        tokens = query.shape[2]
        chunks = (
            1 if tokens is None or self.relative_grid else math.ceil(4 * self.num_heads * tokens**2 / _MAX_SCORE_BYTES)
        )
        if chunks == 1:
            return self.attention(query, key, value)[0]
        rows = math.ceil(tokens / chunks)
        query = ops.pad(query, ((0, 0), (0, 0), (0, chunks * rows - tokens), (0, 0)))
        query = ops.reshape(query, (-1, self.num_heads, chunks, rows, self.projection_dim))
        query = ops.transpose(query, (2, 0, 1, 3, 4))

        def attend(query, key, value):
            return self.attention(query, key, value)[0]

        attend = _recomputed(attend) if training else attend
        output = ops.map(lambda chunk: attend(chunk, key, value), query)
        output = ops.reshape(
            ops.transpose(output, (1, 2, 0, 3, 4)), (-1, self.num_heads, chunks * rows, self.projection_dim)
        )
        return output[:, :, :tokens]

    def call(self, inputs, training=None, return_attention_scores=False, rope=None, queries=None):
        asking = inputs if queries is None else queries
        query, key, value = (
            self._project(dense, tokens)
            for dense, tokens in ((self.query_dense, asking), (self.key_dense, inputs), (self.value_dense, inputs))
        )
        if rope is not None:
            query, key = _rotate(query, rope), _rotate(key, rope)
        value = _visit(self, "values", value)
        if return_attention_scores or is_tapped() or queries is not None or (training and self.dropout):
            output, scores = self.attention(query, key, value, training=training)
        else:
            output, scores = self.attention_without_scores(query, key, value, training), None
        output = ops.reshape(ops.transpose(output, (0, 2, 1, 3)), (-1, self.num_heads * self.projection_dim))
        tokens = asking.shape[1] or ops.shape(asking)[1]
        output = ops.reshape(self.combine_heads(output), (-1, tokens, self.hidden_size))
        return (output, scores) if return_attention_scores else output

    def _project(self, dense, tokens):
        count = tokens.shape[1] or ops.shape(tokens)[1]
        x = dense(ops.reshape(tokens, (-1, self.hidden_size)))
        return self.separate_heads(ops.reshape(x, (-1, count, self.num_heads * self.projection_dim)))

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.relative_grid:
            store["grid"] = np.array(self.relative_grid, "int32")

    def load_own_variables(self, store):
        if not self.relative_grid:
            return super().load_own_variables(store)
        source_grid = tuple(np.asarray(store["grid"]).tolist())
        table = resize_relative_position_bias(
            np.asarray(store["0"]), source_grid, self.relative_grid, self.relative_resize
        )
        return self.relative_position_bias.assign(table)

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, training=None, return_attention_scores=False, rope=None, queries=None):
        return _attention_spec(self, inputs, self.num_heads, return_attention_scores, queries)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dim_head": self.dim_head,
            "dropout": self.dropout,
            "qkv_bias": self.qkv_bias,
            "key_bias": self.key_bias,
            "out_bias": self.out_bias,
            "relative_grid": self.relative_grid,
            "relative_resize": self.relative_resize,
        }


@_register
class MlpBlock(keras.layers.Layer):
    """Two dense layers with a GELU between them (paper, section 3.1).

    The activation belongs to the weights: it is saved with them, and loading a file of weights sets it.
    Files of vit-keras 0.x, which do not name it, were made with the exact GELU.

    Args:
        mlp_dim: Width between the two layers.
        dropout: Rate of the dropout after the activation and after the second layer.
        activation: `"gelu_tanh"` (the reference's), `"gelu"` (exact), `"quick_gelu"` (OpenAI's `x * sigmoid(1.702 * x)`), or any
            Keras activation name.
        gated: Whether the activation is that of a third layer, `Gate`, whose result multiplies that of the first (GLU variants,
            arXiv 2002.05202).

    Input shape:
        `(..., hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> tuple(MlpBlock(mlp_dim=64)(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

    def __init__(self, mlp_dim, dropout=0.0, activation="gelu_tanh", gated=False, **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.activation = activation
        self.gated = gated
        _activate(activation)

    def build(self, input_shape):
        width = _token_width(self, input_shape, ndim=None)

        def dense(units, name):
            bias = keras.initializers.RandomNormal(stddev=1e-6)
            return keras.layers.Dense(units, bias_initializer=bias, name=name, dtype=self.dtype_policy)

        def dropout():
            return keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

        self.layers = [dense(self.mlp_dim, "Dense_0"), dropout(), dense(width, "Dense_1"), dropout()]
        self.layers[0].build((None, width))
        self.layers[2].build((None, self.mlp_dim))
        if self.gated:
            self.gate = dense(self.mlp_dim, "Gate")
            self.gate.build((None, width))

    def call(self, inputs, training=None):
        dense_0, dropout_0, dense_1, dropout_1 = self.layers

        def activate_and_project(x, gate=None):
            x = _activate(self.activation)(x) if gate is None else _activate(self.activation)(gate) * x
            return dense_1(_drop(dropout_0, x, training))

        if training and not self.dropout:
            activate_and_project = _recomputed(activate_and_project)
        x = ops.reshape(inputs, (-1, inputs.shape[-1]))
        x = activate_and_project(dense_0(x), self.gate(x)) if self.gated else activate_and_project(dense_0(x))
        x = _drop(dropout_1, x, training)
        return ops.reshape(x, (-1, *[size or ops.shape(inputs)[axis] for axis, size in enumerate(inputs.shape)][1:]))

    def compute_output_shape(self, input_shape):
        return input_shape

    def save_own_variables(self, store):
        store["activation"] = np.frombuffer(self.activation.encode(), "uint8")

    def load_own_variables(self, store):
        saved = bytes(np.asarray(store["activation"])).decode() if "activation" in store.keys() else "gelu"
        if saved != self.activation:
            logger.info("These weights were made with the activation %r: %s uses it now.", saved, self.name)
            self.activation = saved

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "dropout": self.dropout,
            "activation": self.activation,
            "gated": self.gated,
        }


@_register
class LayerScale(keras.layers.Layer):
    """Multiply each channel by a learned factor (CaiT, arXiv 2103.17239, section 2.1).

    Args:
        initial: What the factors start from.

    Input shape:
        `(..., hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> ops.convert_to_numpy(LayerScale(0.5)(np.ones((1, 2), "float32")))
        array([[0.5, 0.5]], dtype=float32)
    """

    def __init__(self, initial=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.gamma = self.add_weight(shape=(input_shape[-1],), initializer=initializer, name="gamma")

    def call(self, inputs):
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "initial": self.initial}


@_register
class TransformerBlock(keras.layers.Layer):
    """A pre-norm encoder block: attention and MLP, each with a residual (paper, equations 2 and 3).

    Args:
        num_heads: Number of attention heads.
        mlp_dim: Hidden width of the MLP.
        dropout: Rate after the attention, after the MLP's activation and after the MLP.
        dim_head: Width of a head; `None` for the width of a token divided by `num_heads`.
        attention_dropout: Rate on the attention weights.
        mlp_activation: See `MlpBlock`.
        epsilon: Added to the variance in the layer normalisations.
        remat: Whether to keep only the input of the block in training and to compute the rest again in the backward pass
            (gradient checkpointing, arXiv 1604.06174). It cannot go with dropout, which Keras would draw anew.
        qkv_bias: See `MultiHeadSelfAttention`; so are `key_bias`, `out_bias`, `relative_grid` and `relative_resize`.
        layer_scale: Initial value of the factors on both branches (`LayerScale`), or `None`.
        gated_mlp: See `MlpBlock`.
        stochastic_depth: Rate at which each branch is left out in training, for each image anew; those that stay are scaled
            up in turn (arXiv 1603.09382).

    Call arguments:
        inputs: Tokens.
        rope: Sines and cosines of `RotaryPositions`, or `None`.
        return_attention_scores: Whether to return `(output, scores)` instead of the output alone.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; the scores are `(batch, num_heads, tokens, tokens)`.

    Raises:
        ValueError: `remat` together with dropout or stochastic depth.

    Example:
        >>> block = TransformerBlock(num_heads=4, mlp_dim=64, dropout=0.1)
        >>> tuple(block(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

    is_part_of_a_vit = True

    def __init__(
        self,
        num_heads,
        mlp_dim,
        dropout=0.0,
        dim_head=None,
        attention_dropout=0.0,
        mlp_activation="gelu_tanh",
        epsilon=1e-6,
        remat=False,
        qkv_bias=True,
        key_bias=None,
        out_bias=True,
        relative_grid=None,
        relative_resize="bilinear",
        layer_scale=None,
        gated_mlp=False,
        stochastic_depth=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if remat and (dropout or attention_dropout or stochastic_depth):
            raise ValueError(NO_REMAT_WITH_DROPOUT.format(dropout, attention_dropout, stochastic_depth))
        self.remat = remat
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.dim_head = dim_head
        self.attention_dropout = attention_dropout
        self.epsilon = epsilon
        self.layer_scale = layer_scale
        policy = {"dtype": self.dtype_policy}
        # The numbers in these names are those of Google's files, which counted all modules of a block.
        self.att = MultiHeadSelfAttention(
            num_heads,
            dim_head,
            attention_dropout,
            qkv_bias,
            key_bias,
            out_bias,
            relative_grid,
            relative_resize,
            name="MultiHeadDotProductAttention_1",
            **policy,
        )
        self.mlpblock = MlpBlock(mlp_dim, dropout, mlp_activation, gated_mlp, name="MlpBlock_3", **policy)
        self.layernorm1 = keras.layers.LayerNormalization(epsilon=epsilon, name="LayerNorm_0", **policy)
        self.layernorm2 = keras.layers.LayerNormalization(epsilon=epsilon, name="LayerNorm_2", **policy)
        self.dropout_layer = keras.layers.Dropout(dropout, **policy)
        if layer_scale is not None:
            self.layerscale1 = LayerScale(layer_scale, name="LayerScale_0", **policy)
            self.layerscale2 = LayerScale(layer_scale, name="LayerScale_1", **policy)
        self.drop_path = drop_path(stochastic_depth, **policy)

    def build(self, input_shape):
        _token_width(self, input_shape)
        scales = () if self.layer_scale is None else (self.layerscale1, self.layerscale2)
        for layer in (self.att, self.mlpblock, self.layernorm1, self.layernorm2, *scales):
            layer.build(input_shape)

    def call(self, inputs, training=None, return_attention_scores=False, rope=None):
        if self.remat and training and not return_attention_scores and not is_tapped():
            tensors = (inputs,) if rope is None else (inputs, rope)
            # Nothing drops out here.
            return _remat(lambda x, rope=None: self._attend_and_mix(x, training=False, rope=rope)[0])(*tensors)
        x, scores = self._attend_and_mix(inputs, training, return_attention_scores, rope)
        return (x, scores) if return_attention_scores else x

    def _attend_and_mix(self, inputs, training=None, return_attention_scores=False, rope=None):
        layernorm1, layernorm2 = self.layernorm1, self.layernorm2
        if training:
            layernorm1, layernorm2 = _recomputed(layernorm1), _recomputed(layernorm2)
        inputs = _visit(self, "tokens", inputs)
        x = _visit(self, "normed", layernorm1(inputs))
        x = self.att(x, training=training, return_attention_scores=return_attention_scores, rope=rope)
        x, scores = x if return_attention_scores else (x, None)
        x = x if self.layer_scale is None else self.layerscale1(x)
        x = inputs + _drop(self.drop_path, _drop(self.dropout_layer, x, training), training)
        y = self.mlpblock(layernorm2(x), training=training)
        x = x + _drop(self.drop_path, y if self.layer_scale is None else self.layerscale2(y), training)
        return _visit(self, "output", x), scores

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, training=None, return_attention_scores=False, rope=None):
        return _attention_spec(self, inputs, self.num_heads, return_attention_scores)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "dropout": self.dropout,
            "dim_head": self.dim_head,
            "attention_dropout": self.attention_dropout,
            "mlp_activation": self.mlpblock.activation,
            "epsilon": self.epsilon,
            "remat": self.remat,
            "qkv_bias": self.att.qkv_bias,
            "key_bias": self.att.key_bias,
            "out_bias": self.att.out_bias,
            "relative_grid": self.att.relative_grid,
            "relative_resize": self.att.relative_resize,
            "layer_scale": self.layer_scale,
            "gated_mlp": self.mlpblock.gated,
            "stochastic_depth": self.drop_path.rate,
        }

    @classmethod
    def from_config(cls, config):
        # vit-keras 0.x had one activation, the exact GELU, and did not write it down.
        return cls(**{"mlp_activation": "gelu", **config})


@_register
class ExtractToken(keras.layers.Layer):
    """Take one token of a sequence: by default the first, the class token (paper, equation 4).

    Args:
        index: Which one.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`

    Example:
        >>> tuple(ExtractToken()(np.zeros((2, 197, 768), "float32")).shape)
        (2, 768)
    """

    def __init__(self, index=0, **kwargs):
        super().__init__(**kwargs)
        self.index = index

    def call(self, inputs):
        return inputs[:, self.index]

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[2]

    def get_config(self):
        return {**super().get_config(), "index": self.index}


@_register
class MeanToken(keras.layers.Layer):
    """Take the mean of a sequence of tokens, without those before the patches.

    Args:
        prefix_tokens: Tokens before the patches, which are left out.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`

    Example:
        >>> tuple(MeanToken(prefix_tokens=1)(np.zeros((2, 197, 768), "float32")).shape)
        (2, 768)
    """

    def __init__(self, prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.prefix_tokens = prefix_tokens

    def call(self, inputs):
        return ops.mean(_visit(self, "tokens", inputs)[:, self.prefix_tokens :], axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[2]

    def get_config(self):
        return {**super().get_config(), "prefix_tokens": self.prefix_tokens}


@_register
class AttentionPooling(keras.layers.Layer):
    """Multi-head attention pooling: a learned probe attends to all tokens, then an MLP (Set Transformer, arXiv 1810.00825).

    Reference: big_vision's `MAPHead`, which SigLIP has.

    Args:
        num_heads: Number of attention heads.
        mlp_dim: Hidden width of the MLP.
        mlp_activation: See `MlpBlock`.
        epsilon: Added to the variance in the layer normalisation.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`

    Example:
        >>> tuple(AttentionPooling(num_heads=2, mlp_dim=16)(np.zeros((2, 5, 8), "float32")).shape)
        (2, 8)
    """

    def __init__(self, num_heads, mlp_dim, mlp_activation="gelu_tanh", epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.epsilon = epsilon
        policy = {"dtype": self.dtype_policy}
        self.att = MultiHeadSelfAttention(num_heads, name="MultiHeadDotProductAttention_0", **policy)
        self.att.attention_name = "pooling"
        self.layernorm = keras.layers.LayerNormalization(epsilon=epsilon, name="LayerNorm_0", **policy)
        self.mlpblock = MlpBlock(mlp_dim, activation=mlp_activation, name="MlpBlock_0", **policy)

    def build(self, input_shape):
        width = _token_width(self, input_shape)
        self.probe = self.add_weight(shape=(1, 1, width), initializer="glorot_uniform", name="probe")
        for layer in (self.att, self.layernorm, self.mlpblock):
            layer.build((None, 1, width))

    def call(self, inputs, training=None):
        probe = ops.cast(self.probe, inputs.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(inputs)[0], 1, inputs.shape[-1]))
        x = self.att(inputs, training=training, queries=probe)
        return (x + self.mlpblock(self.layernorm(x), training=training))[:, 0]

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[2]

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
            "mlp_activation": self.mlpblock.activation,
            "epsilon": self.epsilon,
        }


@_register
class PatchNormalization(keras.layers.Layer):
    """Normalise the pixels of each patch, as vit-pytorch does before its patch embedding; the image stays an image.

    Args:
        patch_size: Pixels down and across.
        epsilon: Added to the variance.

    Input shape:
        `(batch, height, width, channels)`

    Output shape:
        Same as the input, without what is left over at the right and the bottom after whole patches.

    Example:
        >>> tuple(PatchNormalization((8, 8))(np.zeros((1, 16, 24, 3), "float32")).shape)
        (1, 16, 24, 3)
    """

    def __init__(self, patch_size, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.patch_size = tuple(patch_size)
        self.epsilon = epsilon
        self.norm = keras.layers.LayerNormalization(epsilon=epsilon, name="norm", dtype=self.dtype_policy)

    def build(self, input_shape):
        self.norm.build((None, math.prod(self.patch_size) * input_shape[-1]))

    def call(self, inputs):
        (height, width), channels = self.patch_size, inputs.shape[-1]
        down, across = _grid_of(inputs)
        down, across = down // height, across // width
        x = inputs[:, : down * height, : across * width]
        x = ops.reshape(x, (-1, down, height, across, width, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        x = self.norm(ops.reshape(x, (-1, down, across, height * width * channels)))
        x = ops.transpose(ops.reshape(x, (-1, down, across, height, width, channels)), (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, down * height, across * width, channels))

    def compute_output_shape(self, input_shape):
        batch, *size, channels = input_shape
        whole = (None if n is None else n // patch * patch for n, patch in zip(size, self.patch_size))
        return (batch, *whole, channels)

    def get_config(self):
        return {**super().get_config(), "patch_size": self.patch_size, "epsilon": self.epsilon}


def drop_path(rate: float, **options: Any) -> keras.layers.Dropout:
    """Dropout of whole images from a batch of tokens, which before a residual sum is stochastic depth (timm's `drop_path`)."""
    return keras.layers.Dropout(rate, noise_shape=(None, 1, 1), name="drop_path", **options)


def set_rates(vit: keras.Model, dropout: float | None = None, stochastic_depth: float | None = None) -> None:
    """Change the rates of dropout and of stochastic depth in the blocks of a model that exists; compile it afterwards.

    Args:
        vit: A Vision Transformer; see `find_vit`.
        dropout: As `ViTConfig` has it, but only in the blocks; `None`: as it is.
        stochastic_depth: As `ViTConfig` has it, the rate of the last block; `None`: as it is.

    Raises:
        ValueError: A rate is out of range, or cannot go with `remat`.
    """
    blocks = [b for b in vit.layers if getattr(b, "is_part_of_a_vit", False) and hasattr(b, "mlp_dim")]
    given = {"dropout": dropout, "stochastic_depth": stochastic_depth}
    given = {field: rate for field, rate in given.items() if rate is not None}
    config = getattr(vit, "config", None)
    if config is not None:
        # The rate after the embedding followed the old one, and stays.
        after_embedding = {"emb_dropout": config.embedding_dropout} if "dropout" in given else {}
        vit.config = config.replace(**given, **after_embedding)
    for n, block in enumerate(blocks):
        if dropout is not None:
            for layer in (block, *(part for part in block._flatten_layers() if isinstance(part, MlpBlock))):
                layer.dropout = dropout
                for part in layer._layers:
                    if isinstance(part, keras.layers.Dropout) and part.name != "drop_path":
                        _set_rate(part, dropout)
        if stochastic_depth is not None and hasattr(block, "drop_path"):
            _set_rate(block.drop_path, stochastic_depth * n / max(len(blocks) - 1, 1))


def _set_rate(dropout, rate):
    dropout.rate = rate
    if rate and not hasattr(dropout, "seed_generator"):  # Keras makes none for a rate of 0
        dropout._tracker.unlock()
        dropout.seed_generator = keras.random.SeedGenerator()
        dropout._tracker.lock()


def find_vit(model: keras.Model) -> keras.Model:
    """Find the Vision Transformer in a model: the model itself, or one nested in it at any depth.

    Args:
        model: Any Keras model.

    Returns:
        The innermost model whose own layers include this package's `AddPositionEmbs`, `TransformerBlock` or `MixerBlock`.

    Raises:
        TypeError: It is no Keras model.
        ValueError: There is none, or more than one.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a Keras model. Received: {type(model).__name__}")
    models = [layer for layer in model._flatten_layers(include_self=True) if isinstance(layer, keras.Model)]
    found = [m for m in models if any(getattr(layer, "is_part_of_a_vit", False) for layer in m.layers)]
    if len(found) != 1:
        raise ValueError(
            f"Expected one Vision Transformer of vit_keras in the model {model.name!r}, found {len(found)}"
            + (": " + ", ".join(m.name for m in found) + ". Pass one of them." if found else ".")
        )
    return found[0]


def patch_grid(vit: keras.Model, image_size: tuple[int, int] | None = None) -> tuple[int, int]:
    """Patches down and across in a Vision Transformer.

    Args:
        vit: The model.
        image_size: Pixels down and across of the images, for a model that takes any size.

    Raises:
        ValueError: Nothing tells: the model was cut out of another and its patches are not a square, or it takes images of any
            size and none was given.
    """
    config = getattr(vit, "config", None)
    if config is not None and config.image_size is None:
        if image_size is None:
            raise ValueError(f"The model {vit.name!r} takes images of any size: say which image_size.")
        return config.grid_of(image_size)
    positions = next((layer for layer in vit.layers if isinstance(layer, AddPositionEmbs)), None)
    if positions is not None and positions.grid:
        return positions.grid
    try:  # no position embeddings; or a model of vit-keras 0.x, whose layers did not know the grid
        return tuple(vit.get_layer("embedding").output.shape[1:3])
    except (ValueError, AttributeError):
        if positions is None or positions.patch_grid is None:
            raise ValueError(f"Nothing in the model {vit.name!r} tells how many patches are in a row.") from None
        return positions.patch_grid


# Scores of one image and layer that may exist at once, in float32, where no fused kernel does the attention.
_MAX_SCORE_BYTES = 32 << 20


def _has_fused_attention() -> bool:
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() != "cpu"
    return backend == "torch"


def _drop(dropout, x, training):
    # On PyTorch the call of a layer costs 0.1 ms, and most dropout layers here do nothing.
    return dropout(x, training=training) if dropout.rate else x


def _remat(function):
    if not hasattr(keras, "remat"):
        raise ValueError(f"remat=True needs keras.remat, of Keras 3.9 or later. This is Keras {keras.__version__}.")
    return keras.remat(function)


def _recomputed(function):
    """A cheap function that is computed again in the backward pass, so that what is inside it need not be kept.

    For what is element by element: a training step takes a quarter less memory for 2 % of the time. (Of a matrix product at
    the end only the gradient is computed, which does not need its result.) PyTorch's kernels keep little by themselves.
    All tensors must be arguments: TensorFlow gives no gradient to one that the function closes over (to variables it does).
    """
    if keras.backend.backend() not in ("tensorflow", "jax") or not hasattr(keras, "remat"):
        return function
    return keras.remat(lambda *x: function(*x))  # a new one each time: JAX would reuse the trace of one that it knows


def _gelu(x):
    # Through erf and not keras.ops.gelu, whose TensorFlow form exports to ONNX as an operator that ONNX lacks.
    return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))


def _gelu_tanh(x):
    return ops.gelu(x, approximate=True)


def _quick_gelu(x):
    return x * ops.sigmoid(1.702 * x)


def _activate(name):
    own = {"gelu": _gelu, "gelu_tanh": _gelu_tanh, "quick_gelu": _quick_gelu}
    return own.get(name) or keras.activations.get(name)


def _grid_of(patches):
    """Cells down and across of a feature map: integers, or scalar tensors where only the graph knows them."""
    return tuple(fixed or ops.shape(patches)[axis] for axis, fixed in enumerate(patches.shape))[1:3]


def _array_module(grid):
    return np if all(isinstance(size, int) for size in grid) else ops


def _rotate(x, rope):
    """Rotate queries or keys `(batch, heads, tokens, width)` by the angles of the last tokens: halves of a head are the pairs."""
    sin, cos = ops.cast(rope[0], x.dtype), ops.cast(rope[1], x.dtype)
    prefix = (x.shape[2] or ops.shape(x)[2]) - (rope.shape[1] or ops.shape(rope)[1])
    patches = x[:, :, prefix:]
    first, second = ops.split(patches, 2, axis=-1)
    rotated = patches * cos + ops.concatenate([-second, first], axis=-1) * sin
    return ops.concatenate([x[:, :, :prefix], rotated], axis=2)


def _token_width(layer, shape, ndim=3):
    if (ndim is not None and len(shape) != ndim) or shape[-1] is None:
        raise ValueError(
            f"{type(layer).__name__} takes tokens of shape (batch, tokens, hidden_size) with a fixed hidden size. "
            f"Received: {tuple(shape)}"
        )
    return shape[-1]


def _attention_spec(layer, inputs, num_heads, return_attention_scores, queries=None):
    asking = inputs if queries is None else queries
    output = keras.KerasTensor((inputs.shape[0], *asking.shape[1:]), dtype=layer.compute_dtype)
    if not return_attention_scores:
        return output
    scores = (inputs.shape[0], num_heads, asking.shape[1], inputs.shape[1])
    return output, keras.KerasTensor(scores, dtype=layer.compute_dtype)

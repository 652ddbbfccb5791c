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
from collections.abc import Iterator

import keras
import numpy as np
from keras import ops

from .config import NO_REMAT_WITH_DROPOUT
from .positions import resize_position_embeddings, square_grid

logger = logging.getLogger("vit_keras")

_recording: contextvars.ContextVar[list | None] = contextvars.ContextVar("vit_keras_recording", default=None)


@contextlib.contextmanager
def record_attention() -> Iterator[list]:
    """Collect the attention scores of every `MultiHeadSelfAttention` that is called inside.

    It works however deep the layer sits in other models, needs no change to them, and costs nothing
    outside the `with` block; of nested blocks the inner one collects. In a compiled function, enter it
    inside the function and return what it collected.

    Yields:
        A list that grows by one tensor `(batch, heads, tokens, tokens)` a call, in the order of the calls.

    Example:
        >>> with record_attention() as scores:
        ...     _ = TransformerBlock(num_heads=2, mlp_dim=16)(np.zeros((1, 5, 8), "float32"))
        >>> tuple(scores[0].shape)
        (1, 2, 5, 5)
    """
    scores: list = []
    token = _recording.set(scores)
    try:
        yield scores
    finally:
        _recording.reset(token)


def recorded_attention() -> list | None:
    """The list that the innermost `record_attention` collects in, or `None` outside of any."""
    return _recording.get()


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
class AddPositionEmbs(keras.layers.Layer):
    """Add a learned embedding to each token (paper, equation 1: `E_pos`), then drop out (appendix B.1).

    A file of weights that was saved at another image size loads all the same: its table is resampled
    to this layer's grid by Google's rule (`vit_keras.positions`).

    Args:
        grid: Patches down and across. `None`: the patches are taken to be a square, with or without
            one class token before them.
        dropout: Rate of the dropout after the addition.

    Input shape:
        `(batch, tokens, hidden_size)`, with a fixed number of tokens.

    Output shape:
        Same as the input.

    Example:
        >>> AddPositionEmbs(grid=(14, 28))(np.zeros((1, 1 + 14 * 28, 8), "float32")).shape[1]
        393
    """

    def __init__(self, grid=None, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.grid = None if grid is None else tuple(grid)
        self.dropout = dropout
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape):
        width = _token_width(self, input_shape)
        if input_shape[1] is None:
            raise ValueError(f"{self.name} needs a fixed number of tokens. Received: input shape {input_shape}")
        self.pe = self.add_weight(
            shape=(1, input_shape[1], width),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
            name="pos_embedding",
        )

    def call(self, inputs, training=None):
        return self.dropout_layer(inputs + ops.cast(self.pe, inputs.dtype), training=training)

    def compute_output_shape(self, input_shape):
        return input_shape

    @property
    def patch_grid(self) -> tuple[int, int] | None:
        """Patches down and across, as told or, for a square, as counted; `None` if unknown."""
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
            table = resize_position_embeddings(table, grid, prefix_tokens=prefix_tokens, source_grid=source_grid)
            if source_grid != grid:
                logger.info("Resampled the position embeddings of %s to the grid %s.", self.name, grid)
        self.pe.assign(table)

    def get_config(self):
        return {**super().get_config(), "grid": self.grid, "dropout": self.dropout}


@_register
class MultiHeadSelfAttention(keras.layers.Layer):
    """Multi-head self-attention (paper, appendix A).

    Args:
        num_heads: Number of heads.
        dim_head: Width of a head; `None` for the width of a token divided by `num_heads`.
        dropout: Rate of the dropout on the attention weights.

    Call arguments:
        inputs: Tokens.
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

    def __init__(self, num_heads, dim_head=None, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.dim_head = dim_head
        self.dropout = dropout

    def build(self, input_shape):
        self.hidden_size = _token_width(self, input_shape)
        if self.dim_head is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"embedding dimension = {self.hidden_size} should be divisible by number of heads = "
                f"{self.num_heads}, or dim_head be given."
            )
        self.projection_dim = self.dim_head or self.hidden_size // self.num_heads
        inner = self.num_heads * self.projection_dim
        for attribute, name, source, target in (
            ("query_dense", "query", self.hidden_size, inner),
            ("key_dense", "key", self.hidden_size, inner),
            ("value_dense", "value", self.hidden_size, inner),
            ("combine_heads", "out", inner, self.hidden_size),
        ):
            dense = keras.layers.Dense(target, name=name, dtype=self.dtype_policy)
            setattr(self, attribute, dense)
            dense.build((None, source))
        self.dropout_layer = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy)

    def separate_heads(self, x, batch_size=None):
        """Turn `(batch, tokens, heads * width)` into `(batch, heads, tokens, width)`."""
        x = ops.reshape(x, (-1, x.shape[1] or ops.shape(x)[1], self.num_heads, self.projection_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def attention(self, query, key, value, training=None):
        """Attend, given `(batch, heads, tokens, width)` each; return the output and the scores."""
        scores = ops.matmul(query * (self.projection_dim**-0.5), ops.transpose(key, (0, 1, 3, 2)))
        at_least_float32 = keras.backend.result_type(scores.dtype, "float32")
        scores = ops.cast(ops.softmax(ops.cast(scores, at_least_float32), axis=-1), value.dtype)
        scores = _drop(self.dropout_layer, scores, training)
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
            return ops.transpose(ops.dot_product_attention(*heads_last), (0, 2, 1, 3))
        tokens = query.shape[2]
        chunks = 1 if tokens is None else math.ceil(4 * self.num_heads * tokens**2 / _MAX_SCORE_BYTES)
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

    def call(self, inputs, training=None, return_attention_scores=False):
        tokens = inputs.shape[1] or ops.shape(inputs)[1]
        x = ops.reshape(inputs, (-1, self.hidden_size))
        query, key, value = (
            self.separate_heads(ops.reshape(dense(x), (-1, tokens, self.num_heads * self.projection_dim)))
            for dense in (self.query_dense, self.key_dense, self.value_dense)
        )
        recording = recorded_attention()
        if return_attention_scores or recording is not None or (training and self.dropout):
            output, scores = self.attention(query, key, value, training=training)
        else:
            output, scores = self.attention_without_scores(query, key, value, training), None
        output = ops.reshape(ops.transpose(output, (0, 2, 1, 3)), (-1, self.num_heads * self.projection_dim))
        output = ops.reshape(self.combine_heads(output), (-1, tokens, self.hidden_size))
        if recording is not None:
            recording.append(scores)
        return (output, scores) if return_attention_scores else output

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, training=None, return_attention_scores=False):
        return _attention_spec(self, inputs, self.num_heads, return_attention_scores)

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dim_head": self.dim_head,
            "dropout": self.dropout,
        }


@_register
class MlpBlock(keras.layers.Layer):
    """Two dense layers with a GELU between them (paper, section 3.1).

    The activation belongs to the weights: it is saved with them, and loading a file of weights sets it.
    Files of vit-keras 0.x, which do not name it, were made with the exact GELU.

    Args:
        mlp_dim: Width between the two layers.
        dropout: Rate of the dropout after the activation and after the second layer.
        activation: `"gelu_tanh"` (the reference's), `"gelu"` (exact), or any Keras activation name.

    Input shape:
        `(..., hidden_size)`

    Output shape:
        Same as the input.

    Example:
        >>> tuple(MlpBlock(mlp_dim=64)(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

    def __init__(self, mlp_dim, dropout=0.0, activation="gelu_tanh", **kwargs):
        super().__init__(**kwargs)
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.activation = activation
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

    def call(self, inputs, training=None):
        dense_0, dropout_0, dense_1, dropout_1 = self.layers

        def activate_and_project(x):
            return dense_1(_drop(dropout_0, _activate(self.activation)(x), training))

        if training and not self.dropout:
            activate_and_project = _recomputed(activate_and_project)
        x = dense_0(ops.reshape(inputs, (-1, inputs.shape[-1])))
        x = _drop(dropout_1, activate_and_project(x), training)
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
        }


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

    Call arguments:
        inputs: Tokens.
        return_attention_scores: Whether to return `(output, scores)` instead of the output alone.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; the scores are `(batch, num_heads, tokens, tokens)`.

    Raises:
        ValueError: `remat` together with dropout.

    Example:
        >>> block = TransformerBlock(num_heads=4, mlp_dim=64, dropout=0.1)
        >>> tuple(block(np.zeros((1, 5, 32), "float32")).shape)
        (1, 5, 32)
    """

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
        **kwargs,
    ):
        super().__init__(**kwargs)
        if remat and (dropout or attention_dropout):
            raise ValueError(NO_REMAT_WITH_DROPOUT.format(dropout, attention_dropout))
        self.remat = remat
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.dropout = dropout
        self.dim_head = dim_head
        self.attention_dropout = attention_dropout
        self.epsilon = epsilon
        policy = {"dtype": self.dtype_policy}
        # The numbers in these names are those of Google's files, which counted all modules of a block.
        self.att = MultiHeadSelfAttention(
            num_heads, dim_head, attention_dropout, name="MultiHeadDotProductAttention_1", **policy
        )
        self.mlpblock = MlpBlock(mlp_dim, dropout, mlp_activation, name="MlpBlock_3", **policy)
        self.layernorm1 = keras.layers.LayerNormalization(epsilon=epsilon, name="LayerNorm_0", **policy)
        self.layernorm2 = keras.layers.LayerNormalization(epsilon=epsilon, name="LayerNorm_2", **policy)
        self.dropout_layer = keras.layers.Dropout(dropout, **policy)

    def build(self, input_shape):
        _token_width(self, input_shape)
        for layer in (self.att, self.mlpblock, self.layernorm1, self.layernorm2):
            layer.build(input_shape)

    def call(self, inputs, training=None, return_attention_scores=False):
        if self.remat and training and not return_attention_scores and recorded_attention() is None:
            return _remat(lambda x: self._attend_and_mix(x, training=False)[0])(inputs)  # nothing drops out here
        x, scores = self._attend_and_mix(inputs, training, return_attention_scores)
        return (x, scores) if return_attention_scores else x

    def _attend_and_mix(self, inputs, training=None, return_attention_scores=False):
        layernorm1, layernorm2 = self.layernorm1, self.layernorm2
        if training:
            layernorm1, layernorm2 = _recomputed(layernorm1), _recomputed(layernorm2)
        x = self.att(layernorm1(inputs), training=training, return_attention_scores=return_attention_scores)
        x, scores = x if return_attention_scores else (x, None)
        x = inputs + _drop(self.dropout_layer, x, training)
        x = x + self.mlpblock(layernorm2(x), training=training)
        return x, scores

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, training=None, return_attention_scores=False):
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
        }

    @classmethod
    def from_config(cls, config):
        # vit-keras 0.x had one activation, the exact GELU, and did not write it down.
        return cls(**{"mlp_activation": "gelu", **config})


@_register
class ExtractToken(keras.layers.Layer):
    """Take the first token of a sequence: the class token (paper, equation 4).

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`

    Example:
        >>> tuple(ExtractToken()(np.zeros((2, 197, 768), "float32")).shape)
        (2, 768)
    """

    def call(self, inputs):
        return inputs[:, 0]

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[2]

    def get_config(self):
        return super().get_config()


def find_vit(model: keras.Model) -> keras.Model:
    """Find the Vision Transformer in a model: the model itself, or one nested in it at any depth.

    Args:
        model: Any Keras model.

    Returns:
        The innermost model whose own layers include `AddPositionEmbs`.

    Raises:
        TypeError: It is no Keras model.
        ValueError: There is none, or more than one.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"Expected a Keras model. Received: {type(model).__name__}")
    models = [layer for layer in model._flatten_layers(include_self=True) if isinstance(layer, keras.Model)]
    found = [m for m in models if any(isinstance(layer, AddPositionEmbs) for layer in m.layers)]
    if len(found) != 1:
        raise ValueError(
            f"Expected one Vision Transformer of vit_keras in the model {model.name!r}, found {len(found)}"
            + (": " + ", ".join(m.name for m in found) + ". Pass one of them." if found else ".")
        )
    return found[0]


def patch_grid(vit: keras.Model) -> tuple[int, int]:
    """Patches down and across in a Vision Transformer.

    Raises:
        ValueError: Nothing tells: the model was cut out of another, and its patches are not a square.
    """
    positions = next(layer for layer in vit.layers if isinstance(layer, AddPositionEmbs))
    if positions.grid:
        return positions.grid
    try:  # a model of vit-keras 0.x: its layers did not know the grid
        return tuple(vit.get_layer("embedding").output.shape[1:3])
    except (ValueError, AttributeError):
        if positions.patch_grid is None:
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


def _activate(name):
    return {"gelu": _gelu, "gelu_tanh": _gelu_tanh}.get(name) or keras.activations.get(name)


def _token_width(layer, shape, ndim=3):
    if (ndim is not None and len(shape) != ndim) or shape[-1] is None:
        raise ValueError(
            f"{type(layer).__name__} takes tokens of shape (batch, tokens, hidden_size) with a fixed hidden size. "
            f"Received: {tuple(shape)}"
        )
    return shape[-1]


def _attention_spec(layer, inputs, num_heads, return_attention_scores):
    output = keras.KerasTensor(inputs.shape, dtype=layer.compute_dtype)
    if not return_attention_scores:
        return output
    batch, tokens, _ = inputs.shape
    return output, keras.KerasTensor((batch, num_heads, tokens, tokens), dtype=layer.compute_dtype)

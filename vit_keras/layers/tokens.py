"""Layers that add, drop, arrange and pool tokens."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from .._internal.tap import visit
from ._base import Layer, grid_of, one_or_all, register, symbolic, token_width
from ._ops import join_tokens


@register
class ClassToken(Layer):
    """Prepend a learned token to a sequence of tokens (paper, equation 1: `x_class`).

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, 1 + tokens, hidden_size)`

    Example:
        >>> ClassToken()(np.zeros((2, 196, 768), "float32")).shape[1]
        197
    """

    def build(self, input_shape: Any) -> None:
        self.hidden_size: int = token_width(self, input_shape)
        self.cls: keras.Variable = self.add_weight(shape=(1, 1, self.hidden_size), initializer="zeros", name="cls")

    def call(self, inputs: Any) -> Any:
        cls = ops.cast(self.cls, inputs.dtype)
        cls = ops.broadcast_to(cls, (ops.shape(inputs)[0], 1, self.hidden_size))
        return ops.concatenate([cls, inputs], axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, tokens, width = input_shape
        return batch, None if tokens is None else tokens + 1, width

    def get_config(self) -> dict[str, Any]:  # Keras wants to see this method where a dtype policy may have been given
        return super().get_config()


@register
class RegisterTokens(Layer):
    """Insert learned register tokens after the class token ("Vision Transformers Need Registers", arXiv 2309.16588).

    Args:
        count: Number of registers.
        after: Number of tokens that stay before the registers.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, tokens + count, hidden_size)`

    Example:
        >>> RegisterTokens(4, after=1)(np.zeros((2, 197, 768), "float32")).shape[1]
        201
    """

    def __init__(self, count: int, after: int = 1, **kwargs: Any):
        super().__init__(**kwargs)
        self.count = count
        self.after = after

    def build(self, input_shape: Any) -> None:
        shape = (1, self.count, token_width(self, input_shape))
        self.registers: keras.Variable = self.add_weight(
            shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.02), name="registers"
        )

    def call(self, inputs: Any) -> Any:
        registers = ops.cast(self.registers, inputs.dtype)
        registers = ops.broadcast_to(registers, (ops.shape(inputs)[0], *self.registers.shape[1:]))
        return join_tokens([inputs[:, : self.after], registers, inputs[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, tokens, width = input_shape
        return batch, None if tokens is None else tokens + self.count, width

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "count": self.count, "after": self.after}


@register
class PatchDropout(Layer):
    """Drop random patches of each image in training (PatchDropout, arXiv 2208.07220).

    The remaining tokens are in random order, to which attention is blind: their positions were added before.

    Args:
        rate: Share of the patches to drop; at least one stays.
        prefix_tokens: Number of tokens before the patches, which are kept.
        seed: Integer for reproducible choices, or `None`.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; in training, with fewer tokens.

    Example:
        >>> PatchDropout(0.5, prefix_tokens=1)(np.zeros((2, 197, 768), "float32"), training=True).shape[1]
        99
    """

    def __init__(self, rate: float, prefix_tokens: int = 0, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.rate = rate
        self.prefix_tokens = prefix_tokens
        self.seed = seed
        self.seed_generator: keras.random.SeedGenerator = keras.random.SeedGenerator(seed)

    def build(self, input_shape: Any) -> None:
        token_width(self, input_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
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

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        own = {"rate": self.rate, "prefix_tokens": self.prefix_tokens, "seed": self.seed}
        return {**super().get_config(), **own}


@register
class ExtractToken(Layer):
    """Take one token of a sequence: by default the first, the class token (paper, equation 4).

    Args:
        index: Index of the token.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`

    Example:
        >>> tuple(ExtractToken()(np.zeros((2, 197, 768), "float32")).shape)
        (2, 768)
    """

    def __init__(self, index: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.index = index

    def call(self, inputs: Any) -> Any:
        return inputs[:, self.index]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0], input_shape[2]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "index": self.index}


@register
class PatchMap(Layer):
    """Arrange the tokens of the patches as the image that they were cut from."""

    def __init__(self, prefix_tokens: int = 0, grid: Any = None, return_prefix: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.prefix_tokens = prefix_tokens
        self.grid: tuple[Any, ...] | None = None if grid is None else tuple(grid)
        self.return_prefix = return_prefix

    def build(self, input_shape: Any) -> None:
        token_width(self, input_shape)

    def _grid(self, patches: Any) -> Any:
        if self.grid is None and patches is None:
            raise ValueError("PatchMap needs grid=, patches down and across, or a call with patches=, the feature map.")
        return self.grid or grid_of(patches)

    def call(self, inputs: Any, patches: Any = None) -> Any:
        patch_map = ops.reshape(inputs[:, self.prefix_tokens :], (-1, *self._grid(patches), inputs.shape[-1]))
        return one_or_all(patch_map, *[inputs[:, : self.prefix_tokens]] * self.return_prefix)

    def compute_output_spec(self, inputs: Any, patches: Any = None) -> Any:
        batch, _, width = inputs.shape
        patch_map = (batch, *self._grid(patches), width)
        return symbolic(self, patch_map, *[(batch, self.prefix_tokens, width)] * self.return_prefix)

    def get_config(self) -> dict[str, Any]:
        own = {"prefix_tokens": self.prefix_tokens, "grid": self.grid, "return_prefix": self.return_prefix}
        return {**super().get_config(), **own}


@register
class MeanToken(Layer):
    """Return the mean of a sequence of tokens, without those before the patches."""

    def __init__(self, prefix_tokens: int = 0, **kwargs: Any):
        super().__init__(**kwargs)
        self.prefix_tokens = prefix_tokens

    def call(self, inputs: Any, sizes: Any = None) -> Any:
        tokens = visit(self, "tokens", inputs)[:, self.prefix_tokens :]
        if sizes is None:
            return ops.mean(tokens, axis=1)
        sizes = sizes[:, self.prefix_tokens :]
        return ops.sum(tokens * (sizes / ops.sum(sizes, axis=1, keepdims=True)), axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0], input_shape[2]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "prefix_tokens": self.prefix_tokens}

"""Layers that add, drop, arrange and pool tokens."""

from __future__ import annotations

from typing import Any

import keras

from .._internal.tap import visit
from ..backend import ops
from ._base import Layer, grid_of, one_or_all, register, token_width


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


@register
class RegisterTokens(Layer):
    """Insert learned register tokens after the class token ("Vision Transformers Need Registers", arXiv 2309.16588).

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, tokens + count, hidden_size)`

    Example:
        >>> RegisterTokens(4, after=1)(np.zeros((2, 197, 768), "float32")).shape[1]
        201
    """

    count: int
    """Number of registers."""
    after: int = 1
    """Number of tokens that stay before the registers."""

    def build(self, input_shape: Any) -> None:
        shape = (1, self.count, token_width(self, input_shape))
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.registers: keras.Variable = self.add_weight(shape=shape, initializer=normal, name="registers")

    def call(self, inputs: Any) -> Any:
        registers = ops.cast(self.registers, inputs.dtype)
        registers = ops.broadcast_to(registers, (ops.shape(inputs)[0], *self.registers.shape[1:]))
        return ops.concatenate([inputs[:, : self.after], registers, inputs[:, self.after :]], axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        batch, tokens, width = input_shape
        return batch, None if tokens is None else tokens + self.count, width


@register
class PatchDropout(Layer):
    """Drop random patches of each image in training (PatchDropout, arXiv 2208.07220).

    The remaining tokens are in random order, to which attention is blind: their positions were added before.

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        Same as the input; in training, with fewer tokens.

    Example:
        >>> PatchDropout(0.5, prefix_tokens=1)(np.zeros((2, 197, 768), "float32"), training=True).shape[1]
        99
    """

    rate: float
    """Share of the patches to drop; at least one stays."""
    prefix_tokens: int = 0
    """Number of tokens before the patches, which are kept."""
    seed: int | None = None
    """Integer for reproducible choices, or `None`."""

    def setup(self) -> None:
        self.seed_generator: keras.random.SeedGenerator = keras.random.SeedGenerator(self.seed)

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


@register
class ExtractToken(Layer):
    """Take one token of a sequence: by default the first, the class token (paper, equation 4).

    Input shape:
        `(batch, tokens, hidden_size)`

    Output shape:
        `(batch, hidden_size)`

    Example:
        >>> tuple(ExtractToken()(np.zeros((2, 197, 768), "float32")).shape)
        (2, 768)
    """

    index: int = 0
    """Index of the token."""

    def call(self, inputs: Any) -> Any:
        return inputs[:, self.index]

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0], input_shape[2]


@register
class PatchMap(Layer):
    """Arrange the tokens of the patches as the image that they were cut from."""

    prefix_tokens: int = 0
    grid: tuple[int, int] | None = None
    return_prefix: bool = False

    def build(self, input_shape: Any) -> None:
        token_width(self, input_shape)

    def call(self, inputs: Any, patches: Any = None) -> Any:
        grid = self.grid or grid_of(self._needed(patches))
        patch_map = ops.reshape(inputs[:, self.prefix_tokens :], (-1, *grid, inputs.shape[-1]))
        return one_or_all(patch_map, *[inputs[:, : self.prefix_tokens]] * self.return_prefix)

    def compute_output_shape(self, inputs_shape: Any, patches_shape: Any = None) -> Any:
        batch, _, width = inputs_shape
        patch_map = (batch, *(self.grid or self._needed(patches_shape)[1:3]), width)
        return one_or_all(patch_map, *[(batch, self.prefix_tokens, width)] * self.return_prefix)

    def _needed(self, patches: Any) -> Any:
        if patches is None:
            raise ValueError("PatchMap needs grid=, patches down and across, or a call with patches=, the feature map.")
        return patches


@register
class MeanToken(Layer):
    """Return the mean of a sequence of tokens, without those before the patches."""

    prefix_tokens: int = 0

    def call(self, inputs: Any, sizes: Any = None) -> Any:
        tokens = visit(self, "tokens", inputs)[:, self.prefix_tokens :]
        if sizes is None:
            return ops.mean(tokens, axis=1)
        sizes = sizes[:, self.prefix_tokens :]
        return ops.sum(tokens * (sizes / ops.sum(sizes, axis=1, keepdims=True)), axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape[0], input_shape[2]

"""Compute the variables of a model, and the matrix products, from its configuration."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import NamedTuple

from ..config import ViTConfig
from ..positions import relative_position_rows

__all__ = ["Weight", "flops_of", "resnet", "sizes_of", "tokens_of", "weights_of"]


class Weight(NamedTuple):
    """A variable, and the number of times that its values are multiplied for one image."""

    path: str
    shape: tuple[int, ...]
    times: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _dense(path: str, source: int, target: int, times: int, bias: bool = True) -> Iterator[Weight]:
    yield Weight(f"{path}/kernel", (source, target), times)
    if bias:
        yield Weight(f"{path}/bias", (target,))


def _norm(path: str, width: int) -> Iterator[Weight]:
    yield Weight(f"{path}/gamma", (width,))
    yield Weight(f"{path}/beta", (width,))


def sizes_of(config: ViTConfig) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the pixels and the patches of an image, down and across, or raise a ValueError if any size fits."""
    if config.image_size is None:
        raise ValueError("The model takes images of any size: pass image_size, such as image_size=224.")
    return config.image_size, config.grid_of(config.image_size)


def weights_of(config: ViTConfig, training: bool, table: tuple[int, int] | None = None) -> Iterator[Weight]:
    """Return the variables of a model in the order of `vit_keras.build`; `table` is the `position_grid`, if any."""
    width, patches, tokens = config.hidden_size, math.prod(sizes_of(config)[1]), tokens_of(config, training)
    channels = yield from resnet(config)
    inputs = math.prod(config.patch_size) * channels
    if config.patch_norm:
        yield from _norm("patch_norm/norm", inputs)
        yield from _norm("embedding_norm", width)
    yield Weight("embedding/kernel", (*config.patch_size, channels, width), patches)
    if config.patch_bias:
        yield Weight("embedding/bias", (width,))
    for name, there in (
        ("class_token/cls", config.has_class_token),
        ("distillation_token/cls", config.distillation_token),
    ):
        if there:
            yield Weight(name, (1, 1, width))
    if config.registers:
        yield Weight("register_tokens/registers", (1, config.registers, width))
    if config.position == "learned":
        rows = config.position_prefix_tokens + (math.prod(table) if table else patches)
        yield Weight("Transformer_posembed_input/pos_embedding", (1, rows, width))
    if config.pre_norm:
        yield from _norm("Transformer_norm_pre", width)
    if config.rope_theta is not None and config.rope_kind == "mixed":
        shape = (2, config.num_layers, config.num_heads, config.head_width // 2)
        yield Weight("rotary_positions/frequencies", shape)
    hidden = config.tokens_mlp_dim
    for n in range(config.num_layers):
        for weight in _mixer(config, hidden, tokens) if hidden else _block(config, tokens):
            yield weight._replace(path=f"Transformer_encoderblock_{n}/{weight.path}")
    if config.final_norm == "tokens":
        yield from _norm("Transformer_encoder_norm", width)
    if config.pooling == "map":
        yield from _map_head(config, tokens)
    pooled = width * (2 if config.pooling == "token+gap" else 1)
    if config.final_norm == "pooled":
        yield from _norm("fc_norm", pooled)
    if config.representation_size:
        yield from _dense("pre_logits", pooled, config.representation_size, 1)
        pooled = config.representation_size
    if config.include_top:
        for name in ("head", "head_dist")[: 2 if config.pooling == "token+dist" else 1]:
            yield from _dense(name, pooled, config.classes, 1, config.head_bias)


def _attention(path: str, config: ViTConfig, inner: int, queries: int, keys: int) -> Iterator[Weight]:
    key_bias = config.qkv_bias if config.key_bias is None else config.key_bias
    for name, times, bias in (
        ("query", queries, config.qkv_bias),
        ("key", keys, key_bias),
        ("value", keys, config.qkv_bias),
    ):
        yield from _dense(f"{path}/{name}", config.hidden_size, inner, times, bias)
    if config.attention_norm:
        yield from _norm(f"{path}/norm", inner)
    yield from _dense(f"{path}/out", inner, config.hidden_size, queries, config.out_bias)


def _block(config: ViTConfig, tokens: int) -> Iterator[Weight]:
    width, inner = config.hidden_size, config.num_heads * config.head_width
    yield from _norm("LayerNorm_0", width)
    yield from _attention("MultiHeadDotProductAttention_1", config, inner, tokens, tokens)
    if config.relative_positions:
        rows = relative_position_rows(sizes_of(config)[1], config.prefix_tokens)
        yield Weight("MultiHeadDotProductAttention_1/relative_position_bias", (rows, config.num_heads))
    yield from _norm("LayerNorm_2", width)
    yield from _dense("MlpBlock_3/Dense_0", width, config.mlp_dim, tokens)
    if config.gated_mlp:
        yield from _dense("MlpBlock_3/Gate", width, config.mlp_dim, tokens)
    if config.mlp_norm:
        yield from _norm("MlpBlock_3/norm", config.mlp_dim)
    yield from _dense("MlpBlock_3/Dense_1", config.mlp_dim, width, tokens)
    if config.layer_scale is not None:
        yield from (Weight(f"LayerScale_{n}/gamma", (width,)) for n in range(2))


def _mixer(config: ViTConfig, hidden: int, tokens: int) -> Iterator[Weight]:
    width = config.hidden_size
    for n, name, source, middle, times in (
        (0, "token_mixing", tokens, hidden, width),
        (1, "channel_mixing", width, config.mlp_dim, tokens),
    ):
        yield from _norm(f"LayerNorm_{n}", width)
        yield from _dense(f"{name}/Dense_0", source, middle, times)
        yield from _dense(f"{name}/Dense_1", middle, source, times)


def _map_head(config: ViTConfig, tokens: int) -> Iterator[Weight]:
    width, hidden = config.hidden_size, config.map_mlp_dim or config.mlp_dim
    plain = ViTConfig(hidden_size=width, num_heads=config.map_heads or config.num_heads)
    yield Weight("MAPHead_0/probe", (1, 1, width))
    yield from _attention("MAPHead_0/MultiHeadDotProductAttention_0", plain, width, 1, tokens)
    yield from _norm("MAPHead_0/LayerNorm_0", width)
    yield from _dense("MAPHead_0/MlpBlock_0/Dense_0", width, hidden, 1)
    yield from _dense("MAPHead_0/MlpBlock_0/Dense_1", hidden, width, 1)


def resnet(config: ViTConfig) -> Generator[Weight, None, int]:
    """The variables of a hybrid's ResNet, if there is one; return the channels of what is cut into patches."""
    if config.resnet is None:
        return config.channels
    height, width = (math.ceil(size / 2) for size in sizes_of(config)[0])
    filters = 64
    yield Weight("conv_root/kernel", (7, 7, config.channels, filters), height * width)
    yield from _norm("gn_root", filters)
    size, channels = (math.ceil(height / 2), math.ceil(width / 2)), filters
    for stage, units in enumerate(config.resnet):
        filters = 64 * 2**stage
        for unit in range(units):
            before, shrinks = math.prod(size), stage > 0 and unit == 0
            size = tuple(math.ceil(n / 2) for n in size) if shrinks else size
            path, after = f"block{stage + 1}_unit{unit + 1}", math.prod(size)
            convolutions = [("1", 1, channels, filters, before), ("2", 3, filters, filters, after)]
            convolutions.append(("3", 1, filters, 4 * filters, after))
            if shrinks or channels != 4 * filters:
                convolutions.append(("_proj", 1, channels, 4 * filters, after))
            for suffix, kernel, source, target, times in convolutions:
                yield Weight(f"{path}/conv{suffix}/kernel", (kernel, kernel, source, target), times)
                yield from _norm(f"{path}/gn{suffix}", target)
            channels = 4 * filters
    return channels


def tokens_of(config: ViTConfig, training: bool) -> int:
    """Return the number of tokens of an image in a block; in training, without those dropped by patch dropout."""
    patches = math.prod(sizes_of(config)[1])
    if training and config.patch_dropout:
        patches = max(1, int(patches * (1 - config.patch_dropout)))
    return config.prefix_tokens + patches


def flops_of(config: ViTConfig, weights: list[Weight], training: bool) -> int:
    """Return the additions and multiplications for one image."""
    products = [weight.times * weight.size for weight in weights]
    tokens = tokens_of(config, training)
    attention = 0 if config.tokens_mlp_dim else 2 * tokens**2 * config.num_heads * config.head_width * config.num_layers
    pooling = 2 * tokens * config.hidden_size if config.pooling == "map" else 0
    forward = sum(products) + attention + pooling
    if not training:
        return 2 * forward
    # Nobody asks for the gradient of the image; a norm of the patches needs that of the first product's input.
    first = 0 if config.patch_norm else next(product for product in products if product)
    again = 0
    if config.remat:
        inside = sum(p for p, weight in zip(products, weights) if weight.path.startswith("Transformer_encoderblock_"))
        again = inside + attention
    return 2 * (3 * forward - first + again)

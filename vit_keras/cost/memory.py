"""Memory of PyTorch's activations, term by term: kept for the backward pass, and at the peak of a prediction."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..config import ViTConfig
from .weights import Weight, resnet, sizes_of, tokens_of

__all__ = ["Kept", "alive", "copied", "kept_of"]

ACTIVATION_KEEPS = {"quick_gelu": 3}
"""Values kept for each neuron of an MLP, including its input and output; 2 for other activations."""


class Kept(NamedTuple):
    """Numbers of values kept for one image: in the dtype of the activations, and in float32."""

    values: int
    float32: int


def kept_of(config: ViTConfig, share: int) -> Kept:
    """Return the values that PyTorch keeps of one image for the backward pass."""
    (pixels, patches), tokens = map(math.prod, sizes_of(config)), tokens_of(config, True)
    width, image = config.hidden_size, pixels * config.channels
    values, stats = image, 0
    if config.patch_norm:
        values, stats = values + patches * (math.prod(config.patch_size) * config.channels + width), 4 * patches
    if config.resnet is not None:
        values += _kept_in_resnet(config)
    everything = config.prefix_tokens + patches
    if config.embedding_dropout:
        values += everything * width
    if config.patch_dropout:
        values += everything * width + 2 * tokens * width  # with an index of 8 bytes for each value
    norms = config.pre_norm + (config.final_norm == "tokens")
    values, stats = values + norms * tokens * width, stats + norms * 2 * tokens
    hidden = config.tokens_mlp_dim
    block = _kept_in_mixer(config, hidden, tokens) if hidden else _kept_in_block(config, tokens, share)
    blocks = Kept(*(config.num_layers * part for part in block))
    if config.remat:
        blocks = Kept(config.num_layers * tokens * width + block.values, block.float32)
    return Kept(values + blocks.values + _kept_by_head(config, tokens), stats + blocks.float32)


def copied(weights: list[Weight]) -> int:
    """Return the values in a ResNet's kernels that exist twice more: standardized, and with channels first."""
    convolved = (weight for weight in weights if len(weight.shape) == 4 and weight.times)
    return 2 * sum(weight.size for weight in convolved if weight.path != "embedding/kernel")


def _kept_in_block(config: ViTConfig, tokens: int, share: int) -> Kept:
    heads, width = config.num_heads // share, config.hidden_size
    inner, hidden = heads * config.head_width, config.mlp_dim // share
    values = 4 * width + 4 * inner  # a branch's input, and this normalized; query, key, value, output
    neurons = ACTIVATION_KEEPS.get(config.mlp_activation, 2)
    values += hidden * (neurons + 2 * config.gated_mlp + config.mlp_norm + bool(config.dropout))
    values += inner * config.attention_norm
    values += inner * (config.rope_theta is not None)  # the output once more, in another order
    if config.rope_theta is not None and config.rope_kind == "mixed":
        values += 4 * inner  # queries and keys, before and after a quarter of a turn
    values += 2 * width * ((config.layer_scale is not None) + bool(config.dropout))
    stats = 4 + 2 * config.attention_norm + 2 * config.mlp_norm
    if config.attention_dropout or config.relative_positions:  # no fused kernel: the scores are kept, not the output
        values += heads * tokens * (3 if config.attention_dropout else 1)
    else:
        stats += heads
    return Kept(tokens * values, tokens * stats)


def _kept_in_mixer(config: ViTConfig, tokens_mlp_dim: int, tokens: int) -> Kept:
    neurons = ACTIVATION_KEEPS.get(config.mlp_activation, 2) + bool(config.dropout)
    hidden = config.hidden_size * tokens_mlp_dim + tokens * config.mlp_dim
    branches = tokens * config.hidden_size * (4 + 2 * bool(config.dropout))
    return Kept(branches + neurons * hidden, 4 * tokens)


def _kept_in_resnet(config: ViTConfig) -> int:
    """An estimate: four of each convolution's output (what is convolved, normalized and rectified), and the pooling."""
    outputs = [weight.times * weight.shape[-1] for weight in resnet(config)]
    return 4 * sum(outputs) + 9 * outputs[0] // 5


def _kept_by_head(config: ViTConfig, tokens: int) -> int:
    width = config.hidden_size
    if config.pooling is None:
        return 0
    if config.pooling == "map":  # the tokens, as keys and as values; then single vectors
        return 3 * tokens * width + 2 * (config.map_mlp_dim or config.mlp_dim) + 2 * width
    if not config.include_top and config.representation_size is None:
        return 0
    if config.pooling in ("token", "token+dist") and config.final_norm == "tokens":
        return tokens * width  # the token is a view of them all
    return width


def alive(config: ViTConfig, share: int) -> int:
    """Return the peak number of values of one image in a prediction: in an MLP, or in the first layers of a ResNet."""
    # The output of a block is freed after the next block. The ResNet's share was measured, as in `_kept_in_resnet`.
    tokens, width = tokens_of(config, False), config.hidden_size
    image = math.prod(sizes_of(config)[0]) * config.channels
    root = next((weight.times * weight.shape[-1] for weight in resnet(config)), 0)
    return max(image + tokens * (8 * width + 2 * config.mlp_dim // share), 9 * root // 2)

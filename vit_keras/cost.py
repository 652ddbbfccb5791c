"""What a model costs, before it is built: parameters, products, memory, and what devices send each other.

Everything is computed from a `ViTConfig`: no weights, no backend. Parameters are exact. Products are exact too, and one
multiplication with its addition counts as two. Memory is what PyTorch keeps; `tools/check_cost.py` compares it with
measurements, and `docs/cost.md` has the tables.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .config import ViTConfig
from .validate import one_of, positive_integer
from .variants import CIFAR10, UNPUBLISHED, VARIANTS

if TYPE_CHECKING:
    import keras

__all__ = ["Cost", "config_of", "cost"]

SIZES = {config.name.replace("-", "_"): config for config in (*VARIANTS.values(), *UNPUBLISHED.values(), CIFAR10)}
"""`{"vit_b16": ViTConfig(…), …}`: names that `cost` knows without any weights."""

STRATEGIES = ("data", "fsdp", "tensor")

OPTIMIZERS = {"adamw": (2, 3), "adam": (2, 3), "lamb": (2, 0), "lion": (1, 2), "sgd": (1, 0)}
"""Numbers that an optimizer keeps for each parameter, and that exist beside them while it updates the weights on
PyTorch; clipping needs one more. SGD has momentum."""

BYTES = {"float32": (4, 4), "mixed_bfloat16": (4, 2), "mixed_float16": (4, 2), "bfloat16": (2, 2), "float16": (2, 2)}
"""Of a variable and of an activation, under a dtype policy of Keras."""

LEAST_CUT = 2**20
"""Values from which on `"fsdp"` divides a variable."""

_COLUMNS = re.compile(r"(^|/)(query|key|value|Dense_0|Gate)/(kernel|bias)$")
_ROWS = re.compile(r"(^|/)(out|Dense_1|head)/kernel$")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step costs. Made by `cost`.

    Attributes:
        model: Name of the model.
        image_size: `(height, width)` of the images.
        batch_size: Images in a step, on all devices together.
        devices: Number of devices.
        strategy: How they share the work.
        training: Whether the step trains.
        dtype: Keras dtype policy.
        tokens: Tokens of an image in a block.
        parameters: Numbers in the model's weights.
        flops: Additions and multiplications in matrix products and convolutions, on all devices together. A training
            step has those of the backward pass too.
        weight_bytes: Weights on a device.
        gradient_bytes: Their gradients on a device.
        optimizer_bytes: State of the optimizer on a device.
        update_bytes: What exists besides while the optimizer updates the weights, after the backward pass.
        activation_bytes: In training what a device keeps for the backward pass; else what exists at once at the peak.
        sent_bytes: What a device sends to others in a step.
    """

    model: str
    image_size: tuple[int, int]
    batch_size: int
    devices: int
    strategy: str
    training: bool
    dtype: str
    tokens: int
    parameters: int
    flops: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    update_bytes: int
    activation_bytes: int
    sent_bytes: int

    @property
    def memory_bytes(self) -> int:
        """The most that a device holds at once: weights, gradients, optimizer, and activations or the update."""
        lasting = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return lasting + max(self.activation_bytes, self.update_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON."""
        return {**dataclasses.asdict(self), "image_size": list(self.image_size), "memory_bytes": self.memory_bytes}


def cost(
    model: str | os.PathLike[str] | ViTConfig | keras.Model,
    *,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 1,
    training: bool = False,
    devices: int = 1,
    strategy: str = "data",
    model_devices: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adamw",
    **options: Any,
) -> Cost:
    """Compute what one step of a model costs, without building it.

    Args:
        model: A factory's name (`"vit_b16"`; also `"vit_g14"`), a published name, a `ViTConfig`, a model, or anything
            that `open_model` opens.
        image_size: Pixels of the input, `(height, width)` or one integer; `None`: the model's own.
        batch_size: Images in a step, on all devices together, as in `fit`.
        training: Whether the step trains. Without, it predicts.
        devices: Number of devices.
        strategy: How they share the work. `"data"`: each has the whole model and its part of the batch. `"fsdp"`: each
            also holds only a part of every large variable and of its optimizer's state. `"tensor"`: each has some heads
            of each attention and some neurons of each MLP.
        model_devices: With `"tensor"`: how many devices share a model; groups of so many share the batch. `None`: all.
        dtype: Keras dtype policy, a key of `BYTES`.
        optimizer: A key of `OPTIMIZERS`.
        **options: Fields of `ViTConfig` to change, such as `remat=True` or `classes=10`.

    Returns:
        A `Cost`.

    Raises:
        ValueError: An argument is out of range, or the model has a part whose cost is not known.

    Example:
        >>> b16 = cost("vit_b16", batch_size=64, training=True)
        >>> f"{b16.parameters / 1e6:.1f} M, {b16.flops / 1e12:.2f} TFLOP, {b16.memory_bytes / 1e9:.1f} GB"
        '86.6 M, 6.70 TFLOP, 9.6 GB'
    """
    config = config_of(model).replace(**({} if image_size is None else {"image_size": image_size}), **options)
    for name, value in (("batch_size", batch_size), ("devices", devices)):
        positive_integer(value, name)
    one_of(strategy, "strategy", STRATEGIES)
    one_of(optimizer, "optimizer", OPTIMIZERS)
    one_of(dtype, "dtype", BYTES)
    share = _share(config, strategy, devices, model_devices)
    if config.grid is None:
        raise ValueError("The model takes images of any size: pass image_size, such as image_size=224.")
    if config.merge_tokens:
        raise ValueError("Where blocks merge tokens, each has another number of them. Pass merge_tokens=0.")
    variable_bytes, value_bytes = BYTES[dtype]
    states, temporary = OPTIMIZERS[optimizer]
    weights = [*_weights(config, training)]
    parameters = sum(weight.size for weight in weights)
    held = sum(weight.size // _parts(weight, strategy, devices, share) for weight in weights)
    images = math.ceil(batch_size * share / devices)
    if training:
        kept = _kept(config, share)
        copies = held if value_bytes < variable_bytes else _copied(weights)
        activations = images * (kept.values * value_bytes + kept.float32 * 4) + copies * value_bytes
    else:
        activations = images * _alive(config, share) * value_bytes
    return Cost(
        model=config.name,
        image_size=config.image_size,
        batch_size=batch_size,
        devices=devices,
        strategy=strategy,
        training=training,
        dtype=dtype,
        tokens=_tokens(config, training),
        parameters=parameters,
        flops=batch_size * _flops(config, weights, training),
        weight_bytes=held * variable_bytes,
        gradient_bytes=held * variable_bytes if training else 0,
        optimizer_bytes=held * variable_bytes * states if training else 0,
        update_bytes=held * variable_bytes * temporary if training else 0,
        activation_bytes=activations,
        sent_bytes=_sent(config, weights, strategy, devices, share, training, images, BYTES[dtype]),
    )


def config_of(model: str | os.PathLike[str] | ViTConfig | keras.Model) -> ViTConfig:
    """Return the configuration of whatever names a model; a published size needs no weights.

    Raises:
        ValueError: There is no such model, or it has no ViT of this package in it.

    Example:
        >>> config_of("vit_h14").num_layers
        32
    """
    if isinstance(model, ViTConfig):
        return model
    if isinstance(model, (str, os.PathLike)):
        name = os.fspath(model)
        if name.replace("-", "_") in SIZES:
            return SIZES[name.replace("-", "_")]
        from .checkpoints import find  # here, as the help of the command line needs the tables above alone

        published = find(name)
        if published is not None and published.variant in VARIANTS:
            head = {"classes": published.classes} if published.classes else {"include_top": False}
            own = {"image_size": published.image_size, "representation_size": published.representation_size}
            return VARIANTS[published.variant].replace(**own, **head)
        from .opening import open_model  # this imports Keras

        model = open_model(model)
    from .anatomy import find_vit

    return find_vit(model).config


# --- weights and products -----------------------------------------------------------------------------------------


class _Weight(NamedTuple):
    """A variable, and how often its values are multiplied for one image."""

    path: str
    shape: tuple[int, ...]
    times: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def _dense(path: str, source: int, target: int, times: int, bias: bool = True) -> Iterator[_Weight]:
    yield _Weight(f"{path}/kernel", (source, target), times)
    if bias:
        yield _Weight(f"{path}/bias", (target,))


def _norm(path: str, width: int) -> Iterator[_Weight]:
    yield _Weight(f"{path}/gamma", (width,))
    yield _Weight(f"{path}/beta", (width,))


def _weights(config: ViTConfig, training: bool) -> Iterator[_Weight]:
    """The variables of a model, top to bottom, as `vit_keras.build` makes them."""
    width, patches, tokens = config.hidden_size, math.prod(config.grid), _tokens(config, training)
    channels = config.channels
    if config.resnet is not None:
        channels = yield from _resnet(config)
    inputs = math.prod(config.patch_size) * channels
    if config.patch_norm:
        yield from _norm("patch_norm/norm", inputs)
        yield from _norm("embedding_norm", width)
    yield _Weight("embedding/kernel", (*config.patch_size, channels, width), patches)
    if config.patch_bias:
        yield _Weight("embedding/bias", (width,))
    for name, there in (
        ("class_token/cls", config.has_class_token),
        ("distillation_token/cls", config.distillation_token),
    ):
        if there:
            yield _Weight(name, (1, 1, width))
    if config.registers:
        yield _Weight("register_tokens/registers", (1, config.registers, width))
    if config.position == "learned":
        rows = config.position_prefix_tokens + patches
        yield _Weight("Transformer_posembed_input/pos_embedding", (1, rows, width))
    if config.pre_norm:
        yield from _norm("Transformer_norm_pre", width)
    if config.rope_theta is not None and config.rope_kind == "mixed":
        shape = (2, config.num_layers, config.num_heads, config.head_width // 2)
        yield _Weight("rotary_positions/frequencies", shape)
    for n in range(config.num_layers):
        for path, *rest in (_mixer if config.tokens_mlp_dim else _block)(config, tokens):
            yield _Weight(f"Transformer_encoderblock_{n}/{path}", *rest)
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


def _attention(path: str, config: ViTConfig, inner: int, queries: int, keys: int) -> Iterator[_Weight]:
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


def _block(config: ViTConfig, tokens: int) -> Iterator[_Weight]:
    width, inner = config.hidden_size, config.num_heads * config.head_width
    yield from _norm("LayerNorm_0", width)
    yield from _attention("MultiHeadDotProductAttention_1", config, inner, tokens, tokens)
    if config.relative_positions:
        down, across = config.grid
        rows = (2 * down - 1) * (2 * across - 1) + 3
        yield _Weight("MultiHeadDotProductAttention_1/relative_position_bias", (rows, config.num_heads))
    yield from _norm("LayerNorm_2", width)
    yield from _dense("MlpBlock_3/Dense_0", width, config.mlp_dim, tokens)
    if config.gated_mlp:
        yield from _dense("MlpBlock_3/Gate", width, config.mlp_dim, tokens)
    if config.mlp_norm:
        yield from _norm("MlpBlock_3/norm", config.mlp_dim)
    yield from _dense("MlpBlock_3/Dense_1", config.mlp_dim, width, tokens)
    if config.layer_scale is not None:
        yield from (_Weight(f"LayerScale_{n}/gamma", (width,)) for n in range(2))


def _mixer(config: ViTConfig, tokens: int) -> Iterator[_Weight]:
    width, hidden = config.hidden_size, config.tokens_mlp_dim
    for n, name, source, middle, times in (
        (0, "token_mixing", tokens, hidden, width),
        (1, "channel_mixing", width, config.mlp_dim, tokens),
    ):
        yield from _norm(f"LayerNorm_{n}", width)
        yield from _dense(f"{name}/Dense_0", source, middle, times)
        yield from _dense(f"{name}/Dense_1", middle, source, times)


def _map_head(config: ViTConfig, tokens: int) -> Iterator[_Weight]:
    width, hidden = config.hidden_size, config.map_mlp_dim or config.mlp_dim
    plain = ViTConfig(hidden_size=width, num_heads=config.map_heads or config.num_heads)
    yield _Weight("MAPHead_0/probe", (1, 1, width))
    yield from _attention("MAPHead_0/MultiHeadDotProductAttention_0", plain, width, 1, tokens)
    yield from _norm("MAPHead_0/LayerNorm_0", width)
    yield from _dense("MAPHead_0/MlpBlock_0/Dense_0", width, hidden, 1)
    yield from _dense("MAPHead_0/MlpBlock_0/Dense_1", hidden, width, 1)


def _resnet(config: ViTConfig) -> Iterator[_Weight]:
    """The variables of a hybrid's ResNet; return the channels of its feature map."""
    height, width = (math.ceil(size / 2) for size in config.image_size)
    filters = 64
    yield _Weight("conv_root/kernel", (7, 7, config.channels, filters), height * width)
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
                yield _Weight(f"{path}/conv{suffix}/kernel", (kernel, kernel, source, target), times)
                yield from _norm(f"{path}/gn{suffix}", target)
            channels = 4 * filters
    return channels


def _tokens(config: ViTConfig, training: bool) -> int:
    """Tokens of an image in a block: in training without those that patch dropout leaves out."""
    patches = math.prod(config.grid)
    if training and config.patch_dropout:
        patches = max(1, int(patches * (1 - config.patch_dropout)))
    return config.prefix_tokens + patches


def _flops(config: ViTConfig, weights: list[_Weight], training: bool) -> int:
    """Additions and multiplications for one image."""
    products = [weight.times * weight.size for weight in weights]
    tokens, first = _tokens(config, training), next(product for product in products if product)
    attention = 0 if config.tokens_mlp_dim else 2 * tokens**2 * config.num_heads * config.head_width * config.num_layers
    if config.pooling == "map":
        attention += 2 * tokens * config.hidden_size
    forward = sum(products) + attention
    if not training:
        return 2 * forward
    again = 0
    if config.remat:
        inside = sum(p for p, weight in zip(products, weights) if weight.path.startswith("Transformer_encoderblock_"))
        again = inside + attention
    return 2 * (3 * forward - first + again)  # nobody asks for the gradient of the image


# --- memory -------------------------------------------------------------------------------------------------------


ACTIVATION_KEEPS = {"gelu": 4, "gelu_tanh": 2, "quick_gelu": 3}
"""What is kept of each neuron of an MLP, its input and its output included; 2 of other activations."""


class _Kept(NamedTuple):
    """Values of one image: in the dtype of the activations, and in float32."""

    values: int
    float32: int


def _kept(config: ViTConfig, share: int) -> _Kept:
    """What PyTorch keeps of one image for the backward pass."""
    width, patches, tokens = config.hidden_size, math.prod(config.grid), _tokens(config, True)
    image = math.prod(config.image_size) * config.channels
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
    block = (_kept_in_mixer if config.tokens_mlp_dim else _kept_in_block)(config, tokens, share)
    blocks = _Kept(*(config.num_layers * part for part in block))
    if config.remat:
        blocks = _Kept(config.num_layers * tokens * width + block.values, block.float32)
    return _Kept(values + blocks.values + _kept_by_head(config, tokens), stats + blocks.float32)


def _copied(weights: list[_Weight]) -> int:
    """Values of the kernels that exist once more: with the channels first; of a ResNet's, standardized too."""
    convolved = {weight.path: weight.size for weight in weights if len(weight.shape) == 4 and weight.times}
    return 2 * sum(convolved.values()) - convolved["embedding/kernel"]


def _kept_in_block(config: ViTConfig, tokens: int, share: int) -> _Kept:
    heads, width = config.num_heads // share, config.hidden_size
    inner, hidden = heads * config.head_width, config.mlp_dim // share
    values = 4 * width + 5 * inner  # a branch's input, and this normalized; query, key, value, output in two orders
    neurons = ACTIVATION_KEEPS.get(config.mlp_activation, 2)
    values += hidden * (neurons + 2 * config.gated_mlp + config.mlp_norm + bool(config.dropout))
    values += inner * config.attention_norm
    if config.rope_theta is not None and config.rope_kind == "mixed":
        values += 4 * inner  # queries and keys, before and after a quarter of a turn
    values += 2 * width * ((config.layer_scale is not None) + bool(config.dropout))
    stats = 4 + 2 * config.attention_norm + 2 * config.mlp_norm
    if config.attention_dropout or config.relative_positions:  # no fused kernel: the scores are kept, not the output
        values += heads * tokens * (3 if config.attention_dropout else 1) - inner
    else:
        stats += heads
    return _Kept(tokens * values, tokens * stats)


def _kept_in_mixer(config: ViTConfig, tokens: int, share: int) -> _Kept:
    neurons = ACTIVATION_KEEPS.get(config.mlp_activation, 2) + bool(config.dropout)
    hidden = config.hidden_size * config.tokens_mlp_dim + tokens * config.mlp_dim
    branches = tokens * config.hidden_size * (4 + 2 * bool(config.dropout))
    return _Kept(branches + neurons * hidden, 4 * tokens)


def _kept_in_resnet(config: ViTConfig) -> int:
    """An estimate: four of each convolution's output (what is convolved, normalized and rectified), and the pooling."""
    outputs = [weight.times * weight.shape[-1] for weight in _resnet(config)]
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


def _alive(config: ViTConfig, share: int) -> int:
    """Values of one image that exist at once when it is predicted, in the MLP of the last block.

    Without a compiler, Keras' functional models hold the output of every layer until the end.
    """
    tokens, width = _tokens(config, False), config.hidden_size
    image = math.prod(config.image_size) * config.channels
    return image + tokens * ((config.num_layers + 8) * width + 2 * config.mlp_dim // share)


# --- devices ------------------------------------------------------------------------------------------------------


def _share(config: ViTConfig, strategy: str, devices: int, model_devices: int | None) -> int:
    """Return how many devices share a model."""
    if strategy != "tensor":
        if model_devices is not None:
            raise ValueError(f'model_devices is for strategy="tensor". Received: strategy={strategy!r}')
        return 1
    share = devices if model_devices is None else positive_integer(model_devices, "model_devices")
    heads, neurons = config.num_heads, config.mlp_dim
    if devices % share or heads % share or neurons % share:
        raise ValueError(
            f'strategy="tensor": the devices that share a model must divide the devices ({devices}), the heads '
            f"({heads}) and the neurons of an MLP ({neurons}). Received: {share}. Pass model_devices."
        )
    return share


def _parts(weight: _Weight, strategy: str, devices: int, share: int) -> int:
    """Return into how many parts a variable is cut."""
    if strategy == "fsdp":
        return devices if weight.size >= LEAST_CUT and any(n % devices == 0 for n in weight.shape) else 1
    axis = -1 if _COLUMNS.search(weight.path) else 0 if _ROWS.search(weight.path) else None
    return share if axis is not None and weight.shape[axis] % share == 0 else 1


def _sent(config, weights, strategy, devices, share, training, images, sizes) -> int:
    """Return the bytes that a device sends in a step, by ring algorithms.

    Each of n devices sends (n - 1) / n of an array that is gathered or scattered, and twice as much of one that is
    summed.
    """
    variable_bytes, value_bytes = sizes
    whole = sum(weight.size for weight in weights if _parts(weight, strategy, devices, share) == 1)
    cut = sum(weight.size for weight in weights) - whole
    groups = devices // share

    def ring(n: int, values: float, size: int) -> float:
        return (n - 1) / n * values * size

    sent = 0.0
    if strategy == "fsdp":
        sent += ring(devices, cut, value_bytes) * (2 if training else 1)
        sent += (ring(devices, cut, variable_bytes) + 2 * ring(devices, whole, variable_bytes)) * training
    elif training:
        sent += 2 * ring(groups, whole + cut / share, variable_bytes)
    if share > 1:
        summed = images * _tokens(config, training) * config.hidden_size * config.num_layers
        sent += 2 * ring(share, summed, value_bytes) * (4 if training else 2)
    return round(sent)

"""Compute the cost of one step of a model."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import TYPE_CHECKING, Any, Literal

from .._internal.validate import one_of, positive_integer
from .._internal.warn import warn_caller
from ..config import ViTConfig
from ..variants import CIFAR10, UNPUBLISHED, VARIANTS
from .devices import STRATEGIES, parts_of, sent_by, share_of
from .memory import alive, copied, kept_of
from .weights import flops_of, sizes_of, tokens_of, weights_of

if TYPE_CHECKING:
    import keras

__all__ = ["Cost", "config_of", "cost"]

SIZES = {config.name.replace("-", "_"): config for config in (*VARIANTS.values(), *UNPUBLISHED.values(), CIFAR10)}
"""`{"vit_b16": ViTConfig(…), …}`: names that `cost` knows without weights."""

OPTIMIZERS = {"adamw": (2, 3), "adam": (2, 3), "lamb": (2, 0), "lion": (1, 2), "sgd": (1, 0)}
"""Numbers for each parameter that an optimizer keeps, and temporary ones while Keras updates the weights on PyTorch;
clipping needs one more. SGD has momentum."""

BY_KERNEL = ("adam", "adamw")
"""Optimizers that can update weights of float32 by one kernel, without temporary numbers (`training.fused`)."""

BYTES = {"float32": (4, 4), "mixed_bfloat16": (4, 2), "mixed_float16": (4, 2), "bfloat16": (2, 2), "float16": (2, 2)}
"""Of a variable and of an activation, under a dtype policy of Keras."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one step. `cost` returns it.

    Attributes:
        model: Name of the model.
        image_size: `(height, width)` of the images.
        batch_size: Images in a step, on all devices together.
        devices: Number of devices.
        strategy: Strategy for sharing the work.
        training: Whether the step trains.
        dtype: Keras dtype policy.
        tokens: Tokens of an image in a block.
        parameters: Number of parameters of the model.
        flops: Additions and multiplications in matrix products and convolutions, on all devices together. A training
            step includes the backward pass.
        weight_bytes: Bytes of the weights on a device.
        gradient_bytes: Bytes of their gradients on a device.
        optimizer_bytes: Bytes of the optimizer's state on a device.
        update_bytes: Additional bytes while the optimizer updates the weights, after the backward pass.
        activation_bytes: In training, bytes that a device keeps for the backward pass. Otherwise, bytes of activations
            at the peak.
        sent_bytes: Bytes that a device sends to others in a step.

    Example:
        >>> found = cost("vit_b16", batch_size=8)
        >>> isinstance(found, Cost), found.tokens, round(found.parameters / 1e6, 1)
        (True, 197, 86.6)
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
        """Peak memory of a device: weights, gradients, optimizer, and activations or the update."""
        lasting = self.weight_bytes + self.gradient_bytes + self.optimizer_bytes
        return lasting + max(self.activation_bytes, self.update_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain JSON."""
        return {**dataclasses.asdict(self), "image_size": list(self.image_size), "memory_bytes": self.memory_bytes}

    def pairs(self) -> list[tuple[str, str]]:
        """Return headings and texts for print."""
        shared = f" on {self.devices} devices ({self.strategy})" if self.devices > 1 else ""
        images = f"{self.batch_size} image{'s' * (self.batch_size > 1)}{shared}"
        parts = ("weight", "gradient", "optimizer", "activation") if self.training else ("weight", "activation")
        sizes = {f"{part}s": getattr(self, f"{part}_bytes") for part in parts}
        if self.update_bytes > self.activation_bytes:  # not at the same time
            del sizes["activations"]
            sizes["update of the weights"] = self.update_bytes
        listed = ", ".join(f"{part} {with_prefix(size)}B" for part, size in sizes.items())
        found = [
            ("step", f"{'training' if self.training else 'prediction'}, {images}, {self.dtype}"),
            ("parameters", f"{self.parameters:,}"),
            ("tokens", f"{self.tokens} per image"),
            ("operations", f"{with_prefix(self.flops)}FLOP, in products of matrices"),
            ("memory", f"{with_prefix(self.memory_bytes)}B{' on each device' if shared else ''}"),
            ("memory", listed.replace("optimizers", "optimizer")),
        ]
        return found + [("sends", f"{with_prefix(self.sent_bytes)}B from each device in a step")] * bool(shared)


def cost(
    model: str | os.PathLike[str] | ViTConfig | keras.Model,
    *,
    image_size: int | tuple[int, int] | str | None = "native",
    batch_size: int = 1,
    training: bool = False,
    devices: int = 1,
    strategy: Literal["data", "fsdp", "tensor"] = "data",
    model_devices: int | None = None,
    dtype: str = "float32",
    optimizer: str = "adamw",
    **options: Any,
) -> Cost:
    """Compute the cost of one step of a model, without building it.

    Args:
        model: Factory such as `"vit_b16"` (or `"vit_g14"`), published name, weight file, or saved model (.keras, .h5).
            A `ViTConfig` or an open model works too. With a model, only the `ViTConfig` of its ViT counts.
        image_size: Input size in pixels; `"native"`: the model's own. `(height, width)`, or one integer for a square.
        batch_size: Images in a step, on all devices together. It is the batch size of `fit`.
        training: Whether to estimate a training step instead of a prediction.
        devices: Number of devices.
        strategy: Strategy for sharing the work: each device holds the whole model (`"data"`), a part of every large
            weight (`"fsdp"`), or some heads and neurons of each block (`"tensor"`). With `"data"` and `"fsdp"`, each
            has its part of the batch. With `"fsdp"`, the optimizer state is shared too.
        model_devices: Number of devices that share a model with the strategy `"tensor"`; `None`: all. Groups of this
            size share the batch.
        dtype: Precision. A dtype policy of Keras, a key of `BYTES`.
        optimizer: Optimizer. A key of `OPTIMIZERS`.
        **options: Fields of `ViTConfig` to change, such as `remat=True` or `classes=10`.

    Returns:
        A `Cost`.

    Raises:
        ValueError: An argument is out of range, or the model has a part with unknown cost.

    Warns:
        UserWarning: A model has more than its config says: layers around its ViT, quantized weights or adapters.

    Example:
        >>> b16 = cost("vit_b16", batch_size=64, training=True)
        >>> f"{b16.parameters / 1e6:.1f} M, {b16.flops / 1e12:.2f} TFLOP, {b16.memory_bytes / 1e9:.1f} GB"
        '86.6 M, 6.73 TFLOP, 8.9 GB'
    """
    known = config_of(model)
    grid = options.get("position_grid") or known.position_grid
    table = known.replace(position_grid=grid).position_grid  # a model for any size keeps it, whatever images it gets
    size = {} if image_size in (None, "native") else {"image_size": image_size}
    config = known.replace(**size, **options)
    batch_size, devices = positive_integer(batch_size, "batch_size"), positive_integer(devices, "devices")
    one_of(strategy, "strategy", STRATEGIES)
    one_of(optimizer, "optimizer", OPTIMIZERS)
    one_of(dtype, "dtype", BYTES)
    share = share_of(config, strategy, devices, model_devices)
    pixels, _ = sizes_of(config)
    if config.merge_tokens:
        raise ValueError("Where blocks merge tokens, each has another number of them. Pass merge_tokens=0.")
    variable_bytes, value_bytes = BYTES[dtype]
    states, temporary = OPTIMIZERS[optimizer]
    if optimizer in BY_KERNEL and variable_bytes == 4:
        temporary = 0
    weights = [*weights_of(config, training, table)]
    parameters = sum(weight.size for weight in weights)
    held = sum(weight.size // parts_of(weight, strategy, devices, share) for weight in weights)
    images = math.ceil(batch_size * share / devices)
    if training:
        kept = kept_of(config, share)
        copies = held if value_bytes < variable_bytes else copied(weights)
        activations = images * (kept.values * value_bytes + kept.float32 * 4) + copies * value_bytes
    else:
        activations = images * alive(config, share) * value_bytes
    return Cost(
        model=config.name,
        image_size=pixels,
        batch_size=batch_size,
        devices=devices,
        strategy=strategy,
        training=training,
        dtype=dtype,
        tokens=tokens_of(config, training),
        parameters=parameters,
        flops=batch_size * flops_of(config, weights, training),
        weight_bytes=held * variable_bytes,
        gradient_bytes=held * variable_bytes if training else 0,
        optimizer_bytes=held * variable_bytes * states if training else 0,
        update_bytes=held * variable_bytes * temporary if training else 0,
        activation_bytes=activations,
        sent_bytes=sent_by(config, weights, strategy, devices, share, training, images, BYTES[dtype]),
    )


def with_prefix(number: float) -> str:
    """Return a number with three digits and a prefix of the units, such as `"86.6 M"`."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}"
        number /= 1000
    return f"{number:.3g} P"


def config_of(model: str | os.PathLike[str] | ViTConfig | keras.Model) -> ViTConfig:
    """Return the configuration of a model, or of anything that names one. A published size needs no weights."""
    if isinstance(model, ViTConfig):
        return model
    if isinstance(model, (str, os.PathLike)):
        name = os.fspath(model)
        if name.replace("-", "_") in SIZES:
            return SIZES[name.replace("-", "_")]
        from ..checkpoints.locate import find  # here, as the help of the command line needs the tables above alone
        from ..checkpoints.published import published_config

        published = find(name)
        if published is not None and (config := published_config(published)) is not None:
            return config
        from ..opening import open_model  # this imports Keras

        model = open_model(model)
    from ..anatomy.parts import dense_layers, find_vit, learner, quantization

    vit = find_vit(model)
    if getattr(vit, "config", None) is None:
        raise ValueError(
            f"The model {vit.name!r} has no ViTConfig to compute the cost of, like every copy that keras.models."
            "clone_model makes. Pass the model that it was made from, or a ViTConfig."
        )
    mode = quantization(vit)
    left_out = {
        "the layers around it": len(learner(model).weights) > len(vit.weights),
        f"that its weights are {mode}": mode,
        "its low-rank adapters": any(layer.lora_enabled for layer in dense_layers(vit)),
    }
    if names := [name for name, there in left_out.items() if there]:
        warn_caller(
            f"The cost is that of the Vision Transformer {vit.name!r} as its config describes it, which leaves "
            f"out {' and '.join(names)}."
        )
    return vit.config

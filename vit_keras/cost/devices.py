"""Sharing of a model by several devices: parts of variables, and communication."""

from __future__ import annotations

from .._internal.validate import positive_integer
from ..backend.sharding import KINDS, divided_axis
from ..config import ViTConfig
from .weights import Weight, tokens_of

__all__ = ["STRATEGIES", "parts_of", "sent_by", "share_of"]

STRATEGIES = KINDS
"""Strategies for sharing the work of several devices; see `vit_keras.distribute`."""


def share_of(config: ViTConfig, strategy: str, devices: int, model_devices: int | None) -> int:
    """Return the number of devices that share a model."""
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


def parts_of(weight: Weight, strategy: str, devices: int, share: int) -> int:
    """Return the number of parts into which a variable is cut."""
    parts = devices if strategy == "fsdp" else share
    return 1 if divided_axis(strategy, weight.path, weight.shape, parts) is None else parts


def sent_by(
    config: ViTConfig,
    weights: list[Weight],
    strategy: str,
    devices: int,
    share: int,
    training: bool,
    images: int,
    sizes: tuple[int, int],
) -> int:
    """Return the bytes that a device sends in a step with ring algorithms, if `share` devices share a model."""
    # Each of n devices sends (n - 1) / n of an array that is gathered or scattered, and twice as much of one that is
    # summed. `sizes` are the bytes of a number in a variable, and in an activation.
    variable_bytes, value_bytes = sizes
    whole = sum(weight.size for weight in weights if parts_of(weight, strategy, devices, share) == 1)
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
        summed = images * tokens_of(config, training) * config.hidden_size * config.num_layers
        backward = 4 + config.gated_mlp  # of the products that see all tokens: query, key, value, Dense_0, Gate
        sent += 2 * ring(share, summed, value_bytes) * (2 + backward * training)
    return round(sent)

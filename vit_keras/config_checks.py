"""What a `ViTConfig` must be: each field in its range, and no two that contradict each other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ._internal.bounds import not_divisible
from ._internal.validate import (
    check_activations,
    check_switches,
    is_number,
    merge_schedule,
    one_of,
    positive_integer,
    python_numbers,
    size_pair,
)
from .positions import GEOMETRIC, METHODS

__all__ = [
    "NO_REMAT_WITH_DROPOUT",
    "check_combination",
    "check_image_size",
    "checked_fields",
    "checked_merging",
    "stored_activation",
]

NO_REMAT_WITH_DROPOUT = (
    "remat=True computes a block twice, and Keras would drop out other values the second time. It needs dropout=0, "
    "attention_dropout=0 and stochastic_depth=0. Received: dropout={}, attention_dropout={}, stochastic_depth={}"
)
_ALIASES = {"cls": "token", "mean": "gap"}
_CHOICES = {
    "pooling": ("token", "gap", "token+gap", "token+dist", "all", "map", None),
    "position": ("learned", "sincos2d", None),
    "rope_kind": ("centered", "axial", "axial_xy", "mixed"),
    "final_norm": ("tokens", "pooled", None),
    "resnet_numerics": ("google", "timm"),
    "relative_resize": (*METHODS, *GEOMETRIC),
    "position_resize": METHODS,
    "patch_resize": METHODS,
}


def checked_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a `ViTConfig` in their one form: sizes as pairs, numbers as integers, no aliases."""
    found = python_numbers(vars(config))
    for field in ("patch_size", "image_size", "position_grid", "rope_grid"):
        if getattr(config, field) is not None or field == "patch_size":
            found[field] = size_pair(getattr(config, field), field)
    for field in ("channels", "num_layers", "hidden_size", "num_heads", "mlp_dim", "classes"):
        found[field] = positive_integer(getattr(config, field), field)
    for field in ("dim_head", "representation_size", "tokens_mlp_dim", "registers", "map_heads", "map_mlp_dim"):
        if getattr(config, field) is not None and (field, getattr(config, field)) != ("registers", 0):
            found[field] = positive_integer(getattr(config, field), field)
    if config.resnet is not None:
        if not isinstance(config.resnet, Iterable):
            raise ValueError(f"resnet must be the units of each stage, such as (3, 4, 9). Received: {config.resnet!r}")
        found["resnet"] = tuple(positive_integer(units, "resnet") for units in config.resnet)
    _check_numbers(config)
    if isinstance(config.pooling, str):
        found["pooling"] = _ALIASES.get(config.pooling, config.pooling)
    if not isinstance(config.mlp_activation, str):
        found["mlp_activation"] = _name_of(config.mlp_activation)
    check_activations(vars(config))
    check_switches(config)
    for field, choices in _CHOICES.items():
        one_of(found.get(field, getattr(config, field)), field, choices)
    return found


def stored_activation(activation: Any, *, used: bool = True) -> Any:
    """Return an activation of the head that is not a name, as a file stores it."""
    # Without a head, a function that no file can name becomes "linear" instead of an error.
    from keras import activations  # only a function needs it

    try:
        stored = activations.serialize(activations.get(activation))
        activations.get(stored)
    except (TypeError, ValueError):
        if not used:
            return "linear"
        raise ValueError(
            "activation must be the name of an activation of Keras, or a function that is registered by "
            "@keras.saving.register_keras_serializable(), so that a file can name it. To use a different function, put "
            f"keras.layers.Activation(function) behind the model. Received: {activation!r:.100}"
        ) from None
    return stored


def _name_of(activation: Any) -> str:
    """Return the name of a function of Keras: a file stores the MLP's activation by its name."""
    from keras import activations  # only a function needs it

    name = getattr(activation, "__name__", "")
    if not name or getattr(activations, name, None) is not activation:
        raise ValueError(
            'mlp_activation must be the name of an activation of Keras, such as "gelu", or one of its functions, such '
            f"as keras.activations.gelu. Received: {activation!r:.100}"
        )
    return name


def checked_merging(config: Any) -> int | tuple[int, ...]:
    """Return `merge_tokens` of a `ViTConfig` in its one form."""
    return merge_schedule(config.merge_tokens, config.num_layers, config.grid and math.prod(config.grid))


def _check_numbers(config: Any) -> None:
    for field in ("dropout", "emb_dropout", "attention_dropout", "stochastic_depth", "patch_dropout"):
        rate = getattr(config, field)
        if (rate is not None or field != "emb_dropout") and not (is_number(rate) and 0 <= rate < 1):
            raise ValueError(f"{field} must be a rate in [0, 1). Received: {rate!r}")
    for field in ("epsilon", "rope_theta", "layer_scale"):
        value, least = getattr(config, field), "greater than 0" if field == "rope_theta" else "that is not negative"
        fits = is_number(value) and value >= 0 and (value > 0 or field != "rope_theta")
        if (value is not None or field == "epsilon") and not fits:
            raise ValueError(f"{field} must be a number {least}. Received: {value!r}")
    if not is_number(config.rope_offset):
        raise ValueError(f"rope_offset must be a number. Received: {config.rope_offset!r}")


def check_combination(config: Any) -> None:
    """Raise a ValueError if fields of a `ViTConfig` contradict each other."""
    if config.pooling is None and (config.include_top or config.representation_size):
        raise ValueError("pooling=None returns all tokens, which no head takes. Pass include_top=False, or a pooling.")
    if config.pooling in ("token", "token+gap", "token+dist") and not config.has_class_token:
        raise ValueError(f"pooling={config.pooling!r} needs a class token. Received: class_token={config.class_token}")
    if config.pooling == "token+dist" and (not config.distillation_token or config.representation_size):
        raise ValueError("pooling='token+dist' needs distillation_token=True and no representation_size.")
    rates = (config.dropout, config.attention_dropout, config.stochastic_depth)
    if config.remat and any(rates):
        raise ValueError(NO_REMAT_WITH_DROPOUT.format(*rates))
    if config.stochastic_depth and config.tokens_mlp_dim is not None:
        raise ValueError(f"A Mixer (tokens_mlp_dim) has no stochastic_depth. Received: {config.stochastic_depth}")
    whole = config.rope_theta is not None or config.relative_positions or config.tokens_mlp_dim is not None
    for field, others in (("patch_dropout", False), ("merge_tokens", config.pooling is None or config.patch_dropout)):
        if getattr(config, field) and (whole or others):
            more = ", pooling=None, patch_dropout" if field == "merge_tokens" else ""
            raise ValueError(
                f"{field}: rope_theta, relative_positions, a Mixer (tokens_mlp_dim){more} need all patches, in "
                f"their places. Received: {field}={getattr(config, field)!r}"
            )
    if config.dim_head is None and config.hidden_size % config.num_heads and config.tokens_mlp_dim is None:
        raise ValueError(
            f"hidden_size={config.hidden_size} is not divisible by num_heads={config.num_heads}: "
            "change one of them, or pass dim_head."
        )
    if config.position == "sincos2d" and config.hidden_size % 4:
        raise ValueError(f"position='sincos2d' needs a hidden_size divisible by 4. Received: {config.hidden_size}")
    if config.rope_theta is not None and config.head_width % 4:
        raise ValueError(f"rope_theta needs heads of a width divisible by 4. Received: num_heads={config.num_heads}")
    if (config.rope_grid or config.rope_offset) and not (config.rope_theta and config.rope_kind.startswith("axial")):
        raise ValueError(
            "rope_grid and rope_offset need rope_theta and rope_kind='axial' or 'axial_xy'. "
            f"Received: rope_theta={config.rope_theta}, rope_kind={config.rope_kind!r}"
        )
    if config.register_positions and not (config.registers and config.position == "learned" and config.position_prefix):
        raise ValueError("register_positions=True needs registers, position='learned' and position_prefix=True.")
    if config.pooling == "map" and config.hidden_size % (config.map_heads or config.num_heads):
        heads = config.map_heads or config.num_heads
        raise ValueError(f"hidden_size={config.hidden_size} is not divisible by map_heads={heads}.")
    if config.tokens_mlp_dim is not None and (config.prefix_tokens or config.position is not None):
        raise ValueError(
            "A Mixer (tokens_mlp_dim) has no class token, registers or positions: pooling='gap', position=None."
        )
    if config.image_size is None and (config.relative_positions or config.tokens_mlp_dim is not None):
        raise ValueError(
            "image_size=None: a table of relative positions and a Mixer are made for one grid of patches. Pass "
            "image_size; vit_keras.resize makes a model of another size."
        )
    if config.image_size is None:
        if config.position == "learned" and config.position_grid is None:
            raise ValueError("image_size=None needs position_grid: patches down and across of the position embeddings.")
    else:
        check_image_size(config, config.image_size)


def check_image_size(config: Any, size: tuple[int, int]) -> None:
    """Raise a ValueError unless images of this size are whole patches, or the configuration drops the remainder."""
    if min(config.grid_of(size)) < 1:
        raise ValueError(f"image_size={size} is smaller than one patch of {config.stride} pixels.")
    cells = zip(config.cells(size), config.patch_size)
    if not config.drop_remainder and any(count % patch for count, patch in cells):
        raise ValueError(not_divisible(size, config.stride))

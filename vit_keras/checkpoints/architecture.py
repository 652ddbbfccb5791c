"""Infer the fields of a `ViTConfig` from the names and shapes of weights, without importing Keras."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from typing import Any

from . import grids
from .families.rules import POSITIONS, Binding, Family

__all__ = ["complete", "infer"]

_BLOCK = "Transformer/encoderblock_0"
_ATTENTION = f"{_BLOCK}/MultiHeadDotProductAttention_1"
_MLP = f"{_BLOCK}/MlpBlock_3"


def infer(
    shapes: Mapping[str, tuple[int, ...]], family: Family, told: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the fields of a `ViTConfig` that the canonical names and shapes of the weights show."""
    # `told` has the fields that arrays of the file imply, and `position` if the file states it. `num_heads` and the
    # family's `choices` are missing if nothing shows them.
    if {"Transformer/encoder_norm/scale", "fc_norm/scale"} <= set(shapes):
        raise ValueError(
            "The file has a layer normalization of the tokens and one of the pooled tokens; a model has only one."
        )
    try:
        patch_height, patch_width, channels, hidden_size = shapes["embedding/kernel"]
        mixer = f"{_BLOCK}/token_mixing/Dense_0/kernel" in shapes
        mlp = f"{_BLOCK}/channel_mixing" if mixer else _MLP
        fields = {
            **{field: value for field, value in family.config.items() if field not in ("pooling", *family.choices)},
            **(told or {}),
            "patch_size": (patch_height, patch_width),
            "channels": channels,
            "hidden_size": hidden_size,
            "mlp_dim": shapes[f"{mlp}/Dense_0/kernel"][1],
            **count_blocks(shapes),
            **_head(shapes, hidden_size),
        }
        if mixer:
            tokens_mlp_dim = shapes[f"{_BLOCK}/token_mixing/Dense_0/kernel"][1]
            return {**fields, "tokens_mlp_dim": tokens_mlp_dim, "pooling": "gap", "position": None, "num_heads": 1}
        fields |= _attention(shapes, family, hidden_size) | _positions(shapes, family, told or {})
        return {**fields, **_tokens(shapes, fields, family), **_resnet(shapes)}
    except KeyError as error:
        raise ValueError(f"The file is not a complete ViT checkpoint: {error} is missing.") from None
    except (ValueError, IndexError, TypeError):
        raise ValueError("The file is not a ViT checkpoint: some of its arrays have other shapes.") from None


def has_class_token(inferred: Mapping[str, Any]) -> bool:
    """Return whether fields that `infer` returned have a class token."""
    return inferred.get("class_token", inferred["pooling"] not in ("gap", "map"))


def has_map_prefix(fields: Mapping[str, Any]) -> bool:
    """Return whether there are tokens before the patches that attention pooling may or may not see."""
    prefix = has_class_token(fields) or fields.get("distillation_token") or fields.get("registers")
    return fields["pooling"] == "map" and bool(prefix)


def count_blocks(shapes: Mapping[str, Any]) -> dict[str, int]:
    """Return `num_layers`, or raise a KeyError for a missing block."""
    numbers = {int(m[1]) for name in shapes if (m := re.match(r"Transformer/encoderblock_(\d+)/", name))}
    if numbers != set(range(len(numbers))):
        raise KeyError(f"Transformer/encoderblock_{min(set(range(len(numbers))) - numbers)}")
    return {"num_layers": len(numbers)}


def _attention(shapes: Mapping[str, Any], family: Family, hidden_size: int) -> dict[str, Any]:
    inner = shapes[f"{_ATTENTION}/query/kernel"][1]
    scale = f"{_BLOCK}/LayerScale_0/scale" in shapes
    gated = f"{_MLP}/Gate/kernel" in shapes
    fields = {
        "qkv_bias": f"{_ATTENTION}/query/bias" in shapes,
        "key_bias": f"{_ATTENTION}/key/bias" in shapes,
        "out_bias": f"{_ATTENTION}/out/bias" in shapes,
        "layer_scale": 1e-5 if scale else None,
        "attention_norm": f"{_ATTENTION}/norm/scale" in shapes,
        "gated_mlp": gated,
        "mlp_norm": f"{_MLP}/norm/scale" in shapes,
        "pre_norm": "Transformer/norm_pre/scale" in shapes,
        "patch_bias": "embedding/bias" in shapes,
        "patch_norm": "patch_norm/norm/scale" in shapes,
    }
    if fields["key_bias"] == fields["qkv_bias"]:
        fields["key_bias"] = None
    if gated:
        fields["mlp_activation"] = "silu"
    table = shapes.get(f"{_ATTENTION}/relative_position_bias")
    if table:
        fields |= {"num_heads": table[1], "relative_positions": True}
    return {**fields, "inner": inner}


def _positions(shapes: Mapping[str, Any], family: Family, told: Mapping[str, Any]) -> dict[str, Any]:
    if f"{_ATTENTION}/relative_position_bias" in shapes:
        return {"position": "learned" if POSITIONS in shapes else None}
    if POSITIONS in shapes:
        return {}
    position = told.get("position", family.config.get("position"))
    if position is None and "position" not in told and "rope_theta" not in family.config:
        position = "sincos2d"
        if family.config.get("position_prefix") is not False:  # a table with a row for the class token is learned
            raise KeyError(POSITIONS)
    if position == "learned":
        raise KeyError(POSITIONS)
    return {"position": position}


def _head(shapes: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"include_top": "head/kernel" in shapes or "head/bias" in shapes}
    inputs = hidden_size
    if "pre_logits/kernel" in shapes:
        fields["representation_size"] = inputs = shapes["pre_logits/kernel"][1]
    if fields["include_top"]:
        wide, classes = shapes["head/kernel"]
        if shapes.get("head/bias", (classes,)) != (classes,) or wide not in (inputs, 2 * inputs):
            raise ValueError
        fields |= {"classes": classes, "head_bias": "head/bias" in shapes}
        if wide == 2 * inputs:
            fields["pooling"] = "token+gap"
    return fields


def _tokens(shapes: Mapping[str, Any], known: Mapping[str, Any], family: Family) -> dict[str, Any]:
    token, pooled_norm = "cls" in shapes, "fc_norm/scale" in shapes
    of_token = family.config.get("pooling", "gap" if pooled_norm else "token")
    if of_token == "token+dist" and "head/kernel" in shapes and "head_dist/kernel" not in shapes:
        of_token = "token"
    elif "head_dist/kernel" in shapes:
        of_token = "token+dist"
    fields: dict[str, Any] = {
        "registers": shapes["registers"][1] if "registers" in shapes else 0,
        "distillation_token": "dist" in shapes,
        "final_norm": known.get("final_norm", "pooled" if pooled_norm else "tokens"),
    }
    if "pooling" not in known:
        fields["pooling"] = "map" if "MAPHead_0/probe" in shapes else of_token if token else "gap"
    pooling_mlp = shapes.get("MAPHead_0/MlpBlock_0/Dense_0/kernel")
    if pooling_mlp and pooling_mlp[1] != known["mlp_dim"]:
        fields["map_mlp_dim"] = pooling_mlp[1]
    if token != (fields.get("pooling", known.get("pooling")) not in ("gap", "map")):
        fields["class_token"] = token
    if POSITIONS in shapes:
        if len(shapes[POSITIONS]) != 3:
            raise ValueError
        table = grids.read(shapes, family)
        fields |= {} if table is None else table.fields
    return fields


def _resnet(shapes: Mapping[str, Any]) -> dict[str, Any]:
    if "conv_root/kernel" not in shapes:
        return {}
    units: dict[int, int] = {}
    for name in shapes:
        if match := re.match(r"block(\d+)/unit(\d+)/", name):
            stage, unit = int(match[1]), int(match[2])
            units[stage] = max(units.get(stage, 0), unit)
    return {"resnet": tuple(units[stage] for stage in sorted(units)), "channels": shapes["conv_root/kernel"][2]}


def heads_of(binding: Binding, shape_of: Any) -> int | None:
    """Return the number of heads if the arrays have an axis for them, as in Google's files."""
    part = binding.parts.get(f"{_ATTENTION}/query/kernel")
    if part is None:
        return None
    shape = shape_of(part.source)[1 if part.rule.stacked else 0 :]
    return shape[1] if len(shape) == 3 else None


def complete(fields: Mapping[str, Any], family: Family, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Complete the known fields of a model with the caller's options and the defaults of its family."""
    hidden_size = fields["hidden_size"]
    of_heads = fields["dim_head"] * fields["num_heads"] if fields.get("dim_head") and fields.get("num_heads") else None
    fields = {**fields, **(options or {})}
    inner = fields.pop("inner", of_heads or hidden_size)
    published = family.heads.get(inner if inner == hidden_size else 0)
    dim_head = fields.get("dim_head") or family.dim_head
    if "num_heads" not in fields and published and not fields.get("dim_head"):
        fields["num_heads"] = published
    elif "num_heads" not in fields and isinstance(dim_head, int) and dim_head > 0 and inner % dim_head == 0:
        fields["num_heads"] = inner // dim_head
    if "num_heads" not in fields:
        raise ValueError(
            "Cannot infer the number of attention heads. Pass num_heads= (one of "
            f"{', '.join(map(str, likely_heads(inner)))}), or put the model's config.json next to the file."
        )
    check_heads(fields, inner)
    for field, values in family.choices.items():
        if field not in fields:
            raise ValueError(
                f"Cannot infer {field}. Pass {field}= (one of {', '.join(map(repr, values))}), or put the model's "
                "config.json next to the file."
            )
    if inner != fields["num_heads"] * (hidden_size // fields["num_heads"]):
        fields["dim_head"] = inner // fields["num_heads"]
    return fields


def check_head(fields: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Raise an error for a head on every token, which no model of this package has, unless options replace it."""
    of_tokens = fields["include_top"] and fields["pooling"] is None
    if of_tokens and "pooling" not in options and options.get("include_top", True):
        raise ValueError(
            "Its config.json says that nothing is pooled (global_pool=''), so that its head computes logits of every "
            "token, which no model here does. Pass include_top=False for the tokens, or pooling='token' or 'gap' for "
            "logits of an image."
        )


def check_heads(fields: Mapping[str, Any], inner: int) -> None:
    """Raise a ValueError for a number of heads that a file with queries of width `inner` cannot have."""
    if fields.get("tokens_mlp_dim"):
        return
    num_heads = fields["num_heads"]
    is_integer = hasattr(num_heads, "__index__") and not isinstance(num_heads, bool)
    count = operator.index(num_heads) if is_integer else 0
    if count < 1 or inner % count:
        raise ValueError(
            f"num_heads must divide the width of the queries, {inner}: one of "
            f"{', '.join(map(str, likely_heads(inner)))}. Received: {num_heads!r}"
        )


def likely_heads(inner: int) -> list[int]:
    """Return the numbers of heads that are 8 to 256 wide."""
    return [n for n in range(1, inner + 1) if inner % n == 0 and 8 <= inner // n <= 256]

"""Look up the settings of timm's models that the arrays do not show, by the architecture's name or by the arrays.

`tools/make_timm_models.py` writes `timm_models.csv`, with a row for each architecture of timm that a file might have.
`read_config` finds the row by the name in timm's `config.json`. Without that, `alike` finds the rows that the arrays
fit.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .._internal.validate import one_of
from .registry import read_options

__all__ = ["Model", "alike", "models", "named", "read_config", "signature", "usual_rows"]


class Model(NamedTuple):
    """An architecture of timm."""

    name: str
    files: int  # number of files that timm publishes for it
    hidden_size: int
    num_layers: int
    arrays: str  # the `signature` of its arrays; empty if they fit no model of this package
    fields: Mapping[str, Any]  # fields of `ViTConfig` that its arrays do not show
    refused: str  # why its files cannot be loaded, or empty
    family: str  # the family that the names in its files show


@functools.cache
def models() -> Mapping[str, Model]:
    """Return the table, by the name of the architecture."""
    text = Path(__file__).with_name("timm_models.csv").read_text(encoding="utf-8")
    return {row["name"]: _model(row) for row in csv.DictReader(text.splitlines())}


def _model(row: Mapping[str, str]) -> Model:
    files, width, layers = (int(row[field]) for field in ("files", "hidden_size", "num_layers"))
    fields = read_options(row["fields"])
    if "rope_grid" in fields:
        fields["rope_grid"] = tuple(map(int, fields["rope_grid"].split("x")))
    return Model(row["name"], files, width, layers, row["arrays"], fields, row["refused"], row["family"])


def of_file(published: str) -> Model | None:
    """Return the architecture of a file that timm publishes, or `None` for any other file."""
    source, _, name = published.partition("/")
    return models().get(name.partition(".")[0]) if source == "timm" else None


_USUAL = {
    "class_token": True,
    "distillation_token": False,
    "registers": 0,
    "position": "learned",
    "position_prefix": True,
    "register_positions": False,
    "rope_kind": "centered",
    "relative_positions": False,
    "qkv_bias": True,
    "key_bias": None,
    "out_bias": True,
    "layer_scale": False,
    "attention_norm": False,
    "mlp_norm": False,
    "gated_mlp": False,
    "pre_norm": False,
    "patch_bias": True,
    "final_norm": "tokens",
    "resnet": None,
    "tokens_mlp_dim": None,
    "map": False,
}


def signature(inferred: Mapping[str, Any]) -> str:
    """Return the sizes and the differences from a plain ViT that arrays show, without depth, image size and head."""
    # '192 768 16x16 class_token=False', for one.
    from .architecture import has_class_token  # imports NumPy, which a list of names does not need

    facts = {
        **inferred,
        "class_token": has_class_token(inferred),
        "layer_scale": inferred.get("layer_scale") is not None,
        "map": inferred["pooling"] == "map",
    }
    inner = inferred.get("inner", inferred["hidden_size"])
    width = inferred["hidden_size"] if inner == inferred["hidden_size"] else f"{inferred['hidden_size']}/{inner}"
    patch = "x".join(map(str, inferred["patch_size"]))
    other = (f"{f}={facts[f]}" for f, usual in _USUAL.items() if facts.get(f, usual) != usual)
    return " ".join((f"{width} {inferred['mlp_dim']} {patch}", *other)).replace(", ", "-")


def alike(inferred: Mapping[str, Any], family: str) -> list[Model]:
    """Return the models that the arrays of a file fit: those of the same depth, or else those of any depth."""
    # A file with timm's plain names (`ls1.gamma`) is not one of the models that timm writes with others (`gamma_1`). A
    # file with these may be any: authors have them for models that timm writes with its plain names.
    arrays = signature(inferred)
    found = [m for m in models().values() if m.arrays == arrays and (family != "timm" or m.family == "timm")]
    return [model for model in found if model.num_layers == inferred["num_layers"]] or found


def usual_rows(inferred: Mapping[str, Any], family: str, layouts: Iterable[Any]) -> dict[str, bool] | None:
    """Return which tokens have positions in the models that the arrays of a file fit; `None` if that is not clear."""
    answers = (
        {"position_prefix": lay.position_prefix, "register_positions": lay.register_positions} for lay in layouts
    )
    fitting = [(rows, models) for rows in answers if (models := alike({**inferred, **rows}, family))]
    deep = [pair for pair in fitting if any(model.num_layers == inferred["num_layers"] for model in pair[1])]
    found = deep or fitting
    return found[0][0] if len(found) == 1 else None


POOLINGS = {"token": "token", "avg": "gap", "map": "map", "": None}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "silu", "relu": "relu"}
_READ = {
    "num_heads": ("num_heads", None),
    "embed_dim": ("hidden_size", None),
    "act_layer": ("mlp_activation", _ACTIVATIONS),
    "global_pool": ("pooling", POOLINGS),
}
_SHOWN = (  # by the arrays, or of training alone
    *("img_size", "patch_size", "in_chans", "num_classes", "depth", "num_blocks", "mlp_ratio", "qkv_bias", "proj_bias"),
    *("init_values", "class_token", "reg_tokens", "num_reg_tokens", "no_embed_class", "fc_norm", "use_fc_norm"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("dynamic_img_size", "dynamic_img_pad", "strict_img_size", "weight_init", "fix_init", "head_init_scale"),
    *("device", "dtype"),
)


_PREFIX = "pool_include_prefix"


def read_config(config: Mapping[str, Any], inferred: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that timm's `config.json` shows."""
    name = config["architecture"]
    fields = named(name, inferred)
    arguments = config.get("model_args") or {}
    unknown = [argument for argument in arguments if argument not in (*_SHOWN, *_READ, _PREFIX)]
    if unknown:
        raise ValueError(
            f"model_args has {unknown[0]}={arguments[unknown[0]]!r}, whose effect on {name} is not known. Known are "
            f"{', '.join((*_READ, _PREFIX, *_SHOWN))}."
        )
    if "global_pool" in config:  # that of the model that was saved, which timm itself does not read
        arguments = {"global_pool": config["global_pool"], **arguments}
    for argument, (field, values) in _READ.items():
        if argument in arguments:
            value = arguments[argument]
            fields[field] = value if values is None else values[one_of(value, argument, values)]
    if fields.get("pooling") == "token" and inferred["pooling"].startswith("token+"):
        del fields["pooling"]  # a distilled model's
    if "no_embed_class" in arguments:
        fields |= _rows_of_positions(inferred, bool(arguments["no_embed_class"]))
    if _PREFIX in arguments:  # of the class token and registers: whether the mean and the attention pooling see them
        fields["map_prefix"] = bool(arguments[_PREFIX])
        if arguments[_PREFIX] and fields.get("pooling", inferred["pooling"]) == "gap":
            fields["pooling"] = "all"
    _check_arrays(name, fields, inferred)
    size = (config.get("pretrained_cfg") or {}).get("input_size")
    size = arguments.get("img_size") or (size and size[1:])
    return {**fields, **({"image_size": tuple(size) if isinstance(size, list) else size} if size else {})}


def _check_arrays(name: str, fields: Mapping[str, Any], inferred: Mapping[str, Any]) -> None:
    """Raise an error for arrays that timm's class does not use, or uses differently from this package."""
    if fields["map_prefix"] and inferred["pooling"] == "map" and inferred.get("gated_mlp"):
        raise ValueError(f"{name} has an attention pooling with GELU behind blocks with SiLU, which cannot be built.")
    if inferred.get("distillation_token") and (inferred.get("registers") or inferred.get("final_norm") == "pooled"):
        raise ValueError(f"{name} has a distillation token, with which timm leaves out registers and fc_norm.")


_UNLESS_IN_TABLE = {
    "rope_theta": None,
    "rope_kind": "centered",
    "rope_grid": None,
    "rope_offset": 0.0,
    "post_norm": False,
    "map_heads": None,
    "map_prefix": False,
}
"""Fields that an architecture without them in its row has, whatever is usual in the family of its arrays."""


def named(name: str, inferred: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture of timm that arrays leave open, with its `hidden_size`."""
    # The pooling is one of them only if there is a class token, or the mean next to one.
    model = models().get(name)
    if model is None:
        raise ValueError(
            f"architecture {name!r} is none of timm's that this version knows, so nothing shows what it computes. If "
            "it is an older name, write timm's present name into the file. Without a config.json the arrays alone are "
            "read."
        )
    if model.refused:
        raise ValueError(f"{name} cannot be built: {model.refused}.")
    shown = () if inferred["pooling"] == "token" else ("pooling",)
    fields = {field: value for field, value in model.fields.items() if field not in shown}
    no_rows = "position_prefix=False" in model.arrays
    no_rows |= "registers=" in model.arrays and "register_positions=True" not in model.arrays
    rows = _rows_of_positions(inferred, no_rows)
    if is_of_other_gate(name, inferred):  # an `mlp_layer` that a config.json cannot name, and its activation
        fields.pop("mlp_activation", None)
    return {"hidden_size": model.hidden_size, **_UNLESS_IN_TABLE, **rows, **fields}


def is_of_other_gate(name: str, inferred: Mapping[str, Any]) -> bool:
    """Return whether an architecture's MLP is gated and that of the arrays is not, or the other way round."""
    return ("gated_mlp=True" in models()[name].arrays) is not inferred.get("gated_mlp", False)


def _rows_of_positions(inferred: Mapping[str, Any], no_rows: bool) -> dict[str, bool]:
    """Return which tokens have rows in timm's table of positions, if there is one: all before the patches, or none."""
    if "position_prefix" not in inferred:
        return {}
    return {"position_prefix": not no_rows, "register_positions": not no_rows and inferred["registers"] > 0}

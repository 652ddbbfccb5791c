"""Read the settings in open_clip's `open_clip_config.json` that the arrays do not show.

Unknown keys and values raise an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._internal.validate import one_of
from ..preprocess import PRESETS, Preprocessing
from . import timm_models
from .transformers_models import check_values

__all__ = ["image_fields", "preprocessing", "text_fields"]

_WITHOUT_EFFECT = ("hf_tokenizer_name", "tokenizer_mode", "tokenizer_kwargs", "output_tokens", "pad_id")
_SHOWN = ("layers", "width", "vocab_size", "context_length", "mlp_ratio", "proj_bias", "proj_type")
_ONLY = {
    "ls_init_value": (None,),
    "embed_cls": (False,),
    "block_type": (None, "default"),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner"), (False,)),
    **dict.fromkeys(("scale_attn", "scale_fc", "final_ln_after_pool"), (False,)),
}
_READ = ("heads", "no_causal_mask", "pool_type", "eos_id", "act_kwargs", "norm_kwargs")
_POOLINGS = ("argmax", "eos", "last")

_IMAGE_SHOWN = (  # by the arrays, or of training alone
    *("layers", "width", "mlp_ratio", "patch_size", "no_ln_pre", "pos_embed_type", "patch_dropout", "output_tokens"),
    *("ls_init_value", "attn_pooler_queries", "attn_pooler_heads"),
    *("timm_model_name", "timm_model_pretrained", "timm_proj", "timm_proj_bias", "timm_drop", "timm_drop_path"),
)
_IMAGE_ONLY = {"attentional_pool": (False,), **_ONLY}
del _IMAGE_ONLY["ls_init_value"], _IMAGE_ONLY["embed_cls"], _IMAGE_ONLY["final_ln_after_pool"]
_IMAGE_READ = ("image_size", "head_width", "act_kwargs", "norm_kwargs", "pool_type", "final_ln_after_pool", "timm_pool")
_IMAGE_POOLINGS = {"tok": "token", "avg": "gap"}


def text_fields(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `TextConfig` that a `model_cfg` shows, with open_clip's defaults."""
    text = model["text_cfg"]
    if "hf_model_name" in text:
        raise ValueError(f"text_cfg: the encoder {text['hf_model_name']!r} cannot be built.")
    _check("text_cfg", text, (*_WITHOUT_EFFECT, *_SHOWN, *_READ), _ONLY)
    pooling = text.get("pool_type", "argmax")
    one_of(pooling, "text_cfg: pool_type", _POOLINGS)
    return {
        "num_heads": text.get("heads", 8),
        "causal": not text.get("no_causal_mask", False),
        "pooling": pooling,
        "eos_id": text.get("eos_id", 2) if pooling == "eos" else None,
        "epsilon": (text.get("norm_kwargs") or {}).get("eps", 1e-5),
        "mlp_activation": _activation(model, text),
    }


def image_fields(model: Mapping[str, Any], inferred: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that a `model_cfg` shows."""
    vision = model["vision_cfg"]
    _check("vision_cfg", vision, (*_IMAGE_SHOWN, *_IMAGE_READ), _IMAGE_ONLY)
    if vision.get("timm_model_name"):
        fields = timm_models.named(vision["timm_model_name"].partition(".")[0], inferred)
        pooled = one_of(vision.get("timm_pool", "avg"), "vision_cfg: timm_pool", timm_models.POOLINGS)
        pooling = timm_models.POOLINGS[pooled]
        if pooling is None and not vision.get("timm_proj", "linear"):  # with one, it is the architecture's own
            raise ValueError("vision_cfg: timm_pool='' without timm_proj projects every token, which cannot be built.")
    else:
        fields = {
            "num_heads": vision.get("width", 768) // vision.get("head_width", 64),
            "mlp_activation": _activation(model, vision),
            "epsilon": (vision.get("norm_kwargs") or {}).get("eps", 1e-5),
        }
        pooling = _IMAGE_POOLINGS[one_of(vision.get("pool_type", "tok"), "vision_cfg: pool_type", _IMAGE_POOLINGS)]
        if vision.get("final_ln_after_pool") and pooling == "gap":  # of one token, the norm is the same
            raise ValueError("vision_cfg: a mean of the patches before the last norm cannot be built.")
    if pooling and inferred.get("pooling") == "token":  # which no array shows
        fields["pooling"] = pooling
    return fields | {field: vision[field] for field in ("image_size",) if field in vision}


def _check(tower: str, described: Mapping[str, Any], known: tuple[str, ...], only: Mapping[str, tuple]) -> None:
    """Raise an error for an unknown key, or a value that cannot be built."""
    unknown = [key for key in described if key not in (*known, *only)]
    if unknown:
        raise ValueError(f"{tower} has {unknown[0]}={described[unknown[0]]!r}, whose effect is not known.")
    check_values(described, only, f"{tower}: ")


def _activation(model: Mapping[str, Any], tower: Mapping[str, Any]) -> str:
    options = tower.get("act_kwargs") or {}
    if model.get("quick_gelu"):
        return "quick_gelu"
    if options.get("approximate", "none") not in ("none", "tanh") or set(options) - {"approximate"}:
        raise ValueError(f"act_kwargs must be {{'approximate': 'tanh'}}. Received: {options}")
    return "gelu_tanh" if options.get("approximate") == "tanh" else "gelu"


def preprocessing(described: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing that a `preprocess_cfg` describes."""
    mode = one_of(described.get("resize_mode", "shortest"), "resize_mode", ("shortest", "squash"))
    usual = PRESETS["clip"]
    return Preprocessing(
        mean=described.get("mean", usual.mean),
        std=described.get("std", usual.std),
        interpolation=f"{described.get('interpolation', 'bicubic')}_antialias",
        crop=1.0 if mode == "shortest" else None,
    )

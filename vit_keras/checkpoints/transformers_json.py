"""Write the `config.json` and `preprocessor_config.json` of transformers.

`transformers_models.read_config` and `write_config` are inverses, and so are `Preprocessing.from_hugging_face` and
`write_processor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import ViTConfig
from ..preprocess import Preprocessing
from ..preprocess.json_formats import PIL_CODES
from .families.huggingface import BEIT, CLIP, DINOV2, DINOV3, SIGLIP, VIT
from .families.rules import Family
from .transformers_models import ACTIVATIONS, FIELDS, PROBLEMS

__all__ = ["MODELS", "Model", "model_of", "write_config", "write_processor"]


class Model(NamedTuple):
    """A model class of transformers, for writing files that it reads."""

    name: str  # of the class
    model_type: str  # in its `config.json`; after a dot, that of the `vision_config` inside
    family: Family  # of the names in its files
    prefix: str  # of all names but the head's
    # fields of `ViTConfig`, with the values that the class can compute; None for any
    computes: Mapping[str, tuple[Any, ...] | None]


_ANY_SHAPE = ("vit", "deit", "dinov3_vit")  # the others take square images only
# A plain ViT is all that a class computes, but for what follows. "class_token", "layer_scale" and "key_bias" are what a
# configuration amounts to (`model_of`).
_PLAIN = (
    *("out_bias", "patch_norm", "resnet", "tokens_mlp_dim", "representation_size", "position_prefix", "final_norm"),
    *("position", "rope_theta", "rope_kind", "register_positions", "attention_norm", "mlp_norm", "post_norm"),
    *("map_heads", "map_mlp_dim", "relative_positions", "registers", "distillation_token", "gated_mlp", "pre_norm"),
    *("patch_bias", "qkv_bias", "head_bias", "merge_tokens"),
)
_ALL = {field: (getattr(ViTConfig, field),) for field in _PLAIN}
_ALL |= {"class_token": (True,), "layer_scale": (False,), "key_bias": (True,)}
_TOP, _NO_TOP = {"include_top": (True,)}, {"include_top": (False,), "pooling": ("token", None)}
_TOKEN = {**_TOP, "pooling": ("token",)}
_VIT = {**_ALL, "qkv_bias": (True, False), "key_bias": (True, False)}
_DEIT = {**_VIT, "distillation_token": (True,)}
_DINOV2 = {**_VIT, "layer_scale": (True,), "gated_mlp": (True, False)}
_REGISTERS = {**_DINOV2, "registers": None}
_DINOV3 = {**_REGISTERS, "out_bias": (True, False), "position": (None,), "rope_theta": None, "position_prefix": None}
_CLIP = {**_ALL, "pre_norm": (True,), "patch_bias": (False,)}
_SIGLIP = {**_ALL, "class_token": (False,), "position_prefix": None}
_BEIT = {**_ALL, "layer_scale": (True,), "key_bias": (False,), "position": ("learned", None)}
_BEIT |= {"relative_positions": (True,), "position_prefix": None}
_MEAN = {"pooling": ("gap",), "final_norm": ("pooled",)}
_BOTH, _GAP = ({**_TOP, "pooling": (pooling,)} for pooling in ("token+gap", "gap"))
_PROJECTED, _UNNORMED = {**_TOKEN, "head_bias": (False,)}, {**_GAP, "final_norm": (None,)}
_POOLER = {**_NO_TOP, "representation_size": None}
_REGISTERED = "dinov2_with_registers"


def _model(name: str, model_type: str, family: Family, prefix: str, *computes: Mapping[str, Any]) -> Model:
    return Model(name, model_type, family, prefix, {field: each[field] for each in computes for field in each})


MODELS = (
    _model("ViTForImageClassification", "vit", VIT, "vit.", _VIT, _TOKEN),
    _model("ViTModel", "vit", VIT, "", _VIT, _POOLER),
    _model("DeiTForImageClassificationWithTeacher", "deit", VIT, "deit.", _DEIT, _TOP, {"pooling": ("token+dist",)}),
    _model("DeiTForImageClassification", "deit", VIT, "deit.", _DEIT, _TOKEN),
    _model("DeiTModel", "deit", VIT, "", _DEIT, _POOLER),
    _model("Dinov2ForImageClassification", "dinov2", DINOV2, "dinov2.", _DINOV2, _BOTH),
    _model("Dinov2Model", "dinov2", DINOV2, "", _DINOV2, _NO_TOP),
    _model("Dinov2WithRegistersForImageClassification", _REGISTERED, DINOV2, f"{_REGISTERED}.", _REGISTERS, _BOTH),
    _model("Dinov2WithRegistersModel", _REGISTERED, DINOV2, "", _REGISTERS, _NO_TOP),
    _model("DINOv3ViTModel", "dinov3_vit", DINOV3, "", _DINOV3, _NO_TOP),
    _model("CLIPVisionModelWithProjection", "clip_vision_model", CLIP, "vision_model.", _CLIP, _PROJECTED),
    _model("CLIPVisionModel", "clip_vision_model", CLIP, "", _CLIP, _NO_TOP),
    _model("CLIPForImageClassification", "clip.clip_vision_model", CLIP, "vision_model.", _CLIP, _UNNORMED),
    _model("SiglipVisionModel", "siglip_vision_model", SIGLIP, "", _SIGLIP, _NO_TOP, {"pooling": ("map",)}),
    _model("SiglipForImageClassification", "siglip.siglip_vision_model", SIGLIP, "vision_model.", _SIGLIP, _GAP),
    _model("BeitForImageClassification", "beit", BEIT, "beit.", _BEIT, _TOP, _MEAN),
    _model("BeitModel", "beit", BEIT, "", _BEIT, _NO_TOP, _MEAN),
)


def model_of(family: Family, config: Mapping[str, Any]) -> tuple[Model | None, list[str]]:
    """Return the closest class of transformers, or `None` if none has these names, and the fields it cannot compute."""
    usual = {"class_token": config["pooling"] not in ("gap", "map"), "key_bias": config["qkv_bias"]}
    facts = {**config, **{field: value for field, value in usual.items() if config[field] is None}}
    facts["layer_scale"] = config["layer_scale"] is not None
    facts["head_bias"] = config["head_bias"] or not config["include_top"]
    if not config["include_top"] and config["pooling"] == "token+dist":
        facts["pooling"] = "token"  # DeiT's model without heads returns all tokens

    def differences(model: Model) -> list[str]:
        return [field for field, values in model.computes.items() if values is not None and facts[field] not in values]

    candidates = [model for model in MODELS if model.family is family]
    nearest = min(
        candidates,
        key=lambda m: (facts["include_top"] not in m.computes["include_top"], len(differences(m))),
        default=None,
    )
    return nearest, differences(nearest) if nearest else []


def write_config(
    model: Model,
    config: Mapping[str, Any],
    image_size: tuple[int, int],
    labels: tuple[str, ...] | None = None,
    task: str = "single",
) -> dict[str, Any]:
    """Return a `config.json` with which transformers computes the same as a model."""
    kind = model.model_type.split(".")[-1]
    name = config["mlp_activation"]
    config = {**config, "mlp_activation": ACTIVATIONS.get(name, name)}  # Keras' aliases are transformers' too
    activation = next((theirs for theirs, ours in _ACTIVATIONS_OUT if ours == config["mlp_activation"]), None)
    if activation is None:
        raise ValueError(f"transformers has no activation {name!r}.")
    inner = (config["dim_head"] or config["hidden_size"] // config["num_heads"]) * config["num_heads"]
    if inner != config["hidden_size"]:
        raise ValueError(
            f"In transformers, heads of {kind} are hidden_size / num_heads wide. "
            f"Received: dim_head={config['dim_head']}"
        )
    sizes = {"image_size": image_size, "patch_size": config["patch_size"]}
    vision = {
        "model_type": kind,
        **{theirs: config[ours] for theirs, ours in FIELDS.items()},
        **{field: _one_or_two(size, kind) for field, size in sizes.items()},
        "hidden_act": activation,
        **_own_fields(kind, config),
    }
    outer = {"architectures": [model.name], "dtype": "float32"}
    if kind.startswith("dinov2"):
        del vision["intermediate_size"]  # it has mlp_ratio
    if "Classification" in model.name:
        names = labels or tuple(f"LABEL_{i}" for i in range(config["classes"]))
        outer["id2label"] = {str(i): name for i, name in enumerate(names)}
        outer["label2id"] = {name: i for i, name in enumerate(names)}
        outer |= {"problem_type": PROBLEMS[task]} if task in PROBLEMS else {}
    if "." in model.model_type:
        return {"model_type": model.model_type.split(".")[0], **outer, "vision_config": vision}
    return {**vision, **outer}


_ACTIVATIONS_OUT = (("gelu_pytorch_tanh", "gelu_tanh"), *ACTIVATIONS.items())


def _one_or_two(size: tuple[int, int], kind: str) -> int | list[int]:
    height, width = size
    if height != width and kind not in _ANY_SHAPE:
        raise ValueError(f"In transformers, images and patches of {kind} are squares. Received: {size}")
    return height if height == width else [height, width]


_DINOV2_OWN = {"qkv_bias": "qkv_bias", "use_swiglu_ffn": "gated_mlp"}
_DINOV3_OWN = {"query_bias": "qkv_bias", "value_bias": "qkv_bias", "proj_bias": "out_bias"}
_DINOV3_OWN |= {"rope_theta": "rope_theta", "num_register_tokens": "registers", "use_gated_mlp": "gated_mlp"}
_OWN = {
    "vit": {"qkv_bias": "qkv_bias"},
    "deit": {"qkv_bias": "qkv_bias"},
    "dinov2": _DINOV2_OWN,
    _REGISTERED: {**_DINOV2_OWN, "num_register_tokens": "registers"},
    "dinov3_vit": _DINOV3_OWN,
}


def _own_fields(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are specific to one `model_type`."""
    key_bias = config["qkv_bias"] if config["key_bias"] is None else config["key_bias"]
    same = {theirs: config[ours] for theirs, ours in _OWN.get(kind, {}).items()}
    if "qkv_bias" in same and config["qkv_bias"] != key_bias:
        raise ValueError(f"In transformers, {kind} has a bias on keys exactly if it has one on queries and values.")
    if kind in ("vit", "deit"):
        pooler = {"pooler_output_size": config["representation_size"]} if config["representation_size"] else {}
        return {**same, **pooler, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # asked by KerasHub
    if kind.startswith("dinov2"):
        if config["gated_mlp"] and config["mlp_activation"] != "silu":
            raise ValueError(
                "In transformers, a gated MLP of DINOv2 has mlp_activation='silu'. "
                f"Received: mlp_activation={config['mlp_activation']!r}"
            )
        return {**same, "mlp_ratio": _mlp_ratio(config)}
    if kind == "dinov3_vit":
        return {**same, "key_bias": key_bias}
    if kind == "clip_vision_model" and config["include_top"] and not config["head_bias"]:
        return {"projection_dim": config["classes"]}
    if kind == "siglip_vision_model":
        return {"vision_use_head": config["pooling"] == "map"}
    if kind == "beit":
        return {
            "use_absolute_position_embeddings": config["position"] == "learned",
            "use_relative_position_bias": True,
            "use_mean_pooling": True,
        }
    return {}


def _mlp_ratio(config: Mapping[str, Any]) -> int:
    """Return DINOv2's `mlp_ratio`: `mlp_dim` in units of `hidden_size`, of which a gated MLP has two thirds."""
    for ratio in range(1, 65):
        width = ratio * config["hidden_size"]
        if (width if not config["gated_mlp"] else (width * 2 // 3 + 7) // 8 * 8) == config["mlp_dim"]:
            return ratio
    raise ValueError(f"In transformers, DINOv2 has no mlp_ratio for mlp_dim={config['mlp_dim']}.")


_RESAMPLE = {"bilinear": 2, **{name: code for code, name in PIL_CODES.items()}}


def write_processor(preprocessing: Preprocessing) -> dict[str, Any]:
    """Return a `preprocessor_config.json`: `Preprocessing.from_hugging_face` reversed, always with antialiasing."""
    if preprocessing.image_size is None:
        raise ValueError("A preprocessor_config.json names the size of images. Received: image_size=None")
    height, width = preprocessing.image_size
    described = {
        "do_resize": True,
        "resample": _RESAMPLE[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    if preprocessing.crop is None:
        size = {"height": height, "width": width}
        return {"image_processor_type": "ViTImageProcessor", **described, "size": size}
    if preprocessing.crop_mode == "center" and height != width:
        raise ValueError(
            f"A preprocessor_config.json describes a crop of squares only. Received: crop={preprocessing.crop}, "
            f"image_size={(height, width)}. To squeeze images instead, set model.preprocessing = "
            "model.preprocessing.replace(crop=None)."
        )
    resized = [math.floor(side / preprocessing.crop) for side in (height, width)]
    cropped = {**described, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    if preprocessing.crop_mode == "center":
        size = {"shortest_edge": max(resized)}
        return {"image_processor_type": "CLIPImageProcessor", **cropped, "size": size}
    size = {"height": resized[0], "width": resized[1]}
    return {"image_processor_type": "DeiTImageProcessor", **cropped, "size": size}

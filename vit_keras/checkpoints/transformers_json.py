"""transformers' `config.json` and `preprocessor_config.json`, read and written: each pair of inverses side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..preprocess import Preprocessing
from .families.huggingface import BEIT, CLIP, DINOV2, DINOV3, SIGLIP, VIT
from .families.rules import Family

_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_pytorch": "gelu",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
# What these do between the tokens and their head is not in their weights.
_HEADS_OF_THEIR_OWN = {
    "CLIPForImageClassification": {"pooling": "gap", "class_token": True, "final_norm": None},
    "SiglipForImageClassification": {"pooling": "gap"},
    "Siglip2ForImageClassification": {"pooling": "gap"},
}
_FIELDS = {"num_attention_heads": "num_heads", "layer_norm_eps": "epsilon", "image_size": "image_size"}


def hints(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `ViTConfig` that a `config.json` of transformers tells."""
    architectures = config.get("architectures") or [""]
    config = config.get("vision_config") or config
    known = {ours: config[theirs] for theirs, ours in _FIELDS.items() if config.get(theirs) is not None}
    if "hidden_act" in config and not config.get("use_swiglu_ffn") and not config.get("use_gated_mlp"):
        known["mlp_activation"] = _ACTIVATIONS.get(config["hidden_act"], config["hidden_act"])
    theta = config.get("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta"))
    if theta is not None:
        known["rope_theta"] = float(theta)
    return {**known, **_HEADS_OF_THEIR_OWN.get(architectures[0], {})}


class Model(NamedTuple):
    """A class of transformers, for writing what it reads.

    Attributes:
        name: The class.
        model_type: Its kind of `config.json`; with a dot, the second is that of the `vision_config` inside.
        family: The names in its files.
        prefix: What stands before these, but for the head's.
        computes: Fields of `ViTConfig` and the values of which it is a model.
    """

    name: str
    model_type: str
    family: Family
    prefix: str
    computes: Mapping[str, tuple]


_ANY_SIZE = ("vit", "deit", "dinov3_vit")  # of the others the images are squares
_ALL = {
    "out_bias": (True,),
    "patch_norm": (False,),
    "resnet": (None,),
    "tokens_mlp_dim": (None,),
    "representation_size": (None,),
    "position_prefix": (True,),
    "final_norm": ("tokens",),
    "position": ("learned",),
    "rope_theta": (None,),
    "relative_positions": (False,),
    "registers": (0,),
    "distillation_token": (False,),
    "class_token": (True,),
    "gated_mlp": (False,),
    "pre_norm": (False,),
    "patch_bias": (True,),
    "qkv_bias": (True,),
    "key_bias": (True,),
    "layer_scale": (False,),
    "head_bias": (True,),
}
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
MODELS = (
    Model("ViTForImageClassification", "vit", VIT, "vit.", {**_VIT, **_TOKEN}),
    Model("ViTModel", "vit", VIT, "", {**_VIT, **_NO_TOP, "representation_size": None}),
    Model("DeiTForImageClassificationWithTeacher", "deit", VIT, "deit.", {**_DEIT, **_TOP, "pooling": ("token+dist",)}),
    Model("DeiTForImageClassification", "deit", VIT, "deit.", {**_DEIT, **_TOKEN}),
    Model("DeiTModel", "deit", VIT, "", {**_DEIT, **_NO_TOP, "representation_size": None}),
    Model("Dinov2ForImageClassification", "dinov2", DINOV2, "dinov2.", {**_DINOV2, **_TOP, "pooling": ("token+gap",)}),
    Model("Dinov2Model", "dinov2", DINOV2, "", {**_DINOV2, **_NO_TOP}),
    Model(
        "Dinov2WithRegistersForImageClassification",
        "dinov2_with_registers",
        DINOV2,
        "dinov2_with_registers.",
        {**_REGISTERS, **_TOP, "pooling": ("token+gap",)},
    ),
    Model("Dinov2WithRegistersModel", "dinov2_with_registers", DINOV2, "", {**_REGISTERS, **_NO_TOP}),
    Model("DINOv3ViTModel", "dinov3_vit", DINOV3, "", {**_DINOV3, **_NO_TOP}),
    Model(
        "CLIPVisionModelWithProjection",
        "clip_vision_model",
        CLIP,
        "vision_model.",
        {**_CLIP, **_TOKEN, "head_bias": (False,)},
    ),
    Model("CLIPVisionModel", "clip_vision_model", CLIP, "", {**_CLIP, **_NO_TOP}),
    Model(
        "CLIPForImageClassification",
        "clip.clip_vision_model",
        CLIP,
        "vision_model.",
        {**_CLIP, **_TOP, "pooling": ("gap",), "final_norm": (None,)},
    ),
    Model("SiglipVisionModel", "siglip_vision_model", SIGLIP, "", {**_SIGLIP, **_NO_TOP, "pooling": ("map",)}),
    Model(
        "SiglipForImageClassification",
        "siglip.siglip_vision_model",
        SIGLIP,
        "vision_model.",
        {**_SIGLIP, **_TOP, "pooling": ("gap",)},
    ),
    Model("BeitForImageClassification", "beit", BEIT, "beit.", {**_BEIT, **_TOP, **_MEAN}),
    Model("BeitModel", "beit", BEIT, "", {**_BEIT, **_NO_TOP, **_MEAN}),
)


def model_of(family: Family, config: Mapping[str, Any]) -> tuple[Model | None, list[str]]:
    """The class of transformers that comes nearest to a model, and the fields of `ViTConfig` in which it is another.

    Args:
        family: The names that its file shall have.
        config: The fields of a `ViTConfig`, all of them.
    """
    facts = {
        **config,
        "class_token": config["pooling"] not in ("gap", "map")
        if config["class_token"] is None
        else config["class_token"],
        "layer_scale": config["layer_scale"] is not None,
        "key_bias": config["qkv_bias"] if config["key_bias"] is None else config["key_bias"],
        "head_bias": config["head_bias"] or not config["include_top"],
    }
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


def describe(
    model: Model, config: Mapping[str, Any], image_size: tuple[int, int], labels: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """A `config.json` with which transformers computes what a model does: the inverse of `hints`.

    Args:
        model: The class.
        config: The fields of a `ViTConfig`, all of them.
        image_size: Pixels down and across.
        labels: Names of the classes.

    Raises:
        ValueError: Its configuration has no words for that.
    """
    kind = model.model_type.split(".")[-1]
    activation = next((theirs for theirs, ours in _ACTIVATIONS_OUT if ours == config["mlp_activation"]), None)
    if activation is None:
        raise ValueError(f"transformers has no activation that is known as {config['mlp_activation']!r}.")
    inner = (config["dim_head"] or config["hidden_size"] // config["num_heads"]) * config["num_heads"]
    if inner != config["hidden_size"]:
        raise ValueError(f"transformers has no {kind} with heads that are not hidden_size / num_heads wide.")
    vision = {
        "model_type": kind,
        "hidden_size": config["hidden_size"],
        "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_heads"],
        "intermediate_size": config["mlp_dim"],
        "hidden_act": activation,
        "layer_norm_eps": config["epsilon"],
        "image_size": _one_or_two(image_size, kind),
        "patch_size": _one_or_two(config["patch_size"], kind),
        "num_channels": config["channels"],
        **_own_fields(kind, config),
    }
    outer = {"architectures": [model.name], "dtype": "float32"}
    if kind.startswith("dinov2"):
        del vision["intermediate_size"]  # it says mlp_ratio
    if "Classification" in model.name:
        names = labels or tuple(f"LABEL_{i}" for i in range(config["classes"]))
        outer["id2label"] = {str(i): name for i, name in enumerate(names)}
        outer["label2id"] = {name: i for i, name in enumerate(names)}
    if "." in model.model_type:
        return {"model_type": model.model_type.split(".")[0], **outer, "vision_config": vision}
    return {**vision, **outer}


_ACTIVATIONS_OUT = (("gelu_pytorch_tanh", "gelu_tanh"), *_ACTIVATIONS.items())


def _one_or_two(size: tuple[int, int], kind: str) -> int | list[int]:
    height, width = size
    if height != width and kind not in _ANY_SIZE:
        raise ValueError(f"transformers has no {kind} for images or patches that are no squares. Received: {size}")
    return height if height == width else [height, width]


def _own_fields(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What the `config.json` of one kind of model has and those of the others have not."""
    key_bias = config["qkv_bias"] if config["key_bias"] is None else config["key_bias"]
    if kind in ("vit", "deit"):
        _same_biases(kind, config["qkv_bias"], key_bias)
        pooler = {"pooler_output_size": config["representation_size"]} if config["representation_size"] else {}
        return {"qkv_bias": config["qkv_bias"], **pooler}
    if kind.startswith("dinov2"):
        _same_biases(kind, config["qkv_bias"], key_bias)
        registers = {"num_register_tokens": config["registers"]} if "registers" in kind else {}
        gated = {"use_swiglu_ffn": config["gated_mlp"]}
        return {"mlp_ratio": _mlp_ratio(config), "qkv_bias": config["qkv_bias"], **gated, **registers}
    if kind == "dinov3_vit":
        return {
            "rope_theta": config["rope_theta"],
            "num_register_tokens": config["registers"],
            "use_gated_mlp": config["gated_mlp"],
            "query_bias": config["qkv_bias"],
            "key_bias": key_bias,
            "value_bias": config["qkv_bias"],
            "proj_bias": config["out_bias"],
        }
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


def _same_biases(kind: str, queries: bool, keys: bool) -> None:
    if queries != keys:
        raise ValueError(f"transformers has no {kind} with a bias on queries and values but not on keys.")


def _mlp_ratio(config: Mapping[str, Any]) -> int:
    """DINOv2 says the width of its MLP by a whole number of times that of a token, of which the gated one has two thirds."""
    for ratio in range(1, 65):
        width = ratio * config["hidden_size"]
        if (width if not config["gated_mlp"] else (width * 2 // 3 + 7) // 8 * 8) == config["mlp_dim"]:
            return ratio
    raise ValueError(f"transformers has no DINOv2 whose mlp_dim is {config['mlp_dim']}.")


_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear-antialias": 2, "bilinear": 2, "bicubic": 3, "box": 4}


def processor_json(preprocessing: Preprocessing) -> dict[str, Any]:
    """A `preprocessor_config.json`: the inverse of `Preprocessing.from_hugging_face`, where bilinear is always antialiased."""
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
    resized = [math.floor(side / preprocessing.crop) for side in (height, width)]
    cropped = {**described, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    if preprocessing.crop_mode == "center":
        size = {"shortest_edge": max(resized)}
        return {"image_processor_type": "CLIPImageProcessor", **cropped, "size": size}
    size = {"height": resized[0], "width": resized[1]}
    return {"image_processor_type": "DeiTImageProcessor", **cropped, "size": size}

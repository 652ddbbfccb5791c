"""Write the `config.json` and `preprocessor_config.json` of transformers.

`transformers_models.read_config` and `write_config` are inverses, and so are `Preprocessing.from_hugging_face` and
`write_processor`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..preprocess import Preprocessing
from .families.huggingface import BEIT, CLIP, DINOV2, DINOV3, SIGLIP, VIT
from .families.rules import Family
from .transformers_models import ACTIVATIONS, PROBLEMS

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
    "rope_kind": ("centered",),
    "register_positions": (False,),
    "attention_norm": (False,),
    "mlp_norm": (False,),
    "post_norm": (False,),
    "map_heads": (None,),
    "map_mlp_dim": (None,),
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
    """Return the closest class of transformers, or `None` if none has these names, and the fields it cannot compute."""
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
        computes = {**model.computes, "merge_tokens": (0,)}
        return [field for field, values in computes.items() if values is not None and facts[field] not in values]

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


def _own_fields(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are specific to one `model_type`."""
    key_bias = config["qkv_bias"] if config["key_bias"] is None else config["key_bias"]
    if kind in ("vit", "deit"):
        _same_biases(kind, config["qkv_bias"], key_bias)
        pooler = {"pooler_output_size": config["representation_size"]} if config["representation_size"] else {}
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # KerasHub asks for them
        return {"qkv_bias": config["qkv_bias"], **no_dropout, **pooler}
    if kind.startswith("dinov2"):
        _same_biases(kind, config["qkv_bias"], key_bias)
        if config["gated_mlp"] and config["mlp_activation"] != "silu":
            raise ValueError(
                "In transformers, a gated MLP of DINOv2 has mlp_activation='silu'. "
                f"Received: mlp_activation={config['mlp_activation']!r}"
            )
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
        raise ValueError(f"In transformers, {kind} has a bias on keys exactly if it has one on queries and values.")


def _mlp_ratio(config: Mapping[str, Any]) -> int:
    """Return DINOv2's `mlp_ratio`: `mlp_dim` in units of `hidden_size`, of which a gated MLP has two thirds."""
    for ratio in range(1, 65):
        width = ratio * config["hidden_size"]
        if (width if not config["gated_mlp"] else (width * 2 // 3 + 7) // 8 * 8) == config["mlp_dim"]:
            return ratio
    raise ValueError(f"In transformers, DINOv2 has no mlp_ratio for mlp_dim={config['mlp_dim']}.")


_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear_antialias": 2, "bilinear": 2, "bicubic_antialias": 3, "box": 4}


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

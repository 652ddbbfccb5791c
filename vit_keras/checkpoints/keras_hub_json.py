"""Read the settings of a KerasHub model that the arrays do not show: from a preset or from a whole saved model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._internal.validate import one_of
from .._internal.warn import warn_caller
from ..preprocess import Preprocessing

__all__ = ["FAMILY_OF", "fields", "preprocessing", "tower"]

FAMILY_OF = {
    "keras_hub>ViTBackbone": "keras-hub",
    "keras_hub>DeiTBackbone": "keras-hub-deit",
    "keras_hub>DINOV2Backbone": "keras-hub-dinov2",
    "keras_hub>SigLIPVisionEncoder": "keras-hub-siglip",
}
"""Names of the families of KerasHub's classes."""


def tower(config: Any) -> Mapping[str, Any] | None:
    """Return the image tower's part of a KerasHub configuration, or `None` for any other model."""
    if not isinstance(config, Mapping) or not isinstance(config.get("config"), Mapping):
        return None
    if str(config.get("registered_name")) in FAMILY_OF:
        return config
    return tower(config["config"].get("backbone")) or tower(config["config"].get("vision_encoder"))


def fields(backbone: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that KerasHub's configurations of backbone and classifier show."""
    # A classifier with `pooling="gap"` averages all tokens, the class token too.
    given, head = backbone["config"], task.get("config") or {}
    activation = "silu" if given.get("use_swiglu_ffn") else given.get("intermediate_activation", "gelu")
    if isinstance(activation, Mapping):  # a function
        activation = activation["config"]
    found = {
        "epsilon": given.get("layer_norm_epsilon", 1e-6),
        "image_size": tuple(given["image_shape"][:2]),
        "mlp_activation": "gelu_tanh" if activation == "gelu_approximate" else activation,
    }
    if "intermediate_activation" in given and found["epsilon"] != 1e-6:
        raise ValueError(
            f"layer_norm_epsilon={found['epsilon']} differs from the epsilon of the last normalization, which is "
            "always 1e-6 in KerasHub. A model here has one epsilon for all."
        )
    if given.get("antialias_in_interpolation"):
        found["position_resize"] = "bicubic_antialias"
    if "pooling" in head:
        pooling = one_of(head["pooling"], "pooling", ("token", "gap"))
        if pooling == "gap" and given.get("use_class_token", True):
            pooling = "all"
        found |= {"pooling": pooling, "activation": head["activation"]}
    return found


def preprocessing(preprocessor: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing in a `preprocessor.json`, or raise a ValueError if there is none like it here."""
    given = preprocessor["config"]["image_converter"]["config"]
    if given.get("pad_to_aspect_ratio"):
        raise ValueError("pad_to_aspect_ratio=True is not supported.")
    interpolation = given.get("interpolation", "bilinear") + "_antialias" * bool(given.get("antialias"))
    if interpolation == "bicubic":  # which is Pillow's name of the other
        interpolation = "bicubic_antialias"
        warn_caller(
            "KerasHub resizes these images by 'bicubic' without antialiasing. Here they are resized with it, so large "
            "images look smoother to the model. Set model.preprocessing if that is wrong."
        )
    scale, offset = given.get("scale"), given.get("offset")
    scales, offsets = _numbers(1.0 if scale is None else scale), _numbers(0.0 if offset is None else offset)
    count = max(len(scales), len(offsets))
    scales, offsets = (each * (count // len(each)) for each in (scales, offsets))
    return Preprocessing(
        image_size=given.get("image_size"),
        mean=tuple(-offset / scale / 255 for scale, offset in zip(scales, offsets)),
        std=tuple(1 / scale / 255 for scale in scales),
        interpolation=interpolation,
        crop=1.0 if given.get("crop_to_aspect_ratio", True) else None,
    )


def _numbers(value: float | list[float]) -> list[float]:
    return list(value) if isinstance(value, list) else [value]

"""Read the settings in the JSON files of a KerasHub preset that the arrays do not show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..preprocess import Preprocessing

__all__ = ["fields", "is_of_backbone", "preprocessing"]


def is_of_backbone(config: Mapping[str, Any]) -> bool:
    """Return whether this is the `config.json` of a `ViTBackbone`.

    Example:
        >>> is_of_backbone({"registered_name": "keras_hub>ViTBackbone", "config": {}})
        True
    """
    return config.get("registered_name") == "keras_hub>ViTBackbone"


def fields(config: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that `config.json` and `task.json` show.

    A classifier with `pooling="gap"` averages all tokens, the class token too.

    Example:
        >>> fields({"config": {"image_shape": [32, 48, 3], "layer_norm_epsilon": 1e-6}}, {})
        {'epsilon': 1e-06, 'image_size': (32, 48), 'mlp_activation': 'gelu'}
    """
    backbone, head = config["config"], task.get("config")
    found = {
        "epsilon": backbone["layer_norm_epsilon"],
        "image_size": tuple(backbone["image_shape"][:2]),
        "mlp_activation": "gelu",
    }
    if head:
        mean = "all" if backbone.get("use_class_token", True) else "gap"
        found |= {"pooling": mean if head["pooling"] == "gap" else "token", "activation": head["activation"]}
    return found


def preprocessing(preprocessor: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing in a `preprocessor.json`.

    Raises:
        ValueError: It pads images, or uses an interpolation that is not supported here.

    Example:
        >>> converter = {"image_size": [32, 32], "scale": 1 / 127.5, "offset": -1, "crop_to_aspect_ratio": True}
        >>> preprocessing({"config": {"image_converter": {"config": converter}}}).crop
        1.0
    """
    given = preprocessor["config"]["image_converter"]["config"]
    if given.get("pad_to_aspect_ratio"):
        raise ValueError("pad_to_aspect_ratio=True is not supported.")
    scale, offset = given.get("scale"), given.get("offset")
    scales, offsets = _numbers(1.0 if scale is None else scale), _numbers(0.0 if offset is None else offset)
    count = max(len(scales), len(offsets))
    scales, offsets = (each * (count // len(each)) for each in (scales, offsets))
    return Preprocessing(
        image_size=given.get("image_size"),
        mean=tuple(-offset / scale / 255 for scale, offset in zip(scales, offsets)),
        std=tuple(1 / scale / 255 for scale in scales),
        interpolation=given.get("interpolation", "bilinear") + "_antialias" * bool(given.get("antialias")),
        crop=1.0 if given.get("crop_to_aspect_ratio", True) else None,
    )


def _numbers(value: float | list[float]) -> list[float]:
    return list(value) if isinstance(value, list) else [value]

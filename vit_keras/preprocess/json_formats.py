"""Preprocessing as other libraries describe it: Hugging Face's `preprocessor_config.json`, timm's `pretrained_cfg`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._internal.validate import is_number, positive_integer

__all__ = ["PIL_CODES", "crop_fraction", "hugging_face_fields", "timm_fields"]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean or standard deviation of red, green and blue, in [0, 1], of the images of ImageNet."""

PIL_CODES = {0: "nearest", 1: "lanczos", 2: "bilinear_antialias", 3: "bicubic_antialias", 4: "box"}
"""Our name of each of Pillow's filters (`PIL.Image.Resampling`)."""


def hugging_face_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the `Preprocessing` that a `preprocessor_config.json` describes."""
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    normalized = config.get("do_normalize", True)
    mean = config.get("image_mean", 0.5) if normalized else 0.0
    std = config.get("image_std", 0.5) if normalized else 1.0
    if not is_number(factor):
        raise ValueError(f"rescale_factor must be a number. Received: {factor!r}")
    for name, value in (("image_mean", mean), ("image_std", std)):
        if not all(map(is_number, value if isinstance(value, (list, tuple)) else [value])):
            raise ValueError(f"{name} must be a number, or a list of numbers. Received: {value!r}")
    scale = 255 * factor
    code = config.get("resample", 2)
    if code not in PIL_CODES:
        raise ValueError(
            f"resample must be the number of one of Pillow's filters, {list(PIL_CODES)}. Received: resample={code!r}"
        )
    return {
        **_hugging_face_size(config),
        "mean": tuple(m / scale for m in np.atleast_1d(mean)),
        "std": tuple(s / scale for s in np.atleast_1d(std)),
        "interpolation": PIL_CODES[code],
    }


def _hugging_face_size(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `image_size`, `crop` and `crop_mode`."""
    cropped = config.get("do_center_crop", False)
    size = config.get("size", 224)
    if not config.get("do_resize", True):
        if cropped:
            raise ValueError("A crop without a resize (do_resize=false, do_center_crop=true) is not supported.")
        return {}
    if isinstance(size, int):  # before 2022; CLIP's meant the shortest edge
        kind = str(config.get("image_processor_type") or config.get("feature_extractor_type"))
        size = {"shortest_edge": size} if "CLIP" in kind else {"height": size, "width": size}
    sides = set(size) if isinstance(size, Mapping) else set()
    if not {"height", "width"} <= sides and "shortest_edge" not in sides:
        raise ValueError(f"size must have a height and a width, or a shortest_edge. Received: {size}")
    if not cropped:
        if "shortest_edge" in size:
            raise ValueError(f"size={size} without a crop is not supported: images would keep several sizes.")
        return {"image_size": (size["height"], size["width"])}
    window = config.get("crop_size", size)
    window = {"height": window, "width": window} if isinstance(window, int) else window
    if not isinstance(window, Mapping) or not {"height", "width"} <= set(window):
        raise ValueError(f"crop_size must be an integer, or have a height and a width. Received: {window}")
    window = (window["height"], window["width"])
    edges = {size["shortest_edge"]} if "shortest_edge" in size else {size["height"], size["width"]}
    if len(edges) != 1 or window[0] != window[1] or window[0] > min(edges):
        raise ValueError(f"A crop must be a square inside a square. Received: size={size}, crop_size={window}")
    edge = edges.pop()
    mode = "center" if "shortest_edge" in size else "squash"
    if mode == "squash" and edge == window[0]:
        return {"image_size": window}
    return {"image_size": window, "crop": crop_fraction(window[0], edge), "crop_mode": mode}


def crop_fraction(size: int, edge: int) -> float:
    """Return the `crop` of a `Preprocessing` that resizes to `edge` and cuts out `size`."""
    crop = positive_integer(size, "size") / positive_integer(edge, "edge")
    return math.nextafter(crop, 0) if math.floor(size / crop) < edge else crop


def timm_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the `Preprocessing` that timm's `pretrained_cfg` describes."""
    config = config.get("pretrained_cfg", config)
    channels, *size = config.get("input_size") or (3, 224, 224)
    name = config.get("interpolation") or "bilinear"
    crop, mode = config.get("crop_pct") or 0.875, config.get("crop_mode") or "center"
    if mode == "border":
        raise ValueError("crop_mode='border' (an image with a frame) is not supported. Use 'center' or 'squash'.")
    return {
        "image_size": tuple(size),
        "mean": tuple(config.get("mean") or IMAGENET_MEAN),
        "std": tuple(config.get("std") or IMAGENET_STD),
        "interpolation": "bilinear_antialias" if name == "bilinear" else name,
        "crop": None if (crop, mode) == (1.0, "squash") else crop,
        "crop_mode": mode,
        "channels": channels,
    }

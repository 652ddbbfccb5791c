"""From a model and a picture to a map or a picture of one, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .draw import overlay, paper_style, vit_keras_style
from .maps import alti_rollout, attention_rollout, cls_attention, grad_cam, gradient_rollout, legrad, relevance_map
from .recorder import Recording, is_list_of_pictures, record


def _mean_of_heads(recording: Recording, layer: int | None = None, head: int | None = None) -> np.ndarray:
    maps = cls_attention(recording, layer, head)
    return maps.mean(axis=1) if head is None else maps


# What each method of attention_map records, and what it makes of it.
_ATTENTION = ("attention",)
METHODS: dict[str, tuple[dict[str, Any], Callable]] = {
    "rollout": ({"keep": _ATTENTION, "heads": "mean"}, attention_rollout),
    "attention": ({"keep": _ATTENTION, "rows": "readout", "layers": -1}, _mean_of_heads),
    "alti": ({}, alti_rollout),
    "norm": ({}, lambda recording, **options: alti_rollout(recording, kind="norm", **options)),
    "relevance": ({"keep": _ATTENTION, "heads": "relevance"}, relevance_map),
    "gradient_rollout": ({"keep": _ATTENTION, "heads": "gradient"}, gradient_rollout),
    "gradcam": ({"keep": ("normed",), "layers": -1}, grad_cam),
    "hirescam": ({"keep": ("normed",), "layers": -1}, lambda r, **o: grad_cam(r, "hirescam", **o)),
    "layercam": ({"keep": ("normed",), "layers": -1}, lambda r, **o: grad_cam(r, "layercam", **o)),
    "legrad": ({"keep": _ATTENTION, "exits": True}, legrad),
}
OF_A_CLASS = ("relevance", "gradient_rollout", "gradcam", "hirescam", "layercam", "legrad")
_STYLES = {"overlay": overlay, "paper": paper_style, "vit_keras": vit_keras_style, "raw": None}


def attention_map(
    model: keras.Model,
    image: Any,
    *,
    method: str | None = None,
    target: Any = None,
    style: str = "overlay",
    return_map: bool = False,
    preprocess: Callable | str | None = "own",
    grid: tuple[int, int] | None = None,
    **options: Any,
) -> np.ndarray | list[np.ndarray]:
    """Show what a model looks at; by default by attention rollout (ViT paper, Figure 6 and appendix D.8).

    Args:
        model: A ViT of this package, or any model of one image input with one inside: `Sequential`, a fine-tuned
            model, nested to any depth.
        image: Pixels: an array `(height, width)`, `(height, width, channels)` or `(batch, height, width, channels)`
            in [0, 255], or floats in [-1, 1]; anything that `vit_keras.utils.read` reads; or a list of such. It may have
            another size than the model's input, and is resized for it.
        method: A name in `METHODS`: `"rollout"`, `"attention"` (the last layer's, mean of the heads), `"alti"`, `"norm"`; and of a
            class `"relevance"`, `"gradient_rollout"`, `"gradcam"`, `"hirescam"`, `"layercam"`, `"legrad"`. `None`: rollout, or with a
            target relevance.
        target: Which class the map is for, or what else: see `record`. `None`: of a class, the predicted one.
        style: `"overlay"`, colour over a dimmed image; `"paper"`, as in the ViT paper: the image shows where the map is high;
            `"vit_keras"`, what vit-keras 0.x drew; `"raw"`, no picture but the map.
        return_map: Whether to return the map itself instead of a picture, as `style="raw"`.
        preprocess: See `record`.
        grid: See `record`.
        **options: For the method's own function, such as `start_layer`, `discard_ratio` or `query`.

    Returns:
        uint8 `(height, width, 3)`, the image with the map over it, of the size of `image`; or the map itself,
        float32 `(down, across)`. A batch gives a batch; a list of pictures of several sizes a list of pictures.

    Raises:
        ValueError: There is no ViT in the model or more than one, the image does not fit it, or there is no such method or style.

    Warns:
        UserWarning: A float image is not in [-1, 1]; it is read as what it looks like.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model((32, 64), 8, 2, 64, 2, "wide", 128, classes=10)
        >>> attention_map(model, np.zeros((32, 64, 3), "uint8"), return_map=True).shape
        (4, 8)
    """
    if style not in _STYLES:
        raise ValueError(f"style is one of {', '.join(_STYLES)}. Received: {style!r}")
    if method is None:
        method = "rollout" if target is None else "relevance"
    if method not in METHODS:
        raise ValueError(f"method is one of {', '.join(METHODS)}. Received: {method!r}")
    needs, make = METHODS[method]
    if "head_fusion" in options:
        needs = {**needs, "heads": options["head_fusion"]}
    if method in OF_A_CLASS:
        target = "predicted" if target is None else target
    elif target is not None:
        raise ValueError(f"A map by {method} is of no class; those of a class are {', '.join(OF_A_CLASS)}.")
    if "layer" in options and "layers" in needs:
        needs = {**needs, "layers": options["layer"]}
        options["layer"] = -1  # the only one recorded
    recording = record(model, image, target=target, preprocess=preprocess, grid=grid, **needs)
    maps = list(make(recording, **options))
    if not return_map and style != "raw":
        maps = [_STYLES[style](picture, heat) for picture, heat in zip(recording.images, maps)]
    if not is_list_of_pictures(image) and len(getattr(image, "shape", ())) < 4:
        return maps[0]
    return np.stack(maps) if len({m.shape for m in maps}) == 1 else maps

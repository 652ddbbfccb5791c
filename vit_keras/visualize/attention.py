"""Attention maps of an image, or the image with the map over it, in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from .._internal.validate import one_of
from .methods import METHODS, Method
from .options import check_options, parameters_of
from .overlays import overlay, paper_style, vit_keras_style
from .pictures import is_one_picture
from .recorder import maps_in, record, values_add_up

STYLES: dict[str, Callable[..., Any] | None] = {
    "overlay": overlay,
    "paper": paper_style,
    "vit_keras": vit_keras_style,
    "raw": None,
}


def attention_map(
    model: keras.Model,
    image: Any,
    *,
    method: str | None = None,
    target: Any = None,
    style: str = "overlay",
    return_map: bool = False,
    preprocess: Callable[..., Any] | str | None = "own",
    grid: tuple[int, int] | None = None,
    **options: Any,
) -> np.ndarray | list[np.ndarray]:
    """Return a map of what a model looks at, drawn over the image.

    The default is attention rollout (ViT paper, Figure 6 and appendix D.8).

    Args:
        model: A ViT of this package, or any model with one image input that contains a ViT: `Sequential`, a
            fine-tuned model, nested to any depth.
        image: An array of pixels `(height, width)`, `(height, width, channels)` or `(batch, height, width, channels)`
            in [0, 255], or of floats in [-1, 1]; anything that `vit_keras.utils.read` reads; or a list of these.
            An image of a different size is stretched to the size of the model. For a model that takes images of any
            size, those of one call must have one size, and are stretched to whole patches.
        method: The kind of map. `None` selects rollout or, with a target, relevance.
            {methods}
        target: The class that the map is for, or any other target of `record`. With `None`, a method that needs a
            class takes the predicted one.
        style: `"overlay"` draws the map in color over a dimmed image. `"paper"` draws as in the ViT paper: the image
            is visible where the map is high. `"vit_keras"` draws as vit-keras 0.x did. `"raw"` returns the map itself.
        return_map: Whether to return the map itself instead of an image, like `style="raw"`.
        preprocess: See `record`.
        grid: See `record`.
        **options: Options of the method, such as `start_layer`, `discard_ratio` or `query`.

    Returns:
        The image with the map over it, uint8 `(height, width, 3)`, or the map itself, float32 `(down, across)`. For a
        batch, it is a batch of these. For a list of images of several sizes, it is a list.

    Raises:
        ValueError: The model contains no ViT or more than one, the image does not fit the model, or the method or the
            style is unknown.
        TypeError: The method does not have this option.

    Warns:
        UserWarning: A float image is not in [-1, 1], so its range was guessed. See also `record`.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model((32, 64), 8, 2, 64, 2, "wide", 128, classes=10)
        >>> attention_map(model, np.zeros((32, 64, 3), "uint8"), return_map=True).shape
        (4, 8)
        >>> attention_map(model, np.zeros((32, 64, 3), "uint8"), method="alti").shape
        (32, 64, 3)
    """
    chosen = check_arguments(method, target, style, options)
    recorded, options = chosen.plan(options)
    if chosen.of_class and target is None:
        target = "predicted"
    recording = record(model, image, target=target, preprocess=preprocess, grid=grid, **recorded)
    maps = list(chosen.function(recording, **options))
    draw = None if return_map else STYLES[style]
    if draw is not None:
        maps = [draw(picture, heat) for picture, heat in zip(recording.images, maps)]
    if is_one_picture(image):
        return maps[0]
    return np.stack(maps) if len({m.shape for m in maps}) == 1 else maps


if attention_map.__doc__:  # the methods are listed by their table
    attention_map.__doc__ = attention_map.__doc__.replace(
        "{methods}",
        ("\n" + 12 * " ").join(
            f'`"{method.name}"`: {method.summary}{", for a class" if method.of_class else ""}.'
            for method in METHODS.values()
        ),
    )


def all_maps(
    model: keras.Model,
    image: Any,
    target: Any = None,
    *,
    preprocess: Callable[..., Any] | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> dict[str, np.ndarray]:
    """Return the maps of all methods, from two passes through the model, or from one pass if there is no target.

    Args:
        model: See `attention_map`.
        image: See `attention_map`.
        target: See `record`. With `None`, only the maps that do not depend on a class are returned.
        preprocess: See `record`.
        grid: See `record`.

    Returns:
        The maps by the names in `METHODS`, each float32 `(down, across)`, or `(batch, down, across)` for several
        images. For a model with `attention_norm` or `post_norm`, the maps of values are left out, because its values
        do not add up. For a model that reads maps of several blocks (`vit_keras.feature_maps`), LeGrad is left out.

    Raises:
        ValueError: See `record`.
        TypeError: See `record`.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> maps = all_maps(model, np.zeros((32, 32, 3), "uint8"))
        >>> list(maps), maps["alti"].shape
        (['rollout', 'attention', 'alti', 'norm'], (4, 4))
    """
    chosen = [method for method in METHODS.values() if target is not None or not method.of_class]
    chosen = chosen if values_add_up(model) else [method for method in chosen if "values" not in method.keep]
    chosen = chosen if maps_in(model) < 2 else [method for method in chosen if not method.exits]
    maps = {}
    for exits in sorted({method.exits for method in chosen}):
        group = [method for method in chosen if method.exits == exits]
        keep = {name for method in group for name in method.keep}
        recording = record(model, image, target=target, keep=keep, exits=exits, preprocess=preprocess, grid=grid)
        maps |= {method.name: method.function(recording) for method in group}
    one = is_one_picture(image)
    return {method.name: maps[method.name][0] if one else maps[method.name] for method in chosen}


def check_arguments(method: str | None, target: Any, style: str, options: dict[str, Any]) -> Method:
    """Return the method that a caller of `attention_map` wants."""
    one_of(style, "style", STYLES)
    if method is None:
        method = "rollout" if target is None else "relevance"
    chosen = METHODS[one_of(method, "method", METHODS)]
    for name in (name for name in options if name not in chosen.options):
        others = [other.name for other in METHODS.values() if name in other.options]
        if others:
            raise TypeError(
                f"attention_map has no option {name!r} for method={method!r}, only for {', '.join(others)}. Options of "
                f"{method!r}: {', '.join(chosen.options)}."
            )
        draw = STYLES[style]
        if draw is not None and name in parameters_of(draw, without=("image", "heat")):
            function = draw.__name__
            raise TypeError(
                f"attention_map has no option {name!r}; visualize.{function} has. Pass it the map: {function}(image, "
                f"attention_map(…, return_map=True), {name}=…). Options of attention_map: {', '.join(_own(chosen))}."
            )
        check_options([name], _own(chosen), "attention_map")
    if target is not None and not chosen.of_class:
        others = ", ".join(other.name for other in METHODS.values() if other.of_class)
        raise ValueError(f"A map by {method} is for no class; those for a class are {others}.")
    return chosen


def _own(method: Method) -> tuple[str, ...]:
    return (*parameters_of(attention_map, without=("model", "image", "options")), *method.options)

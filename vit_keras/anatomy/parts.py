"""The Vision Transformer in a model, and its parts: blocks, tokens, patches, head."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import keras

from .. import layers
from .._internal.validate import is_number
from ..backend.guarded import CheckedModel
from ..backend.keras_internals import flat_layers, kept
from ..layers._base import change_setting
from ..layers.mixer import MixerBlock
from ..layers.patches import Conv2D
from ..preprocess import GOOGLE

HEADS = ("head", "head_dist")
"""Names of a ViT's layers that return classes."""

BLOCKS = (layers.TransformerBlock, MixerBlock)
_PARTS = (layers.AddPositionEmbs, layers.AddSinCosPositionEmbs, *BLOCKS)


def checked(model: Any) -> keras.Model:
    """Return a Keras model unchanged, or raise a TypeError for any other object."""
    if not isinstance(model, keras.Model):
        hint = ". Open it first: vit_keras.open_model(…)" if isinstance(model, (str, os.PathLike)) else ""
        raise TypeError(f"Expected a Keras model. Received: {model!r:.100}{hint}")
    return model


def learner(model: keras.Model) -> keras.Model:
    """Return the model that learns: a distillation's student, the encoder of a pre-training, or the model itself."""
    return model.learner() if isinstance(checked(model), CheckedModel) else model


def find_vit(model: keras.Model) -> keras.Model:
    """Find the Vision Transformer in a model: the model itself, or one nested in it at any depth.

    In a distillation or a pre-training, it is the one that learns.

    Args:
        model: Any Keras model.

    Returns:
        The innermost model whose own layers include this package's `AddPositionEmbs`, `TransformerBlock` or
        `MixerBlock`.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: There is no Vision Transformer, or more than one, or it is the text tower of a CLIP.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> find_vit(keras.Sequential([keras.layers.RandomFlip(), tiny, keras.layers.Dropout(0.1)])).name
        'tiny'
    """
    models = [layer for layer in flat_layers(learner(model)) if isinstance(layer, keras.Model)]
    found = [m for m in models if any(isinstance(layer, _PARTS) for layer in m.layers)]
    found = [m for m in found if not any(each in found for each in flat_layers(m)[1:])]  # the innermost
    texts = [m for m in found if len(input_shape(m)) == 2]
    if len(found) != 1:
        advice = "Pass one of them." if not texts else "Pass model.image, or zero_shot_classifier(model, texts)."
        raise ValueError(
            f"Expected one Vision Transformer of vit_keras in the model {model.name!r}, found {len(found)}"
            + (": " + ", ".join(m.name for m in found) + f". {advice}" if found else ".")
        )
    if texts:
        raise ValueError(
            f"The model {found[0].name!r} is not a Vision Transformer: its input has the shape "
            f"{input_shape(found[0])}, as the tokens of a text."
        )
    return found[0]


def input_shape(model: keras.Model) -> tuple[int | None, ...]:
    """Return the shape of a model's first input; `()` for a model without a graph."""
    return next((tuple(each.shape) for each in getattr(model, "inputs", None) or ()), ())


def has_vit(model: Any) -> bool:
    """Return whether there is one Vision Transformer in a model."""
    with contextlib.suppress(TypeError, ValueError):
        return bool(find_vit(model))
    return False


def blocks(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the encoder blocks of a model in order: `TransformerBlock` or, in an MLP-Mixer, `MixerBlock`.

    Example:
        >>> from vit_keras import vit
        >>> len(blocks(vit.build_model(32, 16, 3, 16, 2, "tiny", 32, classes=2)))
        3
    """
    return [layer for layer in flat_layers(checked(model)) if isinstance(layer, BLOCKS)]


def keeper(*models: keras.Model) -> Any:
    """Return the patch embedding in the first of some models that has one, which keeps what Keras' copies must know."""
    # A model of layers that are not ours keeps it itself, and a copy of it does not.
    found = (layer for model in models for layer in flat_layers(model) if isinstance(layer, Conv2D))
    return next(found, None) or kept(models[0], "known", lambda: SimpleNamespace(preprocessing=GOOGLE, classes={}))


def attention_blocks(model: keras.Model) -> list[layers.TransformerBlock]:
    """Return the transformer blocks of a model in order."""
    found = [block for block in blocks(model) if isinstance(block, layers.TransformerBlock)]
    if not found:
        raise ValueError(f"The model {model.name!r} has no attention layer of vit_keras in it.")
    return found


def block_numbers(layers: Any, count: int) -> tuple[int, ...]:
    """Return ascending block numbers; negative ones are counted from the end, and `None` is all."""
    if layers is None:
        return tuple(range(count))
    try:
        given = [operator.index(n) for n in (layers if isinstance(layers, Iterable) else [layers])]
    except TypeError:
        raise TypeError(f"layers are numbers of blocks. Received: {layers!r}") from None
    if not given or not all(-count <= n < count for n in given):
        raise ValueError(f"The model has the blocks 0 to {count - 1}. Received: layers={layers!r}")
    return tuple(sorted({n % count for n in given}))


def final_norm(vit: keras.Model) -> keras.layers.Layer | None:
    """Return the layer that normalizes the tokens after the last block; `None` if there is none."""
    return next((layer for layer in checked(vit).layers if layer.name == "Transformer_encoder_norm"), None)


def has_attention(model: Any) -> bool:
    """Return whether a model contains one Vision Transformer with attention, unlike an MLP-Mixer."""
    return has_vit(model) and any(isinstance(block, layers.TransformerBlock) for block in blocks(find_vit(model)))


def prefix_names(vit: keras.Model) -> tuple[str, ...]:
    """Return the names of the tokens before the patches: `"cls"`, `"dist"`, `"reg0"` and so on."""
    inside = flat_layers(checked(vit))
    names = [str(layer.name) for layer in inside if isinstance(layer, layers.ClassToken)]
    single = ["dist" if "dist" in name else "cls" for name in names]
    registers = sum(layer.count for layer in inside if isinstance(layer, layers.RegisterTokens))
    return (*sorted(single), *(f"reg{n}" for n in range(registers)))  # the class token comes before the other


def patch_grid(vit: keras.Model, image_size: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return the patches down and across in a Vision Transformer."""
    config = getattr(checked(vit), "config", None)
    if config is not None and config.image_size is None:
        if image_size is None:
            raise ValueError(f"The model {vit.name!r} takes images of any size. Pass image_size=(height, width).")
        return config.grid_of(image_size)
    positions = next((layer for layer in vit.layers if isinstance(layer, layers.AddPositionEmbs)), None)
    if positions is not None and positions.grid:
        return positions.grid
    try:  # no position embeddings; or a model of vit-keras 0.x, whose layers did not know the grid
        return tuple(vit.get_layer("embedding").output.shape[1:3])
    except (ValueError, AttributeError):
        if positions is None or positions.patch_grid is None:
            raise ValueError(
                f"Cannot infer the patch grid of the model {vit.name!r}: its layer 'embedding' is missing and its "
                "position embeddings are not a square."
            ) from None
        return positions.patch_grid


def patch_stride(vit: keras.Model, image_size: tuple[int, int] | None) -> tuple[int, int]:
    """Return the distance in pixels between neighboring patches, down and across, in images of a size."""
    config = getattr(checked(vit), "config", None)
    if config is not None:
        return config.stride
    if image_size is None:
        raise ValueError(
            f"Nothing tells the pixels between the patches of {vit.name!r}, which was cut out of a model of any size. "
            "Pass image_size=(height, width)."
        )
    down, across = patch_grid(vit, image_size)
    return image_size[0] // down, image_size[1] // across


def dense_layers(model: keras.Model) -> list[keras.layers.Dense]:
    """Return all dense layers of a model, at any depth."""
    return [layer for layer in flat_layers(checked(model)) if isinstance(layer, keras.layers.Dense)]


def quantization(model: keras.Model) -> str | None:
    """Return how the weights of a model are quantized, such as `"int8"` after `model.quantize("int8")`, or `None`."""
    modes = (getattr(layer, "quantization_mode", None) for layer in flat_layers(checked(model)))
    return " and ".join(sorted({mode for mode in modes if mode is not None})) or None


def set_rates(vit: keras.Model, dropout: float | None = None, stochastic_depth: float | None = None) -> None:
    """Change the rates of dropout and stochastic depth in the blocks of a model; compile it again afterwards."""
    given = {"dropout": dropout, "stochastic_depth": stochastic_depth}
    for field, rate in given.items():
        if rate is not None and not (is_number(rate) and 0 <= rate < 1):
            raise ValueError(f"{field} must be a rate in [0, 1). Received: {rate!r}")
    found = blocks(vit)
    if any(given.values()) and any(getattr(block, "remat", False) for block in found):
        raise ValueError("Dropout and stochastic depth cannot go with remat. Build the model with remat=False.")
    for n, block in enumerate(found):
        if dropout is not None:
            for layer in (block, *(part for part in flat_layers(block) if isinstance(part, layers.MlpBlock))):
                for part in (getattr(layer, "dropout_layer", None), *getattr(layer, "layers", ())):
                    if isinstance(part, keras.layers.Dropout):
                        change_setting(part, "rate", dropout)
        if stochastic_depth is not None and hasattr(block, "drop_path"):
            change_setting(block.drop_path, "rate", stochastic_depth * n / max(len(found) - 1, 1))

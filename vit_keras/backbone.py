"""A Vision Transformer as the backbone of a model for dense prediction: segmentation, depth, detection.

>>> from vit_keras import feature_maps, vit
>>> model = vit.build_model(32, 8, 12, 64, 2, "tiny", 128, classes=10)
>>> [patch_map.shape for patch_map in feature_maps(model, [2, 5, 8, 11]).outputs]
[(None, 4, 4, 64), (None, 4, 4, 64), (None, 4, 4, 64), (None, 4, 4, 64)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import keras

from . import anatomy
from .anatomy.inputs import entering, front
from .anatomy.parts import block_numbers, final_norm, find_vit, learner, patch_grid, prefix_names
from .config import ViTConfig
from .layers import PatchDropout
from .layers.tokens import PatchMap
from .model import VisionTransformer
from .preprocess.layer import InferenceMode

__all__ = ["feature_maps"]


def feature_maps(
    model: keras.Model,
    layers: Sequence[int] | int | None = None,
    *,
    norm: bool = True,
    prefix: bool = False,
    name: str | None = None,
) -> keras.Model:
    """Return a model from images to feature maps: the tokens of the patches after chosen blocks, as a grid.

    The new model shares layers and weights with the given model: training one trains the other, and `trainable` is the
    same for both. Blocks after the last chosen block are not computed. Save and load it like any other Keras model.

    Args:
        model: A ViT of this package, or a model that contains one. Layers before the ViT (preprocessing, augmentation)
            run as in inference, even in training, because augmentation would move the image away from its mask. Layers
            after the ViT are left out.
        layers: Numbers of blocks, from the end if negative; `None` for all.
        norm: Whether each map goes through the final layer normalization of the ViT, as the tokens do before its head.
            If the model normalizes only the pooled vector, or nothing, the maps are the outputs of the blocks.
        prefix: Whether to also return the tokens before the patches: class, distillation and register tokens.
        name: Name of the new model. `None` selects the name of the ViT with `-maps`.

    Returns:
        A model from images `(batch, height, width, channels)`, as the given model takes them, to maps `(batch, down,
        across, hidden_size)`. For one number it returns one map, otherwise a list in the order of the blocks, without
        repetition. With `prefix`, it returns a list of the maps and of the tokens `(batch, prefix_tokens,
        hidden_size)`.

    Raises:
        ValueError: The model contains no ViT or more than one, a block does not exist, the patches do not keep their
            places in the model (`merge_tokens`, `patch_dropout`), or `prefix` is set for a model without such tokens.
        TypeError: `model` is not a Keras model, or `layers` are not numbers.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model((32, 48), 8, 12, 64, 2, "tiny", 128, classes=10)
        >>> images = keras.Input((32, 48, 3))
        >>> early, late = feature_maps(model, [5, 11])(images)
        >>> x = keras.layers.Conv2D(21, 1)(keras.layers.Concatenate()([early, late]))
        >>> keras.Model(images, keras.layers.UpSampling2D(8, interpolation="bilinear")(x)).output_shape
        (None, 32, 48, 21)
        >>> patch_map, tokens = feature_maps(model, -1, prefix=True)(images)
        >>> patch_map.shape, tokens.shape
        ((None, 4, 6, 64), (None, 1, 64))
    """
    vit = find_vit(model)
    for outer, inner, taken in entering(learner(model), vit):
        if taken is None or len(taken.shape) != 4 or not isinstance(inner, keras.Model):
            raise ValueError(
                f"The model {model.name!r} gives images to its Vision Transformer by {inner.name!r} in {outer.name!r}, "
                "which maps cannot follow. Pass the Vision Transformer: anatomy.find_vit(model) returns it."
            )
    blocks = anatomy.blocks(vit)
    chosen = block_numbers(layers, len(blocks))
    last, prefix_tokens = chosen[-1], len(prefix_names(vit))
    _check(vit, last)
    if prefix and not prefix_tokens:
        raise ValueError(f"The model {vit.name!r} has no tokens before the patches. Pass prefix=False.")
    normalize = final_norm(vit) if norm else None
    any_size = None in vit.input_shape[1:3]
    grid = None if any_size else patch_grid(vit)
    beside = {"patches": vit.get_layer("embedding").output} if any_size else {}
    maps, tokens = [], []
    for n in chosen:
        x = blocks[n].output if normalize is None else normalize(blocks[n].output)
        x = PatchMap(prefix_tokens, grid, prefix, name=f"map_{n}", dtype=blocks[n].dtype_policy)(x, **beside)
        patch_map, before = x if prefix else (x, None)
        maps.append(patch_map)
        tokens.append(before)
    if layers is not None and not isinstance(layers, Iterable):
        maps, tokens = maps[0], tokens[0]
    outputs = [maps, tokens] if prefix else maps  # lists, as a loaded model has
    found = VisionTransformer(vit.input, outputs, name=name or f"{vit.name}-maps")
    found.config, found.origin = _config(vit, last, normalize is not None), getattr(vit, "origin", None)
    return _after(front(model), found)


def _check(vit: keras.Model, last: int) -> None:
    """Refuse a model whose patches are not all in their places up to a block."""
    if not getattr(vit, "inputs", None):
        raise ValueError(
            f"The model {vit.name!r} has no graph to take maps from: it is a subclass of keras.Model, or not built "
            "yet. Pass a functional model."
        )
    merging = [n for n, block in enumerate(anatomy.blocks(vit)[: last + 1]) if getattr(block, "merge_tokens", 0)]
    if merging:
        raise ValueError(
            f"The model {vit.name!r} merges tokens in block {merging[0]}, and what is merged makes no map. Pass "
            "vit_keras.merge_tokens(model, 0), which merges none."
        )
    if any(isinstance(layer, PatchDropout) and layer.rate for layer in vit.layers):
        raise ValueError(
            f"The model {vit.name!r} leaves out patches in training (patch_dropout). Pass vit_keras.resize(model, "
            "image_size, patch_dropout=0), which leaves out none."
        )


def _config(vit: keras.Model, last: int, normed: bool) -> ViTConfig | None:
    """Return the configuration of a ViT up to a block, without what comes after."""
    config = getattr(vit, "config", None)
    return config and config.replace(
        num_layers=last + 1,
        stochastic_depth=config.stochastic_depth_of(last),
        merge_tokens=0,
        class_token=config.has_class_token,
        final_norm="tokens" if normed else None,
        pooling=None,
        include_top=False,
        representation_size=None,
    )


def _after(before: keras.Model | None, found: keras.Model) -> keras.Model:
    """Return a model with another before it, which always runs in inference mode."""
    if before is None:
        return found
    if len(before.inputs) > 1:
        raise ValueError(
            f"The Vision Transformer gets an image that comes from {len(before.inputs)} inputs. Pass the Vision "
            "Transformer: anatomy.find_vit(model) returns it."
        )
    image = keras.Input(before.input.shape[1:], dtype=before.input.dtype)
    x = InferenceMode(before, name=f"{before.name}_at_inference")(image)
    return keras.Model(image, found(x), name=f"{found.name}-with-preprocessing")

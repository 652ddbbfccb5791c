"""The factories: one for each published size of the Vision Transformer, and one for any other size.

>>> from vit_keras import vit
>>> model = vit.vit_ti16(image_size=224, classes=10, pretrained=False)
>>> model.output_shape
(None, 10)
"""

from __future__ import annotations

import os
from typing import Any

from . import layers as layers  # vit.layers and vit.utils, as in vit-keras 0.x
from . import utils as utils
from .build import build
from .compat import (
    BASE_URL,
    CONFIG_B,
    CONFIG_L,
    SIZES,
    WEIGHTS,
    ConfigDict,
    ImageSizeArg,
    interpret_image_size,
    load_pretrained,
    validate_pretrained_top,
)
from .config import ViTConfig
from .model import VisionTransformer
from .opening import create, from_checkpoint, preprocessing_layer, resize
from .preprocess import preprocess_inputs

__all__ = [
    "BASE_URL",
    "CONFIG_B",
    "CONFIG_L",
    "SIZES",
    "WEIGHTS",
    "ConfigDict",
    "ImageSizeArg",
    "ViTConfig",
    "VisionTransformer",
    "build",
    "build_model",
    "from_checkpoint",
    "interpret_image_size",
    "load_pretrained",
    "preprocess_inputs",
    "preprocessing",
    "preprocessing_layer",
    "resize",
    "validate_pretrained_top",
    "vit_b8",
    "vit_b16",
    "vit_b32",
    "vit_cifar10",
    "vit_h14",
    "vit_l16",
    "vit_l32",
    "vit_s16",
    "vit_s32",
    "vit_ti16",
]

preprocessing = preprocessing_layer  # its first name

_I21K_I1K = "imagenet21k+imagenet2012"


def vit_ti16(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = f"augreg-{_I21K_I1K}-224",
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-Ti/16: 12 layers, hidden size 192, 3 heads, MLP dim 768."""
    return create(
        "Ti_16", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_s16(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = f"augreg-{_I21K_I1K}-224",
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-S/16: 12 layers, hidden size 384, 6 heads, MLP dim 1536."""
    return create(
        "S_16", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_s32(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = f"augreg-{_I21K_I1K}-224",
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-S/32: 12 layers, hidden size 384, 6 heads, MLP dim 1536."""
    return create(
        "S_32", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_b8(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = _I21K_I1K,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-B/8: 12 layers, hidden size 768, 12 heads, MLP dim 3072."""
    return create(
        "B_8", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_b16(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = _I21K_I1K,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-B/16: 12 layers, hidden size 768, 12 heads, MLP dim 3072."""
    return create(
        "B_16", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_b32(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = _I21K_I1K,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-B/32: 12 layers, hidden size 768, 12 heads, MLP dim 3072."""
    return create(
        "B_32", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_l16(
    image_size: ImageSizeArg | None = (384, 384),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = _I21K_I1K,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-L/16: 24 layers, hidden size 1024, 16 heads, MLP dim 4096."""
    return create(
        "L_16", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_l32(
    image_size: ImageSizeArg | None = (384, 384),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = _I21K_I1K,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-L/32: 24 layers, hidden size 1024, 16 heads, MLP dim 4096."""
    return create(
        "L_32", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_h14(
    image_size: ImageSizeArg | None = (224, 224),
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = "imagenet21k",
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build ViT-H/14: 32 layers, hidden size 1280, 16 heads, MLP dim 5120."""
    return create(
        "H_14", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


def vit_cifar10(
    image_size: ImageSizeArg | None = 32,
    classes: int | None = None,
    activation: Any = "linear",
    include_top: bool = True,
    pretrained: bool = True,
    pretrained_top: bool | None = None,
    weights: str | os.PathLike[str] | None = "vit_cifar10",
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build the small model that comes with the package, trained from scratch on CIFAR-10. Nothing is downloaded.

    The model is a hybrid (paper, section 3.1) with 6 layers, hidden size 128 and 4 heads. It takes images of 32 pixels
    and has ten classes, from airplane to truck. Use it for tests and to try things out. `docs/training.md` says how it
    was trained, and how good it is.
    """
    return create(
        "cifar10", image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
    )


_ARGUMENTS = """

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square. The size must be a whole
            number of patches, unless you pass `drop_remainder=True`. With `None`, the model takes images of any size.
        classes: Number of classes. `None` keeps the number of the checkpoint's head, or 1000.
        activation: Activation of the head: `"linear"`, `"softmax"`, `"sigmoid"`, …
        include_top: Whether the model ends in a head. Without a head, the model returns the normalized class token,
            `(batch, hidden_size)`, or all tokens with `pooling=None`.
        pretrained: Whether to load `weights`.
        pretrained_top: Whether to load the checkpoint's head. `None` loads it if it has as many classes as `classes`.
        weights: A published name (`checkpoints.available`), the path of a file, a URL, or `None`.
        dtype: Keras dtype policy; `None` for the global one.
        **options: Further fields of `ViTConfig`: `dropout`, `pooling`, `channels`, `representation_size`, …

    Returns:
        A `VisionTransformer`: a functional `keras.Model` for images that `model.preprocess` has prepared.

    Raises:
        FileNotFoundError: The file of weights does not exist.
        ConnectionError: The weights cannot be downloaded.
        ValueError: An argument is out of range, or the weights are for a different architecture.

    Example:
        >>> model = {name}(image_size=64, classes=10, pretrained=False)  # doctest: +SKIP
        >>> model.output_shape  # doctest: +SKIP
        (None, 10)
    """

for _factory in (vit_ti16, vit_s16, vit_s32, vit_b8, vit_b16, vit_b32, vit_l16, vit_l32, vit_h14, vit_cifar10):
    _factory.__doc__ = f"{(_factory.__doc__ or '').rstrip()}{_ARGUMENTS.format(name=_factory.__name__)}"


def build_model(
    image_size: ImageSizeArg,
    patch_size: int | tuple[int, int],
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    name: str,
    mlp_dim: int,
    classes: int,
    dropout: float = 0.1,
    activation: Any = "linear",
    include_top: bool = True,
    representation_size: int | None = None,
    *,
    dtype: Any = None,
    **options: Any,
) -> VisionTransformer:
    """Build a ViT of any size, with new random weights.

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square.
        patch_size: Pixels of a patch, in the same form as `image_size`.
        num_layers: Number of transformer blocks.
        hidden_size: Width of a token.
        num_heads: Attention heads of a block.
        name: Name of the model.
        mlp_dim: Hidden width of the MLP of a block.
        classes: Number of classes.
        dropout: Rate of dropout in the blocks and after the position embeddings.
        activation: Activation of the head.
        include_top: Whether the model ends in a classification head.
        representation_size: Width of the tanh layer before the head, or `None`.
        dtype: Keras dtype policy; `None` for the global one.
        **options: Further fields of `ViTConfig`: `pooling`, `dim_head`, `channels`, `emb_dropout`, …

    Returns:
        A `VisionTransformer`; see `build`.

    Raises:
        ValueError: A value is out of range, two values contradict each other, or an option does not exist.

    Example:
        >>> build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10, pooling="gap").output_shape
        (None, 10)
    """
    config = ViTConfig().replace(
        image_size=image_size,
        patch_size=patch_size,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        name=name,
        mlp_dim=mlp_dim,
        classes=classes,
        dropout=dropout,
        activation=activation,
        include_top=include_top,
        representation_size=representation_size,
        **options,
    )
    return build(config, dtype=dtype)


def __dir__() -> list[str]:
    return sorted(__all__)

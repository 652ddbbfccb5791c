"""The factories: one for each published size of the Vision Transformer, and one for any other size.

>>> from vit_keras import vit
>>> model = vit.vit_ti16(image_size=224, classes=10, pretrained=False)
>>> model.output_shape
(None, 10)
"""

from __future__ import annotations

import os
from typing import Any, Protocol

# With a second name: names of vit-keras 0.x, which work here but are not listed.
from . import layers as layers
from . import utils as utils
from .build import build
from .compat import BASE_URL as BASE_URL
from .compat import CONFIG_B as CONFIG_B
from .compat import CONFIG_L as CONFIG_L
from .compat import SIZES as SIZES
from .compat import WEIGHTS as WEIGHTS
from .compat import ConfigDict as ConfigDict
from .compat import ImageSizeArg as ImageSizeArg
from .compat import interpret_image_size as interpret_image_size
from .compat import load_pretrained as load_pretrained
from .compat import validate_pretrained_top as validate_pretrained_top
from .config import ViTConfig
from .model import VisionTransformer
from .opening import create
from .preprocess.pixels import preprocess_inputs
from .variants import CIFAR10, FACTORIES, VARIANTS

__all__ = [
    "ViTConfig",
    "VisionTransformer",
    "build",
    "build_model",
    "preprocess_inputs",
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


class Factory(Protocol):
    """A function that builds a model of one published size."""

    def __call__(
        self,
        image_size: ImageSizeArg | None = ...,
        classes: int | None = None,
        activation: Any = "linear",
        include_top: bool = True,
        pretrained: bool = True,
        pretrained_top: bool | None = None,
        weights: str | os.PathLike[str] | None = ...,
        *,
        dtype: Any = None,
        **options: Any,
    ) -> VisionTransformer: ...


_DOC = """Build {title}: {size}.{more}

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


def _factory(name: str, published: str, more: str = "") -> Factory:
    """Return the function of this name, whose usual weights are `published`."""
    variant = FACTORIES.get(name, "cifar10")
    config = VARIANTS.get(variant, CIFAR10)

    def factory(
        image_size: ImageSizeArg | None = config.image_size,
        classes: int | None = None,
        activation: Any = "linear",
        include_top: bool = True,
        pretrained: bool = True,
        pretrained_top: bool | None = None,
        weights: str | os.PathLike[str] | None = published,
        *,
        dtype: Any = None,
        **options: Any,
    ) -> VisionTransformer:
        return create(
            variant, image_size, classes, activation, include_top, pretrained, pretrained_top, weights, dtype, options
        )

    title = f"ViT-{variant.replace('_', '/')}" if variant in VARIANTS else "the small model that comes with the package"
    width, heads = config.hidden_size, config.num_heads
    size = f"{config.num_layers} layers, hidden size {width}, {heads} heads, MLP dim {config.mlp_dim}"
    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = _DOC.format(name=name, title=title, size=size, more=more)
    return factory


_I21K_I1K = "imagenet21k+imagenet2012"
_CIFAR10 = """

    It is a hybrid (paper, section 3.1), trained from scratch on CIFAR-10, and nothing is downloaded. It takes images of
    32 pixels and has ten classes, from airplane to truck. Use it for tests and to try things out. `docs/checkpoints.md`
    says how it was trained, and how good it is."""

vit_ti16: Factory = _factory("vit_ti16", f"augreg-{_I21K_I1K}-224")
vit_s16: Factory = _factory("vit_s16", f"augreg-{_I21K_I1K}-224")
vit_s32: Factory = _factory("vit_s32", f"augreg-{_I21K_I1K}-224")
vit_b8: Factory = _factory("vit_b8", _I21K_I1K)
vit_b16: Factory = _factory("vit_b16", _I21K_I1K)
vit_b32: Factory = _factory("vit_b32", _I21K_I1K)
vit_l16: Factory = _factory("vit_l16", _I21K_I1K)
vit_l32: Factory = _factory("vit_l32", _I21K_I1K)
vit_h14: Factory = _factory("vit_h14", "imagenet21k")
vit_cifar10: Factory = _factory("vit_cifar10", "vit_cifar10", _CIFAR10)


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

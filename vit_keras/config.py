"""The configuration of a Vision Transformer, as data.

`ViTConfig` describes a model completely: `vit_keras.vit.build(config)` needs nothing else. `vit_keras.variants` has the
table of the published sizes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

from ._internal.bounds import not_divisible, patch_cells, patch_stride
from ._internal.fields import documented
from ._internal.validate import (
    check_activations,
    check_fields,
    check_remat,
    check_switches,
    instance,
    is_number,
    merge_schedule,
    one_of,
    positive_integer,
    python_numbers,
    size_pair,
)
from .positions import GEOMETRIC, METHODS

__all__ = ["ViTConfig"]


def _optional(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, field: None if value is None else check(value, field)


def _units(value: Any, field: str) -> tuple[int, ...]:
    if not isinstance(value, Iterable):
        raise ValueError(f"{field} must be the units of each stage, such as (3, 4, 9). Received: {value!r}")
    return tuple(positive_integer(units, field) for units in value)


def _number(wanted: str, fits: Callable[[Any], bool]) -> Callable[[Any, str], Any]:
    def check(value, field):
        if not (is_number(value) and fits(value)):
            raise ValueError(f"{field} must be {wanted}. Received: {value!r}")
        return value

    return check


_rate = _number("a rate in [0, 1)", lambda value: 0 <= value < 1)
_not_negative = _number("a number that is not negative", lambda value: value >= 0)


def _choice(*choices: Any, **aliases: str) -> Callable[[Any, str], Any]:
    return lambda value, field: one_of(aliases.get(value, value) if isinstance(value, str) else value, field, choices)


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "patch_size": size_pair,
    **dict.fromkeys(("image_size", "position_grid", "rope_grid"), _optional(size_pair)),
    **dict.fromkeys(("channels", "num_layers", "hidden_size", "num_heads", "mlp_dim", "classes"), positive_integer),
    **dict.fromkeys(("dim_head", "representation_size", "tokens_mlp_dim"), _optional(positive_integer)),
    "registers": functools.partial(positive_integer, least=0),
    **dict.fromkeys(("map_heads", "map_mlp_dim"), _optional(positive_integer)),
    "resnet": _optional(_units),
    **dict.fromkeys(("dropout", "attention_dropout", "stochastic_depth", "patch_dropout"), _rate),
    "emb_dropout": _optional(_rate),
    "epsilon": _not_negative,
    "layer_scale": _optional(_not_negative),
    "rope_theta": _optional(_number("a number greater than 0", lambda value: value > 0)),
    "rope_offset": _number("a number", lambda value: True),
    "mlp_activation": lambda value, field: instance(value, str, field),
    "pooling": _choice("token", "gap", "token+gap", "token+dist", "all", "map", None, cls="token", mean="gap"),
    "position": _choice("learned", "sincos2d", None),
    "rope_kind": _choice("centered", "axial", "axial_xy", "mixed"),
    "final_norm": _choice("tokens", "pooled", None),
    "resnet_numerics": _choice("google", "timm"),
    "relative_resize": _choice(*METHODS, *GEOMETRIC),
    "position_resize": _choice(*METHODS),
    "patch_resize": _choice(*METHODS),
}
"""What the value of a field must be: a function that returns it in its one form, or raises a ValueError."""


@documented
@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The configuration of a Vision Transformer: everything that its computation depends on except the weights.

    Raises:
        ValueError: A value is out of range, or two values contradict each other.

    Example:
        >>> config = ViTConfig(image_size=(224, 448), num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128)
        >>> config.grid
        (14, 28)
    """

    # the image, and how it is cut into patches
    image_size: tuple[int, int] | None = (224, 224)
    """Pixels of the input, `(height, width)` or one integer for a square. With `None`, the model takes images of any
    size, and resamples the positions in the graph from a table of `position_grid`."""
    channels: int = 3
    """Channels of the input image."""
    patch_size: tuple[int, int] = (16, 16)
    """Pixels of a patch, in the same form as `image_size`. In a hybrid, cells of the ResNet's feature map."""
    drop_remainder: bool = False
    """Whether to cut off the pixels that are left over after whole patches. Otherwise, such an image size raises an
    error."""
    resnet: tuple[int, ...] | None = None
    """Units in each stage of the ResNet before the patch embedding (a hybrid; paper, section 3.1), or `None`."""
    resnet_numerics: str = "google"
    """Whose weight standardization and group normalization to use: `"google"` or `"timm"`."""
    patch_bias: bool = True
    """Whether the patch embedding has a bias."""
    patch_norm: bool = False
    """Whether there are layer normalizations before and after the patch embedding (vit-pytorch)."""
    # tokens before the patches
    class_token: bool | None = None
    """Whether there is a class token. `None` follows the file of weights, or `pooling`."""
    distillation_token: bool = False
    """Whether there is a second token after the class token (DeiT)."""
    registers: int = 0
    """Number of register tokens after the class token (arXiv 2309.16588)."""
    # positions
    position: str | None = "learned"
    """`"learned"`, `"sincos2d"` (fixed; arXiv 2104.02057) or `None`."""
    position_prefix: bool = True
    """Whether the class and distillation tokens have position embeddings too."""
    register_positions: bool = False
    """Whether the registers have position embeddings too."""
    position_grid: tuple[int, int] | None = None
    """Patches down and across of the table of positions if `image_size` is `None`."""
    rope_theta: float | None = None
    """Base of rotary position embeddings on the patches (RoPE, arXiv 2104.09864), or `None`."""
    rope_kind: str = "centered"
    """Kind of rotary positions: `"centered"` (DINOv3), `"axial"` (EVA-02) or `"axial_xy"` (RoPE-ViT, PE), see
    `vit_keras.positions.rope_sincos`; or `"mixed"`, with learned frequencies (RoPE-Mixed, arXiv 2403.13298)."""
    rope_grid: tuple[int, int] | None = None
    """Patches down and across of the grid that axial rotary positions are scaled to, or `None`."""
    rope_offset: float = 0.0
    """Number added to rows and columns in axial rotary positions."""
    relative_positions: bool = False
    """Whether each attention layer has a table of relative positions (BEiT, arXiv 2106.08254)."""
    # the blocks
    num_layers: int = 12
    """Number of encoder blocks (the paper's *layers*)."""
    hidden_size: int = 768
    """Width of a token (the paper's *hidden size D*)."""
    num_heads: int = 12
    """Attention heads of a block."""
    dim_head: int | None = None
    """Width of a head; `None` for `hidden_size / num_heads`."""
    mlp_dim: int = 3072
    """Hidden width of the MLP of a block."""
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias."""
    key_bias: bool | None = None
    """Whether keys have a bias; `None` for `qkv_bias`."""
    out_bias: bool = True
    """Whether the output projection of the attention has a bias."""
    attention_norm: bool = False
    """Whether there is a layer normalization before this projection (sub-LN, arXiv 2210.06423)."""
    mlp_norm: bool = False
    """Whether there is a layer normalization before the last layer of the MLP."""
    mlp_activation: str = "gelu_tanh"
    """`"gelu_tanh"` (Google's checkpoints were trained with it), `"gelu"` (the exact form, as in PyTorch and vit-keras
    0.x), `"quick_gelu"` (OpenAI's CLIP), or any Keras activation name."""
    gated_mlp: bool = False
    """Whether the MLP is gated: `activation(gate(x)) * Dense_0(x)` (SwiGLU, arXiv 2002.05202)."""
    layer_scale: float | None = None
    """Initial value of the learned factors on both branches of a block (CaiT, arXiv 2103.17239), or `None`."""
    epsilon: float = 1e-6
    """Added to the variance in every layer normalization."""
    pre_norm: bool = False
    """Whether there is a layer normalization before the first block (CLIP)."""
    post_norm: bool = False
    """Whether the layer normalizations of a block come after the attention and the MLP instead of before them (arXiv
    2111.09883)."""
    final_norm: str | None = "tokens"
    """Whether the last layer normalization is on the `"tokens"`, on the `"pooled"` vector, or left out (`None`)."""
    tokens_mlp_dim: int | None = None
    """Hidden width of an MLP over the tokens that replaces the attention: an MLP-Mixer (arXiv 2105.01601), which has no
    position embeddings."""
    merge_tokens: int | tuple[int, ...] = 0
    """Number of tokens that each block merges into similar tokens, or a tuple with one number for each block (ToMe,
    arXiv 2210.09461); see `vit_keras.merge_tokens`."""
    # what comes out
    pooling: str | None = "token"
    """Input of the head. `"token"` (alias `"cls"`): the class token. `"gap"` (alias `"mean"`): the mean over the
    patches. `"token+gap"`: both, concatenated. `"token+dist"`: the class and the distillation token, each with its own
    head; the output is the mean (DeiT, arXiv 2012.12877, section 4). `"all"`: the mean over all tokens. `"map"`:
    multi-head attention pooling (SigLIP, arXiv 2303.15343). `None`: no pooling; the output is all tokens, class token
    first."""
    map_prefix: bool = True
    """Whether the attention pooling also sees the tokens before the patches. In timm's ViTs, it does not."""
    map_heads: int | None = None
    """Heads of the attention pooling; `None` for `num_heads`."""
    map_mlp_dim: int | None = None
    """Hidden width of the MLP in the attention pooling; `None` for `mlp_dim`."""
    representation_size: int | None = None
    """Width of the tanh layer before the head (`pre_logits`), or `None`."""
    include_top: bool = True
    """Whether the model ends in a classification head."""
    classes: int = 1000
    """Number of classes of the head."""
    head_bias: bool = True
    """Whether the head has a bias."""
    activation: Any = "linear"
    """Activation of the head: a Keras name such as `"softmax"`."""
    # training
    dropout: float = 0.0
    """Dropout rate after the attention, after the MLP's activation and after the MLP."""
    emb_dropout: float | None = None
    """Dropout rate after the position embeddings; `None` for `dropout`."""
    attention_dropout: float = 0.0
    """Dropout rate on the attention weights."""
    stochastic_depth: float = 0.0
    """Rate at which training leaves out the branches of the last block, drawn for each image. The rate rises linearly
    from 0 in the first block (arXiv 1603.09382)."""
    patch_dropout: float = 0.0
    """Share of the patches that training leaves out, drawn for each image (arXiv 2208.07220)."""
    remat: bool = False
    """Whether training keeps only the inputs of the blocks and computes the rest again in the backward pass. Cannot be
    combined with dropout."""
    # how this family's arrays are resampled to other sizes
    position_resize: str = "bilinear_align_corners"
    """How position embeddings are resampled to a different grid: one of `vit_keras.positions.METHODS`."""
    patch_resize: str = "bilinear"
    """How a patch kernel is resampled to a different patch size (FlexiViT's PI-resize), with the same choices."""
    relative_resize: str = "bilinear"
    """How relative positions are resampled: a choice of `position_resize`, `"geometric"` (BEiT's) or
    `"geometric_linear"` (timm's)."""

    name: str = "vit"
    """Name of the model."""

    def __post_init__(self) -> None:
        values = {**vars(self), **python_numbers(vars(self))}
        for field, check in _CHECKS.items():
            object.__setattr__(self, field, check(values[field], field))
        check_activations(vars(self))
        check_switches(self)
        patches = self.grid and math.prod(self.grid)
        object.__setattr__(self, "merge_tokens", merge_schedule(self.merge_tokens, self.num_layers, patches))
        _check_combination(self)
        if self.image_size is not None:
            object.__setattr__(self, "position_grid", None)

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels of the image between two patches, down and across."""
        return patch_stride(self.patch_size, self.resnet)

    def grid_of(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the patch grid of an image of this size."""
        height, width = patch_cells(image_size, self.resnet)
        return height // self.patch_size[0], width // self.patch_size[1]

    @property
    def grid(self) -> tuple[int, int] | None:
        """Patches down and across; `None` if images may have any size."""
        return None if self.image_size is None else self.grid_of(self.image_size)

    @property
    def has_class_token(self) -> bool:
        """Whether there is a class token."""
        if self.class_token is not None:
            return self.class_token
        return self.pooling not in ("gap", "map") and self.tokens_mlp_dim is None

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return int(self.has_class_token) + int(self.distillation_token) + self.registers

    @property
    def position_prefix_tokens(self) -> int:
        """Tokens before the patches that have position embeddings."""
        count = int(self.has_class_token) + int(self.distillation_token) if self.position_prefix else 0
        return count + (self.registers if self.register_positions else 0)

    @property
    def head_width(self) -> int:
        """Width of an attention head."""
        return self.dim_head or self.hidden_size // self.num_heads

    @property
    def embedding_dropout(self) -> float:
        """The dropout rate after the position embeddings."""
        return self.dropout if self.emb_dropout is None else self.emb_dropout

    def tokens_merged_in(self, block: int) -> int:
        """Return the number of tokens that a block, counted from 0, merges."""
        return self.merge_tokens if isinstance(self.merge_tokens, int) else self.merge_tokens[block]

    def stochastic_depth_of(self, block: int) -> float:
        """Return the rate of stochastic depth of a block, counted from 0."""
        return self.stochastic_depth * block / max(self.num_layers - 1, 1)

    def replace(self, **changes: Any) -> ViTConfig:
        """Return a copy with some fields changed.

        Raises:
            ValueError: A field does not exist, or the new combination is not valid.
        """
        check_fields(ViTConfig, changes)
        return dataclasses.replace(self, **changes)


def _check_combination(config: ViTConfig) -> None:
    """Raise a ValueError if fields contradict each other."""
    if config.pooling is None and (config.include_top or config.representation_size):
        raise ValueError("pooling=None returns all tokens, which no head takes. Pass include_top=False, or a pooling.")
    if config.pooling in ("token", "token+gap", "token+dist") and not config.has_class_token:
        raise ValueError(f"pooling={config.pooling!r} needs a class token. Received: class_token={config.class_token}")
    if config.pooling == "token+dist" and (not config.distillation_token or config.representation_size):
        raise ValueError("pooling='token+dist' needs distillation_token=True and no representation_size.")
    check_remat(config)
    if config.stochastic_depth and config.tokens_mlp_dim is not None:
        raise ValueError(f"A Mixer (tokens_mlp_dim) has no stochastic_depth. Received: {config.stochastic_depth}")
    whole = config.rope_theta is not None or config.relative_positions or config.tokens_mlp_dim is not None
    refusing = "rope_theta, relative_positions and a Mixer (tokens_mlp_dim)"
    if config.patch_dropout and whole:
        raise ValueError(f"{refusing} need all patches. Received: patch_dropout={config.patch_dropout}")
    if config.merge_tokens and (whole or config.pooling is None or config.patch_dropout):
        refusing = f"{refusing}, pooling=None and patch_dropout"
        raise ValueError(f"{refusing} need all patches. Received: merge_tokens={config.merge_tokens}")
    if config.dim_head is None and config.hidden_size % config.num_heads and config.tokens_mlp_dim is None:
        sizes = f"hidden_size={config.hidden_size} is not divisible by num_heads={config.num_heads}"
        raise ValueError(f"{sizes}: change one of them, or pass dim_head.")
    if config.rope_theta is not None and config.head_width % 4:
        raise ValueError(f"rope_theta needs heads of a width divisible by 4. Received: num_heads={config.num_heads}")
    if (config.rope_grid or config.rope_offset) and not (config.rope_theta and config.rope_kind.startswith("axial")):
        raise ValueError(
            "rope_grid and rope_offset need rope_theta and rope_kind='axial' or 'axial_xy'. "
            f"Received: rope_theta={config.rope_theta}, rope_kind={config.rope_kind!r}"
        )
    if config.register_positions and not (config.registers and config.position == "learned" and config.position_prefix):
        raise ValueError("register_positions=True needs registers, position='learned' and position_prefix=True.")
    if config.pooling == "map" and config.hidden_size % (heads := config.map_heads or config.num_heads):
        raise ValueError(f"hidden_size={config.hidden_size} is not divisible by map_heads={heads}.")
    if config.tokens_mlp_dim is not None and (config.prefix_tokens or config.position is not None):
        raise ValueError("A Mixer (tokens_mlp_dim) has no tokens but patches, and needs pooling='gap', position=None.")
    if config.image_size is not None:
        check_image_size(config, config.image_size)
    elif config.relative_positions or config.tokens_mlp_dim is not None:
        raise ValueError(
            "image_size=None: a table of relative positions and a Mixer are made for one grid of patches. Pass "
            "image_size; vit_keras.resize makes a model of another size."
        )
    elif config.position == "learned" and config.position_grid is None:
        raise ValueError("image_size=None needs position_grid: patches down and across of the position embeddings.")


def check_image_size(config: ViTConfig, size: tuple[int, int]) -> None:
    """Raise a ValueError unless images of this size are whole patches, or the configuration drops the remainder."""
    if min(config.grid_of(size)) < 1:
        raise ValueError(f"image_size={size} is smaller than one patch of {config.stride} pixels.")
    cells = zip(patch_cells(size, config.resnet), config.patch_size)
    if not config.drop_remainder and any(count % patch for count, patch in cells):
        raise ValueError(not_divisible(size, config.stride))


def stored_activation(activation: Any, *, used: bool = True) -> Any:
    """Return an activation of the head that is not a name, as a file stores it."""
    # Without a head, a function that no file can name becomes "linear" instead of an error.
    from keras import activations  # only a function needs it

    try:
        stored = activations.serialize(activations.get(activation))
        activations.get(stored)
    except (TypeError, ValueError):
        if not used:
            return "linear"
        raise ValueError(
            "activation must be the name of an activation of Keras, or a function that is registered by "
            "@keras.saving.register_keras_serializable(), so that a file can name it. To use a different function, put "
            f"keras.layers.Activation(function) behind the model. Received: {activation!r:.100}"
        ) from None
    return stored

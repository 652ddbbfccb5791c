"""The configuration of a Vision Transformer, as data.

`ViTConfig` describes a model completely: `vit_keras.vit.build(config)` needs nothing else. `vit_keras.variants` has the
table of the published sizes.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ._internal.bounds import patch_cells, patch_stride
from ._internal.validate import check_fields
from .config_checks import check_combination, checked_fields, checked_merging

__all__ = ["ViTConfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """The configuration of a Vision Transformer: everything that its computation depends on except the weights.

    Args:
        image_size: Pixels of the input, `(height, width)` or one integer for a square. With `None`, the model takes
            images of any size, and resamples the positions in the graph from a table of `position_grid`.
        channels: Channels of the input image.
        patch_size: Pixels of a patch, in the same form as `image_size`. In a hybrid, cells of the ResNet's feature map.
        drop_remainder: Whether to cut off the pixels that are left over after whole patches. Otherwise, such an image
            size raises an error.
        resnet: Units in each stage of the ResNet before the patch embedding (a hybrid; paper, section 3.1), or `None`.
        resnet_numerics: Whose weight standardization and group normalization to use: `"google"` or `"timm"`.
        patch_bias: Whether the patch embedding has a bias.
        patch_norm: Whether there are layer normalizations before and after the patch embedding (vit-pytorch).
        class_token: Whether there is a class token. `None` follows the file of weights, or `pooling`.
        distillation_token: Whether there is a second token after the class token (DeiT).
        registers: Number of register tokens after the class token (arXiv 2309.16588).
        position: `"learned"`, `"sincos2d"` (fixed; arXiv 2104.02057) or `None`.
        position_prefix: Whether the class and distillation tokens have position embeddings too.
        register_positions: Whether the registers have position embeddings too.
        position_grid: Patches down and across of the table of positions if `image_size` is `None`.
        rope_theta: Base of rotary position embeddings on the patches (RoPE, arXiv 2104.09864), or `None`.
        rope_kind: Kind of rotary positions: `"centered"` (DINOv3), `"axial"` (EVA-02) or `"axial_xy"` (RoPE-ViT, PE),
            see `vit_keras.positions.rope_sincos`; or `"mixed"`, with learned frequencies (RoPE-Mixed, arXiv
            2403.13298).
        rope_grid: Patches down and across of the grid that axial rotary positions are scaled to, or `None`.
        rope_offset: Number added to rows and columns in axial rotary positions.
        relative_positions: Whether each attention layer has a table of relative positions (BEiT, arXiv 2106.08254).
        num_layers: Number of encoder blocks (the paper's *layers*).
        hidden_size: Width of a token (the paper's *hidden size D*).
        num_heads: Attention heads of a block.
        dim_head: Width of a head; `None` for `hidden_size / num_heads`.
        mlp_dim: Hidden width of the MLP of a block.
        qkv_bias: Whether queries, keys and values have a bias.
        key_bias: Whether keys have a bias; `None` for `qkv_bias`.
        out_bias: Whether the output projection of the attention has a bias.
        attention_norm: Whether there is a layer normalization before this projection (sub-LN, arXiv 2210.06423).
        mlp_norm: Whether there is a layer normalization before the last layer of the MLP.
        mlp_activation: `"gelu_tanh"` (Google's checkpoints were trained with it), `"gelu"` (the exact form, as in
            PyTorch and vit-keras 0.x), `"quick_gelu"` (OpenAI's CLIP), or any Keras activation name.
        gated_mlp: Whether the MLP is gated: `activation(gate(x)) * Dense_0(x)` (SwiGLU, arXiv 2002.05202).
        layer_scale: Initial value of the learned factors on both branches of a block (CaiT, arXiv 2103.17239), or
            `None`.
        epsilon: Added to the variance in every layer normalization.
        pre_norm: Whether there is a layer normalization before the first block (CLIP).
        post_norm: Whether the layer normalizations of a block come after the attention and the MLP instead of before
            them (arXiv 2111.09883).
        final_norm: Whether the last layer normalization is on the `"tokens"`, on the `"pooled"` vector, or left out
            (`None`).
        tokens_mlp_dim: Hidden width of an MLP over the tokens that replaces the attention: an MLP-Mixer (arXiv
            2105.01601), which has no position embeddings.
        merge_tokens: Number of tokens that each block merges into similar tokens, or a tuple with one number for each
            block (ToMe, arXiv 2210.09461); see `vit_keras.merge_tokens`.
        pooling: Input of the head. `"token"` (alias `"cls"`): the class token. `"gap"` (alias `"mean"`): the mean over
            the patches. `"token+gap"`: both, concatenated. `"token+dist"`: the class and the distillation token, each
            with its own head; the output is the mean (DeiT, arXiv 2012.12877, section 4). `"all"`: the mean over all
            tokens. `"map"`: multi-head attention pooling (SigLIP, arXiv 2303.15343). `None`: no pooling; the output is
            all tokens, class token first.
        map_prefix: Whether the attention pooling also sees the tokens before the patches. In timm's ViTs, it does not.
        map_heads: Heads of the attention pooling; `None` for `num_heads`.
        map_mlp_dim: Hidden width of the MLP in the attention pooling; `None` for `mlp_dim`.
        representation_size: Width of the tanh layer before the head (`pre_logits`), or `None`.
        include_top: Whether the model ends in a classification head.
        classes: Number of classes of the head.
        head_bias: Whether the head has a bias.
        activation: Activation of the head: a Keras name such as `"softmax"`.
        dropout: Dropout rate after the attention, after the MLP's activation and after the MLP.
        emb_dropout: Dropout rate after the position embeddings; `None` for `dropout`.
        attention_dropout: Dropout rate on the attention weights.
        stochastic_depth: Rate at which training leaves out the branches of the last block, drawn for each image. The
            rate rises linearly from 0 in the first block (arXiv 1603.09382).
        patch_dropout: Share of the patches that training leaves out, drawn for each image (arXiv 2208.07220).
        remat: Whether training keeps only the inputs of the blocks and computes the rest again in the backward pass.
            Cannot be combined with dropout.
        position_resize: How position embeddings are resampled to a different grid: one of
            `vit_keras.positions.METHODS`.
        patch_resize: How a patch kernel is resampled to a different patch size (FlexiViT's PI-resize), with the same
            choices.
        relative_resize: How relative positions are resampled, with the same choices and also `"geometric"` (BEiT's)
            and `"geometric_linear"` (timm's).
        name: Name of the model.

    Raises:
        ValueError: A value is out of range, or two values contradict each other.

    Example:
        >>> config = ViTConfig(image_size=(224, 448), num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128)
        >>> config.grid
        (14, 28)
    """

    # the image, and how it is cut into patches
    image_size: tuple[int, int] | None = (224, 224)
    channels: int = 3
    patch_size: tuple[int, int] = (16, 16)
    drop_remainder: bool = False
    resnet: tuple[int, ...] | None = None
    resnet_numerics: str = "google"
    patch_bias: bool = True
    patch_norm: bool = False
    # tokens before the patches
    class_token: bool | None = None
    distillation_token: bool = False
    registers: int = 0
    # positions
    position: str | None = "learned"
    position_prefix: bool = True
    register_positions: bool = False
    position_grid: tuple[int, int] | None = None
    rope_theta: float | None = None
    rope_kind: str = "centered"
    rope_grid: tuple[int, int] | None = None
    rope_offset: float = 0.0
    relative_positions: bool = False
    # the blocks
    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    dim_head: int | None = None
    mlp_dim: int = 3072
    qkv_bias: bool = True
    key_bias: bool | None = None
    out_bias: bool = True
    attention_norm: bool = False
    mlp_norm: bool = False
    mlp_activation: str = "gelu_tanh"
    gated_mlp: bool = False
    layer_scale: float | None = None
    epsilon: float = 1e-6
    pre_norm: bool = False
    post_norm: bool = False
    final_norm: str | None = "tokens"
    tokens_mlp_dim: int | None = None
    merge_tokens: int | tuple[int, ...] = 0
    # what comes out
    pooling: str | None = "token"
    map_prefix: bool = True
    map_heads: int | None = None
    map_mlp_dim: int | None = None
    representation_size: int | None = None
    include_top: bool = True
    classes: int = 1000
    head_bias: bool = True
    activation: Any = "linear"
    # training
    dropout: float = 0.0
    emb_dropout: float | None = None
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0
    patch_dropout: float = 0.0
    remat: bool = False
    # how this family's arrays are resampled to other sizes
    position_resize: str = "bilinear_align_corners"
    patch_resize: str = "bilinear"
    relative_resize: str = "bilinear"

    name: str = "vit"

    def __post_init__(self) -> None:
        for field, value in checked_fields(self).items():
            object.__setattr__(self, field, value)
        object.__setattr__(self, "merge_tokens", checked_merging(self))
        check_combination(self)
        if self.image_size is not None:
            object.__setattr__(self, "position_grid", None)

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels of the image between two patches, down and across."""
        return patch_stride(self.patch_size, self.resnet)

    def grid_of(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the patch grid of an image of this size."""
        height, width = self.cells(image_size)
        return height // self.patch_size[0], width // self.patch_size[1]

    def cells(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the size of the patch embedding's input: pixels, or for a hybrid cells of the ResNet's output."""
        return patch_cells(image_size, self.resnet)

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
    def relative_grid(self) -> tuple[int, int] | None:
        """Patches down and across of the table of relative positions, or `None` if there is no such table."""
        return self.grid if self.relative_positions else None

    @property
    def rope_interleaved(self) -> bool:
        """Whether rotary positions rotate neighboring channels of a head instead of its two halves."""
        return self.rope_kind != "centered"

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

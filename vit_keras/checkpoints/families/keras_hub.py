"""KerasHub's files: the weights of a backbone or a classifier, of a preset, and of a whole saved model."""

from __future__ import annotations

from typing import Any

from .keras_files import DENSE, KERAS, NORM, SIDE_BY_SIDE, TOP, variables
from .rules import AS_IS, ATTENTION, BLOCK, FROM_HEADS, HEADS, MLP, POSITIONS, TABLE, Family, Rule, array, axes

_QKV = ("query", "key", "value")


def _attention(source: str, target: str) -> tuple[Rule, ...]:
    """Return the rules for Keras' `MultiHeadAttention`."""
    return (
        *(
            rule
            for name in _QKV
            for rule in variables(f"{source}/{name}_dense", f"{target}/{name}", *DENSE, ops=(HEADS, HEADS))
        ),
        *variables(f"{source}/output_dense", f"{target}/out", *DENSE, ops=(FROM_HEADS, AS_IS)),
    )


def _block(source: str, norms: tuple[str, str], attention: str, mlp: tuple[str, str]) -> tuple[Rule, ...]:
    return (
        *variables(f"{source}/{norms[0]}", f"{BLOCK}/LayerNorm_0", *NORM),
        *_attention(f"{source}/{attention}", ATTENTION),
        *variables(f"{source}/{norms[1]}", f"{BLOCK}/LayerNorm_2", *NORM),
        *variables(f"{source}/{mlp[0]}", f"{MLP}/Dense_0", *DENSE),
        *variables(f"{source}/{mlp[1]}", f"{MLP}/Dense_1", *DENSE),
    )


_PATCHES, _ENCODER = "layers/vi_t_patching_and_embedding", "layers/vi_t_encoder"

KERAS_HUB = Family(
    name="keras-hub",
    title="KerasHub's ViTBackbone and ViTImageClassifier",
    detect=(f"{_PATCHES}/patch_embedding/vars/0", f"{_ENCODER}/layer_norm/vars/0"),
    rules=(
        *variables(f"{_PATCHES}/patch_embedding", "embedding", *DENSE),
        *array(f"{_PATCHES}/vars/0", "cls"),
        *array(f"{_PATCHES}/position_embedding/vars/0", POSITIONS, op=TABLE),
        *_block(
            f"{_ENCODER}/encoder_layers/vi_t_encoder_block_{{i}}",
            ("layer_norm_1", "layer_norm_2"),
            "mha",
            ("mlp/dense_1", "mlp/dense_2"),
        ),
        *variables(f"{_ENCODER}/layer_norm", "Transformer/encoder_norm", *NORM),
    ),
    outer=TOP,
    ignored=KERAS.ignored,
    config={"mlp_activation": "gelu", "position_prefix": True},
    suffix=None,
)

_DEIT, _DEIT_ENCODER = "layers/dei_t_embeddings", "layers/dei_t_encoder"

KERAS_HUB_DEIT = Family(
    name="keras-hub-deit",
    title="KerasHub's DeiTBackbone and DeiTImageClassifier",
    detect=(f"{_DEIT}/patch_embedding/vars/0", f"{_DEIT_ENCODER}/layer_norm/vars/0"),
    rules=(
        *variables(f"{_DEIT}/patch_embedding", "embedding", *DENSE),
        *array(f"{_DEIT}/vars/0", "cls"),
        *array(f"{_DEIT}/vars/1", "dist"),
        *array(f"{_DEIT}/vars/2", POSITIONS),
        *_block(
            f"{_DEIT_ENCODER}/encoder_layers/dei_t_encoder_block_{{i}}",
            ("layer_norm_1", "layer_norm_2"),
            "mha",
            ("mlp/dense_0", "output_layer/dense_0"),
        ),
        *variables(f"{_DEIT_ENCODER}/layer_norm", "Transformer/encoder_norm", *NORM),
    ),
    outer=TOP,
    ignored=KERAS.ignored,
    config={"mlp_activation": "gelu", "position_prefix": True, "position_resize": "bicubic"},
    preprocessing="imagenet",
    suffix=None,
)

_DINO = "layers/dinov2_embedding"
_DINO_BLOCK = "layers/dinov2_encoder/layers/dinov2_layer_{i}"


def _tables(first: int) -> Any:
    """Return the condition that the tables of positions are these two variables."""
    # The model computes with the first. The second is resampled to it when KerasHub loads the file.
    after = f"{_DINO}/vars/{first + 2}"
    return lambda shape_of: bool(shape_of(f"{_DINO}/vars/{first + 1}")) and shape_of(after) is None


KERAS_HUB_DINOV2 = Family(
    name="keras-hub-dinov2",
    title="KerasHub's DINOV2Backbone",
    detect=(f"{_DINO}/patch_embeddings/projection/vars/0", "layers/dinov2_encoder/layers/dinov2_layer_0/norm1/vars/0"),
    rules=(
        *variables(f"{_DINO}/patch_embeddings/projection", "embedding", *DENSE),
        *array(f"{_DINO}/vars/0", "cls"),
        *(
            rule
            for first in (1, 2, 3)  # behind a token for masked patches and registers, if there are any
            for rule in (
                *array(f"{_DINO}/vars/{first}", POSITIONS, when=_tables(first)),
                *array(f"{_DINO}/vars/{first + 1}", when=_tables(first)),
            )
        ),
        *array(f"{_DINO}/vars/1", when=axes(f"{_DINO}/vars/1", 2)),  # for masked patches
        *array(f"{_DINO}/vars/1", "registers"),
        *array(f"{_DINO}/vars/2", "registers"),
        *_block(_DINO_BLOCK, ("norm1", "norm2"), "attention/attention", ("mlp/fc1", "mlp/fc2")),
        *(
            Rule(
                f"{_DINO_BLOCK}/mlp/weights_in/vars/{n}",
                (f"{MLP}/Gate/{leaf}", f"{MLP}/Dense_0/{leaf}"),
                SIDE_BY_SIDE,
                implied={"mlp_activation": "silu"},
            )
            for n, leaf in enumerate(DENSE)
        ),
        *variables(f"{_DINO_BLOCK}/mlp/weights_out", f"{MLP}/Dense_1", *DENSE),
        *array(f"{_DINO_BLOCK}/layer_scale1/vars/0", f"{BLOCK}/LayerScale_0/scale"),
        *array(f"{_DINO_BLOCK}/layer_scale2/vars/0", f"{BLOCK}/LayerScale_1/scale"),
        *variables("layers/layer_normalization_0", "Transformer/encoder_norm", *NORM),
    ),
    ignored=KERAS.ignored,
    config={"mlp_activation": "gelu", "position_prefix": True, "position_resize": "bicubic"},
    preprocessing="dinov2",
    suffix=None,
)

_SIGLIP, _POOL = "layers/sig_lip_vision_embedding", "layers/sig_lip_multi_head_attention_pooling"

KERAS_HUB_SIGLIP = Family(
    name="keras-hub-siglip",
    title="KerasHub's SigLIPVisionEncoder, alone or in a SigLIPBackbone",
    detect=(f"{_SIGLIP}/patch_embedding/vars/0", f"{_POOL}/vars/0"),
    rules=(
        *variables(f"{_SIGLIP}/patch_embedding", "embedding", *DENSE),
        *array(f"{_SIGLIP}/position_embedding/vars/0", POSITIONS, op=TABLE),
        *array(f"{_SIGLIP}/vars/0"),  # the numbers of the positions
        *_block(
            "layers/sig_lip_encoder_layer_{i}", ("layer_norm1", "layer_norm2"), "self_attn", ("mlp/fc1", "mlp/fc2")
        ),
        *variables("layers/layer_normalization_0", "Transformer/encoder_norm", *NORM),
        *array(f"{_POOL}/vars/0", "MAPHead_0/probe"),
        *_attention(f"{_POOL}/attention", "MAPHead_0/MultiHeadDotProductAttention_0"),
        *variables(f"{_POOL}/layer_norm", "MAPHead_0/LayerNorm_0", *NORM),
        *variables(f"{_POOL}/mlp/fc1", "MAPHead_0/MlpBlock_0/Dense_0", *DENSE),
        *variables(f"{_POOL}/mlp/fc2", "MAPHead_0/MlpBlock_0/Dense_1", *DENSE),
    ),
    ignored=(*KERAS.ignored, "layers/sig_lip_text_encoder/*", "layers/sig_lip_head/*"),
    config={"mlp_activation": "gelu_tanh", "position_prefix": False, "position_resize": "bicubic"},
    preprocessing="siglip",
    suffix=None,
)

FAMILIES = (KERAS_HUB, KERAS_HUB_DEIT, KERAS_HUB_DINOV2, KERAS_HUB_SIGLIP)

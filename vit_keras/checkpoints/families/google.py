"""Google's files: the original ViT, AugReg, SAM, LiT, hybrids, MLP-Mixer, and big_vision with SigLIP and FlexiViT.

The canonical names are those of the published .npz files of google-research/vision_transformer, which carry the module
numbers of pre-Linen Flax; files that later versions of the code save, and big_vision's, carry Linen's.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .rules import AS_IS, ATTENTION, BLOCK, CHANNELS, FROM_HEADS, HEADS, MLP, POSITIONS, Family, Op, Rule, array, axes


def _dense(source: str, target: str, op: Op = AS_IS, **options) -> tuple[Rule, ...]:
    return array(f"{source}/kernel", f"{target}/kernel", op=op, **options) + array(
        f"{source}/bias", f"{target}/bias", **options
    )


def _attention(source: str, target: str, **options) -> tuple[Rule, ...]:
    rules = _dense(f"{source}/out", f"{target}/out", FROM_HEADS, **options)
    for name in ("query", "key", "value"):
        for leaf in ("kernel", "bias"):
            rules += array(f"{source}/{name}/{leaf}", f"{target}/{name}/{leaf}", op=HEADS, **options)
    return rules


def _norm(source: str, target: str, **options) -> tuple[Rule, ...]:
    return array(f"{source}/scale", f"{target}/scale", **options) + array(f"{source}/bias", f"{target}/bias", **options)


def _block(source: str, attention: str, norm: str, mlp: str, **options) -> tuple[Rule, ...]:
    return (
        *_norm(f"{source}/LayerNorm_0", f"{BLOCK}/LayerNorm_0", **options),
        *_attention(f"{source}/{attention}", ATTENTION, **options),
        *_norm(f"{source}/{norm}", f"{BLOCK}/LayerNorm_2", **options),
        *_dense(f"{source}/{mlp}/Dense_0", f"{MLP}/Dense_0", **options),
        *_dense(f"{source}/{mlp}/Dense_1", f"{MLP}/Dense_1", **options),
    )


# Flax's layers all have biases.
_FLAX: dict[str, tuple[Any, ...]] = dict.fromkeys(
    ("patch_bias", "qkv_bias", "key_bias", "out_bias", "head_bias"), (True,)
)
_LINEN = ("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_PATCHES_AND_TOP = (
    *_dense("embedding", "embedding"),
    *array("cls", "cls"),
    *_norm("Transformer/encoder_norm", "Transformer/encoder_norm"),
    *_dense("pre_logits", "pre_logits"),
    *_dense("head", "head"),
)


def _group_norm(source: str) -> tuple[Rule, ...]:
    rules = ()
    for leaf in ("scale", "bias"):
        name = f"{source}/{leaf}"
        rules += array(name, name, op=CHANNELS, when=axes(name.replace("{s}", "1").replace("{u}", "1"), 4))
        rules += array(name, name)
    return rules


_RESNET = (
    *array("conv_root/kernel", "conv_root/kernel"),
    *_group_norm("gn_root"),
    *(
        rule
        for conv, norm in (("conv1", "gn1"), ("conv2", "gn2"), ("conv3", "gn3"), ("conv_proj", "gn_proj"))
        for rule in (
            *array(f"block{{s}}/unit{{u}}/{conv}/kernel", f"block{{s}}/unit{{u}}/{conv}/kernel"),
            *_group_norm(f"block{{s}}/unit{{u}}/{norm}"),
        )
    ),
)

GOOGLE = Family(
    name="google",
    title="Google's ViT, AugReg and SAM, and hybrids of a ResNet and a ViT (google-research/vision_transformer)",
    detect=("embedding/kernel", POSITIONS),
    rules=(
        *_PATCHES_AND_TOP,
        *array(POSITIONS, POSITIONS),
        *_block(BLOCK, "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"),
        *_block(BLOCK, *_LINEN),
        *_RESNET,
    ),
    ignored=("opt/*", "state/*", "step", "optimizer/*"),
    config={"position_resize": "bilinear_align_corners", "position_prefix": True},
    format="google",
    suffix=".npz",
    only=_FLAX,
)

_MAP = (
    *array("MAPHead_0/probe", "MAPHead_0/probe"),
    *_attention("MAPHead_0/MultiHeadDotProductAttention_0", "MAPHead_0/MultiHeadDotProductAttention_0"),
    *_norm("MAPHead_0/LayerNorm_0", "MAPHead_0/LayerNorm_0"),
    *_dense("MAPHead_0/MlpBlock_0/Dense_0", "MAPHead_0/MlpBlock_0/Dense_0"),
    *_dense("MAPHead_0/MlpBlock_0/Dense_1", "MAPHead_0/MlpBlock_0/Dense_1"),
)

BIG_VISION = Family(
    name="big_vision",
    title="big_vision's ViT, SigLIP and LiT's image tower (google-research/big_vision)",
    detect=(
        "embedding/kernel",
        "Transformer/encoderblock/LayerNorm_0/scale|Transformer/encoderblock_0/LayerNorm_0/scale",
    ),
    absent=(POSITIONS, "Transformer/encoderblock_0/LayerNorm_2/scale"),
    written_prefix="params/",
    rules=(
        *_PATCHES_AND_TOP,
        *array("pos_embedding", POSITIONS),
        *_block(BLOCK, *_LINEN),
        *_block("Transformer/encoderblock", *_LINEN, stacked=True),
        *_MAP,
    ),
    ignored=("opt/*", "params/txt/*", "txt/*", "params/t", "params/b", "t", "b", "chrono/*", "step"),
    config={"position_resize": "bilinear_align_corners", "position_prefix": False},
    format="google",
    suffix=".npz",
    only={**_FLAX, "position": ("learned", "sincos2d")},
)

TEXT_TOWER = (  # SigLIP's, in the same files
    *array("Embed_0/embedding", "embedding/embeddings"),
    *array("pos_embedding", POSITIONS),
    *_block("Encoder_0/encoderblock_{i}", *_LINEN),
    *_block("Encoder_0/encoderblock", *_LINEN, stacked=True),
    *_norm("Encoder_0/encoder_norm", "Transformer/encoder_norm"),
    *_dense("head", "head"),
)

# Its files look like those of an ordinary ViT with patches of 32 pixels.
FLEXIVIT = dataclasses.replace(
    BIG_VISION,
    name="flexivit",
    title="FlexiViT, for patches of any size (google-research/big_vision)",
    by_name_only=True,
    config={**BIG_VISION.config, "position_resize": "bilinear_antialias", "patch_resize": "bilinear"},
    format=None,
    only=_FLAX,
)

MIXER = Family(
    name="mixer",
    title="Google's MLP-Mixer (google-research/vision_transformer)",
    detect=("stem/kernel", "MixerBlock_0/LayerNorm_0/scale"),
    rules=(
        *_dense("stem", "embedding"),
        *(
            rule
            for name, make in (
                ("LayerNorm_0", _norm),
                ("LayerNorm_1", _norm),
                ("token_mixing/Dense_0", _dense),
                ("token_mixing/Dense_1", _dense),
                ("channel_mixing/Dense_0", _dense),
                ("channel_mixing/Dense_1", _dense),
            )
            for rule in make(f"MixerBlock_{{i}}/{name}", f"{BLOCK}/{name}")
        ),
        *_norm("pre_head_layer_norm", "Transformer/encoder_norm"),
        *_dense("head", "head"),
    ),
    ignored=("opt/*",),
    format="google",
    suffix=".npz",
    only={field: _FLAX[field] for field in ("patch_bias", "head_bias")},
)

FAMILIES = (GOOGLE, BIG_VISION, FLEXIVIT, MIXER)

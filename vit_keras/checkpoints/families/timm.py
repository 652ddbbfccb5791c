"""timm's names, which DeiT, DINO, MAE, BEiT, DINOv2 and DINOv3 share (huggingface/pytorch-image-models and
facebookresearch).

The families differ in the names listed below. A file with none of these is read as timm's own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .rules import ATTENTION, BLOCK, LINEAR, MLP, POSITIONS, TOKENS, Family, Rule, array, conv, linear, norm, packed

_QKV = (f"{ATTENTION}/query", f"{ATTENTION}/key", f"{ATTENTION}/value")
_QKV_BIAS = (f"{ATTENTION}/query/bias", None, f"{ATTENTION}/value/bias")
_IS_PACKED = packed("blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc2.weight")
_MAP_ATTENTION = "MAPHead_0/MultiHeadDotProductAttention_0"

_BACKBONE = (
    *conv("patch_embed.proj", "embedding"),
    *array("cls_token", "cls", op=TOKENS),
    *array("dist_token", "dist", op=TOKENS),
    *array("reg_token", "registers", op=TOKENS),
    *array("pos_embed", POSITIONS, op=TOKENS),
    *norm("norm_pre", "Transformer/norm_pre"),
    *norm("blocks.{i}.norm1", f"{BLOCK}/LayerNorm_0"),
    *linear("blocks.{i}.attn.qkv", *_QKV),
    *array("blocks.{i}.attn.q_bias", f"{ATTENTION}/query/bias"),
    *array("blocks.{i}.attn.v_bias", f"{ATTENTION}/value/bias"),
    *array("blocks.{i}.attn.relative_position_bias_table", f"{ATTENTION}/relative_position_bias"),
    *norm("blocks.{i}.attn.norm", f"{ATTENTION}/norm"),
    *linear("blocks.{i}.attn.proj", f"{ATTENTION}/out"),
    *array("blocks.{i}.ls1.gamma", f"{BLOCK}/LayerScale_0/scale"),
    *norm("blocks.{i}.norm2", f"{BLOCK}/LayerNorm_2"),
    *linear("blocks.{i}.mlp.fc1", f"{MLP}/Gate", f"{MLP}/Dense_0", when=_IS_PACKED),
    *linear("blocks.{i}.mlp.fc1", f"{MLP}/Dense_0"),
    *norm("blocks.{i}.mlp.norm", f"{MLP}/norm"),
    *linear("blocks.{i}.mlp.fc2", f"{MLP}/Dense_1"),
    *array("blocks.{i}.ls2.gamma", f"{BLOCK}/LayerScale_1/scale"),
    *norm("norm", "Transformer/encoder_norm"),
    *norm("fc_norm", "fc_norm"),
    *linear("head", "head"),
    *linear("head_dist", "head_dist"),
)
_ALSO = (  # other spellings of the same weights, in the originals' files
    *array("blocks.{i}.gamma_1", f"{BLOCK}/LayerScale_0/scale"),
    *array("blocks.{i}.gamma_2", f"{BLOCK}/LayerScale_1/scale"),
    *array("rel_pos_bias.relative_position_bias_table", f"{ATTENTION}/relative_position_bias", shared=True),
    *array("register_tokens", "registers", op=TOKENS, implied={"position_resize": "bicubic_antialias"}),
    *array("storage_tokens", "registers", op=TOKENS),
    *linear("blocks.{i}.mlp.w12", f"{MLP}/Gate", f"{MLP}/Dense_0"),
    *linear("blocks.{i}.mlp.w1", f"{MLP}/Gate"),
    *linear("blocks.{i}.mlp.w2", f"{MLP}/Dense_0"),
    *linear("blocks.{i}.mlp.w3", f"{MLP}/Dense_1", requires=f"{MLP}/Gate/kernel"),
    *linear("blocks.{i}.mlp.fc1_g", f"{MLP}/Gate"),
    *linear("blocks.{i}.mlp.fc1_x", f"{MLP}/Dense_0", requires=f"{MLP}/Gate/kernel"),
    *norm("blocks.{i}.mlp.ffn_ln", f"{MLP}/norm"),
    *norm("blocks.{i}.attn.inner_attn_ln", f"{ATTENTION}/norm"),
    *(rule for part in _QKV for rule in linear(f"blocks.{{i}}.attn.{part.rpartition('/')[2][0]}_proj", part)),
)
_MAP = (
    *array("attn_pool.latent", "MAPHead_0/probe", op=TOKENS),
    *linear("attn_pool.q", f"{_MAP_ATTENTION}/query"),
    *linear("attn_pool.kv", f"{_MAP_ATTENTION}/key", f"{_MAP_ATTENTION}/value"),
    *linear("attn_pool.proj", f"{_MAP_ATTENTION}/out"),
    *norm("attn_pool.norm", "MAPHead_0/LayerNorm_0"),
    *linear("attn_pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
    *linear("attn_pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
)
_STEM = "patch_embed.backbone"
_UNIT = f"{_STEM}.stages.{{s}}.blocks.{{u}}"
_FIRST_UNIT = "block1/unit1/conv1/kernel"
_RESNET = (
    *conv(f"{_STEM}.stem.conv", "conv_root", requires=_FIRST_UNIT),
    *norm(f"{_STEM}.stem.norm", "gn_root", requires=_FIRST_UNIT),
    *conv(f"{_STEM}.conv", "conv_root"),
    *norm(f"{_STEM}.norm", "gn_root"),
    *(rule for n in "123" for rule in conv(f"{_UNIT}.conv{n}", f"block{{s+1}}/unit{{u+1}}/conv{n}")),
    *(rule for n in "123" for rule in norm(f"{_UNIT}.norm{n}", f"block{{s+1}}/unit{{u+1}}/gn{n}")),
    *conv(f"{_UNIT}.downsample.conv", "block{s+1}/unit{u+1}/conv_proj"),
    *norm(f"{_UNIT}.downsample.norm", "block{s+1}/unit{u+1}/gn_proj"),
)
_WIDTHS = {width: width // 64 for width in (192, 256, 320, 384, 512, 640, 768, 832, 896, 1024, 1536)}
_WIDTHS |= dict.fromkeys((1152, 1280, 1408, 1664, 1792), 16)
PYTORCH = {"mlp_activation": "gelu", "position_resize": "bicubic_antialias", "patch_resize": "bicubic_antialias"}
PYTORCH |= {"map_prefix": False}
_ALL_POOLED = {**PYTORCH, "map_prefix": True}  # timm's `Eva` pools all tokens by attention

TIMM = Family(
    name="timm",
    title="timm's ViT, DeiT and DeiT-III, and hybrids of a ResNet and a ViT",
    detect=(
        "patch_embed.proj.weight",
        "blocks.0.norm1.weight",
        "blocks.0.mlp.fc1.weight|blocks.0.mlp.w12.weight",
        "pos_embed",
    ),
    rules=(*_BACKBONE, *_ALSO, *_MAP, *_RESNET),
    ignored=("mask_token", "*.attn.relative_position_index", "*num_batches_tracked"),
    config={**PYTORCH, "resnet_numerics": "timm"},
    heads=_WIDTHS,
    preprocessing="timm",
    format="timm",
    only={"post_norm": (False, True)},
    excludes=(("registers", "position_prefix"),),
)


def _first(*sources: str) -> tuple[Rule, ...]:
    """Return the rules of `TIMM`, first those for names that begin with `sources`, which a family's own files have."""
    return tuple(sorted(TIMM.rules, key=lambda rule: not rule.source.startswith(sources)))


_GAMMAS = ("blocks.{i}.gamma_",)


def _like_timm(
    name: str, title: str, config: dict[Any, Any] | None = None, ignored: tuple[Any, ...] = (), **fields
) -> Family:
    own = {
        "config": {**PYTORCH, **(config or {})},
        "ignored": TIMM.ignored + ignored,
        "format": None,
        "excludes": (),
        "only": {},
    }
    return dataclasses.replace(TIMM, name=name, title=title, **{**own, **fields})


_CLASS_ROW = {"position_prefix": True}  # in the authors' own code; timm's models may be without

DEIT = _like_timm("deit", "DeiT (facebookresearch/deit)", _CLASS_ROW, by_name_only=True, preprocessing="imagenet")
DEIT_DISTILLED = _like_timm(
    "deit-distilled",
    "distilled DeiT, with two heads (facebookresearch/deit)",
    {"pooling": "token+dist", **_CLASS_ROW},
    marks=("dist_token",),
    preprocessing="imagenet",
)
DEIT3 = _like_timm(
    "deit3",
    "DeiT-III (facebookresearch/deit)",
    marks=("blocks.0.gamma_1",),
    rules=_first(*_GAMMAS),
    preprocessing="imagenet",
)
DINO = _like_timm(
    "dino",
    "DINO (facebookresearch/dino)",
    {"position_resize": "bicubic_dino", **_CLASS_ROW},
    ("head.*", "backbone.fc.*"),
    marks=("head.last_layer.weight_v|head.last_layer.weight",),
    preprocessing="imagenet",
)
MAE = _like_timm(
    "mae",
    "MAE, with its decoder left out (facebookresearch/mae)",
    _CLASS_ROW,
    ignored=("decoder_*",),
    marks=("decoder_embed.weight",),
    preprocessing="imagenet",
)
DINOV2 = _like_timm(
    "dinov2",
    "DINOv2, with and without registers (facebookresearch/dinov2)",
    {"position_resize": "bicubic_dino", **_CLASS_ROW},
    marks=("mask_token", "blocks.0.ls1.gamma"),
    others=("dino_head.*", "ibot_head.*"),
    rules=_first("register_tokens", "blocks.{i}.mlp.w12.", "blocks.{i}.mlp.w3."),
    preprocessing="dinov2",
)
CLIP = _like_timm(
    "timm-clip",
    "timm's CLIP image towers",
    {"epsilon": 1e-5},
    marks=("norm_pre.weight", "norm.weight"),
    choices={"mlp_activation": ("quick_gelu", "gelu")},
    preprocessing="clip",
    excludes=TIMM.excludes,
)
SIGLIP = _like_timm(
    "timm-siglip",
    "timm's SigLIP image towers with attention pooling",
    marks=("attn_pool.latent",),
    ignored=("text.*", "logit_scale", "logit_bias"),
    choices={"mlp_activation": ("gelu_tanh", "gelu")},
    heads={**_WIDTHS, 1536: 16},
    preprocessing="siglip",
    excludes=TIMM.excludes,
)
BEIT = dataclasses.replace(
    TIMM,
    name="beit",
    title="BEiT and BEiT v2 (microsoft/unilm)",
    detect=(
        "patch_embed.proj.weight",
        "blocks.0.attn.relative_position_bias_table|rel_pos_bias.relative_position_bias_table",
    ),
    marks=("blocks.0.attn.relative_position_index|rel_pos_bias.relative_position_index",),
    rules=_first(*_GAMMAS),
    ignored=(*TIMM.ignored, "rel_pos_bias.relative_position_index", "lm_head.*"),
    config={**PYTORCH, "relative_resize": "geometric"},
    preprocessing="beit",
    format=None,
    only={},
    excludes=(),
)
TIMM_BEIT = dataclasses.replace(
    BEIT,
    name="timm-beit",
    title="timm's BEiT and BEiT v2",
    marks=(),
    config={**PYTORCH, "relative_resize": "geometric_linear"},
    format="timm",
)
DINOV3 = dataclasses.replace(
    TIMM,
    name="dinov3",
    title="DINOv3 (facebookresearch/dinov3, timm)",
    detect=("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "cls_token", "reg_token|storage_tokens"),
    marks=("blocks.0.gamma_1|blocks.0.ls1.gamma",),
    absent=("pos_embed", *BEIT.detect[1].split("|")),
    rules=(
        *array(
            "blocks.{i}.attn.qkv.bias",
            *_QKV_BIAS,
            op=LINEAR,
            when=lambda shape_of: bool(shape_of("blocks.0.attn.qkv.bias_mask") or shape_of("storage_tokens")),
        ),
        *(
            dataclasses.replace(rule, implied={"pooling": "token"}) if rule.source == "storage_tokens" else rule
            for rule in _first(*_GAMMAS, "blocks.{i}.mlp.fc1_")  # timm's models have the mean
        ),
    ),
    ignored=("mask_token", "*.attn.qkv.bias_mask", "rope_embed.periods", "rope.*", "local_cls_norm.*", "*.attn.k_bias"),
    config={**_ALL_POOLED, "epsilon": 1e-5, "rope_theta": 100.0},
    heads={**_WIDTHS, 1280: 20, 1536: 24, 4096: 32},
    preprocessing="imagenet",
    only={},
    excludes=(),
)
MIXER = Family(
    name="timm-mixer",
    title="timm's MLP-Mixer",
    detect=("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight"),
    rules=(
        *conv("stem.proj", "embedding"),
        *norm("blocks.{i}.norm1", f"{BLOCK}/LayerNorm_0"),
        *linear("blocks.{i}.mlp_tokens.fc1", f"{BLOCK}/token_mixing/Dense_0"),
        *linear("blocks.{i}.mlp_tokens.fc2", f"{BLOCK}/token_mixing/Dense_1"),
        *norm("blocks.{i}.norm2", f"{BLOCK}/LayerNorm_1"),
        *linear("blocks.{i}.mlp_channels.fc1", f"{BLOCK}/channel_mixing/Dense_0"),
        *linear("blocks.{i}.mlp_channels.fc2", f"{BLOCK}/channel_mixing/Dense_1"),
        *norm("norm", "Transformer/encoder_norm"),
        *linear("head", "head"),
    ),
    config=PYTORCH,
    preprocessing="timm-mixer",
    format="timm",
)

# timm's ViTs with rotary positions, and their relatives without
_TABLES = tuple(BEIT.detect[1].split("|"))
_EVA_ROPE = {"rope_theta": 10000.0, "rope_kind": "axial", "rope_grid": (16, 16)}


def _eva(name: str, title: str, *own: str, **fields) -> Family:
    """Return a family of EVA's, in which the models with a gated MLP have rotary positions."""
    gated = (f"{MLP}/Gate/kernel",)
    return dataclasses.replace(
        TIMM,
        name=name,
        title=title,
        detect=("patch_embed.proj.weight", "pos_embed", "blocks.0.norm1.weight", "blocks.0.norm2.weight"),
        absent=_TABLES,
        rules=tuple(
            dataclasses.replace(rule, implied=_EVA_ROPE) if rule.targets[:1] == gated else rule for rule in _first(*own)
        ),
        ignored=(*TIMM.ignored, "rope.*"),
        only={
            "rope_theta": (None, 10000.0),
            "rope_kind": ("axial",),
            "rope_grid": ((16, 16),),
            "post_norm": (False, True),
        },
        config={**_ALL_POOLED, "resnet_numerics": "timm"},
        preprocessing="clip",
        **fields,
    )


EVA = _eva("eva", "timm's EVA, and EVA-02 of the smaller sizes", "-", marks=("blocks.0.attn.q_bias",))
EVA02 = _eva(
    "eva02",
    "EVA-02 of the larger sizes, with three arrays for query, key and value (baaivision, timm)",
    "blocks.{i}.attn.q_proj.",
    "blocks.{i}.attn.k_proj.",
    "blocks.{i}.attn.v_proj.",
    "blocks.{i}.mlp.fc1_",
    marks=("blocks.0.attn.q_proj.weight",),
)
ROPE_REGISTERS = dataclasses.replace(
    TIMM,
    name="timm-rope",
    title="timm's ViTs with registers, rotary positions and no class token",
    detect=("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
    marks=("reg_token", "blocks.0.gamma_1"),
    absent=("pos_embed", "cls_token", *_TABLES),
    rules=_first(*_GAMMAS),
    config={**_ALL_POOLED, **_EVA_ROPE},
    only={"rope_grid": ((16, 16),)},
)
ROPE_VIT = dataclasses.replace(
    ROPE_REGISTERS,
    name="rope-vit",
    title="RoPE-ViT, axial and mixed (naver-ai, timm)",
    detect=("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "cls_token"),
    marks=("blocks.0.gamma_1",),
    absent=("reg_token", "storage_tokens", "norm_pre.weight", *_TABLES),
    rules=(
        *array("rope.freqs", "rotary_positions/frequencies", implied={"rope_kind": "mixed", "rope_theta": 10.0}),
        *ROPE_REGISTERS.rules,
    ),
    config={**_ALL_POOLED, "rope_theta": 100.0, "rope_kind": "axial_xy"},
    only={"position": (None, "learned"), "rope_kind": ("axial_xy", "mixed")},
    preprocessing="imagenet",
)
PE = dataclasses.replace(
    TIMM,
    name="timm-pe",
    title="timm's Perception Encoder with attention pooling (PE-Core)",
    detect=(
        *("patch_embed.proj.weight", "blocks.0.norm2.weight", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj.weight"),
        *("pos_embed", "norm_pre.weight", "norm.weight"),
    ),
    marks=("attn_pool.latent",),
    rules=_first(*_GAMMAS),
    choices={"rope_grid": ((14, 14), (24, 24), (32, 32))},
    config={
        **_ALL_POOLED,
        "epsilon": 1e-5,
        "rope_theta": 10000.0,
        "rope_kind": "axial_xy",
        "rope_offset": 1.0,
        "map_heads": 8,
    },
    only={"position": ("learned",), "map_heads": (8,)},
    heads={**_WIDTHS, 1536: 16},
    preprocessing="siglip",
)
LAST_NORMS = ("norm.weight", "norm.bias", "fc_norm.weight", "fc_norm.bias")
PE_SPATIAL = dataclasses.replace(
    PE,
    name="timm-pe-spatial",
    title="timm's Perception Encoder without a last norm (PE-Lang, PE-Spatial)",
    detect=PE.detect[:-1],
    marks=(),
    absent=(*LAST_NORMS, "attn_pool.latent"),
    config={**PE.config, "pooling": "gap", "final_norm": None},
    only={"position": ("learned",)},
)
UNNORMED = dataclasses.replace(
    TIMM,
    name="timm-unnormed",
    title="timm's RADIO and InternViT, which have no last norm",
    marks=("reg_token|blocks.0.ls1.gamma",),
    absent=(*LAST_NORMS, "norm_pre.weight"),
    config={**PYTORCH, "final_norm": None},
    only={},
    preprocessing="imagenet",
)
SAM = dataclasses.replace(
    TIMM,
    name="sam-encoder",
    title="the image encoder of Segment Anything",
    detect=("patch_embed.proj.weight", "blocks.0.attn.rel_pos_h", "neck.0.weight"),
    ignored=(*TIMM.ignored, "*.attn.rel_pos_*", "neck.*"),
    refused="Segment Anything's encoder attends in windows, which this version cannot build",
    format=None,
)

FAMILIES = (
    TIMM_BEIT,
    TIMM,
    DEIT,
    DEIT_DISTILLED,
    DEIT3,
    DINO,
    MAE,
    DINOV2,
    CLIP,
    SIGLIP,
    BEIT,
    DINOV3,
    EVA,
    EVA02,
    ROPE_REGISTERS,
    ROPE_VIT,
    PE,
    PE_SPATIAL,
    UNNORMED,
    SAM,
    MIXER,
)

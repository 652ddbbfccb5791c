"""Hugging Face's names of Vision Transformers (huggingface/transformers), as its files have them.

Version 5 renamed the modules in memory but not on disk. A saved `state_dict()` has the new names; they are read too.
"""

from __future__ import annotations

import dataclasses

from .patches import PATCH_LINEAR
from .rules import (
    ATTENTION,
    BLOCK,
    CONV,
    MLP,
    POSITIONS,
    TABLE,
    TOKENS,
    VECTOR,
    Family,
    Rule,
    array,
    axes,
    conv,
    joined,
    linear,
    norm,
)

_QKV = (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))


def _old_attention(block: str) -> tuple[Rule, ...]:
    inner = f"{block}.attention.attention"
    return (
        *(rule for name, _ in _QKV for rule in linear(f"{inner}.{name}", f"{ATTENTION}/{name}")),
        *linear(f"{block}.attention.output.dense", f"{ATTENTION}/out"),
    )


def _new_attention(module: str, out: str) -> tuple[Rule, ...]:
    return (
        *(rule for ours, theirs in _QKV for rule in linear(f"{module}.{theirs}", f"{ATTENTION}/{ours}")),
        *linear(f"{module}.{out}", f"{ATTENTION}/out"),
    )


def _old_mlp(block: str) -> tuple[Rule, ...]:
    return (
        *linear(f"{block}.intermediate.dense", f"{MLP}/Dense_0"),
        *linear(f"{block}.output.dense", f"{MLP}/Dense_1"),
    )


def _new_mlp(block: str) -> tuple[Rule, ...]:
    return (*linear(f"{block}.mlp.fc1", f"{MLP}/Dense_0"), *linear(f"{block}.mlp.fc2", f"{MLP}/Dense_1"))


def _norms(block: str, first: str, second: str) -> tuple[Rule, ...]:
    return norm(f"{block}.{first}", f"{BLOCK}/LayerNorm_0") + norm(f"{block}.{second}", f"{BLOCK}/LayerNorm_2")


def _scales(block: str, first: str, second: str) -> tuple[Rule, ...]:
    return array(f"{block}.{first}", f"{BLOCK}/LayerScale_0/scale") + array(
        f"{block}.{second}", f"{BLOCK}/LayerScale_1/scale"
    )


_EMBEDDINGS = (
    *conv("embeddings.patch_embeddings.projection", "embedding"),
    *array("embeddings.cls_token", "cls", op=TOKENS),
    *array("embeddings.distillation_token", "dist", op=TOKENS),
    *array("embeddings.register_tokens", "registers", op=TOKENS, implied={"position_resize": "bicubic_antialias"}),
    *array("embeddings.position_embeddings", POSITIONS, op=TOKENS),
)
_HEADS = (
    *linear("cls_classifier", "head", requires="head_dist/kernel"),
    *linear("classifier", "head"),
    *linear("distillation_classifier", "head_dist"),
)
_WIDTHS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1536: 24}
_CONFIG = {
    "mlp_activation": "gelu",
    "position_prefix": True,
    "position_resize": "bicubic",
    "patch_resize": "bicubic_antialias",
}
_OLD, _NEW = "encoder.layer.{i}", "layers.{i}"
_OTHER_PARTS = (  # of models for images and text, next to the image tower
    *("*text_model.*", "*text_projection.*", "*logit_scale", "*logit_bias", "*embeddings.position_ids"),
    *("*language_model.*", "*multi_modal_projector.*", "*image_newline", "*lm_head.*", "decoder.*"),
)
_DEPTH = ("neck.*", "head.head.*", "head.conv*", "auxiliary_head.*")

VIT = Family(
    name="huggingface",
    title="Hugging Face's ViT, DeiT, ViT-MAE, ViT-MSN, I-JEPA and FLAVA's image tower",
    detect=(
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.layernorm_before.weight|layers.0.layernorm_before.weight",
    ),
    absent=("encoder.layer.0.lambda_1", "layers.0.lambda_1"),
    rules=(
        *_EMBEDDINGS,
        *_norms(_OLD, "layernorm_before", "layernorm_after"),
        *_old_attention(_OLD),
        *_old_mlp(_OLD),
        *_norms(_NEW, "layernorm_before", "layernorm_after"),
        *_new_attention(f"{_NEW}.attention", "o_proj"),
        *_new_mlp(_NEW),
        *norm("layernorm", "Transformer/encoder_norm"),
        *linear("pooler.dense", "pre_logits"),
    ),
    outer=_HEADS,
    ignored=(
        *("embeddings.mask_token", "enc_to_dec_proj.*"),
        *("*multimodal_model.*", "*image_projection.*", "*_to_mm_projection.*"),  # FLAVA's
        *("image_codebook.*", "mim_head.*", "mlm_head.*", "itm_head.*", "mmm_image_head.*", "mmm_text_head.*"),
        *_OTHER_PARTS,
    ),
    config={**_CONFIG, "epsilon": 1e-12},
    heads=_WIDTHS,
    preprocessing="hugging-face",
    format="huggingface",
)
DPT = dataclasses.replace(
    VIT,
    name="huggingface-dpt",
    title="the image tower of Hugging Face's DPT",
    marks=("neck.convs.0.weight",),
    ignored=_DEPTH,
    config={**VIT.config, "position_resize": "bilinear"},
    format=None,
)
MSN = dataclasses.replace(
    VIT,
    name="huggingface-msn",
    title="Hugging Face's ViT-MSN with a head, whose blocks have no prefix",
    detect=("vit.embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layernorm_before.weight"),
    rules=tuple(
        rule if rule.source.startswith("encoder.") else dataclasses.replace(rule, source=f"vit.{rule.source}")
        for rule in VIT.rules
    ),
    ignored=("vit.embeddings.mask_token",),
    config={**_CONFIG, "epsilon": 1e-6},
    format=None,
)
DINOV2 = Family(
    name="huggingface-dinov2",
    title="Hugging Face's DINOv2, with and without registers",
    detect=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.layer_scale1.lambda1"),
    rules=(
        *_EMBEDDINGS,
        *_norms(_OLD, "norm1", "norm2"),
        *_old_attention(_OLD),
        *_new_attention(f"{_OLD}.attention", "o_proj"),
        *_scales(_OLD, "layer_scale1.lambda1", "layer_scale2.lambda1"),
        *linear(f"{_OLD}.mlp.weights_in", f"{MLP}/Gate", f"{MLP}/Dense_0"),
        *linear(f"{_OLD}.mlp.weights_out", f"{MLP}/Dense_1", requires=f"{MLP}/Gate/kernel"),
        *_new_mlp(_OLD),
        *linear(f"{_OLD}.mlp.gate_proj", f"{MLP}/Gate"),
        *linear(f"{_OLD}.mlp.up_proj", f"{MLP}/Dense_0"),
        *linear(f"{_OLD}.mlp.down_proj", f"{MLP}/Dense_1"),
        *norm("layernorm", "Transformer/encoder_norm"),
    ),
    outer=_HEADS,
    ignored=("embeddings.mask_token", *_DEPTH),
    config=_CONFIG,
    heads=_WIDTHS,
    preprocessing="dinov2",
    format="huggingface",
)
DINOV3 = Family(
    name="huggingface-dinov3",
    title="Hugging Face's DINOv3",
    detect=(
        "embeddings.patch_embeddings.weight",
        "layer.0.layer_scale1.lambda1|model.layer.0.layer_scale1.lambda1",
    ),
    rules=(
        *conv("embeddings.patch_embeddings", "embedding"),
        *array("embeddings.cls_token", "cls", op=TOKENS),
        *array("embeddings.register_tokens", "registers", op=TOKENS),
        *(
            rule
            for block in ("layer.{i}", "model.layer.{i}")
            for rule in (
                *_norms(block, "norm1", "norm2"),
                *_new_attention(f"{block}.attention", "o_proj"),
                *_scales(block, "layer_scale1.lambda1", "layer_scale2.lambda1"),
                *linear(f"{block}.mlp.gate_proj", f"{MLP}/Gate"),
                *linear(f"{block}.mlp.up_proj", f"{MLP}/Dense_0"),
                *linear(f"{block}.mlp.down_proj", f"{MLP}/Dense_1"),
            )
        ),
        *norm("norm", "Transformer/encoder_norm"),
    ),
    outer=_HEADS,
    ignored=("embeddings.mask_token", "rope_embeddings.*"),
    config={**_CONFIG, "epsilon": 1e-5, "rope_theta": 100.0},
    heads={**_WIDTHS, 1280: 20, 4096: 32},
    preprocessing="imagenet",
    format="huggingface",
)
CLIP_BLOCKS = (  # of both towers, and of SigLIP's
    *_norms("encoder.layers.{i}", "layer_norm1", "layer_norm2"),
    *_new_attention("encoder.layers.{i}.self_attn", "out_proj"),
    *_new_mlp("encoder.layers.{i}"),
)
_TOWER = (
    *CLIP_BLOCKS,
    *array("embeddings.position_embedding.weight", POSITIONS, op=TABLE),
    *norm("post_layernorm", "Transformer/encoder_norm"),
)
CLIP = Family(
    name="huggingface-clip",
    title="Hugging Face's CLIP image towers, also Chinese-CLIP's, AltCLIP's, CLIPSeg's and those in LLaVA and GIT",
    detect=("embeddings.class_embedding", "pre_layrnorm.weight"),
    rules=(
        *conv("embeddings.patch_embedding", "embedding"),
        *array("embeddings.class_embedding", "cls", op=VECTOR),
        *norm("pre_layrnorm", "Transformer/norm_pre"),
        *_TOWER,
    ),
    outer=(
        *linear("classifier", "head", requires="head/bias", implied={"pooling": "gap", "final_norm": None}),
        *linear("visual_projection", "head"),
    ),
    ignored=(*_OTHER_PARTS, "git.*", "output.*", "image_to_text_projection.*"),
    config={**_CONFIG, "epsilon": 1e-5},
    choices={"mlp_activation": ("quick_gelu", "gelu")},
    heads={**_WIDTHS, 1664: 16},
    preprocessing="clip",
    format="huggingface",
)


def _spelled(family: Family, theirs: str, ours: str) -> tuple[Rule, ...]:
    """Return the rules of a family, with other words in the names."""
    return tuple(dataclasses.replace(rule, source=rule.source.replace(theirs, ours)) for rule in family.rules)


OWLVIT = dataclasses.replace(
    CLIP,
    name="huggingface-owlvit",
    title="Hugging Face's OWL-ViT and OWLv2 image towers",
    detect=("embeddings.class_embedding", "pre_layernorm.weight"),
    rules=_spelled(CLIP, "layrnorm", "layernorm"),
    outer=linear("visual_projection", "head"),
    written_prefix="vision_model.",
    ignored=(
        *("*visual_projection.*", "class_head.*", "box_head.*", "objectness_head.*", "layer_norm.*", "box_bias"),
        *_OTHER_PARTS,
    ),
    config={**CLIP.config, "mlp_activation": "quick_gelu"},
    choices={},
    format=None,
)
_LAYERS = "encoder.layers.{i}"
_BLIP_EMBEDDINGS = (
    *conv("embeddings.patch_embedding", "embedding"),
    *array("embeddings.class_embedding", "cls", op=TOKENS),
    *array("embeddings.position_embedding", POSITIONS, op=TOKENS),
)
BLIP = Family(
    name="huggingface-blip",
    title="Hugging Face's BLIP, BLIP-2 and InstructBLIP image towers",
    detect=("embeddings.class_embedding", "encoder.layers.0.self_attn.qkv.weight"),
    rules=(
        *_BLIP_EMBEDDINGS,
        *_norms(_LAYERS, "layer_norm1", "layer_norm2"),
        *linear(f"{_LAYERS}.self_attn.qkv", *(f"{ATTENTION}/{name}" for name, _ in _QKV)),
        *linear(f"{_LAYERS}.self_attn.projection", f"{ATTENTION}/out"),
        *_new_mlp(_LAYERS),
        *norm("post_layernorm", "Transformer/encoder_norm"),
    ),
    outer=linear("vision_proj", "head"),
    ignored=(
        *("text_encoder.*", "text_decoder.*", "text_proj.*", "itm_head.*", "visual_projection.*"),
        *("*qformer.*", "*query_tokens", "*language_projection.*", "vision_projection.*"),
        *("embeddings.word_embeddings.*", "embeddings.position_embeddings.*"),
        *_OTHER_PARTS,
    ),
    config=_CONFIG,
    choices={"epsilon": (1e-5, 1e-6)},
    heads={**_WIDTHS, 1408: 16},
    preprocessing="clip",
)
_PATCHES = "embeddings.patch_embedding.weight"
SIGLIP = Family(
    name="huggingface-siglip",
    title="Hugging Face's SigLIP and SigLIP 2 image towers",
    detect=(_PATCHES, "embeddings.position_embedding.weight", "encoder.layers.0.layer_norm1.weight"),
    absent=("embeddings.class_embedding",),
    rules=(
        *array(_PATCHES, "embedding/kernel", op=CONV, when=axes(_PATCHES, 4)),
        *array(_PATCHES, "embedding/kernel", op=PATCH_LINEAR, implied={"position_resize": "bilinear_antialias"}),
        *array("embeddings.patch_embedding.bias", "embedding/bias"),
        *_TOWER,
        *array("head.probe", "MAPHead_0/probe"),
        *joined("head.attention", *(f"MAPHead_0/MultiHeadDotProductAttention_0/{name}" for name, _ in _QKV)),
        *linear("head.attention.out_proj", "MAPHead_0/MultiHeadDotProductAttention_0/out"),
        *norm("head.layernorm", "MAPHead_0/LayerNorm_0"),
        *linear("head.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        *linear("head.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ),
    outer=linear("classifier", "head", implied={"pooling": "gap"}),
    ignored=(*_OTHER_PARTS, "*connector.*", "*perceiver_resampler.*"),
    config={**_CONFIG, "mlp_activation": "gelu_tanh"},
    heads={**_WIDTHS, 1152: 16, 1536: 16},
    preprocessing="siglip",
    format="huggingface",
)
JANUS = dataclasses.replace(
    SIGLIP,
    name="huggingface-janus",
    title="the image tower of Hugging Face's Janus",
    detect=(_PATCHES, "encoder.layers.0.self_attn.projection_layer.weight"),
    rules=_spelled(SIGLIP, "self_attn.out_proj", "self_attn.projection_layer"),
    outer=(),
    ignored=(*_OTHER_PARTS, "*vqmodel.*", "*aligner.*", "*generation_*"),
    config={**_CONFIG, "mlp_activation": "gelu"},
    format=None,
)


def _beit_table(block: str, inner: str) -> tuple[Rule, ...]:
    name = "relative_position_bias.relative_position_bias_table"
    return array(f"{block}.{inner}{name}", f"{ATTENTION}/relative_position_bias")


_NO_LAST_NORM = {**_CONFIG, "final_norm": None}
BEIT = Family(
    name="huggingface-beit",
    title="Hugging Face's BEiT and Data2Vec-Vision",
    detect=("embeddings.patch_embeddings.projection.weight", "encoder.layer.0.lambda_1|layers.0.lambda_1"),
    rules=(
        *_EMBEDDINGS,
        *(
            rule
            for block in (_OLD, _NEW)
            for rule in (
                *_norms(block, "layernorm_before", "layernorm_after"),
                *_old_attention(block),
                *_new_attention(f"{block}.attention", "o_proj"),
                *_beit_table(block, "attention.attention."),
                *_beit_table(block, ""),
                *_old_mlp(block),
                *_new_mlp(block),
                *_scales(block, "lambda_1", "lambda_2"),
            )
        ),
        *(
            rule
            for owner in ("encoder.", "")
            for rule in array(
                f"{owner}relative_position_bias.relative_position_bias_table",
                f"{ATTENTION}/relative_position_bias",
                shared=True,
            )
        ),
        *norm("layernorm", "Transformer/encoder_norm", implied={"final_norm": "tokens"}),
        *norm("pooler.layernorm", "fc_norm", implied={"final_norm": "pooled"}),
    ),
    outer=(
        *_HEADS,
        *norm("layernorm", "Transformer/encoder_norm", implied={"final_norm": "tokens"}),
    ),  # of masked images
    ignored=("embeddings.mask_token", "*relative_position_index", *_OTHER_PARTS),
    config={**_NO_LAST_NORM, "epsilon": 1e-12, "relative_resize": "bilinear"},
    heads=_WIDTHS,
    preprocessing="beit",
    format="huggingface",
)
INTERNVL = Family(
    name="huggingface-internvl",
    title="Hugging Face's InternViT, the image tower of InternVL",
    detect=("embeddings.cls_token", "encoder.layer.0.attention.projection_layer.weight", "encoder.layer.0.lambda_1"),
    rules=(
        *_EMBEDDINGS,
        *_norms(_OLD, "layernorm_before", "layernorm_after"),
        *_new_attention(f"{_OLD}.attention", "projection_layer"),
        *_scales(_OLD, "lambda_1", "lambda_2"),
        *_new_mlp(_OLD),
        *norm("layernorm", "Transformer/encoder_norm", implied={"final_norm": "tokens"}),
    ),
    ignored=("embeddings.mask_token", *_OTHER_PARTS),
    config=_NO_LAST_NORM,
    heads={1024: 16},
    preprocessing="imagenet",
)
INTERNVIT = Family(
    name="internvit",
    title="InternViT (OpenGVLab/InternVL)",
    detect=("embeddings.class_embedding", "encoder.layers.0.attn.qkv.weight", "encoder.layers.0.ls1"),
    rules=(
        *_BLIP_EMBEDDINGS,
        *_norms(_LAYERS, "norm1", "norm2"),
        *linear(f"{_LAYERS}.attn.qkv", *(f"{ATTENTION}/{name}" for name, _ in _QKV)),
        *linear(f"{_LAYERS}.attn.proj", f"{ATTENTION}/out"),
        *_scales(_LAYERS, "ls1", "ls2"),
        *_new_mlp(_LAYERS),
    ),
    ignored=("mlp1.*", *_OTHER_PARTS),
    config=_NO_LAST_NORM,
    heads={1024: 16},
    preprocessing="imagenet",
)

FAMILIES = (VIT, DINOV2, DINOV3, CLIP, SIGLIP, BEIT, MSN, DPT, OWLVIT, JANUS, BLIP, INTERNVL, INTERNVIT)

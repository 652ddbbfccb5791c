"""torchvision's ViT (pytorch/vision, `torchvision/models/vision_transformer.py`)."""

from __future__ import annotations

from .rules import ATTENTION, BLOCK, MLP, POSITIONS, TOKENS, Family, array, conv, joined, linear, norm

_IN = "encoder.layers.encoder_layer_{i}"

TORCHVISION = Family(
    name="torchvision",
    title="torchvision's ViT",
    detect=("conv_proj.weight", "encoder.pos_embedding"),
    rules=(
        *conv("conv_proj", "embedding"),
        *array("class_token", "cls", op=TOKENS),
        *array("encoder.pos_embedding", POSITIONS, op=TOKENS),
        *norm(f"{_IN}.ln_1", f"{BLOCK}/LayerNorm_0"),
        *joined(f"{_IN}.self_attention", f"{ATTENTION}/query", f"{ATTENTION}/key", f"{ATTENTION}/value"),
        *linear(f"{_IN}.self_attention.out_proj", f"{ATTENTION}/out"),
        *norm(f"{_IN}.ln_2", f"{BLOCK}/LayerNorm_2"),
        *linear(f"{_IN}.mlp.0", f"{MLP}/Dense_0"),
        *linear(f"{_IN}.mlp.3", f"{MLP}/Dense_1"),
        *linear(f"{_IN}.mlp.linear_1", f"{MLP}/Dense_0"),
        *linear(f"{_IN}.mlp.linear_2", f"{MLP}/Dense_1"),
        *norm("encoder.ln", "Transformer/encoder_norm"),
        *linear("heads.pre_logits", "pre_logits"),
        *linear("heads.head", "head"),
    ),
    config={
        "mlp_activation": "gelu",
        "position_prefix": True,
        "position_resize": "bicubic_align_corners",
        "patch_resize": "bicubic_antialias",
    },
    heads={768: 12, 1024: 16, 1280: 16},
    preprocessing="torchvision",
    only=dict.fromkeys(("patch_bias", "qkv_bias", "key_bias", "out_bias", "head_bias"), (True,)),
)

FAMILIES = (TORCHVISION,)

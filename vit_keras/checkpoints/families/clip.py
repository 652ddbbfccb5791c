"""OpenAI's CLIP and open_clip: the image tower, alone or in the whole model (openai/CLIP, mlfoundations/open_clip)."""

from __future__ import annotations

from .rules import ATTENTION, BLOCK, MLP, POSITIONS, TABLE, VECTOR, Family, array, conv, joined, linear, norm

_IN = "transformer.resblocks.{i}"
RESBLOCKS = (  # of both towers
    *norm(f"{_IN}.ln_1", f"{BLOCK}/LayerNorm_0"),
    *joined(f"{_IN}.attn", f"{ATTENTION}/query", f"{ATTENTION}/key", f"{ATTENTION}/value"),
    *linear(f"{_IN}.attn.out_proj", f"{ATTENTION}/out"),
    *array(f"{_IN}.ls_1.gamma", f"{BLOCK}/LayerScale_0/scale"),
    *norm(f"{_IN}.ln_2", f"{BLOCK}/LayerNorm_2"),
    *linear(f"{_IN}.mlp.c_fc", f"{MLP}/Dense_0"),
    *linear(f"{_IN}.mlp.c_proj", f"{MLP}/Dense_1"),
    *array(f"{_IN}.ls_2.gamma", f"{BLOCK}/LayerScale_1/scale"),
)

OPEN_CLIP = Family(
    name="clip",
    title="CLIP's image tower (openai/CLIP, open_clip)",
    detect=("conv1.weight", "class_embedding", "transformer.resblocks.0.ln_1.weight"),
    rules=(
        *conv("conv1", "embedding"),
        *array("class_embedding", "cls", op=VECTOR),
        *array("positional_embedding", POSITIONS, op=TABLE),
        *norm("ln_pre", "Transformer/norm_pre"),
        *RESBLOCKS,
        *norm("ln_post", "Transformer/encoder_norm"),
        *array("proj", "head/kernel"),
    ),
    others=(
        "transformer.*",
        "text.*",
        "token_embedding.*",
        "positional_embedding",
        "ln_final.*",
        "text_projection*",
        "logit_scale",
        "logit_bias",
        "attn_mask",
        "input_resolution",
        "context_length",
        "vocab_size",
    ),
    config={
        "epsilon": 1e-5,
        "position_prefix": True,
        "position_resize": "bicubic_antialias",
        "patch_resize": "bicubic_antialias",
    },
    choices={"mlp_activation": ("quick_gelu", "gelu")},
    heads={384: 6, 512: 8, 768: 12, 896: 14, 1024: 16, 1280: 16, 1408: 16, 1664: 16},
    dim_head=64,
    preprocessing="clip",
)

FAMILIES = (OPEN_CLIP,)

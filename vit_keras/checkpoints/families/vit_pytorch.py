"""vit-pytorch's `ViT` and `SimpleViT` (lucidrains/vit-pytorch).

They have no bias on queries, keys and values, and normalizations before and after the patch embedding.
"""

from __future__ import annotations

from .patches import PATCH_LINEAR
from .rules import ATTENTION, BLOCK, MLP, POSITIONS, TABLE, Family, array, axes, linear, norm

_IN = "transformer.layers.{i}"
_QKV = (f"{ATTENTION}/query", f"{ATTENTION}/key", f"{ATTENTION}/value")
_FIRST = "to_patch_embedding.1.weight"
_RULES = (
    *array("to_patch_embedding.2.weight", "embedding/kernel", op=PATCH_LINEAR, requires="patch_norm/norm/scale"),
    *array("to_patch_embedding.2.bias", "embedding/bias", requires="patch_norm/norm/scale"),
    *array(_FIRST, "embedding/kernel", op=PATCH_LINEAR, when=axes(_FIRST, 2)),  # before version 1.0: no norms
    *array("to_patch_embedding.1.bias", "embedding/bias", when=axes(_FIRST, 2)),
    *norm("to_patch_embedding.1", "patch_norm/norm"),
    *norm("to_patch_embedding.3", "embedding_norm"),
    *norm(f"{_IN}.0.norm", f"{BLOCK}/LayerNorm_0"),
    *linear(f"{_IN}.0.to_qkv", *_QKV),
    *norm(f"{_IN}.1.net.0", f"{BLOCK}/LayerNorm_2"),
    *linear(f"{_IN}.1.net.1", f"{MLP}/Dense_0"),
    *norm("transformer.norm", "Transformer/encoder_norm"),
)
_CONFIG = {
    "mlp_activation": "gelu",
    "epsilon": 1e-5,
    "position_prefix": True,
    "position_resize": "bicubic_antialias",
    "patch_resize": "bicubic_antialias",
}

VIT = Family(
    name="vit-pytorch",
    title="vit-pytorch's ViT",
    detect=("to_patch_embedding.2.weight|to_patch_embedding.1.weight", "pos_embedding"),
    rules=(
        *_RULES,
        *array("cls_token", "cls", op=TABLE),
        *array("pos_embedding", POSITIONS, op=TABLE),
        *linear(f"{_IN}.0.to_out.0", f"{ATTENTION}/out"),
        *linear(f"{_IN}.1.net.4", f"{MLP}/Dense_1"),
        # Before version 1.6 the norms were around the layers, and the last one in the head.
        *linear(f"{_IN}.0.fn.to_qkv", *_QKV),
        *linear(f"{_IN}.0.fn.to_out.0", f"{ATTENTION}/out"),
        *norm(f"{_IN}.1.norm", f"{BLOCK}/LayerNorm_2"),
        *linear(f"{_IN}.1.fn.net.0", f"{MLP}/Dense_0"),
        *linear(f"{_IN}.1.fn.net.3", f"{MLP}/Dense_1"),
        *norm("mlp_head.0", "fc_norm"),
        *linear("mlp_head.1", "head", requires="fc_norm/scale"),
        *linear("mlp_head", "head"),
    ),
    config={**_CONFIG, "pooling": "token"},
    dim_head=64,
)
SIMPLE_VIT = Family(
    name="simple-vit",
    title="vit-pytorch's SimpleViT",
    detect=("to_patch_embedding.2.weight", "linear_head.weight"),
    rules=(
        *_RULES,
        *linear(f"{_IN}.0.to_out", f"{ATTENTION}/out"),
        *linear(f"{_IN}.1.net.3", f"{MLP}/Dense_1"),
        *linear("linear_head", "head"),
    ),
    config={**_CONFIG, "position": "sincos2d"},
    dim_head=64,
)

FAMILIES = (VIT, SIMPLE_VIT)

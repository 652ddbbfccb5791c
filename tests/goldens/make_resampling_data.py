"""Make `data/resampling.npz`: what other projects' own code gives for the functions of `vit_keras.positions`.

    pip install torch==2.13.0 torchvision timm==1.0.31 transformers==5.23 vit-pytorch==1.26.11 scipy==1.13.1 "numpy<2"
    TIMM_USE_SCIPY_INTERP=1 python make_resampling_data.py

SciPy 1.13 is the last with `interp2d`, which BEiT's resizing of relative position biases calls.
Each array's key says whose it is; `test_positions.py` says what it should equal.
"""

from pathlib import Path

import numpy as np
import torch
from timm.layers import pos_embed_rel, resample_patch_embed
from timm.layers.pos_embed_sincos import RotaryEmbeddingDinoV3
from torch.nn.functional import interpolate
from transformers import BeitConfig, DINOv3ViTConfig
from transformers.models.beit.modeling_beit import BeitRelativePositionBias
from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding
from vit_pytorch.simple_vit import posemb_sincos_2d

random = np.random.default_rng(0)
data = {}

INTERPOLATE = {
    "bilinear_align_corners": {"mode": "bilinear", "align_corners": True},
    "bilinear": {"mode": "bilinear"},
    "bilinear_antialias": {"mode": "bilinear", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "bicubic_align_corners": {"mode": "bicubic", "align_corners": True},
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},
}
SIZES = [((5, 4), (9, 11)), ((7, 7), (3, 12)), ((8, 6), (1, 2)), ((1, 2), (3, 5)), ((14, 3), (6, 3)), ((3, 9), (7, 4))]
for old, new in SIZES:
    case = "{}x{}_{}x{}".format(*old, *new)
    data[f"grid_{case}"] = random.standard_normal((*old, 2))
    grid = torch.tensor(data[f"grid_{case}"]).permute(2, 0, 1)[None]
    resized = {method: interpolate(grid, size=new, **options) for method, options in INTERPOLATE.items()}
    scale = [(n + 0.1) / o for n, o in zip(new, old)]  # DINO's `interpolate_pos_encoding`
    resized["bicubic_dino"] = interpolate(grid, scale_factor=scale, mode="bicubic")
    data |= {f"torch_{method}_{case}": value[0].permute(1, 2, 0).numpy() for method, value in resized.items()}

data["kernel"] = random.standard_normal((8, 6, 3, 2), np.float32)
for size in ((12, 9), (5, 4), (16, 3)):
    resized = resample_patch_embed(torch.tensor(data["kernel"]).permute(3, 2, 0, 1), size)
    data["timm_kernel_{}x{}".format(*size)] = resized.permute(2, 3, 1, 0).numpy()

data["vit_pytorch_sincos_5x3"] = posemb_sincos_2d(5, 3, 24).numpy()

rope = DINOv3ViTRopePositionEmbedding(
    DINOv3ViTConfig(hidden_size=32, num_attention_heads=2, patch_size=16, rope_theta=100.0)
).eval()
cos, sin = rope(torch.zeros(1, 3, 5 * 16, 3 * 16))
data["transformers_rope_5x3"] = torch.stack([sin, cos]).numpy()
data["timm_rope_5x3"] = RotaryEmbeddingDinoV3(16).eval().get_embed([5, 3]).reshape(15, 2, 16).transpose(0, 1).numpy()

data["timm_index_3x4"] = pos_embed_rel.gen_relative_position_index((3, 4), class_token=True).numpy()


def biases(grid):
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + 3


for old, new in [((4, 4), (7, 7)), ((4, 4), (3, 3)), ((3, 5), (5, 4)), ((5, 5), (6, 9))]:
    case = "{}x{}_{}x{}".format(*old, *new)
    data[f"biases_{case}"] = random.standard_normal((biases(old), 2), np.float32)
    table = torch.tensor(data[f"biases_{case}"])
    for method, use_scipy in (("geometric", True), ("geometric_linear", False)):
        pos_embed_rel._USE_SCIPY = use_scipy
        resized = pos_embed_rel.resize_rel_pos_bias_table(table, new, (biases(new), 2), old)
        data[f"timm_{method}_{case}"] = resized.numpy()
    if old[0] == old[1]:  # Hugging Face's swaps the sides of a rectangle
        module = BeitRelativePositionBias(BeitConfig(image_size=old[0] * 16, patch_size=16, num_attention_heads=2))
        module.relative_position_bias_table.data = table
        index = module.generate_relative_position_index(new).flatten()
        resized = np.empty((biases(new), 2), np.float32)
        resized[index] = module(new).detach()[0].permute(1, 2, 0).reshape(-1, 2).numpy()
        data[f"transformers_bilinear_{case}"] = resized

np.savez_compressed(Path(__file__).parents[1] / "data" / "resampling.npz", **data)

"""timm's NaFlexViT: timm's names, behind a linear layer on flattened patches and a table of positions with two axes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from .patches import PATCH_LINEAR
from .rules import POSITIONS, TOKENS, Op, array, norm
from .timm import LAST_NORMS, PYTORCH, TIMM


def _write_square(parts: list[np.ndarray], _: int) -> np.ndarray:
    table, side = parts[0], math.isqrt(parts[0].shape[1])
    if side * side != table.shape[1]:
        raise ValueError(
            f"timm's NaFlexViT keeps a square table of positions, and the model has {table.shape[1]}. Resize the model "
            "to square images first."
        )
    return table.reshape(1, side, side, -1)


_EMBEDS = (
    *array("embeds.proj.weight", "embedding/kernel", op=PATCH_LINEAR),
    *array("embeds.proj.bias", "embedding/bias"),
    *array("embeds.cls_token", "cls", op=TOKENS),
    *array("embeds.reg_token", "registers", op=TOKENS),
    *array("embeds.pos_embed", POSITIONS, op=Op(TOKENS.read, _write_square)),
    *norm("embeds.norm", "Transformer/norm_pre"),
)
NAFLEX = dataclasses.replace(
    TIMM,
    name="timm-naflex",
    title="timm's NaFlexViT, for images of any size",
    detect=("embeds.proj.weight", "blocks.0.norm1.weight", "blocks.0.mlp.fc1.weight", "embeds.pos_embed"),
    absent=("attn_pool.latent",),
    rules=(*_EMBEDS, *TIMM.rules),
    config=PYTORCH,
    format=None,
    only={},
    excludes=(),
)
NAFLEX_MAP = dataclasses.replace(
    NAFLEX,
    name="timm-naflex-map",
    title="timm's NaFlexViT with attention pooling, SigLIP 2's weights among them",
    marks=("attn_pool.latent",),
    absent=(),
    choices={"mlp_activation": ("gelu_tanh", "gelu"), "position_resize": ("bilinear_antialias", "bicubic_antialias")},
    preprocessing="siglip",
)
NAFLEX_UNNORMED = dataclasses.replace(
    NAFLEX,
    name="timm-naflex-radio",
    title="RADIO in timm's NaFlexViT",
    marks=("embeds.cls_token",),
    absent=(*LAST_NORMS, "attn_pool.latent"),
    refused="RADIO cuts its table of positions to the shape of an image, which this version cannot do",
)
NAFLEX_FACTORIZED = dataclasses.replace(
    NAFLEX,
    name="timm-naflex-factorized",
    title="timm's NaFlexViT with one table of rows and one of columns",
    detect=(*NAFLEX.detect[:-1], "embeds.pos_embed_y"),
    absent=(),
    refused="Its positions are a table of rows and one of columns, which this version cannot read",
)

FAMILIES = (NAFLEX, NAFLEX_MAP, NAFLEX_UNNORMED, NAFLEX_FACTORIZED)

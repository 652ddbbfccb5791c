"""Write `vit_keras/checkpoints/timm_models.csv`: what timm's models compute that their arrays do not show.

    pip install timm && python tools/make_timm_models.py

Every architecture of timm's modules of Vision Transformers is made without memory for its weights (on PyTorch's meta
device), and its modules are asked: heads, activation, epsilon, pooling, rotary positions. What this package cannot
build gets the reason instead. Architectures whose files it would not take for a ViT have no row.
"""

from __future__ import annotations

import collections
import csv
import sys
from pathlib import Path

import timm
import torch
from timm.models._registry import _model_pretrained_cfgs, _model_to_module

sys.path.insert(0, str(Path(__file__).parents[1]))
from vit_keras.checkpoints import architecture
from vit_keras.checkpoints.families import FAMILIES, rules
from vit_keras.checkpoints.timm_models import signature

TARGET = Path(__file__).parents[1] / "vit_keras" / "checkpoints" / "timm_models.csv"
COLUMNS = ("name", "family", "files", "hidden_size", "num_layers", "arrays", "fields", "refused")
MODULES = ("vision_transformer", "deit", "beit", "eva", "mlp_mixer", "naflexvit", "vision_transformer_hybrid")
CLASSES = ("VisionTransformer", "VisionTransformerDistilled", "Beit", "Eva", "MlpMixer", "NaFlexVit")
POST_NORM = ("vision_transformer.ResPostBlock", "eva.EvaBlockPostNorm")
BLOCKS = ("vision_transformer.Block", "beit.Block", "eva.EvaBlock", "mlp_mixer.MixerBlock", *POST_NORM)
ATTENTIONS = (
    *("timm.layers.attention.Attention", "timm.layers.attention.AttentionRope"),
    *("timm.models.beit.Attention", "timm.models.eva.EvaAttention"),
)
ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu", "ReLU": "relu"}
POOLINGS = {"token": "token", "avg": "gap", "map": "map"}


class Refused(Exception):
    """This package cannot build the model."""


def main() -> None:
    """Write the file."""
    files = collections.Counter(n.partition(".")[0] for n, c in _model_pretrained_cfgs.items() if c.has_weights)
    names = [name for name in timm.list_models() if _model_to_module[name] in MODULES]
    found = ((name, row_of(name)) for name in names)
    rows = [{"name": name, "files": files[name], **row} for name, row in found if row]
    with TARGET.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    refused = sum("refused" in row for row in rows)
    print(f"timm {timm.__version__}: {len(rows)} rows, {refused} refused, {TARGET.stat().st_size} bytes: {TARGET}")


def row_of(name: str) -> dict | None:
    """Return the columns of an architecture, or `None` if its files would not be taken for a ViT."""
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False)
    shapes = {array: tuple(value.shape) for array, value in model.state_dict().items()}
    family = rules.detect(FAMILIES.values(), shapes, shapes.__getitem__)
    if family is None:
        return None
    row = {"family": family.name, "hidden_size": model.embed_dim, "num_layers": len(model.blocks)}
    try:
        row["arrays"] = signature(inferred(family, shapes))
        return row | {"fields": " ".join(f"{field}={value}" for field, value in fields(model).items())}
    except (Refused, ValueError) as error:
        return row | {"refused": str(error).rstrip(".")}


def inferred(family, shapes) -> dict:
    """Return what this package infers from the arrays."""
    if family.refused:
        raise Refused(family.refused)
    binding = rules.bind(family, shapes, shapes.__getitem__)
    if binding.unknown:
        raise Refused(f"{binding.unknown[0]} has no place in a model of this package")
    ours = {name: rules.shape(part, shapes[part.source]) for name, part in binding.parts.items()}
    if family.config.get("final_norm", True) and not {"Transformer/encoder_norm/scale", "fc_norm/scale"} & set(ours):
        raise Refused("it has no last normalization")
    return architecture.infer(ours, family, binding.told)


def fields(model) -> dict:
    """Return the fields of `ViTConfig` that the arrays do not show.

    Raises:
        Refused: This package has no field for what the model does.
    """
    block = model.blocks[0]
    only("class", {type(model).__name__}, CLASSES)
    blocks = {path(b).removeprefix("timm.models.") for b in model.blocks}
    only("blocks", blocks, BLOCKS)
    post_norm = {"post_norm": True} if blocks <= set(POST_NORM) else {}
    rope = rotary(model)
    if type(model).__name__ == "MlpMixer":
        return {"mlp_activation": activation(model), "epsilon": epsilon(model)}
    only("attention", {path(b.attn) for b in model.blocks}, ATTENTIONS)
    only("pooling", {model.global_pool}, POOLINGS)
    prefix_is_pooled = getattr(model, "pool_include_prefix", type(model).__name__ == "Eva")
    heads, map_heads = {b.attn.num_heads for b in model.blocks}, {}
    if model.global_pool == "map":
        map_heads = {"map_heads": model.attn_pool.num_heads} if model.attn_pool.num_heads not in heads else {}
        if model.attn_pool.latent.shape[1] != 1 or getattr(model.attn_pool, "pos_embed", None) is not None:
            raise Refused("its attention pooling has several queries or positions")
    if len(heads) > 1:
        raise Refused(f"its layers have different numbers of heads ({', '.join(map(str, sorted(heads)))})")
    query = getattr(block.attn, "qkv", None) or block.attn.q_proj
    width = query.out_features // (1 if getattr(block.attn, "qkv", None) is None else 3)
    if block.attn.scale != (width // block.attn.num_heads) ** -0.5:
        raise Refused("its attention is scaled in another way")
    table = resampled(model.embeds) if hasattr(model, "embeds") else {}
    distilled = {"pooling": "token+dist"} if hasattr(model, "dist_token") else {}
    mean_of_all = model.global_pool == "avg" and getattr(model, "pool_include_prefix", False)
    pooling = {"pooling": "all" if mean_of_all else POOLINGS[model.global_pool], **distilled}
    seen = {"map_prefix": True} if prefix_is_pooled else {}  # whatever the pooling: a config.json can change it
    own = {"num_heads": heads.pop(), "mlp_activation": activation(model), "epsilon": epsilon(model)}
    return {**own, **pooling, **seen, **map_heads, **post_norm, **rope, **table}


def resampled(embeds) -> dict:
    """Return how the table of positions of a NaFlexViT is resampled."""
    if embeds.pos_embed_ar_preserving:
        raise Refused("it cuts its table of positions to the shape of an image")
    if embeds.pos_embed_type != "learned" or embeds.pos_embed_align_corners or not embeds.pos_embed_antialias:
        raise Refused("its positions are resampled in another way")
    return {"position_resize": f"{embeds.pos_embed_interp_mode}_antialias"}


def path(module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"


def only(what, found, known) -> None:
    if not found <= set(known):
        raise Refused(f"this package has no {what} {', '.join(sorted(found - set(known)))}")


def rotary(model) -> dict:
    """Return the fields of rotary positions."""
    rope = getattr(model, "rope", None)
    if rope is None:
        return {}
    kind, half = type(rope).__name__, model.blocks[0].attn.rotate_half
    facts = {name: getattr(rope, name, None) for name in ("grid_indexing", "temperature", "grid_type", "rotate_half")}
    dinov3 = kind == "RotaryEmbeddingDinoV3" and rope.normalize_coords == "separate" and not rope.grid_offset
    if dinov3 and half and rope.rotate_half and rope.grid_indexing == "ij" and rope.temperature is not None:
        return {"rope_theta": rope.temperature}
    if kind == "RotaryEmbeddingMixed" and rope.grid_indexing == "xy" and not half:
        return {"rope_theta": rope.temperature, "rope_kind": "mixed"}
    if kind == "RotaryEmbeddingCat" and rope.grid_type == "index" and not (half or rope.rotate_half):
        grid = {"rope_grid": "x".join(map(str, rope.ref_feat_shape))} if rope.ref_feat_shape else {}
        offset = {"rope_offset": rope.grid_offset} if rope.grid_offset else {}
        named = {"ij": "axial", "xy": "axial_xy"}[rope.grid_indexing]
        return {"rope_theta": float(rope.temperature), "rope_kind": named, **grid, **offset}
    raise Refused(f"it has rotary positions of timm's kind {kind} with {facts}, which this version cannot build")


def activation(model) -> str:
    """Return the activation of all MLPs."""
    mlps = [m for n, m in model.named_modules() if n.endswith(("mlp", "mlp_tokens", "mlp_channels"))]
    kinds = {type(mlp.act).__name__ for mlp in mlps}
    only("activation", kinds, ACTIVATIONS)
    approximate = {getattr(mlp.act, "approximate", "none") for mlp in mlps}
    if len(kinds) > 1 or approximate != {"none"}:
        raise Refused(f"its layers have different activations ({', '.join(sorted(kinds))})")
    return ACTIVATIONS[kinds.pop()]


def is_norm(module) -> bool:
    return "Norm" in type(module).__name__ and "Block" not in type(module).__name__


def epsilon(model) -> float:
    """Return the epsilon of all layer normalizations."""
    norms = [m for n, m in model.named_modules() if is_norm(m) and "backbone" not in n]
    only("normalization", {type(norm).__name__ for norm in norms}, ("LayerNorm",))
    found = {norm.eps for norm in norms}
    if len(found) > 1:
        raise Refused(f"its layers have different epsilons ({', '.join(map(str, sorted(found)))})")
    return found.pop()


if __name__ == "__main__":
    main()

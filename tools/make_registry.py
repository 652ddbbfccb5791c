"""Write `vit_keras/checkpoints/registry_timm.csv`: facts about the files that timm publishes, from its configurations.

    pip install timm && python tools/make_registry.py

The facts are name, size, classes, preprocessing, license, and the parts of the architecture that a file does not show.
Only families that `vit_keras` reads are listed. The originals at dl.fbaipublicfiles.com that timm names become rows of
`facebook/`. `vit_keras/checkpoints/registry.csv`, beside it, is edited by hand and has the same columns.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import timm
import torch
from timm.models._registry import _model_pretrained_cfgs, _model_to_module

TARGET = Path(__file__).parents[1] / "vit_keras" / "checkpoints" / "registry_timm.csv"
COLUMNS = next(csv.reader((TARGET.parent / "registry.csv").open(encoding="utf-8")))
MODULES = ("vision_transformer", "deit", "beit", "eva", "mlp_mixer", "naflexvit", "vision_transformer_hybrid")
# Architectures of families that vit_keras reads; other models in these modules are left out.
FAMILIES = re.compile(
    r"(vit_(tiny|small|base|large|huge)_patch\d+_\d+(_miil)?|"
    r"vit_\w+_clip_(quickgelu_)?\d+|vit_\w+_siglip_(gap_)?\d+|vit_\w+_dinov2|vit_\w+_dinov3|flexivit_\w+|"
    r"vit_\w+_r(26|50)?_s(16|32)(_p8)?_\d+|vit_base_r50_s16_\d+|vit_(small|large)_r(26|50)_s32_\d+|"
    r"vit_tiny_r_s16_p8_\d+|vit_medium_patch16_gap_\d+|vit_\w+_reg\d_gap_\d+|"
    r"naflexvit_base_patch16_gap|naflexvit_\w+_siglip|"
    r"deit_\w+|deit3_\w+|beit_\w+|beitv2_\w+|eva_\w+|eva02_\w+|mixer_[sbl]\d+_\d+)"
)
ODD = re.compile(r"rope|dwee|pwee|dlittle|7b|tinyclip|bamboo|eupe|_mci_|radio|apple_mclip2")
MEANS = {(0.5, 0.5, 0.5): "timm", (0.485, 0.456, 0.406): "imagenet", (0.48145466, 0.4578275, 0.40821073): "clip"}
MEANS |= {(0.0, 0.0, 0.0): "miil", (0.43, 0.411, 0.296): "dinov3-sat"}
ACTIVATIONS = {"GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
# timm's own measurements (results-imagenet.csv), for the files of its default configurations.
TOP1 = {
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": 75.452,
    "vit_tiny_patch16_384.augreg_in21k_ft_in1k": 78.438,
    "vit_small_patch32_224.augreg_in21k_ft_in1k": 76.010,
    "vit_small_patch32_384.augreg_in21k_ft_in1k": 80.476,
    "vit_small_patch16_224.augreg_in21k_ft_in1k": 81.402,
    "vit_small_patch16_384.augreg_in21k_ft_in1k": 83.814,
    "vit_base_patch32_224.augreg_in21k_ft_in1k": 80.732,
    "vit_base_patch32_384.augreg_in21k_ft_in1k": 83.358,
    "vit_base_patch16_224.augreg_in21k_ft_in1k": 84.534,
    "vit_base_patch16_384.augreg_in21k_ft_in1k": 86.010,
    "vit_base_patch16_224.augreg2_in21k_ft_in1k": 85.108,
    "vit_base_patch16_224.orig_in21k_ft_in1k": 81.782,
    "vit_base_patch16_384.orig_in21k_ft_in1k": 84.212,
    "vit_base_patch8_224.augreg_in21k_ft_in1k": 85.838,
    "vit_base_patch8_224.augreg2_in21k_ft_in1k": 86.252,
    "vit_large_patch16_224.augreg_in21k_ft_in1k": 85.856,
    "vit_large_patch16_384.augreg_in21k_ft_in1k": 87.096,
    "vit_large_patch32_384.orig_in21k_ft_in1k": 81.508,
    "vit_base_patch16_224.sam_in1k": 80.246,
    "vit_base_patch32_224.sam_in1k": 73.704,
    "vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k": 71.800,
    "vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k": 75.962,
    "vit_small_r26_s32_224.augreg_in21k_ft_in1k": 81.856,
    "vit_small_r26_s32_384.augreg_in21k_ft_in1k": 84.066,
    "vit_large_r50_s32_224.augreg_in21k_ft_in1k": 84.434,
    "vit_large_r50_s32_384.augreg_in21k_ft_in1k": 86.188,
    "vit_base_r50_s16_384.orig_in21k_ft_in1k": 84.988,
    "mixer_b16_224.goog_in21k_ft_in1k": 76.616,
    "mixer_l16_224.goog_in21k_ft_in1k": 72.084,
    "mixer_b16_224.miil_in21k_ft_in1k": 82.314,
    "deit_tiny_patch16_224.fb_in1k": 72.190,
    "deit_small_patch16_224.fb_in1k": 79.856,
    "deit_base_patch16_224.fb_in1k": 81.980,
    "deit_base_patch16_384.fb_in1k": 83.108,
    "deit_tiny_distilled_patch16_224.fb_in1k": 74.538,
    "deit_small_distilled_patch16_224.fb_in1k": 81.204,
    "deit_base_distilled_patch16_224.fb_in1k": 83.384,
    "deit_base_distilled_patch16_384.fb_in1k": 85.438,
    "deit3_small_patch16_224.fb_in1k": 81.382,
    "deit3_base_patch16_224.fb_in1k": 83.800,
    "deit3_large_patch16_224.fb_in1k": 84.772,
    "deit3_huge_patch14_224.fb_in1k": 85.204,
    "deit3_small_patch16_224.fb_in22k_ft_in1k": 83.082,
    "deit3_base_patch16_224.fb_in22k_ft_in1k": 85.728,
    "deit3_large_patch16_224.fb_in22k_ft_in1k": 86.990,
    "deit3_huge_patch14_224.fb_in22k_ft_in1k": 87.180,
    "vit_base_patch16_clip_224.openai_ft_in1k": 85.282,
    "flexivit_base.1200ep_in1k": 84.678,
    "beit_base_patch16_224.in22k_ft_in22k_in1k": 85.238,
}
SHA256 = {
    "deit_tiny_patch16_224.fb_in1k": "21d4764d94f6c3ffdb6da3581115a0a1ee2d505537d96883b540e54766407c9e",
    "deit_base_patch16_384.fb_in1k": "2d2054a7bea2e586426f4ab1a89bc88c665a3e6eef764dcea4bdd2653030947a",
}


def main() -> None:
    """Write the file."""
    rows, seen = [], set()
    quick = {c.hf_hub_id for n, c in _model_pretrained_cfgs.items() if "quickgelu" in n}
    for name, config in _model_pretrained_cfgs.items():
        architecture, dot, _ = name.partition(".")
        module = _model_to_module.get(architecture)
        wanted = module in MODULES and FAMILIES.fullmatch(architecture) and not ODD.search(name)
        if not (wanted and dot and config.has_weights) or "quickgelu" in architecture:
            continue
        hub = config.hf_hub_id or ""
        hub = f"timm/{name}" if hub == "timm/" else hub
        row = facts(name, config, architecture)
        if hub in quick:  # trained with QuickGELU, which the architecture's name does not show
            row["options"] = join(row["options"], "mlp_activation=quick_gelu")
        elif row["family"] in ("timm-clip", "timm-siglip"):
            row["options"] = join("mlp_activation=gelu", row["options"])
        if hub.startswith("timm/") and hub not in seen:
            seen.add(hub)
            rows.append({**row, "name": hub, "url": hub_file(config), "sha256": SHA256.get(name)})
        original = original_of(config, row)
        if original and original["name"] not in seen:
            seen.add(original["name"])
            rows.append(original)
    rows.sort(key=lambda r: (r["name"].split("/")[0], r["name"]))
    with TARGET.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows, {TARGET.stat().st_size} bytes: {TARGET}")


def facts(name, config, architecture) -> dict:
    """Return the columns that timm's file and the original file of a model share."""
    return {
        "family": family(architecture),
        "image_size": config.input_size[1],
        "classes": config.num_classes or "",
        "preprocessing": preprocessing(config),
        "license": LICENCES.get(config.license, config.license),
        "top1": TOP1.get(name, ""),
        "top1_source": "timm" if name in TOP1 else "",
        "options": options(architecture),
    }


def family(architecture: str) -> str:
    """Return the family of `vit_keras.checkpoints.families` that reads timm's file."""
    for part, name in READERS.items():
        if part in architecture:
            return name
    return "timm"


READERS = {
    "mixer": "timm-mixer",
    "beit": "timm-beit",
    "dinov3": "dinov3",
    "distilled": "deit-distilled",
    "deit_": "deit",
    "eva02_": "eva02",
    "eva_": "timm",
    "naflexvit_base_patch16_siglip": "timm-naflex-map",
    "naflexvit_so400m_patch16_siglip": "timm-naflex-map",
    "naflexvit": "timm-naflex",
    "siglip_gap": "timm",
    "siglip": "timm-siglip",
    "clip": "timm-clip",
}
LICENCES = {
    "apache-2.0": "Apache-2.0",
    "dinov3-license": "DINOv3",
    "mit": "MIT",
    "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "cc-by-nc-sa-4.0": "CC-BY-NC-SA-4.0",
}


def preprocessing(config) -> str:
    """Return a preset and its crop: `clip@squash`, `timm@0.95`, `clip@squash0.95`."""
    preset = MEANS[tuple(config.mean)]
    if config.interpolation != ("bilinear" if preset == "miil" else "bicubic"):
        raise ValueError(f"{config.architecture}: {config.interpolation}")
    return f"{preset}@{'squash' if config.crop_mode == 'squash' else ''}" + (
        "" if (config.crop_mode, config.crop_pct) == ("squash", 1.0) else f"{config.crop_pct:g}"
    )


_ARCHITECTURES: dict[str, str] = {}


def options(architecture: str) -> str:
    """Return fields of `ViTConfig` that neither file nor family shows: heads not 64 wide, GELU, epsilon."""
    if architecture not in _ARCHITECTURES:
        with torch.device("meta"):
            model = timm.create_model(architecture, pretrained=False)
        block = model.blocks[0]
        found = []
        heads = getattr(getattr(block, "attn", None), "num_heads", None)
        if heads and heads * 64 != model.embed_dim:
            found.append(f"num_heads={heads}")
        activation = type(getattr(getattr(block, "mlp", None), "act", None)).__name__
        if activation in ACTIVATIONS:
            found.append(f"mlp_activation={ACTIVATIONS[activation]}")
        if hasattr(model, "embeds") and model.global_pool == "map":
            found.append(f"position_resize={model.embeds.pos_embed_interp_mode}_antialias")
        if block.norm1.eps != 1e-6:
            found.append(f"epsilon={block.norm1.eps:g}")
        _ARCHITECTURES[architecture] = " ".join(found)
    return _ARCHITECTURES[architecture]


def hub_file(config) -> str:
    """Return the name of a file on the hub, empty for the usual name."""
    return config.hf_hub_filename or ""


def original_of(config, row) -> dict | None:
    """Return the row of the file that its authors published at dl.fbaipublicfiles.com, if there is one."""
    match = re.match(r"https://dl\.fbaipublicfiles\.com/(.*/)?([\w.]+?)(-[0-9a-f]{8})?\.pth$", config.url or "")
    if match is None:
        return None
    crop = {"dino": "imagenet@0.875", "deit": "imagenet@0.875", "mae": "imagenet@0.875"}.get(match[1].split("/")[0])
    crop = "imagenet@1" if match[2].startswith("deit_3") else crop
    changes = {"top1": "", "top1_source": "", "preprocessing": crop or row["preprocessing"]}
    if match[2].startswith("deit_3"):
        changes["family"] = "deit3"
    elif match[2].startswith("dinov2"):
        changes["family"] = "dinov2"
    elif match[2].startswith("dino_"):
        changes["options"] = join(row["options"], "position_resize=bicubic_dino")
    return {**row, **changes, "name": f"facebook/{match[2]}", "url": config.url}


def join(*parts: str) -> str:
    """Join options; the last value of a name counts."""
    fields = dict(part.split("=") for part in " ".join(parts).split())
    return " ".join(f"{k}={v}" for k, v in fields.items())


if __name__ == "__main__":
    main()

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
# timm's own measurements, at the size of the file's configuration: `results/results-imagenet.csv` of its repository at
# commit 7479d451 (November 2024), and its release notes for so150m, so150m2 and so400m.
TOP1 = {
    "beit_base_patch16_224.in22k_ft_in22k_in1k": 85.244,
    "beit_base_patch16_384.in22k_ft_in22k_in1k": 86.816,
    "beit_large_patch16_224.in22k_ft_in22k_in1k": 87.488,
    "beit_large_patch16_384.in22k_ft_in22k_in1k": 88.382,
    "beit_large_patch16_512.in22k_ft_in22k_in1k": 88.578,
    "beitv2_base_patch16_224.in1k_ft_in1k": 85.596,
    "beitv2_base_patch16_224.in1k_ft_in22k_in1k": 86.494,
    "beitv2_large_patch16_224.in1k_ft_in1k": 87.414,
    "beitv2_large_patch16_224.in1k_ft_in22k_in1k": 88.406,
    "deit3_base_patch16_224.fb_in1k": 83.794,
    "deit3_base_patch16_224.fb_in22k_ft_in1k": 85.728,
    "deit3_base_patch16_384.fb_in1k": 85.086,
    "deit3_base_patch16_384.fb_in22k_ft_in1k": 86.744,
    "deit3_huge_patch14_224.fb_in1k": 85.222,
    "deit3_huge_patch14_224.fb_in22k_ft_in1k": 87.180,
    "deit3_large_patch16_224.fb_in1k": 84.778,
    "deit3_large_patch16_224.fb_in22k_ft_in1k": 86.986,
    "deit3_large_patch16_384.fb_in1k": 85.818,
    "deit3_large_patch16_384.fb_in22k_ft_in1k": 87.734,
    "deit3_medium_patch16_224.fb_in1k": 83.086,
    "deit3_medium_patch16_224.fb_in22k_ft_in1k": 84.566,
    "deit3_small_patch16_224.fb_in1k": 81.374,
    "deit3_small_patch16_224.fb_in22k_ft_in1k": 83.082,
    "deit3_small_patch16_384.fb_in1k": 83.428,
    "deit3_small_patch16_384.fb_in22k_ft_in1k": 84.842,
    "deit_base_distilled_patch16_224.fb_in1k": 83.388,
    "deit_base_distilled_patch16_384.fb_in1k": 85.428,
    "deit_base_patch16_224.fb_in1k": 81.980,
    "deit_base_patch16_384.fb_in1k": 83.116,
    "deit_small_distilled_patch16_224.fb_in1k": 81.216,
    "deit_small_patch16_224.fb_in1k": 79.862,
    "deit_tiny_distilled_patch16_224.fb_in1k": 74.540,
    "deit_tiny_patch16_224.fb_in1k": 72.196,
    "eva02_base_patch14_448.mim_in22k_ft_in1k": 88.266,
    "eva02_base_patch14_448.mim_in22k_ft_in22k_in1k": 88.682,
    "eva02_large_patch14_448.mim_in22k_ft_in1k": 89.632,
    "eva02_large_patch14_448.mim_in22k_ft_in22k_in1k": 89.966,
    "eva02_large_patch14_448.mim_m38m_ft_in1k": 89.554,
    "eva02_large_patch14_448.mim_m38m_ft_in22k_in1k": 90.054,
    "eva02_small_patch14_336.mim_in22k_ft_in1k": 85.760,
    "eva02_tiny_patch14_336.mim_in22k_ft_in1k": 80.672,
    "eva_giant_patch14_224.clip_ft_in1k": 88.886,
    "eva_giant_patch14_336.clip_ft_in1k": 89.462,
    "eva_giant_patch14_336.m30m_ft_in22k_in1k": 89.570,
    "eva_giant_patch14_560.m30m_ft_in22k_in1k": 89.796,
    "eva_large_patch14_196.in22k_ft_in1k": 87.956,
    "eva_large_patch14_196.in22k_ft_in22k_in1k": 88.596,
    "eva_large_patch14_336.in22k_ft_in1k": 88.690,
    "eva_large_patch14_336.in22k_ft_in22k_in1k": 89.250,
    "flexivit_base.1200ep_in1k": 84.688,
    "flexivit_base.300ep_in1k": 84.402,
    "flexivit_base.600ep_in1k": 84.560,
    "flexivit_large.1200ep_in1k": 85.644,
    "flexivit_large.300ep_in1k": 85.282,
    "flexivit_large.600ep_in1k": 85.530,
    "flexivit_small.1200ep_in1k": 82.592,
    "flexivit_small.300ep_in1k": 82.170,
    "flexivit_small.600ep_in1k": 82.392,
    "mixer_b16_224.goog_in21k_ft_in1k": 76.640,
    "mixer_b16_224.miil_in21k_ft_in1k": 82.310,
    "mixer_l16_224.goog_in21k_ft_in1k": 72.090,
    "vit_base_patch16_224.augreg2_in21k_ft_in1k": 85.110,
    "vit_base_patch16_224.augreg_in1k": 79.142,
    "vit_base_patch16_224.augreg_in21k_ft_in1k": 84.532,
    "vit_base_patch16_224.orig_in21k_ft_in1k": 81.786,
    "vit_base_patch16_224.sam_in1k": 80.242,
    "vit_base_patch16_224_miil.in21k_ft_in1k": 84.272,
    "vit_base_patch16_384.augreg_in1k": 81.096,
    "vit_base_patch16_384.augreg_in21k_ft_in1k": 86.006,
    "vit_base_patch16_384.orig_in21k_ft_in1k": 84.208,
    "vit_base_patch16_clip_224.laion2b_ft_in12k_in1k": 86.210,
    "vit_base_patch16_clip_224.laion2b_ft_in1k": 85.494,
    "vit_base_patch16_clip_224.openai_ft_in12k_in1k": 85.962,
    "vit_base_patch16_clip_224.openai_ft_in1k": 85.286,
    "vit_base_patch16_clip_384.laion2b_ft_in12k_in1k": 87.212,
    "vit_base_patch16_clip_384.laion2b_ft_in1k": 86.638,
    "vit_base_patch16_clip_384.openai_ft_in12k_in1k": 87.028,
    "vit_base_patch16_clip_384.openai_ft_in1k": 86.218,
    "vit_base_patch32_224.augreg_in1k": 74.906,
    "vit_base_patch32_224.augreg_in21k_ft_in1k": 80.736,
    "vit_base_patch32_224.sam_in1k": 73.706,
    "vit_base_patch32_384.augreg_in1k": 78.754,
    "vit_base_patch32_384.augreg_in21k_ft_in1k": 83.352,
    "vit_base_patch32_clip_224.laion2b_ft_in12k_in1k": 83.306,
    "vit_base_patch32_clip_224.laion2b_ft_in1k": 82.630,
    "vit_base_patch32_clip_224.openai_ft_in1k": 81.946,
    "vit_base_patch32_clip_384.laion2b_ft_in12k_in1k": 85.410,
    "vit_base_patch32_clip_384.openai_ft_in12k_in1k": 85.226,
    "vit_base_patch32_clip_448.laion2b_ft_in12k_in1k": 85.800,
    "vit_base_patch8_224.augreg2_in21k_ft_in1k": 86.228,
    "vit_base_patch8_224.augreg_in21k_ft_in1k": 85.836,
    "vit_base_r50_s16_384.orig_in21k_ft_in1k": 84.994,
    "vit_betwixt_patch16_reg1_gap_256.sbb_in1k": 83.644,
    "vit_betwixt_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k": 85.728,
    "vit_betwixt_patch16_reg4_gap_256.sbb_in12k_ft_in1k": 85.424,
    "vit_betwixt_patch16_reg4_gap_256.sbb_in1k": 83.708,
    "vit_betwixt_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k": 86.602,
    "vit_huge_patch14_clip_224.laion2b_ft_in12k_in1k": 88.278,
    "vit_huge_patch14_clip_224.laion2b_ft_in1k": 87.624,
    "vit_huge_patch14_clip_336.laion2b_ft_in12k_in1k": 88.628,
    "vit_large_patch14_clip_224.laion2b_ft_in12k_in1k": 87.898,
    "vit_large_patch14_clip_224.laion2b_ft_in1k": 87.298,
    "vit_large_patch14_clip_224.openai_ft_in12k_in1k": 88.162,
    "vit_large_patch14_clip_224.openai_ft_in1k": 87.860,
    "vit_large_patch14_clip_336.laion2b_ft_in12k_in1k": 88.192,
    "vit_large_patch14_clip_336.laion2b_ft_in1k": 87.866,
    "vit_large_patch14_clip_336.openai_ft_in12k_in1k": 88.264,
    "vit_large_patch16_224.augreg_in21k_ft_in1k": 85.850,
    "vit_large_patch16_384.augreg_in21k_ft_in1k": 87.094,
    "vit_large_patch32_384.orig_in21k_ft_in1k": 81.506,
    "vit_large_r50_s32_224.augreg_in21k_ft_in1k": 84.432,
    "vit_large_r50_s32_384.augreg_in21k_ft_in1k": 86.184,
    "vit_little_patch16_reg1_gap_256.sbb_in12k_ft_in1k": 83.802,
    "vit_little_patch16_reg4_gap_256.sbb_in1k": 82.514,
    "vit_medium_patch16_gap_256.sw_in12k_ft_in1k": 84.450,
    "vit_medium_patch16_gap_384.sw_in12k_ft_in1k": 85.554,
    "vit_medium_patch16_reg1_gap_256.sbb_in1k": 83.458,
    "vit_medium_patch16_reg4_gap_256.sbb_in12k_ft_in1k": 84.944,
    "vit_medium_patch16_reg4_gap_256.sbb_in1k": 83.468,
    "vit_mediumd_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k": 86.604,
    "vit_mediumd_patch16_reg4_gap_256.sbb_in12k_ft_in1k": 86.208,
    "vit_mediumd_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k": 87.436,
    "vit_small_patch16_224.augreg_in1k": 78.842,
    "vit_small_patch16_224.augreg_in21k_ft_in1k": 81.414,
    "vit_small_patch16_384.augreg_in1k": 81.134,
    "vit_small_patch16_384.augreg_in21k_ft_in1k": 83.804,
    "vit_small_patch32_224.augreg_in21k_ft_in1k": 75.996,
    "vit_small_patch32_384.augreg_in21k_ft_in1k": 80.482,
    "vit_small_r26_s32_224.augreg_in21k_ft_in1k": 81.844,
    "vit_small_r26_s32_384.augreg_in21k_ft_in1k": 84.074,
    "vit_so150m2_patch16_reg1_gap_256.sbb_e200_in12k_ft_in1k": 87.300,
    "vit_so150m2_patch16_reg1_gap_384.sbb_e200_in12k_ft_in1k": 87.900,
    "vit_so150m2_patch16_reg1_gap_448.sbb_e200_in12k_ft_in1k": 88.100,
    "vit_so150m_patch16_reg4_gap_256.sbb_e250_in12k_ft_in1k": 86.700,
    "vit_so150m_patch16_reg4_gap_384.sbb_e250_in12k_ft_in1k": 87.400,
    "vit_so400m_patch14_siglip_378.webli_ft_in1k": 89.420,
    "vit_so400m_patch14_siglip_gap_378.webli_ft_in1k": 89.030,
    "vit_tiny_patch16_224.augreg_in21k_ft_in1k": 75.452,
    "vit_tiny_patch16_384.augreg_in21k_ft_in1k": 78.446,
    "vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k": 71.820,
    "vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k": 75.962,
    "vit_wee_patch16_reg1_gap_256.sbb_in1k": 80.268,
}
# The authors' own, in the tables of facebookresearch/deit: README_deit.md and README_revenge.md.
ORIGINAL_TOP1 = {
    "facebook/deit_3_base_224_1k": 83.8,
    "facebook/deit_3_base_224_21k": 85.7,
    "facebook/deit_3_base_384_1k": 85.0,
    "facebook/deit_3_base_384_21k": 86.7,
    "facebook/deit_3_huge_224_1k": 85.2,
    "facebook/deit_3_huge_224_21k_v1": 87.2,
    "facebook/deit_3_large_224_1k": 84.9,
    "facebook/deit_3_large_224_21k": 87.0,
    "facebook/deit_3_large_384_1k": 85.8,
    "facebook/deit_3_large_384_21k": 87.7,
    "facebook/deit_3_small_224_1k": 81.4,
    "facebook/deit_3_small_224_21k": 83.1,
    "facebook/deit_3_small_384_1k": 83.4,
    "facebook/deit_3_small_384_21k": 84.8,
    "facebook/deit_base_distilled_patch16_224": 83.4,
    "facebook/deit_base_distilled_patch16_384": 85.2,
    "facebook/deit_base_patch16_224": 81.8,
    "facebook/deit_base_patch16_384": 82.9,
    "facebook/deit_small_distilled_patch16_224": 81.2,
    "facebook/deit_small_patch16_224": 79.9,
    "facebook/deit_tiny_distilled_patch16_224": 74.5,
    "facebook/deit_tiny_patch16_224": 72.2,
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
    name = f"facebook/{match[2]}"
    top1 = ORIGINAL_TOP1.get(name, "")
    changes = {"top1": top1, "top1_source": "facebook" if top1 else "", "preprocessing": crop or row["preprocessing"]}
    changes["architecture"] = config.architecture
    if match[2].startswith("deit_3"):
        changes["family"] = "deit3"
    elif match[2].startswith("dinov2"):
        changes["family"] = "dinov2"
    elif match[2].startswith("dino_"):
        changes["options"] = join(row["options"], "position_resize=bicubic_dino")
    return {**row, **changes, "name": name, "url": config.url}


def join(*parts: str) -> str:
    """Join options; the last value of a name counts."""
    fields = dict(part.split("=") for part in " ".join(parts).split())
    return " ".join(f"{k}={v}" for k, v in fields.items())


if __name__ == "__main__":
    main()

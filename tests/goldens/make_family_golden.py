#!/usr/bin/env python3
"""Write the golden files of tests/data/families: outputs of the original implementations of many families.

Run by hand, in an environment that holds the originals; no test needs them. The files that are committed came from

    torch 2.13.0 (CPU), timm 1.0.31, transformers 5.23.0, open_clip_torch 3.3.0, torchvision 0.28.0, vit-pytorch 1.26.11

    make_family_golden.py                 # every case
    make_family_golden.py timm_vit hf_    # those whose names begin so

vit-pytorch has changed its files over the years: with 0.40.2, 1.2.0 or 1.6.5 in its place, `make_family_golden.py
vit_pytorch` makes the cases of that version.

Every model is tiny and has seeded weights (`family_files.value`); it is built by its own library from the arguments of
the published one, the checkpoint has the names that its library writes to disk, and it is loaded by that library's own
loading code. The forward pass is in float64, so a golden file holds the formula and not somebody's rounding. Inputs
are (uint8 - 127.5) / 127.5 for every family.

Repositories that are on no package index (DINO, DINOv2, DINOv3, MAE, DeiT III, BEiT, EVA-02, OpenAI's CLIP) are reached
through timm, which reads their files: the weights are seeded under the original names and pass through timm's filters.
"""

import functools
import importlib.metadata
import inspect
import io
import json
import math
import pathlib
import sys
import tempfile
import warnings
import zipfile
import zlib

import numpy as np
import torch
from family_files import BUFFER, DIRECTORY, SEED, state_dict, write_safetensors
from make_google_npz import image

# torchvision's compiled operators need CUDA; its Python part, and so timm and open_clip, only their declarations.
_OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

CASES = {}
NATIVE, OTHER = (32, 32), (40, 24)
"""The other size has more rows and fewer columns of patches: a resize that only works one way, or mixes up the axes,
or leaves out the antialiasing, differs."""


def case_of(make, name, *args, **kwargs):
    """Register `make(*args, **kwargs)`, which returns what `make_golden` reads, as the case `name`."""
    if name in CASES:
        raise ValueError(f"there are two cases named {name}")
    CASES[name] = functools.partial(make, *args, **kwargs)


# ------------------------------------------------------------------------------------------------------------ common --


def shapes(tensors):
    """{name: shape} of {name: tensor}."""
    return {k: list(v.shape) for k, v in tensors.items()}


def as_torch(weights):
    """{name: tensor} of {name: array}."""
    return {k: torch.from_numpy(np.array(v)) for k, v in weights.items()}


def seen_after(module, call):
    """(what `call` returns, what `module` returned on the way)."""
    seen = []
    hook = module.register_forward_hook(lambda module, args, out: seen.append(out))
    out = call()
    hook.remove()
    return out, seen[-1]


def library(package):
    """'timm 1.0.31'."""
    return f"{package} {importlib.metadata.version(package)}"


def make_golden(name):
    """Build and run one case; write its file."""
    spec = CASES[name]()
    names, buffers = spec["names"], {k: np.asarray(v) for k, v in spec.get("buffers", {}).items()}
    weights = state_dict(SEED, names, buffers)
    sizes, arrays = [], {}
    for suffix, size in (("", spec.get("native", NATIVE)), ("_2", spec.get("other", OTHER))):
        if size is None:
            continue
        pixels = image(SEED, n=1 if suffix else 2, size=size)
        sizes.append([len(pixels), *size, zlib.crc32(pixels.tobytes())])
        x = torch.from_numpy((pixels.astype(np.float64) - 127.5) / 127.5).permute(0, 3, 1, 2)
        with torch.no_grad():
            output, tokens = spec["run"](weights, x)
        for key, tensor in (("output", output), ("tokens", tokens[:1])):
            if tensor.dtype != torch.float64 or not torch.isfinite(tensor).all():
                raise ValueError(f"{key} of {name} is {tensor.dtype} or not finite")
            arrays[key + suffix] = tensor.numpy().astype(np.float32)
    meta = {
        "family": spec["family"],
        "library": spec["library"],
        "class": spec["class"],
        "built": spec["built"],
        "seed": SEED,
        "output": spec.get("output", "logits"),
        "pool": spec.get("pool", "cls"),
        "final_norm": spec.get("final_norm", "tokens"),
        "prefix_tokens": spec.get("prefix_tokens", ["cls"]),
        "resize": spec["resize"] if len(sizes) > 1 else None,
        "resize_method": resize_method(spec["resize"]) if len(sizes) > 1 else None,
        "options": spec.get("options", {}),
        "notes": spec.get("notes", ""),
        "images": sizes,
        "config": spec.get("config"),
        "names": names,
    }
    arrays.update({BUFFER + k: v for k, v in buffers.items()})
    path = DIRECTORY / f"{name}.npz"
    save(path, {"meta": np.array(json.dumps(meta)), **arrays})
    return path


def resize_method(how):
    """What a case's `resize` is called in `vit_keras.positions`: its last words, by this table; None for no table."""
    methods = {
        "bicubic, antialias": "bicubic_antialias",
        "bicubic, no antialias": "bicubic",
        "bicubic, aligned corners": "bicubic_align_corners",
        "bicubic by the scale (n + 0.1) / N, no antialias": "bicubic_dino",
        "bilinear, antialias": "bilinear_antialias",
        "bilinear, no antialias": "bilinear",
        "geometric grid, linear interpolation": "geometric_linear",
        "of that grid": None,
    }
    return next(method for words, method in methods.items() if how.endswith(words))


def save(path, arrays):
    """`numpy.savez_compressed` with constant time stamps: the same numbers make the same file."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for key, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            z.writestr(zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0)), member.getvalue(), zipfile.ZIP_DEFLATED)


# -------------------------------------------------------------------------------------------------------------- timm --

TINY = {"patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "num_classes": 5}
ANTIALIASED = "timm's checkpoint filter into a model of that size: bicubic, antialias"


def timm_filter(model, adapt_layer_scale=False):
    """The checkpoint filter that timm runs for models of this module."""
    module = sys.modules[type(model).__module__]
    if type(model).__name__ == "VisionTransformerDistilled":
        adapt_layer_scale = True
    if adapt_layer_scale:
        return functools.partial(module.checkpoint_filter_fn, adapt_layer_scale=True)
    return module.checkpoint_filter_fn


def timm_case(
    entry, family, *, original=None, buffers=None, drop=(), adapt_layer_scale=False, table=None, other_args=None, **spec
):
    """A model of timm's by its entry point, with `TINY` and `spec['args']` in place of the published sizes.

    Args:
        entry: name of timm's entry point, or a function of the same arguments.
        family: of the case.
        original: {timm name: shape} to the {name: shape} of the original repository's file; timm's own by default.
        buffers: stored tensors of the checkpoint, {name: array}.
        drop: beginnings of names that the model has no use for and timm's filter does not drop.
        adapt_layer_scale: the argument of timm's filter that DeiT III's files need.
        other_args: `args` of the model of the other size.
        table: (weights, size) to weights, the resize of the original where it is not timm's.
        with_config (in `spec`): whether timm's config.json is stored too.
        **spec: `args` of the entry point and what `make_golden` reads.
    """
    import timm

    args = {**TINY, **spec.pop("args", {})}
    args = {k: v for k, v in args.items() if v is not None}
    native = spec.get("native", NATIVE)

    def build(size):
        more = args if size == native else {**args, **(other_args or {})}
        return entry(img_size=size, **more) if callable(entry) else timm.create_model(entry, img_size=size, **more)

    model = build(native)
    names = shapes(model.state_dict())
    if original:
        names = original(names)

    if spec.pop("with_config", False):
        spec["config"] = timm_config(model, args, native)

    def run(weights, x):
        size = tuple(x.shape[2:])
        if table and size != native:
            weights = table(weights, size)
        net = build(size)
        state = {k: v for k, v in as_torch(weights).items() if not k.startswith(tuple(drop) or "\0")}
        net.load_state_dict(timm_filter(net, adapt_layer_scale)(state, net), strict=True)
        net = net.double().eval()
        tokens = net.forward_features(x)
        return net.forward_head(tokens), tokens

    shown = ", ".join(f"{k}={getattr(v, '__name__', v)!r}" for k, v in args.items())
    return {
        "family": family,
        "library": library("timm"),
        "class": f"{type(model).__module__}.{type(model).__name__}",
        "built": (f"{entry.__name__}(" if callable(entry) else f"timm.create_model('{entry}', ")
        + f"img_size={native}, {shown})",
        "names": names,
        "buffers": buffers or {},
        "run": run,
        "resize": ANTIALIASED,
        "options": {"num_heads": 2},
        **spec,
    }


def timm_config(model, args, native):
    """The config.json that timm writes for the hub, as far as this package reads it."""
    from timm.models._hub import save_config_for_hf

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "config.json"
        save_config_for_hf(model, str(path), model_args={**args, "img_size": native})
        config = json.loads(path.read_text())
    kept = ("architecture", "num_classes", "num_features", "global_pool", "model_args")
    return {key: config[key] for key in kept if key in config}


def rectangle_cases():
    """Models whose own images are not squares: timm's with its config.json, transformers' with theirs."""
    add = functools.partial(case_of, timm_case, with_config=True, native=(24, 40), other=None)
    headless = {"args": {"num_classes": 0}, "output": "pooled", "pool": "cls"}
    add("rectangles/timm_vit", "vit_tiny_patch16_224", "timm", notes="15 patches and a class row: 16 rows")
    add("rectangles/timm_deit3", "deit3_small_patch16_224", "timm", native=(16, 64), notes="2 x 8 patches: 16 rows")
    add("rectangles/timm_clip", "vit_base_patch16_clip_224", "timm-clip", notes="15 patches and a class row")
    add("rectangles/timm_eva02", "eva02_tiny_patch14_224", "eva", **headless, notes="15 patches and a class row")
    add(
        "rectangles/timm_dinov2_reg4",
        "vit_small_patch14_reg4_dinov2",
        "timm",
        **headless,
        prefix_tokens=["cls", "reg", "reg", "reg", "reg"],
        notes="15 patches, no row for the five tokens before them",
    )
    add("rectangles/timm_beit", "beit_base_patch16_224", "timm-beit", native=(24, 32), final_norm="pooled")
    add = functools.partial(case_of, hf_case, native=(16, 64), other=None)
    classes = {"num_labels": 5, "image_size": [16, 64]}
    ratio = {"mlp_ratio": 2, "intermediate_size": None}
    add("rectangles/hf_vit", "ViTForImageClassification", "ViTConfig", "huggingface", args=classes)
    add(
        "rectangles/hf_dinov2",
        "Dinov2ForImageClassification",
        "Dinov2Config",
        "huggingface-dinov2",
        args={**classes, **ratio},
        notes="transformers reads the table of 2 x 8 patches as one of 4 x 4, and resamples it",
    )
    add(
        "rectangles/hf_beit",
        "BeitForImageClassification",
        "BeitConfig",
        "huggingface-beit",
        args={**classes, "image_size": [24, 32], "use_relative_position_bias": True, "use_mean_pooling": True},
        native=(24, 32),
        final_norm="pooled",
        notes="transformers reads its tables as (across, down), and resamples them to (down, across)",
    )


def timm_cases():
    """Models under timm's own names."""
    headless = {"args": {"num_classes": 0}, "output": "pooled", "pool": "cls"}
    registers = ["cls", "reg", "reg", "reg", "reg"]
    add = functools.partial(case_of, timm_case)
    add("timm_vit", "vit_tiny_patch16_224", "timm")
    add(
        "timm_vit_fc_norm",
        "vit_base_patch16_224",
        "timm",
        args={"global_pool": "avg"},
        pool="mean of patches, fc_norm",
        final_norm="pooled",
        notes="as MAE is fine-tuned: class token, mean of the patches without it, norm after pooling",
    )
    add(
        "timm_vit_gap",
        "vit_medium_patch16_gap_240",
        "timm",
        prefix_tokens=[],
        pool="mean of patches",
        notes="no class token, no qkv bias, layer scale",
    )
    add(
        "timm_vit_reg1_gap",
        "vit_wee_patch16_reg1_gap_256",
        "timm",
        prefix_tokens=["reg"],
        pool="mean of patches, fc_norm",
        final_norm="pooled",
        notes="a register, no class token",
    )
    add(
        "timm_deit_distilled",
        "deit_tiny_distilled_patch16_224",
        "timm",
        prefix_tokens=["cls", "dist"],
        pool="cls and dist, each with its head",
    )
    add("timm_deit3", "deit3_small_patch16_224", "timm", notes="the table has no row for cls")
    add("timm_dinov2", "vit_small_patch14_dinov2", "timm", **headless)
    add(
        "timm_dinov2_reg4",
        "vit_small_patch14_reg4_dinov2",
        "timm",
        prefix_tokens=registers,
        notes="the table has no rows for cls and registers; no head, as published",
        **headless,
    )
    add(
        "timm_dinov2_giant",
        "vit_giant_patch14_dinov2",
        "timm",
        output="pooled",
        pool="cls",
        args={"num_classes": 0, "mlp_ratio": 4},
        notes="fc1 is [gate; value], silu(gate) * value",
    )
    rope = {"num_classes": 0, "global_pool": "token"}
    no_table = {"num_heads": 2, "image_size": 32}
    rotary = {
        "prefix_tokens": registers,
        "output": "pooled",
        "pool": "cls",
        "options": no_table,
        "resize": "rotary positions of that grid",
        "notes": "the original makes its sines in float32",
    }
    add("timm_dinov3", "vit_small_patch16_dinov3", "timm", args=rope, **rotary)
    add("timm_dinov3_qkvb", "vit_small_patch16_dinov3_qkvb", "timm", args=rope, **rotary)
    add("timm_dinov3_plus", "vit_small_plus_patch16_dinov3", "timm", args=rope, **rotary)
    add(
        "timm_siglip",
        "vit_base_patch16_siglip_224",
        "timm",
        prefix_tokens=[],
        pool="map",
        options={"num_heads": 2, "mlp_activation": "gelu"},
        notes="timm runs this SigLIP with the exact GELU, others of its sizes and its authors with the tanh one",
    )
    add(
        "timm_siglip_tanh",
        "vit_so400m_patch16_siglip_256",
        "timm",
        prefix_tokens=[],
        pool="map",
        options={"num_heads": 2, "mlp_activation": "gelu_tanh"},
    )
    add(
        "timm_vit_map",
        "vit_tiny_patch16_224",
        "timm",
        args={"global_pool": "map", "reg_tokens": 4},
        prefix_tokens=registers,
        options={"num_heads": 2, "mlp_activation": "gelu"},
        pool="attention pooling over the patches alone",
        notes="timm leaves the class token and the registers out of the pooling",
    )
    add(
        "timm_vit_all",
        "vit_tiny_patch16_224",
        "timm",
        args={"global_pool": "avg", "pool_include_prefix": True},
        options={"num_heads": 2, "pooling": "all"},
        pool="mean of all tokens, fc_norm",
        final_norm="pooled",
    )
    add("timm_siglip_gap", "vit_base_patch16_siglip_gap_224", "timm", prefix_tokens=[], pool="mean of patches")
    add(
        "timm_clip_quickgelu",
        "vit_base_patch32_clip_quickgelu_224",
        "timm",
        options={"num_heads": 2, "mlp_activation": "quick_gelu"},
    )
    add("timm_clip", "vit_base_patch32_clip_224", "timm", options={"num_heads": 2, "mlp_activation": "gelu"})
    add(
        "timm_beit",
        "beit_base_patch16_224",
        "timm",
        pool="mean of patches, fc_norm",
        resize=GEOMETRIC,
        options={},
        final_norm="pooled",
    )
    add(
        "timm_beitv2",
        "beitv2_base_patch16_224",
        "timm",
        pool="mean of patches, fc_norm",
        resize=GEOMETRIC,
        options={},
        final_norm="pooled",
    )
    add(
        "timm_beit_shared",
        "beit_base_patch16_224",
        "timm",
        pool="mean of patches, fc_norm",
        resize=GEOMETRIC,
        options={},
        args={"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
        notes="one table for all blocks, as in BEiT's pre-trained files",
        final_norm="pooled",
    )
    add(
        "timm_eva02",
        "eva02_tiny_patch14_224",
        "timm",
        pool="mean of patches, fc_norm",
        notes="rotary positions of a 16x16 reference grid whatever the grid, and a table",
        final_norm="pooled",
    )
    add(
        "timm_eva02_large",
        "eva02_large_patch14_224",
        "timm",
        pool="mean of patches, fc_norm",
        final_norm="pooled",
        notes="as timm_eva02, with separate q, k, v and a norm inside the MLP",
    )
    add(
        "timm_eva02_clip",
        "eva02_large_patch14_clip_224",
        "timm",
        notes="as timm_eva02_large, with a norm before the attention's projection",
    )
    add("timm_eva_giant", "eva_giant_patch14_224", "eva", pool="mean of patches, fc_norm", final_norm="pooled")
    add(
        "timm_eva02_enormous",
        "eva02_enormous_patch14_clip_224",
        "eva",
        options={"num_heads": 2, "post_norm": True},
        notes="norms after the attention and after the MLP",
    )
    add(
        "timm_rpn",
        "vit_base_patch16_rpn_224",
        "timm",
        prefix_tokens=[],
        pool="mean of patches, fc_norm",
        final_norm="pooled",
        options={"num_heads": 2, "post_norm": True},
        notes="norms after the attention and after the MLP",
    )
    add(
        "timm_so150m_reg4_gap",
        "vit_so150m_patch16_reg4_gap_256",
        "timm",
        prefix_tokens=["reg", "reg", "reg", "reg"],
        pool="mean of patches",
        notes="the table has rows for the registers",
    )
    add(
        "timm_rope_reg4_gap",
        "vit_betwixt_patch16_rope_reg4_gap_256",
        "timm-rope",
        prefix_tokens=["reg", "reg", "reg", "reg"],
        pool="mean of patches, fc_norm",
        final_norm="pooled",
        options=no_table,
        resize="rotary positions of that grid",
        notes="rotary positions of a 16x16 reference grid whatever the grid",
    )
    for kind in ("rope", "rope_mixed"):
        add(
            f"timm_{kind}",
            f"vit_small_patch16_{kind}_224",
            "rope-vit",
            options=no_table,
            resize="rotary positions of that grid",
        )
    add("timm_rope_mixed_ape", "vit_small_patch16_rope_mixed_ape_224", "rope-vit", notes="the table has no row for cls")
    add(
        "timm_rope_ape",
        "vit_small_patch16_rope_ape_224",
        "deit3",
        options={"num_heads": 2},
        notes="the arrays are those of DeiT III",
    )
    add("timm_radio", "vit_base_patch16_radio_v3", "timm-unnormed", final_norm="none", **headless)
    naflex = {"args": {"pos_embed_grid_size": (4, 4)}, "resize": "the model itself: bicubic, antialias"}
    add(
        "timm_naflex_gap",
        "naflexvit_base_patch16_gap",
        "timm-naflex",
        prefix_tokens=["reg", "reg", "reg", "reg"],
        pool="mean of patches, fc_norm",
        final_norm="pooled",
        notes="a linear layer on flattened patches, a table with two axes",
        **naflex,
    )
    add(
        "timm_naflex_siglip",
        "naflexvit_base_patch16_siglip",
        "timm-naflex-map",
        prefix_tokens=[],
        pool="map",
        options={"num_heads": 2, "mlp_activation": "gelu_tanh", "position_resize": "bilinear_antialias"},
        **{**naflex, "resize": "the model itself: bilinear, antialias"},
    )
    reference = {"ref_feat_shape": (4, 4)}
    perception = {"num_heads": 2, "rope_grid": (4, 4)}
    add(
        "timm_pe_core",
        "vit_pe_core_base_patch16_224",
        "timm-pe",
        args={**reference, "mlp_ratio": 3},
        pool="map",
        options=perception,
        notes="eight heads and another mlp_dim in the attention pooling",
    )
    for kind, entry in (("lang", "vit_pe_lang_large_patch14_448"), ("spatial", "vit_pe_spatial_base_patch16_512")):
        add(
            f"timm_pe_{kind}",
            entry,
            "timm-pe-spatial",
            args=reference,
            pool="mean of patches",
            options=perception,
            final_norm="none",
        )
    add(
        "timm_flexivit",
        "flexivit_small",
        "timm",
        other=(30, 18),
        other_args={"patch_size": 6},
        resize="timm's checkpoint filter into patches of 6: PI-resize by bicubic, antialias",
        notes="other size: patches of 6",
    )
    add(
        "timm_hybrid_r",
        "vit_tiny_r_s16_p8_224",
        "timm",
        native=(96, 96),
        other=(128, 64),
        resize=ANTIALIASED,
        notes="ResNet root without stages; a patch is 32 pixels",
    )
    add(
        "timm_hybrid_r8",
        small_hybrid,
        "timm",
        native=(64, 64),
        other=(80, 48),
        args={"patch_size": 2},
        notes="ResNet of stages (1, 2) before 2x2 patches",
    )
    add("timm_mixer", small_mixer, "timm", other=None, prefix_tokens=[], pool="mean of patches", options={})


GEOMETRIC = "timm's checkpoint filter into a model of that size: geometric grid, linear interpolation"


def small_hybrid(img_size, **args):
    """timm's R26+ViT-S/32 with fewer stages, which its entry point cannot be asked for."""
    from timm.models import vision_transformer_hybrid as hybrid

    return hybrid._create_vision_transformer_hybrid(
        "vit_small_r26_s32_224", backbone=hybrid._resnetv2((1, 2)), img_size=img_size, **args
    )


def small_mixer(img_size, *, patch_size, embed_dim, depth, num_classes, **_):
    """timm's Mixer, whose entry point takes no sizes."""
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(
        img_size=img_size[0], patch_size=patch_size, num_blocks=depth, embed_dim=embed_dim, num_classes=num_classes
    )


# ---------------------------------------------------------------------------------- original names, read through timm
# --


def renamed(*pairs, extra=None, drop=()):
    """A function from timm's {name: shape} to the original's: text replaced in order, tensors added and left out."""

    def original(names):
        out = {}
        for name, shape in names.items():
            for old, new in pairs:
                name = name.replace(old, new)
            if not name.startswith(tuple(drop) or "\0"):
                out[name] = shape
        return {**out, **(extra or {})}

    return original


def dino_table(antialias, offset):
    """DINO's and DINOv2's own resize of the table: bicubic, by a scale that is a little too large (`offset` 0.1)."""

    def resize(weights, size):
        table = torch.from_numpy(weights["pos_embed"]).double()
        side, rows, columns = math.isqrt(table.shape[1] - 1), size[0] // 8, size[1] // 8
        grid = table[:, 1:].reshape(1, side, side, -1).permute(0, 3, 1, 2)
        how = (
            {"scale_factor": ((rows + offset) / side, (columns + offset) / side)}
            if offset
            else {"size": (rows, columns)}
        )
        grid = torch.nn.functional.interpolate(grid, mode="bicubic", antialias=antialias, **how)
        if grid.shape[2:] != (rows, columns):
            raise ValueError(f"resized to {tuple(grid.shape[2:])}, not to {(rows, columns)}")
        table = torch.cat([table[:, :1], grid.flatten(2).transpose(1, 2)], 1)
        return {**weights, "pos_embed": table.float().numpy()}

    return resize


def original_cases():
    """Files of repositories that are no packages, under their own names."""
    add = functools.partial(case_of, timm_case)
    headless = {"args": {"num_classes": 0}, "output": "pooled", "pool": "cls"}
    mask = {"mask_token": [1, 64]}
    add(
        "dino_original",
        "vit_small_patch16_224",
        "dino",
        table=dino_table(False, 0.1),
        resize="DINO's own: bicubic by the scale (n + 0.1) / N, no antialias",
        **headless,
    )
    add(
        "dinov2_hub",
        "vit_small_patch14_dinov2",
        "dinov2",
        original=renamed(extra=mask),
        table=dino_table(False, 0.1),
        resize="the hub's own: bicubic by the scale (n + 0.1) / N, no antialias",
        **headless,
    )
    with_registers = renamed(("reg_token", "register_tokens"), extra={"pos_embed": [1, 17, 64], **mask})
    add(
        "dinov2_hub_reg4",
        "vit_small_patch14_reg4_dinov2",
        "dinov2",
        original=with_registers,
        prefix_tokens=["cls", "reg", "reg", "reg", "reg"],
        table=dino_table(True, 0.0),
        resize="the hub's own: bicubic, antialias",
        notes="the table has a row for cls, none for registers",
        **headless,
    )
    add(
        "dinov2_hub_giant",
        "vit_giant_patch14_dinov2",
        "dinov2",
        args={"num_classes": 0, "mlp_ratio": 4},
        original=renamed(("mlp.fc1", "mlp.w12"), ("mlp.fc2", "mlp.w3"), extra=mask),
        table=dino_table(False, 0.1),
        resize="the hub's own: bicubic by the scale (n + 0.1) / N, no antialias",
        output="pooled",
        pool="cls",
        notes="w12 is [gate; value], silu(gate) * value",
    )
    for name, entry, gated in (
        ("dinov3_original", "vit_small_patch16_dinov3_qkvb", False),
        ("dinov3_original_plus", "vit_small_plus_patch16_dinov3_qkvb", True),
    ):
        dinov3(add, name, entry, gated)
    decoder = {
        "mask_token": [1, 1, 64],
        "decoder_pos_embed": [1, 17, 32],
        "decoder_embed.weight": [32, 64],
        "decoder_embed.bias": [32],
        "decoder_blocks.0.norm1.weight": [32],
        "decoder_blocks.0.norm1.bias": [32],
        "decoder_blocks.0.attn.qkv.weight": [96, 32],
        "decoder_blocks.0.attn.qkv.bias": [96],
        "decoder_blocks.0.attn.proj.weight": [32, 32],
        "decoder_blocks.0.attn.proj.bias": [32],
        "decoder_blocks.0.norm2.weight": [32],
        "decoder_blocks.0.norm2.bias": [32],
        "decoder_blocks.0.mlp.fc1.weight": [64, 32],
        "decoder_blocks.0.mlp.fc1.bias": [64],
        "decoder_blocks.0.mlp.fc2.weight": [32, 64],
        "decoder_blocks.0.mlp.fc2.bias": [32],
        "decoder_norm.weight": [32],
        "decoder_norm.bias": [32],
        "decoder_pred.weight": [192, 32],
        "decoder_pred.bias": [192],
    }
    add(
        "mae_original",
        "vit_base_patch16_224",
        "mae",
        original=renamed(extra=decoder),
        drop=("decoder_",),
        notes="with its decoder, as in mae_visualize_*.pth",
        **headless,
    )
    add(
        "deit3_original",
        "deit3_small_patch16_224",
        "deit3",
        adapt_layer_scale=True,
        original=renamed(("ls1.gamma", "gamma_1"), ("ls2.gamma", "gamma_2")),
        notes="the table has no row for cls",
    )
    index = {f"blocks.{i}.attn.relative_position_index": relative_index(4) for i in range(2)}
    add(
        "beit_original",
        "beit_base_patch16_224",
        "beit",
        pool="mean of patches, fc_norm",
        resize=GEOMETRIC,
        options={},
        original=renamed(extra={k: list(v.shape) for k, v in index.items()}),
        buffers=index,
        final_norm="pooled",
    )
    swiglu = (("mlp.fc1_g", "mlp.w1"), ("mlp.fc1_x", "mlp.w2"), ("mlp.fc2", "mlp.w3"), ("mlp.norm", "mlp.ffn_ln"))
    add(
        "eva02_original",
        "eva02_large_patch14_224",
        "eva02",
        pool="mean of patches, fc_norm",
        drop=("rope.",),
        original=renamed(*swiglu, extra={"rope.freqs_cos": [16, 32], "rope.freqs_sin": [16, 32]}),
        buffers={"rope.freqs_cos": np.ones((16, 32), np.float32), "rope.freqs_sin": np.zeros((16, 32), np.float32)},
        notes="rotary positions of a 16x16 reference grid, whose stored sines are not read",
        final_norm="pooled",
    )
    clip = renamed(
        ("blocks.", "transformer.resblocks."), ("norm_pre", "ln_pre"), ("patch_embed.proj", "conv1"), ("norm1", "ln_1"),
        ("norm2", "ln_2"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj"), ("attn.proj", "attn.out_proj"),
        ("attn.qkv.", "attn.in_proj_"), drop=("norm.", "head.", "cls_token", "pos_embed"),
        extra={"ln_post.weight": [64], "ln_post.bias": [64], "class_embedding": [64], "positional_embedding": [17, 64],
               "proj": [64, 5]}
    )  # fmt: skip
    text = {
        "positional_embedding": [7, 32],
        "text_projection": [32, 5],
        "logit_scale": [],
        "token_embedding.weight": [11, 32],
        "transformer.resblocks.0.ln_1.weight": [32],
        "transformer.resblocks.0.ln_1.bias": [32],
        "transformer.resblocks.0.ln_2.weight": [32],
        "transformer.resblocks.0.ln_2.bias": [32],
        "transformer.resblocks.0.attn.in_proj_weight": [96, 32],
        "transformer.resblocks.0.attn.in_proj_bias": [96],
        "transformer.resblocks.0.attn.out_proj.weight": [32, 32],
        "transformer.resblocks.0.attn.out_proj.bias": [32],
        "transformer.resblocks.0.mlp.c_fc.weight": [128, 32],
        "transformer.resblocks.0.mlp.c_fc.bias": [128],
        "transformer.resblocks.0.mlp.c_proj.weight": [32, 128],
        "transformer.resblocks.0.mlp.c_proj.bias": [32],
        "ln_final.weight": [32],
        "ln_final.bias": [32],
    }
    integers = {"input_resolution": np.array(32), "context_length": np.array(7), "vocab_size": np.array(11)}
    add(
        "openai_clip",
        "vit_base_patch32_clip_quickgelu_224",
        "clip",
        buffers=integers,
        original=lambda names: {
            **{"visual." + k: v for k, v in clip(names).items()},
            **text,
            **{k: [] for k in integers},
        },
        options={"num_heads": 2, "mlp_activation": "quick_gelu"},
        notes="both towers; the head is the projection, without bias",
    )
    trunk = {f"text.{k}": v for k, v in text.items()}
    add(
        "open_clip_siglip",
        "vit_base_patch16_siglip_224",
        "siglip",
        prefix_tokens=[],
        pool="map",
        args={"num_classes": 0},
        output="pooled",
        original=lambda names: {**{"visual.trunk." + k: v for k, v in names.items()}, **trunk, "logit_bias": []},
        options={"num_heads": 2, "mlp_activation": "gelu"},
        notes="both towers, timm's inside open_clip's",
    )


def relative_index(side):
    """BEiT's stored index of a square window: which row of the table a pair of tokens reads."""
    from timm.models.beit import gen_relative_position_index

    return gen_relative_position_index((side, side)).numpy()


def dinov3(add, name, entry, gated):
    """DINOv3's own file: every tensor of timm's, the bias with its mask, and what training left behind."""
    qkv = {f"blocks.{i}.attn.qkv.bias": [192] for i in range(2)}
    masks = {k + "_mask": np.repeat(np.float32([1, 0, 1]), 64) for k in qkv}
    periods = {"rope_embed.periods": (100.0 ** (np.arange(8) / 8)).astype(np.float32)}
    buffers = {**masks, **periods}
    extra = {**qkv, **{k: list(v.shape) for k, v in buffers.items()}, "mask_token": [1, 64]}
    extra.update({"local_cls_norm.weight": [64], "local_cls_norm.bias": [64]})
    pairs = [("gamma_1", "ls1.gamma"), ("gamma_2", "ls2.gamma"), ("reg_token", "storage_tokens")]
    if gated:
        pairs += [("mlp.fc1_g", "mlp.w1"), ("mlp.fc1_x", "mlp.w2"), ("mlp.fc2", "mlp.w3")]
    rename = renamed(*pairs, extra=extra)
    add(
        name,
        entry,
        "dinov3",
        args={"num_classes": 0, "global_pool": "token"},
        buffers=buffers,
        original=lambda names: {k: v for k, v in rename(names).items() if not k.endswith(("q_bias", "v_bias"))},
        prefix_tokens=["cls", "reg", "reg", "reg", "reg"],
        output="pooled",
        pool="cls",
        resize="rotary positions of that grid",
        options={"num_heads": 2, "image_size": 32},
        notes="the mask takes the bias from the keys; the original makes its sines in float32",
    )


# ------------------------------------------------------------------------------------------------------ transformers --

HF_TINY = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
}
HF_RESIZE = "interpolate_pos_encoding=True: bicubic, no antialias"


def hf_disk(model):
    """(state dict, config) as `save_pretrained` writes them."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        return load_file(f"{d}/model.safetensors"), json.loads(pathlib.Path(d, "config.json").read_text())


def hf_load(cls, weights, config, parts):
    """The model in float64 from a directory with these weights and this config.json; every tensor must be used."""
    with tempfile.TemporaryDirectory() as d:
        pathlib.Path(d, "config.json").write_text(json.dumps(config))
        write_safetensors(f"{d}/model.safetensors", weights)
        model, info = cls.from_pretrained(d, output_loading_info=True, attn_implementation="eager", **parts)
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise ValueError(f"{cls.__name__} was not loaded as it is: {wrong}")
    return model.double().eval()


def hf_forward(model, x, native):
    """(output, tokens) of an image model: logits or what it pools, and the last hidden state of its trunk."""
    kwargs = {}
    if not native and "interpolate_pos_encoding" in inspect.signature(model.forward).parameters:
        kwargs["interpolate_pos_encoding"] = True
    out, trunk = seen_after(model.base_model, lambda: model(pixel_values=x, **kwargs))
    tokens = getattr(out, "last_hidden_state", None)
    tokens = trunk[0] if tokens is None else tokens
    for key in ("logits", "image_embeds", "pooler_output"):
        if getattr(out, key, None) is not None:
            return getattr(out, key), tokens
    return tokens[:, 0], tokens


def clip_forward(model, x, native):
    """As `hf_forward`; the last norm, which CLIP needs for its class token only, is on all tokens."""
    output, tokens = hf_forward(model, x, native)
    tower = getattr(model, "vision_model", model)
    return output, tower.post_layernorm(tokens)


def hf_case(
    cls_name,
    config_name,
    family,
    *,
    args=None,
    parts=None,
    forward=hf_forward,
    disk=None,
    load=dict,
    keep_config=True,
    **spec,
):
    """A model of transformers', `HF_TINY` and `args` in its configuration; `parts` are arguments of its class."""
    import transformers

    cls, parts = getattr(transformers, cls_name), parts or {}
    settings = {**HF_TINY, **(args or {})}
    settings = {k: v for k, v in settings.items() if v is not None}
    model = cls(getattr(transformers, config_name)(**settings), **parts)
    written, config = hf_disk(model)
    names, stored = shapes(written), {k: v.numpy() for k, v in written.items() if not v.is_floating_point()}
    if disk:
        names, stored = disk(names)
    native = spec.get("native", NATIVE)

    def run(weights, x):
        net = hf_load(cls, load(weights), config, parts)
        return forward(net, x, tuple(x.shape[2:]) == native)

    return {
        "family": family,
        "library": library("transformers"),
        "class": f"{cls.__module__}.{cls.__name__}",
        "built": f"{cls_name}({config_name}(" + ", ".join(f"{k}={v!r}" for k, v in settings.items()) + "))",
        "names": names,
        "buffers": stored,
        "config": config if keep_config else None,
        "run": run,
        "resize": HF_RESIZE,
        **spec,
    }


def tower_forward(*path, pool="cls"):
    """A forward pass of the image tower alone, the part `path` of a whole model; `pool` is made of its last tokens."""

    def forward(model, x, native):
        tower = functools.reduce(getattr, path, model)
        kwargs = {}
        if "interpolate_pos_encoding" in inspect.signature(tower.forward).parameters:
            kwargs["interpolate_pos_encoding"] = not native
        out = tower(pixel_values=x, **kwargs)
        tokens = out.last_hidden_state
        return {"cls": tokens[:, 0], "mean": tokens.mean(1), "pooler": out.get("pooler_output")}[pool], tokens

    return forward


def beit_masked(model, x, native):
    """BEiT before its head for masked pictures, whose norm is the last one."""
    tokens = model.layernorm(model.beit(pixel_values=x).last_hidden_state)
    return tokens[:, 0], tokens


OPENGVLAB = (
    ("embeddings.cls_token", "embeddings.class_embedding"),
    ("embeddings.position_embeddings", "embeddings.position_embedding"),
    ("embeddings.patch_embeddings.projection.", "embeddings.patch_embedding."),
    ("encoder.layer.", "encoder.layers."),
    (".attention.projection_layer.", ".attn.proj."),
    (".attention.q_proj.", ".attn.qkv."),
    (".layernorm_before.", ".norm1."),
    (".layernorm_after.", ".norm2."),
    (".lambda_", ".ls"),
)


def opengvlab(names):
    """OpenGVLab's names of an InternViT, which has one array for query, key and value."""
    found = {}
    for name, shape in names.items():
        if not any(part in name for part in ("k_proj", "v_proj")):
            shape = [3 * shape[0], *shape[1:]] if "q_proj" in name else shape
            found[functools.reduce(lambda n, pair: n.replace(*pair), OPENGVLAB, name)] = shape
    return found, {}


def from_opengvlab(weights):
    """The weights of an InternViT under the names of transformers."""
    found = {}
    for name, value in weights.items():
        name = functools.reduce(lambda n, pair: n.replace(*reversed(pair)), OPENGVLAB, name)
        parts = np.split(value, 3) if "q_proj" in name else [value]
        found |= {name.replace("q_proj", f"{part}_proj"): array for part, array in zip("qkv", parts)}
    return found


def blip_retrieval(model, x, native):
    """BLIP's class token as it is compared with texts, before it is made one unit long."""
    output, tokens = tower_forward("vision_model")(model, x, native)
    return model.vision_proj(output), tokens


def owl_forward(model, x, native):
    """OWL-ViT's tower inside its detector; the last norm, as the detector has it, on all tokens."""
    tower = next(getattr(model, name) for name in ("owlvit", "owlv2") if hasattr(model, name)).vision_model
    tokens = tower(pixel_values=x, interpolate_pos_encoding=not native).last_hidden_state
    return tower.post_layernorm(tokens[:, 0]), tower.post_layernorm(tokens)


def clip_tower(*path):
    """CLIP's tower inside another model; the last norm on all tokens."""

    def forward(model, x, native):
        return clip_forward(functools.reduce(getattr, path, model), x, native)

    return forward


def backbone_forward(model, x, native):
    """The last feature map of a backbone, whose class token is pooled."""
    tokens = model.backbone(x).feature_maps[-1]
    return tokens[:, 0], tokens


def mae_forward(model, x, native):
    """ViTMAE's encoder with nothing masked and the patches in their order."""
    trunk = getattr(model, "vit", model)
    patches = (x.shape[2] // 8) * (x.shape[3] // 8)
    trunk.embeddings.config.mask_ratio = 0.0
    noise = torch.arange(patches).expand(len(x), -1)
    tokens = trunk(pixel_values=x, noise=noise, interpolate_pos_encoding=not native).last_hidden_state
    return tokens[:, 0], tokens


def clip_of_both(model, x, native):
    """The image tower of CLIP's two, and the projection of what it pools."""
    output, tokens = clip_forward(model.vision_model, x, native)
    return model.visual_projection(output), tokens


def mean_classifier(model, x, native):
    """A classifier on the mean of CLIP's or SigLIP's last hidden states."""
    out, tower = seen_after(model.vision_model, lambda: model(pixel_values=x, interpolate_pos_encoding=not native))
    return out.logits, tower.last_hidden_state


def siglip_of_both(model, x, native):
    """The image tower of SigLIP's two."""
    return hf_forward(model.vision_model, x, native)


def transformers_4(positions):
    """What transformers 4 wrote for the image tower of CLIP or SigLIP: a prefix, and where its tokens are."""

    def disk(names):
        index = {"vision_model.embeddings.position_ids": np.arange(positions)[None]}
        return {
            **{f"vision_model.{k}": v for k, v in names.items()},
            "vision_model.embeddings.position_ids": [1, positions],
        }, index

    return disk


def naflex_forward(model, x, native):
    """SigLIP 2's NaFlex: rows of flattened patches (row, column, channel), and the grid they come from."""
    n, c, height, width = x.shape
    rows, columns = height // 8, width // 8
    patches = x.permute(0, 2, 3, 1).reshape(n, rows, 8, columns, 8, c).transpose(2, 3).reshape(n, rows * columns, -1)
    out = model(
        pixel_values=patches,
        pixel_attention_mask=torch.ones(n, rows * columns, dtype=torch.int64),
        spatial_shapes=torch.tensor([[rows, columns]]).expand(n, 2),
    )
    return out.pooler_output, out.last_hidden_state


def hf_cases():
    """Models of transformers', with their config.json."""
    add = functools.partial(case_of, hf_case)
    classes = {"num_labels": 5}
    registers = ["cls", "reg", "reg", "reg", "reg"]
    cls = {"output": "pooled", "pool": "cls"}
    ratio = {"mlp_ratio": 2, "intermediate_size": None}
    text = {
        "vocab_size": 11,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 7,
    }
    towers = {**dict.fromkeys(HF_TINY), "text_config": text, "vision_config": HF_TINY}
    add("hf_vit", "ViTForImageClassification", "ViTConfig", "hf", args=classes)
    add("hf_vit_no_qkv_bias", "ViTForImageClassification", "ViTConfig", "hf", args={**classes, "qkv_bias": False})
    add("hf_vit_pooler", "ViTModel", "ViTConfig", "hf", output="pooled", pool="tanh(dense(cls))")
    add("hf_vit_mae", "ViTMAEModel", "ViTMAEConfig", "hf", forward=mae_forward, **cls)
    decoder = {
        "decoder_hidden_size": 32,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 2,
        "decoder_intermediate_size": 64,
    }
    add(
        "hf_vit_mae_pretraining",
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        "hf",
        forward=mae_forward,
        args=decoder,
        notes="with its decoder",
        **cls,
    )
    add("hf_vit_msn", "ViTMSNForImageClassification", "ViTMSNConfig", "hf", args=classes)
    add(
        "hf_ijepa",
        "IJepaForImageClassification",
        "IJepaConfig",
        "hf",
        args=classes,
        prefix_tokens=[],
        pool="mean of patches",
    )
    add(
        "hf_deit",
        "DeiTForImageClassification",
        "DeiTConfig",
        "hf",
        args=classes,
        prefix_tokens=["cls", "dist"],
        notes="the distillation token is there, its head is not",
    )
    add(
        "hf_deit_distilled",
        "DeiTForImageClassificationWithTeacher",
        "DeiTConfig",
        "hf",
        args=classes,
        prefix_tokens=["cls", "dist"],
        pool="cls and dist, each with its head",
    )
    dinov2 = {"resize": "its own: bicubic, no antialias"}
    add("hf_dinov2", "Dinov2Model", "Dinov2Config", "hf", args=ratio, **cls, **dinov2)
    add(
        "hf_dinov2_classifier",
        "Dinov2ForImageClassification",
        "Dinov2Config",
        "hf",
        args={**ratio, **classes},
        pool="cls and mean of patches",
        **dinov2,
    )
    add(
        "hf_dinov2_swiglu", "Dinov2Model", "Dinov2Config", "hf", args={**ratio, "use_swiglu_ffn": True}, **cls, **dinov2
    )
    dinov2 = {"resize": "its own: bicubic, antialias", "prefix_tokens": registers}
    add("hf_dinov2_reg", "Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", "hf", args=ratio, **cls, **dinov2)
    add(
        "hf_dinov2_reg_classifier",
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersConfig",
        "hf",
        args={**ratio, **classes},
        pool="cls and mean of patches",
        **dinov2,
    )
    dinov3 = {
        **cls,
        "prefix_tokens": registers,
        "resize": "rotary positions of that grid",
        "notes": "the original makes its sines in float32",
    }
    add("hf_dinov3", "DINOv3ViTModel", "DINOv3ViTConfig", "hf", args={"num_register_tokens": 4}, **dinov3)
    add(
        "hf_dinov3_gated",
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        "hf",
        args={"num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
        **dinov3,
    )
    clip = {"output": "pooled", "forward": clip_forward}
    add("hf_clip_vision", "CLIPVisionModel", "CLIPVisionConfig", "hf", pool="cls, post_layernorm", **clip)
    add(
        "hf_clip_vision_gelu",
        "CLIPVisionModel",
        "CLIPVisionConfig",
        "hf",
        args={"hidden_act": "gelu"},
        pool="cls, post_layernorm",
        **clip,
    )
    add(
        "hf_clip_projection",
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        "hf",
        args={"projection_dim": 5},
        pool="cls, post_layernorm, visual_projection",
        **clip,
    )
    add(
        "hf_clip",
        "CLIPModel",
        "CLIPConfig",
        "hf",
        args={**towers, "projection_dim": 5},
        forward=clip_of_both,
        pool="cls, post_layernorm, visual_projection",
        output="pooled",
    )
    add(
        "hf_clip_vision_4",
        "CLIPVisionModel",
        "CLIPVisionConfig",
        "hf",
        pool="cls, post_layernorm",
        disk=transformers_4(17),
        notes="names of transformers 4",
        **clip,
    )
    siglip = {"output": "pooled", "pool": "map", "prefix_tokens": []}
    add("hf_siglip_vision", "SiglipVisionModel", "SiglipVisionConfig", "hf", **siglip)
    add("hf_siglip", "SiglipModel", "SiglipConfig", "hf", args=towers, forward=siglip_of_both, **siglip)
    add(
        "hf_siglip_vision_4",
        "SiglipVisionModel",
        "SiglipVisionConfig",
        "hf",
        disk=transformers_4(16),
        notes="names of transformers 4",
        **siglip,
    )
    towers = {**dict.fromkeys(HF_TINY), "vision_config": HF_TINY, **classes}
    add(
        "hf_clip_classifier",
        "CLIPForImageClassification",
        "CLIPConfig",
        "hf",
        args=towers,
        forward=mean_classifier,
        pool="mean of patches",
        final_norm="none",
        notes="post_layernorm is in the file, but neither the tokens nor their mean pass through it",
    )
    add(
        "hf_siglip_classifier",
        "SiglipForImageClassification",
        "SiglipConfig",
        "hf",
        forward=mean_classifier,
        args=towers,
        pool="mean of patches",
        prefix_tokens=[],
    )
    add(
        "hf_siglip2_naflex",
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        "hf",
        forward=naflex_forward,
        args={"num_patches": 16, "image_size": None},
        resize="its own: in float32, bilinear, antialias",
        **siglip,
    )
    beit = {
        "pool": "mean of patches, pooler.layernorm",
        "resize": "interpolate_pos_encoding=True: bilinear, no antialias",
        "final_norm": "pooled",
    }
    table = {"use_relative_position_bias": True}
    relative = {**classes, **table}
    add("hf_beit", "BeitForImageClassification", "BeitConfig", "hf", args=relative, **beit)
    add(
        "hf_beit_shared",
        "BeitForImageClassification",
        "BeitConfig",
        "hf",
        args={**classes, "use_shared_relative_position_bias": True},
        **beit,
    )
    add(
        "hf_beit_absolute",
        "BeitForImageClassification",
        "BeitConfig",
        "hf",
        args={**relative, "use_absolute_position_embeddings": True},
        **beit,
    )
    add(
        "hf_beit_no_pooler",
        "BeitModel",
        "BeitConfig",
        "hf",
        args=table,
        parts={"add_pooling_layer": False},
        output="pooled",
        **{**beit, "pool": "cls", "final_norm": "none"},
    )
    hf_tower_cases(add, classes, text)
    add("hf_data2vec", "Data2VecVisionForImageClassification", "Data2VecVisionConfig", "hf", args=relative, **beit)


# ------------------------------------------------------------------------------ open_clip, torchvision, vit-pytorch --


def module_case(build, family, package, *, disk=None, load=None, forward, **spec):
    """A plain torch module.

    Args:
        build: size to module.
        family, package: of the case.
        disk: module to {name: tensor} of the file; its state dict by default.
        load: (module, {name: tensor}) puts the file into the module; strictly as it is by default.
        forward: (module, pixels) to (output, tokens).
        **spec: what `make_golden` reads.
    """
    native = spec.get("native", NATIVE)
    model = build(native)
    load = load or (lambda net, state: net.load_state_dict(state, strict=True))

    def run(weights, x):
        net = build(tuple(x.shape[2:]))
        load(net, as_torch(weights))
        return forward(net.double().eval(), x)

    return {
        "family": family,
        "library": library(package),
        "class": f"{type(model).__module__}.{type(model).__name__}",
        "names": shapes(disk(model) if disk else model.state_dict()),
        "run": run,
        **spec,
    }


def open_clip_case(*, disk=None, load=None, vision=None, quick_gelu=False, **spec):
    """A CLIP of open_clip's, of which `disk` says what is in the file."""
    from open_clip.model import CLIP, resize_pos_embed

    text = {"context_length": 7, "vocab_size": 11, "width": 32, "heads": 2, "layers": 1}
    vision = {"layers": 2, "width": 64, "patch_size": 8, "mlp_ratio": 2, **(vision or {})}

    def build(size):
        return CLIP(5, {**vision, "image_size": size}, text, quick_gelu=quick_gelu)

    def load_resized(net, state):
        resize_pos_embed(state, net)
        (load or (lambda net, state: net.load_state_dict(state, strict=True)))(net, state)

    return module_case(
        build,
        "open_clip",
        "open_clip_torch",
        built=f"CLIP(5, {vision}, {text}, quick_gelu={quick_gelu})",
        disk=disk,
        load=load_resized,
        forward=lambda net, x: seen_after(net.visual.ln_post, lambda: net.encode_image(x)),
        output="logits",
        pool="cls",
        resize="open_clip's resize_pos_embed: bicubic, antialias",
        notes="the head is the projection, without bias",
        **spec,
    )


def torchvision_case(*, disk=None, **spec):
    """A Vision Transformer of torchvision's."""
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    more = spec.pop("args", {})

    def build(size):
        return VisionTransformer(size[0], 8, 2, 2, 64, 128, num_classes=5, **more)

    def load(net, state):
        net.load_state_dict(interpolate_embeddings(net.image_size, 8, state), strict=True)

    return module_case(
        build,
        "torchvision",
        "torchvision",
        built="VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=64, mlp_dim=128, "
        f"num_classes=5{''.join(f', {k}={v}' for k, v in more.items())})",
        disk=disk,
        load=load,
        forward=lambda net, x: seen_after(net.encoder, lambda: net(x)),
        resize="torchvision's interpolate_embeddings (squares only): bicubic, aligned corners",
        options={"num_heads": 2},
        **spec,
    )


def vit_pytorch_case(cls_name="ViT", *, args=None, **spec):
    """A ViT or SimpleViT of vit-pytorch's."""
    import vit_pytorch

    args = {"num_classes": 5, "dim": 64, "depth": 2, "heads": 2, "mlp_dim": 128, **(args or {})}

    def build(size):
        return getattr(vit_pytorch, cls_name)(image_size=size, patch_size=8, **args)

    return module_case(
        build,
        "vit_pytorch",
        "vit-pytorch",
        built=f"{cls_name}(image_size=32, patch_size=8, " + ", ".join(f"{k}={v!r}" for k, v in args.items()) + ")",
        forward=lambda net, x: seen_after(net.transformer, lambda: net(x)),
        **spec,
    )


def other_cases():
    """open_clip, torchvision and vit-pytorch."""
    add = functools.partial(case_of, open_clip_case)
    heads = {"vision": {"head_width": 32}}
    add("open_clip", options={"mlp_activation": "gelu"})
    quick = {"num_heads": 2, "mlp_activation": "quick_gelu"}
    add(
        "open_clip_visual",
        quick_gelu=True,
        options=quick,
        **heads,
        disk=lambda net: {k: v for k, v in net.state_dict().items() if k.startswith("visual.")},
        load=load_visual,
    )
    add(
        "open_clip_tower",
        quick_gelu=True,
        options=quick,
        **heads,
        disk=lambda net: net.visual.state_dict(),
        load=lambda net, state: net.visual.load_state_dict(state, strict=True),
        other=None,
    )
    add = functools.partial(case_of, torchvision_case)
    add("torchvision_vit", other=(48, 48))
    old = (("mlp.0.", "mlp.linear_1."), ("mlp.3.", "mlp.linear_2."))
    add(
        "torchvision_vit_old",
        disk=lambda net: rename_all(net.state_dict(), old),
        other=None,
        notes="names before torchvision 0.13",
    )
    add("torchvision_vit_representation", args={"representation_size": 48}, other=None)
    vit_pytorch_cases(functools.partial(case_of, vit_pytorch_case))


def vit_pytorch_cases(add):
    """The cases of the installed version: the files of a ViT have changed over the versions.

    0.40.2: blocks of `norm` and `fn`, no norms around the patch embedding, the last norm in the head. 1.2.0: norms
    around the patch embedding. 1.6.5: today's names; a mean is over the class token too. 1.26.11: a mean has no class
    token.
    """
    version = importlib.metadata.version("vit-pytorch")
    fixed = {"other": None}
    before = {"0.40.2": "vit_pytorch_0_40", "1.2.0": "vit_pytorch_1_2", "1.6.5": "vit_pytorch_1_6"}
    if version in before:
        if version != "1.6.5":
            fixed["final_norm"] = "pooled"
        add(before[version], **fixed)
        add(
            f"{before[version]}_mean",
            args={"pool": "mean"},
            pool="mean of all tokens",
            options={"num_heads": 2, "pooling": "all"},
            **fixed,
        )
        return
    add("vit_pytorch", **fixed)
    add("vit_pytorch_dim_head_32", args={"dim_head": 32}, options={"num_heads": 2}, **fixed)
    add(
        "vit_pytorch_mean",
        args={"pool": "mean"},
        pool="mean of patches",
        prefix_tokens=[],
        notes="the file has a class token of shape (0, 64)",
        **fixed,
    )
    simple = {
        "prefix_tokens": [],
        "pool": "mean of patches",
        "resize": "sines and cosines of that grid",
        "notes": "the original makes its sines in float32",
    }
    add("vit_pytorch_simple", "SimpleViT", options={"image_size": 32}, **simple)
    add(
        "vit_pytorch_simple_dim_head_32",
        "SimpleViT",
        args={"dim_head": 32},
        options={"image_size": 32, "num_heads": 2},
        **simple,
    )


def rename_all(tensors, pairs):
    """{name: tensor} with texts in the names replaced."""
    out = {}
    for name, tensor in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        out[name] = tensor
    return out


def load_visual(net, state):
    """Load a file of which only the image tower is known."""
    wrong = net.load_state_dict(state, strict=False)
    missing = [k for k in wrong.missing_keys if k.startswith("visual.")]
    if missing or wrong.unexpected_keys:
        raise ValueError(f"missing: {missing}, unexpected: {wrong.unexpected_keys}")


def hf_tower_cases(add, classes, text):
    """Image towers of models for pictures and text, alone and inside of them, and towers below other heads."""
    none, vision = dict.fromkeys(HF_TINY), {"vision_config": HF_TINY}
    token = {"output": "pooled", "pool": "cls", "forward": tower_forward()}
    add("hf_blip_vision", "BlipVisionModel", "BlipVisionConfig", "hf", **token)
    add(
        "hf_blip_retrieval",
        "BlipForImageTextRetrieval",
        "BlipConfig",
        "hf",
        args={**none, **vision, "text_config": text, "image_text_hidden_size": 5},
        pool="cls, vision_proj",
        forward=blip_retrieval,
    )
    add("hf_blip2_vision", "Blip2VisionModel", "Blip2VisionConfig", "hf", **token)
    add("hf_owlvit_vision", "OwlViTVisionModel", "OwlViTVisionConfig", "hf", output="pooled", forward=clip_forward)
    add(
        "hf_owlv2_detection",
        "Owlv2ForObjectDetection",
        "Owlv2Config",
        "hf",
        args={**none, **vision, "text_config": text},
        output="pooled",
        forward=owl_forward,
    )
    add(
        "hf_chinese_clip",
        "ChineseCLIPModel",
        "ChineseCLIPConfig",
        "hf",
        args={**none, **vision, "text_config": text, "projection_dim": 5},
        forward=clip_of_both,
        output="pooled",
    )
    add("hf_altclip_vision", "AltCLIPVisionModel", "AltCLIPVisionConfig", "hf", output="pooled", forward=clip_forward)
    llama = {**text, "model_type": "llama", "num_key_value_heads": 2}
    for name, kind, forward in (
        ("clip", "clip_vision_model", clip_tower("model", "vision_tower")),
        ("siglip", "siglip_vision_model", tower_forward("model", "vision_tower", pool="mean")),
    ):
        head = {"vision_use_head": False} if name == "siglip" else {}
        add(
            f"hf_llava_{name}",
            "LlavaForConditionalGeneration",
            "LlavaConfig",
            "hf",
            args={**none, "vision_config": {**HF_TINY, **head, "model_type": kind}, "text_config": llama},
            output="pooled",
            forward=forward,
            **({"prefix_tokens": [], "pool": "mean of patches"} if name == "siglip" else {}),
        )
    intern = {"args": {"attention_bias": True}, "resize": "its own: bicubic, no antialias", "final_norm": "none"}
    add("hf_internvl", "InternVLVisionModel", "InternVLVisionConfig", "hf", **intern, **token)
    add(
        "internvit_original",
        "InternVLVisionModel",
        "InternVLVisionConfig",
        "hf",
        disk=opengvlab,
        load=from_opengvlab,
        keep_config=False,
        options={"num_heads": 2},
        notes="OpenGVLab's names, read through transformers",
        **intern,
        **token,
    )
    janus = {**token, "prefix_tokens": [], "pool": "mean of patches", "forward": tower_forward(pool="mean")}
    add("hf_janus_vision", "JanusVisionModel", "JanusVisionConfig", "hf", **janus)
    add("hf_flava_image", "FlavaImageModel", "FlavaImageConfig", "hf", output="pooled", pool="tanh(dense(cls))")
    add(
        "hf_vision_encoder_decoder",
        "VisionEncoderDecoderModel",
        "VisionEncoderDecoderConfig",
        "hf",
        args={
            **none,
            "encoder": {**HF_TINY, "model_type": "vit"},
            "decoder": {**text, "model_type": "bert", "is_decoder": True, "add_cross_attention": True},
        },
        notes="as TrOCR",
        output="pooled",
        pool="tanh(dense(cls))",
        forward=tower_forward("encoder", pool="pooler"),
    )
    masked = {"resize": HF_RESIZE, "output": "pooled", "pool": "cls"}
    add(
        "hf_vit_masked",
        "ViTForMaskedImageModeling",
        "ViTConfig",
        "hf",
        args={"encoder_stride": 8},
        forward=tower_forward("vit"),
        **masked,
    )
    add(
        "hf_beit_masked",
        "BeitForMaskedImageModeling",
        "BeitConfig",
        "hf",
        args={"use_relative_position_bias": True, "use_mean_pooling": True, "vocab_size": 5},
        forward=beit_masked,
        **{**masked, "resize": "interpolate_pos_encoding=True: bilinear, no antialias"},
    )
    depth = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8, "head_hidden_size": 8}
    add(
        "hf_depth_anything",
        "DepthAnythingForDepthEstimation",
        "DepthAnythingConfig",
        "hf",
        args={
            **none,
            **depth,
            "neck_hidden_sizes": [8, 8],
            "reassemble_factors": [1, 1],
            "patch_size": 8,
            "reassemble_hidden_size": 64,
            "backbone_config": {
                **HF_TINY,
                "mlp_ratio": 2,
                "model_type": "dinov2",
                "out_indices": [1, 2],
                "reshape_hidden_states": False,
            },
        },
        output="pooled",
        pool="cls",
        forward=backbone_forward,
        resize="its own: bicubic, no antialias",
    )
    add(
        "hf_dpt",
        "DPTForDepthEstimation",
        "DPTConfig",
        "hf",
        args={**depth, "head_hidden_size": None, "backbone_out_indices": [0, 0, 1, 1]},
        output="pooled",
        pool="cls",
        forward=tower_forward("dpt"),
        resize="its own: bilinear, no antialias",
    )


# -------------------------------------------------------------------------------------------------------------- main --


def main(prefixes):
    """Make the cases whose names begin with one of these; all by default."""
    warnings.simplefilter("ignore")
    for register in (timm_cases, rectangle_cases, original_cases, hf_cases, other_cases):
        register()
    (DIRECTORY / "rectangles").mkdir(parents=True, exist_ok=True)
    for name in CASES:
        if not prefixes or name.startswith(tuple(prefixes)):
            path = make_golden(name)
            print(f"{name:32s} {path.stat().st_size:7d} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Random models of timm and of transformers with two blocks, in files as they write them, and what comes of these.

`timm_cases` and `hugging_face_cases` name the models, `timm_case` and `hugging_face_case` write one into a folder and
return what it computes, and `outcome` reads it again. Heights and widths of the pictures are a few patches.
"""

import contextlib
import math
import warnings
from typing import NamedTuple

import numpy as np
import vision_classes

GRID = (4, 4)
CLASSES = 7


class Case(NamedTuple):
    """A model of another library, in files.

    Attributes:
        folder: With the weights in `model.safetensors` and a `config.json`.
        inputs: A picture, channels last.
        outputs: What the model computes of it; of a model with several outputs, any of them.
    """

    folder: object
    inputs: np.ndarray
    outputs: list


def fill(model, seed=3):
    """Give all parameters random values as in a trained model, also those that are made as zeros or ones."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, array in model.named_parameters():
            spread, middle = 0.1, 0.0
            if "gamma" in name or "lambda" in name:
                spread, middle = 0.2, 0.5
            elif any(word in name for word in ("token", "pos_embed", "position", "latent", "probe", "class_embedding")):
                spread = 0.3
            elif array.ndim > 1:
                spread = 1.4 / math.sqrt(math.prod(array.shape[1:]))
            elif name.endswith("weight"):
                spread, middle = 0.2, 1.0
            array.uniform_(middle - spread, middle + spread, generator=generator)
    return model.eval()


def _picture(height, width, channels=3):
    return np.random.default_rng(5).uniform(-1, 1, (1, height, width, channels)).astype("float32")


def _save(folder, arrays):
    from safetensors.torch import save_file

    save_file({name: array.contiguous() for name, array in arrays.items()}, folder / "model.safetensors")


# --- timm ---------------------------------------------------------------------------------------------------------


def timm_cases():
    """The names of all architectures of timm that this package could take a file for."""
    from vit_keras.checkpoints.timm_models import models

    return list(models())


def timm_case(name, folder, grid=GRID):
    """Write a model of timm with two blocks, for images of these patches down and across, as timm saves it."""
    import torch

    model, size = timm_model(name, grid=grid)
    inputs = _picture(*size)
    with torch.no_grad():
        output = model(torch.from_numpy(inputs).permute(0, 3, 1, 2)).numpy()
    save_timm(model, folder)
    return Case(folder, inputs, [output])


def timm_model(name, blocks=2, grid=GRID):
    """Return a model of timm with so many blocks, and height and width of its pictures."""
    import timm
    import torch

    with torch.device("meta"):
        whole = timm.create_model(name)
    embedding = getattr(whole, "patch_embed", None) or getattr(whole, "embeds", None)
    stride = whole.stem.patch_size[0] if embedding is None else embedding.feat_ratio()
    stride = stride if isinstance(stride, int) else max(stride)
    size = (grid[0] * stride, grid[1] * stride)
    is_mixer = type(whole).__name__ == "MlpMixer"  # whose functions do not take a depth
    model = timm.create_model(name, img_size=size, num_classes=CLASSES, **({} if is_mixer else {"depth": blocks}))
    model.blocks = model.blocks[:blocks]
    return fill(model), size


def save_timm(model, folder, arguments=None):
    """Write a model of timm; `arguments`: of its constructor, where timm has not recorded them."""
    from timm.models._hub import save_config_for_hf

    _save(folder, model.state_dict())
    save_config_for_hf(model, str(folder / "config.json"), model_args=arguments)


class Maps(NamedTuple):
    """A model of another library, in files, and the maps that it computes of its blocks.

    Attributes:
        folder: See `Case`.
        inputs: See `Case`.
        blocks: Numbers of the blocks.
        maps: `{norm: maps}`, channels last, one for each block; `None` for what the library does not tell.
        prefix: Likewise, the tokens before the patches; `None` where there are none, or the library does not tell.
    """

    folder: object
    inputs: np.ndarray
    blocks: list
    maps: dict
    prefix: dict


def timm_maps(name, folder):
    """Write a model of timm with three blocks, and return what its `forward_intermediates` returns of two."""
    import torch

    model, size = timm_model(name, blocks=3)
    inputs, blocks, maps, prefix = _picture(*size), [0, 2], {}, {}
    for norm in (False, True):
        options = {"indices": blocks, "norm": norm, "intermediates_only": True}
        if type(model).__name__ != "MlpMixer":
            options["return_prefix_tokens"] = True
        with torch.no_grad():
            found = model.forward_intermediates(torch.from_numpy(inputs).permute(0, 3, 1, 2), **options)
        pairs = [each if isinstance(each, tuple) else (each, None) for each in found]
        maps[norm] = [each.permute(0, 2, 3, 1).numpy() for each, _ in pairs]
        prefix[norm] = [None if tokens is None else tokens.numpy() for _, tokens in pairs]
    save_timm(model, folder)
    return Maps(folder, inputs, blocks, maps, prefix)


# --- transformers -------------------------------------------------------------------------------------------------

_SIZES = {
    "hidden_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 256,
    "image_size": 32,
    "patch_size": 8,
}
_RATIO = {"mlp_ratio": 2, "intermediate_size": None}
_BEIT = {"use_relative_position_bias": True}
_GATED = {"use_gated_mlp": True, "num_register_tokens": 4}
HUGGING_FACE = {
    "vit": ("ViTForImageClassification", "ViTConfig", {}),
    "vit, 12 heads of 16": ("ViTForImageClassification", "ViTConfig", {"num_attention_heads": 12}),
    "vit, ReLU": ("ViTForImageClassification", "ViTConfig", {"hidden_act": "relu"}),
    "vit, epsilon 1e-3": ("ViTForImageClassification", "ViTConfig", {"layer_norm_eps": 1e-3}),
    "vit, pooler": ("ViTModel", "ViTConfig", {}),
    "vit, pooler of ReLU": ("ViTModel", "ViTConfig", {"pooler_act": "relu"}),
    "deit": ("DeiTForImageClassification", "DeiTConfig", {}),
    "deit, two heads": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", {}),
    "ijepa": ("IJepaForImageClassification", "IJepaConfig", {}),
    "vit_msn": ("ViTMSNForImageClassification", "ViTMSNConfig", {}),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Config", _RATIO),
    "dinov2, SwiGLU": ("Dinov2ForImageClassification", "Dinov2Config", {**_RATIO, "use_swiglu_ffn": True}),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", _RATIO),
    "dinov3_vit": ("DINOv3ViTModel", "DINOv3ViTConfig", {"num_register_tokens": 4}),
    "dinov3_vit, gated SiLU": ("DINOv3ViTModel", "DINOv3ViTConfig", {**_GATED, "hidden_act": "silu"}),
    "dinov3_vit, gated GELU": ("DINOv3ViTModel", "DINOv3ViTConfig", _GATED),
    "clip": ("CLIPForImageClassification", "CLIPConfig", {}),
    "clip, tower": ("CLIPVisionModel", "CLIPVisionConfig", {}),
    "clip, tower, GELU": ("CLIPVisionModel", "CLIPVisionConfig", {"hidden_act": "gelu"}),
    "clip, tower, projection": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", {"projection_dim": 16}),
    "metaclip_2": ("MetaClip2ForImageClassification", "MetaClip2Config", {}),
    "siglip": ("SiglipForImageClassification", "SiglipConfig", {}),
    "siglip, tower": ("SiglipVisionModel", "SiglipVisionConfig", {}),
    "beit": ("BeitForImageClassification", "BeitConfig", _BEIT),
    "beit, class token": ("BeitForImageClassification", "BeitConfig", {**_BEIT, "use_mean_pooling": False}),
    "data2vec-vision": ("Data2VecVisionForImageClassification", "Data2VecVisionConfig", _BEIT),
    "altclip": ("AltCLIPVisionModel", "AltCLIPVisionConfig", {}),
    "chinese_clip": ("ChineseCLIPVisionModel", "ChineseCLIPVisionConfig", {}),
    "clipseg": ("CLIPSegVisionModel", "CLIPSegVisionConfig", {}),
    "git": ("GitVisionModel", "GitVisionConfig", {}),
    "owlvit": ("OwlViTVisionModel", "OwlViTVisionConfig", {}),
    "owlv2": ("Owlv2VisionModel", "Owlv2VisionConfig", {}),
    "blip": ("BlipVisionModel", "BlipVisionConfig", {}),
    "blip_2": ("Blip2VisionModel", "Blip2VisionConfig", {}),
    "blip_2, no bias": ("Blip2VisionModel", "Blip2VisionConfig", {"qkv_bias": False}),
    "instructblip": ("InstructBlipVisionModel", "InstructBlipVisionConfig", {}),
    "internvl": ("InternVLVisionModel", "InternVLVisionConfig", {"attention_bias": True}),
    "internvl, last norm": ("InternVLVisionModel", "InternVLVisionConfig", {"use_mean_pooling": False}),
    "internvl, norms of queries and keys": ("InternVLVisionModel", "InternVLVisionConfig", {"use_qk_norm": True}),
    "internvl, RMS norm": ("InternVLVisionModel", "InternVLVisionConfig", {"norm_type": "rms_norm"}),
    "janus": ("JanusVisionModel", "JanusVisionConfig", {}),
    "flava": ("FlavaImageModel", "FlavaImageConfig", {}),
    "vit, masked pictures": ("ViTForMaskedImageModeling", "ViTConfig", {}),
    "deit, masked pictures": ("DeiTForMaskedImageModeling", "DeiTConfig", {}),
    "dpt": ("DPTForDepthEstimation", "DPTConfig", {"backbone_out_indices": [0, 0, 1, 1], "fusion_hidden_size": 8}),
    "mlcd": ("MLCDVisionModel", "MLCDVisionConfig", {}),
    "aimv2": ("Aimv2VisionModel", "Aimv2VisionConfig", {}),
    "yolos": ("YolosModel", "YolosConfig", {"image_size": [32, 32]}),
    "vitpose": ("VitPoseBackbone", "VitPoseBackboneConfig", {}),
    "videomae": ("VideoMAEModel", "VideoMAEConfig", {"num_frames": 2}),
    "x_clip": ("XCLIPVisionModel", "XCLIPVisionConfig", {"num_frames": 1}),
}
"""Models of transformers: name: (class, configuration, changes)."""
# Of these classes, this package computes the last tokens, pooled by their class token or their mean.
_OF_TOKENS = ("Blip", "InstructBlip", "InternVL", "Janus")
# And of these, what comes before their decoders.
_OF_TRUNK = ("ViTForMaskedImageModeling", "DeiTForMaskedImageModeling", "DPTForDepthEstimation")


def hugging_face_cases():
    """The names of models of transformers, with what they differ in from the usual ones, and of more of its classes."""
    return [*HUGGING_FACE, *vision_classes.NAMES]


def hugging_face_case(name, folder, grid=GRID):
    """Write a model of transformers with two blocks as transformers saves it.

    Only those of `HUGGING_FACE` can be made for other grids of patches than 4 by 4.
    """
    import torch

    if name not in HUGGING_FACE:
        model = fill(vision_classes.build(name, CLASSES))
        model.save_pretrained(folder)
        inputs = _picture(vision_classes.PIXELS, vision_classes.PIXELS)
        return Case(folder, inputs, list(vision_classes.outputs(model, torch.from_numpy(inputs).permute(0, 3, 1, 2))))
    return hugging_face_changed(name, {} if grid == GRID else {"image_size": [8 * n for n in grid]}, folder, grid)


def _hugging_face_config(name, changes):
    """The class of a model, and its configuration with changes."""
    import transformers

    kind, config, usual = HUGGING_FACE[name]
    sizes = {field: value for field, value in {**_SIZES, **usual, **changes}.items() if value is not None}
    config_class = getattr(transformers, config)
    if config in ("CLIPConfig", "SiglipConfig", "MetaClip2Config"):
        text = {**{f: v for f, v in _SIZES.items() if f not in ("image_size", "patch_size")}, "vocab_size": 9}
        return kind, config_class(vision_config=sizes, text_config=text, num_labels=CLASSES)
    return kind, config_class(**sizes, **({"num_labels": CLASSES} if "Classification" in kind else {}))


def hugging_face_fields(name):
    """The fields of a model's configuration, of its image tower where it has two."""
    _, built = _hugging_face_config(name, {})
    return getattr(built, "vision_config", built).to_dict()


def hugging_face_changed(name, changes, folder, grid=GRID):
    """Write a model of transformers with some fields of its configuration changed."""
    import torch
    import transformers

    kind, built = _hugging_face_config(name, changes)
    model = fill(getattr(transformers, kind)(built))
    channels = getattr(getattr(built, "vision_config", built), "num_channels", 3)
    inputs = _picture(8 * grid[0], 8 * grid[1], channels)
    model.save_pretrained(folder)
    pictures = torch.from_numpy(inputs).permute(0, 3, 1, 2)
    with torch.no_grad():
        found = (model.base_model if kind in _OF_TRUNK else model)(_as_taken(kind, pictures))
    output = next((found[k] for k in ("logits", "image_embeds", "pooler_output") if found.get(k) is not None), None)
    if output is None or kind.startswith(_OF_TOKENS):
        output = found["feature_maps"][-1] if "feature_maps" in found else found["last_hidden_state"]
        output = output.mean(1) if kind.startswith(("Janus", "Siglip")) else output[:, 0]  # without a class token
    return Case(folder, inputs, [output.numpy()])


BACKBONES = {
    "dinov2": ("Dinov2Backbone", "Dinov2Config", _RATIO),
    "dinov2, SwiGLU": ("Dinov2Backbone", "Dinov2Config", {**_RATIO, "use_swiglu_ffn": True}),
    "dinov2_with_registers": ("Dinov2WithRegistersBackbone", "Dinov2WithRegistersConfig", _RATIO),
    "dinov3_vit": ("DINOv3ViTBackbone", "DINOv3ViTConfig", {"num_register_tokens": 4}),
    "dinov3_vit, gated SiLU": ("DINOv3ViTBackbone", "DINOv3ViTConfig", {**_GATED, "hidden_act": "silu"}),
    "beit": ("BeitBackbone", "BeitConfig", _BEIT),
}
"""Backbones of transformers that hold a ViT which this package reads: name: (class, configuration, changes)."""


def hugging_face_maps(name, folder):
    """Write a backbone of transformers with three blocks, and return its feature maps of two of them."""
    import torch
    import transformers

    kind, config, changes = BACKBONES[name]
    blocks, maps = [0, 2], {}
    sizes = {**_SIZES, **changes, "num_hidden_layers": 3, "out_indices": [n + 1 for n in blocks]}
    sizes = {field: value for field, value in sizes.items() if value is not None}
    for norm in (False, True):
        built = getattr(transformers, config)(**sizes, apply_layernorm=norm)
        model = fill(transformers.AutoBackbone.from_config(built))
        inputs = _picture(32, 32)
        with torch.no_grad():
            found = model(torch.from_numpy(inputs).permute(0, 3, 1, 2))
        maps[norm] = [each.permute(0, 2, 3, 1).numpy() for each in found.feature_maps]
    if kind == "DINOv3ViTBackbone":
        maps[False][-1] = None  # it normalizes the last block's in any case
    if kind == "BeitBackbone":  # it has no norm, and no file of it has one
        maps[True] = maps[False]
    model.save_pretrained(folder)
    return Maps(folder, inputs, blocks, maps, {norm: [None, None] for norm in maps})


def _as_taken(kind, pictures):
    """Repeat a picture where a model takes several of a video."""
    return pictures[:, None].repeat(1, 2, 1, 1, 1) if kind == "VideoMAEModel" else pictures


# --- what comes of it ---------------------------------------------------------------------------------------------


def outcome(case, alone):
    """Read a case again.

    Args:
        case: The model in its files.
        alone: Whether the weights have no `config.json` beside them.

    Returns:
        `(word, reason)`: `"exact"`, `"refused"` (also where an option is asked for), `"warned"` (other numbers, after a
        warning), `"SILENT"` (other numbers without one), or `"CRASHED"`.
    """
    from family_files import run

    from vit_keras import from_checkpoint

    hidden = case.folder / "config.json.hidden"
    if alone:
        (case.folder / "config.json").rename(hidden)
    size = {"image_size": case.inputs.shape[1:3]}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            model = from_checkpoint(case.folder, **size)
            found = run(model, case.inputs)  # which refuses a picture of other channels than the model's
    except ValueError as error:
        return "refused", str(error).replace(f"{case.folder}/", "")
    except Exception as error:
        return "CRASHED", f"{type(error).__name__}: {error}"
    finally:
        if alone:
            hidden.rename(case.folder / "config.json")
    said = "; ".join(
        str(w.message) for w in caught if issubclass(w.category, UserWarning) and "pixels" not in str(w.message)
    )
    said = said.replace(f"{case.folder}/", "")
    same = [output for output in case.outputs if output.shape == found.shape]
    difference = min((np.abs(found - output).max() / np.abs(output).max() for output in same), default=math.inf)
    limit = 1e-4 if model.config.resnet is not None else 1e-5
    if difference <= limit:
        return "exact", said
    return ("warned", said) if said else ("SILENT", f"{difference:.1e}")


def rows(write, folder):
    """Yield `(alone or folder, outcome, reason)` for one case, which `write(folder)` makes; the folder is emptied.

    A model that the other library cannot make so small, or not without more packages, gives `("", "not made", reason)`.
    """
    try:
        case = write(folder)
    except Exception as error:
        yield "", "not made", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return
    for place, alone in (("folder", False), ("alone", True)):
        yield (place, *outcome(case, alone))
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            file.unlink()

"""Random models of timm and of transformers with one argument of their constructors changed, in files as they write
them.

`timm_cases` and `hugging_face_cases` name the models: a base, and a change of it. Both ask the libraries which
arguments there are, and raise an error for one that has no value here. `case` writes a model into a folder, as
`sweep.rows` wants it.
"""

import dataclasses
import functools
import inspect
import itertools

import numpy as np
import sweep

# --- timm ---------------------------------------------------------------------------------------------------------

_MEAN = {"global_pool": "avg"}
TIMM_BASES = {
    "vit_tiny_patch16_224": {},
    "vit_tiny_patch16_224, mean": _MEAN,
    "vit_small_patch16_dinov3": {},
    "vit_small_patch14_reg4_dinov2": {},
    "vit_base_patch16_siglip_224": {"embed_dim": 192, "num_heads": 3},
    "vit_base_patch32_clip_224": {"embed_dim": 192, "num_heads": 3},
    "deit_tiny_distilled_patch16_224": {},
    "vit_tiny_r_s16_p8_224": {},
    "eva02_tiny_patch14_224": {},
    "eva_giant_patch14_clip_224": {"embed_dim": 192, "num_heads": 3, "mlp_ratio": 4},
    "vit_pe_core_tiny_patch16_384": {},
    "beit_base_patch16_224": {"embed_dim": 192, "num_heads": 3},
    "mixer_s32_224": {"num_blocks": 2, "patch_size": 32, "embed_dim": 512},  # all that its function fixes
    "naflexvit_base_patch16_gap": {"embed_dim": 192, "num_heads": 3},
    "naflexvit_base_patch16_map": {"embed_dim": 192, "num_heads": 3},
}
"""The models that are changed, with the arguments that make them small."""

_NOT_AN_ARGUMENT = ("self", "cfg", "args", "kwargs", "device", "dtype")
_GRIDS = ("img_size", "pos_embed_grid_size")  # see `tests/checkpoints/test_sweep.py` and the tests of grids
_RATES = ("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")
_SWITCHES = (
    *("qkv_bias", "qk_norm", "scale_attn_norm", "scale_mlp_norm", "proj_bias", "no_embed_class", "pre_norm"),
    *(
        "final_norm",
        "pool_include_prefix",
        "dynamic_img_size",
        "dynamic_img_pad",
        "fix_init",
        "qkv_fused",
        "swiglu_mlp",
    ),
    *("scale_mlp", "scale_attn_inner", "attn_only_layer_scale", "use_abs_pos_emb", "use_rot_pos_emb", "use_post_norm"),
    *("rope_rotate_half", "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm", "fc_norm", "nlhb"),
    *("use_rel_pos_bias", "use_shared_rel_pos_bias", "stem_norm", "scale_attn_inner_norm", "use_key_only_attn_mask"),
    *("pos_embed_ar_preserving", "pos_embed_antialias", "pos_embed_align_corners", "pos_embed_use_grid_sample"),
    *("patchify_channels_last", "attn_gated", "enable_patch_interpolator", "class_token"),
)
_CALLABLE = ("embed_layer", "block_fn", "mlp_layer", "attn_layer", "block_layer")
_OTHER = {
    "patch_size": (8, (8, 16)),
    "in_chans": (1, 4),
    "num_classes": (0, 1),
    "global_pool": ("", "token", "avg", "avgmax", "max", "map", "prr"),
    "embed_dim": (384,),
    "depth": (3,),
    "num_blocks": (3,),
    "num_heads": (4,),
    "num_kv_heads": (1,),
    "mlp_ratio": (2.0,),
    "init_values": (None, 0.1),
    "pos_embed": ("none", "", "learn", "learned", "factorized"),
    "pos_embed_interp_mode": ("bilinear", "bicubic"),
    "reg_tokens": (0, 1, 4),
    "num_reg_tokens": (0, 1, 4),
    "weight_init": ("jax", "skip"),
    "head_init_scale": (0.5,),
    "embed_norm_layer": ("layernorm",),
    "input_norm_layer": ("layernorm",),
    "norm_layer": ("layernorm", "rmsnorm"),
    "act_layer": ("gelu_tanh", "quick_gelu", "relu", "silu", "tanh"),
    "swiglu_align_to": (64,),
    "attn_type": ("eva", "rope", "standard"),
    "rope_type": ("", "cat", "dinov3", "axial", "mixed"),
    "rope_grid_offset": (1.0,),
    "rope_grid_indexing": ("ij", "xy"),
    "rope_temperature": (50.0,),
    "rope_shift_coords": (0.5,),
    "rope_jitter_coords": (1.5,),
    "rope_rescale_coords": (1.5,),
    "rope_mrope_section": ((8, 4, 4),),
    "rope_ref_feat_shape": ((8, 8),),
    "ref_feat_shape": (8, (8, 8)),
    "attn_pool_num_heads": (2,),
    "attn_pool_mlp_ratio": (2.0,),
    "embed_proj_type": ("conv", "linear"),
}
_BY_MODEL = ("class_token", "fc_norm", "global_pool", "final_norm", "pre_norm", "init_values", "reg_tokens")
"""Arguments whose default is changed by some models, so that the default is tried too."""
_BESIDE = {  # what a model without a class token, or another pooling, needs too
    "fc_norm": ({}, _MEAN),
    "use_fc_norm": ({}, {"global_pool": "token"}),
    "class_token": ({}, _MEAN, {"global_pool": "map"}),
    "reg_tokens": ({}, {"global_pool": "map"}),
    "pool_include_prefix": ({}, _MEAN, {"global_pool": "map"}),
    "use_rot_pos_emb": ({}, {"rope_type": "dinov3"}),
    "use_rel_pos_bias": ({}, {"use_abs_pos_emb": False}),
    "rope_type": ({}, {"use_rot_pos_emb": True}, {"attn_type": "eva"}),
}


def _values(argument):
    if argument in _RATES:
        return (0.1,)
    if argument in _SWITCHES:
        return (True, False)
    return () if argument in (*_GRIDS, *_CALLABLE) else _OTHER[argument]


def _timm_arguments(base):
    """`{argument: default}` of the constructor of a base's class."""
    import timm
    import torch

    with torch.device("meta"):
        model = timm.create_model(base.partition(",")[0])
    kind = type(model)
    if kind.__name__ == "NaFlexVit":
        from timm.models.naflexvit import NaFlexVitCfg

        fields = {field.name: field.default for field in dataclasses.fields(NaFlexVitCfg)}
        return {**fields, "in_chans": 3, "num_classes": None}
    kind = kind.__mro__[1] if kind.__name__ == "VisionTransformerDistilled" else kind
    parameters = inspect.signature(kind.__init__).parameters
    return {name: each.default for name, each in parameters.items() if name not in _NOT_AN_ARGUMENT}


def timm_cases():
    """Return `{name: (base, changes)}` of timm's models."""
    cases = {}
    for base in TIMM_BASES:
        for argument, default in _timm_arguments(base).items():
            for value, beside in itertools.product(_values(argument), _BESIDE.get(argument, ({},))):
                changes = {argument: value, **beside}
                of_grids = argument == "patch_size" and isinstance(value, tuple) and "_r_" in base
                if of_grids:  # the table of a hybrid with other patches is of another grid
                    continue
                if value != default or argument in _BY_MODEL or beside:
                    cases[_name(base, changes)] = (base, changes)
    return cases


def _name(base, changes):
    return f"{base}: {', '.join(f'{k}={v!r}' for k, v in changes.items())}"


def timm_case(base, changes, folder):
    """Write a model of timm with two blocks as timm saves it for the hub."""
    import timm
    import torch

    name = base.partition(",")[0]
    is_mixer = name.startswith("mixer")
    arguments = {"num_classes": sweep.CLASSES, **({} if is_mixer else {"depth": 2}), **TIMM_BASES[base], **changes}
    stride = 14 if "_patch14_" in name else 32 if "32_" in name or "_r_" in name else 16
    size = sweep.GRID[0] * (16 if "patch_size" in changes and "_r_" not in name else stride)
    if "naflex" not in name:
        arguments["img_size"] = size
    model = sweep.fill(_mixer(name, arguments) if is_mixer else timm.create_model(name, **arguments))
    inputs = np.random.default_rng(5).uniform(-1, 1, (1, size, size, model.in_chans)).astype("float32")
    with torch.no_grad():
        output = model(torch.from_numpy(inputs).permute(0, 3, 1, 2)).numpy()
    # As timm asks for: it does not know the arguments of a Mixer that it did not make itself.
    sweep.save_timm(model, folder, arguments if is_mixer else None)
    return sweep.Case(folder, inputs, [output])


def _mixer(name, arguments):
    """Return a Mixer. timm's own functions take no argument that they set, and the class takes no names of layers."""
    from timm.layers import get_act_layer, get_norm_layer
    from timm.models.mlp_mixer import _create_mixer

    kinds = {"norm_layer": get_norm_layer, "act_layer": get_act_layer}
    return _create_mixer(name, **{key: kinds[key](each) if key in kinds else each for key, each in arguments.items()})


# --- transformers -------------------------------------------------------------------------------------------------

_BASIC = {  # of every configuration, and sizes that the bases set
    *("chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict", "id2label", "label2id"),
    *("transformers_version", "model_type", "architectures", "dtype", "problem_type", "is_encoder_decoder"),
    *("image_size", "text_config", "vision_config", "stage_names", "out_features", "out_indices", "num_labels"),
}
_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "tanh", "mish")
_HF_VALUES = {
    "hidden_size": (384,),
    "num_hidden_layers": (3,),
    "num_attention_heads": (6,),
    "intermediate_size": (384,),
    "mlp_ratio": (3,),
    "patch_size": (4,),
    "hidden_act": _ACTIVATIONS,
    "pooler_act": ("relu", "tanh"),
    "pooler_output_size": (48,),
    "projection_dim": (24,),
    "layer_norm_eps": (1e-3,),
    "num_channels": (1, 4),
    "num_register_tokens": (0, 2),
    "rope_theta": (50.0,),
    "rope_parameters": ({"rope_type": "default", "rope_theta": 50.0},),
    "layerscale_value": (0.1,),
    "layer_scale_init_value": (0.1, 0),
    "norm_type": ("rms_norm",),
}
"""Values of arguments. Others are turned over (booleans), or changed by a half (rates)."""


_BASES = {(kind, config): name for name, (kind, config, _) in reversed(sweep.HUGGING_FACE.items())}.values()
"""The first model of each class."""


def hugging_face_cases():
    """Return `{name: (base, changes)}` of transformers' models."""
    cases = {}
    for base in _BASES:
        fields = sweep.hugging_face_fields(base)
        for field, default in fields.items():
            if field in _BASIC or field.startswith("_"):
                continue
            for value in _HF_VALUES.get(field) or _others(default):
                if value != default or field == "hidden_act":
                    cases[_name(base, {field: value})] = (base, {field: value})
    return cases


def _others(value):
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, float):
        return (value / 2 + 0.1,)
    return (value + 1,) if isinstance(value, int) else ()


@functools.cache
def cases():
    """Return `{(library, name): function that writes the files into a folder}` of both libraries."""
    both = (("timm", timm_cases, timm_case), ("transformers", hugging_face_cases, sweep.hugging_face_changed))
    return {
        (library, name): functools.partial(write, *case)
        for library, names, write in both
        for name, case in names().items()
    }

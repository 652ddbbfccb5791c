"""Read the settings in transformers' `config.json` that the arrays do not show; `transformers_json` writes them.

Every field of a configuration is read here, is shown by the arrays, or has no effect on the outputs. An unknown value
or `model_type` raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .._internal.validate import one_of
from .._internal.warn import warn_caller

__all__ = ["ACTIVATIONS", "PROBLEMS", "read_config", "tower"]

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "quick_gelu": "quick_gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_pytorch": "gelu",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
PROBLEMS = {"multi": "multi_label_classification", "regression": "regression"}
"""Tasks of `vit_keras.labels.TASKS`, and what transformers calls them in a config's `problem_type`; else `"single"`."""

# The pooling of these classes cannot be inferred from their weights.
_POOLINGS = {
    "CLIPForImageClassification": {"pooling": "gap", "class_token": True, "final_norm": None},
    "MetaClip2ForImageClassification": {"pooling": "gap", "class_token": True, "final_norm": None},
    "SiglipForImageClassification": {"pooling": "gap"},
    "Siglip2ForImageClassification": {"pooling": "gap"},
}


def _usual(activation: str, epsilon: float, heads: int = 12, **fields: Any) -> dict[str, Any]:
    """Return transformers' default for a field that a `config.json` leaves out."""
    return {"num_attention_heads": heads, "hidden_act": activation, "layer_norm_eps": epsilon, **fields}


_BEIT = _usual("gelu", 1e-12, use_mean_pooling=True)
_CLIP, _SIGLIP = _usual("quick_gelu", 1e-5), _usual("gelu_pytorch_tanh", 1e-6)
_TYPES = {
    **dict.fromkeys(("vit", "deit", "vit_mae", "ijepa", "flava_image_model", "dpt"), _usual("gelu", 1e-12)),
    **dict.fromkeys(("vit_msn", "dinov2", "dinov2_with_registers"), _usual("gelu", 1e-6)),
    "dinov3_vit": _usual("gelu", 1e-5, 6, rope_theta=100.0),
    **dict.fromkeys(("clip", "clip_vision_model", "metaclip_2", "metaclip_2_vision_model"), _CLIP),
    **dict.fromkeys(("chinese_clip_vision_model", "altclip_vision_model", "clipseg_vision_model"), _CLIP),
    **dict.fromkeys(("owlvit_vision_model", "owlv2_vision_model", "git_vision_model"), _CLIP),
    "kosmos_2_vision_model": {**_CLIP, "num_attention_heads": 16},
    "blip_vision_model": _usual("gelu", 1e-5),
    **dict.fromkeys(("blip_2_vision_model", "instructblip_vision_model"), _usual("gelu", 1e-6, 16)),
    **dict.fromkeys(("internvl_vision", "intern_vit_6b", "janus_vision_model"), _usual("gelu", 1e-6, 16)),
    **dict.fromkeys(("siglip", "siglip_vision_model", "siglip2", "siglip2_vision_model"), _SIGLIP),
    **dict.fromkeys(("beit", "data2vec-vision"), _BEIT),
}
FIELDS = {"hidden_size": "hidden_size", "num_hidden_layers": "num_layers", "intermediate_size": "mlp_dim"}
FIELDS |= {"num_attention_heads": "num_heads", "layer_norm_eps": "epsilon", "num_channels": "channels"}
FIELDS |= {"image_size": "image_size", "patch_size": "patch_size"}
"""Fields with a name of their own in a `ViTConfig`, both ways."""
_ONLY = {  # what a model of this package computes, whatever the field says elsewhere
    "pooler_act": ("tanh",),
    "rope_scaling": (None,),
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "quantization_config": (None,),
    "norm_type": ("layer_norm",),
    "use_qk_norm": (False,),
    "qk_normalization": (False,),
    "is_hybrid": (False,),
    "pruned_heads": ({}, None),
}
_READ = (*FIELDS, *_ONLY, "hidden_act", "rope_theta", "rope_parameters", "model_type", "architectures")
_SHOWN = (  # by the arrays
    *("hidden_size", "num_hidden_layers", "intermediate_size", "mlp_ratio", "patch_size", "num_channels", "qkv_bias"),
    *("query_bias", "key_bias", "value_bias", "proj_bias", "mlp_bias", "use_gated_mlp", "use_swiglu_ffn"),
    *("num_register_tokens", "num_patches", "pooler_output_size", "projection_dim", "vision_use_head"),
    *("use_absolute_position_embeddings", "use_relative_position_bias", "use_shared_relative_position_bias"),
    *("use_mean_pooling", "use_mask_token", "vocab_size", "num_labels", "id2label", "label2id", "problem_type"),
    *("attention_bias", "mask_token", "num_image_tokens", "depth"),
)
_WITHOUT_EFFECT = (  # of training, of another task, or of the library
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout", "drop_path_rate"),
    *("initializer_range", "initializer_factor", "layerscale_value", "layer_scale_init_value", "encoder_stride"),
    *("pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale", "mask_ratio", "norm_pix_loss"),
    *("apply_layernorm", "reshape_hidden_states", "out_features", "out_indices", "stage_names", "add_fpn"),
    *("pool_scales", "use_auxiliary_head", "semantic_loss_ignore_index", "dtype", "torch_dtype", "return_dict"),
    *("transformers_version", "output_attentions", "output_hidden_states", "torchscript", "use_bfloat16"),
    *("tie_word_embeddings", "tf_legacy_loss", "chunk_size_feed_forward", "is_encoder_decoder", "use_cache"),
    *("gradient_checkpointing", "auto_map", "finetuning_task", "task_specific_params", "tokenizer_class", "prefix"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "decoder_start_token_id"),
    *("text_config", "logit_scale_init_value", "attn_implementation", "interpolate_mode", "use_fast", "return_loss"),
    *("cross_attention_hidden_size", "tie_encoder_decoder", "forced_bos_token_id", "forced_eos_token_id"),
    *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature"),
    *("top_k", "top_p", "typical_p", "diversity_penalty", "repetition_penalty", "length_penalty", "suppress_tokens"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
    *("output_scores", "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty"),
    *("begin_suppress_tokens", "transformers_js_config", "transformers.js_config"),
    *("projection_dropout", "hidden_dropout_rate", "use_flash_attn", "readout_type", "reassemble_factors"),
    *("head_in_index", "use_batch_norm_in_fusion_residual", "use_bias_in_fusion_residual", "add_projection"),
    *("semantic_classifier_dropout", "backbone_config", "backbone_featmap_shape", "fusion_hidden_size"),
)
_PREFIXES_WITHOUT_EFFECT = ("_", "decoder_", "auxiliary_", "neck_", "backbone_out_", "vit_keras")
_TOWERS = ("vision_config", "image_config", "backbone_config", "encoder")


def read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that a `config.json` of transformers shows."""
    # With a `model_type`, missing ones have transformers' default values.
    architectures = config.get("architectures") or [""]
    outer, config = config, tower(config)
    config = {**_of_type(config.get("model_type", outer.get("model_type"))), **config}
    check(config)
    given = {ours: config.get(theirs) for theirs, ours in FIELDS.items() if theirs not in _SHOWN}
    known = {field: value for field, value in given.items() if value is not None}
    if "hidden_act" in config or config.get("use_swiglu_ffn"):  # DINOv2's SwiGLU has SiLU, whatever hidden_act says
        known["mlp_activation"] = activation("silu" if config.get("use_swiglu_ffn") else config["hidden_act"])
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type must be 'default'. Received: {rope['rope_type']!r}")
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if theta is not None:
        known["rope_theta"] = float(theta)
    return {**known, **_POOLINGS.get(architectures[0], {})}


def tower(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a `config.json` for the image tower, or all of it if there is no other part."""
    return next((config[part] for part in _TOWERS if config.get(part)), config)


def _of_type(kind: Any) -> Mapping[str, Any]:
    if kind is None:
        return {}
    if kind not in _TYPES:
        raise ValueError(
            f"model_type {kind!r} is none that this package computes: {', '.join(_TYPES)}. Without a config.json the "
            "arrays alone are read."
        )
    return _TYPES[kind]


def activation(name: Any) -> str:
    """Return this package's name of an activation."""
    return ACTIVATIONS[one_of(name, "hidden_act", ACTIVATIONS)]


def check_values(config: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], where: str = "") -> None:
    """Raise an error for values that a model of this package cannot have; the first of each field is the usual one."""
    for field, values in only.items():
        if config.get(field, values[0]) not in values:
            raise ValueError(f"{where}{field} must be {' or '.join(map(repr, values))}. Received: {config[field]!r}")


def check(config: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Raise an error for values that a model of this package cannot have, and warn about unknown fields."""
    check_values(config, _ONLY)
    known = {*_READ, *_SHOWN, *_WITHOUT_EFFECT, *more}
    unknown = [f for f in config if f not in known and not f.startswith(_PREFIXES_WITHOUT_EFFECT)]
    if unknown and "model_type" in config:
        warn_caller(
            f"config.json has fields that are not known and were not used: {', '.join(unknown)}. If they change what "
            "the model computes, its outputs are others here."
        )

"""Read the text tower in a weight file: its arrays under canonical names, and its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._internal.bounds import about
from ..checkpoints import open_clip_json
from ..checkpoints.architecture import count_blocks, heads_of
from ..checkpoints.families import rules
from ..checkpoints.families.rules import POSITIONS
from ..checkpoints.families.text import BIG_VISION, CLIP, CLIP_VOCABULARY, OPEN_CLIP, SIGLIP, TEXT_FAMILIES
from ..checkpoints.hints import naming, neighbor
from ..checkpoints.locate import fetch
from ..checkpoints.transformers_models import activation, check
from ..checkpoints.weights import CanonicalArrays, check_binding, open_network
from .config import TextConfig

__all__ = ["LOGITS", "SETTINGS", "TextWeights"]

LOGITS = ("logit_scale", "logit_bias")
"""Names of the temperature and the bias of the logits, which belong to both towers."""
SETTINGS = ("config.json", "open_clip_config.json")
"""The files next to the weights, with settings that the arrays do not show."""

_BLOCK = "Transformer/encoderblock_0"
# What transformers takes for a field that a config.json leaves out.
_CLIP_TYPE = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 8, "eos_token_id": 49407}
_SIGLIP_TYPE = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_attention_heads": 12}
_TYPES = {
    **dict.fromkeys(("clip", "clip_text_model", "metaclip_2", "metaclip_2_text_model"), (CLIP, _CLIP_TYPE)),
    **dict.fromkeys(("siglip", "siglip_text_model", "siglip2", "siglip2_text_model"), (SIGLIP, _SIGLIP_TYPE)),
}
_MORE = ("max_position_embeddings", "projection_size", "projection_dim", "text_config_dict", "vision_config")


class TextWeights(CanonicalArrays):
    """The arrays of the text tower in a file, under canonical names."""

    def __init__(self, weights: str | os.PathLike[str], *, strict: bool = True, key: str | None = None, **fields: Any):
        path = os.path.expanduser(fetch(weights))
        with about(path):
            self.reader: Any = open_network(path, key, TEXT_FAMILIES)
        self.path: Path = Path(self.reader.path)
        with naming(self.path, "text tower"):
            self.family: rules.Family = _family(self.reader)
            binding = rules.bind(self.family, self.reader, self.reader.shape)
            check_binding(binding, self.family, strict)
            self._hold(self.reader, binding.parts)
            self.ignored: tuple[str, ...] = (*sorted((*binding.ignored, *binding.unknown)),)
            inferred = _infer(self.shapes)
            known = _usual(self.family, self.shapes, custom=any(n.startswith("text.") for n in self.reader))
            if heads := heads_of(binding, self.reader.shape):
                known["num_heads"] = heads
            known |= self._said_beside(inferred)
            self.config: TextConfig = _complete(self.family, {**known, **inferred}, fields)

    def _said_beside(self, inferred: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of this tower in a neighboring `config.json` or `open_clip_config.json`."""
        self.text_cfg: Mapping[str, Any] | None = None
        if self.family is BIG_VISION:
            return {}
        if self.family in (CLIP, SIGLIP):
            said = neighbor(self.path, SETTINGS[0])
            return _read_config(said, self.family, inferred) if said else {}
        if model := neighbor(self.path, SETTINGS[1]).get("model_cfg"):
            fields = open_clip_json.text_fields(model)
            self.text_cfg = model["text_cfg"]
            return fields
        if self.family is OPEN_CLIP and inferred["vocab_size"] == CLIP_VOCABULARY:
            self.text_cfg = {}
        return {}


def _family(reader: Any) -> rules.Family:
    family = rules.detect(TEXT_FAMILIES, reader, reader.shape)
    if family is None:
        some = ", ".join(map(repr, sorted(reader)[:4]))
        titles = "; ".join(each.title for each in TEXT_FAMILIES if not each.refused)
        raise ValueError(f"it has {len(reader)} arrays, {some} …, and none of these text towers: {titles}.")
    if family.refused:
        raise ValueError(f"{family.refused}.")
    return family


def _infer(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the fields of `TextConfig` that the arrays show."""
    vocab_size, hidden_size = shapes["embedding/embeddings"]
    head = shapes.get("head/kernel")
    return {
        "vocab_size": vocab_size,
        "context_length": shapes[POSITIONS][1],
        **count_blocks(shapes),
        "hidden_size": hidden_size,
        "mlp_dim": shapes[f"{_BLOCK}/MlpBlock_3/Dense_0/kernel"][1],
        "output_size": head[1] if head else None,
        "output_bias": "head/bias" in shapes,
    }


def _usual(family: rules.Family, shapes: Mapping[str, tuple[int, ...]], custom: bool) -> dict[str, Any]:
    """Return the fields that all published models of a family with such a vocabulary share."""
    fields = dict(family.config)
    if "pooling" in family.choices and shapes["embedding/embeddings"][0] == CLIP_VOCABULARY:
        fields["pooling"] = "argmax"
        if family is OPEN_CLIP and not custom:  # of those with a prefix, MobileCLIP's are not causal
            fields["causal"] = True
    return fields


def _read_config(config: Mapping[str, Any], family: rules.Family, inferred: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a `config.json` of transformers shows."""
    text = {**(config.get("text_config") or {}), **(config.get("text_config_dict") or {})} or config
    kind = text.get("model_type", config.get("model_type"))
    if kind not in _TYPES:
        raise ValueError(f"config.json: model_type {kind!r} is none of {', '.join(_TYPES)}.")
    expected, usual = _TYPES[kind]
    if family is not expected:
        raise ValueError(f"config.json: model_type {kind!r} contradicts the arrays, which are of {family.title}.")
    text = {**usual, **text}
    check(text, _MORE)
    for theirs, ours in (("hidden_size", "hidden_size"), ("num_hidden_layers", "num_layers")):
        if text.get(theirs, inferred[ours]) != inferred[ours]:
            raise ValueError(
                f"config.json: {theirs}={text[theirs]!r} contradicts the arrays, which have {inferred[ours]!r}."
            )
    fields = {
        "num_heads": text["num_attention_heads"],
        "epsilon": text["layer_norm_eps"],
        "mlp_activation": activation(text["hidden_act"]),
    }
    if family is SIGLIP:
        return fields
    eos = text["eos_token_id"]
    if eos == 2 and not kind.startswith("metaclip_2"):  # what the first files said, wrongly
        return {**fields, "pooling": "argmax"}
    return {**fields, "pooling": "eos", "eos_id": eos}


def _complete(family: rules.Family, known: Mapping[str, Any], options: Mapping[str, Any]) -> TextConfig:
    fields = {**known, **options}
    width = fields["hidden_size"]
    if "num_heads" not in fields:
        fields["num_heads"] = family.heads.get(width, max(1, width // family.dim_head))
    for field, values in family.choices.items():
        if field not in fields:
            raise ValueError(
                f"Cannot infer {field} of the text tower. Pass text={{{field!r}: …}} (one of "
                f"{', '.join(map(repr, values))}), or put the model's {' or '.join(SETTINGS)} next to the file."
            )
    return TextConfig().replace(**fields)

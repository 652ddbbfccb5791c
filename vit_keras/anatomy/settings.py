"""The configuration that the layers of a Vision Transformer have now, whoever changed them after the build."""

from __future__ import annotations

from typing import Any

import keras

from .. import layers
from ..backend.keras_internals import flat_layers
from ..config import ViTConfig, stored_activation
from ..layers._base import Composite
from ..layers.mixer import MixerBlock

_NORMS = ("embedding_norm", "Transformer_norm_pre", "Transformer_encoder_norm", "fc_norm")
_RATES = ("dropout", "attention_dropout", "emb_dropout", "patch_dropout", "stochastic_depth")


def _fields(vit: keras.Model) -> dict[str, list[Any]]:
    """Return the different values of fields of a `ViTConfig` in the layers of a ViT: usually one of each field."""
    found: dict[str, list[Any]] = {}

    def see(field, value):
        values = found.setdefault(field, [])
        if not any(_same(value, other) for other in values):
            values.append(value)

    blocks = [layer for layer in vit.layers if isinstance(layer, (layers.TransformerBlock, MixerBlock))]
    for layer in vit.layers:
        if isinstance(layer, Composite) or layer.name in _NORMS:
            for part in flat_layers(layer):
                if isinstance(part, keras.layers.LayerNormalization):
                    see("epsilon", part.epsilon)
                elif isinstance(part, layers.MlpBlock):
                    see("mlp_activation", part.activation)
        if isinstance(layer, (layers.AddPositionEmbs, layers.AddSinCosPositionEmbs)):
            see("emb_dropout", layer.dropout_layer.rate)
        elif isinstance(layer, layers.PatchDropout):
            see("patch_dropout", layer.rate)
        elif layer.name in ("head", "activation") and getattr(layer, "activation", None) is not None:
            see("activation", _named(layer.activation))
    for n, block in enumerate(blocks):
        inside = [part for part in flat_layers(block) if isinstance(part, keras.layers.Dropout)]
        attention = flat_layers(block.att) if hasattr(block, "att") else []
        for part in inside:
            if part.name != "drop_path":
                see("attention_dropout" if part in attention else "dropout", part.rate)
            elif n:
                see("stochastic_depth", part.rate * (len(blocks) - 1) / n)
        if hasattr(block, "post_norm"):
            see("post_norm", block.post_norm)
    return found


def _named(activation: Any) -> Any:
    """Return the activation of a head by its name, or a function that no file can name as it is."""
    name = getattr(activation, "__name__", "")
    if getattr(keras.activations, name, None) is activation:
        return name
    try:
        return stored_activation(activation)
    except ValueError:
        return activation


def read_config(vit: keras.Model, config: ViTConfig) -> ViTConfig:
    """Return the configuration with what the layers of a ViT have now, where all of them agree."""
    now = {field: values[0] for field, values in _fields(vit).items() if len(values) == 1 and not callable(values[0])}
    for field in _RATES if config.remat else ():  # which needs rates of 0, and ignores others
        now.pop(field, None)
    now = {field: value for field, value in now.items() if not _same(value, getattr(config, field))}
    rate = now.pop("emb_dropout", config.embedding_dropout)  # which does not follow a `dropout` that is set later
    if rate != (now.get("dropout", config.dropout) if config.emb_dropout is None else config.emb_dropout):
        now["emb_dropout"] = rate
    return config.replace(**now) if now else config


def check_config(vit: keras.Model) -> None:
    """Raise an error if a `ViTConfig` cannot describe what a ViT computes, so that no file of weights can hold it."""
    remedy = "Set them back, or save the whole model by model.save(path), as .keras."
    for field, values in _fields(vit).items():
        if field not in _RATES and (len(values) > 1 or callable(values[0])):
            raise ValueError(
                f"A file of weights holds one {field} for all layers, by its name. The layers of the model "
                f"{vit.name!r} have {', '.join(f'{value!r:.100}' for value in values)}. {remedy}"
            )
    for layer in vit.layers:
        if isinstance(layer, layers.ExtractToken) and layer.index != (layer.name == "ExtractDistillationToken"):
            raise ValueError(f"A file of weights cannot hold that {layer.name!r} takes token {layer.index}. {remedy}")
        known = isinstance(layer, Composite) or layer.name in ("embedding", "pre_logits")
        for part in flat_layers(layer) if known else ():
            usual = keras.activations.tanh if part.name == "pre_logits" else keras.activations.linear
            if not isinstance(part, (layers.MlpBlock, MixerBlock)) and getattr(part, "activation", usual) is not usual:
                raise ValueError(
                    f"The layer {part.name!r} of the model {vit.name!r} has the activation "
                    f"{_named(part.activation)!r:.100}, which a file of weights cannot hold. {remedy}"
                )


def _same(value: Any, other: Any) -> bool:
    return value == other or (isinstance(value, float) and isinstance(other, float) and abs(value - other) < 1e-9)

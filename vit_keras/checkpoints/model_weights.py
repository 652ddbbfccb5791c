"""The weights of a model under their canonical names."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .. import anatomy, layers
from .._internal.warn import warn_caller
from ..anatomy.around import alone, operations_around
from ..anatomy.outputs import labels_of
from ..anatomy.parts import attention_blocks, dense_layers, find_vit, has_attention, keeper, learner, quantization
from ..anatomy.settings import read_config
from ..backend.keras_internals import full_kernel
from ..config import ViTConfig
from ..layers.tokens import MeanToken
from ..preprocess import Preprocessing
from . import grids
from .assumptions import NOTHING
from .families import Family, family_named
from .families.rules import POSITIONS
from .wording import some

__all__ = ["ModelWeights"]

# The path of a variable in a model becomes its canonical name by these spelling rules and no others.
_SPELLING = (
    (r"^(class_token|register_tokens)/", ""),
    (r"^distillation_token/cls", "dist"),
    (r"^Transformer_", "Transformer/"),
    (r"^(block\d+)_(unit\d+)/", r"\1/\2/"),
    (r"/gamma$", "/scale"),
    (r"/beta$", "/bias"),
)
_CANONICAL = re.compile(
    r"(cls|dist|registers)$|(rotary_positions|embedding|embedding_norm|patch_norm|Transformer|fc_norm|MAPHead_0|pre_logits|head|head_dist|"
    r"conv_root|gn_root|block\d+)/"
)
_PLAIN = re.compile(r"(embedding|Transformer/(posembed_input|encoderblock_\d+|encoder_norm)|pre_logits|head)/|cls$")


class ModelWeights(Mapping[str, Any]):
    """The weights of a model under canonical names, with the attributes that `Weights` has for a file."""

    labels: Any
    task: Any

    assumptions = NOTHING
    stated: frozenset[str] = frozenset(("preprocessing", "task"))
    table = key = other_key = None
    family: Family = family_named("keras")

    def __init__(self, model: keras.Model, path: str | os.PathLike[str] | None = None):
        found = find_vit(model)
        vit = alone(found)
        self.path: str | Path = f"the model {vit.name!r}" if path is None else Path(path)
        self.variables: dict[str, Any] = canonical_variables(vit)
        self.shapes: dict[str, tuple[Any, ...]] = {
            name: tuple(variable.shape) for name, variable in self.variables.items()
        }
        config = getattr(found, "config", None) or read_config(vit, _infer_plain_config(vit, self.shapes))
        self.architecture: dict[str, Any] = dataclasses.asdict(config)
        self.preprocessing: Preprocessing = keeper(vit).preprocessing
        self.task, self.labels = anatomy.task(vit), labels_of(vit)
        self.origin: str | None = getattr(found, "origin", None)
        self.published: None = None
        self.image_size: tuple[int, int] | None = config.image_size
        self._adapted = adapted_layers(vit)
        kept = {id(variable) for variable in self.variables.values()}
        for dense in (dense for kernel, dense in self._adapted.items() if kernel in kept):  # whose kernel holds them
            kept |= {id(dense.lora_kernel_a), id(dense.lora_kernel_b)}
        around = (variable for variable in learner(model).weights if id(variable) not in kept)
        self.ignored: tuple[str, ...] = tuple(getattr(variable, "path", variable.name) for variable in around)
        self._around = operations_around(model)
        self._own_grid = self._grid = config.position_grid or config.grid
        self.positions: int | None = math.prod(self._grid) if self._grid and grids.has_positions(self.shapes) else None

    def warn_of_others(self, remedy: str) -> None:
        """Warn if there are layers around the ViT, with weights or without, which no file of weights holds."""
        if self._around:
            names = some([f"{type(each).__name__} {each.name!r}" for each in self._around])
            warn_caller(f"Only the ViT of {self.path} is kept, without what is around it: {names}. {remedy}")

    def settle(self, source_grid: tuple[int, int] | None = None, **_: Any) -> None:
        """Use `source_grid` as the grid of the positions; a model knows everything else."""
        self._grid = source_grid or self._own_grid

    def grid(self, source_grid: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Return the patches down and across that the model has positions for."""
        return source_grid or self._grid

    def __getitem__(self, name: str) -> np.ndarray:
        variable = self.variables[name]
        adapted = self._adapted.get(id(variable))  # whose kernel is a sum
        return np.asarray(keras.ops.convert_to_numpy(adapted.kernel if adapted else variable), np.float32)

    def grouped(self, names: Iterable[str]) -> list[str]:
        """Return names in the order in which they are to be read."""
        return list(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)


def adapted_layers(vit: keras.Model) -> dict[int, keras.layers.Dense]:
    """Return the layers with a low-rank adapter by the identity of their kernel without it."""
    return {id(full_kernel(dense)): dense for dense in dense_layers(vit) if dense.lora_enabled}


def canonical_variables(vit: keras.Model) -> dict[str, Any]:
    """Return the variables of a ViT under their canonical names, without adapters."""
    # Layers that a user added after the ViT in the same model have no canonical name and are left out.
    if (mode := quantization(vit)) is not None:
        raise ValueError(
            f"The weights of the model {vit.name!r} are quantized ({mode}). They can be saved by model.save and "
            "model.save_weights, and nothing else: resize, convert or load weights before model.quantize."
        )
    variables = {}
    for layer in vit.layers:
        for variable in layer.weights:
            path = variable.path.split("/")
            name = "/".join(path[path.index(layer.name) :]) if layer.name in path else variable.path
            for keras_name, canonical in _SPELLING:
                name = re.sub(keras_name, canonical, name)
            if _CANONICAL.match(name) and variable.name not in ("lora_kernel_a", "lora_kernel_b"):
                variables[name] = variable
    return variables


def _infer_plain_config(vit: keras.Model, shapes: Mapping[str, tuple[int, ...]]) -> ViTConfig:
    """Infer the `ViTConfig` of a plain ViT that has none, from its layers: a model of vit-keras 0.x, or a clone."""
    plain = {"cls", "embedding/kernel", POSITIONS} <= set(shapes) and all(map(_PLAIN.match, shapes))
    special = any(isinstance(layer, (MeanToken, layers.RotaryPositions)) for layer in vit.layers)
    if not plain or special or not has_attention(vit):
        raise ValueError(
            f"The model {vit.name!r} has no ViTConfig: it was cloned or cut out of another model. Pass that model."
        )
    blocks = attention_blocks(vit)
    positions = next(layer for layer in vit.layers if isinstance(layer, layers.AddPositionEmbs))
    pooled = any(isinstance(layer, layers.ExtractToken) for layer in vit.layers)
    head = next((layer for layer in vit.layers if layer.name == "head"), None)
    top = {name: shapes[f"{name}/kernel"][1] for name in ("pre_logits", "head") if f"{name}/kernel" in shapes}
    patch_height, patch_width, channels, hidden_size = shapes["embedding/kernel"]
    image_size = tuple(vit.input_shape[1:3])
    of_blocks = {name: value for name, value in blocks[-1].get_config().items() if name in _FIELDS}
    return ViTConfig(
        **{
            **of_blocks,
            "name": vit.name,
            "image_size": None if None in image_size else image_size,
            "position_grid": positions.grid if None in image_size else None,
            "position_prefix": positions.grid is None or shapes[POSITIONS][1] > math.prod(positions.grid),
            "position_resize": positions.resize,
            "emb_dropout": None if positions.dropout == of_blocks["dropout"] else positions.dropout,
            "patch_dropout": next((each.rate for each in vit.layers if isinstance(each, layers.PatchDropout)), 0.0),
            "relative_positions": blocks[0].att.relative_grid is not None,
            "patch_size": (patch_height, patch_width),
            "patch_bias": "embedding/bias" in shapes,
            "channels": channels,
            "num_layers": len(blocks),
            "hidden_size": hidden_size,
            "merge_tokens": tuple(getattr(block, "merge_tokens", 0) for block in blocks),
            "final_norm": "tokens" if "Transformer/encoder_norm/scale" in shapes else None,
            "pooling": "token" if pooled else None,
            "representation_size": top.get("pre_logits"),
            "include_top": "head" in top,
            "classes": top.get("head", 1000),
            "head_bias": "head" not in top or "head/bias" in shapes,
            "activation": "linear" if head is None else keras.activations.serialize(head.activation),
            "drop_remainder": True,
        }
    )


_FIELDS = {field.name for field in dataclasses.fields(ViTConfig)}

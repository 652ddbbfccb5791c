"""What a file says of a model besides its weights: how it computes, how images are prepared, what its classes are."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras

from .. import anatomy
from .._internal.warn import warn_caller
from ..anatomy.around import alone
from ..anatomy.outputs import labels_of, set_classes
from ..anatomy.parts import keeper
from .architecture import has_map_prefix
from .families.rules import NUMERICS
from .model_weights import ModelWeights, canonical_variables
from .weights import Weights

__all__ = ["take_settings", "warn_of_other_numerics"]


def take_settings(
    vit: Any,
    source: Weights | ModelWeights,
    fresh: tuple[str, ...],
    *,
    native: tuple[int, int] | None = None,
    is_new: bool = False,
) -> None:
    """Give a ViT the preprocessing, classes and task that a file states."""
    vit = alone(vit)
    # What the file does not state stays as it is, unless the model is new; classes and task need the file's head, which
    # is not among the `fresh` weights. `native` is the size that the weights were trained at, if the caller knows it.
    if is_new or "preprocessing" in source.stated:
        height, width, channels = vit.input_shape[1:]
        stated = source.preprocessing.for_channels(channels)
        size = (height, width) if None not in (height, width) else stated.image_size or native or source.image_size
        keeper(vit).preprocessing = stated.replace(image_size=size)
    has_head = any(name.startswith("head/") for name in canonical_variables(vit))
    if not has_head or any(name.startswith("head/") for name in fresh) or not (is_new or "task" in source.stated):
        return
    keep = source.labels is None and source.task == anatomy.task(vit)
    set_classes(vit, labels_of(vit) if keep else source.labels, source.task)


def warn_of_other_numerics(vit: keras.Model, source: Weights | ModelWeights) -> None:
    """Warn if a file is for a model that computes differently."""
    config = getattr(vit, "config", None)
    if config is None:
        return
    theirs, ours = _numerics(source.architecture), _numerics(dataclasses.asdict(config))
    if "num_heads" in source.assumptions.open:  # then the model knows better
        theirs.pop("map_heads", None)
    other = [
        f"{field}={theirs[field]!r} (the model's: {ours[field]!r})"
        for field in NUMERICS
        if field in ours and theirs.get(field) not in (None, ours[field])
    ]
    if other:
        warn_caller(
            f"{source.path} was made for {', '.join(other)}, so the outputs will differ from the original's. "
            "vit_keras.from_checkpoint builds the model that the file is for."
        )


def _numerics(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that change what a model computes, without those for parts that it lacks."""
    found = {field: fields[field] for field in NUMERICS if field in fields}
    if fields.get("resnet") is None:
        found.pop("resnet_numerics", None)
    if fields.get("pooling") == "map":
        found["map_heads"] = fields.get("map_heads") or fields.get("num_heads")
    else:
        found.pop("map_heads", None)
    if not has_map_prefix(fields):
        found.pop("map_prefix", None)
    return found

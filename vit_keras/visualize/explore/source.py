"""Content of the page: a recording of a model, and the maps made of it."""

from __future__ import annotations

import dataclasses
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ... import anatomy
from ...anatomy.dry_run import activation, ending
from ...anatomy.outputs import output_kind, sigmoid, softmax, why_not_classifier
from ...anatomy.parts import learner
from ...backend import openvino
from ..maps import alti_rollout, attention_rollout, relevance_map
from ..recorder import record, values_add_up
from ..recording import Recording, of_images


@dataclasses.dataclass
class Source:
    """A recording with all maps that the page shows of it."""

    recording: Recording
    model: str
    names: list[str]
    maps: list[tuple[str, list[str], np.ndarray]]  # (key, name for each image, (B, G))
    apart: bool = False  # whether each class has a probability of its own
    is_logits: bool | None = None  # whether the recorded output is before it; `None` if nothing tells

    def first(self, count: int) -> Source:
        """Return the same with only the first images."""
        maps = [(key, names[:count], values[:count]) for key, names, values in self.maps]
        recording = of_images(self.recording, slice(count))
        return dataclasses.replace(self, recording=recording, names=self.names[:count], maps=maps)


def of_recording(rec: Recording) -> Source:
    """Return what to show of a recording."""
    _check(rec)
    return Source(rec, "", _picture_names(None, len(rec.images)), _maps(rec))


def of_model(model: Any, images: Any, target: Any, options: dict[Any, Any]) -> Source:
    """Record a model on images, and return what to show of it."""
    if not callable(model):
        raise TypeError(f"Pass a model and images, or a Recording. Received: {type(model).__name__}")
    model = learner(model)
    if "keep" not in options and not values_add_up(model):
        options = {**options, "keep": ("attention", "tokens")}
    if images is None:
        raise TypeError("A model needs images to run on: explorer(model, images).")
    if isinstance(target, str) and target == "auto":
        rec = _record_prediction(model, images, options)
    else:
        rec = record(model, images, target=target, **options)
    _check(rec)
    kind = output_kind(model)
    apart = anatomy.task(model) == "multi" or (kind == "probabilities" and ending(model).alone)
    left_out = not callable(target) and activation(model) is not None  # by `record`
    is_logits = {"logits": True, "probabilities": left_out}.get(kind or "")
    name = str(getattr(model, "name", ""))
    return Source(rec, name, _picture_names(images, len(rec.images)), _maps(rec), apart, is_logits)


def _record_prediction(model: Any, images: Any, options: dict[Any, Any]) -> Recording:
    """Record with gradients of the predicted class, where there is a head and it has learned something."""
    if why_not_classifier(model) or options.get("head_fusion") or openvino.is_active():
        return record(model, images, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All gradients are zero", UserWarning)
        rec = record(model, images, target="predicted", **options)
    if rec.gradients is not None and rec.gradients.any():
        return rec
    return dataclasses.replace(rec, target=None, gradients=None, pooling_gradients=None)


def attention_of(rec: Recording) -> np.ndarray:
    """Return the attention of a recording, which a page cannot do without."""
    if rec.attention is None:
        raise ValueError("The recording has no attention: record with keep=('attention', 'values', 'tokens').")
    return rec.attention


def _check(rec: Recording) -> None:
    attention, tokens = attention_of(rec), len(rec.prefix) + math.prod(rec.grid)
    if attention.ndim not in (4, 5) or attention.shape[-2:] != (tokens, tokens):
        raise ValueError(
            f"The explorer needs every row of attention, {tokens} × {tokens}. Received: a recording with attention of "
            f"the shape {attention.shape}. Record with query='all'."
        )
    if rec.head_fusion not in (None, "mean", "max", "min"):
        raise ValueError(
            f"The recording has the heads fused by {rec.head_fusion!r}, which is not an attention. "
            "Record with head_fusion=None."
        )


def _picture_names(images: Any, count: int) -> list[str]:
    given = images if isinstance(images, (list, tuple)) else [images]
    given = given if len(given) == count else [None] * count
    return [
        Path(image).stem if isinstance(image, (str, os.PathLike)) else f"Image {n}" for n, image in enumerate(given, 1)
    ]


def name_apart(sources: Sequence[Source]) -> None:
    """Give two models side by side different names."""
    if len(sources) == 2 and (sources[0].model == sources[1].model or not all(s.model for s in sources)):
        for source, place in zip(sources, ("first", "second")):
            source.model = f"{source.model} ({place})" if source.model else f"{place} model"


def _maps(rec: Recording) -> list[tuple[str, list[str], np.ndarray]]:
    """Return the maps of what is in the output, with a key and a name for each image."""
    count = len(rec.images)
    found = [("output", ["Rollout to output"] * count, attention_rollout(rec, head_fusion=rec.head_fusion or "mean"))]
    if rec.pooling_attention is not None:
        found.append(("pooling", ["Attention of the pooling head"] * count, rec.patches(rec.readout)))
    whole = (rec.values, rec.projections, rec.tokens)
    if attention_of(rec).ndim == 5 and all(array is not None for array in whole):
        found.append(("alti", ["ALTI"] * count, alti_rollout(rec)))
    if rec.gradients is not None and rec.head_fusion is None and not rec.exits:
        found.append(("relevance", [f"Relevance: {_target(rec, b)}" for b in range(count)], relevance_map(rec)))
    return [(key, names, np.asarray(values, "float32").reshape(count, -1)) for key, names, values in found]


def _target(rec: Recording, image: int) -> str:
    return "target" if rec.target is None else _label(rec, int(rec.target[image]))


def _label(rec: Recording, number: int) -> str:
    return rec.labels[number] if rec.labels is not None and number < len(rec.labels) else f"class {number}"


def predictions(source: Source, image: int) -> list[tuple[str, float]]:
    """Return the likeliest class and others of at least 1 %, of a model that knows the names of its classes."""
    rec = source.recording
    if rec.logits is None or rec.labels is None or len(rec.labels) != rec.logits.shape[-1]:
        return []
    scores = _probabilities(rec.logits[image].astype("float64"), source.apart, source.is_logits)
    likely = [int(n) for n in np.argsort(-scores)[:3]]
    return [(_label(rec, n), round(float(scores[n]), 4)) for n in likely if n == likely[0] or scores[n] >= 0.01]


def _probabilities(outputs: np.ndarray, apart: bool, is_logits: bool | None) -> np.ndarray:
    """Return probabilities of a recorded output."""
    apart = apart or outputs.size == 1
    if is_logits is None:
        sums_to_1 = np.allclose(outputs.sum(), 1, atol=1e-2)
        bounded = apart and (outputs <= 1).all()
        is_logits = outputs.size == 1 or not ((outputs >= 0).all() and (sums_to_1 or bounded))
    if not is_logits:
        return outputs
    return sigmoid(outputs) if apart else softmax(outputs)

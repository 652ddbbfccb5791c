"""Turn the result of `describe` into text."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from .._internal.bounds import patch_stride
from ..config import ViTConfig
from ..labels import names
from ..preprocess import Preprocessing
from .checkpoint import megabytes
from .locate import find

__all__ = ["FORMATS", "becomes", "megabytes", "sentences", "some"]

FORMATS = {
    "npz": "NumPy's .npz",
    "safetensors": "safetensors",
    "torch": "PyTorch",
    "keras_weights": "Keras' .weights.h5",
    "h5": "Keras' .h5",
    "keras": "Keras' .keras",
}
_POOLINGS = {
    "token": "class token",
    "gap": "mean over the patches",
    "all": "mean over all tokens",
    "token+gap": "class token and the mean over the patches",
    "token+dist": "class and distillation token, a head each",
    "map": "attention (MAP head)",
    None: "none: all tokens",
}
_GRID_SHOWN_BY = {
    "source_grid": "as source_grid says",
    "file": "as the file says",
    "config": "as the size of its images shows",
    "square": "as nothing says that it is not a square",
}
_SHOWN = (
    *("name", "num_layers", "hidden_size", "num_heads", "dim_head", "mlp_dim", "mlp_activation", "patch_size"),
    *("image_size", "pooling", "include_top", "classes", "drop_remainder"),
)
"""Fields that have a line of their own."""
_DEFAULTS = dataclasses.asdict(ViTConfig())


def sentences(report: Mapping[str, Any]) -> list[list[tuple[str, str]]]:
    """Return the result of `describe` as groups of pairs of a heading and a text."""
    parts = (_file, _model, _use) if "architecture" in report else (_file, _failure)
    return [[(heading, text) for heading, text in part(report) if text] for part in parts]


def becomes(entry: Mapping[str, Any]) -> str:
    """Return the canonical names of an array's content; those of several parts as `…/{query,key,value}/kernel`."""
    names = [name.split("/") for name in entry["becomes"]]
    if not names:
        return f"({entry['status']})"
    if len({len(parts) for parts in names}) > 1:
        return ", ".join(map("/".join, names))
    columns = [list(dict.fromkeys(parts)) for parts in zip(*names)]
    return "/".join(
        parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}" if len(parts) < 4 else f"{{{parts[0]},…,{parts[-1]}}}"
        for parts in columns
    )


def some(names: Iterable[str], count: int = 3) -> str:
    """Return the first few of a list, separated by commas, and `…` if there are more."""
    names = list(names)
    return ", ".join((*names[:count], *(["…"] if len(names) > count else [])))


def _file(report: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    kind, dtypes = FORMATS.get(report["format"], report["format"]), ", ".join(report["dtypes"]) or "nothing"
    yield "file", f"{kind}, {megabytes(report['bytes'])}, {_count(range(report['arrays']), 'array')} of {dtypes}"
    if "keys" in report:
        yield "state dict", f"{report['key']!r}, of {', '.join(map(repr, report['keys'][:20]))}"
    if report["family"]:
        yield "family", f"{report['family']['name']}: {report['family']['title']}"
    if published := report["published"]:
        top1 = f", top-1 {published['top1']:.1f}%" if published["top1"] else ""
        yield "published as", f"{published['name']} ({published['license']}{top1})"
    elif origin := report.get("origin"):
        begun_with = find(origin)
        yield "based on", f"{origin} ({begun_with.license if begun_with else 'license unknown'})"
    for name, why in [*report["unreadable"].items()][:1]:
        yield "unreadable", f"{_count(report['unreadable'], 'array')}, such as {name}: {why}"
    for field, what in (("not_finite", "with infinite or undefined values"), ("damaged", "that cannot be read")):
        if field in report:
            some_names = f": {some(report[field], 5)}" if report[field] else ""
            yield field.replace("_", " "), f"{_count(report[field], 'array')} {what}{some_names}"


def _model(report: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    c: Mapping[str, Any] = collections.defaultdict(lambda: None, report["architecture"])
    needed, grid = report["needed"], report.get("grid")
    yield "layers", f"{c['num_layers']}"
    yield "hidden size", f"{c['hidden_size']}"
    wide = "" if "num_heads" in needed else f", each {c['dim_head'] or c['hidden_size'] // c['num_heads']} wide"
    yield "heads", f"{c['num_heads']}{wide}" if wide else "unknown"
    yield "MLP", f"{c['mlp_dim']}, {c['mlp_activation'] or 'activation unknown'}"
    yield "patch", f"{_by(patch_stride(c['patch_size'], c['resnet']))} pixels"
    tokens = dict(report["tokens"] or {})
    patches = tokens.pop("grid", None)
    before = [f"{count} {kind}" for kind, count in tokens.items()]
    if patches is None:
        yield "image", "unknown" if "source_grid" in needed else "any size"
        yield "tokens", " + ".join((*before, "patches"))
    else:
        count = math.prod(patches)
        yield "image", f"{_by(c['image_size'])} pixels, {_by(patches)} patches"
        parts = f" = {' + '.join((*before, f'{count} patches'))}" if before else " patches"
        yield "tokens", f"{count + sum(tokens.values())}{parts}"
    if grid is not None and grid["patches"] is not None:
        yield "grid", f"{_by(grid['patches'])}, {_GRID_SHOWN_BY[grid['shown_by']]}. {grid['doubt']}".strip(". ")
    yield "pooling", _POOLINGS[c["pooling"]]
    yield "head", f"{c['classes']:,} classes" if c["include_top"] else "none: the model returns features"
    lacking = () if c["resnet"] is not None else ("resnet_numerics",)
    others = (field for field in c if field not in (*_SHOWN, *needed, *lacking) and c[field] != _DEFAULTS.get(field))
    yield "options", ", ".join(f"{field}={c[field]!r}" for field in others)
    yield "parameters", f"{report['parameters']:,} in {report['weights']:,} weights"


def _use(report: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield "pictures", _pictures(Preprocessing.from_dict(report["preprocessing"]))
    if labels := report["labels"]:
        start, known = labels if isinstance(labels, str) else f"{len(labels):,}", names(labels)
        yield "labels", f"{start}: {some((name.split(', ')[0] for name in known), 4)}" if known else start
    if report["assumed"]:
        assumed = ", ".join(f"{field}={value!r}" for field, value in report["assumed"].items())
        yield "assumed", f"{assumed}, which nothing in the file or next to it shows"
    for field, choices in report["needed"].items():
        listed = choices if isinstance(choices, str) else f"one of {', '.join(map(str, choices))}"
        yield "pass", f"{field}=, which the file does not show: {listed}"
    for field, what in (("ignored", "no part of the model"), ("unknown", "unknown in this family")):
        if report[field]:
            yield field, f"{_count(report[field], 'array')}, {what}: {some(report[field])}"
    if report["unknown"]:
        whole = "vit_keras.load_model opens the file, with all its layers"
        yield "", whole if report["format"] == "keras" else "from_checkpoint loads the file only with strict=False"
    yield "problem", report["problem"]


def _pictures(preprocessing: Preprocessing) -> str:
    size = _by(preprocessing.image_size) if preprocessing.image_size else "any size"
    part = "squeezed" if preprocessing.crop is None else f"{preprocessing.crop_mode} crop of {preprocessing.crop:.3g}"
    mean, std = (" ".join(f"{v:.3g}" for v in values) for values in (preprocessing.mean, preprocessing.std))
    return f"{size}, {part} ({preprocessing.interpolation}), mean {mean}, std {std}"


def _failure(report: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    yield "problem", report["problem"]
    for n, array in enumerate(report["first"]):
        yield "" if n else "it holds", f"{array['name']}  {_by(array['shape']) or 'one value'}"
    if report["arrays"] > len(report["first"]):
        yield "", f"… and {report['arrays'] - len(report['first']):,} more (--names lists all)"


def _count(things: Any, name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def _by(sizes: Iterable[int] | None) -> str:
    return "×".join(map(str, sizes or ()))

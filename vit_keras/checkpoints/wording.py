"""Turn the result of `describe` into text."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Mapping
from typing import Any

from .._internal.bounds import patch_stride
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


def sentences(report: Mapping[str, Any]) -> list[list[tuple[str, str]]]:
    """Turn the result of `describe` into text.

    The result has groups of pairs of a heading and a text.
    """
    groups = [_file_in_words(report)]
    if "architecture" in report:
        groups += [_model_in_words(report), _use_in_words(report)]
    else:
        groups.append(_failure_in_words(report))
    return [group for group in groups if group]


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
    """Return the first few of a list, separated by commas.

    Example:
        >>> some("abcde")
        'a, b, c, …'
    """
    names = list(names)
    return ", ".join((*names[:count], *(["…"] if len(names) > count else [])))


def _file_in_words(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    dtypes = ", ".join(report["dtypes"]) or "nothing"
    kind = FORMATS.get(report["format"], report["format"])
    lines = [("file", f"{kind}, {megabytes(report['bytes'])}, {_count(range(report['arrays']), 'array')} of {dtypes}")]
    if "keys" in report:
        averaged = ", the moving average of the weights, as timm takes it" if report.get("raw_key") else ""
        lines.append(("state dict", f"{report['key']!r}, of {', '.join(map(repr, report['keys'][:20]))}{averaged}"))
    if report["family"]:
        lines.append(("family", f"{report['family']['name']}: {report['family']['title']}"))
    published = report["published"]
    if published:
        top1 = f", top-1 {published['top1']:.1f}%" if published["top1"] else ""
        lines.append(("published as", f"{published['name']} ({published['license']}{top1})"))
    elif origin := report.get("origin"):
        begun_with = find(origin)
        lines.append(("based on", f"{origin} ({begun_with.license if begun_with else 'license unknown'})"))
    if report["unreadable"]:
        name, why = next(iter(report["unreadable"].items()))
        lines.append(("unreadable", f"{_count(report['unreadable'], 'array')}, such as {name}: {why}"))
    for field, what in (("not_finite", "with infinite or undefined values"), ("damaged", "that cannot be read")):
        if field in report:
            some_names = f": {some(report[field], 5)}" if report[field] else ""
            lines.append((field.replace("_", " "), f"{_count(report[field], 'array')} {what}{some_names}"))
    return lines


def _model_in_words(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    c = collections.defaultdict(lambda: None, report["architecture"])
    return [
        (
            "layers",
            f"{c['num_layers']}"
            + (f" after a ResNet of {c['resnet']} units" if c["resnet"] else "")
            + (" after the root of a ResNet" if c["resnet"] == () else ""),
        ),
        ("hidden size", f"{c['hidden_size']}"),
        *_heads_in_words(c, report),
        ("MLP", f"{c['mlp_dim']}{', gated' if c['gated_mlp'] else ''}, {c['mlp_activation'] or 'activation unknown'}"),
        ("patch", _patch_in_words(c)),
        *_sizes_in_words(c, report),
        ("positions", _positions_in_words(c)),
        *_grid_in_words(report.get("grid")),
        ("norms", _norms_in_words(c)),
        ("pooling", _pooling_in_words(c)),
        ("head", _head_in_words(c)),
        ("parameters", f"{report['parameters']:,} in {report['weights']:,} weights"),
    ]


_POOLINGS = {
    "token": "class token",
    "gap": "mean over the patches",
    "all": "mean over all tokens",
    "token+gap": "class token beside the mean over the patches",
    "token+dist": "class and distillation token, a head each",
    "map": "attention (MAP head)",
    None: "none: all tokens",
}


def _pooling_in_words(c: Mapping[str, Any]) -> str:
    of_patches = c["pooling"] == "map" and c["map_prefix"] is False
    return f"{_POOLINGS[c['pooling']]}{' over the patches alone' if of_patches else ''}"


def _patch_in_words(c: Mapping[str, Any]) -> str:
    channels = f" of {c['channels']} channel{'s' if c['channels'] > 1 else ''}" if c["channels"] != 3 else ""
    pixels = f"{_by(patch_stride(c['patch_size'], c['resnet']))} pixels{channels}"
    return pixels if c["resnet"] is None else f"{_by(c['patch_size'])} of the ResNet's output, {pixels}"


def _heads_in_words(c: Mapping[str, Any], report: Mapping[str, Any]) -> list[tuple[str, str]]:
    if c["tokens_mlp_dim"]:
        return [("mixing", f"an MLP of {c['tokens_mlp_dim']} over the patches, no attention")]
    if "num_heads" in report["needed"]:
        return [("heads", "unknown")]
    width = c["dim_head"] or c["hidden_size"] // c["num_heads"]
    biases = {"qkv_bias": "no bias in query, key and value", "out_bias": "none after the attention"}
    without = [text for field, text in biases.items() if not c[field]]
    without += ["no bias in key"] if c["qkv_bias"] and c["key_bias"] is False else []
    return [("heads", ", ".join((f"{c['num_heads']}, each {width} wide", *without)))]


def _sizes_in_words(c: Mapping[str, Any], report: Mapping[str, Any]) -> list[tuple[str, str]]:
    tokens = dict(report["tokens"] or {})
    grid = tokens.pop("grid", None)
    before = [f"{count} {kind}" for kind, count in tokens.items()]
    if grid is None:
        image = "unknown" if "source_grid" in report["needed"] else "any size"
        return [("image", image), ("tokens", " + ".join((*before, "patches")))]
    patches = math.prod(grid)
    total = patches + sum(tokens.values())
    return [
        ("image", f"{_by(c['image_size'])} pixels, {_by(grid)} patches"),
        ("tokens", f"{total}" + (f" = {' + '.join((*before, f'{patches} patches'))}" if before else " patches")),
    ]


_ROPE_KINDS = {"axial": " (axial)", "axial_xy": " (axial)", "mixed": " (learned for each head)"}


def _positions_in_words(c: Mapping[str, Any]) -> str:
    prefix = int(bool(c["position_prefix"])) * int(c["pooling"] not in ("gap", "map") or bool(c["class_token"]))
    kinds = []
    if c["position"] == "learned":
        kinds.append(f"learned{', one for the class token too' if prefix else ''}; resampled by {c['position_resize']}")
    if c["position"] == "sincos2d":
        kinds.append("fixed sines and cosines in two dimensions")
    if c["rope_theta"] is not None:
        kinds.append(f"rotary{_ROPE_KINDS.get(c['rope_kind'], '')}, base {c['rope_theta']:g}")
    if c["relative_positions"]:
        kinds.append(f"relative, in each layer; resampled by {c['relative_resize']}")
    return "; ".join(kinds) or "none"


_GRID_SHOWN_BY = {
    "source_grid": "as source_grid says",
    "file": "as the file says",
    "config": "as the size of its images shows",
    "square": "as nothing says that it is not a square",
}


def _grid_in_words(grid: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if grid is None or grid["patches"] is None:
        return []
    return [("grid", f"{_by(grid['patches'])}, {_GRID_SHOWN_BY[grid['shown_by']]}. {grid['doubt']}".strip(". "))]


def _norms_in_words(c: Mapping[str, Any]) -> str:
    extra = {
        "pre_norm": "one before the first block",
        "post_norm": "those of a block after its attention and MLP",
        "attention_norm": "one inside the attention",
        "mlp_norm": "one inside the MLP",
        "patch_norm": "two around the patch embedding",
        "layer_scale": "layer scale",
    }
    final = {"pooled": "the last after the pooling", None: "none at the end"}.get(c["final_norm"])
    epsilon = "epsilon unknown" if c["epsilon"] is None else f"epsilon {c['epsilon']:g}"
    return ", ".join(filter(None, (epsilon, *(t for f, t in extra.items() if c[f]), final)))


def _head_in_words(c: Mapping[str, Any]) -> str:
    inner = f"pre_logits of {c['representation_size']}, " if c["representation_size"] else ""
    if not c["include_top"]:
        return f"{inner}none: the model returns features"
    return f"{inner}{c['classes']:,} classes{'' if c['head_bias'] else ', no bias'}"


def _use_in_words(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [("pictures", _pictures_in_words(Preprocessing.from_dict(report["preprocessing"])))]
    labels = report["labels"]
    if labels:
        known = names(labels) or ()
        start = labels if isinstance(labels, str) else f"{len(labels):,}"
        lines.append(("labels", f"{start}: {some((n.split(', ')[0] for n in known), 4)}" if known else start))
    if report["assumed"]:
        assumed = ", ".join(f"{field}={value!r}" for field, value in report["assumed"].items())
        lines.append(("assumed", f"{assumed}, which nothing in the file or beside it shows"))
    for field, choices in report["needed"].items():
        listed = choices if isinstance(choices, str) else f"one of {', '.join(map(str, choices))}"
        lines.append(("pass", f"{field}=, which the file does not show: {listed}"))
    for field, what in (("ignored", "no part of the model"), ("unknown", "unknown in this family")):
        if report[field]:
            lines.append((field, f"{_count(report[field], 'array')}, {what}: {some(report[field])}"))
    if report["unknown"]:
        whole = "vit_keras.load_model opens the file, with all its layers"
        loads = whole if report["format"] == "keras" else "from_checkpoint loads the file only with strict=False"
        lines.append(("", loads))
    if report["problem"]:
        lines.append(("problem", report["problem"]))
    return lines


def _pictures_in_words(preprocessing: Preprocessing) -> str:
    size = _by(preprocessing.image_size) if preprocessing.image_size else "any size"
    part = "squeezed" if preprocessing.crop is None else "the middle"
    if preprocessing.crop is not None:
        part += f" {preprocessing.crop:.3g} of each side" if preprocessing.crop < 1 else " square"
        part += " after squeezing" if preprocessing.crop_mode == "squash" else ""
    if set(preprocessing.mean) == set(preprocessing.std) == {0.5}:
        values = "values in [-1, 1]"
    else:
        mean, std = (" ".join(f"{v:.3g}" for v in values) for values in (preprocessing.mean, preprocessing.std))
        values = f"mean {mean}, std {std}"
    return f"{size}, {part} ({preprocessing.interpolation}), {values}"


def _failure_in_words(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines = [("problem", report["problem"].partition(": it has ")[0])]
    for n, array in enumerate(report["first"]):
        lines.append(("" if n else "it holds", f"{array['name']}  {_by(array['shape']) or 'one value'}"))
    if report["arrays"] > len(report["first"]):
        lines.append(("", f"… and {report['arrays'] - len(report['first']):,} more (--names lists all)"))
    for close in report["closest"]:
        behind = f" behind {close['prefix']!r}" if close["prefix"] else ""
        why = [f"{' or '.join(map(repr, name.split('|')))} is missing" for name in close["missing"]]
        why += [f"{name!r} is there" for name in close["excess"]]
        text = (
            f"knows {close['known']:,} of {close['of']:,} names{behind}, but {', '.join(why) or 'takes no such file'}"
        )
        lines.append(("closest", f"{close['family']}: {text}"))
    if not report["family"] and not report["closest"]:
        lines.append(("closest", "none: no family has more than a few of its names"))
    return lines


def _count(things: Any, name: str) -> str:
    return f"{len(things):,} {name}{'' if len(things) == 1 else 's'}"


def _by(sizes: Iterable[int] | None) -> str:
    return "×".join(map(str, sizes or ()))

"""Assumptions about a model that neither the arrays of its file nor neighboring files settle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from . import timm_models
from .architecture import has_map_prefix
from .families import TIMM_FAMILIES, Family
from .families.huggingface import FAMILIES as HUGGING_FACE_FAMILIES
from .families.keras_files import KECAM, KERAS, KERAS_TORCH
from .families.keras_hub import KERAS_HUB, KERAS_HUB_DEIT
from .families.rules import ROPE
from .wording import some

__all__ = ["NOTHING", "Assumptions", "assume"]

NUMERICS = ("num_heads", "mlp_activation", "epsilon")
# A .weights.h5 file numbers its layers, so that not even their kinds show these.
_UNSHOWN = {
    KERAS.name: (
        *("pooling", "pre_norm", "post_norm", "final_norm", "representation_size", "activation"),
        *("rope_theta", "merge_tokens", "resnet_numerics"),
    ),
    KERAS_TORCH.name: ("pooling", "post_norm", "activation", "rope_theta", "merge_tokens", "resnet_numerics"),
    KERAS_HUB.name: ("pooling", "activation"),
    KERAS_HUB_DEIT.name: ("pooling", "activation"),
    KECAM.name: ("pooling", "activation"),
}
_DOUBTED = {
    KECAM.name: {"pooling": " (kecam's EVA takes the mean: family='kecam-gap')"},
    KERAS_TORCH.name: {"mlp_activation": " (the usual one of this package)"},
}
_OFTEN_SHOWN = ("pooling", *ROPE, "post_norm", "map_heads", "map_prefix")


class Assumptions(NamedTuple):
    """The assumptions about the model in a file."""

    fields: Mapping[str, Any]  # fields of `ViTConfig`, with the values of the published models that the arrays fit
    open: tuple[str, ...]  # names of all assumed fields, including those with the family's default
    doubts: Mapping[str, str]  # assumed fields, each with a text on who disagrees, or an empty one
    # names of models that the arrays also fit but that cannot be built; None if the caller named the family
    others: str | None

    def warning(self, config: Any, doubts: Mapping[str, str], open_fields: Sequence[str], family: str) -> str:
        """Return the warning for a model that is being built, or an empty text."""
        # `doubts` and `open_fields` are those that the caller has not settled.
        said = []
        if doubts:
            values = ", ".join(f"{field}={getattr(config, field)!r}{text}" for field, text in doubts.items())
            said.append(f"It is read with {values}. Pass {'=…, '.join(doubts)}=… to be sure.")
        if self.others:
            said.append(f"It may be timm's {self.others}, which cannot be built. Pass family={family!r} if it is not.")
        if said and open_fields and family not in _DOUBTED:
            said.append("The file does not show it; a complete config.json next to it would.")
        return " ".join(said)


NOTHING = Assumptions({}, (), {}, None)


def assume(
    family: Family, inferred: Mapping[str, Any], known: Mapping[str, Any], *, is_named: bool = False
) -> Assumptions:
    """Return the assumptions about a file whose model is not fully known."""
    # Where published models disagree, the most common value is assumed. A field that the family leaves to the caller
    # stays open. `known` has the fields that the arrays imply or neighboring files contain.
    shown = {*known, *(("num_heads",) if "num_heads" in inferred else ())}
    if inferred["pooling"] != "token":
        shown.add("pooling")
    if inferred.get("representation_size"):
        shown.add("representation_size")
    if inferred.get("resnet") is None:
        shown.add("resnet_numerics")
    if not has_map_prefix({**inferred, **known}):
        shown.add("map_prefix")
    unseen = [field for field in ("pooling", "map_prefix") if field not in shown]
    numerics = tuple(field for field in NUMERICS if field not in shown)
    in_table = family in TIMM_FAMILIES and "mlp_activation" not in shown
    candidates = timm_models.alike(inferred, family.name) if in_table else []
    if not candidates:
        if not (in_table or (numerics and family in HUGGING_FACE_FAMILIES)):
            unshown = (field for field in _UNSHOWN.get(family.name, ()) if field not in shown)
            doubted = _DOUBTED.get(family.name, {})
            doubts = {} if is_named else {field: text for field, text in doubted.items() if field not in shown}
            return Assumptions({}, (*numerics, *unshown), doubts, None)
        guessed = (*numerics, *(unseen if family.format == "timm" else ()))  # authors' own files have one pooling
        return Assumptions({}, guessed, dict.fromkeys(guessed, ""), None)
    built = [model for model in candidates if not model.refused]
    if not built:
        reasons = (f"timm's {model.name}, which cannot be built: {model.refused}" for model in candidates[:3])
        raise ValueError(f"The arrays only fit {'; '.join(reasons)}.")
    fields = {field: value for field, value in _most_usual(built).items() if field not in shown}
    doubts = {}
    for field in (*NUMERICS, *_OFTEN_SHOWN):
        values: dict[Any, list[str]] = {}
        for model in built:
            values.setdefault(model.fields.get(field), []).append(model.name)
        if field in shown or len(values) < 2:
            continue
        if field in family.choices:
            del fields[field]
            continue
        ours = fields.get(field)
        theirs = "; ".join(f"{value!r} in {some(names)}" for value, names in values.items() if value != ours)
        doubts[field] = f" (as in {some(values[ours])}; {theirs})"
    if "pooling" in fields:
        fields["class_token"] = True
    others = [model.name for model in candidates if model.refused and not is_named]
    open_fields = dict.fromkeys((*numerics, *(field for field in _OFTEN_SHOWN if field in fields)))
    return Assumptions(fields, tuple(open_fields), {**dict.fromkeys(open_fields, ""), **doubts}, some(others) or None)


def _most_usual(models: list[timm_models.Model]) -> Mapping[str, Any]:
    """Return the most common values among published files."""
    files: dict[tuple[Any, ...], int] = {}
    for model in models:
        key = tuple(sorted(model.fields.items()))
        files[key] = files.get(key, 0) + model.files
    return dict(max(files, key=files.__getitem__))

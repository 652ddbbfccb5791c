"""Collect what neighboring files, the registry and the file's metadata say about a checkpoint.

If sources disagree, the last of these is used: `config.json` in the same folder, the registry's entry for a published
file, and the metadata that `save_weights` writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .._internal.bounds import LIMIT_TEXT, check_input, patch_stride, shortened
from .._internal.validate import check_activations, is_number, one_of, size_pair
from .._internal.warn import warn_caller
from ..config import ViTConfig
from ..labels import TASKS
from ..preprocess import PRESETS, Preprocessing
from . import architecture, keras_hub_json, open_clip_json, registry, timm_models, transformers_models
from .architecture import has_class_token
from .families import TIMM_FAMILIES, Family
from .families.huggingface import FAMILIES as HUGGING_FACE_FAMILIES
from .families.keras_hub import FAMILIES as KERAS_HUB_FAMILIES
from .wording import some

__all__ = ["SETTINGS", "Hints", "collect"]

SETTINGS = "vit_keras"
"""The key of a safetensors file's metadata under which `save_weights` stores the model's settings."""

_WITH_CONFIG = (
    *("processor_config.json", "preprocessor_config.json"),
    *("preprocessor.json", "image_converter.json", "task.json"),
)
"""Files that are written with a `config.json`, for the same model."""
_SHOWN_BY_SHAPES = ("num_layers", "hidden_size", "mlp_dim", "patch_size", "channels", "classes")


@dataclasses.dataclass(frozen=True)
class Hints:
    """What is known about a checkpoint in addition to its arrays."""

    fields: Mapping[str, Any]  # fields of `ViTConfig`
    image_size: tuple[int, int] | None  # pixels that the model was trained at
    preprocessing: Preprocessing
    labels: Any  # names of its classes, or the name of a list of them
    task: str  # one of `vit_keras.labels.TASKS`
    stated: frozenset[str]  # which of "preprocessing" and "task" are more than a default
    doubts: Mapping[str, str]  # fields on which another source disagrees, and what it says
    is_ours: bool = False  # whether the file is from this package, with its `ViTConfig`


def collect(
    reader: Any, path: Path, family: Family, inferred: Mapping[str, Any], published: registry.Checkpoint | None = None
) -> Hints:
    """Return all hints about a checkpoint; warn about a neighboring file that cannot be used."""
    config, task, preprocessor = neighbor(path, "config.json"), {}, {}
    if family in KERAS_HUB_FAMILIES:
        config, task, preprocessor = _of_keras_hub(reader, path, config)
    is_about_other = bool(config) and not _is_about(config, inferred)
    if is_about_other:
        if published is None:
            others = [name for name in _WITH_CONFIG if os.path.isfile(_next_to(path, name))]
            rest = f", nor {some(others)} next to it" if others else ""
            warn_caller(f"{_next_to(path, 'config.json')} is not used{rest}: it is about a model of another size.")
        config, task, preprocessor = {}, {}, {}
    whole = family in KERAS_HUB_FAMILIES and keras_hub_json.tower(reader.metadata.get("config"))
    with naming(path if whole else _next_to(path, "config.json"), "values"):
        fields = _checked(_read_config(config, family, inferred, task), inferred)
    preprocessing = None
    clip = neighbor(path, "open_clip_config.json")
    if clip.get("model_cfg") and family not in HUGGING_FACE_FAMILIES and published is None:
        with naming(_next_to(path, "open_clip_config.json"), "values"):
            fields |= _checked(open_clip_json.image_fields(clip["model_cfg"], inferred), inferred)
            if clip.get("preprocess_cfg"):
                preprocessing = open_clip_json.preprocessing(clip["preprocess_cfg"])
    if published is not None:
        if published.source == "timm" and family in TIMM_FAMILIES:
            fields |= timm_models.named(published.weights.partition("/")[2].partition(".")[0], inferred)
        fields |= {"image_size": published.image_size, **published.options}
        preprocessing = published.preprocessing or preprocessing
    if "pooling" in fields:  # it takes no token away from the model, and gives it none
        fields.setdefault("class_token", has_class_token(inferred))
    with naming(path, "metadata"):
        settings = saved_settings(reader)
        saved = ViTConfig().replace(**settings.get("config", {}))
        fields |= _checked({field: getattr(saved, field) for field in settings.get("config", {})}, inferred)
        is_ours = bool(settings.get("config"))
        problems = {} if is_ours else {theirs: task for task, theirs in transformers_models.PROBLEMS.items()}
        usual = problems.get(str(config.get("problem_type")), "single")
        labels, task = settings.get("labels"), one_of(settings.get("task", usual), "task", TASKS)
        if task == "ordinal":  # the names of its levels; the head has one output
            labels = tuple(map(str, labels)) if isinstance(labels, list) else None
        elif not isinstance(labels, str):
            theirs = (config.get(field) for field in ("id2label", "label_names", "labels"))  # transformers', timm's
            labels = next(filter(None, (_labels(names, inferred) for names in (labels, *theirs))), None)
        if "preprocessing" in settings:
            preprocessing = _bounded(Preprocessing.from_dict(settings["preprocessing"]))
    if preprocessing is None and not is_about_other:  # asked last, as it warns of a file that cannot be used
        preprocessing = _preprocessing(family, path, config, preprocessor)
    stated = {"preprocessing"} if preprocessing is not None else set()
    image_size = fields.pop("image_size", None)
    if isinstance(image_size, int):
        image_size = (image_size, image_size)
    with naming(_next_to(path, "config.json"), "values"):
        doubts = {} if published or is_ours else _doubts(config, fields)
    labels = labels or (published.labels if published else None)
    stated |= {"task"} if labels is not None or is_ours or "task" in settings or config.get("problem_type") else set()
    preprocessing = preprocessing or PRESETS[family.preprocessing]
    return Hints(fields, image_size, preprocessing, labels, task, frozenset(stated), doubts, is_ours)


def _doubts(config: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields in which timm's `config.json` contradicts the authors of the weights."""
    # For CLIPs that were trained with QuickGELU, timm's name implies GELU, which timm then computes.
    trained = registry.named(f"timm/{config.get('architecture')}.{(config.get('pretrained_cfg') or {}).get('tag')}")
    theirs = trained.options.get("mlp_activation") if trained else None
    if trained is None or theirs in (None, fields.get("mlp_activation")):
        return {}
    return {"mlp_activation": f" (as timm computes it; the authors of {trained.name} trained it with {theirs!r})"}


def _next_to(path: Path, name: str) -> Path:
    return (path if path.is_dir() else path.parent) / name


def neighbor(path: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in a file of the same folder, or an empty one if it cannot be read."""
    file = _next_to(path, name)
    if not os.path.isfile(file):
        return {}
    try:
        if file.stat().st_size > LIMIT_TEXT:
            raise ValueError("it is too large")
        content = json.loads(file.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        return content
    except (OSError, ValueError, RecursionError) as error:
        warn_caller(f"{file} is not used: {error}.")
        return {}


@contextlib.contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """Turn every error into a `ValueError` that names the file: foreign JSON can have any structure."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path}: invalid {what}: {shortened(str(error))}") from None


def _checked(fields: Mapping[str, Any], inferred: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a `ViTConfig` after comparing them with those inferred from the arrays."""
    fields = dict(fields)
    for field in ("epsilon", "rope_theta", "layer_scale"):
        value = fields.get(field)
        if value is not None and not (is_number(value) and value >= 0):  # ViTConfig checks the rest
            raise ValueError(f"{field} must be a number that is not negative. Received: {value!r}")
    if "mlp_activation" in fields:
        if not isinstance(fields["mlp_activation"], str):
            raise ValueError(f"mlp_activation must be a name. Received: {fields['mlp_activation']!r:.100}")
        check_activations({"mlp_activation": fields["mlp_activation"]})
    if fields.get("image_size") is not None:
        fields["image_size"] = size_pair(fields["image_size"], "image_size")
        check_input(fields["image_size"], patch_stride(inferred["patch_size"], inferred.get("resnet")))
    for field in ("registers", "representation_size", "tokens_mlp_dim", "resnet"):
        if fields.get(field) and fields[field] != inferred.get(field):
            raise ValueError(f"{field}={fields[field]!r} contradicts the arrays, which have no such part.")
    if fields.get("dim_head") and fields["dim_head"] * fields.get("num_heads", 1) > inferred.get("inner", math.inf):
        raise ValueError(f"dim_head={fields['dim_head']!r} contradicts the arrays, whose heads are narrower.")
    for field in _SHOWN_BY_SHAPES[: None if fields.get("include_top", True) else -1]:
        if field in fields and field in inferred and fields[field] != inferred[field]:
            raise ValueError(
                f"{field}={fields[field]!r} contradicts the arrays, which have {field}={inferred[field]!r}."
            )
    if "num_heads" in fields:
        architecture.check_heads({**inferred, **fields}, inferred.get("inner", inferred["hidden_size"]))
    return fields


def saved_settings(reader: Any) -> dict[str, Any]:
    """Return the settings that this package saved with the weights: family, config, preprocessing, labels and more."""
    metadata = reader.metadata
    if SETTINGS in metadata:
        return json.loads(metadata[SETTINGS])
    saved = metadata.get("config") or {}
    saved = (json.loads(saved) if isinstance(saved, str) else saved).get("config", {})
    settings = {key: saved[key] for key in ("preprocessing", "labels", "task", "origin") if saved.get(key) is not None}
    if saved.get("vit"):
        settings["config"] = saved["vit"]
    else:
        activation = next((name for name in reader if name.endswith("mlpblock/vars/activation")), None)
        if activation:
            settings["config"] = {"mlp_activation": bytes(np.asarray(reader[activation], "uint8")).decode()}
    return settings


def stated_channels(saved: Mapping[str, Any], path: Path, given: int | None = None) -> Any:
    """Return the channels of a model's images: as this package saved them, as `config.json` says, or the given."""
    if "channels" in saved:
        return saved["channels"]
    config = neighbor(path, "config.json")
    with naming(_next_to(path, "config.json"), "values"):
        vision, timm = transformers_models.tower(config) or {}, config.get("pretrained_cfg") or {}
        said = (vision.get("num_channels"), (config.get("model_args") or {}).get("in_chans"), config.get("in_chans"))
        said += tuple(timm.get("input_size") or ())[:1]
    return next((count for count in said if count is not None), given)


def _of_keras_hub(reader: Any, path: Path, config: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return the configurations of a KerasHub model, of its head and of its preprocessor."""
    # A whole saved model holds them. In a preset, they are in neighboring files.
    whole = reader.metadata.get("config")
    if keras_hub_json.tower(whole):
        return whole, whole, whole["config"].get("preprocessor") or {}
    preprocessor = neighbor(path, "preprocessor.json")
    if not preprocessor and (converter := neighbor(path, "image_converter.json")):
        preprocessor = {"config": {"image_converter": converter}}
    return config, neighbor(path, "task.json"), preprocessor


def _is_about(config: Mapping[str, Any], inferred: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` in the same folder describes this model."""
    if backbone := keras_hub_json.tower(config):
        sizes = {"hidden_dim": inferred["hidden_size"], "num_layers": inferred["num_layers"]}
        return all(backbone["config"].get(name) in (size, None) for name, size in sizes.items())
    vision = transformers_models.tower(config)
    if not config or not isinstance(vision, Mapping):
        return False
    width, layers = vision.get("hidden_size", config.get("num_features")), vision.get("num_hidden_layers")
    return width in (inferred["hidden_size"], None) and layers in (inferred["num_layers"], None)


def _read_config(
    config: Mapping[str, Any], family: Family, inferred: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that a `config.json` of timm, of transformers or of KerasHub shows."""
    if backbone := keras_hub_json.tower(config):
        is_its = keras_hub_json.FAMILY_OF[backbone["registered_name"]] == family.name
        return keras_hub_json.fields(backbone, task) if is_its else {}
    if isinstance(config.get("architecture"), str):
        if family not in TIMM_FAMILIES:  # another file of the same repository
            return {}
        return timm_models.read_config(config, inferred)
    about_it = not config.get("model_type") or family in HUGGING_FACE_FAMILIES or family.choices
    return transformers_models.read_config(config) if about_it else {}


def _preprocessing(
    family: Family, path: Path, config: Mapping[str, Any], hub_preprocessor: Mapping[str, Any]
) -> Preprocessing | None:
    """Return the preprocessing of a KerasHub model or in a neighboring file, or `None` if none states it."""
    name = "processor_config.json"  # of transformers 5
    processor = neighbor(path, name).get("image_processor")
    if not isinstance(processor, Mapping):
        name = "preprocessor_config.json"
        processor = neighbor(path, name)
    try:
        if hub_preprocessor and hub_preprocessor["config"].get("image_converter"):
            with naming(path, "the preprocessor"):
                return _bounded(keras_hub_json.preprocessing(hub_preprocessor))
        with naming(_next_to(path, name), "values"):
            if {"image_mean", "do_normalize", "image_processor_type"} & set(processor):
                return _bounded(Preprocessing.from_hugging_face(processor))
        with naming(_next_to(path, "config.json"), "values"):
            if config.get("pretrained_cfg"):
                return _bounded(Preprocessing.from_timm(config["pretrained_cfg"]))
    except ValueError as error:  # the weights are useful without it
        warn_caller(
            f"{error} A new model gets the preprocessing {family.preprocessing!r} of vit_keras.preprocess.PRESETS. "
            "Set model.preprocessing if that is wrong."
        )
    return None


def _bounded(preprocessing: Preprocessing) -> Preprocessing:
    """Return a preprocessing from a file, after checking that its image size is within the limit for files."""
    check_input(preprocessing.image_size or (224, 224), crop=preprocessing.crop or 1)
    return preprocessing


def _labels(names: Any, inferred: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the class names if there is one for each class of the head."""
    if isinstance(names, Mapping):  # Hugging Face's, by number
        names = [names.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or len(names) != inferred.get("classes", len(names)) or None in names:
        return None
    return None if all(str(name).startswith("LABEL_") for name in names) else tuple(map(str, names))

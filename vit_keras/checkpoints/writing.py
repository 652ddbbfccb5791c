"""Write a model as a weight file of another framework, with the tables of the families in reverse."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .._internal.atomic import check_writable, naming, put_together, workspace
from .._internal.validate import expanded, instance
from .._internal.warn import warn_caller
from ..anatomy.parts import find_vit
from ..anatomy.settings import check_config
from ..config import ViTConfig
from ..labels import names
from . import architecture, grids, transformers_json
from .describe import unstored_fields
from .families import FAMILIES, Family, patches, rules
from .hints import SETTINGS
from .model_weights import ModelWeights
from .wording import some

__all__ = ["FORMATS", "save_weights"]

FORMATS = {
    format: tuple(family for family in FAMILIES.values() if family.format == format)
    for format in ("google", "timm", "huggingface")
}
"""For each format the families that write it. The first that can hold a model is taken."""

_FORMAT_OF_SUFFIX = {".npz": "google", ".safetensors": "timm"}


def save_weights(model: keras.Model, path: str | os.PathLike[str], format: str | None = None) -> str:
    """Write the weights of a ViT as a file of another framework; reading it returns the same bits.

    The values are float32. A .safetensors file also holds the model's `ViTConfig`, preprocessing and labels for this
    package; an .npz file holds arrays alone. Arrays are written one by one, without a second copy of the model in
    memory.

    Args:
        model: A ViT of this package, or a model that contains one. Only the ViT is written. A warning names the
            weights around it; `model.save` keeps them.
        path: The file, which appears only when it is complete. Hugging Face's format also accepts a folder (an
            existing one, or a name without suffix), and writes `model.safetensors`, `config.json` and
            `preprocessor_config.json` for transformers' `from_pretrained` into it. Other files in it are kept.
        format: `"google"` (.npz, as google-research/vision_transformer and big_vision read it), `"timm"` or
            `"huggingface"` (.safetensors, under their names), or the name of a family (`families.FAMILIES`). `None`: by
            the suffix, `"google"` for .npz and `"timm"` for .safetensors.

    Returns:
        The name of the family whose names were written.

    Raises:
        ValueError: The format is unknown, does not fit the path, or cannot represent the model. Nothing is written.
        TypeError: `model` is not a Keras model.
        OSError: The path is in a file, or in a folder that cannot be written to.

    Warns:
        UserWarning: The model differs from the format's own models in a setting that an .npz file does not store, such
            as the kind of GELU. Or a folder was written, with which transformers does not do the same as this
            model: it applies no activation to the logits, or resizes images with antialiasing where the model does not.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> save_weights(model, "tiny.safetensors")  # doctest: +SKIP
        'timm'
    """
    path = expanded(instance(path, (str, os.PathLike), "path"))
    candidates = _candidates(path, format)
    weights = ModelWeights(model)
    check_config(find_vit(model))
    family, arrays = _arrays(weights, candidates)
    weights.warn_of_others("model.save(path), as .keras, keeps all.")
    if path.suffix == ".npz" and not path.is_dir():
        unstored: dict[str, Any] = {}

        def write(part: Path) -> None:
            _write_npz(part, arrays)  # in a folder of its own, where no config.json says what the file does not
            unstored.update(unstored_fields(part, ViTConfig(**weights.architecture), weights.grid()))

        _write_all(path.parent, {path.name: write})
        _warn_of_unstored_fields(path, unstored)
    elif path.suffix == ".safetensors" and not path.is_dir():
        _write_all(path.parent, {path.name: lambda part: _write_safetensors(part, arrays, weights, family)})
    else:
        config, processor = _transformers_config(weights, family)
        files = {
            "model.safetensors": lambda part: _write_safetensors(part, arrays, weights, family),
            "preprocessor_config.json": lambda part: _write_json(part, processor),
            "config.json": lambda part: _write_json(part, config),
        }
        _write_all(path, files)
        _warn_of_transformers(path, weights)
    return family.name


def _candidates(path: Path, format: str | None) -> tuple[Family, ...]:
    folder = path.is_dir() or not path.suffix
    name = format or ("" if folder else _FORMAT_OF_SUFFIX.get(path.suffix, ""))
    candidates = FORMATS.get(name) or ((FAMILIES[name],) if name in _writable() else None)
    if candidates is None:
        raise ValueError(
            f"Pass format=, one of {', '.join(map(repr, FORMATS))} or of the families {', '.join(_writable())}. "
            f"(Keras' own files are written by model.save and model.save_weights.) Received: format={format!r}, "
            f"path={str(path)!r}"
        )
    if folder:
        if not any(candidate.format == "huggingface" for candidate in candidates):
            raise ValueError(f"Only Hugging Face's format has folders; {name!r} needs a file. Received: {str(path)!r}")
        return candidates
    suffix = candidates[0].suffix
    if path.suffix != suffix:
        raise ValueError(f"Files of the format {name!r} end in {suffix}. Received: {str(path)!r}")
    return candidates


def _writable() -> list[str]:
    return [name for name, family in FAMILIES.items() if family.suffix and not family.refused]


def _arrays(weights: ModelWeights, candidates: tuple[Family, ...]) -> tuple[Family, rules.Arrays]:
    """Return the first family that can represent the model, and the arrays of its file."""
    nearest = sorted(candidates, key=lambda family: len(transformers_json.model_of(family, weights.architecture)[1]))
    attempts = [(family, *_attempt(weights, family)) for family in nearest]
    for family, arrays, problem in attempts:
        if problem is None:
            return family, arrays
    _, _, problem = min(attempts, key=lambda attempt: (len(attempt[1].unnamed), attempt[0].prefix(attempt[1]) is None))
    others = [name for name in _writable() if _attempt(weights, FAMILIES[name])[1:] == (None,)]
    raise ValueError(
        f"{problem} Nothing was written. "
        + (f"These formats can hold it: {', '.join(map(repr, others))}." if others else "No other format can hold it.")
    )


def _attempt(weights: ModelWeights, family: Family) -> tuple[rules.Arrays, str | None]:
    """Return the arrays of a model in a family's format, and why it cannot be written that way, or `None`."""
    config = weights.architecture
    model, _ = transformers_json.model_of(family, config)
    arrays = rules.Arrays(family, weights, config["num_heads"], model.prefix if model else family.written_prefix)
    return arrays, _problem(family, arrays, weights)


def _problem(family: Family, arrays: rules.Arrays, weights: ModelWeights) -> str | None:
    if arrays.problem is not None:
        return arrays.problem
    if arrays.unnamed:
        listed = some(arrays.unnamed, 5)
        return f"The format {family.name!r} has no name for {len(arrays.unnamed)} weights of this model: {listed}."
    if family.prefix(arrays) is None:
        return (
            f"The format {family.name!r} is for models with {', '.join(map(repr, family.detect))}"
            + (f" and without {', '.join(map(repr, family.absent))}" if family.absent else "")
            + "; a file of this model would be different."
        )
    config = _facts(weights.architecture, weights)
    other = [field for field, values in _limits(family).items() if config[field] not in (*values, None)]
    other += next((group for group in family.excludes if all(config[field] for field in group)), ())
    if other:
        return f"The format {family.name!r} has no models with {' and '.join(f'{f}={config[f]!r}' for f in other)}."
    try:
        found = rules.detect(FAMILIES.values(), arrays, arrays.shapes.__getitem__)
        binding = rules.bind(found or family, arrays, arrays.shapes.__getitem__)
        shape_of, channels = arrays.shapes.__getitem__, weights.architecture["channels"]
        parts = patches.settled(binding.parts, shape_of, lambda: channels)
        read = {name: rules.shape(part, shape_of(part.source)) for name, part in parts.items()}
    except ValueError as error:
        return str(error)
    if (found or family).refused or binding.unknown or binding.doubled or read != weights.shapes:
        return f"A file of this model with the names of {family.name!r} would be read as another model."
    return None


def _limits(family: Family) -> dict[str, tuple[Any, ...]]:
    """Return the possible values of a family's models by field, from its `config` and its `only`."""
    config = family.config
    limits = {"post_norm": (False,), "map_heads": (None,), "rope_kind": (config.get("rope_kind", "centered"),)}
    limits["map_prefix"] = (config.get("map_prefix", True),)
    if "rope_theta" in config:
        limits |= {"position": (None,)}
    else:
        limits |= {"position": (config.get("position", "learned"),), "rope_theta": (None,)}
    if config.get("position_prefix"):
        limits["position_prefix"] = (True,)
    return {**limits, **family.only}


def _facts(config: Mapping[str, Any], weights: ModelWeights) -> dict[str, Any]:
    """Return the fields of a `ViTConfig` with their implied values, and `None` for parts that the model lacks."""
    tokens = ("cls" in weights or "dist" in weights) and not config["register_positions"]
    return {
        **config,
        "key_bias": config["qkv_bias"] if config["key_bias"] is None else config["key_bias"],
        "head_bias": config["head_bias"] if config["include_top"] else None,
        "activation": config["activation"] if config["include_top"] else None,
        "position_prefix": config["position_prefix"] if tokens and config["position"] == "learned" else None,
        "position_resize": config["position_resize"] if config["position"] == "learned" else None,
        "resnet_numerics": config["resnet_numerics"] if config["resnet"] is not None else None,
        "rope_kind": config["rope_kind"] if config["rope_theta"] else None,
        "map_heads": config["map_heads"] if config["pooling"] == "map" else None,
        "map_prefix": config["map_prefix"] if architecture.has_map_prefix(config) else None,
    }


def _warn_of_unstored_fields(path: Path, fields: Mapping[str, Any]) -> None:
    """Warn about fields that a file of arrays does not store, and that its reader needs."""
    if fields:
        warn_caller(
            f"{path} does not store {', '.join(f'{field}={value!r}' for field, value in fields.items())}; pass that to "
            "from_checkpoint to read the file. A .safetensors file stores it for this package."
        )


def _warn_of_transformers(path: Path, weights: ModelWeights) -> None:
    """Warn about what transformers does differently with a folder, and what its files cannot say."""
    activation = weights.architecture["activation"]
    different = []
    if weights.architecture["include_top"] and activation not in ("linear", None):
        different.append(f"it returns the logits, without activation={activation!r}")
    if weights.preprocessing.interpolation == "bilinear":
        different.append(
            "it resizes images with antialiasing, but model.preprocessing (interpolation='bilinear') does not"
        )
    if different:
        warn_caller(f"transformers does not do the same as this model with {path}: {'; '.join(different)}.")


def _write_all(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    """Write files into a folder so that they appear only when all are complete; the later ones describe the first."""
    check_writable(folder)
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with naming(folder / next(iter(files))), workspace(folder) as temporary:
            for name, write in files.items():
                write(temporary / name)
            put_together(temporary, folder, list(files))
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in made:
                parent.rmdir()
        raise


def _write_npz(path: Path, arrays: rules.Arrays) -> None:
    # Equal to Google's files to the byte: no compression, no fields for large files where none is needed, no time.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            array = np.asarray(arrays[name], "<f4")
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            member.file_size = array.nbytes + 128  # so that one of 2 GiB gets the longer fields that it needs
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)


def _write_safetensors(path: Path, arrays: rules.Arrays, weights: ModelWeights, family: Family) -> None:
    # The library's own function needs all arrays at once. The format is a length, a JSON of offsets, and the values.
    settings = json.dumps({"family": family.name, **_settings(weights)})
    header: dict[str, Any] = {"__metadata__": {"format": "pt", SETTINGS: settings}}
    end = 0
    for name, shape in arrays.shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in header:
            if name != "__metadata__":
                file.write(np.asarray(arrays[name], "<f4").data)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(
        json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace"
    )


def _settings(weights: ModelWeights) -> dict[str, Any]:
    """Return the settings that the arrays do not show, so that this package reads the same model from the file."""
    settings = {
        "config": {**weights.architecture, "image_size": _size_of_positions(weights), "position_grid": None},
        "preprocessing": weights.preprocessing.to_dict(),
        "labels": weights.labels,
        "task": None if weights.task == "single" else weights.task,  # files of classifiers stay as they were
        "origin": weights.origin,
    }
    return {key: value for key, value in settings.items() if value is not None}


def _size_of_positions(weights: ModelWeights) -> tuple[int, int] | None:
    """Return the image size that a model's positions are for, or `None` if it is unknown."""
    # For a model of any size, `anatomy.native_size` is the size of its checkpoint, which its table may not be for.
    config = ViTConfig(**weights.architecture)
    if config.image_size is not None or config.position_grid is None:
        return config.image_size or weights.preprocessing.image_size
    return grids.image_size_of(config.position_grid, weights.preprocessing.image_size, weights.architecture)


def _transformers_config(weights: ModelWeights, family: Family) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the `config.json` and the `preprocessor_config.json` with which transformers gives the same outputs."""
    config = weights.architecture
    model, different = transformers_json.model_of(family, config)
    if model is None or different:
        fields = ", ".join(f"{field}={config[field]!r}" for field in different)
        raise ValueError(
            f"transformers has no model that computes the same: its {model.name if model else family.title} is not for "
            f"{fields}. Nothing was written. To write the weights alone, pass the path of a .safetensors file."
        )
    size = _size_of_positions(weights)
    if size is None:
        raise ValueError(
            "A config.json needs an image_size, and this model takes any. Call vit_keras.resize(model, image_size) "
            "first."
        )
    try:
        described = transformers_json.write_config(model, config, size, _labels(weights), weights.task)
        preprocessing = weights.preprocessing.replace(image_size=weights.preprocessing.image_size or size)
        return described, transformers_json.write_processor(preprocessing)
    except ValueError as error:
        raise ValueError(f"{error} Nothing was written.") from None


def _labels(weights: ModelWeights) -> tuple[str, ...] | None:
    """Return the class names of a model if there is one for each class."""
    labels = names(weights.labels)
    return labels if labels is not None and len(labels) == weights.architecture["classes"] else None

"""A model becomes a file that its weights' other frameworks read: the families' tables run backwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..config import ViTConfig
from ..labels import names
from ..layers import find_vit
from ..preprocess import Preprocessing
from . import architecture
from .families import FAMILIES, google, huggingface, keras_files, timm
from .families import rules as families
from .loading import ModelWeights
from .weights import SETTINGS

# For each format the families that write it. That is taken which can hold the model, of several the first.
FORMATS = {
    "google": (google.GOOGLE, google.BIG_VISION, google.MIXER),
    "timm": (timm.TIMM_BEIT, timm.TIMM, timm.DINOV3, timm.MIXER),
    "huggingface": (
        huggingface.VIT,
        huggingface.DINOV2,
        huggingface.DINOV3,
        huggingface.CLIP,
        huggingface.SIGLIP,
        huggingface.BEIT,
    ),
}
_SUFFIXES = {".npz": "google", ".safetensors": "timm"}
# Layouts that no model of a format has, though there would be names for its weights.
_FLAX = {"patch_bias": True, "qkv_bias": True, "key_bias": True, "out_bias": True, "head_bias": True}
_ONLY = {
    "google": _FLAX,
    "big_vision": _FLAX,
    "flexivit": _FLAX,
    "mixer": {"patch_bias": True, "head_bias": True},
    "torchvision": _FLAX,
}
# What a file's arrays do not show, which is for the reader to know.
_UNTOLD = (
    "mlp_activation",
    "epsilon",
    "pooling",
    "final_norm",
    "num_heads",
    "position",
    "position_resize",
    "rope_theta",
    "resnet_numerics",
    "registers",
)


def save_weights(model: keras.Model, path: str | os.PathLike, format: str | None = None) -> str:
    """Write the weights of a ViT as another framework's file; read again, they are the same bit for bit.

    All is written in float32. A .safetensors file also holds the model's `ViTConfig`, preprocessing and labels, for this
    package. An .npz holds arrays alone. The file is written array by array: there is no second copy of the model in memory.

    Args:
        model: A ViT of this package, or a model with one inside (of which only the ViT is written).
        path: The file, which appears when it is complete. With Hugging Face's format also a folder (one that is there, or a name
            without suffix), which gets `model.safetensors`, `config.json` and `preprocessor_config.json`, so that
            `transformers` opens it by `from_pretrained`; other files in it are left alone.
        format: `"google"` (.npz, as google-research/vision_transformer and big_vision read it), `"timm"` or `"huggingface"`
            (.safetensors, under their names), or the name of a family (`families.FAMILIES`). `None`: by the file's suffix,
            `"google"` for .npz and `"timm"` for .safetensors.

    Returns:
        The name of the family whose names were written.

    Raises:
        ValueError: There is no such format, it is not for such a path, or it cannot hold what the model has; nothing is written.
        TypeError: It is no Keras model.

    Warns:
        UserWarning: An .npz file cannot say what the model computes otherwise than the format's own models (another GELU, say).

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> save_weights(model, "tiny.safetensors")  # doctest: +SKIP
        'timm'
    """
    path = Path(path)
    candidates = _candidates(path, format)
    vit = find_vit(model)
    weights = ModelWeights(vit)
    family, arrays = _arrays(weights, candidates)
    if path.suffix == ".npz":
        _warn_of_what_is_not_told(path, family, arrays, weights)
        files = {path.name: lambda part: _write_npz(part, arrays)}
    elif path.suffix == ".safetensors" and not path.is_dir():
        files = {path.name: lambda part: _write_safetensors(part, arrays, vit)}
    else:
        config, processor = _describe(vit, family, weights)
        files = {
            "model.safetensors": lambda part: _write_safetensors(part, arrays, vit),
            "preprocessor_config.json": lambda part: _write_json(part, processor),
            "config.json": lambda part: _write_json(part, config),
        }
        return _write_all(path, files) or family.name
    return _write_all(path.parent, files) or family.name


def _candidates(path: Path, format: str | None) -> tuple[families.Family, ...]:
    folder = path.is_dir() or not path.suffix
    name = format or (None if folder else _SUFFIXES.get(path.suffix))
    candidates = FORMATS.get(name) or ((FAMILIES[name],) if name in _writable() else None)
    if candidates is None:
        raise ValueError(
            f"Say the format: {', '.join(map(repr, FORMATS))}, or one of the families {', '.join(_writable())}. "
            f"(Keras' own files are written by model.save and model.save_weights.) Received: format={format!r}, "
            f"path={str(path)!r}"
        )
    if folder:
        if not any(candidate in FORMATS["huggingface"] for candidate in candidates):
            raise ValueError(f"Only Hugging Face's format has folders; {name!r} needs a file. Received: {str(path)!r}")
        return candidates
    suffix = ".npz" if candidates[0] in google.FAMILIES else ".safetensors"
    if path.suffix != suffix:
        raise ValueError(f"Files of the format {name!r} end in {suffix}. Received: {str(path)!r}")
    return candidates


def _writable() -> list[str]:
    return [name for name, f in FAMILIES.items() if not f.refused and f not in keras_files.FAMILIES]


def _arrays(weights: ModelWeights, candidates: tuple[families.Family, ...]) -> tuple[families.Family, families.Arrays]:
    """The first family that can hold the model, and what its file has."""
    nearest = sorted(candidates, key=lambda family: len(huggingface.model_of(family, weights.architecture)[1]))
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


def _attempt(weights: ModelWeights, family: families.Family) -> tuple[families.Arrays, str | None]:
    """A model as a file of a family, and why it cannot be one, or `None`."""
    config = weights.architecture
    arrays = families.Arrays(family, weights, config["num_heads"], _prefix(family, config))
    return arrays, _problem(family, arrays, weights)


def _prefix(family: families.Family, config: Mapping[str, Any]) -> str:
    model, _ = huggingface.model_of(family, config)
    return model.prefix if model else family.written_prefix


def _problem(family: families.Family, arrays: families.Arrays, weights: ModelWeights) -> str | None:
    if arrays.unnamed:
        some = ", ".join(arrays.unnamed[:5]) + (" …" if len(arrays.unnamed) > 5 else "")
        return f"The format {family.name!r} has no name for {len(arrays.unnamed)} weights of this model: {some}."
    if family.prefix(arrays) is None:
        return (
            f"The format {family.name!r} is for models with {', '.join(map(repr, family.detect))}"
            + (f" and without {', '.join(map(repr, family.absent))}" if family.absent else "")
            + ", which this one would not be."
        )
    config = _facts(weights.architecture, weights)
    other = [field for field, value in _only(family).items() if config[field] not in (value, None)]
    if other:
        return f"The format {family.name!r} has no models with {', '.join(f'{f}={config[f]!r}' for f in other)}."
    if family in (timm.TIMM, timm.CLIP, timm.SIGLIP) and config["registers"] and config["position_prefix"]:
        return f"The format {family.name!r} has no models with registers and with a position for the class token."
    try:
        found = families.detect(FAMILIES.values(), arrays, arrays.shapes.__getitem__)
        binding = families.bind(found or family, arrays, arrays.shapes.__getitem__)
        read = {name: families.shape(part, arrays.shapes[part.source]) for name, part in binding.parts.items()}
    except ValueError as error:
        return str(error)
    if (found or family).refused or binding.unknown or binding.doubled or read != weights.shapes:
        return f"A file of this model with the names of {family.name!r} would be taken for another model's."
    return None


def _only(family: families.Family) -> dict[str, Any]:
    """What a format's models have, where they have it at all."""
    only = dict(_ONLY.get(family.name, {}))
    if family.config.get("position_prefix"):
        only["position_prefix"] = True
    if "rope_theta" in family.config:
        return {**only, "position": None}
    sincos = family is google.BIG_VISION or family.config.get("position") == "sincos2d"
    return {**only, "rope_theta": None, **({} if sincos else {"position": "learned"})}


def _facts(config: Mapping[str, Any], weights: ModelWeights) -> dict[str, Any]:
    """The fields of a `ViTConfig` with what others imply, `None` where something is not there at all."""
    tokens = "cls" in weights or "dist" in weights
    return {
        **config,
        "key_bias": config["qkv_bias"] if config["key_bias"] is None else config["key_bias"],
        "head_bias": config["head_bias"] if config["include_top"] else None,
        "position_prefix": config["position_prefix"] if tokens and config["position"] == "learned" else None,
        "position_resize": config["position_resize"] if config["position"] == "learned" else None,
        "resnet_numerics": config["resnet_numerics"] if config["resnet"] else None,
    }


def _warn_of_what_is_not_told(path: Path, family: families.Family, arrays: families.Arrays, weights: ModelWeights):
    """Say what somebody has to know who reads a file of arrays alone."""
    binding = families.bind(family, arrays, arrays.shapes.__getitem__)
    fields = architecture.architecture(weights.shapes, family, binding.told)
    fields.pop("inner", None)
    heads = architecture.heads_of(binding, arrays.shapes.__getitem__)
    fields |= {"num_heads": heads} if heads else {}
    grid = weights.grid()
    ours = _facts(weights.architecture, weights)
    theirs = _facts({**dataclasses.asdict(ViTConfig()), **fields}, weights)
    untold = [f"{field}={ours[field]!r}" for field in _UNTOLD if ours[field] != theirs[field]]
    if weights.positions and grid and grid[0] != grid[1]:
        untold.append(f"source_grid={tuple(grid)}")
    if untold:
        warnings.warn(
            f"{path} cannot say that this model is one with {', '.join(untold)}: who reads it has to. A .safetensors file "
            "would tell this package.",
            UserWarning,
            stacklevel=3,
        )


def _write_all(folder: Path, files: Mapping[str, Callable[[Path], None]]) -> None:
    """Write files that appear in a folder when all of them are complete."""
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".vit_keras-") as temporary:
            for name, write in files.items():
                write(Path(temporary, name))
            for name in files:
                os.replace(Path(temporary, name), folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            for parent in made:
                parent.rmdir()
        raise


def _write_npz(path: Path, arrays: families.Arrays) -> None:
    # To the byte as Google's files are: no compression, no fields for large files where none is needed, no time.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            array = np.asarray(arrays[name], "<f4")
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            member.file_size = array.nbytes + 128  # so that one of 2 GiB gets the longer fields that it needs
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)


def _write_safetensors(path: Path, arrays: families.Arrays, vit: keras.Model) -> None:
    # The library's own function takes all arrays at once. The format is a length, a JSON of offsets, and the values.
    header: dict[str, Any] = {"__metadata__": {"format": "pt", SETTINGS: json.dumps(_settings(vit))}}
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
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _settings(vit: keras.Model) -> dict[str, Any]:
    """What only the model knows, so that this package reads the same model from the file."""
    settings = {key: value for key, value in vit.settings().items() if value is not None}
    size = _native_size(vit)
    settings["config"] = {**settings["config"], "image_size": size, "position_grid": None}
    return settings


def _native_size(vit: keras.Model) -> tuple[int, int] | None:
    """Pixels that a model's positions are for, of one that takes any size too; `None` where nothing tells."""
    config = vit.config
    if config.image_size is not None or config.position_grid is None:
        return config.image_size or vit.preprocessing.image_size
    return tuple(patches * pixels for patches, pixels in zip(config.position_grid, config.stride))


def _describe(vit: keras.Model, family: families.Family, weights: ModelWeights) -> tuple[dict, dict]:
    """The `config.json` and the `preprocessor_config.json` with which transformers gives the same outputs."""
    config = weights.architecture
    model, different = huggingface.model_of(family, config)
    if model is None or different:
        fields = ", ".join(f"{field}={config[field]!r}" for field in different)
        raise ValueError(
            f"transformers has no model that computes the same: its {model.name if model else family.title} is not for "
            f"{fields}. Nothing was written. The weights alone can be: give the path of a .safetensors file."
        )
    size = _native_size(vit)
    if size is None:
        raise ValueError(
            "A config.json needs an image_size, and nothing tells this model's: vit_keras.resize gives it one."
        )
    try:
        described = huggingface.describe(model, config, size, _labels(vit))
    except ValueError as error:
        raise ValueError(f"{error} Nothing was written.") from None
    return described, _processor(vit.preprocessing.replace(image_size=vit.preprocessing.image_size or size))


def _labels(vit: keras.Model) -> tuple[str, ...] | None:
    """Names of a model's classes, where there is one for each."""
    labels = names(vit.labels)
    return labels if labels is not None and len(labels) == vit.config.classes else None


_RESAMPLE = {"nearest": 0, "lanczos": 1, "bilinear_antialias": 2, "bilinear": 2, "bicubic_antialias": 3, "box": 4}


def _processor(preprocessing: Preprocessing) -> dict[str, Any]:
    """A `preprocessor_config.json`: the inverse of `Preprocessing.from_hugging_face`, where bilinear is always antialiased."""
    height, width = preprocessing.image_size
    described = {
        "do_resize": True,
        "resample": _RESAMPLE[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    if preprocessing.crop is None:
        size = {"height": height, "width": width}
        return {"image_processor_type": "ViTImageProcessor", **described, "size": size}
    resized = [math.floor(side / preprocessing.crop) for side in (height, width)]
    cropped = {**described, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    if preprocessing.crop_mode == "center":
        size = {"shortest_edge": max(resized)}
        return {"image_processor_type": "CLIPImageProcessor", **cropped, "size": size}
    size = {"height": resized[0], "width": resized[1]}
    return {"image_processor_type": "DeiTImageProcessor", **cropped, "size": size}

"""A model becomes a file that its weights' other frameworks read: the families' tables run backwards."""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..layers import find_vit
from .families import FAMILIES, google, huggingface, timm
from .families import rules as families
from .loading import ModelWeights
from .weights import SETTINGS

# For each format the families that write it, the first that has a name for every weight being taken.
FORMATS = {
    "google": (google.GOOGLE, google.BIG_VISION, google.MIXER),
    "timm": (timm.TIMM, timm.MIXER),
    "huggingface": (
        huggingface.VIT,
        huggingface.DINOV2,
        huggingface.DINOV3,
        huggingface.CLIP,
        huggingface.SIGLIP,
        huggingface.BEIT,
    ),
}


def save_weights(model: keras.Model, path: str | os.PathLike, format: str | None = None) -> str:
    """Write the weights of a ViT as another framework's file; read again, they are the same bit for bit.

    Args:
        model: A ViT of this package, or a model with one inside.
        path: The file. It appears when it is complete.
        format: `"google"` (.npz, as google-research/vision_transformer and big_vision read it), `"timm"` or `"huggingface"`
            (.safetensors, under their names), or the name of a family (`families.FAMILIES`). `None`: by the file's suffix,
            `"google"` for .npz and `"timm"` for .safetensors.

    Returns:
        The name of the family whose names were written.

    Raises:
        ValueError: There is no such format, or it has no names for what the model has.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> save_weights(model, "tiny.safetensors")  # doctest: +SKIP
        'timm'
    """
    path = Path(path)
    format = format or {".npz": "google", ".safetensors": "timm"}.get(path.suffix)
    candidates = FORMATS.get(format) or ((FAMILIES[format],) if format in FAMILIES else None)
    if candidates is None:
        raise ValueError(
            f"Say the format: {', '.join(map(repr, FORMATS))}, or the name of a family. Received: format={format!r}, "
            f"path={str(path)!r}"
        )
    vit = find_vit(model)
    weights = ModelWeights(vit)
    family, arrays = _arrays(weights, candidates)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".vit_keras-") as folder:
        part = Path(folder, path.name)
        if path.suffix == ".npz":
            _write_npz(part, arrays)
        else:
            _write_safetensors(part, arrays, vit)
        os.replace(part, path)
    return family.name


def _arrays(weights: ModelWeights, candidates: tuple[families.Family, ...]):
    problem = None
    for family in candidates:
        try:
            arrays = families.write(family, weights, weights.architecture["num_heads"])
        except ValueError as error:
            problem = problem or error
            continue
        if family.prefix(arrays) is not None:
            return family, arrays
        problem = problem or ValueError(f"The format {family.name!r} has no such models.")
    raise problem


def _write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    # As Google's files are: no compression, and the same bytes for the same weights.
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(arrays):
            member = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            member.file_size = arrays[name].nbytes  # so that large ones get the longer fields that they need
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, arrays[name], allow_pickle=False)


def _write_safetensors(path: Path, arrays: Mapping[str, np.ndarray], vit: keras.Model) -> None:
    from safetensors.numpy import save_file

    save_file(dict(arrays), path, metadata={"format": "pt", SETTINGS: json.dumps(_settings(vit))})


def _settings(vit: keras.Model) -> dict[str, Any]:
    """What only the model knows, so that this package reads the same model from the file."""
    return {key: value for key, value in vit.settings().items() if value is not None}

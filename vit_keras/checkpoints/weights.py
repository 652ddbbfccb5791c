"""A file of weights under canonical names, with all that is known of its model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..preprocess import PRESETS, Preprocessing
from . import architecture, registry
from .families import FAMILIES, huggingface, keras_files
from .families import rules as families
from .readers import open_weights

SETTINGS = "vit_keras"  # the entry of a safetensors file's metadata that `save_weights` leaves


class Weights(Mapping):
    """The weights of a model in a file, read one by one under their canonical names.

    Args:
        path: A file of any format that `readers.open_weights` reads, or a folder as Hugging Face makes them.
        family: Name of the family (`families.FAMILIES`); `None`: the names in the file tell.
        strict: Whether names that the family does not know are an error; otherwise they are listed in `ignored`.
        key: Which of several state dicts in a PyTorch file (`"model_ema"`); `None`: the model's.
        published: The registry's entry, where the file is one; `None`: looked up by the name of the file.

    Attributes:
        path: The file.
        family: Its `Family`.
        shapes: `{canonical name: shape}`.
        architecture: The fields of `ViTConfig` that are known.
        image_size: Pixels that it was trained at, where something tells.
        preprocessing: How its pictures are prepared.
        labels: Names of its classes, or `None`.
        ignored: Names in the file that are no weights of the model (a decoder, an optimiser's state).

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is damaged, of no family or not of the one that was said, or ambiguous.

    Example:
        >>> Weights("Ti_16.npz").architecture["num_layers"]  # doctest: +SKIP
        12
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        family: str | None = None,
        strict: bool = True,
        key: str | None = None,
        published: registry.Checkpoint | None = None,
    ):
        self.reader = keras_files.readable(open_weights(path, key))
        self.path = Path(self.reader.path)
        size = self.path.stat().st_size if self.path.is_file() else None
        if published is None:
            published = registry.by_filename(self.path.name, size)
            likely = FAMILIES[published.family] if published and family is None else None
            family = likely.name if likely and likely.prefix(self.reader) is not None else family
        else:
            family = family or published.family
        try:
            self.family = _choose(family, self.reader)
            binding = families.bind(self.family, self.reader, self.reader.shape)
            _check(binding, self.family, strict)
            self._parts = binding.parts
            self.shapes = {name: families.shape(p, self.reader.shape(p.source)) for name, p in self._parts.items()}
            self.architecture = architecture.architecture(self.shapes, self.family, binding.told)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        self.ignored = tuple(sorted((*binding.ignored, *binding.unknown)))
        self._last: tuple[str, np.ndarray] | None = None
        heads = architecture.heads_of(binding, self.reader.shape)
        if heads:
            self.architecture["num_heads"] = heads
        self._take_hints(published)

    def _take_hints(self, published: registry.Checkpoint | None) -> None:
        """What stands beside the file, in its metadata or in the registry; of two, the later counts."""
        config = _json_beside(self.path, "config.json")
        if not _describes(config, self.architecture["hidden_size"]):
            config = {}
        settings = _settings(self.reader)
        preprocessing = _preprocessing(self.family, self.path, config)
        known = {**huggingface.hints(config), **_timm_hints(config)}
        if published is not None:
            known |= {"image_size": published.image_size, **published.options}
            preprocessing = published.preprocessing or preprocessing
        known |= settings.get("config", {})
        if "preprocessing" in settings:
            preprocessing = Preprocessing.from_dict(settings["preprocessing"])
        self.image_size = known.pop("image_size", None)
        if isinstance(self.image_size, int):
            self.image_size = (self.image_size, self.image_size)
        self.architecture |= known
        self.preprocessing = preprocessing
        self.labels = settings.get("labels") or _labels(config) or (published.labels if published else None)

    @property
    def positions(self) -> int | None:
        """How many patches the file's positions are for, or `None` where it has none."""
        return architecture.position_rows(self.shapes, self.architecture)

    def __getitem__(self, name: str) -> np.ndarray:
        part = self._parts[name]
        if self._last is None or self._last[0] != part.source:
            self._last = None  # before the next is read: no more than one array of the file is held
            self._last = (part.source, self.reader[part.source])
        return np.asarray(families.read(part, self._last[1]), np.float32)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def grid(self, source_grid: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Patches down and across that the file's positions are for; `None` where nothing tells.

        Raises:
            ValueError: `source_grid` is not so many patches.
        """
        if source_grid is not None:
            if self.positions is not None and source_grid[0] * source_grid[1] != self.positions:
                raise ValueError(
                    f"{self.path} has {self.positions} patches, which is not the grid {tuple(source_grid)}."
                )
            return tuple(source_grid)
        square = architecture.square_grid(self.positions or 0)
        if self.image_size is None or self.positions is None:
            return square
        patch = self.architecture["patch_size"]
        grid = tuple(s // p for s, p in zip(self.image_size, patch))
        return grid if grid[0] * grid[1] == self.positions else square


def _choose(name: str | None, reader: Any) -> families.Family:
    if name is None:
        found = families.detect(FAMILIES.values(), reader, reader.shape)
        if found is not None and found.refused:
            raise ValueError(f"{found.refused}.")
        if found is None:
            some = ", ".join(map(repr, sorted(reader)[:4]))
            raise ValueError(
                f"The file holds no Vision Transformer of a family that is known: it has {len(reader)} arrays: {some}"
                f"{' …' if len(reader) > 4 else ''}. {_nearest(reader)}"
            )
        return found
    if name not in FAMILIES:
        raise ValueError(f"There is no family {name!r}. There are: {', '.join(FAMILIES)}.")
    family = FAMILIES[name]
    if family.detect and family.prefix(reader) is None:
        looks_like = families.detect(FAMILIES.values(), reader, reader.shape)
        raise ValueError(
            f"The file is not of the family {name!r}, whose files have {', '.join(map(repr, family.detect))}"
            + (f" and not {', '.join(map(repr, family.absent))}" if family.absent else "")
            + (f"; it looks like {looks_like.name!r}." if looks_like else ".")
        )
    return family


def _nearest(names: Mapping) -> str:
    """Which family a file comes closest to, and what it would have to have."""
    missing = {
        family.name: [n for n in family.detect if not any(name.endswith(tuple(n.split("|"))) for name in names)]
        for family in FAMILIES.values()
    }
    possible = (f for f in FAMILIES.values() if not any(n.endswith(f.absent) for n in names if f.absent))
    closest = min(possible, key=lambda f: len(missing[f.name]) / len(f.detect))
    if len(missing[closest.name]) == len(closest.detect):
        return f"Known families are {', '.join(FAMILIES)}."
    return f"It comes closest to {closest.title}, of which {', '.join(map(repr, missing[closest.name]))} is missing."


def _check(binding: families.Binding, family: families.Family, strict: bool) -> None:
    if binding.doubled:
        raise ValueError(f"Two arrays of the file claim to be {binding.doubled[0]!r}.")
    if binding.unknown and strict:
        some = ", ".join(map(repr, binding.unknown[:4]))
        raise ValueError(
            f"{len(binding.unknown)} arrays are not known in the family {family.name!r}: {some}"
            f"{' …' if len(binding.unknown) > 4 else ''}. strict=False leaves them out."
        )


def _json_beside(path: Path, name: str) -> dict[str, Any]:
    file = (path if path.is_dir() else path.parent) / name
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError):
        content = {}
    return content if isinstance(content, dict) else {}


def _settings(reader: Any) -> dict[str, Any]:
    """What this package wrote beside the weights: config, preprocessing, labels."""
    metadata = reader.metadata or {}
    if SETTINGS in metadata:
        return json.loads(metadata[SETTINGS])
    saved = metadata.get("config") or {}
    saved = (json.loads(saved) if isinstance(saved, str) else saved).get("config", {})
    settings = {key: saved[key] for key in ("preprocessing", "labels") if saved.get(key) is not None}
    if saved.get("vit"):
        settings["config"] = saved["vit"]
    else:
        activation = next((name for name in reader if name.endswith("mlpblock/vars/activation")), None)
        if activation:
            settings["config"] = {"mlp_activation": bytes(np.asarray(reader[activation], "uint8")).decode()}
    return settings


def _describes(config: Mapping[str, Any], hidden_size: int) -> bool:
    """Whether a `config.json` that lies in the same folder is about this model at all."""
    vision = config.get("vision_config") or config
    width = vision.get("hidden_size", config.get("num_features"))
    return bool(config) and width in (hidden_size, None)


def _timm_hints(config: Mapping[str, Any]) -> dict[str, Any]:
    name = config.get("architecture")
    if not isinstance(name, str):
        return {}
    known: dict[str, Any] = {}
    if "clip" in name:
        known["mlp_activation"] = "quick_gelu" if "quickgelu" in name else "gelu"
    size = (config.get("pretrained_cfg") or {}).get("input_size")
    return {**known, **({"image_size": tuple(size[1:])} if size else {})}


def _preprocessing(family: families.Family, path: Path, config: Mapping[str, Any]) -> Preprocessing:
    processor = _json_beside(path, "preprocessor_config.json")
    if "image_mean" in processor:
        return Preprocessing.from_hugging_face(processor)
    if "pretrained_cfg" in config:
        return Preprocessing.from_timm(config["pretrained_cfg"])
    return PRESETS[family.preprocessing]


def _labels(config: Mapping[str, Any]) -> tuple[str, ...] | None:
    names = config.get("id2label") or {}
    if not names or all(str(name).startswith("LABEL_") for name in names.values()):
        return None
    return tuple(names[key] for key in sorted(names, key=int))

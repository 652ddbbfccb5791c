"""A file of weights under canonical names, with all that is known of its model."""

from __future__ import annotations

import contextlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..config import ViTConfig, patch_stride, size_pair
from ..layers.mlp import activation_function as _activate
from ..preprocess import PRESETS, Preprocessing
from . import architecture, registry
from .families import FAMILIES, huggingface, keras_files
from .families import rules as families
from .readers import LIMIT_TEXT, open_weights

SETTINGS = "vit_keras"  # the entry of a safetensors file's metadata that `save_weights` leaves
_IN_THE_ARRAYS = ("num_layers", "hidden_size", "mlp_dim", "patch_size", "channels", "classes")


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
        self.reader = keras_files.readable(_unwrapped(open_weights(Path(path).expanduser(), key)))
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
        if not _describes(config, self.architecture):
            config = {}
        with _making_sense(_beside(self.path, "config.json")):
            known = _checked(
                {**huggingface.hints(config), **_timm_hints(config, self.architecture["pooling"])}, self.architecture
            )
        preprocessing = _preprocessing(self.family, self.path, config)
        if published is not None:
            known |= {"image_size": published.image_size, **published.options}
            preprocessing = published.preprocessing or preprocessing
        with _making_sense(self.path, "its metadata make"):
            settings = _settings(self.reader)
            saved = ViTConfig().replace(**settings.get("config", {}))
            fields = {field: getattr(saved, field) for field in settings.get("config", {})}
            known |= _checked(fields, self.architecture)
            labels = settings.get("labels")
            if not isinstance(labels, str):
                labels = _labels(labels, self.architecture) or _labels(config.get("id2label"), self.architecture)
            if "preprocessing" in settings:
                preprocessing = Preprocessing.from_dict(settings["preprocessing"])
        self.image_size = known.pop("image_size", None)
        if isinstance(self.image_size, int):
            self.image_size = (self.image_size, self.image_size)
        self.architecture |= known
        self.preprocessing = preprocessing
        self.labels = labels or (published.labels if published else None)

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
        saved = next((name for name in self.reader if name.endswith("/add_position_embs/vars/grid")), None)
        if saved is not None:  # a .weights.h5 of this package
            return tuple(int(size) for size in self.reader[saved])
        square = architecture.square_grid(self.positions or 0)
        if self.image_size is None or self.positions is None:
            return square
        stride = patch_stride(self.architecture["patch_size"], self.architecture.get("resnet"))
        grid = tuple(size // pixels for size, pixels in zip(self.image_size, stride))
        return grid if grid[0] * grid[1] == self.positions else square


def _unwrapped(reader: Any) -> Any:
    """A ViT's reader without what stands before every name (`module.`, `_orig_mod.`, `model.`), for a family's `outer` names."""
    prefix, names = "", list(reader)
    if all(family.prefix(names) is None for family in FAMILIES.values()):
        return reader
    while names and all("." in name for name in names) and len({name.partition(".")[0] for name in names}) == 1:
        prefix += names[0].partition(".")[0] + "."
        names = [name.partition(".")[2] for name in names]
    return keras_files.Renamed(reader, {name.removeprefix(prefix): name for name in reader}) if prefix else reader


def _choose(name: str | None, reader: Any) -> families.Family:
    found = families.detect(FAMILIES.values(), reader, reader.shape)
    if name is not None and name not in FAMILIES:
        raise ValueError(f"There is no family {name!r}. There are: {', '.join(FAMILIES)}.")
    if found is not None and found.refused:
        raise ValueError(f"{found.refused}.")
    if name is None:
        if found is None:
            some = ", ".join(map(repr, sorted(reader)[:4]))
            raise ValueError(
                f"The file holds no Vision Transformer of a family that is known: it has {len(reader)} arrays: {some}"
                f"{' …' if len(reader) > 4 else ''}. {_nearest(reader)}"
            )
        return found
    family = FAMILIES[name]
    if family.detect and family.prefix(reader) is None:
        raise ValueError(
            f"The file is not of the family {name!r}, whose files have {', '.join(map(repr, family.detect))}"
            + (f" and not {', '.join(map(repr, family.absent))}" if family.absent else "")
            + (f"; it looks like {found.name!r}." if found else ".")
        )
    if family.refused:
        raise ValueError(f"{family.refused}.")
    return family


def _nearest(names: Mapping) -> str:
    """Which family a file comes closest to, and what it would have to have."""
    missing = {
        f.name: [n for n in f.detect + f.marks if not any(name.endswith(tuple(n.split("|"))) for name in names)]
        for f in FAMILIES.values()
        if not f.refused and not (f.absent and any(name.endswith(f.absent) for name in names))
    }
    possible = [FAMILIES[name] for name in missing if missing[name]]
    closest = min(possible, key=lambda f: len(missing[f.name]) / len(f.detect + f.marks))
    if len(missing[closest.name]) == len(closest.detect + closest.marks):
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


def _beside(path: Path, name: str) -> Path:
    return (path if path.is_dir() else path.parent) / name


def _json_beside(path: Path, name: str) -> dict[str, Any]:
    """An object in JSON that lies in the same folder, if there is one; what is none is passed over with a warning."""
    file = _beside(path, name)
    if not file.is_file():
        return {}
    try:
        if file.stat().st_size > LIMIT_TEXT:
            raise ValueError("it is too large")
        content = json.loads(file.read_text(encoding="utf-8-sig"))
        if not isinstance(content, dict):
            raise ValueError("it is no object in JSON")
        return content
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"{file} is not used: {error}.", UserWarning, stacklevel=5)
        return {}


@contextlib.contextmanager
def _making_sense(path: Path, what: str = "what it says makes") -> Iterator[None]:
    """Name the file in which somebody wrote what no model can have; text from elsewhere can be of any shape."""
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"{path}: {what} no sense: {error}") from None


def _checked(known: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `ViTConfig`, compared with what the arrays tell.

    Raises:
        ValueError: No model with such arrays can have them.
    """
    known = dict(known)
    if "num_heads" in known:
        architecture.check_heads(known["num_heads"], told.get("inner", told["hidden_size"]))
    for field in ("epsilon", "rope_theta", "layer_scale"):
        value = known.get(field)
        if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise ValueError(f"{field} is a positive number. Received: {value!r}")
    if "mlp_activation" in known:
        _activate(known["mlp_activation"])
    if known.get("image_size") is not None:
        known["image_size"] = size_pair(known["image_size"], "image_size")
    for field in _IN_THE_ARRAYS[: None if known.get("include_top", True) else -1]:
        if field in known and field in told and known[field] != told[field]:
            raise ValueError(f"it says {field}={known[field]!r}, and the arrays are of {field}={told[field]!r}.")
    return known


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


def _describes(config: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether a `config.json` that lies in the same folder is about this model at all."""
    vision = config.get("vision_config") or config
    if not config or not isinstance(vision, Mapping):
        return False
    width, layers = vision.get("hidden_size", config.get("num_features")), vision.get("num_hidden_layers")
    return width in (known["hidden_size"], None) and layers in (known["num_layers"], None)


def _timm_hints(config: Mapping[str, Any], known_pooling: str) -> dict[str, Any]:
    name = config.get("architecture")
    if not isinstance(name, str):
        return {}
    known: dict[str, Any] = {}
    if "clip" in name:
        known["mlp_activation"] = "quick_gelu" if "quickgelu" in name else "gelu"
    if config.get("global_pool") == "avg" and known_pooling == "token":  # DINOv3 at timm: nothing else tells
        known |= {"pooling": "gap", "class_token": True}
    size = (config.get("pretrained_cfg") or {}).get("input_size")
    return {**known, **({"image_size": tuple(size[1:])} if size else {})}


def _preprocessing(family: families.Family, path: Path, config: Mapping[str, Any]) -> Preprocessing:
    """How pictures are prepared, as a file beside the weights says, or the family's way: weights are of use without."""
    name = "preprocessor_config.json"
    processor = _json_beside(path, name)
    try:
        with _making_sense(_beside(path, name)):
            if {"image_mean", "do_normalize", "image_processor_type"} & set(processor):
                return Preprocessing.from_hugging_face(processor)
        name = "config.json"
        with _making_sense(_beside(path, name)):
            if config.get("pretrained_cfg"):
                return Preprocessing.from_timm(config["pretrained_cfg"])
    except ValueError as error:
        warnings.warn(
            f"{error} The model prepares its pictures as {family.preprocessing!r} does (vit_keras.preprocess.PRESETS); "
            "set model.preprocessing where that is wrong.",
            UserWarning,
            stacklevel=4,
        )
    return PRESETS[family.preprocessing]


def _labels(names: Any, known: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names of a head's classes, if somebody gave them names, and as many as there are."""
    if isinstance(names, Mapping):  # Hugging Face's, by number
        names = [names.get(str(number)) for number in range(len(names))]
    if not isinstance(names, list) or len(names) != known.get("classes", len(names)) or None in names:
        return None
    return None if all(str(name).startswith("LABEL_") for name in names) else tuple(map(str, names))

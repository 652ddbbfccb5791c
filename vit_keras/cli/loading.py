"""Arguments that many commands have: a model, images, and files that are named by patterns."""

from __future__ import annotations

import glob
import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from .._internal.validate import expanded
from .console import complain
from .options import Setting, settings_of

__all__ = ["check_given", "files_of", "images_of", "opened", "paths_of", "taken", "warn_of_embedding"]


def opened(
    model: str | None = None,
    weights: str | None = None,
    family: str | None = None,
    key: str | None = None,
    set: Iterable[Setting] = (),
) -> Any:
    """Open the model that the options of a command name.

    Args:
        model: Factory such as vit_b16, published name, or saved model (.keras, .h5); `None`: the model of --weights, or
            vit_ti16.
        weights: Published name (see `vit-keras models`), weight file, or URL; `None`: the recommended ImageNet-1k
            weights of the model.
        family: Checkpoint family, such as timm; `None`: detected from the names of the arrays.
        key: State dict to read if a PyTorch file has several, such as model_ema.
        set: Set a field of ViTConfig, such as num_heads=6, that the file does not store or that you want to change; may
            be repeated.

    Raises:
        ValueError: A saved model is given together with weights or options of loading.
    """
    from ..checkpoints.saved_models import is_whole_model
    from ..opening import as_model

    given = {"family": family, "key": key}
    settings = settings_of(set, **{name: value for name, value in given.items() if value is not None})
    if not is_whole_model(model):
        found = as_model(model, weights=weights, **settings)
        if (report := getattr(found, "load_report", None)) and report.missing:
            complain(f"warning: {report.missing}.")
        return found
    if weights is not None:
        raise ValueError(f"{model} is a saved model, which has its weights. Remove --weights.")
    if settings:
        raise ValueError(f"{model} is a saved model, which has its settings. Remove --set, --family and --key.")
    return as_model(model)


def taken(options: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments of `opened` out of the options of a command."""
    return {name: options.pop(name) for name in inspect.signature(opened).parameters if name in options}


def warn_of_embedding(model: Any) -> None:
    """Warn if the outputs of a model may be an embedding, like those of the image tower of CLIP."""
    # Its projection is read as a head without a bias, and its file names no classes.
    from .. import anatomy

    report, config = getattr(model, "load_report", None), getattr(model, "config", None)
    if report is None or config is None or not config.include_top or config.head_bias:
        return
    if anatomy.class_names(model) is None and not any(name.startswith("head/") for name in report.fresh):
        complain(
            f"warning: {model.name!r} has no names of classes, and its head has no bias. If its {config.classes} "
            "outputs are an embedding (CLIP), they are not classes: `vit-keras zero-shot` classifies by sentences."
        )


def paths_of(names: Iterable[str]) -> list[str]:
    """Return names, and for patterns such as `fold*/model.keras`, which not every shell expands, the matching paths."""
    # A pattern without a match stays, and so does a file whose name is a pattern.
    found: list[str] = []
    for name in names:
        path = expanded(name)
        found += [name] if os.path.exists(path) else sorted(glob.glob(os.fspath(path))) or [name]
    return found


def check_given(options: dict[str, Any]) -> None:
    """Raise an error for images, folders and saved models that do not exist, before Keras is imported."""
    images = (options.get(name, ()) for name in ("images", "check", "calibration"))
    for name in (name for names in images for name in paths_of(names)):
        if "://" not in name and not expanded(name).exists():
            raise FileNotFoundError(f"Could not find image or folder: {name}")
    for name in (options[name] for name in ("folder", "table", "images_dir") if name in options):
        if not expanded(name).exists():
            raise FileNotFoundError(f"There is no folder or table {name}.")
    model = str(options.get("model", ""))
    if model.endswith((".keras", ".h5", ".hdf5")) and not expanded(model).exists():
        raise FileNotFoundError(f"There is no model file at {model}.")


def files_of(images: Sequence[str]) -> list[str]:
    """Return the files and URLs that are named, and all images in a folder and its subfolders, sorted by name."""
    from ..checkpoints.readers.sniff import Kind, kind_of
    from ..training.data.folder import EXTENSIONS
    from ..training.embeddings.batches import files_in

    models = (Kind.SAFETENSORS, Kind.NPZ, Kind.TORCH, Kind.KERAS, Kind.HDF5, Kind.PICKLE)
    found: list[str] = []
    for name in paths_of(images):
        path = expanded(name)
        if path.is_dir():
            found += files_in(name)[0]
            continue
        if path.is_file() and not path.name.lower().endswith(EXTENSIONS) and (kind := kind_of(path)) in models:
            raise ValueError(f"{name} is {kind.words}, not an image. A model has an option of its own (--help).")
        found.append(name)
    return found


def images_of(images: Sequence[str], errors: Literal["skip", "raise"] = "skip") -> Iterator[tuple[int, str, Any]]:
    """Read images one after the other; yield the number of each from 0, its name and its pixels.

    Args:
        images: Image file, URL, or folder of images (searched with its subfolders).
        errors: Skip damaged images with a warning, or raise an error.

    Raises:
        ValueError: An image is damaged and `errors` is `"raise"`, or all are.
    """
    from ..preprocess.images import read
    from ..training.data.folder import report_unread

    damaged: list[tuple[str, str]] = []
    for number, name in enumerate(images):
        try:
            pixels = read(name, None)
        except (OSError, ValueError) as error:
            damaged.append((name, str(error)))
            if errors == "raise":
                break
            continue
        yield number, name, pixels
    report_unread((), damaged, len(images), errors)

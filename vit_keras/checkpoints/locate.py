"""Resolve the name of a published checkpoint to a file on this machine, downloading it if needed."""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .._internal.validate import did_you_mean, expanded, instance, one_of, path_text
from . import registry, timm_models
from .augreg import AUGREG_MODELS, BUCKET, find_augreg
from .cache import cached_path, is_here
from .checkpoint import HUB, PACKAGE, SUFFIXES, TASKS, Checkpoint

__all__ = [
    "available",
    "by_filename",
    "fetch",
    "find",
    "find_all",
    "find_file",
    "find_local",
    "is_local",
    "is_meant_as_path",
    "is_url",
    "recommended",
]


def available(
    *,
    variant: str | None = None,
    classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    family: str | None = None,
    source: str | None = None,
    name: str | None = None,
    license: str | None = None,
    labels: str | None = None,
    task: str | None = None,
    max_mb: float | None = None,
    sort: str | None = None,
) -> list[Checkpoint]:
    """List the published checkpoints that can be loaded. AugReg's 52,268 files have names of their own.

    Args:
        variant: Architecture, by Google's name (`"B_16"`).
        classes: Number of classes of the head.
        image_size: Input size in pixels. One integer or `(height, width)`.
        family: Checkpoint family, such as `"timm"`. A key of `families.FAMILIES`.
        source: Publisher, such as `"facebook"`.
        name: Pattern of the name; `*` matches anything.
        license: License, such as `"MIT"`. The SPDX name, if it has one.
        labels: List of classes, such as `"imagenet-1k"`.
        task: Purpose of the file; `"features"`: without a head. One of `checkpoint.TASKS`.
        max_mb: Maximum size of the file in MB.
        sort: Order; `"name"`, `"top1"` with the best first, or another key of `SORTS` with the smallest first; `None`:
            the order of the registry.

    Returns:
        A list of `Checkpoint`.

    Raises:
        ValueError: There is no such variant, family, source, license, list of classes, task or order, or `image_size`
            is not a size.

    Example:
        >>> available(variant="Ti_16", image_size=384)[0].top1
        78.22
    """
    if name is not None:
        instance(name, str, "name")
    if family is not None and not any(c.family == family for c in registry.listed()):
        from .families import FAMILIES  # imports NumPy, which a list of names does not need

        if family in FAMILIES:
            return []  # nobody publishes its files
    found = registry.select(
        variant=variant,
        classes=classes,
        image_size=image_size,
        family=family,
        source=source,
        name=name,
        license=license,
        labels=labels,
    )
    if task is not None:
        one_of(task, "task", TASKS)
    known = [c for c in found if not _refusal(c) and task in (None, c.task)]
    found = [c for c in known if max_mb is None or (c.megabytes is not None and c.megabytes <= max_mb)]
    return found if sort is None else sorted(sorted(found, key=_order), key=SORTS[one_of(sort, "sort", SORTS)])


def _ascending(field: str) -> Callable[[Checkpoint], tuple[bool, float]]:
    """Return a key that sorts by a number, with those that are not known last."""
    return lambda checkpoint: (getattr(checkpoint, field) is None, getattr(checkpoint, field) or 0)


SORTS: dict[str, Callable[[Checkpoint], Any]] = {
    "name": lambda checkpoint: 0,  # as `_order` has sorted them
    "top1": lambda checkpoint: -(checkpoint.top1 or 0),
    "mb": _ascending("megabytes"),
    "params": _ascending("parameters"),
    "gmac": _ascending("macs"),
    "px": _ascending("image_size"),
}
"""What `available` sorts by."""

_SIZES = ("Ti", "S", "B", "L", "H")


def _order(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """Return a key to sort by: the file in this package, Google's by size of the model, others by name and number."""
    size, _, patch = (checkpoint.variant or "").partition("_")
    place = _SIZES.index(size) if size in _SIZES else len(_SIZES)
    parts = re.split(r"(\d+)", checkpoint.name)
    numbers = [(int(part), "") if part.isdigit() else (0, part) for part in parts]
    places = (checkpoint.source != "vit_keras", checkpoint.variant is None, place, int(patch) if patch.isdigit() else 0)
    return *places, checkpoint.source != "google", numbers


def recommended(variant: str) -> Checkpoint | None:
    """Return the checkpoint that `open_model` opens for an architecture, or `None` without ImageNet-1k's classes."""
    found = available(variant=variant, classes=1000)
    return max(found, key=lambda checkpoint: (checkpoint.image_size == 224, checkpoint.top1 or 0), default=None)


def _refusal(checkpoint: Checkpoint) -> str:
    model = timm_models.of_file(checkpoint.name)
    return model.refused if model else ""


def find(weights: str | os.PathLike[str] | Checkpoint, variant: str | None = None) -> Checkpoint | None:
    """Return the published checkpoint with this name, or `None`."""
    if isinstance(weights, Checkpoint):
        return weights
    weights = path_text(weights)
    if is_meant_as_path(weights) and os.path.isfile(os.path.expanduser(weights)):
        return None
    if variant is not None and (found := registry.named(f"{variant}/{weights}")):
        return found
    if found := registry.named(weights):
        return found
    folder, _, stem = weights.removeprefix(BUCKET).rpartition("/")
    return find_augreg(stem.removesuffix(".npz")) if folder in ("", "augreg", *AUGREG_MODELS) else None


def find_all(name: str) -> list[Checkpoint] | None:
    """Return the published files of a name, a factory such as `vit_b16`, or a pattern; `None` for a URL."""
    from ..variants import variant_of  # imports NumPy, which a list of names does not need

    variant = variant_of(name)
    if found := recommended(variant) if variant else find(name):
        return [found]
    if is_url(name):
        return None
    if several := available(name=name):
        return several
    close = available(variant=variant) if variant else available(name=f"*{name.strip('*')}*")  # without such a head
    hint = f"Did you mean {', '.join(c.name for c in close[:3])}?" if close else "`vit-keras models --all` lists them."
    raise ValueError(f"No published weights have the name {name}. {hint}")


def find_file(name: str | os.PathLike[str]) -> Path:
    """Return the file of a path, a published name, a factory or a URL; nothing is downloaded."""
    from ..variants import variant_of

    path, text = expanded(name), path_text(name)
    if os.path.exists(path):  # never raises
        return path
    variant = variant_of(text)
    checkpoint = recommended(variant) if variant else find(text)
    if checkpoint is None and "://" in text and not is_url(text):
        return fetch(text)  # says which addresses there are
    if checkpoint is None and not is_url(text):
        raise FileNotFoundError(f"There is no file at {path}, and no published weights of that name.")
    if not (is_local(checkpoint) if checkpoint else os.path.isfile(cached_path(text))):  # never raises
        shown, published = (checkpoint.name, "published and ") if checkpoint else (text, "")
        raise FileNotFoundError(f"{shown} is {published}not here yet. Run: vit-keras download {shown}")
    return fetch(checkpoint or text, progress=False)


def by_filename(basename: str, bytes: int | None = None) -> Checkpoint | None:
    """Return the published checkpoint that a local file is a copy of, or `None` if it is not clear."""
    # All files on a hub have the same name, so a copy may have the name of its repository instead. The size
    # distinguishes Google's files with the same name.
    stem = re.sub(r"\.(safetensors|bin|pth|pt|h5)$", "", basename)
    found = [
        c
        for c in registry.listed()
        if c.filename == basename or (c.url.startswith(HUB) and c.weights.endswith(f"/{stem}"))
    ]
    if not found and basename.endswith(".npz"):
        found = list(filter(None, [find_augreg(basename.removesuffix(".npz"))]))
    if bytes is not None:
        exact = [c for c in found if c.bytes == bytes]
        found = exact or (found if all(c.bytes is None for c in found) else [])
    return found[0] if len(found) == 1 else None


def fetch(
    weights: str | os.PathLike[str] | Checkpoint,
    variant: str | None = None,
    *,
    timeout: float = 30.0,
    progress: bool = True,
) -> Path:
    """Return the path of a weight file on this machine, downloading it if necessary."""
    checkpoint = find(weights, variant)
    if checkpoint is None:
        text = path_text(weights)
        if not is_url(text):
            return _local_file(text, variant)
    elif reason := _refusal(checkpoint):
        raise ValueError(f"{checkpoint.name} cannot be built: {reason}.")
    elif local := find_local(checkpoint):
        return local
    from .download import download  # imports the network, which a file that is here does not need

    if checkpoint is None:
        return download(text, timeout=timeout, progress=progress)
    return download(
        checkpoint.url,
        size=checkpoint.bytes,
        sha256=checkpoint.sha256 or checkpoint.sha256_prefix,
        timeout=timeout,
        progress=progress,
    )


def is_url(text: str) -> bool:
    """Return whether a text is an address that `fetch` downloads from."""
    return re.match(r"https?://[^/\s]", text, re.IGNORECASE) is not None


def is_meant_as_path(text: str) -> bool:
    """Return whether a text is meant as a path, even without such a file, and not as a checkpoint's name."""
    return Path(text).suffix in SUFFIXES or Path(text).is_absolute() or text.startswith((".", "~"))


def _local_file(text: str, variant: str | None) -> Path:
    from .readers.sniff import is_of_keras_2  # imports NumPy, which a list of names does not need

    path = expanded(text)
    if text and (os.path.exists(path) or is_of_keras_2(path)):
        return path
    if "://" in text:
        raise ValueError(f"{text} is not an address of weights: only https:// and http:// are fetched.")
    if is_meant_as_path(text):
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    if variant is None:
        names = [c.name for c in available()]
        close = difflib.get_close_matches(text, names, n=5, cutoff=0.3)
        some = f", such as {', '.join(map(repr, close))}" if close else ""
        listed = f"{some} (checkpoints.available() lists all)"
    else:
        names = [c.weights for c in available(variant=variant)]
        listed = f" of {variant}: {', '.join(map(repr, names))}"
    raise ValueError(
        f"Unexpected weights: {text}.{did_you_mean(text, names)} Pass the path of a file, a URL, None, or one of the "
        f"published names{listed}."
    )


def is_local(checkpoint: Checkpoint) -> bool:
    """Return whether `fetch` finds a published checkpoint on this machine."""
    return find_local(instance(checkpoint, Checkpoint, "checkpoint")) is not None


def find_local(checkpoint: Checkpoint) -> Path | None:
    """Return the path of a published checkpoint on this machine, or `None`."""
    for path, by_name in _local_copies(checkpoint):
        if is_here(path, None if by_name else checkpoint.bytes) and (by_name or checkpoint.bytes is not None):
            return path
    return None


def _local_copies(checkpoint: Checkpoint) -> Iterator[tuple[Path, bool]]:
    """Yield possible paths of a checkpoint, and whether the name alone is proof; otherwise the size must match."""
    published, on_hub = Path(checkpoint.path), checkpoint.url.startswith(HUB)
    if checkpoint.url.startswith(PACKAGE):
        yield Path(__file__).with_name(published.name), True
        return
    vit_keras_0 = f"ViT-{checkpoint.variant}_{checkpoint.weights}.npz"
    unique = registry.is_unique(published.name)
    home = checkpoint.name.rpartition("/")[2] if on_hub else published.parent.name
    after_model = home + published.suffix  # on a hub, all files have the same name
    for place in filter(None, os.environ.get("VIT_KERAS_WEIGHTS", "").split(os.pathsep)):
        place = Path(os.path.abspath(expanded(place)))
        if os.path.isdir(place):
            for folder in _with_folders_in(place):
                yield from ((folder / published, True), (folder / vit_keras_0, True))
                yield folder / published.name, unique or folder.name == home
                yield from ((folder / checkpoint.name / published.name, on_hub), (folder / after_model, on_hub))
        elif on_hub and place.name == after_model:
            yield place, True
        elif place.name in (published.name, vit_keras_0):
            yield place, unique or place.name == vit_keras_0 or place.parent.name == home
    size_unknown = checkpoint.bytes is None
    yield cached_path(checkpoint.url), size_unknown
    yield _folder("KERAS_HOME", "~/.keras") / "weights" / vit_keras_0, size_unknown
    caches = _folder("XDG_CACHE_HOME", "~/.cache")  # of other libraries
    if on_hub:
        hub = _folder("HF_HUB_CACHE", _folder("HF_HOME", caches / "huggingface") / "hub")
        files = hub.glob(f"models--{checkpoint.name.replace('/', '--')}/snapshots/*/{published.name}")
        yield from ((path, True) for path in sorted(files))
    elif published.suffix in (".pth", ".pt"):
        yield _folder("TORCH_HOME", caches / "torch") / "hub" / "checkpoints" / published.name, unique


def _with_folders_in(place: Path) -> Iterator[Path]:
    """Yield a folder, then its subfolders down to a depth, which are listed only when needed."""
    level = [place]
    for _ in range(_DEPTH):
        yield from level
        below = [folder for folder in level if folder is place or not os.path.islink(folder)]
        level = [inner for folder in below for inner in _folders_in(folder, _changed(folder))]
    yield from level


@functools.lru_cache(maxsize=1 << 16)
def _folders_in(folder: Path, changed: int | None) -> tuple[Path, ...]:
    """Return the folders directly inside a folder, as of its last change."""
    _, inside, _ = next(os.walk(folder), ("", [], []))
    return tuple(folder / name for name in sorted(inside) if not name.startswith("."))


def _changed(folder: Path) -> int | None:
    try:
        return folder.stat().st_mtime_ns
    except OSError:  # not ours to read
        return None


_DEPTH = 4
"""Kaggle puts the files of a model into `input/name/framework/variation/version`, and those of a dataset higher up."""


def _folder(variable: str, default: str | Path) -> Path:
    return expanded(os.environ.get(variable) or default)

"""Files of weights: find them, read them, put them into a model.

>>> from vit_keras import checkpoints
>>> [c.name for c in checkpoints.available(variant="Ti_16")][:2]
['Ti_16/augreg-imagenet21k', 'Ti_16/augreg-imagenet21k+imagenet2012-224']
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..config import VARIANTS
from .architecture import complete
from .download import cached_path, download
from .loading import LoadReport, ModelWeights, adapt_channels, fill, load_weights, open_source
from .registry import CHECKPOINTS, Checkpoint
from .weights import Weights
from .writing import save_weights

__all__ = [
    "Checkpoint",
    "LoadReport",
    "ModelWeights",
    "Weights",
    "adapt_channels",
    "available",
    "complete",
    "fetch",
    "fill",
    "find",
    "is_local",
    "load_weights",
    "open_source",
    "save_weights",
]


def available(*, variant: str | None = None, classes: int | None = None, image_size: int | None = None):
    """The published checkpoints that this version can load.

    Args:
        variant: Only this architecture, by Google's name (`"B_16"`).
        classes: Only those with a head of so many classes.
        image_size: Only those trained (or fine-tuned) at this many pixels.

    Returns:
        A list of `Checkpoint`.

    Raises:
        ValueError: There is no such variant.

    Example:
        >>> available(variant="Ti_16", image_size=384)[0].top1
        78.22
    """
    if variant is not None and variant not in VARIANTS:
        raise ValueError(f"Unknown variant {variant!r}. There are: {', '.join(VARIANTS)}.")
    return [
        c
        for c in CHECKPOINTS
        if c.variant in VARIANTS
        and variant in (None, c.variant)
        and classes in (None, c.classes)
        and image_size in (None, c.image_size)
    ]


def find(weights: str, variant: str | None = None) -> Checkpoint | None:
    """The published checkpoint of that name, or `None`.

    Args:
        weights: A full name (`"B_16/imagenet21k"`), or with `variant` what follows the slash.
        variant: Google's name of the architecture.

    Example:
        >>> find("imagenet21k", "B_16").classes
        21843
    """
    for checkpoint in CHECKPOINTS:
        if weights == checkpoint.name or (weights == checkpoint.weights and variant == checkpoint.variant):
            return checkpoint
    return None


def fetch(
    weights: str | os.PathLike, variant: str | None = None, *, timeout: float = 30.0, progress: bool = True
) -> Path:
    """Bring a file of weights to this machine, if it is not here already, and say where it is.

    A published checkpoint is looked for in the files and folders that the environment variable
    `VIT_KERAS_WEIGHTS` names (several are separated as in `PATH`), in the cache, in vit-keras 0.x's
    cache, and then fetched.

    Args:
        weights: A published name (`"B_16/imagenet21k"`; with `variant` just `"imagenet21k"`), the path
            of a file, or a URL.
        variant: Google's name of the architecture.
        timeout: Seconds to wait for the server at any one time.
        progress: Whether to draw a progress bar.

    Returns:
        The path of the file.

    Raises:
        FileNotFoundError: There is no file at that path or URL, or being offline it is not at hand.
        ConnectionError: The server could not be reached.
        ValueError: The name is not a published one, or what arrived is not the file.
    """
    text = os.fspath(weights)
    if text.startswith(("http://", "https://")):
        return download(text, timeout=timeout, progress=progress)
    checkpoint = find(text, variant)
    if checkpoint is None:
        return _local_file(text, variant)
    local = _find_local(checkpoint)
    return local or download(
        checkpoint.url, size=checkpoint.bytes, sha256=checkpoint.sha256, timeout=timeout, progress=progress
    )


def _local_file(text: str, variant: str | None) -> Path:
    path = Path(text).expanduser()
    if path.is_file():
        return path
    looks_like_a_path = path.suffix in (".npz", ".h5", ".keras", ".safetensors", ".pth", ".bin", ".pt")
    if looks_like_a_path or path.is_absolute() or text.startswith("."):
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    names = [c.weights if variant else c.name for c in available(variant=variant)]
    raise ValueError(
        f"Unexpected weights: {text}. Give the path of a file, a URL, None, or one of the published names"
        f"{' of ' + variant if variant else ''}: {', '.join(map(repr, names))}."
    )


def is_local(checkpoint: Checkpoint) -> bool:
    """Whether `fetch` would find a published checkpoint on this machine."""
    return _find_local(checkpoint) is not None


def _find_local(checkpoint: Checkpoint) -> Path | None:
    for path, by_name in _local_copies(checkpoint):
        if path.is_file() and (by_name or path.stat().st_size == checkpoint.bytes):
            return path
    return None


def _local_copies(checkpoint: Checkpoint) -> Iterator[tuple[Path, bool]]:
    """Where a checkpoint may be, and whether its name there is proof enough; otherwise its size must be right too."""
    published = Path(checkpoint.path)
    vit_keras_0 = f"ViT-{checkpoint.variant}_{checkpoint.weights}.npz"
    unique = sum(Path(c.path).name == published.name for c in CHECKPOINTS) == 1
    for place in filter(None, os.environ.get("VIT_KERAS_WEIGHTS", "").split(os.pathsep)):
        place = Path(place).expanduser()
        if place.is_dir():
            yield from ((place / published, True), (place / vit_keras_0, True), (place / published.name, unique))
        elif place.name in (published.name, vit_keras_0):
            yield place, unique or place.name == vit_keras_0
    yield cached_path(checkpoint.url), False
    yield Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "weights" / vit_keras_0, False

"""The published checkpoints: which there are, and where their files lie on this machine."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from . import registry
from .download import cached_path, download
from .families import FAMILIES
from .registry import Checkpoint


def available(
    *,
    variant: str | None = None,
    classes: int | None = None,
    image_size: int | None = None,
    family: str | None = None,
    source: str | None = None,
    name: str | None = None,
    licence: str | None = None,
    labels: str | None = None,
) -> list[Checkpoint]:
    """The published checkpoints that this version can load. AugReg's 52,268 files have a grammar: `registry.augreg`.

    Args:
        variant: Only this architecture, by Google's name (`"B_16"`).
        classes: Only those with a head of so many classes.
        image_size: Only those trained (or fine-tuned) at this many pixels.
        family: Only those with these names and layout, such as `"timm"` (`families.FAMILIES`).
        source: Only those that this one publishes, such as `"facebook"`.
        name: Only those whose name fits this pattern, `*` for anything.
        licence: Only those under this licence, by its SPDX name.
        labels: Only those with these classes, such as `"imagenet-1k"`.

    Returns:
        A list of `Checkpoint`.

    Raises:
        ValueError: There is no such variant, family, source, licence or set of labels.

    Example:
        >>> available(variant="Ti_16", image_size=384)[0].top1
        78.22
    """
    wanted = {"family": family, "source": source, "name": name, "licence": licence, "labels": labels}
    if family in FAMILIES and not any(c.family == family for c in registry.listed()):
        return []  # a family whose files nobody publishes under a name
    found = registry.select(variant=variant, classes=classes, image_size=image_size, **wanted)
    return [c for c in found if FAMILIES[c.family].refused is None]


def find(weights: str, variant: str | None = None) -> Checkpoint | None:
    """The published checkpoint of that name, or `None`.

    Args:
        weights: A full name (`"B_16/imagenet21k"`, `"timm/deit_tiny_patch16_224.fb_in1k"`), with `variant` what follows the
            slash, the name of any AugReg file, or a published URL.
        variant: Google's name of the architecture.

    Example:
        >>> find("imagenet21k", "B_16").classes
        21843
    """
    return registry.find(weights, variant)


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
    checkpoint = find(text, variant)
    if checkpoint is None and text.startswith(("http://", "https://")):
        return download(text, timeout=timeout, progress=progress)
    if checkpoint is None:
        return _local_file(text, variant)
    local = _find_local(checkpoint)
    return local or download(
        checkpoint.url,
        size=checkpoint.bytes,
        sha256=checkpoint.sha256 or checkpoint.sha256_prefix,
        timeout=timeout,
        progress=progress,
    )


def _local_file(text: str, variant: str | None) -> Path:
    path = Path(text).expanduser()
    if text and path.exists():
        return path
    looks_like_a_path = path.suffix in (".npz", ".h5", ".keras", ".safetensors", ".pth", ".bin", ".pt")
    if looks_like_a_path or path.is_absolute() or text.startswith("."):
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    if variant is None:
        close = difflib.get_close_matches(text, [c.name for c in available()], n=5, cutoff=0.3)
        names = f"{', '.join(map(repr, close))} … (checkpoints.available() lists all)"
    else:
        names = ", ".join(repr(c.weights) for c in available(variant=variant))
    raise ValueError(
        f"Unexpected weights: {text}. Give the path of a file, a URL, None, or one of the published names"
        f"{' of ' + variant if variant else ', such as'}: {names}."
    )


def is_local(checkpoint: Checkpoint) -> bool:
    """Whether `fetch` would find a published checkpoint on this machine."""
    return _find_local(checkpoint) is not None


def _find_local(checkpoint: Checkpoint) -> Path | None:
    for path, by_name in _local_copies(checkpoint):
        if path.is_file() and (by_name or checkpoint.bytes in (None, path.stat().st_size)):
            return path
    return None


def _local_copies(checkpoint: Checkpoint) -> Iterator[tuple[Path, bool]]:
    """Where a checkpoint may be, and whether its name there is proof enough; otherwise its size must be right too."""
    published, of_hub = Path(checkpoint.path), checkpoint.url.startswith(registry.HUB)
    if checkpoint.url.startswith(registry.PACKAGE):
        yield Path(__file__).with_name(published.name), True
        return
    vit_keras_0 = f"ViT-{checkpoint.variant}_{checkpoint.weights}.npz"
    unique = registry.is_unique(published.name)
    for place in filter(None, os.environ.get("VIT_KERAS_WEIGHTS", "").split(os.pathsep)):
        place = Path(place).expanduser()
        if place.is_dir():
            yield from ((place / published, True), (place / vit_keras_0, True), (place / published.name, unique))
            yield place / checkpoint.name / published.name, of_hub
        elif place.name in (published.name, vit_keras_0):
            yield place, unique or place.name == vit_keras_0
    yield cached_path(checkpoint.url), False
    yield _folder("KERAS_HOME", "~/.keras") / "weights" / vit_keras_0, False
    if of_hub:  # what their own libraries have fetched
        repository = (
            _folder("HF_HOME", "~/.cache/huggingface") / "hub" / f"models--{checkpoint.name.replace('/', '--')}"
        )
        yield from ((path, True) for path in sorted(repository.glob(f"snapshots/*/{published.name}")))
    elif published.suffix in (".pth", ".pt"):
        yield _folder("TORCH_HOME", "~/.cache/torch") / "hub" / "checkpoints" / published.name, unique


def _folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser()

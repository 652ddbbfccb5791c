"""Download published models for images and text by name: weights of both towers, configuration and tokenizer.

The names are those of `checkpoints.available` whose files hold both towers, and those in `open_clip.txt`: models that
open_clip reads from Hugging Face. Its server lists the files of a repository, with their sizes and hashes.
"""

from __future__ import annotations

import difflib
import functools
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._internal.validate import path_text
from ..checkpoints import locate, registry
from ..checkpoints.cache import cached_path, is_here, offline
from ..checkpoints.checkpoint import HUB, Checkpoint, megabytes

__all__ = ["TOKENIZERS", "Published", "has_tokenizer", "names", "published", "tokenizer_folder"]

_OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_HUB_FAMILIES = ("huggingface-clip", "huggingface-siglip")
_REPOSITORIES = (  # of files outside Hugging Face: the beginning of their names, and a repository with their vocabulary
    ("openai/ViT-", "openai/clip-vit-base-patch32"),
    ("big_vision/siglip2_", "google/siglip2-base-patch16-224"),
    ("big_vision/siglip_webli_i18n_", "google/siglip-base-patch16-256-multilingual"),
    ("big_vision/siglip_webli_en_", "google/siglip-base-patch16-224"),
)
TOKENIZERS = (
    ("spiece.model",),
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("bpe_simple_vocab_16e6.txt.gz",),
    ("tokenizer.model",),
)
"""The files of a tokenizer, in the order of the search."""

_SETTINGS = ("config.json", "open_clip_config.json", "processor_config.json", "preprocessor_config.json")
_OF_TOKENIZER = ("tokenizer_config.json", "special_tokens_map.json")


class Published(NamedTuple):
    """A published model on this machine."""

    path: Path  # the file of weights
    folder: Path  # with the files of the tokenizer
    fields: Mapping[str, Any]  # of both towers, which the file does not store


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder contains the files of a tokenizer."""
    return any(all(os.path.isfile(folder / name) for name in names) for names in TOKENIZERS)


@functools.cache
def names() -> tuple[str, ...]:
    """Return the sorted names of all published models for images and text that can be opened."""
    table = Path(__file__).with_name("open_clip.txt").read_text(encoding="utf-8").split()
    starts = tuple(start for start, _ in _REPOSITORIES)
    listed = [c.name for c in registry.listed() if c.family in _HUB_FAMILIES or c.name.startswith(starts)]
    return tuple(sorted({*table, *listed}))


def published(name: str | os.PathLike[str], *, tokenizer: bool = True, progress: bool = True) -> Published | None:
    """Return the files of a published model, downloaded if missing, or `None` for a path or a URL."""
    # The names and sizes of downloads are printed on standard error first. Files are searched for where
    # `checkpoints.fetch` looks, including files that the user or another library put there. A file or folder of this
    # name takes precedence.
    text = path_text(name)
    if os.path.exists(os.path.expanduser(text)) or "://" in text:
        return None
    if text not in names():
        _refuse(text)
        return None
    known = _checkpoint(text)
    fields = {field: known.options[field] for field in ("mlp_activation",) if field in known.options}
    path = locate.find_local(known)
    if path is None or (path == cached_path(known.url) and not offline()):
        path = _download(known, progress)
    if not tokenizer or has_tokenizer(path.parent):
        return Published(path, path.parent, fields)
    return Published(path, _download_tokenizer(_repository(known), progress), fields)


def tokenizer_folder(name: str, *, progress: bool = True) -> Path | None:
    """Return the folder of a published model's tokenizer, downloaded if missing; `None` for other names."""
    if name not in names():
        return None
    known = _checkpoint(name)
    path = locate.find_local(known)
    if path is not None and has_tokenizer(path.parent):
        return path.parent
    return _download_tokenizer(_repository(known), progress)


def _refuse(text: str) -> None:
    """Raise a ValueError for a misspelled name, or for a published model without a text tower."""
    if locate.is_meant_as_path(text):
        return
    owner, _, last = text.rpartition("/")
    near = [name for name in names() if not owner and name.rpartition("/")[2] == last]
    near = near or difflib.get_close_matches(text, names(), n=3, cutoff=0.85)
    lack = "has no text tower" if locate.find(text) else "is not a file, a folder or a published name"
    if near:
        raise ValueError(f"{text} {lack}. Did you mean {' or '.join(map(repr, near))}?")
    raise ValueError(
        f"{text} {lack}. Pass a model for images and text: the path of a file or folder, a URL, or a published name "
        "such as 'openai/clip-vit-base-patch32' or 'google/siglip-base-patch16-224' (vit_keras.text.published.names() "
        "lists all)."
    )


def _checkpoint(name: str) -> Checkpoint:
    """Return the location of both towers' weights; in a repository of timm's, timm itself reads a different file."""
    found = registry.named(name)
    if found is not None and (found.family in _HUB_FAMILIES or not found.url.startswith(HUB)):
        return found
    files = [Checkpoint(weights=name, url=f"{HUB}{name}/resolve/main/{file}", family="clip") for file in _OPEN_CLIP]
    return next((file for file in files if locate.find_local(file)), files[0])


def _repository(known: Checkpoint) -> str:
    """Return the repository on Hugging Face with the tokenizer of a model."""
    return next((there for start, there in _REPOSITORIES if known.name.startswith(start)), known.name)


# --- from the server ----------------------------------------------------------------------------------------------


def _download(known: Checkpoint, progress: bool) -> Path:
    """Download missing weights, settings and tokenizer files of a model, and return the path of the weights."""
    if not known.url.startswith(HUB):
        return locate.fetch(known.name, progress=progress)
    listing = _listing(known.name)
    stems = _OPEN_CLIP if known.filename in _OPEN_CLIP else (known.filename, "model.safetensors", "pytorch_model.bin")
    weights = next(filter(None, (_pieces(name, listing) for name in stems)), None)
    if weights is None:
        raise FileNotFoundError(f"{HUB}{known.name} has no file of weights: none of {', '.join(dict.fromkeys(stems))}.")
    settings = [name for name in _SETTINGS if name in listing]
    _get(known.name, listing, [*weights, *settings, *_tokenizer_files(listing)], progress)
    return cached_path(f"{HUB}{known.name}/resolve/main/{weights[0]}")


def _download_tokenizer(repository: str, progress: bool) -> Path:
    """Download the files of a tokenizer, and return their folder."""
    folder = cached_path(f"{HUB}{repository}/resolve/main/config.json").parent
    if not has_tokenizer(folder):
        listing = _listing(repository, "its tokenizer")
        _get(repository, listing, _tokenizer_files(listing), progress)
    return folder


def _listing(
    repository: str, wanted: str = "its weights, its .json files and its tokenizer"
) -> dict[str, tuple[int | None, str | None]]:
    """Return the files of a repository on Hugging Face: `{name: (bytes, SHA-256 or None)}`; errors name the wanted."""
    from ..checkpoints.download import WITHOUT_NETWORK, download  # imports the network

    url = f"{HUB}api/models/{repository}?blobs=true"
    folder = cached_path(f"{HUB}{repository}/resolve/main/config.json").parent
    path = cached_path(url)
    advice = (
        f"On a machine with a network, download {wanted}. Pass the path of the folder"
        f"{' as tokenizer=' if wanted == 'its tokenizer' else ''}, or put the files into {folder} and set "
        "VIT_KERAS_OFFLINE."
    )
    if offline() and not path.is_file():
        raise FileNotFoundError(f"{repository} is not on this machine and VIT_KERAS_OFFLINE is set. {advice}")
    try:
        download(url, json=True, progress=False)
    except ConnectionError as error:  # which advises to write this list by hand
        reason, separator, _ = str(error).partition(WITHOUT_NETWORK)
        if not separator:  # the server answered
            raise
        raise ConnectionError(f"{reason} {advice}") from None
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["siblings"]
        return {file["rfilename"]: (file.get("size"), (file.get("lfs") or {}).get("sha256")) for file in files}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        path.unlink()
        raise ValueError(f"{url} is not a list of files: {error!r}") from None


def _get(repository: str, listing: Mapping[str, Any], files: Sequence[str], progress: bool) -> None:
    """Download the missing files of a repository, after printing their names and size."""
    from ..checkpoints.download import download

    missing = {file: f"{HUB}{repository}/resolve/main/{file}" for file in files}
    missing = {file: url for file, url in missing.items() if not is_here(cached_path(url), listing[file][0])}
    sizes = [listing[file][0] for file in missing]
    if missing and progress and not offline():
        total = megabytes(None if None in sizes else sum(sizes))
        print(f"{repository}: downloading {', '.join(missing)} ({total})", file=sys.stderr, flush=True)
    for file, url in missing.items():
        size, sha256 = listing[file]
        download(url, size=size, sha256=sha256, json=file.endswith(".json"), progress=progress)


def _pieces(name: str, listing: Mapping[str, Any]) -> list[str]:
    """Return the weight file, or its index and pieces, or an empty list if the repository has neither."""
    if name in listing:
        return [name]
    stem, _, ending = name.partition(".")
    pieces = sorted(file for file in listing if re.fullmatch(rf"{stem}-\d+-of-\d+\.{ending}", file))
    return [f"{name}.index.json", *pieces] if f"{name}.index.json" in listing else []


def _tokenizer_files(listing: Mapping[str, Any]) -> list[str]:
    """Return the files of the tokenizer in a repository, the first kind that `TOKENIZERS` has."""
    found = next((names for names in TOKENIZERS if all(name in listing for name in names)), ())
    return [*found, *(name for name in _OF_TOKENIZER if found and name in listing)]

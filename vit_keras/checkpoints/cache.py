"""The cache folder of downloads.

The environment variable `VIT_KERAS_HOME` sets it (default `~/.cache/vit_keras`). A file is stored under the host and
path of its URL.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .._internal.validate import expanded

__all__ = ["cached_path", "home", "is_here", "offline"]


def home() -> Path:
    """Return the cache folder."""
    return expanded(os.environ.get("VIT_KERAS_HOME") or "~/.cache/vit_keras")


def offline() -> bool:
    """Return whether `VIT_KERAS_OFFLINE` forbids requests."""
    return os.environ.get("VIT_KERAS_OFFLINE", "").lower() not in ("", "0", "false", "no", "off")


def cached_path(url: str) -> Path:
    """Return the path in the cache of the file at a URL, whether or not the file exists."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"{url} is not an address: {error}.") from None
    # Windows has no such names, reads them as folders, or leaves out what is at their end.
    plain = re.sub(r'[\x00-\x1f<>:"\\|?*]', "_", unquote(parts.path))
    path = [re.sub("[. ]$", "_", p) for p in plain.split("/") if p not in ("", ".", "..")]
    if parts.query:
        digest = hashlib.sha256(parts.query.encode()).hexdigest()[:8]
        path[-1:] = [f"{digest}-{path[-1]}" if path else digest]
    return home().joinpath(*(_short(part) for part in (parts.netloc.replace(":", "_"), *path)))


def is_here(path: Path, size: int | None = None) -> bool:
    """Return whether there is a file at a path, of this number of bytes if it is known."""
    # Unlike Path.is_file, os.path raises nothing in a folder that may not be read.
    return os.path.isfile(path) and (size is None or os.path.getsize(path) == size)


def _short(name: str) -> str:
    """Return a name that every file system can hold; a longer name becomes its hash and its suffix."""
    if len(name.encode(errors="replace")) <= 200:
        return name
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()
    return digest + name[name.rfind(".") :][:20] if "." in name else digest

"""Download a URL to a verified file in the cache.

For the cache see `cache`. `VIT_KERAS_OFFLINE=1` forbids all requests. Files of Hugging Face come from the mirror
`HF_ENDPOINT` if that is set, as with Hugging Face's own libraries.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from .._internal.atomic import is_disk_error, naming
from .._internal.progress import progress_bar
from . import registry
from .cache import cached_path, home, is_here, offline
from .checkpoint import HUB
from .readers.sniff import Kind, sniff

__all__ = ["cached_path", "download", "home", "offline"]

logger: logging.Logger = logging.getLogger("vit_keras")

CHUNK = 1 << 20
ATTEMPTS = 4
WITHOUT_NETWORK = " Without a network,"  # what follows it in an error is advice about one file
PAUSE = 0.25  # seconds before asking a server in trouble again; doubled each time


def download(
    url: str,
    *,
    size: int | None = None,
    sha256: str | None = None,
    json: bool = False,
    timeout: float = 30.0,
    progress: bool = True,
) -> Path:
    """Download a file into the cache, unless it is there with the right size, and return its path."""
    # A broken transfer is resumed, even by a later call. The file gets its name only when it is complete and verified
    # (`sha256` may be the first digits). Processes that need the same file wait for each other. Unless `json`, JSON is
    # taken for an error message of the server.
    path = cached_path(url)
    if is_here(path, size):
        return path
    if offline():
        found = f"in the cache with {path.stat().st_size:,} bytes instead of {size:,}," if is_here(path) else ""
        raise FileNotFoundError(
            f"{url} is {found or 'not in the cache'} and VIT_KERAS_OFFLINE is set. Download it on a machine with a "
            f"network. Then put it at {path}, or point VIT_KERAS_WEIGHTS to the file or its folder{_named(url)}."
        )
    with _locked(path), naming(path):
        if not is_here(path, size):
            part = path.with_name(path.name + ".part")
            _fetch(url, part, size, timeout, progress)
            try:
                _verify(url, part, size, sha256, json)
            except ValueError:
                _discard(part)
                raise
            os.replace(part, path)
            _discard(part)
    return path


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Create the folder of a file, and lock the file against other processes while the block runs."""
    from filelock import FileLock

    lock = FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        file = next((above for above in path.parents if os.path.isfile(above)), None)  # the file of a shorter URL
        reason = f"{file} is a file" if file else error.strerror
        raise OSError(
            error.errno,
            f"Could not write to {path.parent}: {reason}. Set VIT_KERAS_HOME to a folder for downloads that "
            f"can be written to, or put the file at {path}",
        ) from error
    try:
        yield
    finally:
        lock.release()


def _fetch(url: str, part: Path, size: int | None, timeout: float, progress: bool) -> None:
    """Complete the file `part`, resuming the transfer a few times."""
    for attempt in range(ATTEMPTS):
        try:
            return _transfer(url, part, size, timeout, progress)
        except urllib.error.HTTPError as error:
            error.close()  # its connection
            if error.code == 416 and attempt + 1 < ATTEMPTS:  # the part is longer than the file: start again
                _discard(part)
                continue
            if error.code in (404, 410):
                raise FileNotFoundError(f"{url} does not exist (the server answered {error.code}).") from None
            if error.code < 500 and error.code != 429:
                raise ConnectionError(f"The server refused {url}: {error.code} {error.reason}.") from None
            problem: Exception = error
            if attempt + 1 < ATTEMPTS:
                time.sleep(PAUSE * 2**attempt)
        except (OSError, EOFError, http.client.HTTPException) as error:
            if is_disk_error(error):
                raise
            problem = error
            if isinstance(error, urllib.error.URLError) and not part.exists():
                break  # the server was never reached: do not wait for it again
        logger.info("Transfer of %s broke off (%s); attempt %d of %d.", url, problem, attempt + 1, ATTEMPTS)
    raise ConnectionError(
        f"Could not download {url}: {getattr(problem, 'reason', problem)}.{WITHOUT_NETWORK} put the file at "
        f"{cached_path(url)} or point VIT_KERAS_WEIGHTS to the file or its folder{_named(url)}."
    )


def _named(url: str) -> str:
    """Return the name that a published file or its folder must have, if other published files are called the same."""
    model, resolve, _ = url.removeprefix(HUB).partition("/resolve/")
    if url.startswith(HUB) and resolve:
        return f". One of them is named {model.rpartition('/')[2]!r}"
    path = cached_path(url)
    return "" if registry.is_unique(path.name) else f", named {path.parent.name!r}"


def _transfer(url: str, part: Path, size: int | None, timeout: float, progress: bool) -> None:
    """Request the rest of the file if it has not changed on the server, otherwise all of it."""
    tag_file = Path(f"{part}.etag")
    held = part.stat().st_size if part.exists() and tag_file.exists() else 0
    start = max(0, held - 1)  # the last byte comes again, so that the server has an answer if no other is missing
    address = quote(_mirrored(url), safe="!#$%&'()*+,/:;=?@[]~")  # what is quoted already stays
    request = urllib.request.Request(address, headers={"User-Agent": "vit_keras", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", tag_file.read_text(encoding="utf-8"))
    with urllib.request.urlopen(request, timeout=timeout) as response:
        start = start if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else size
        tag = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if start and tag and tag != tag_file.read_text(encoding="utf-8"):  # the server ignores If-Range
            _discard(part)
            raise EOFError("the file changed on the server")
        if not start:
            _discard(part)  # before the tag of the new file is written: a kill must not leave it next to the old part
        if tag and not tag.startswith("W/"):  # a weak tag does not identify the bytes
            tag_file.write_text(tag, encoding="utf-8")
        name = unquote(url.rsplit("/", 1)[-1])
        bar = progress_bar(name, total, unit="bytes", start=start, show=progress)
        with open(part, "r+b" if start else "wb") as file, bar as advance:
            file.seek(start)
            while chunk := response.read1(CHUNK):  # whatever has come: a kill loses nothing else
                file.write(chunk)
                advance(len(chunk))
    if length and total is not None and part.stat().st_size < total:
        raise EOFError(f"{part.stat().st_size} of {total} bytes arrived")


def _mirrored(url: str) -> str:
    mirror = os.environ.get("HF_ENDPOINT")
    return f"{mirror.rstrip('/')}/{url.removeprefix(HUB)}" if mirror and url.startswith(HUB) else url


def _verify(url: str, path: Path, size: int | None, sha256: str | None, json: bool) -> None:
    with open(path, "rb") as file:
        kind = sniff(file.read(512))
        received = os.path.getsize(path)
        if kind in (Kind.WEB_PAGE, Kind.GIT_LFS, Kind.EMPTY) or (kind is Kind.MARKUP and not json):
            wanted = "JSON" if json else "a file of weights"
            raise ValueError(f"{url} is {kind.words} of {received:,} bytes, not {wanted}.")
        if size is not None and received != size:
            raise ValueError(
                f"{url} has {received:,} bytes where {size:,} were expected: it is not the published file."
            )
        if sha256 is not None:
            file.seek(0)
            digest = hashlib.sha256()
            while chunk := file.read(CHUNK):
                digest.update(chunk)
            if not digest.hexdigest().startswith(sha256):
                raise ValueError(f"{url} has the SHA-256 {digest.hexdigest()} where {sha256} was expected.")


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    Path(f"{part}.etag").unlink(missing_ok=True)

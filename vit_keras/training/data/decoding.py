"""Image files decoded once, to pixels in 8 bits that are mapped into memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import shutil
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from ..._internal.atomic import complete, delete_left, naming
from ..._internal.progress import progress_bar
from ..._internal.validate import expanded, path_text
from ..._internal.warn import warn_caller
from ...preprocess import Preprocessing
from ...preprocess.images import check_readable, decode, read
from ...preprocess.pixels import gray_levels

__all__: list[str] = []

_ROOM = 1.25  # the shortest side of an image kept for random crops, relative to the model's input
_BLOCK = 256  # images decoded between two updates of the progress bar
_PATIENCE = 3.0  # seconds of decoding before there is a bar
_FORMAT = 1  # version of the files of the cache


@dataclasses.dataclass
class Decoder:
    """Decoder of a file to pixels: as the preprocessing does in evaluation (`plain`), or with room for random crops."""

    preprocessing: Preprocessing
    roomy: bool

    def __post_init__(self) -> None:
        check_readable(self.preprocessing.channels)
        self.preprocessing = self.preprocessing.replace(mean=0.0, std=1 / 255)  # pixels stay as they are
        self.size: tuple[int, int] = cast("tuple[int, int]", self.preprocessing.image_size)
        self.shortest: int = math.ceil(_ROOM * max(self.size))

    def __call__(self, path: Any) -> np.ndarray:
        return self.with_room(path) if self.roomy else self.plain(path)

    def plain(self, path: Any) -> np.ndarray:
        return np.rint(self.preprocessing(path, self.size)[0]).astype("uint8")

    def with_room(self, path: Any) -> np.ndarray:
        """Return the whole image, upright. A large one is reduced; of a JPEG no more is decoded than is needed."""
        with decode(path, path) as image:
            try:
                image.draft(None, (self.shortest, self.shortest))
                pixels = read(image, None)
            except (OSError, ValueError) as error:
                raise ValueError(f"Could not read {path}: {error}") from None
        height, width = pixels.shape[:2]
        if min(height, width) > self.shortest:
            scale = self.shortest / min(height, width)
            smaller = (max(1, round(width * scale)), max(1, round(height * scale)))
            pixels = np.asarray(Image.fromarray(pixels).resize(smaller, Image.Resampling.BOX))
        if self.preprocessing.channels == 1:
            pixels = gray_levels(pixels).astype("uint8")
        return pixels

    def bytes(self) -> int:
        """Return the approximate maximum number of bytes of an image."""
        height, width = (self.shortest, 1.5 * self.shortest) if self.roomy else self.size
        return int(height * width * self.preprocessing.channels)

    def key(self) -> str:
        return json.dumps([_FORMAT, self.roomy, self.size, self.preprocessing.to_dict()])


@dataclasses.dataclass
class DecodedImages:
    """The pixels of image files by number: mapped into memory where they are kept, or else decoded each time."""

    paths: list[Path]
    decoder: Decoder
    failures: dict[Path, str]
    shapes: list[tuple[int, ...]]
    starts: np.ndarray
    store: np.ndarray | None

    def select(self, numbers: np.ndarray) -> DecodedImages:
        """Return only these images, in this order."""
        paths, shapes = [self.paths[n] for n in numbers], [self.shapes[n] for n in numbers]
        return dataclasses.replace(self, paths=paths, shapes=shapes, starts=self.starts[numbers])

    def __getitem__(self, index: int) -> np.ndarray:
        if self.store is None:
            return self.decoder(self.paths[index])
        start, shape = self.starts[index], self.shapes[index]
        return np.asarray(self.store[start : start + math.prod(shape)]).reshape(shape)

    def plain(self, index: int) -> np.ndarray:
        return self.decoder.plain(self.paths[index]) if self.decoder.roomy else self[index]


def _decoded_images(
    paths: list[Path], decoder: Decoder, shapes: list[tuple[int, ...]], failures: dict[Path, str], file: Any = None
) -> DecodedImages:
    """Return images whose pixels are in a file, one after another, or are decoded each time."""
    starts, store = np.cumsum([0, *map(math.prod, shapes)], dtype="int64"), None
    if file is not None:
        store = np.memmap(file, "uint8", "r") if starts[-1] else np.empty(0, "uint8")
    return DecodedImages(paths, decoder, failures, shapes, starts[:-1], store)


def fingerprint(paths: Iterable[Path]) -> str:
    """Return a text that changes with any of the files: with its path, size or time of change."""
    return json.dumps([(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths])


def decode_images(paths: list[Path], decoder: Decoder, cache: Any, workers: int, progress: bool) -> DecodedImages:
    """Decode all files once: into a file or, with `cache=False`, only to find the damaged ones."""
    cache = "auto" if cache is True else cache
    if cache == "auto":
        needed, free = decoder.bytes() * len(paths), shutil.disk_usage(tempfile.gettempdir()).free
        if needed > free / 2:
            warn_caller(
                f"The pixels of {len(paths):,} images may need {needed / 1e9:.0f} GB, and {tempfile.gettempdir()} has "
                f"{free / 1e9:.0f} GB: they are decoded in every epoch instead. cache=FOLDER keeps them elsewhere."
            )
            cache = False
    if cache is False:
        return _decoded_images(paths, decoder, *_decode_all(paths, decoder, None, workers, progress))
    if cache != "auto":
        folder = expanded(path_text(cache, "cache", "'auto', a folder or False"))
        return _kept(paths, decoder, folder, workers, progress)
    with naming(f"the decoded images to {tempfile.gettempdir()}"), tempfile.TemporaryFile(prefix="vit_keras-") as file:
        decoded = _decode_all(paths, decoder, file, workers, progress)
        return _decoded_images(paths, decoder, *decoded, file)  # whose array keeps the file's content


def _kept(paths: list[Path], decoder: Decoder, folder: Path, workers: int, progress: bool) -> DecodedImages:
    """Keep the pixels in a folder, under a name that changes with the files and with how they are decoded."""
    folder.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256((decoder.key() + fingerprint(paths)).encode()).hexdigest()[:32]
    pixels, index = folder / f"{key}.pixels", folder / f"{key}.json"
    kept = json.loads(index.read_text(encoding="utf-8")) if pixels.exists() and index.exists() else None
    # An image that could not be decoded may be repaired now, such as a file of other rights.
    if kept and all(isinstance(_attempt(paths[number], decoder), str) for number, _ in kept["failures"]):
        delete_left(folder)
    else:
        with complete(pixels) as part, open(part, "wb") as file:
            shapes, failures = _decode_all(paths, decoder, file, workers, progress)
        kept = {"shapes": shapes, "failures": [[paths.index(path), text] for path, text in failures.items()]}
        with complete(index) as part:
            part.write_text(json.dumps(kept), encoding="utf-8")
    failures = {paths[n]: text for n, text in kept["failures"]}
    return _decoded_images(paths, decoder, list(map(tuple, kept["shapes"])), failures, pixels)


def _attempt(path: Path, decoder: Decoder) -> np.ndarray | str:
    """Return the pixels of a file, or what is wrong with it."""
    try:
        return decoder(path)
    except (ValueError, OSError) as error:
        return str(error)


def _decode_all(
    paths: list[Path], decoder: Decoder, file: Any, workers: int, progress: bool
) -> tuple[list[tuple[int, ...]], dict[Path, str]]:
    """Decode all files, into a file if there is one; return the shape of each, or (0,) and what is wrong with it."""
    attempt = functools.partial(_attempt, decoder=decoder)
    shapes, failures, advance, started = [], {}, None, time.monotonic()
    with ThreadPoolExecutor(max(1, workers)) as pool, contextlib.ExitStack() as late:
        for first in range(0, len(paths), _BLOCK):
            block = paths[first : first + _BLOCK]
            for path, result in zip(block, pool.map(attempt, block)):
                if isinstance(result, str):
                    failures[path] = result
                elif file is not None:
                    file.write(np.ascontiguousarray(result))
                shapes.append((0,) if isinstance(result, str) else result.shape)
            if advance is not None:
                advance(len(block))
            elif progress and time.monotonic() - started > _PATIENCE:
                advance = late.enter_context(progress_bar("Decoding", len(paths), start=len(shapes)))
    if file is not None:
        file.flush()
    return shapes, failures

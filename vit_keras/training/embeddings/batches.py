"""Pictures of any kind in batches, prepared in threads while a model computes."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from ...keras_internals import no_gradients
from ...vit import VisionTransformer
from ..checks import check_range
from ..data import pictures_in, report_damaged


class _Batch(NamedTuple):
    """Some pictures, or what became of them: one row each."""

    images: Any
    paths: Sequence[str] | None = None
    labels: Any = None


def _batches(images: Any, batch_size: int) -> tuple[Iterator[_Batch], int | None]:
    """The pictures in batches, and how many they are, where that is known."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is a positive integer. Received: {batch_size!r}")
    if hasattr(images, "paths") and hasattr(images, "labels"):
        paths, labels = [str(path) for path in images.paths], np.asarray(images.labels)
        return _slices(paths, batch_size, paths, labels), len(paths)
    if isinstance(images, (str, os.PathLike)):
        paths, labels = _files(images)
        return _slices(paths, batch_size, paths, labels), len(paths)
    if isinstance(images, tuple) and images and len(getattr(images[0], "shape", ())) == 4:
        labels = images[1] if len(images) > 1 else None
        return _slices(images[0], batch_size, labels=labels), len(images[0])
    if len(getattr(images, "shape", ())) == 4:
        return _slices(images, batch_size), len(images)
    if isinstance(images, keras.utils.PyDataset):
        return (_of_data_set(images[n]) for n in range(images.num_batches)), None
    if not isinstance(images, Iterable):
        raise TypeError(
            "images are a folder, an array (n, height, width, channels), pictures or a data set. "
            f"Received: {type(images).__name__}"
        )
    rest = iter(images)
    first = list(itertools.islice(rest, 1))
    everything = itertools.chain(first, rest)
    if first and (isinstance(first[0], (tuple, list, dict)) or len(getattr(first[0], "shape", ())) == 4):
        return map(_of_data_set, everything), None
    chunks = iter(lambda: list(itertools.islice(everything, batch_size)), [])
    return (_Batch(chunk, _names(chunk)) for chunk in chunks), len(images) if hasattr(images, "__len__") else None


def _slices(images: Any, size: int, paths: Any = None, labels: Any = None) -> Iterator[_Batch]:
    for n in range(0, len(images), size):
        yield _Batch(*(None if column is None else column[n : n + size] for column in (images, paths, labels)))


def _of_data_set(batch: Any) -> _Batch:
    images, *others = batch if isinstance(batch, (tuple, list)) else [batch]
    if len(getattr(images, "shape", ())) != 4:
        raise TypeError(
            "A batch of a data set is x or (x, y, …), with x (batch, height, width, channels): map the data set to that. "
            f"Received as x: {type(images).__name__}"
        )
    return _Batch(images, labels=others[0] if others and not isinstance(others[0], dict) else None)


def _names(pictures: Sequence[Any]) -> list[str] | None:
    names = [str(each) if isinstance(each, (str, os.PathLike)) else "" for each in pictures]
    return names if any(names) else None


def _files(images: str | os.PathLike[str]) -> tuple[list[str], np.ndarray | None]:
    """The pictures in a folder, and for each the subfolder that it is in, if all are in some; or the one picture."""
    folder = Path(images).expanduser()
    if not folder.is_dir():
        return [os.fspath(images)], None
    paths = pictures_in(folder)
    parts = [path.relative_to(folder).parts for path in paths]
    if not paths:
        raise ValueError(f"There are no pictures in {folder}.")
    labels = np.array([part[0] for part in parts]) if all(len(part) > 1 for part in parts) else None
    return [str(path) for path in paths], labels


def _run(
    tower: VisionTransformer, batches: Iterator[_Batch], prepare: Callable, total: Any, errors: str
) -> Iterator[_Batch]:
    """Features of batch after batch, float32; the next batches are prepared meanwhile."""
    shape, largest, done, checked = tower.input_shape[1:], 0, 0, False
    damaged: list[tuple[Path, str]] = []

    def read(batch: _Batch) -> tuple[_Batch, bool]:
        if isinstance(batch.images, list):
            try:
                return batch._replace(images=prepare(batch.images)), True
            except ValueError:
                if errors == "raise":
                    raise
                return _readable(batch, prepare, damaged), True
        images = np.asarray(keras.ops.convert_to_numpy(batch.images))
        whole = images.dtype.kind in "ui"
        return batch._replace(images=prepare(images) if whole else images.astype("float32")), whole

    with _progress_bar(total) as advance:
        for batch, prepared in _ahead(read, batches):
            images = batch.images
            if prepared and not len(images):  # all of them damaged
                continue
            if images.ndim != 4 or any(want not in (None, have) for want, have in zip(shape, images.shape[1:])):
                raise ValueError(f"The model takes images of {('batch', *shape)}. Received: {images.shape}")
            if not (prepared or checked):
                checked = True
                check_range(tower, images)
            count, largest = len(images), max(largest, len(images))
            if count < largest:  # JAX compiles for each size of a batch: let the last be as large as the others
                images = np.pad(images, [(0, largest - count), *[(0, 0)] * 3])
            with no_gradients():
                found = keras.ops.convert_to_numpy(tower(images, training=False))
            yield batch._replace(images=found[:count].astype("float32"))
            advance(count)
            done += count
    report_damaged(sorted(damaged), done + len(damaged), errors)
    if not done:
        raise ValueError("There are no images to embed.")


def _readable(batch: _Batch, prepare: Callable, damaged: list[tuple[Path, str]]) -> _Batch:
    """A batch of files without the damaged ones, which are noted."""
    images, kept = [], []
    for n, picture in enumerate(batch.images):
        try:
            images.append(prepare([picture])[0])
            kept.append(n)
        except ValueError as error:
            if not isinstance(picture, (str, os.PathLike)):
                raise
            damaged.append((Path(picture), str(error)))
    labels = None if batch.labels is None else batch.labels[kept]
    paths = None if batch.paths is None else [batch.paths[n] for n in kept]
    return _Batch(np.stack(images) if images else np.empty(0), paths, labels)


def _ahead(function: Callable, items: Iterable[Any], workers: int = 2) -> Iterator[Any]:
    """`map` in threads, which are never more than a few items ahead."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def _progress_bar(total: int | bool | None) -> Iterator[Callable[[int], None]]:
    if total is False:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("pictures", total=total)
        yield lambda count: bar.update(task, advance=count)


def _labels(rows: Sequence[_Batch]) -> np.ndarray | None:
    """All labels, or `None` where there are none."""
    if any(row.labels is None for row in rows):
        return None
    return np.concatenate([np.asarray(keras.ops.convert_to_numpy(row.labels)) for row in rows])

"""Images from any source in batches, prepared in threads while a model computes."""

from __future__ import annotations

import collections
import concurrent.futures
import itertools
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import keras
import numpy as np

from ..._internal.progress import progress_bar
from ..._internal.validate import expanded, positive_integer, received
from ...anatomy.inputs import front, image_shape
from ...anatomy.parts import find_vit
from ...preprocess import Preprocessing
from ..data.folder import images_in, report_unread
from ..data.table import is_table

__all__: list[str] = []


class Batch(NamedTuple):
    """Some images, `(batch, …)` or a list, or the outputs of a model for them; their files and labels, if known."""

    images: Any
    paths: Sequence[str] | None = None
    labels: Any = None


def slices(count: int, size: int) -> Iterator[slice]:
    """Yield the slice of each batch of this size out of `count` rows."""
    return (slice(n, min(n + size, count)) for n in range(0, count, size))


# --- where images come from -------------------------------------------------------------------------------------


_SOURCES = "images must be a folder, an array (n, height, width, channels), a list of images or a dataset."


def batches_of(images: Any, batch_size: int) -> tuple[Iterator[Batch], int | None]:
    """Return batches of images from any source that `embed` takes, and their number of images where it is known."""
    positive_integer(batch_size, "batch_size")
    if hasattr(images, "paths") and hasattr(images, "labels"):
        return batches_of_files([str(path) for path in images.paths], np.asarray(images.labels), batch_size)
    if is_table(images):
        raise TypeError(
            f"{_SOURCES} Received: {received(images)}. Pass training.image_table(table, …), or the paths in one of its "
            "columns: list(table['image'])"
        )
    if isinstance(images, (str, os.PathLike)):
        return batches_of_files(*files_in(images), batch_size)
    if isinstance(images, keras.utils.PyDataset):
        return (_as_batch(images[n]) for n in range(images.num_batches)), None
    if isinstance(images, tuple) and images and len(getattr(images[0], "shape", ())) == 4:
        pixels, *others = images
        return _cut(batch_size, pixels, labels=others[0] if others else None), len(pixels)
    if len(getattr(images, "shape", ())) == 4:
        return _cut(batch_size, images), len(images)
    if not isinstance(images, Iterable):
        raise TypeError(f"{_SOURCES} Received: {received(images)}")
    if len(shape := getattr(images, "shape", ())) == 3 and shape[-1] in (1, 3, 4):
        raise TypeError(f"images must be several. Received one, of shape {tuple(shape)}. Pass [image].")
    rest = iter(images)
    first = list(itertools.islice(rest, 1))
    everything = itertools.chain(first, rest)
    if first and (isinstance(first[0], (tuple, list, dict)) or len(getattr(first[0], "shape", ())) == 4):
        return map(_as_batch, everything), None
    chunks = iter(lambda: list(itertools.islice(everything, batch_size)), [])
    return (Batch(chunk, _names(chunk)) for chunk in chunks), len(images) if isinstance(images, Sized) else None


def batches_of_files(paths: list[str], labels: Any, batch_size: int) -> tuple[Iterator[Batch], int]:
    """Return batches of images in files, and the number of images."""
    return _cut(batch_size, paths, paths, labels), len(paths)


def files_in(images: str | os.PathLike[str]) -> tuple[list[str], np.ndarray | None]:
    """Return the images in a folder and the names of their subfolders (`None` unless each is in one), or one image."""
    folder = expanded(images)
    if not folder.is_dir():
        return [os.fspath(images)], None
    paths = images_in(folder)
    parts = [path.relative_to(folder).parts for path in paths]
    if not paths:
        raise ValueError(f"There are no images in {folder}.")
    labels = np.array([part[0] for part in parts]) if all(len(part) > 1 for part in parts) else None
    return [str(path) for path in paths], labels


def _cut(size: int, images: Any, paths: Any = None, labels: Any = None) -> Iterator[Batch]:
    for part in slices(len(images), size):
        yield Batch(*(None if column is None else column[part] for column in (images, paths, labels)))


def _as_batch(batch: Any) -> Batch:
    images, *others = batch if isinstance(batch, (tuple, list)) else [batch]
    if len(getattr(images, "shape", ())) != 4:
        raise TypeError(
            "A batch of a dataset must be x or (x, y, …), with x of shape (batch, height, width, channels). Map the "
            f"dataset to that. Received as x: {type(images).__name__}"
        )
    return Batch(images, labels=others[0] if others and not isinstance(others[0], dict) else None)


def _names(images: Sequence[Any]) -> list[str] | None:
    names = [str(each) if isinstance(each, (str, os.PathLike)) else "" for each in images]
    return names if any(names) else None


# --- through a model --------------------------------------------------------------------------------------------


def run_over(
    batches: Iterator[Batch],
    run: Callable[[np.ndarray], Any],
    prepare: Preprocessing,
    *,
    model: keras.Model,
    errors: str,
    total: int | None = None,
    progress: bool = False,
    check: Callable[[np.ndarray], None] | None = None,
) -> Generator[Batch, None, None]:
    """Yield each batch with the outputs of `run` as its images; `check` sees the first that is not prepared here."""
    shape, config = image_shape(model)[1:], getattr(find_vit(model), "config", None)
    least = (1, 1) if config is None or front(model) else config.stride  # one patch, if it sees the file
    largest, done, checked = 0, 0, False
    damaged: list[tuple[str, str]] = []

    def read(batch: Batch) -> tuple[Batch, bool]:
        """Return a batch with its images as float arrays of one shape each, and whether they were prepared here."""
        if isinstance(batch.images, list):
            batch = _prepared(batch, prepare, least, None if errors == "raise" else damaged)
            if len({each.shape for each in batch.images}) == 1:
                return batch._replace(images=[np.stack(batch.images)]), True
            return batch._replace(images=[each[None] for each in batch.images]), True
        images = np.asarray(keras.ops.convert_to_numpy(batch.images))
        if images.dtype.kind in "ui":
            return batch._replace(images=[prepare(images)]), True
        return batch._replace(images=[images.astype("float32")]), False

    with progress_bar("Embedding", total, show=progress) as advance:
        for batch, prepared in _ahead(read, batches):
            outputs = []
            for images in batch.images:
                if images.ndim != 4 or any(want not in (None, have) for want, have in zip(shape, images.shape[1:])):
                    raise ValueError(f"The model takes images of {('batch', *shape)}. Received: {images.shape}")
                if not (prepared or checked or check is None):
                    checked = True
                    check(images)
                largest = max(largest, len(images))
                outputs.append(run_filled(run, images, largest if len(batch.images) == 1 else len(images)))
            if not outputs:  # all of them damaged
                continue
            if len(shapes := sorted({output.shape[1:] for output in outputs})) > 1:
                raise ValueError(
                    f"Images of different sizes give outputs of different shapes, such as {shapes[0]} and {shapes[1]}. "
                    "Pass image_size=."
                )
            rows = np.concatenate(outputs)
            yield batch._replace(images=rows)
            advance(len(rows))
            done += len(rows)
    report_unread((), sorted(damaged), done + len(damaged), errors)
    if not done:
        raise ValueError("There are no images.")


def run_filled(run: Callable[[np.ndarray], Any], images: np.ndarray, size: int) -> np.ndarray:
    """Run a batch filled up to a size, because JAX compiles for each size; return the outputs in float32."""
    filled = images if len(images) == size else np.pad(images, [(0, size - len(images)), *[(0, 0)] * 3])
    return np.asarray(keras.ops.convert_to_numpy(run(filled)), "float32")[: len(images)]


def _prepared(
    batch: Batch, prepare: Preprocessing, least: tuple[int, int], damaged: list[tuple[str, str]] | None
) -> Batch:
    """Prepare each image of a batch; damaged files are noted and left out if there is a list for them."""
    images: list[np.ndarray] = []
    kept: list[int] = []
    for n, source in enumerate(batch.images):
        is_file = isinstance(source, (str, os.PathLike))
        try:
            image = prepare([source])[0]
            if min(have - need for have, need in zip(image.shape, least)) < 0:
                name, size = source if is_file else "An image", image.shape[:2]
                raise ValueError(f"{name} is smaller than one patch, {least} pixels. Its size is {size}.")
            images.append(image)
            kept.append(n)
        except (OSError, ValueError) as error:
            if damaged is None or not is_file:
                raise
            damaged.append((os.fspath(source), str(error)))
    labels = None if batch.labels is None else batch.labels[kept]
    paths = None if batch.paths is None else [batch.paths[n] for n in kept]
    return Batch(images, paths, labels)


def _ahead(function: Callable[..., Any], items: Iterable[Any], workers: int = 2) -> Iterator[Any]:
    """`map` in threads, which are never more than a few items ahead."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def joined_paths(rows: Sequence[Batch]) -> list[str] | None:
    """Return the paths of all images, or `None` where a batch has none."""
    paths = [row.paths for row in rows if row.paths is not None]
    return list(itertools.chain(*paths)) if len(paths) == len(rows) else None


def joined_labels(rows: Sequence[Batch]) -> np.ndarray | None:
    """Return the labels of all batches, or `None` where one has none."""
    if any(row.labels is None for row in rows):
        return None
    return np.concatenate([_plain(row.labels) for row in rows])


def _plain(labels: Any) -> np.ndarray:
    """Return labels as an array; those that are text, which TensorFlow and pandas have as objects, as strings."""
    labels = np.asarray(keras.ops.convert_to_numpy(labels))
    if labels.dtype.kind not in "OS" or not all(isinstance(each, (str, bytes)) for each in labels.flat):
        return labels
    text = [each.decode() if isinstance(each, bytes) else each for each in labels.flat]
    return np.array(text).reshape(labels.shape)

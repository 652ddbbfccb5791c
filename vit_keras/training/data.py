"""From a folder of pictures to `model.fit`: decoded once, the same batches whatever happens, and checked before training.

>>> from vit_keras import vit
>>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=5)
>>> train, validation = image_folder("flowers", model=model, validation_split=0.5, augmentation=Augmentation(), batch_size=5)
>>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
>>> model.fit(train, validation_data=validation, epochs=5, callbacks=train.callbacks)  # doctest: +SKIP
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from ..atomic import complete
from ..config import size_pair
from ..images import read
from ..layers import find_vit
from ..preprocess import GOOGLE, Preprocessing
from .augment import Augmentation
from .checks import class_weights

EXTENSIONS = (
    *(".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp", ".avif"),
)

_SPLITS = {"test", "testing", "train", "training", "val", "valid", "validation"}
_ROOM = 1.25  # how much larger than the model's input a picture is kept to cut random crops from
_BLOCK = 256  # pictures decoded between two writes
_FORMAT = 1  # of the files of the cache


def image_folder(
    path: str | os.PathLike[str],
    image_size: int | tuple[int, int] | None = None,
    *,
    model: keras.Model | None = None,
    preprocessing: Preprocessing | None = None,
    batch_size: int = 32,
    validation_split: float | None = None,
    seed: int = 0,
    shuffle: bool | None = None,
    augmentation: Augmentation | None = None,
    errors: str = "raise",
    label_mode: str = "int",
    class_names: Sequence[str] | None = None,
    cache: str | bool | os.PathLike[str] = "auto",
    workers: int = 2,
    progress: bool = True,
) -> ImageFolder | tuple[ImageFolder, ImageFolder]:
    """A folder of pictures, PATH/class/picture.jpg, as a dataset for `fit`, `evaluate` and `predict` on any backend.

    Every picture is decoded once, at the start, which finds the damaged ones; what is kept are pixels in 8 bits in a file
    that is mapped into memory. Pictures of a validation set, and those without a random crop, are resized exactly as
    the model's preprocessing does. In folders of classes, folders may be nested; files that are no pictures, and hidden ones,
    are left alone.

    Args:
        path: The folder, with one folder for each class.
        image_size: `(height, width)` or one integer; of the model or the preprocessing unless given.
        model: The model to train, which knows its image size and preprocessing.
        preprocessing: How the pictures become the model's input; of the model unless given, else Google's (to [-1, 1]).
        batch_size: Pictures in a batch; the last one may have fewer.
        validation_split: Share of every class to hold out. The split depends on the seed and the names of the files only,
            not on their order on disk; a class of a single picture stays in the training set.
        seed: Where all that is random comes from.
        shuffle: `True`: a new order in every epoch. `False`: the order of the names. `None`: a training set, which is
            one with an augmentation or the first of a split, as `True`; the second of a split as `False`; any other
            is mixed once, here, so that `paths` and `labels` are in the order of what `predict` returns.
        augmentation: What happens to the pictures of the training set, never to those of the second of a split.
        errors: `"raise"`: damaged pictures and empty classes are errors. `"skip"`: they are left out, with a warning.
        label_mode: `"int"`: int32 class numbers. `"categorical"`: float32 one-hot. Mixup and cutmix make it the latter.
        class_names: The folders of classes, in the order of the model's outputs. Otherwise all of them, sorted by
            name, or by number if all names are integers.
        cache: `"auto"`: keep the pixels in a temporary file, which vanishes with the dataset, unless it needs more than
            half of the free space. A folder: keep them there for the next time. `False`: decode in every epoch.
        workers: Threads that prepare the next batches; 0: none.
        progress: Show a bar when decoding takes more than a few seconds.

    Returns:
        An `ImageFolder`, or with `validation_split` two: training and validation.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: It has no classes or no pictures, one of them is damaged (which is named), or an argument is wrong.

    Warns:
        UserWarning: Pictures or classes were left out, or a training set has fewer pictures than go into a batch.

    Example:
        >>> data = image_folder("flowers", 128, shuffle=False)
        >>> data.class_names
        ('daisy', 'dandelion', 'rose', 'sunflower', 'tulip')
    """
    _check_choices(batch_size, validation_split, errors, label_mode, workers)
    preprocessing = preprocessing or _preprocessing_of(model)
    size = _image_size(image_size, model, preprocessing)
    names, paths, labels = _list(Path(path).expanduser(), class_names, errors)
    if validation_split is not None:
        training, validation = _split(labels, validation_split, seed)
        roles = [(training, augmentation, shuffle is not False), (validation, None, False)]
    else:
        everything, shuffled = np.arange(len(paths)), bool(augmentation) if shuffle is None else shuffle
        if shuffle is None and not shuffled:
            everything = np.random.default_rng(seed).permutation(everything)
        roles = [(everything, augmentation, shuffled)]
    sources = []
    for part, applied, _ in roles:
        decoder = _Decoder(preprocessing, size, roomy=bool(applied and applied.crop))
        sources.append(_source([paths[i] for i in part], decoder, cache, workers, progress))
    report_damaged([failure for source in sources for failure in source.failures.items()], len(paths), errors)
    datasets = []
    for (part, applied, shuffled), source in zip(roles, sources):
        good = np.array([n for n, path in enumerate(source.paths) if path not in source.failures], "int64")
        dataset = ImageFolder(
            source.select(good),
            labels[part[good]],
            names,
            preprocessing=preprocessing.replace(image_size=size),
            batch_size=batch_size,
            seed=seed,
            shuffle=shuffled,
            augmentation=applied,
            one_hot=label_mode == "categorical" or bool(augmentation and augmentation.mixes),
            workers=workers,
        )
        datasets.append(dataset)
    return datasets[0] if validation_split is None else tuple(datasets)


class ImageFolder(keras.utils.PyDataset):
    """Pictures in folders as batches `(inputs, labels)`; made by `image_folder`.

    The batch of a number, an epoch and a seed is always the same, whatever the number of threads, and also where a run is
    continued, as long as the dataset knows the epoch: pass `callbacks=[*recipe.callbacks, *data.callbacks]` to `fit`.
    Without them, epochs are counted from the first that this object has served. `fit` with its `shuffle=True` asks for batches
    in an order of Python's global random numbers; they are handed out in this dataset's own order instead.

    Attributes:
        class_names: The names of the classes.
        paths: The files, in the order of `labels`.
        labels: int32 class numbers.
        counts: Pictures of each class.
        class_weight: For `fit`: what makes all classes weigh the same, `{class: weight}`. Before 3.8, Keras ignores
            `fit(class_weight=…)` for datasets like this one.
        image_size: `(height, width)`.
        preprocessing: How the pictures become the model's input.
        epoch: The epoch whose batches are served.
    """

    def __init__(
        self,
        pictures: _Pictures,
        labels: np.ndarray,
        class_names: Sequence[str],
        *,
        preprocessing: Preprocessing,
        batch_size: int,
        seed: int,
        shuffle: bool,
        augmentation: Augmentation | None,
        one_hot: bool,
        workers: int,
    ):
        super().__init__()  # Keras' own threads would carry batches over from the building of a model into the first epoch
        self.paths = tuple(pictures.paths)
        self.labels = np.asarray(labels, "int32")
        self.class_names = tuple(class_names)
        self.preprocessing, self.augmentation = preprocessing, augmentation
        self.batch_size, self.seed, self.shuffle, self.one_hot = batch_size, seed, shuffle, one_hot
        self.threads = workers
        self.epoch = 0
        self._pictures = pictures
        self._ahead: _ReadAhead | None = None
        if shuffle and batch_size > len(self.paths):
            warnings.warn(
                f"batch_size={batch_size}, but there are only {len(self.paths)} pictures: an epoch is one step of all.",
                UserWarning,
                stacklevel=3,
            )

    @property
    def image_size(self) -> tuple[int, int]:
        """`(height, width)` of the inputs."""
        return self.preprocessing.image_size

    @property
    def counts(self) -> np.ndarray:
        """How many pictures each class has."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def class_weight(self) -> dict[int, float]:
        """Weights for `fit(class_weight=…)` that make all classes weigh the same."""
        return class_weights(self.labels)

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """For `fit`: what tells this dataset the epoch, also where a run is continued."""
        return [SetEpoch(self)]

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        index = range(len(self))[index]
        return self._batch(self.epoch, index) if self._ahead is None else self._ahead.get(index)

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        ahead = _ReadAhead(self, self.epoch)
        try:
            yield from map(ahead.get, range(len(self)))
        finally:
            ahead.close()

    def on_epoch_begin(self) -> None:
        self._close()
        self._ahead = _ReadAhead(self, self.epoch)

    def on_epoch_end(self) -> None:
        if self._close():
            self.epoch += 1

    def _close(self) -> bool:
        """Stop reading ahead; whether the epoch was served to its end."""
        ahead, self._ahead = self._ahead, None
        return ahead is not None and ahead.close()

    def _batch(self, epoch: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        order = np.arange(len(self.paths))
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(order)
        chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
        labels = self.labels[chosen]
        if self.one_hot:
            labels = np.eye(len(self.class_names), dtype="float32")[labels]
        pixels = [self._pictures[i] for i in chosen]
        if self.augmentation is None:
            return self._normalise(np.stack(pixels)), labels
        rngs = [np.random.default_rng([self.seed, epoch, 1, i]) for i in chosen]
        images = np.stack([self.augmentation.picture(p, self.image_size, rng) for p, rng in zip(pixels, rngs)])
        images, labels = self.augmentation.batch(images, labels, np.random.default_rng([self.seed, epoch, 2, index]))
        return self._normalise(images), labels

    def _normalise(self, pixels: np.ndarray) -> np.ndarray:
        """`preprocessing.normalise` in float32 and in place, which is several times faster."""
        std = np.array(self.preprocessing.std)
        inputs = pixels.astype("float32")
        inputs *= (1 / (255 * std)).astype("float32")
        inputs -= (self.preprocessing.mean / std).astype("float32")
        return inputs

    def pixels(self, index: int) -> np.ndarray:
        """Picture `index`, of `paths[index]`, as the model sees it in evaluation.

        Returns:
            uint8 `(height, width, channels)`.
        """
        return self._pictures.plain(range(len(self.paths))[index])

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """All pictures, not augmented, and their labels, in the order of `paths`.

        Returns:
            float32 `(n, height, width, channels)` as the model takes it, and the labels as batches have them.
        """
        inputs = np.stack([self._normalise(self.pixels(i)) for i in range(len(self.paths))])
        labels = np.eye(len(self.class_names), dtype="float32")[self.labels] if self.one_hot else self.labels
        return inputs, labels


class SetEpoch(keras.callbacks.Callback):
    """Tells a dataset the number of the epoch, also after `fit(initial_epoch=…)` and `BackupAndRestore`.

    Args:
        data: Anything with an attribute `epoch`.
    """

    def __init__(self, data: Any):
        super().__init__()
        self.data = data

    def on_epoch_begin(self, epoch, logs=None):
        self.data.epoch = epoch


class _ReadAhead:
    """The batches of one epoch in the dataset's order, the next ones prepared in threads while one is used.

    Whichever number is asked for first gets the first batch, and so on; one asked for again gets its own again.
    """

    def __init__(self, data: ImageFolder, epoch: int):
        self.data, self.epoch = data, epoch
        self.place: dict[int, int] = {}
        self.waiting: dict[int, Future] = {}
        self.submitted = 0
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(data.threads, "vit_keras-data") if data.threads else None

    def get(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        with self.lock:
            place = self.place.setdefault(index, len(self.place))
            while self.pool and self.submitted < min(place + self.data.threads + 2, len(self.data)):
                self.waiting[self.submitted] = self.pool.submit(self.data._batch, self.epoch, self.submitted)
                self.submitted += 1
            future = self.waiting.pop(place, None)
        return future.result() if future else self.data._batch(self.epoch, place)

    def close(self) -> bool:
        """Forget what nobody waits for; whether all batches were asked for."""
        with self.lock:
            if self.pool:
                self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool, self.waiting = None, {}
            return len(self.place) == len(self.data)


class _Decoder:
    """A file becomes pixels: `plain`, as the preprocessing does in evaluation, or with room for random crops."""

    def __init__(self, preprocessing: Preprocessing, size: tuple[int, int], roomy: bool):
        self.preprocessing = preprocessing.replace(mean=0.0, std=1 / 255)  # which leaves pixels as they are
        self.size, self.roomy = size, roomy
        self.shortest = math.ceil(_ROOM * max(size))

    def __call__(self, path: Path) -> np.ndarray:
        return self.with_room(path) if self.roomy else self.plain(path)

    def plain(self, path: Path) -> np.ndarray:
        return np.rint(self.preprocessing(path, self.size)[0]).astype("uint8")

    def with_room(self, path: Path) -> np.ndarray:
        """The whole picture, upright; a large one reduced, of which JPEG decodes no more than is needed."""
        try:
            with Image.open(path) as image:
                image.draft(None, (self.shortest,) * 2)
                pixels = read(image, None)
        except (OSError, ValueError) as error:
            raise ValueError(f"An error occurred reading {path}: {error}") from None
        height, width = pixels.shape[:2]
        if min(height, width) > self.shortest:
            scale = self.shortest / min(height, width)
            smaller = (max(1, round(width * scale)), max(1, round(height * scale)))
            pixels = np.asarray(Image.fromarray(pixels).resize(smaller, Image.Resampling.BOX))
        if self.preprocessing.channels == 1:
            pixels = np.asarray(Image.fromarray(pixels).convert("L"))[..., None]
        return pixels

    def bytes(self) -> int:
        """About how many a picture takes, at most."""
        height, width = (self.shortest, 1.5 * self.shortest) if self.roomy else self.size
        return int(height * width * self.preprocessing.channels)

    def key(self) -> str:
        return json.dumps([_FORMAT, self.roomy, self.size, self.preprocessing.to_dict()])


class _Pictures:
    """The pixels of files by number: mapped into memory where they are kept, or decoded anew."""

    def __init__(self, paths: list[Path], decoder: _Decoder, decoded: _Decoded, store: np.ndarray | None):
        self.paths, self.decoder, self.store, self.failures = paths, decoder, store, decoded.failures
        self.shapes = decoded.shapes
        self.starts = np.cumsum([0, *(math.prod(shape) for shape in decoded.shapes)], dtype="int64")[:-1]

    def select(self, numbers: np.ndarray) -> _Pictures:
        """These pictures only, in this order."""
        chosen = copy.copy(self)
        chosen.paths, chosen.shapes = [self.paths[n] for n in numbers], [self.shapes[n] for n in numbers]
        chosen.starts = self.starts[numbers]
        return chosen

    def __getitem__(self, index: int) -> np.ndarray:
        if self.store is None:
            return self.decoder(self.paths[index])
        start, shape = self.starts[index], self.shapes[index]
        return np.asarray(self.store[start : start + math.prod(shape)]).reshape(shape)

    def plain(self, index: int) -> np.ndarray:
        return self.decoder.plain(self.paths[index]) if self.decoder.roomy else self[index]


@dataclasses.dataclass
class _Decoded:
    """What came of decoding files: the shape of each, which is (0,) of a damaged one, and what is wrong with those."""

    shapes: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    failures: dict[Path, str] = dataclasses.field(default_factory=dict)


def _source(paths: list[Path], decoder: _Decoder, cache: Any, workers: int, progress: bool) -> _Pictures:
    """Decode all files once: into a file, or, with `cache=False`, only to see whether they are whole."""
    if cache == "auto":
        needed, free = decoder.bytes() * len(paths), shutil.disk_usage(tempfile.gettempdir()).free
        if needed > free / 2:
            warnings.warn(
                f"The pixels of {len(paths):,} pictures may need {needed / 1e9:.0f} GB, and {tempfile.gettempdir()} has "
                f"{free / 1e9:.0f} GB: they are decoded in every epoch instead. cache=FOLDER keeps them elsewhere.",
                UserWarning,
                stacklevel=3,
            )
            cache = False
    if cache is False:
        return _Pictures(paths, decoder, _decode_all(paths, decoder, None, workers, progress), None)
    if cache != "auto":
        return _kept(paths, decoder, Path(cache).expanduser(), workers, progress)
    file = tempfile.TemporaryFile(prefix="vit_keras-")  # noqa: SIM115  (it lives as long as the array mapped to it)
    decoded = _decode_all(paths, decoder, file, workers, progress)
    return _Pictures(paths, decoder, decoded, _mapped(file, decoded))


def _kept(paths: list[Path], decoder: _Decoder, folder: Path, workers: int, progress: bool) -> _Pictures:
    """The pixels in a folder, under a name that changes with the files and with what is done to them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [(str(path.resolve()), (info := path.stat()).st_size, info.st_mtime_ns) for path in paths]
    key = hashlib.sha256((decoder.key() + json.dumps(files)).encode()).hexdigest()[:32]
    pixels, index = folder / f"{key}.pixels", folder / f"{key}.json"
    if not (pixels.exists() and index.exists()):
        with complete(pixels) as part, open(part, "wb") as file:
            decoded = _decode_all(paths, decoder, file, workers, progress)
        failures = [[paths.index(path), text] for path, text in decoded.failures.items()]
        with complete(index) as part:
            part.write_text(json.dumps({"shapes": decoded.shapes, "failures": failures}), encoding="utf-8")
    found = json.loads(index.read_text(encoding="utf-8"))
    decoded = _Decoded(list(map(tuple, found["shapes"])), {paths[n]: text for n, text in found["failures"]})
    return _Pictures(paths, decoder, decoded, _mapped(pixels, decoded))


def _mapped(file: Any, decoded: _Decoded) -> np.ndarray:
    return np.memmap(file, "uint8", "r") if any(map(math.prod, decoded.shapes)) else np.empty(0, "uint8")


def _decode_all(paths: list[Path], decoder: _Decoder, file: Any, workers: int, progress: bool) -> _Decoded:
    """Decode all files and write their pixels one after another, if there is a file for them."""

    def attempt(path: Path) -> np.ndarray | str:
        try:
            return decoder(path)
        except (ValueError, OSError) as error:
            return str(error)

    decoded, bar, started = _Decoded(), None, time.monotonic()
    with ThreadPoolExecutor(max(1, workers)) as pool:
        for first in range(0, len(paths), _BLOCK):
            block = paths[first : first + _BLOCK]
            for path, result in zip(block, pool.map(attempt, block)):
                if isinstance(result, str):
                    decoded.failures[path] = result
                elif file is not None:
                    file.write(np.ascontiguousarray(result))
                decoded.shapes.append((0,) if isinstance(result, str) else result.shape)
            if bar is None and progress and time.monotonic() - started > 3:
                print(f"Decoding {len(paths):,} pictures")
                bar = keras.utils.Progbar(len(paths), unit_name="picture")
            if bar is not None:
                bar.update(len(decoded.shapes))
    if file is not None:
        file.flush()
    return decoded


def _check_choices(batch_size: Any, validation_split: Any, errors: str, label_mode: str, workers: Any) -> None:
    for name, value, least in (("batch_size", batch_size, 1), ("workers", workers, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}. Received: {value!r}")
    if validation_split is not None and not 0 < validation_split < 1:
        raise ValueError(f"validation_split is None or a share between 0 and 1. Received: {validation_split!r}")
    for name, value, choices in (
        ("errors", errors, ("raise", "skip")),
        ("label_mode", label_mode, ("int", "categorical")),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be {choices[0]!r} or {choices[1]!r}. Received: {value!r}")


def _preprocessing_of(model: keras.Model | None) -> Preprocessing:
    return GOOGLE if model is None else getattr(find_vit(model), "preprocessing", GOOGLE)


def _image_size(image_size: Any, model: keras.Model | None, preprocessing: Preprocessing) -> tuple[int, int]:
    if image_size is not None:
        return size_pair(image_size, "image_size")
    own = tuple(model.input_shape[1:3]) if model is not None else (None,)
    size = preprocessing.image_size if None in own else own
    if size is None:
        raise ValueError("Say image_size, such as 224: neither a model nor the preprocessing tells it.")
    return size


def _list(path: Path, class_names: Sequence[str] | None, errors: str) -> tuple[tuple[str, ...], list[Path], np.ndarray]:
    """Names of the classes, files and labels, sorted."""
    if not path.is_dir():
        raise FileNotFoundError(f"There is no folder {path}.")
    folders = sorted(p.name for p in path.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))
    if all(re.fullmatch(r"[0-9]+", name) for name in folders):
        folders.sort(key=int)
    if not folders:
        raise ValueError(f"{path} has no folders of classes. Pictures are expected in PATH/class/picture.jpg.")
    if _SPLITS.issuperset(name.lower() for name in folders):
        raise ValueError(f"{path} has the folders {_some(folders)}, which are no classes: give one of them as path.")
    names = tuple(folders if class_names is None else class_names)
    unknown = sorted(set(folders) - set(names))
    missing = [name for name in names if name not in folders]
    if unknown or len(set(names)) < len(names):
        raise ValueError(
            f"class_names is to have each folder of {path} once"
            + (f"; {_some(unknown)} is not in it." if unknown else f". Received: {_some(names)}")
        )
    files = {name: pictures_in(path / name) if name not in missing else [] for name in names}
    empty = [name for name in names if not files[name]]
    if empty and (errors == "raise" or len(empty) == len(names)):
        raise ValueError(
            f"There is no picture of {_some(empty)} in {path}"
            + ("." if len(empty) == len(names) else ': remove the folder, or use errors="skip".')
        )
    if empty:
        warnings.warn(f"There is no picture of {_some(empty)} in {path}: left out.", UserWarning, stacklevel=3)
        names = names if class_names is not None else tuple(name for name in names if files[name])
    if len(names) < 2:
        raise ValueError(f"{path} has one class only, {_some(names)}: nothing can be learned from it.")
    labels = np.repeat(np.arange(len(names), dtype="int32"), [len(files[name]) for name in names])
    return names, [file for name in names for file in files[name]], labels


def pictures_in(folder: Path) -> list[Path]:
    """All pictures below a folder, in the order of their names whatever the file system's."""
    found = (
        Path(place, name)
        for place, folders, names in os.walk(folder)
        for name in names
        if not name.startswith(".") and name.lower().endswith(EXTENSIONS)
    )
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _split(labels: np.ndarray, share: float, seed: int) -> list[np.ndarray]:
    """Numbers of the pictures for training and for validation, the same share of each class."""
    held_out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(share * len(members))), len(members) - 1)
        held_out[np.random.default_rng([seed, int(label)]).permutation(members)[:count]] = True
    if not held_out.any():
        raise ValueError("Every class has a single picture: there is nothing to hold out for validation.")
    return [np.flatnonzero(~held_out), np.flatnonzero(held_out)]


def report_damaged(failures: list[tuple[Path, str]], pictures: int, errors: str) -> None:
    """Refuse damaged pictures, or warn of them.

    Args:
        failures: The damaged files, and what is wrong with each.
        pictures: How many there are in all, damaged or not.
        errors: `"raise"` to refuse them, `"skip"` to warn.

    Raises:
        ValueError: They are refused, or there are no others.

    Warns:
        UserWarning: They are left out.

    Example:
        >>> report_damaged([], 3, "raise")
    """
    if failures and (errors == "raise" or len(failures) == pictures):
        (path, text), others = failures[0], len(failures) - 1
        text = text if str(path) in text else f"{path}: {text}"
        more = f" There {'is 1' if others == 1 else f'are {others:,}'} more." if others else ""
        raise ValueError(f'{text.rstrip(".")}.{more} errors="skip" leaves damaged pictures out.')
    if failures:
        names = _some([str(path) for path, _ in failures])
        plural = "pictures are" if len(failures) > 1 else "picture is"
        warnings.warn(f"{len(failures):,} damaged {plural} left out: {names}.", UserWarning, stacklevel=3)


def _some(names: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most:,} more" if len(names) > most else "")

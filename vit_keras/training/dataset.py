"""A folder of images as a dataset for `model.fit`: decoded once, reproducible batch by batch, checked before training.

>>> from vit_keras import vit
>>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=5)
>>> train, validation = image_folder(
...     "flowers", model=model, validation_split=0.5, augmentation=Augmentation(), batch_size=5
... )
>>> model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
>>> model.fit(train, validation_data=validation, epochs=5, callbacks=train.callbacks)  # doctest: +SKIP
"""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .. import anatomy
from ..config import size_pair
from ..preprocess import GOOGLE, Preprocessing
from ..validate import one_of, positive_integer
from .augment import Augmentation
from .checks import class_weights
from .decoding import Decoder, Pictures, decoded_pictures, report_damaged
from .listing import list_classes, split

__all__ = ["ImageFolder", "SetEpoch", "image_folder"]


def image_folder(
    path: str | os.PathLike[str],
    image_size: int | tuple[int, int] | str | None = "native",
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
    """Read a folder of images, PATH/class/image.jpg, as a dataset for `fit`, `evaluate` and `predict` on any backend.

    Every image is decoded once, at the start, which finds the damaged ones. Its pixels are kept in 8 bits, in a file
    that is mapped into memory. Images of a validation set, and those without a random crop, are resized exactly as the
    model's preprocessing does it. Folders inside the folder of a class count too. Hidden files, and files that are no
    images, are ignored.

    A model that normalizes its inputs itself (with `Rescaling`, `Preprocess` or other operations before its ViT) is
    given pixels. One that also resizes images of any size is given all images in the one size that its own resizing
    leaves as it is: that of its ViT or, where the model crops, the larger one before the crop
    (`anatomy.batch_preprocessing_of`).

    Args:
        path: The folder, with one folder for each class.
        image_size: `(height, width)` or one integer. `"native"` or `None`: the model's, else the preprocessing's.
        model: The model to train. It determines image size and preprocessing.
        preprocessing: How an image becomes an input of the model. `None`: the model's own; without a model Google's, to
            [-1, 1].
        batch_size: Images in a batch. The last batch may have fewer.
        validation_split: Fraction of every class to hold out. The split depends only on the seed and on the names of
            the files, not on their order on disk. A class of a single image stays in the training set.
        seed: Seed of everything random.
        shuffle: `True`: a new order in every epoch. `False`: the order of the names. `None`: `True` for a training
            set, which is one with an augmentation, or the first of a split; `False` for the second of a split. Any
            other dataset is shuffled once, here, so that `paths` and `labels` are in the order of what `predict`
            returns.
        augmentation: Augmentation of the training images. The second dataset of a split never has it.
        errors: `"raise"`: damaged images and empty classes are errors. `"skip"`: they are left out, with a warning.
        label_mode: `"int"`: int32 class numbers. `"categorical"`: float32 one-hot; always so with mixup and cutmix.
        class_names: The folders of classes, in the order of the model's outputs. `None`: all of them, sorted by name,
            or by number if all names are integers.
        cache: `"auto"`: keep the pixels in a temporary file, which is removed with the dataset, unless it needs more
            than half of the free space. A folder: keep them there for the next time. `False`: decode in every epoch.
        workers: Threads that prepare the next batches; 0 for none.
        progress: Whether to show a bar, on standard error, when decoding takes more than a few seconds.

    Returns:
        An `ImageFolder`; with `validation_split` two: training and validation.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The folder has no classes or no images, an image is damaged (the error names it), or an argument is
            wrong.

    Warns:
        UserWarning: Images or classes were left out, or a training set has fewer images than a batch.

    Example:
        >>> data = image_folder("flowers", 128, shuffle=False)
        >>> data.class_names
        ('daisy', 'dandelion', 'rose', 'sunflower', 'tulip')
    """
    _check_choices(batch_size, validation_split, errors, label_mode, workers)
    preprocessing = _preprocessing_for(model, preprocessing, image_size)
    names, paths, labels = list_classes(Path(path).expanduser(), class_names, errors)
    if validation_split is not None:
        training, validation = split(labels, validation_split, seed)
        roles = [(training, augmentation, shuffle is not False), (validation, None, False)]
    else:
        everything, shuffled = np.arange(len(paths)), bool(augmentation) if shuffle is None else shuffle
        if shuffle is None and not shuffled:
            everything = np.random.default_rng(seed).permutation(everything)
        roles = [(everything, augmentation, shuffled)]
    sources = []
    for part, applied, _ in roles:
        decoder = Decoder(preprocessing, roomy=bool(applied and applied.crop))
        sources.append(decoded_pictures([paths[i] for i in part], decoder, cache, workers, progress))
    report_damaged([failure for source in sources for failure in source.failures.items()], len(paths), errors)
    datasets = []
    for (part, applied, shuffled), source in zip(roles, sources):
        good = np.array([n for n, path in enumerate(source.paths) if path not in source.failures], "int64")
        dataset = ImageFolder(
            source.select(good),
            labels[part[good]],
            names,
            preprocessing=preprocessing,
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
    """The images of a folder in batches `(inputs, labels)`; made by `image_folder`.

    Number, epoch and seed determine a batch, whatever the number of threads, also in a run that is continued. For that
    the dataset must know the epoch: pass `callbacks=[*recipe.callbacks, *data.callbacks]` to `fit`. Without them,
    epochs are counted from the first that this object has served. With `shuffle=True`, `fit` asks for batches in an
    order of Python's global random numbers; they are served in this dataset's own order instead.

    Attributes:
        class_names: The names of the classes.
        paths: The files, in the order of `labels`.
        labels: int32 class numbers.
        counts: Number of images of each class.
        class_weight: `{class: weight}` for `fit(class_weight=…)`, which makes all classes count the same. Keras before
            3.8 ignores it for datasets like this one.
        image_size: `(height, width)` of the inputs.
        preprocessing: How an image becomes an input of the model.
        epoch: The epoch whose batches are served.
    """

    def __init__(
        self,
        pictures: Pictures,
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
        super().__init__()  # Keras' own threads would keep batches from building the model for the first epoch
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
                f"batch_size={batch_size}, but there are only {len(self.paths)} images: an epoch is one step.",
                UserWarning,
                stacklevel=3,
            )

    @property
    def image_size(self) -> tuple[int, int]:
        """`(height, width)` of the inputs."""
        return self.preprocessing.image_size

    @property
    def counts(self) -> np.ndarray:
        """Number of images of each class."""
        return np.bincount(self.labels, minlength=len(self.class_names))

    @property
    def class_weight(self) -> dict[int, float]:
        """Weights for `fit(class_weight=…)` that make all classes count the same."""
        return class_weights(self.labels)

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Callbacks for `fit` that tell this dataset the epoch, also in a run that is continued."""
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
        """Stop reading ahead. Return whether the epoch was served to its end."""
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
            return self._normalize(np.stack(pixels)), labels
        rngs = [np.random.default_rng([self.seed, epoch, 1, i]) for i in chosen]
        images = np.stack([self.augmentation.picture(p, self.image_size, rng) for p, rng in zip(pixels, rngs)])
        images, labels = self.augmentation.batch(images, labels, np.random.default_rng([self.seed, epoch, 2, index]))
        return self._normalize(images), labels

    def _normalize(self, pixels: np.ndarray) -> np.ndarray:
        """Like `preprocessing.normalize`, in float32 and in place, which is several times faster."""
        std = np.array(self.preprocessing.std)
        inputs = pixels.astype("float32")
        inputs *= (1 / (255 * std)).astype("float32")
        inputs -= (self.preprocessing.mean / std).astype("float32")
        return inputs

    def pixels(self, index: int) -> np.ndarray:
        """Return image `index`, of `paths[index]`, in 8 bits, as the model sees it in evaluation.

        Returns:
            uint8 `(height, width, channels)`.
        """
        return self._pictures.plain(range(len(self.paths))[index])

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all images, without augmentation, and their labels, in the order of `paths`.

        Returns:
            The model's inputs, float32 `(n, height, width, channels)`, and the labels in the form of the batches'.
        """
        inputs = np.stack([self._normalize(self.pixels(i)) for i in range(len(self.paths))])
        labels = np.eye(len(self.class_names), dtype="float32")[self.labels] if self.one_hot else self.labels
        return inputs, labels


class SetEpoch(keras.callbacks.Callback):
    """A callback that tells a dataset the epoch, also after `fit(initial_epoch=…)` and `BackupAndRestore`.

    Args:
        data: Anything with an attribute `epoch`.
    """

    def __init__(self, data: Any):
        super().__init__()
        self.data = data

    def on_epoch_begin(self, epoch, logs=None):
        self.data.epoch = epoch


class _ReadAhead:
    """The batches of one epoch in the dataset's order. Threads prepare the next ones while one is used.

    The first number that is asked for gets the first batch, and so on. A number asked for again gets its own batch
    again.
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
        """Drop the batches that nobody waits for. Return whether all batches were asked for."""
        with self.lock:
            if self.pool:
                self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool, self.waiting = None, {}
            return len(self.place) == len(self.data)


def _check_choices(batch_size: Any, validation_split: Any, errors: str, label_mode: str, workers: Any) -> None:
    positive_integer(batch_size, "batch_size")
    positive_integer(workers, "workers", least=0)
    if validation_split is not None and not 0 < validation_split < 1:
        raise ValueError(f"validation_split must be None or a fraction between 0 and 1. Received: {validation_split!r}")
    one_of(errors, "errors", ("raise", "skip"))
    one_of(label_mode, "label_mode", ("int", "categorical"))


def _preprocessing_for(
    model: keras.Model | None, preprocessing: Preprocessing | None, image_size: Any
) -> Preprocessing:
    """What makes of an image an input of the model, with a size."""
    given = None if image_size in (None, "native") else size_pair(image_size, "image_size")
    if preprocessing is None:
        preprocessing = GOOGLE if model is None else anatomy.batch_preprocessing_of(model)
        size = preprocessing.image_size
    else:
        fixed = (None,) if model is None else tuple(model.input_shape[1:3])
        size = preprocessing.image_size if None in fixed else fixed
    if given is None and size is None:
        raise ValueError("Pass image_size=, such as 224: neither a model nor the preprocessing has a size of its own.")
    return preprocessing.replace(image_size=given or size)

"""Images with labels as a dataset for `model.fit`: decoded once, reproducible by batch, checked before training."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import keras
import numpy as np

from ..._internal.validate import Share, one_of, positive_integer, size_pair
from ..._internal.warn import warn_caller
from ...anatomy.inputs import batch_preprocessing_of
from ...preprocess import GOOGLE, Preprocessing
from ..checks import class_weights
from .augment import Augmentation
from .decoding import DecodedImages, Decoder, decode_images
from .folder import Labeled, check_share, read_folder, report_unread, split
from .read_ahead import ReadAhead, SetEpoch

__all__ = ["ImageFolder", "SetEpoch", "image_folder", "preprocessing_for"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """How images become batches; see `image_folder`."""

    image_size: int | tuple[int, int] | str | None = "native"
    model: keras.Model | None = None
    preprocessing: Preprocessing | None = None
    batch_size: int = 32
    seed: int = 0
    shuffle: bool | None = None
    augmentation: Augmentation | None = None
    errors: str = "raise"
    cache: str | bool | os.PathLike[str] = "auto"
    workers: int = 2
    progress: bool = True

    def __post_init__(self) -> None:
        positive_integer(self.batch_size, "batch_size")
        positive_integer(self.workers, "workers", least=0)
        one_of(self.errors, "errors", ("raise", "skip"))


def image_folder(
    path: str | os.PathLike[str],
    image_size: int | tuple[int, int] | str | None = "native",
    *,
    model: keras.Model | None = None,
    preprocessing: Preprocessing | None = None,
    batch_size: int = 32,
    validation_split: Share | None = None,
    seed: int = 0,
    shuffle: bool | None = None,
    augmentation: Augmentation | None = None,
    errors: Literal["raise", "skip"] = "raise",
    class_names: Sequence[str] | None = None,
    cache: str | bool | os.PathLike[str] = "auto",
    workers: int = 2,
    progress: bool = True,
) -> ImageFolder | tuple[ImageFolder, ImageFolder]:
    """Read a folder of images, PATH/class/image.jpg, as a dataset for `fit`, `evaluate` and `predict` on any backend.

    Every image is decoded once, at the start, which finds the damaged ones. Its pixels are kept in 8 bits, in a file
    that is mapped into memory. Images of a validation set, and those without a random crop, are resized exactly as the
    model's preprocessing does it. Folders inside the folder of a class count too. Hidden files, and files that are not
    images, are ignored.

    A model that normalizes its inputs itself (with `Rescaling`, `Preprocess` or other operations before its ViT) is
    given pixels; one that also resizes them, in the one size that its own resizing leaves as it is.

    Args:
        path: The folder, with one folder for each class.
        image_size: Pixels, `(height, width)` or one integer; `"native"` or `None`: the model's. Without a model, it is
            the preprocessing's.
        model: The model to train. It determines image size and preprocessing.
        preprocessing: How an image becomes an input of the model. `None`: the model's own; without a model Google's, to
            [-1, 1].
        batch_size: Images in a batch. The last batch may have fewer.
        validation_split: Share of every class to hold out, by the seed and the names of the files. A class of a single
            image stays in the training set.
        seed: Seed of everything random.
        shuffle: `True`: a new order in every epoch. `False`: the order of the names. `None`: `True` for a training set,
            which has an augmentation or is the first of a split; `False` for the second of a split. Any other dataset
            is shuffled once, so that `paths` and `labels` are in the order of what `predict` returns.
        augmentation: Augmentation of the training images. The second dataset of a split never has it.
        errors: What to do with damaged images and empty classes: `"raise"` an error, or `"skip"` them with a warning.
        class_names: The folders of classes, in the order of the model's outputs. `None`: all of them, sorted by name,
            as Keras and torchvision sort them: "10" before "2".
        cache: `"auto"` or `True`: keep the pixels in a temporary file, which is removed with the dataset, unless it
            needs more than half of the free space. A folder: keep them there for the next time. `False`: decode in
            every epoch.
        workers: Threads that prepare the next batches; 0 for none.
        progress: Whether to show a bar, on standard error, when decoding takes more than a few seconds.

    Returns:
        An `ImageFolder`; with `validation_split` two: training and validation.

    Raises:
        FileNotFoundError: The folder does not exist.
        ValueError: The folder has no classes or no images, an image is damaged (the error names it), or an argument is
            wrong.
        TypeError: The model takes other than 1 or 3 channels.

    Warns:
        UserWarning: Images or classes were left out, or a training set has fewer images than a batch.

    Example:
        >>> data = image_folder("flowers", 128, shuffle=False)
        >>> data.class_names
        ('daisy', 'dandelion', 'rose', 'sunflower', 'tulip')
    """
    arguments = locals()
    how = DatasetOptions(**{field.name: arguments[field.name] for field in dataclasses.fields(DatasetOptions)})
    check_share(validation_split)
    data = read_folder(path, class_names, errors)
    datasets = datasets_of(data, None if validation_split is None else split(data.labels, validation_split, seed), how)
    return datasets[0] if validation_split is None else datasets


def datasets_of(data: Labeled, parts: Sequence[np.ndarray] | None, how: DatasetOptions) -> tuple[ImageFolder, ...]:
    """Return images as one dataset, or one for each part, in turn to learn from and to hold out."""
    augmentation, preprocessing = how.augmentation, preprocessing_for(how.model, how.preprocessing, how.image_size)
    if parts is None:
        everything, shuffled = np.arange(len(data.paths)), bool(augmentation) if how.shuffle is None else how.shuffle
        if how.shuffle is None and not shuffled:
            everything = np.random.default_rng(how.seed).permutation(everything)
        roles = [(everything, augmentation, shuffled)]
    else:
        learns = [number % 2 == 0 for number in range(len(parts))]
        roles = [(p, augmentation if s else None, s and how.shuffle is not False) for p, s in zip(parts, learns)]
    data.check_missing(how.errors)
    decoded, failures = {}, {}
    for roomy in sorted({_needs_room(applied) for _, applied, _ in roles}, reverse=True):
        rows = np.unique(np.concatenate([part for part, applied, _ in roles if _needs_room(applied) == roomy]))
        rows = np.array([row for row in rows if row not in data.missing], "int64")
        files, decoder = [data.paths[row] for row in rows], Decoder(preprocessing, roomy)
        decoded[roomy] = rows, decode_images(files, decoder, how.cache, how.workers, how.progress)
        failures |= decoded[roomy][1].failures
    report_unread((), [*failures.items()], len(data.paths) - len(data.missing), how.errors)
    datasets = []
    for part, applied, shuffled in roles:
        rows, images = decoded[_needs_room(applied)]
        good = np.array([row for row in part if row not in data.missing and data.paths[row] not in failures], "int64")
        images = images.select(np.searchsorted(rows, good))
        datasets.append(ImageFolder(images, data, good, how, preprocessing, applied, shuffled))
    if not all(dataset.paths for dataset in datasets):
        raise ValueError("All images of a part are damaged or missing. Repair them, or pass more images.")
    return tuple(datasets)


def _needs_room(augmentation: Augmentation | None) -> bool:
    return bool(augmentation and augmentation.crop)


class ImageFolder(keras.utils.PyDataset):
    """The images of a folder or a table in batches `(inputs, labels)`; made by `image_folder` and `image_table`.

    Number, epoch and seed determine a batch, whatever the number of threads. `data.callbacks` tell the dataset the
    epoch of `fit`, also where a training goes on; without them, it counts. `fit` asks for shuffled batches in an order
    of Python's global random numbers; they are served in this dataset's own order.

    Attributes:
        class_names: The names of the classes; or of the labels, numbers or levels of another task.
        task: What the labels mean, one of `vit_keras.labels.TASKS`.
        paths: The files, in the order of `labels`.
        labels: int32 class numbers; float32 `(n, labels)` of another task (see `image_table`).
        rows: Number of each image in the table, or in the sorted list of the folder's files.
        counts: Number of images of each class or label; `None` where labels are numbers.
        class_weight: `{class: weight}` for `fit(class_weight=…)`, which makes all classes count the same.
        image_size: `(height, width)` of the inputs.
        preprocessing: How an image becomes an input of the model.
        epoch: The epoch whose batches are served.

    Example:
        >>> train = image_folder("flowers", image_size=32, batch_size=4)
        >>> train.class_names[:2], train[0][0].shape
        (('daisy', 'dandelion'), (4, 32, 32, 3))
    """

    augmentation: Augmentation | None
    batch_size: int
    class_names: tuple[str, ...]
    labels: np.ndarray
    preprocessing: Preprocessing
    rows: np.ndarray
    seed: int
    shuffle: bool
    task: str

    def __init__(
        self,
        images: DecodedImages,
        data: Labeled,
        rows: np.ndarray,
        how: DatasetOptions,
        preprocessing: Preprocessing,
        augmentation: Augmentation | None,
        shuffle: bool,
    ):
        super().__init__()  # Keras' own threads would keep batches from building the model for the first epoch
        self.paths: tuple[Path, ...] = tuple(images.paths)
        self.task, self.class_names, self.rows = data.task, data.names, rows
        self.labels = np.asarray(data.labels[rows], "int32" if data.task == "single" else "float32")
        self.preprocessing, self.augmentation = preprocessing, augmentation
        self.batch_size, self.seed, self.shuffle = how.batch_size, how.seed, shuffle
        self.one_hot: bool = data.task == "single" and bool(how.augmentation and how.augmentation.mixes)
        self.threads: int = how.workers
        self.epoch: int = 0
        self._images = images
        self._ahead: ReadAhead | None = None
        if shuffle and self.batch_size > len(self.paths):
            steps = f"there are only {len(self.paths)} images: an epoch is one step."
            warn_caller(f"batch_size={self.batch_size}, but {steps}")

    @property
    def image_size(self) -> tuple[int, int]:
        """`(height, width)` of the inputs."""
        return cast("tuple[int, int]", self.preprocessing.image_size)

    @property
    def counts(self) -> np.ndarray | None:
        """Number of images of each class or label; `None` where labels are numbers."""
        if self.task == "single":
            return np.bincount(self.labels, minlength=len(self.class_names))
        return self.labels.sum(axis=0).astype("int64") if self.task == "multi" else None

    @property
    def class_weight(self) -> dict[int, float]:
        """Weights for `fit(class_weight=…)` that make all classes count the same.

        Raises:
            ValueError: The images have not one class each.
        """
        if self.task != "single":
            raise ValueError(f"Only images of one class each can be balanced. The task is {self.task!r}.")
        return class_weights(self.labels)

    @property
    def callbacks(self) -> list[keras.callbacks.Callback]:
        """Callbacks for `fit`: they tell this dataset the epoch, and the model its classes and task."""
        return [SetEpoch(self)]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_ahead": None}  # another process has no part in the threads of this one

    def __len__(self) -> int:
        return math.ceil(len(self.paths) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        index = range(len(self))[index]
        return self._batch(self.epoch, index) if self._ahead is None else self._ahead.get(index)

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        ahead = ReadAhead(self, self.epoch)  # its threads end with it
        yield from map(ahead.get, range(len(self)))

    def on_epoch_begin(self) -> None:
        self._close()
        self._ahead = ReadAhead(self, self.epoch)

    def on_epoch_end(self) -> None:
        asked = 0 if self._ahead is None else len(self._ahead.place)
        if self._close() or (asked > 1 and self.shuffle):  # Keras asks for one before it trains
            self.epoch += 1

    def _close(self) -> bool:
        """Stop reading ahead, and return whether the epoch was completed."""
        ahead, self._ahead = self._ahead, None
        return ahead is not None and ahead.close()

    def _batch(self, epoch: int, index: int) -> tuple[np.ndarray, ...]:
        order = np.arange(len(self.paths))
        if self.shuffle:
            order = np.random.default_rng([self.seed, epoch]).permutation(order)
        chosen = order[index * self.batch_size : (index + 1) * self.batch_size]
        labels = self.labels[chosen]
        if self.one_hot:
            labels = np.eye(len(self.class_names), dtype="float32")[labels]
        cropped = self.augmentation is not None and self.augmentation.crop is not None
        pixels = [self._images[i] if cropped else self._images.plain(i) for i in chosen]
        if self.augmentation is None:
            images = np.stack(pixels)
        else:
            rngs = [np.random.default_rng([self.seed, epoch, 1, i]) for i in chosen]
            images = [self.augmentation.augment_image(p, self.image_size, rng) for p, rng in zip(pixels, rngs)]
            random = np.random.default_rng([self.seed, epoch, 2, index])
            images, labels = self.augmentation.augment_batch(np.stack(images), labels, random)
        return self._normalize(images), labels

    def _normalize(self, pixels: np.ndarray) -> np.ndarray:
        """Like `preprocessing.normalize`, in float32 and in place, which is several times faster."""
        std = np.array(self.preprocessing.std)
        inputs = pixels.astype("float32")
        inputs *= (1 / (255 * std)).astype("float32")
        inputs -= (self.preprocessing.mean / std).astype("float32")
        return inputs

    def arrays(self, chosen: Sequence[int] | np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return images, without augmentation, and their labels.

        Args:
            chosen: The numbers of the images in `paths`; `None`: all, in that order.

        Returns:
            The model's inputs, float32 `(n, height, width, channels)`, and the labels in the form of the batches'.
        """
        chosen = range(len(self.paths)) if chosen is None else chosen
        inputs, labels = np.stack([self._normalize(self._images.plain(i)) for i in chosen]), self.labels[list(chosen)]
        return inputs, np.eye(len(self.class_names), dtype="float32")[labels] if self.one_hot else labels


def preprocessing_for(model: keras.Model | None, preprocessing: Preprocessing | None, image_size: Any) -> Preprocessing:
    """Return the preprocessing of a model, with a size."""
    given = None if image_size in (None, "native") else size_pair(image_size, "image_size")
    if preprocessing is None:
        preprocessing = GOOGLE if model is None else batch_preprocessing_of(model)
        size = preprocessing.image_size
    else:
        fixed = (None,) if model is None else tuple(model.input_shape[1:3])
        size = preprocessing.image_size if None in fixed else fixed
    if given is None and size is None:
        raise ValueError("Pass image_size=, such as 224: neither a model nor the preprocessing has a size of its own.")
    return preprocessing.replace(image_size=given or size)

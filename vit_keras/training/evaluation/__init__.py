"""Evaluate a model on labeled images: accuracy, metrics of each class, confusions, mistakes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
from PIL import Image

from ..._internal.finite import check_outputs
from ..._internal.validate import expanded, one_of, positive_integer
from ..._internal.warn import renamed_arguments
from ...anatomy import (
    NUMBERS,
    class_names,
    has_attention,
    image_shape,
    output_names,
    predictions,
    preprocessing_of,
    why_not_classifier,
)
from ...anatomy import task as task_of
from ...backend import openvino
from ...labels import class_named
from ...opening import as_model
from ...preprocess.images import read
from ...visualize.attention import attention_map
from .. import metrics
from ..data.dataset import ImageFolder
from ..data.labeled import Labeled
from ..data.listing import first_few
from ..data.table import RENAMED, is_table, read_pictures
from ..embeddings.batches import Batch, batches_of_files, joined_paths, run_over
from .other_evaluations import LabelsEvaluation, RegressionEvaluation, as_html, percent

__all__ = ["Evaluation", "evaluate"]

_MAP_SIDE = 384
"""Longest side, in pixels, of the images that maps are drawn over."""

_MAP_BATCH = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """The predictions of a classifier on labeled images, and the metrics that follow from them.

    Attributes:
        class_names: Names of the classes, in the order of the outputs.
        paths: The images, relative to their folder.
        labels: int array `(n,)`, the true class of each.
        probabilities: float array `(n, classes)`.

    Example:
        >>> said = Evaluation(("cat", "dog"), ("1.jpg", "2.jpg"), np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]))
        >>> said.accuracy, said.confusion.tolist(), said.mistakes().tolist()
        (0.5, [[1, 0], [1, 0]], [1])
    """

    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray
    probabilities: np.ndarray
    task = "single"

    @property
    def targets(self) -> np.ndarray:
        """The labels for `metrics.score`."""
        return self.labels

    @property
    def outputs(self) -> np.ndarray:
        """The probabilities for `metrics.score`."""
        return self.probabilities

    @functools.cached_property
    def predictions(self) -> np.ndarray:
        """The most probable class of each image."""
        return self.probabilities.argmax(axis=-1)

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """Images by true class (rows) and predicted class (columns)."""
        counts = np.zeros((len(self.class_names),) * 2, int)
        np.add.at(counts, (self.labels, self.predictions), 1)
        return counts

    @property
    def accuracy(self) -> float:
        """Share of the images whose most probable class is the true one."""
        return float(np.mean(self.predictions == self.labels))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy (Wilson's)."""
        return metrics.wilson(self.accuracy, len(self.labels))

    @property
    def loss(self) -> float:
        """Mean cross-entropy, in nats."""
        return float(-np.log(np.maximum(self.of_true_class, 1e-7)).mean())

    @property
    def of_true_class(self) -> np.ndarray:
        """The probability that was predicted for the true class of each image."""
        return self.probabilities[np.arange(len(self.labels)), self.labels]

    @property
    def commonest(self) -> float:
        """The accuracy of always predicting the most frequent class: the baseline."""
        return float(np.bincount(self.labels).max() / len(self.labels))

    @property
    def per_class(self) -> tuple[dict[str, Any], ...]:
        """`name`, `pictures`, `precision`, `recall` and `f1` of each class; `None` where a divisor is 0."""
        right, true, said = np.diag(self.confusion), self.confusion.sum(axis=1), self.confusion.sum(axis=0)

        def share(part, whole):
            return float(part / whole) if whole else None

        return tuple(
            {
                "name": name,
                "pictures": int(true[k]),
                "precision": share(right[k], said[k]),
                "recall": share(right[k], true[k]),
                "f1": share(2 * right[k], true[k] + said[k]),
            }
            for k, name in enumerate(self.class_names)
        )

    @property
    def macro_f1(self) -> float:
        """The mean of F1 over the classes with images or predictions (`metrics.macro_f1`): small classes count as much
        as large ones, and a class that is predicted and has no images counts as 0.
        """
        return metrics.macro_f1(self.confusion)

    def mistakes(self) -> np.ndarray:
        """Return the numbers of the wrong predictions, the worst first: those least probable for the true class."""
        wrong = np.flatnonzero(self.predictions != self.labels)
        return wrong[np.argsort(self.of_true_class[wrong], kind="stable")]

    def confused(self) -> list[tuple[str, str, int]]:
        """Return true class, predicted class and number of images of each confusion; the most frequent first."""
        wrong = [pair for pair in zip(*np.nonzero(self.confusion)) if pair[0] != pair[1]]
        wrong.sort(key=lambda pair: -self.confusion[pair])
        return [(self.class_names[i], self.class_names[j], int(self.confusion[i, j])) for i, j in wrong]

    def caption(self, number: int) -> tuple[str, str]:
        """Return the true class of an image, and the predicted one, with their probabilities, in words."""
        said, shares = (self.labels[number], self.predictions[number]), self.probabilities[number]
        true, predicted = (f"{self.class_names[each]} ({percent(shares[each])})" for each in said)
        return true, predicted

    @property
    def headline(self) -> str:
        """The result in a line."""
        low, high = self.interval
        return f"accuracy {self.accuracy:.1%} (95 % interval: {low:.1%} to {high:.1%})"

    @property
    def figures(self) -> dict[str, str]:
        """The most important metrics, in words."""
        low, high = self.interval
        interval = f"95\N{NO-BREAK SPACE}% interval: {100 * low:.1f} to {percent(high)}"
        return {
            f"accuracy on {len(self.labels):,} images ({interval})": percent(self.accuracy),
            "mean F1 over the classes": percent(self.macro_f1),
            "loss (cross-entropy)": f"{self.loss:.3f}",
            f"mistakes of {len(self.labels):,}": f"{len(self.mistakes()):,}",
            "accuracy of always predicting the most frequent class": percent(self.commonest),
        }

    def _repr_html_(self) -> str:
        return as_html(self.figures)

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics, as plain JSON."""
        return {
            "pictures": len(self.labels),
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "loss": self.loss,
            "macro_f1": self.macro_f1,
            "classes": list(self.per_class),
            "confusion": self.confusion.tolist(),
        }


@renamed_arguments(images="images_dir", **RENAMED)
def evaluate(
    model: keras.Model | str | os.PathLike[str],
    folder: Any,
    *,
    images_dir: str | os.PathLike[str] | None = None,
    image_column: str = "image",
    label_column: str | Sequence[str] | None = None,
    separator: str | None = None,
    only: str | os.PathLike[str] | Iterable[str] | None = None,
    image_size: int | tuple[int, int] | str | None = "native",
    batch_size: int = 32,
    errors: str = "raise",
    progress: bool = True,
) -> Evaluation | LabelsEvaluation | RegressionEvaluation:
    """Measure a model on a folder of images, one subfolder for each class, or on a table.

    Args:
        model: A model with a ViT in it, or the path of a saved one. If it knows the names of its classes, the names of
            the folders, or in the table, are looked up among them (one of several between commas is enough: `tabby` for
            `tabby, tabby cat`); otherwise these are its classes, in their order. A model that normalizes or resizes its
            images gets pixels.
        folder: The images, `folder/class/picture.jpg`; or a table, as in `vit_keras.training.image_table`, whose
            labels are of the model's task (`vit_keras.anatomy.task`).
        images_dir: For a table, the folder of its images; `None`: the folder of the table.
        image_column: For a table, the column of the images.
        label_column: For a table, the column of the labels, or several. `None`: `"label"`, or the columns with the
            names of the model's labels or numbers. A model with one label or number takes a column of any name.
        separator: For a table, the text between several labels in one column.
        only: Which images, as the table calls them, or relative to the folder: a list, or the path of the
            `split.json` that `finetune` wrote, for the held-out ones. `None`: all.
        image_size: Pixels, `(height, width)` or one integer, for a model that takes any size. `"native"` or `None`: the
            size of its checkpoint; a model that resizes images itself gets each image in its own size.
        batch_size: Images in a batch.
        errors: `"raise"` to refuse damaged and missing images, `"skip"` to leave them out with a warning.
        progress: Whether to draw a progress bar.

    Returns:
        An `Evaluation`; for several labels a `LabelsEvaluation`, for numbers and levels a `RegressionEvaluation`.

    Raises:
        FileNotFoundError: There is no such model, folder, table or image.
        ValueError: The model has no head, a folder or a label is not a class of it, or an image is damaged.

    Warns:
        UserWarning: Damaged images or empty folders were left out.

    Example:
        >>> evaluate("finetuned/model.keras", "flowers", only="finetuned/split.json").accuracy  # doctest: +SKIP
        0.91
    """
    one_of(errors, "errors", ("raise", "skip"))
    positive_integer(batch_size, "batch_size")
    classifier = as_model(model)
    if lack := why_not_classifier(classifier):
        raise ValueError(f"The model {classifier.name!r} is not a classifier: {lack}.")
    columns = {"image_column": image_column, "label_column": label_column, "separator": separator}
    data = _labeled(classifier, folder, images_dir, errors, columns)
    data.check_missing(errors)
    chosen = range(len(data.paths)) if only is None else _chosen(data.ids, only)
    rows = np.array([row for row in chosen if row not in data.missing], int)
    batches, _ = batches_of_files([str(data.paths[row]) for row in rows], data.labels[rows], batch_size)
    prepare = preprocessing_of(classifier, image_size)
    return _evaluation(classifier, batches, prepare, data.names, data.root, len(rows), errors=errors, progress=progress)


def evaluate_decoded(
    model: keras.Model, data: ImageFolder, folder: str | os.PathLike[str], *, batch_size: int = 32
) -> Evaluation | LabelsEvaluation | RegressionEvaluation:
    """Measure a model on the images of a dataset, without augmentation; its outputs are as the dataset's labels.

    Args:
        model: A model with a head, and the task of the dataset.
        data: The images, decoded in the size of the model.
        folder: Where they are.
        batch_size: Images in a batch.
    """
    if (said := task_of(model)) != data.task:
        raise ValueError(f"The model {model.name!r} has the task {said!r}, and the images {data.task!r}.")
    batches = (
        Batch(
            np.stack([data.pixels(n) for n in range(first, min(first + batch_size, len(data.paths)))]),
            [str(path) for path in data.paths[first : first + batch_size]],
            data.labels[first : first + batch_size],
        )
        for first in range(0, len(data.paths), batch_size)
    )
    as_they_are = preprocessing_of(model).replace(image_size=None, crop=None)
    return _evaluation(model, batches, as_they_are, data.class_names, expanded(folder), len(data.paths))


def _evaluation(
    model, batches, prepare, names, root, total, *, errors="raise", progress=False
) -> Evaluation | LabelsEvaluation | RegressionEvaluation:
    """Run a classifier over batches of labelled images."""
    run = model.predict_on_batch
    rows = list(run_over(batches, run, prepare, model=model, errors=errors, total=total, progress=progress))
    said = check_outputs(model, predictions(model, np.concatenate([row.images for row in rows])))
    paths = tuple(relative(path, root) for path in cast("list[str]", joined_paths(rows)))  # all are files
    return evaluation_of(task_of(model), tuple(names), paths, np.concatenate([row.labels for row in rows]), said)


def evaluation_of(
    task: str, names: tuple[str, ...], paths: tuple[str, ...], labels: np.ndarray, outputs: np.ndarray
) -> Evaluation | LabelsEvaluation | RegressionEvaluation:
    """Return the evaluation of a task's predictions, as `anatomy.predictions` returns them."""
    if task in NUMBERS:
        return RegressionEvaluation(names, paths, labels, outputs, task)
    return (LabelsEvaluation if task == "multi" else Evaluation)(names, paths, labels, outputs)


def _labeled(model: keras.Model, source: Any, images_dir: Any, errors: str, columns: dict[str, Any]) -> Labeled:
    """Return images whose labels are numbered as a model's outputs."""
    task, names, label = task_of(model), output_names(model), columns["label_column"]
    if not is_table(source):
        if task != "single":
            why = f"its task is {task!r}, and a folder of classes has one class for each image. Pass a table."
            raise ValueError(f"The model {model.name!r} cannot be measured: {why}")
        options = {**columns, "label_column": "label" if label is None else label}
        data = read_pictures(source, images_dir, errors, options, fewest=1)
    else:
        by_columns = task == "regression" or (task == "multi" and columns["separator"] is None)
        given = names if by_columns and label is None else label
        if by_columns and names is not None and given is not None and {*_listed(given)} == {*names}:
            given = names  # in the order of the outputs
        options = {**columns, "label_column": "label" if given is None else given, "task": task}
        options["class_names"] = None if by_columns or task == "single" else names
        data = read_pictures(source, images_dir, errors, options, fewest=1)
    if task == "single":
        names, numbers = _match(model, data.names)
        return dataclasses.replace(data, names=names, labels=numbers[data.labels])
    if names is not None and by_columns and len(names) == len(data.names) == 1:
        return dataclasses.replace(data, names=tuple(names))  # of one output, the column may have any name
    if names is not None and data.names != tuple(names):
        raise ValueError(
            f"The model {model.name!r} predicts {first_few(names)}. Received columns: {first_few(data.names)}"
        )
    return data


def _listed(names: str | Sequence[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _match(model: keras.Model, folders: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the model's classes, and the number of each class of the images."""
    names, shape = class_names(model), getattr(model, "output_shape", None)
    if names is not None:
        return names, np.array([class_named(name, names) for name in folders])
    if shape is not None and shape[-1] != len(folders):
        raise ValueError(
            f"The model {model.name!r} has {shape[-1]} classes without names. Received {len(folders)}: "
            f"{first_few(folders)}"
        )
    return tuple(folders), np.arange(len(folders))


def relative(path: str | os.PathLike[str], root: Path) -> str:
    """Return the path of an image relative to its folder, if it lies there, with forward slashes."""
    path = Path(path)
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _chosen(paths: Sequence[str], only: Any) -> np.ndarray:
    """Return the numbers of the images that `only` names."""
    if isinstance(only, (str, os.PathLike)):
        file = expanded(only)
        try:
            only = json.loads(file.read_text(encoding="utf-8-sig"))["validation"]
        except ValueError as error:
            raise ValueError(f"{file} is not a split.json of finetune: {error}.") from None
        except (LookupError, TypeError):
            raise ValueError(f'{file} is not a split.json of finetune: it has no list "validation".') from None
    rows: dict[str, list[int]] = {}  # an image may be in several
    for row, path in enumerate(paths):
        rows.setdefault(path, []).append(row)
    wanted = dict.fromkeys(map(str, only))
    missing = [path for path in wanted if path not in rows]
    if missing:
        raise FileNotFoundError(f"{len(missing):,} of the images to evaluate are not there, such as {missing[0]}.")
    return np.array([row for path in wanted for row in rows[path]], int)


def pictures_of_mistakes(
    model: keras.Model, evaluation: Any, folder: str | os.PathLike[str], count: int = 24
) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
    """Return at most `count` images of the worst mistakes, worst first; see `explained_pictures`."""
    return explained_pictures(model, evaluation, folder, evaluation.mistakes()[:count])


def explained_pictures(
    model: keras.Model, evaluation: Any, folder: str | os.PathLike[str], numbers: Iterable[int]
) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
    """Return some images of an evaluation and, of a model with attention, maps of what was predicted.

    On OpenVINO, which has no gradients, there are no maps.

    Args:
        model: The model that predicted them.
        evaluation: The evaluation.
        folder: Where the images are.
        numbers: The numbers of the images.

    Returns:
        By the number of the image: uint8 pixels, and the same with the relevance of the predicted class or `None`.
    """
    chosen = [int(number) for number in numbers]
    pictures = [small(expanded(folder) / evaluation.paths[number]) for number in chosen]
    overlays: list[np.ndarray | None] = [None] * len(pictures)
    if has_attention(model) and not openvino.is_active():
        overlays, step = [], 1 if None in image_shape(model)[1:3] else _MAP_BATCH
        for first in range(0, len(pictures), step):
            overlays.extend(attention_map(model, pictures[first : first + step], method="relevance"))
    return dict(zip(chosen, zip(pictures, overlays)))


def small(path: Path) -> np.ndarray:
    """Return an image in a size that is large enough for a report."""
    picture = Image.fromarray(read(path, None))
    picture.thumbnail((_MAP_SIDE, _MAP_SIDE), Image.Resampling.LANCZOS)
    return np.asarray(picture)

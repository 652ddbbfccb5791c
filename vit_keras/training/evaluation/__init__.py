"""Evaluate a model on labeled images: accuracy, metrics of each class, confusions, mistakes."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import keras
import numpy as np
from PIL import Image

from ... import anatomy
from ..._internal.finite import check_outputs
from ..._internal.validate import expanded, one_of, positive_integer
from ..._internal.warn import warn_caller
from ...anatomy.inputs import image_shape, preprocessing_of
from ...anatomy.outputs import output_names, why_not_classifier
from ...anatomy.parts import has_attention
from ...backend import openvino
from ...labels import class_named
from ...opening import as_model
from ...preprocess.images import read
from ...visualize.attention import attention_map
from ..data.dataset import ImageFolder
from ..data.folder import Labeled, first_few
from ..data.table import Columns, is_table, read_images
from ..embeddings.batches import batches_of_files, joined_paths, run_filled, run_over
from ..metrics import scikit_learn_metrics
from .tasks import Evaluation

__all__ = ["Evaluation", "evaluate"]

_MAP_SIDE = 384
"""Longest side, in pixels, of the images that maps are drawn over."""

_MAP_BATCH = 8


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
    errors: Literal["raise", "skip"] = "raise",
    progress: bool = True,
) -> Evaluation:
    """Measure a model on a folder of images, one subfolder for each class, or on a table.

    Args:
        model: A saved model, or a model with a ViT in it. If it knows the names of its classes, the names of the
            folders, or in the table, are looked up among them (one of several between commas is enough: `tabby` for
            `tabby, tabby cat`); otherwise these are its classes, in their order. A model that normalizes or resizes its
            images gets pixels.
        folder: Folder with one subfolder for each class, folder/class/image.jpg; or a table of images and labels (see
            `vit_keras.training.image_table`). The labels are of the model's task (`vit_keras.anatomy.task`).
        images_dir: For a table, the folder of its images; `None`: the folder of the table.
        image_column: For a table, the column of the images (see `vit_keras.training.image_table`).
        label_column: For a table, the column of the labels, or several; `None`: label, or the columns with the names of
            the model's labels or numbers. A model with one label or number takes a column of any name.
        separator: For a table, the text between the labels of a column with several.
        only: Images to evaluate: the split.json that `finetune` wrote, for those that it held out; `None`: all. Or a
            list of images, by their names in the table or relative to the folder.
        image_size: Input size in pixels, for a model that takes any size; `"native"`: the size of its checkpoint.
            `(height, width)`, or one integer for a square. `None` is `"native"`. A model that resizes images itself
            gets each image in its own size.
        batch_size: Images in a batch.
        errors: What to do with damaged images: `"raise"` an error, or `"skip"` them with a warning.
        progress: Whether to show a bar.

    Returns:
        An `Evaluation`, of the task of the model.

    Raises:
        FileNotFoundError: There is no such model, folder, table or image.
        ImportError: scikit-learn is not installed.
        ValueError: The model has no head, a folder or a label is not a class of it, or an image is damaged.

    Warns:
        UserWarning: Damaged images or empty folders were left out; or `only` is of a model that has learned the images.

    Example:
        >>> evaluate("finetuned/model.keras", "new-flowers").accuracy  # doctest: +SKIP
        0.91
    """
    one_of(errors, "errors", ("raise", "skip"))
    positive_integer(batch_size, "batch_size")
    scikit_learn_metrics()
    classifier = as_model(model)
    if lack := why_not_classifier(classifier):
        raise ValueError(f"The model {classifier.name!r} is not a classifier: {lack}.")
    columns = Columns(images_dir=images_dir, image_column=image_column, separator=separator)
    data = _labeled(classifier, folder, columns, label_column, errors)
    data.check_missing(errors)
    chosen = range(len(data.paths)) if only is None else _chosen(data.ids, only, model)
    rows = np.array([row for row in chosen if row not in data.missing], int)
    batches, _ = batches_of_files([str(data.paths[row]) for row in rows], data.labels[rows], batch_size)
    run, prepare, total = classifier.predict_on_batch, preprocessing_of(classifier, image_size), len(rows)
    done = list(run_over(batches, run, prepare, model=classifier, errors=errors, total=total, progress=progress))
    raw = check_outputs(classifier, anatomy.predictions(classifier, np.concatenate([row.images for row in done])))
    paths = tuple(relative(path, data.root) for path in cast("list[str]", joined_paths(done)))  # all are files
    return Evaluation(data.names, paths, np.concatenate([row.labels for row in done]), raw, anatomy.task(classifier))


def predicted(model: keras.Model, data: ImageFolder) -> np.ndarray:
    """Return what a model predicts for the images of a dataset that is neither shuffled nor augmented."""
    size = min(data.batch_size, len(data.paths))
    outputs = [run_filled(model.predict_on_batch, data[n][0], size) for n in range(len(data))]
    return anatomy.predictions(model, np.concatenate(outputs))


def _labeled(model: keras.Model, source: Any, columns: Columns, label: Any, errors: str) -> Labeled:
    """Return images whose labels are numbered as a model's outputs."""
    task, names = anatomy.task(model), output_names(model)
    by_columns = task == "regression" or (task == "multi" and columns.separator is None)
    if label is not None:
        columns = dataclasses.replace(columns, label_column=label)
    if not is_table(source) and task != "single":
        why = f"its task is {task!r}, and a folder of classes has one class for each image. Pass a table."
        raise ValueError(f"The model {model.name!r} cannot be measured: {why}")
    if is_table(source):
        listed: Any = names if label is None else [label] if isinstance(label, str) else label
        if by_columns and names is not None and {*listed} == {*names}:
            columns = dataclasses.replace(columns, label_column=names)  # in the order of the outputs
        classes = None if by_columns or task == "single" else names
        columns = dataclasses.replace(columns, task=task, class_names=classes)
    data = read_images(source, columns, errors, fewest=1)
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


def _match(model: keras.Model, folders: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the model's classes, and the number of each class of the images."""
    names, shape = anatomy.class_names(model), getattr(model, "output_shape", None)
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


def _chosen(paths: Sequence[str], only: Any, model: Any) -> np.ndarray:
    """Return the numbers of the images that `only` names."""
    if isinstance(only, (str, os.PathLike)):
        file = expanded(only)
        try:
            split = json.loads(file.read_text(encoding="utf-8-sig"))
            only = split["validation"]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f'{file} is not a split.json of finetune, with a list "validation": {error}.') from None
        is_probe = isinstance(model, (str, os.PathLike)) and expanded(model).name == "probe.keras"
        if split.get("refit") and not is_probe:
            warn_caller(
                f"The model.keras next to {file} has learned these images too. The accuracy before that is in "
                "report.html and history.json. Evaluate it on new images."
            )
    wanted = {*map(str, only)}
    missing = sorted(wanted.difference(paths))
    if missing:
        raise FileNotFoundError(f"{len(missing):,} of the images to evaluate are not there, such as {missing[0]}.")
    return np.array([row for row, path in enumerate(paths) if path in wanted], int)


def images_of_mistakes(
    model: keras.Model, evaluation: Any, folder: str | os.PathLike[str], count: int = 24
) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
    """Return at most `count` images of the worst mistakes, worst first (see `explained_images`)."""
    return explained_images(model, evaluation, folder, evaluation.mistakes()[:count])


def explained_images(
    model: keras.Model, evaluation: Any, folder: str | os.PathLike[str], numbers: Iterable[int]
) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
    """Return images of an evaluation by number: uint8 pixels, and the same with the relevance of the prediction."""
    chosen = [int(number) for number in numbers]
    images = [small(expanded(folder) / evaluation.paths[number]) for number in chosen]
    overlays: list[np.ndarray | None] = [None] * len(images)
    if has_attention(model) and not openvino.is_active():
        overlays, step = [], 1 if None in image_shape(model)[1:3] else _MAP_BATCH
        for first in range(0, len(images), step):
            overlays.extend(attention_map(model, images[first : first + step], method="relevance"))
    return dict(zip(chosen, zip(images, overlays)))


def small(path: Path) -> np.ndarray:
    """Return an image in a size that is large enough for a report."""
    image = Image.fromarray(read(path, None))
    image.thumbnail((_MAP_SIDE, _MAP_SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)

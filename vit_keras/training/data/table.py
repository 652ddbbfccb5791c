"""Tables of images and labels, as data sets have them: CSV, TSV, Parquet, data frames, columns.

>>> from vit_keras import vit
>>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=5)
>>> columns = {"image": ["daisy/0.png", "daisy/1.png", "rose/0"], "label": ["daisy", "daisy", "rose"]}
>>> train = image_table(columns, images_dir="flowers", model=model, progress=False, shuffle=True, batch_size=2)
>>> train.class_names, train.counts.tolist()
(('daisy', 'rose'), [2, 1])
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..._internal.validate import expanded, one_of, path_text
from ..._internal.warn import renamed_arguments
from ...labels import TASKS
from ...preprocess import Preprocessing
from .augment import Augmentation
from .dataset import ImageFolder, datasets_of
from .labeled import OF_IMAGES, Labeled, folder_of, read_folder
from .listing import EXTENSIONS, first_few
from .splits import hold_out
from .table_files import is_table, read_columns, row_numbers, whole_columns, without_label

__all__ = [
    *("find_pictures", "image_table", "is_table", "read_columns", "read_pictures", "read_table", "whole_columns"),
]


RENAMED = {
    "image": "image_column",
    "label": "label_column",
    "weight": "weight_column",
    "group": "group_column",
}
"""Arguments of a table by the names that they had, and have now; the folder had another one in each function."""


@renamed_arguments(root="images_dir", **RENAMED)
def image_table(
    table: Any,
    image_column: str = "image",
    label_column: str | Sequence[str] = "label",
    *,
    images_dir: str | os.PathLike[str] = ".",
    task: str = "auto",
    separator: str | None = None,
    weight_column: str | None = None,
    group_column: str | None = None,
    image_size: int | tuple[int, int] | str | None = "native",
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
    """Read images and labels named by a table, as a dataset for `fit`, `evaluate` and `predict` on any backend.

    Batches, checks, caching and random numbers are those of `vit_keras.training.image_folder`.

    What stands in the column or columns `label_column`, and what a batch then has, depends on the `task`:

    - `"single"`: names or whole numbers; int32 `(n,)`. `class_names` are the classes, sorted. Names in a CSV file are
      as they are written there: `001` is not `1`.
    - `"multi"`: columns of 0 and 1, or one of names with a `separator`; float32 `(n, labels)`. They are the labels.
    - `"regression"`: one or several columns of numbers; float32 `(n, columns)`. They are the columns.
    - `"ordinal"`: levels, in an order; float32 `(n, 1)`, from 0. They are the levels.

    Args:
        table: The path of a .csv, .tsv or .parquet file; a data frame of pandas or polars; or a dictionary of columns.
        image_column: The column of the images: files relative to `images_dir`. A name without an ending, such as an id,
            means the file of that name with the ending of an image.
        label_column: The column of the labels, or several.
        images_dir: The folder of the images.
        task: What the labels are; `"auto"` infers the task when it is unambiguous, and reports what it inferred.
        separator: The text between the labels of one image, such as `" "` or `"|"`. An empty text means no label.
        weight_column: A column of numbers: the weight of each image in the loss. Batches have them as a third element.
        group_column: A column, such as the patient's. Its values are not divided between training and validation.
        image_size: `(height, width)` or one integer. `"native"` or `None`: the model's, else the preprocessing's.
        model: The model to train. It determines image size and preprocessing.
        preprocessing: How an image becomes an input of the model. `None`: the model's own, or Google's.
        batch_size: Images in a batch. The last batch may have fewer.
        validation_split: Share to hold out, up to 0.5: the first of about 1/share folds of `splits.fold_numbers`.
        seed: Seed of everything random.
        shuffle: `True`: a new order in every epoch; `False`: the order of the rows; `None`: see `image_folder`.
        augmentation: Augmentation of the training images.
        errors: `"raise"`: damaged and missing images are errors. `"skip"`: they are left out, with a warning.
        label_mode: `"categorical"`: the labels of single classes are one-hot, as they always are with mixup and cutmix.
        class_names: The classes, labels or levels in the order of the model's outputs. `None`: sorted, by number if all
            are numbers. Levels that are not numbers need it.
        cache: Where the pixels are kept; see `image_folder`.
        workers: Threads that prepare the next batches; 0 for none.
        progress: Whether to show a bar, and what was assumed, on standard error.

    Returns:
        An `ImageFolder`; with `validation_split` two: training and validation.

    Raises:
        FileNotFoundError: There is no such table or folder.
        ImportError: pandas, pyarrow or scikit-learn is needed and not installed.
        ValueError: There is no such column, labels are missing (the error names the rows), the task is in doubt,
            images are damaged or not there, or an argument is wrong.

    Warns:
        UserWarning: Images were left out, or a training set has fewer images than a batch.

    Example:
        >>> columns = {"id": ["daisy/0", "rose/0"], "red": [0, 1], "white": [1, 1]}
        >>> data = image_table(columns, "id", ["red", "white"], images_dir="flowers", image_size=32, task="multi")
        >>> data.class_names, data.labels.tolist(), data.paths[0].name
        (('red', 'white'), [[0.0, 1.0], [1.0, 1.0]], '0.png')
    """
    data = read_table(
        table, image_column, label_column, images_dir, task, separator, weight_column, group_column, class_names
    )
    if data.assumed and progress:
        print(data.assumed, file=sys.stderr)
    datasets = datasets_of(
        data,
        None if validation_split is None else hold_out(data, validation_split, seed),
        image_size=image_size,
        model=model,
        preprocessing=preprocessing,
        batch_size=batch_size,
        seed=seed,
        shuffle=shuffle,
        augmentation=augmentation,
        errors=errors,
        label_mode=label_mode,
        cache=cache,
        workers=workers,
        progress=progress,
    )
    return datasets[0] if validation_split is None else datasets


# --- what the columns say -----------------------------------------------------------------------------------------


def read_table(
    table: Any,
    image_column: str = "image",
    label_column: str | Sequence[str] = "label",
    images_dir: str | os.PathLike[str] = ".",
    task: str = "auto",
    separator: str | None = None,
    weight_column: str | None = None,
    group_column: str | None = None,
    class_names: Sequence[str] | None = None,
    fewest: int = 2,
) -> Labeled:
    """Return the images and labels of a table with at least this number of classes; see `image_table`."""
    one_of(task, "task", ("auto", *TASKS))
    root = folder_of(table, images_dir)
    image, group, weight = str(image_column), group_column, weight_column
    names = [label_column] if isinstance(label_column, (str, int)) else label_column
    wanted = [str(name) for name in names]
    if not wanted:
        raise ValueError(f"label_column must be a column or several. Received: {label_column!r}")
    as_written = [image, *wanted, *filter(None, [group])]
    columns, written = read_columns(table, [image]), read_columns(table, as_written)
    if separator is not None and (not separator or task not in ("auto", "multi")):
        raise ValueError(
            f"separator= is a text between several labels in one column (task='multi'). Received: {separator!r}, task "
            f"{task!r}"
        )
    if separator is not None:
        for each in (columns, written):
            each |= {name: without_label(each[name]) for name in wanted if name in each}
    advice = " Choose others with image_column= and label_column= (--image-column, --label-column)."
    ids, *targets = whole_columns(columns, image, *wanted, advice=advice)
    assumed = ""
    if task == "auto":
        task, reason = _guess(targets, wanted, separator)
        assumed = f"task={task!r} is assumed: {reason}."
    of_columns = task == "regression" or (task == "multi" and separator is None)
    if of_columns and class_names is not None and [*map(str, class_names)] != wanted:
        raise ValueError(
            f"The labels of task={task!r} are called as their columns, {first_few(wanted)}. Leave class_names= out, "
            "and pass the columns in the order that is wanted."
        )
    if task == "ordinal":
        _check_levels(targets, wanted, class_names)
    if task in ("single", "ordinal") or separator is not None:
        targets = [written[name] for name in wanted]
    names, labels = _READ[task](targets, wanted, separator, class_names)
    if not names:
        raise ValueError(f"The column {wanted[0]!r} has no label in any row.")
    if labels.ndim == 1 and len(names) < fewest:
        raise ValueError(f"The column {wanted[0]!r} has only one class, {first_few(names)}. Training needs two.")
    weights = groups = None
    if weight is not None:
        weights = _numbers(whole_columns(columns, weight)[0], weight).astype("float32")
        if (weights < 0).any() or not weights.any():
            raise ValueError(f"The weights in the column {weight!r} must be at least 0, and not all 0.")
    if group is not None:
        groups = column_numbers(written, group)
    ids = [str(value) for value in ids]
    paths, missing = find_pictures(ids, root)
    return Labeled(task, names, paths, labels, ids, root, weights, groups, missing, assumed)


def read_pictures(source: Any, images_dir: Any, errors: str, options: Mapping[str, Any], fewest: int = 2) -> Labeled:
    """Return the images of a folder of classes, or of a table.

    Args:
        source: The folder or the table.
        images_dir: Folder of a table's images; `None`: the table's own.
        errors: Whether empty subfolders are errors; see `image_folder`.
        options: For a table, arguments of `read_table`.
        fewest: The least number of classes.

    Raises:
        ValueError: Options of a table are given with a folder.
    """
    if is_table(source):
        return read_table(source, images_dir=folder_of(source, images_dir), fewest=fewest, **options)
    path = expanded(path_text(source, "images", OF_IMAGES))
    given = [name for name, value in {**options, "images_dir": images_dir}.items() if value != _OF_A_FOLDER.get(name)]
    if given and not path.is_dir() and path.exists():
        raise ValueError(f"{path} is not a table: its name must end in .csv, .tsv or .parquet.")
    if given and path.exists():
        verb = "belongs" if len(given) == 1 else "belong"
        raise ValueError(f"{', '.join(given)} {verb} to a table. {path} is a folder of classes.")
    return read_folder(path, None, errors, fewest)


_OF_A_FOLDER = {"image_column": "image", "label_column": "label", "task": "auto"}


def column_numbers(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a number for each row of a column, the same for the same value, in the order of the values."""
    values = whole_columns(columns, name)[0]
    return np.unique([str(value) for value in values] if values.dtype.kind == "O" else values, return_inverse=True)[1]


def _guess(columns: list[np.ndarray], names: list[str], separator: str | None) -> tuple[str, str]:
    """Return the task that labels are of, and why; raise a `ValueError` where it could be another one."""
    kinds = {column.dtype.kind for column in columns}
    if separator is not None:
        return "multi", f"the column {names[0]!r} has labels with {separator!r} between them"
    if len(columns) > 1:
        if kinds <= set("iufb") and all(set(np.unique(column)) <= {0, 1} for column in columns):
            return "multi", f"all {len(names)} columns of labels have only 0 and 1"
        if kinds <= set("iuf"):
            return "regression", f"the {len(names)} columns of labels are numbers"
        raise ValueError(f"Several columns of labels are numbers. Received texts in {first_few(names)}")
    column = columns[0]
    if kinds <= set("Ob"):
        return "single", f"the column {names[0]!r} has names of classes"
    if kinds == {"f"} and (column != np.rint(column)).any():
        return "regression", f"the column {names[0]!r} has numbers that are not whole"
    if kinds <= set("iu") and set(np.unique(column)) == {0, 1}:
        return "single", f"the column {names[0]!r} has only 0 and 1"
    raise ValueError(
        f"The whole numbers in the column {names[0]!r} may be classes, levels or a quantity. Pass task='single', "
        "'ordinal' or 'regression' (--task)."
    )


NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def _order(values: set[str], class_names: Sequence[str] | None, column: str) -> tuple[str, ...]:
    """Return names in the order given or sorted, by number if all are whole numbers."""
    if class_names is None:
        numeric = all(map(NUMBER.fullmatch, values))
        return tuple(sorted(values, key=(lambda value: (float(value), value)) if numeric else None))
    names = tuple(map(str, class_names))
    unknown = sorted(values - set(names))
    if len(set(names)) < len(names):
        raise ValueError(f"class_names has a name twice. Received: {first_few(names)}")
    if unknown:
        raise ValueError(f"The column {column!r} has {first_few(unknown)}, and the classes are {first_few(names)}.")
    return names


def _texts(column: np.ndarray) -> list[str]:
    """Return the values of a column as names; whole numbers have no point."""
    values = column.astype("int64") if column.dtype.kind == "f" and (column == np.rint(column)).all() else column
    return [str(value).strip() for value in values.tolist()]


def _one_column(columns: list[np.ndarray], names: list[str], task: str) -> np.ndarray:
    if len(columns) > 1:
        raise ValueError(f"task={task!r} has one column of labels. Received: {first_few(names)}")
    return columns[0]


def _single(columns, names, separator, class_names):
    values = _texts(_one_column(columns, names, "single"))
    known = _order(set(values), class_names, names[0])
    place = {name: number for number, name in enumerate(known)}
    return known, np.array([place[value] for value in values], "int32")


def _check_levels(columns, names, class_names):
    column = _one_column(columns, names, "ordinal")
    if column.dtype.kind not in "iuf" and class_names is None:
        raise ValueError(f"The levels in the column {names[0]!r} are texts. Pass them in their order as class_names.")


def _ordinal(columns, names, separator, class_names):
    known, labels = _single(columns, names, separator, class_names)
    return known, labels.astype("float32")[:, None]


def _multi(columns, names, separator, class_names):
    if separator is None:
        numbers = np.stack([_numbers(column, name) for column, name in zip(columns, names)], axis=1)
        wrong = np.flatnonzero(((numbers != 0) & (numbers != 1)).any(axis=1))
        if len(wrong):
            raise ValueError(
                f"The columns of several labels have only 0 and 1. Received other values in {row_numbers(wrong)}. "
                "Labels in one column, such as 'cat dog', need separator=' '."
            )
        return tuple(names), numbers.astype("float32")
    texts = _one_column(columns, names, "multi").tolist()
    found = [{part.strip() for part in str(text).split(separator)} - {""} for text in texts]
    known = _order(set().union(*found), class_names, names[0])
    return known, np.array([[name in one for name in known] for one in found], "float32")


def _regression(columns, names, separator, class_names):
    numbers = np.stack([_numbers(column, name) for column, name in zip(columns, names)], axis=1)
    with np.errstate(over="ignore"):
        rounded = numbers.astype("float32")
    for name, exact, short in zip(names, numbers.T, rounded.T):
        if not np.isfinite(short).all():
            raise ValueError(f"The column {name!r} has numbers above 3.4e38, the largest of float32. Divide them.")
        same = 1e-15 * np.abs(exact).max()  # one number that was computed in two ways
        if same < np.ptp(exact) < 100 * np.abs(exact - short).max():
            raise ValueError(
                f"float32 rounds the numbers in the column {name!r}, from {exact.min():.12g} to {exact.max():.12g}, by "
                "over a hundredth of their range. Subtract their mean, or multiply them if they are very small."
            )
    return tuple(names), rounded


_READ = {"single": _single, "multi": _multi, "regression": _regression, "ordinal": _ordinal}


def _numbers(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind not in "biuf":
        raise ValueError(f"The column {name!r} must have numbers. Received: {first_few(column.tolist(), 3)}")
    rows = np.flatnonzero(~np.isfinite(column.astype("float64")))
    if len(rows):
        raise ValueError(f"The column {name!r} has numbers that are not finite in {row_numbers(rows)}.")
    return column.astype("float64")


# --- the files ----------------------------------------------------------------------------------------------------


def find_pictures(ids: Sequence[str], root: Path) -> tuple[list[Path], frozenset[int]]:
    """Return the file of each id, and the numbers of ids without a file; each folder is listed once."""
    folders: dict[Path, dict[str, list[str]]] = {}
    paths, missing = [], []
    for row, name in enumerate(ids):
        path = root / name
        known = folders.get(path.parent)
        if known is None:
            known = folders[path.parent] = _listed(path.parent)
        found = [path.name] if path.name in known[""] else known.get(path.name, [])
        if len(found) > 1:
            raise ValueError(f"{name!r} may be {' or '.join(sorted(found))} in {path.parent}. Write the whole name.")
        if not found:
            missing.append(row)
        paths.append(path.parent / found[0] if found else path)
    return paths, frozenset(missing)


def _listed(folder: Path) -> dict[Any, Any]:
    """Return the images of a folder by their names without an ending; and all its files at `""`."""
    names = {entry.name for entry in os.scandir(folder) if entry.is_file()} if folder.is_dir() else set()
    by_stem: dict[Any, Any] = {"": names}
    for name in names:
        stem, ending = os.path.splitext(name)
        if ending.lower() in EXTENSIONS and stem:
            by_stem.setdefault(stem, []).append(name)
    return by_stem

"""Tables of pictures and labels, as data sets have them: CSV, TSV, Parquet, data frames, columns.

>>> from vit_keras import vit
>>> model = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=5)
>>> columns = {"image": ["daisy/0.png", "daisy/1.png", "rose/0"], "label": ["daisy", "daisy", "rose"]}
>>> train = image_table(columns, root="flowers", model=model, progress=False, shuffle=True, batch_size=2)
>>> train.class_names, train.counts.tolist()
(('daisy', 'rose'), [2, 1])
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..labels import TASKS
from ..preprocess import Preprocessing
from ..validate import did_you_mean, one_of
from .augment import Augmentation
from .dataset import ImageFolder, datasets_of
from .labeled import Labeled, folder_of, read_folder
from .listing import EXTENSIONS, first_few
from .splits import hold_out

__all__ = [
    *("find_pictures", "image_table", "is_table", "read_columns", "read_pictures", "read_table", "whole_columns"),
]

_READERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".parquet": None, ".pq": None}
_PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")


def image_table(
    table: Any,
    image: str = "image",
    label: str | Sequence[str] = "label",
    *,
    root: str | os.PathLike[str] = ".",
    task: str = "auto",
    separator: str | None = None,
    weight: str | None = None,
    group: str | None = None,
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
    """Read pictures and labels named by a table, as a dataset for `fit`, `evaluate` and `predict` on any backend.

    Batches, checks, caching and random numbers are those of `vit_keras.training.image_folder`.

    What stands in the column or columns `label`, and what a batch then has, depends on the `task`:

    - `"single"`: names or whole numbers; int32 `(n,)`. `class_names` are the classes, sorted.
    - `"multi"`: columns of 0 and 1, or one of names with a `separator`; float32 `(n, labels)`. They are the labels.
    - `"regression"`: one or several columns of numbers; float32 `(n, columns)`. They are the columns.
    - `"ordinal"`: levels, in an order; float32 `(n, 1)`, from 0. They are the levels.

    Args:
        table: The path of a .csv, .tsv or .parquet file; a data frame of pandas or polars; or a dictionary of columns.
        image: The column of the pictures: files relative to `root`. A name without an ending, such as an id, stands for
            the file of that name with the ending of an image.
        label: The column of the labels, or several.
        root: The folder of the pictures.
        task: What the labels are; `"auto"` finds out where there is no doubt, and says what it found.
        separator: What stands between the labels of one picture, such as `" "` or `"|"`. An empty text is no label.
        weight: A column of numbers: how much each picture counts in the loss. Batches have them as a third element.
        group: A column, such as that of the patient. Its values are not divided between training and validation.
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
            are whole numbers. Levels that are no numbers need it.
        cache: Where the pixels are kept; see `image_folder`.
        workers: Threads that prepare the next batches; 0 for none.
        progress: Whether to show a bar, and what was assumed, on standard error.

    Returns:
        An `ImageFolder`; with `validation_split` two: training and validation.

    Raises:
        FileNotFoundError: There is no such table or folder.
        ImportError: pandas, pyarrow or scikit-learn is needed and not installed.
        ValueError: There is no such column, labels are missing (the error names the rows), the task is in doubt,
            pictures are damaged or not there, or an argument is wrong.

    Warns:
        UserWarning: Pictures were left out, or a training set has fewer images than a batch.

    Example:
        >>> columns = {"id": ["daisy/0", "rose/0"], "red": [0, 1], "white": [1, 1]}
        >>> data = image_table(columns, "id", ["red", "white"], root="flowers", image_size=32, task="multi")
        >>> data.class_names, data.labels.tolist(), data.paths[0].name
        (('red', 'white'), [[0.0, 1.0], [1.0, 1.0]], '0.png')
    """
    data = read_table(table, image, label, root, task, separator, weight, group, class_names)
    if data.assumed and progress:
        print(data.assumed, file=sys.stderr)
    return datasets_of(
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


def is_table(data: Any) -> bool:
    """Return whether something is a table that `image_table` takes, and not a folder.

    Example:
        >>> is_table("train.csv"), is_table("flowers"), is_table({"image": ["1.png"]})
        (True, False, True)
    """
    if isinstance(data, (str, os.PathLike)):
        return _ending(Path(data)) in _READERS and not Path(data).expanduser().is_dir()
    return isinstance(data, Mapping) or (hasattr(data, "columns") and hasattr(data, "__getitem__"))


def read_columns(table: Any, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the columns of a table as arrays.

    Args:
        table: As in `image_table`.
        texts: Columns of a CSV file whose values are texts even where they look like numbers: ids such as `007`.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: pandas is not installed, or pyarrow for Parquet.
        TypeError: It is no table.
        ValueError: It cannot be read, is empty, or its columns differ in length.

    Example:
        >>> read_columns({"image": ["1.png", "2.png"], "label": [0, 1]})["label"].tolist()
        [0, 1]
    """
    if not is_table(table):
        raise TypeError(
            "A table is the path of a .csv, .tsv or .parquet file, a data frame, or a dictionary of columns. "
            f"Received: {table!r}"
        )
    frame = _read_file(Path(table).expanduser(), texts) if isinstance(table, (str, os.PathLike)) else table
    columns = {str(name): _array(frame[name]) for name in (frame if isinstance(frame, Mapping) else frame.columns)}
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of the table differ in length: {lengths}")
    if not columns or not next(iter(lengths.values())):
        raise ValueError("The table has no rows.")
    return columns


def _array(column: Any) -> np.ndarray:
    """Return a column as an array of numbers or booleans, or else of objects."""
    array = column.to_numpy() if hasattr(column, "to_numpy") else column
    if not isinstance(array, np.ndarray):  # NumPy would make "nan" of a missing value among texts
        values = [*array]
        array = np.empty(len(values), object)
        array[:] = values
    if array.ndim != 1:
        raise ValueError(f"A column of a table has one value in each row. Received: shape {array.shape}")
    if array.dtype.kind == "O" and all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in array):
        return np.array(array.tolist())
    return array if array.dtype.kind in "biuf" else array.astype(object)


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix.lower() in _PACKED else path.name).suffix.lower()


def _read_file(path: Path, texts: Sequence[str]) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"There is no table {path}.")
    try:
        import pandas
    except ImportError:
        raise ImportError('Reading a table needs pandas: pip install "vit-keras[table]"') from None
    separator = _READERS[_ending(path)]
    try:
        if separator is None:
            return pandas.read_parquet(path)
        # "NA", "None" and "null" are names of classes too; only an empty cell and NaN are missing.
        kinds = dict.fromkeys(texts, str)
        missing = ["", "NaN", "nan"]
        return pandas.read_csv(path, sep=separator, dtype=kinds, keep_default_na=False, na_values=missing)
    except ImportError:
        raise ImportError('Reading Parquet needs pyarrow: pip install "vit-keras[table]"') from None
    except (ValueError, OSError) as error:  # pandas' and pyarrow's errors are of these
        raise ValueError(f"{path} cannot be read as a table: {error}") from None


# --- what the columns say -----------------------------------------------------------------------------------------


def read_table(
    table: Any,
    image: str = "image",
    label: str | Sequence[str] = "label",
    root: str | os.PathLike[str] = ".",
    task: str = "auto",
    separator: str | None = None,
    weight: str | None = None,
    group: str | None = None,
    class_names: Sequence[str] | None = None,
    fewest: int = 2,
) -> Labeled:
    """Return the pictures and labels of a table with at least so many classes; see `image_table`."""
    one_of(task, "task", ("auto", *TASKS))
    root = Path(root).expanduser()
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}.")
    columns = read_columns(table, [image])
    wanted = [label] if isinstance(label, str) else list(label)
    ids, *targets = whole_columns(columns, image, *wanted)
    assumed = ""
    if task == "auto":
        task, reason = _guess(targets, wanted, separator)
        assumed = f"task={task!r} is assumed: {reason}."
    names, labels = _READ[task](targets, wanted, separator, class_names)
    if (labels.ndim == 1 and len(names) < fewest) or not names:
        raise ValueError(f"The column {wanted[0]!r} has only one class, {first_few(names)}. Training needs two.")
    weights = groups = None
    if weight is not None:
        weights = _numbers(*whole_columns(columns, weight), weight).astype("float32")
        if (weights < 0).any() or not weights.any():
            raise ValueError(f"The weights in the column {weight!r} must be at least 0, and not all 0.")
    if group is not None:
        groups = column_numbers(columns, group)
    ids = [str(value) for value in ids]
    paths, missing = find_pictures(ids, root)
    return Labeled(task, names, paths, labels, ids, root, weights, groups, missing, assumed)


def read_pictures(source: Any, images: Any, errors: str, options: Mapping[str, Any]) -> Labeled:
    """Return the pictures of a folder of classes, or of a table.

    Args:
        source: The folder or the table.
        images: Folder of a table's pictures; `None`: the table's own.
        errors: Whether empty subfolders are errors; see `image_folder`.
        options: Of a table, arguments of `read_table`.

    Raises:
        ValueError: Options of a table are given with a folder.
    """
    if is_table(source):
        return read_table(source, root=folder_of(source, images), **options)
    path = Path(source).expanduser()
    given = [name for name, value in {**options, "images": images}.items() if value != _OF_A_FOLDER.get(name)]
    if given and not path.is_dir() and path.exists():
        raise ValueError(f"{path} is no table: its name ends in none of .csv, .tsv, .parquet.")
    if given:
        raise ValueError(f"{', '.join(given)} belongs to a table. {path} is a folder of classes.")
    return read_folder(path, None, errors)


_OF_A_FOLDER = {"image": "image", "label": "label", "task": "auto"}


def column_numbers(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return a number for each row of a column, the same for the same value, in the order of the values."""
    values = whole_columns(columns, name)[0]
    return np.unique([str(value) for value in values] if values.dtype.kind == "O" else values, return_inverse=True)[1]


def whole_columns(columns: Mapping[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """Return columns without a missing value."""
    for name in names:
        if name not in columns:
            hint = did_you_mean(name, columns)
            raise ValueError(f"The table has no column {name!r}.{hint} Its columns: {', '.join(columns)}.")
        column = columns[name]
        rows = np.flatnonzero([_is_missing(value) for value in column.tolist()])
        if len(rows):
            raise ValueError(f"The column {name!r} has no value in {_rows(rows)}. Fill them in, or leave the rows out.")
    return [columns[name] for name in names]


def _rows(rows: Sequence[int]) -> str:
    """Return the numbers of rows in words; the first row below the names of the columns is 1."""
    shown = ", ".join(f"{row + 1:,}" for row in rows[:10])
    more = f" and {len(rows) - 10:,} more" if len(rows) > 10 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more} (the first is 1)"


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


def _order(values: set[str], class_names: Sequence[str] | None, column: str) -> tuple[str, ...]:
    """Return names in the order given or sorted, by number if all are whole numbers."""
    if class_names is None:
        whole = all(value.lstrip("-").isdecimal() for value in values)
        return tuple(sorted(values, key=int if whole else None))
    names = tuple(map(str, class_names))
    unknown = sorted(values - set(names))
    if unknown or len(set(names)) < len(names):
        raise ValueError(
            f"class_names must list each value of the column {column!r} once"
            + (f"; {first_few(unknown)} is not in it." if unknown else f". Received: {first_few(names)}")
        )
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


def _ordinal(columns, names, separator, class_names):
    column = _one_column(columns, names, "ordinal")
    if column.dtype.kind not in "iuf" and class_names is None:
        raise ValueError(f"The levels in the column {names[0]!r} are texts. Pass them in their order as class_names.")
    known, labels = _single(columns, names, separator, class_names)
    return known, labels.astype("float32")[:, None]


def _multi(columns, names, separator, class_names):
    if separator is None:
        numbers = np.stack([_numbers(column, name) for column, name in zip(columns, names)], axis=1)
        wrong = np.flatnonzero(((numbers != 0) & (numbers != 1)).any(axis=1))
        if len(wrong):
            raise ValueError(
                f"The columns of several labels have only 0 and 1. Received other values in {_rows(wrong)}. Labels in "
                "one column, such as 'cat dog', need separator=' '."
            )
        return tuple(names), numbers.astype("float32")
    texts = _one_column(columns, names, "multi").tolist()
    found = [{part.strip() for part in str(text).split(separator)} - {""} for text in texts]
    known = _order(set().union(*found), class_names, names[0])
    return known, np.array([[name in one for name in known] for one in found], "float32")


def _regression(columns, names, separator, class_names):
    return tuple(names), np.stack([_numbers(c, name) for c, name in zip(columns, names)], axis=1).astype("float32")


_READ = {"single": _single, "multi": _multi, "regression": _regression, "ordinal": _ordinal}


def _numbers(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind not in "biuf":
        raise ValueError(f"The column {name!r} must have numbers. Received: {first_few(column.tolist(), 3)}")
    rows = np.flatnonzero(~np.isfinite(column.astype("float64")))
    if len(rows):
        raise ValueError(f"The column {name!r} has numbers that are not finite in {_rows(rows)}.")
    return column.astype("float64")


# --- the files ----------------------------------------------------------------------------------------------------


def find_pictures(ids: Sequence[str], root: Path) -> tuple[list[Path], frozenset[int]]:
    """Return the file of each id, and the numbers of those that have none; each folder is listed once."""
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

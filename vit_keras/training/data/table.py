"""Tables of images and labels, as data sets have them: CSV, TSV, Parquet, data frames, columns."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..._internal.imports import INSTALL, extra
from ..._internal.validate import Share, check_fields, did_you_mean, expanded, one_of, path_text, received
from ...labels import TASKS
from .dataset import DatasetOptions, ImageFolder, datasets_of
from .folder import EXTENSIONS, OF_IMAGES, Labeled, first_few, folder_of, images_in, read_folder
from .splits import hold_out

__all__ = ["find_images", "image_table", "is_table", "read_columns", "read_images", "read_table", "whole_columns"]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of a table, and what they mean; see `image_table`. `None` for `images_dir`: the folder of the table."""

    images_dir: str | os.PathLike[str] | None = None
    image_column: str = "image"
    label_column: str | Sequence[str] = "label"
    task: str = "auto"
    separator: str | None = None
    group_column: str | None = None
    class_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        one_of(self.task, "task", ("auto", *TASKS))


def image_table(
    table: Any,
    image_column: str = "image",
    label_column: str | Sequence[str] = "label",
    *,
    images_dir: str | os.PathLike[str] = ".",
    task: Literal["auto", "single", "multi", "regression", "ordinal"] = "auto",
    separator: str | None = None,
    group_column: str | None = None,
    class_names: Sequence[str] | None = None,
    validation_split: Share | None = None,
    **options: Any,
) -> ImageFolder | tuple[ImageFolder, ImageFolder]:
    """Read images and labels named by a table, as a dataset for `fit`, `evaluate` and `predict` on any backend.

    Batches, checks, caching and random numbers are those of `vit_keras.training.image_folder`.

    The content of the column or columns `label_column`, and of a batch, depends on the `task`:

    - `"single"`: names or whole numbers; int32 `(n,)`. `class_names` are the classes, sorted. Names in a CSV file are
      as they are written there: `001` is not `1`.
    - `"multi"`: columns of 0 and 1, or one of names with a `separator`; float32 `(n, labels)`. They are the labels.
    - `"regression"`: one or several columns of numbers; float32 `(n, columns)`. They are the columns.
    - `"ordinal"`: levels, in an order; float32 `(n, 1)`, from 0. They are the levels.

    Args:
        table: The path of a .csv, .tsv or .parquet file; a data frame of pandas or polars; or a dictionary of columns.
        image_column: Column of the images: files relative to `images_dir`. A name without a suffix, such as an id,
            means the image of that name, and one without a folder an image in `images_dir` or in a folder below it.
        label_column: Column of the labels, or several columns.
        images_dir: Folder of the images.
        task: What the labels are: one class per image, several labels, numbers, or ordered levels; `"auto"` infers it
            where it is unambiguous, and reports what it inferred.
        separator: Text between the labels of one image, such as `" "` or `"|"`, in a column with several. An empty cell
            means no label.
        group_column: Column of groups, such as patients, that are not divided between training and validation.
        class_names: Names of the classes, labels or levels in the order of the model's outputs. `None`: sorted, by
            number if all names are numbers. Levels that are not numbers need it.
        validation_split: Share to hold out, up to 0.5: the first of about 1/share folds of `splits.fold_numbers`.
        **options: Options of `image_folder`: `image_size`, `model`, `preprocessing`, `batch_size`, `seed`, `shuffle`,
            `augmentation`, `errors` (missing images count as damaged ones), `cache`, `workers`, `progress`.

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
    check_fields(DatasetOptions, options)
    how = DatasetOptions(**options)
    columns = Columns(images_dir, image_column, label_column, task, separator, group_column, class_names)
    data = read_table(table, columns)
    if data.assumed and how.progress:
        print(data.assumed, file=sys.stderr)
    datasets = datasets_of(data, None if validation_split is None else hold_out(data, validation_split, how.seed), how)
    return datasets[0] if validation_split is None else datasets


# --- what the columns say -----------------------------------------------------------------------------------------


def read_table(table: Any, how: Columns, fewest: int = 2) -> Labeled:
    """Return the images and labels of a table with at least this number of classes; see `image_table`."""
    task, separator, class_names, group = how.task, how.separator, how.class_names, how.group_column
    root, image = folder_of(table, how.images_dir), str(how.image_column)
    labels = how.label_column
    wanted = [str(labels)] if isinstance(labels, (str, int)) else [*map(str, labels)]
    if not wanted:
        raise ValueError(f"label_column must be a column or several. Received: {how.label_column!r}")
    as_written = [image, *wanted, *filter(None, [group])]
    columns, written = read_columns(table, [image]), read_columns(table, as_written)
    if separator is not None:
        if not separator or task not in ("auto", "multi"):
            raise ValueError(
                "separator= is a text between several labels in one column (task='multi'). Received: "
                f"{separator!r}, task {task!r}"
            )
        for each in (columns, written):
            each |= {name: _without_label(each[name]) for name in wanted if name in each}
    advice = " Choose others with image_column= and label_column= (--image-column, --label-column)."
    ids, *targets = whole_columns(columns, image, *wanted, advice=advice)
    assumed = ""
    if task == "auto":
        task, reason = _guess(targets, wanted, separator)
        assumed = f"task={task!r} is assumed: {reason}."
    if task == "regression" or (task == "multi" and separator is None):
        if class_names is not None and [*map(str, class_names)] != wanted:
            raise ValueError(
                f"The labels of task={task!r} are called as their columns, {first_few(wanted)}. Leave class_names= "
                "out, and pass the columns in the order that is wanted."
            )
        numbers = np.stack([_numbers(column, name) for column, name in zip(targets, wanted)], axis=1)
        names, labels = tuple(wanted), _float32(numbers, wanted) if task == "regression" else _flags(numbers)
    else:
        if len(wanted) > 1:
            raise ValueError(f"task={task!r} has one column of labels. Received: {first_few(wanted)}")
        if task == "ordinal" and targets[0].dtype.kind not in "iuf" and class_names is None:
            raise ValueError(
                f"The levels in the column {wanted[0]!r} are texts. Pass them in their order as class_names."
            )
        names, labels = _named(written[wanted[0]], wanted[0], separator, class_names)
        labels = labels.astype("float32")[:, None] if task == "ordinal" else labels
    if not names:
        raise ValueError(f"The column {wanted[0]!r} has no label in any row.")
    if labels.ndim == 1 and len(names) < fewest:
        raise ValueError(f"The column {wanted[0]!r} has only one class, {first_few(names)}. Training needs two.")
    groups = None if group is None else column_numbers(written, group)
    paths, missing = find_images(ids := [*map(str, ids)], root)
    return Labeled(task, names, paths, labels, ids, root, groups, missing, assumed)


def read_images(source: Any, how: Columns, errors: str, fewest: int = 2) -> Labeled:
    """Return the images of a folder of classes, or of a table; options of a table are refused for a folder."""
    if is_table(source):
        return read_table(source, how, fewest)
    path = expanded(path_text(source, "images", OF_IMAGES))
    given = [field.name for field in dataclasses.fields(how) if getattr(how, field.name) != field.default]
    if given and not path.is_dir() and path.exists():
        raise ValueError(f"{path} is not a table: its name must end in .csv, .tsv or .parquet.")
    if given and path.exists():
        verb = "belongs" if len(given) == 1 else "belong"
        raise ValueError(f"{', '.join(given)} {verb} to a table. {path} is a folder of classes.")
    return read_folder(path, None, errors, fewest)


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


def _named(
    column: np.ndarray, title: str, separator: str | None, class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names in a column, and the number of each row's; or 0 and 1 for each, of several in a row."""
    if separator is None:
        values = _texts(column)
        known = _order(set(values), class_names, title)
        place = {name: number for number, name in enumerate(known)}
        return known, np.array([place[value] for value in values], "int32")
    found = [{part.strip() for part in str(text).split(separator)} - {""} for text in column.tolist()]
    known = _order(set().union(*found), class_names, title)
    return known, np.array([[name in one for name in known] for one in found], "float32")


def _flags(numbers: np.ndarray) -> np.ndarray:
    wrong = np.flatnonzero(((numbers != 0) & (numbers != 1)).any(axis=1))
    if len(wrong):
        raise ValueError(
            f"The columns of several labels have only 0 and 1. Received other values in {row_numbers(wrong)}. "
            "Labels in one column, such as 'cat dog', need separator=' '."
        )
    return numbers.astype("float32")


def _float32(numbers: np.ndarray, names: Sequence[str]) -> np.ndarray:
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
    return rounded


def _numbers(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind not in "biuf":
        raise ValueError(f"The column {name!r} must have numbers. Received: {first_few(column.tolist(), 3)}")
    rows = np.flatnonzero(~np.isfinite(column.astype("float64")))
    if len(rows):
        raise ValueError(f"The column {name!r} has numbers that are not finite in {row_numbers(rows)}.")
    return column.astype("float64")


# --- the files ----------------------------------------------------------------------------------------------------


def find_images(ids: Sequence[str], root: Path) -> tuple[list[Path], frozenset[int]]:
    """Return the file of each id, and the numbers of ids without a file; each folder is listed once."""
    # An id without a folder may be anywhere below `root`: HAM10000 and ChestX-ray14 have their images in several.
    folders: dict[Path, dict[str, list[str]]] = {}
    below: dict[str, list[str]] | None = None if root != Path() else {}
    paths, missing = [], []
    for row, name in enumerate(ids):
        path = root / name
        if path.parent not in folders:
            folders[path.parent] = _listed(path.parent)
        known = folders[path.parent]
        found = [path.name] if path.name in known[""] else known.get(path.name, [])
        if not found and path.parent == root:
            below = _listed_below(root) if below is None else below
            found = below.get(path.name, [])
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


def _listed_below(folder: Path) -> dict[str, list[str]]:
    """Return the images in all folders of a folder, by their names with and without an ending."""
    found: dict[str, list[str]] = {}
    for path in images_in(folder):
        for name in {path.name, path.stem}:
            found.setdefault(name, []).append(path.relative_to(folder).as_posix())
    return found


# --- a table as columns -------------------------------------------------------------------------------------------


_READERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".parquet": None, ".pq": None}
_PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")


def images_of_table(table: Any, images_dir: str | os.PathLike[str] | None, column: str | None) -> list[str]:
    """Return the file of each row of a table, none of which may be missing; `column` is the first one by default."""
    column = column or next(iter(read_columns(table)))
    (names,) = whole_columns(read_columns(table, [column]), column)
    paths, missing = find_images([*map(str, names)], folder_of(table, images_dir))
    if missing:
        lost = first_few([str(paths[row]) for row in sorted(missing)])
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(paths):,} images of {received(table)} are missing: {lost}. Pass images_dir= "
            "(--images-dir), their folder, or leave their rows out of the table."
        )
    return [*map(str, paths)]


def is_table(data: Any) -> bool:
    """Return whether a value is a table for `image_table` instead of a folder."""
    if isinstance(data, (str, os.PathLike)):
        return _ending(Path(data)) in _READERS and not expanded(data).is_dir()
    named = hasattr(data, "columns") or hasattr(data, "column_names")
    return isinstance(data, Mapping) or (named and hasattr(data, "__getitem__"))


def read_columns(table: Any, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the columns of a table as arrays."""
    if not is_table(table):
        raise TypeError(
            "A table is the path of a .csv, .tsv or .parquet file, a data frame, or a dictionary of columns. "
            f"Received: {table!r:.100}"
        )
    frame = _read_file(expanded(table), texts) if isinstance(table, (str, os.PathLike)) else table
    names = frame if isinstance(frame, Mapping) else getattr(frame, "column_names", None) or frame.columns  # of Arrow
    columns = {str(name): _array(frame[name]) for name in names}
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
    if array.dtype.kind != "O":
        return array if array.dtype.kind in "biuf" else array.astype(object)
    for value in array:
        if isinstance(value, (list, tuple, dict, np.ndarray)):
            raise ValueError(
                f"A column of a table has one value in each row. Received: {value!r:.100}. Join several labels to one "
                "text, and pass separator=."
            )
    numeric = all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in array)
    return np.array(array.tolist()) if numeric else array


def _without_label(column: np.ndarray) -> np.ndarray:
    """Return a column of labels in which a missing value is an empty text: no label."""
    missing = [_is_missing(value) for value in column.tolist()]
    return np.where(missing, "", column.astype(object)) if any(missing) else column


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value


def _ending(path: Path) -> str:
    return Path(path.stem if path.suffix.lower() in _PACKED else path.name).suffix.lower()


def _read_file(path: Path, texts: Sequence[str]) -> Any:
    if not path.is_file():
        raise FileNotFoundError(f"There is no table {path}.")
    pandas = extra("pandas", "Reading a table needs pandas")
    separator = _READERS[_ending(path)]
    try:
        if separator is None:
            return pandas.read_parquet(path)
        # "NA", "None" and "null" are names of classes too; only an empty cell and NaN are missing.
        options = {"dtype": dict.fromkeys(texts, str), "keep_default_na": False, "na_values": ["", "NaN", "nan"]}
        titles = [*pandas.read_csv(path, sep=separator, nrows=0)]
        if len(titles) == 1:  # whatever its ending, such a file has another separator
            separator = next((other for other in ",;\t|" if other in titles[0]), separator)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # rows that are longer than the header
            return pandas.read_csv(path, sep=separator, index_col=False, **options)
    except ImportError as error:
        needs = f"Reading Parquet needs pyarrow: {INSTALL}"
        raise ImportError(needs if separator is None else f"{path} cannot be read: {error}") from None
    except pandas.errors.ParserWarning:
        raise ValueError(f"{path} has more values in its rows than names of columns in its first line.") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:  # pandas' and pyarrow's
        raise ValueError(f"{path} cannot be read as a table: {error}") from None


def whole_columns(columns: Mapping[str, np.ndarray], *names: str, advice: str = "") -> list[np.ndarray]:
    """Return columns without a missing value; `advice` follows in the error for a column that is not there."""
    for name in map(str, names):
        if name not in columns:
            hint = did_you_mean(name, columns)
            raise ValueError(
                f"The table has no column {name!r}.{hint} Its columns: {', '.join(columns)}.{'' if hint else advice}"
            )
        rows = np.flatnonzero([_is_missing(value) for value in columns[name].tolist()])
        if len(rows):
            raise ValueError(
                f"The column {name!r} has no value in {row_numbers(rows)}. Fill them in, or leave the rows out."
            )
    return [columns[str(name)] for name in names]


def row_numbers(rows: Sequence[int] | np.ndarray) -> str:
    """Return the numbers of rows in words; the first row below the names of the columns is 1."""
    shown = ", ".join(f"{row + 1:,}" for row in rows[:10])
    more = f" and {len(rows) - 10:,} more" if len(rows) > 10 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more} (the first is 1)"

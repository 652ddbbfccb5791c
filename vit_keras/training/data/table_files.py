"""A table as columns: CSV, TSV and Parquet files, data frames, tables of Arrow, dictionaries.

>>> read_columns({"image": ["1.png", "2.png"], "label": [0, 1]})["label"].tolist()
[0, 1]
"""

from __future__ import annotations

import os
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..._internal.validate import did_you_mean, expanded

__all__ = ["is_table", "read_columns", "whole_columns"]

_READERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".parquet": None, ".pq": None}
_PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst")


def is_table(data: Any) -> bool:
    """Return whether a value is a table for `image_table` instead of a folder.

    Example:
        >>> is_table("train.csv"), is_table("flowers"), is_table({"image": ["1.png"]})
        (True, False, True)
    """
    if isinstance(data, (str, os.PathLike)):
        return _ending(Path(data)) in _READERS and not expanded(data).is_dir()
    named = hasattr(data, "columns") or hasattr(data, "column_names")
    return isinstance(data, Mapping) or (named and hasattr(data, "__getitem__"))


def read_columns(table: Any, texts: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Return the columns of a table as arrays.

    Args:
        table: As in `image_table`.
        texts: Columns of a CSV file whose values are texts as they are written, even where they look like numbers: ids
            such as `007`. A column that is not there is ignored.

    Raises:
        FileNotFoundError: The file does not exist.
        ImportError: pandas is not installed, or pyarrow for Parquet.
        TypeError: It is not a table.
        ValueError: It cannot be read, is empty, or its columns differ in length.

    Example:
        >>> read_columns({"image": ["1.png", "2.png"], "label": [0, 1]})["label"].tolist()
        [0, 1]
    """
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
    if array.dtype.kind == "O" and any(isinstance(value, (list, tuple, dict, np.ndarray)) for value in array):
        found = next(value for value in array if isinstance(value, (list, tuple, dict, np.ndarray)))
        raise ValueError(
            f"A column of a table has one value in each row. Received: {found!r:.100}. Join several labels to one "
            "text, and pass separator=."
        )
    if array.dtype.kind == "O" and all(isinstance(value, (bool, int, float, np.number, np.bool_)) for value in array):
        return np.array(array.tolist())
    return array if array.dtype.kind in "biuf" else array.astype(object)


def without_label(column: np.ndarray) -> np.ndarray:
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
    try:
        import pandas
    except ImportError:
        raise ImportError('Reading a table needs pandas: pip install "vit-keras[table]"') from None
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
        needs = 'Reading Parquet needs pyarrow: pip install "vit-keras[table]"'
        raise ImportError(needs if separator is None else f"{path} cannot be read: {error}") from None
    except pandas.errors.ParserWarning:
        raise ValueError(f"{path} has more values in its rows than names of columns in its first line.") from None
    except (
        ValueError,
        OSError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:  # pandas' and pyarrow's errors are of these
        raise ValueError(f"{path} cannot be read as a table: {error}") from None


def whole_columns(columns: Mapping[str, np.ndarray], *names: str, advice: str = "") -> list[np.ndarray]:
    """Return columns without a missing value; `advice` follows in the error for a column that is not there."""
    for name in names:
        if name not in columns:
            name = str(name)
            hint = did_you_mean(name, columns)
            raise ValueError(
                f"The table has no column {name!r}.{hint} Its columns: {', '.join(columns)}.{'' if hint else advice}"
            )
        column = columns[name]
        rows = np.flatnonzero([_is_missing(value) for value in column.tolist()])
        if len(rows):
            raise ValueError(
                f"The column {name!r} has no value in {row_numbers(rows)}. Fill them in, or leave the rows out."
            )
    return [columns[name] for name in names]


def row_numbers(rows: Sequence[int] | np.ndarray) -> str:
    """Return the numbers of rows in words; the first row below the names of the columns is 1."""
    shown = ", ".join(f"{row + 1:,}" for row in rows[:10])
    more = f" and {len(rows) - 10:,} more" if len(rows) > 10 else ""
    return f"row{'s' if len(rows) > 1 else ''} {shown}{more} (the first is 1)"

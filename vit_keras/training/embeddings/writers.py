"""Files of features, written batch by batch: of what was written only the names stay in memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..._internal.imports import extra
from ..._internal.validate import path_text
from .batches import Batch, joined_labels, joined_paths

__all__: list[str] = []


def writer_for(output: str | os.PathLike[str]) -> Callable[[Path, Iterable[Batch]], Any]:
    """Return the function that writes batches of features to a file of this suffix."""
    suffix = Path(path_text(output, "output", "the path of a file")).suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"output must end in {', '.join(_WRITERS)}. Received: {os.fspath(output)!r}")
    if suffix == ".parquet":
        extra("pyarrow.parquet", "A .parquet file needs PyArrow, and .npy and .npz do not")
    return _WRITERS[suffix]


def _write_npy(path: Path, rows: Iterable[Batch]) -> list[Batch]:
    """Write the features, and return the batches without them."""
    count, others, shape = 0, [], ()

    def header(file):
        # NumPy leaves room in the header for more rows.
        fields = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, fields)

    with open(path, "wb") as file:
        for row in rows:
            if not count:
                shape = row.images.shape[1:]
                header(file)
            file.write(np.ascontiguousarray(row.images, "<f4").data)  # `tofile` does not say that the disk is full
            count += len(row.images)
            others.append(row._replace(images=None))
        file.seek(0)
        header(file)
    return others


def _write_npz(path: Path, rows: Iterable[Batch]) -> None:
    features = path.with_name("features.npy")
    others = _write_npy(features, rows)
    columns: dict[str, Any] = {"labels": joined_labels(others), "paths": joined_paths(others)}
    columns = {name: np.array([*column]) for name, column in columns.items() if column is not None}
    with open(path, "wb") as file:
        np.savez(file, features=np.load(features, mmap_mode="r"), **columns)


_ROW_GROUP = 1024  # rows that a Parquet file keeps together, and that are in memory at a time


def _write_parquet(path: Path, rows: Iterable[Batch]) -> None:
    import pyarrow
    import pyarrow.parquet

    def table(group: list[Batch]):
        features = np.concatenate([row.images for row in group])
        column = pyarrow.array(features.ravel())
        for size in features.shape[:0:-1]:
            column = pyarrow.FixedSizeListArray.from_arrays(column, size)
        labels = joined_labels(group)
        known = {"path": joined_paths(group), "label": None if labels is None else labels.tolist()}
        known = {name: values for name, values in known.items() if values is not None}
        return pyarrow.table({**known, "features": column})

    with contextlib.ExitStack() as stack:
        writer, group = None, []
        for row in itertools.chain(rows, [None]):
            if row is not None:
                group.append(row)
            if group and (row is None or sum(len(each.images) for each in group) >= _ROW_GROUP):
                ready, group = table(group), []
                writer = writer or stack.enter_context(pyarrow.parquet.ParquetWriter(path, ready.schema))
                writer.write_table(ready)


_WRITERS = {".npy": _write_npy, ".npz": _write_npz, ".parquet": _write_parquet}

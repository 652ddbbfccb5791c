"""Predictions for a table of images, averaged over models and views, in the columns that a competition asks for."""

from __future__ import annotations

import collections
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np

from ... import anatomy
from ..._internal.atomic import check_writable, complete
from ..._internal.finite import check_outputs
from ..._internal.imports import INSTALL, extra
from ..._internal.progress import progress_bar
from ..._internal.validate import expanded, listed, one_of, positive_integer
from ...anatomy.outputs import NUMBERS, output_kind, sigmoid, softmax
from ...opening import as_model
from ..data.columns import VALUES, Meaning, check_spelling, columns_of, meaning_of
from ..data.dataset import preprocessing_for
from ..data.decoding import decode_images
from ..data.folder import first_few, folder_of, report_unread
from ..data.table import find_images, read_columns, whole_columns
from ..embeddings.batches import run_filled, slices
from .views import SeveralViews

if TYPE_CHECKING:
    import pandas

__all__ = ["predict_table"]


def predict_table(
    table: Any,
    models: Any,
    images_dir: str | os.PathLike[str] | None = None,
    *,
    image_column: str | None = None,
    sample: Any = None,
    output: str | os.PathLike[str] | None = None,
    tta: str | Iterable[str] = (),
    average: Literal["probabilities", "logits"] = "probabilities",
    values: Literal["auto", "names", "numbers", "probabilities"] = "auto",
    separator: str | None = None,
    image_size: int | tuple[int, int] | str | None = "native",
    batch_size: int = 32,
    errors: Literal["raise", "skip"] = "raise",
    progress: bool = True,
) -> pandas.DataFrame:
    """Predict every row of a table of images, by the average of several models and views.

    Models are opened one after the other. Each image is decoded once for all models of one size and way to resize.

    Args:
        table: Table with a row for each image: a .csv, .tsv or .parquet file, a data frame, or a dictionary of columns
            (see `vit_keras.training.image_table`). A sample submission will do.
        models: Models, or paths of saved ones, such as one for each fold; predictions of several are averaged. Their
            tasks, and the names of their classes, must be the same.
        images_dir: Folder of the images; `None`: the folder of the table. Without a file, paths are taken as they are.
        image_column: Column of the images, whose names may lack the suffix; `None`: the first column. It is the first
            of the sample, if the table has that one.
        sample: Sample submission; the result gets its columns, in its order, and its ids. Its first column holds the
            ids. The ids in it and those in the table must be the same.
        output: File to write: .csv, .tsv or .parquet; its folder is made.
        tta: Test-time augmentation, views of each image besides the whole: `"flip"`, `"crops"`, or both (see
            `views.VIEWS`).
        average: What is averaged: probabilities, or logits, before the softmax or sigmoid. Numbers are averaged as they
            are.
        values: What to write: names or numbers of classes, labels or levels, or a probability for each; `"auto"`: what
            the columns of the sample tell. `"names"` of labels are joined by the separator; `"numbers"` of labels are a
            column of 0 and 1 for each. With `"auto"`, a column for each class is for probabilities, one of texts for
            names, one of integers for numbers, and one of decimal numbers for the probability of the second class of
            two. Names that are numbers, such as 4 or 0.5, are written where numbers are asked for. Without a sample:
            probabilities of labels, else names or numbers.
        separator: Text between the labels in one column, which is in none of their names; `None`: a space.
        image_size: Input size in pixels, for models that take any size; `"native"`: the size of the checkpoint.
            `(height, width)`, or one integer for a square. `None` is `"native"`.
        batch_size: Images in a batch.
        errors: What to do with damaged and missing images: `"raise"` an error, or `"skip"` them with a warning. Their
            rows get the mean prediction of all others.
        progress: Whether to show progress bars.

    Returns:
        A DataFrame with the rows of the table, in its order: the ids, then the predictions.

    Raises:
        FileNotFoundError: There is no such table, folder or model.
        ImportError: pandas is not installed, or pyarrow for .parquet.
        OSError: The output cannot be written.
        ValueError: Images are missing or damaged, the models differ in what they predict, the sample has other ids
            or columns, or the ids and predictions have columns of one name.

    Warns:
        UserWarning: Images could not be read.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> table = predict_table({"id": ["daisy/0", "rose/1.png"]}, tiny, "flowers", tta="flip")
        >>> table.to_dict("list")
        {'id': ['daisy/0', 'rose/1.png'], 'label': ['0', '0']}
    """
    one_of(average, "average", ("probabilities", "logits"))
    one_of(values, "values", VALUES)
    one_of(errors, "errors", ("raise", "skip"))
    positive_integer(batch_size, "batch_size")
    target = None if output is None else _target(output)
    models = listed(models, (str, os.PathLike, keras.Model), "models")
    pandas = extra("pandas", "Predictions of a table need pandas")
    wanted = None if sample is None else read_columns(sample, [*read_columns(sample)][:1])
    title, ids, names = _ids_and_names(table, wanted, image_column)
    paths, missing = find_images(names, folder_of(table, images_dir))
    if missing and errors == "raise":
        report_unread([str(paths[n]) for n in sorted(missing)], (), len(paths), errors, _SKIPPED)
    views = tta if isinstance(tta, str) else tuple(tta)
    how = (wanted, values, separator)

    def check(known: Meaning) -> None:
        if title in columns_of(np.zeros((1, known.outputs)), known, *how):
            raise ValueError(f"The column of the ids is called {title!r}, as a column of predictions. Rename it.")
        if wanted is not None:
            check_spelling(known, read_columns(sample, [*wanted]), values, separator)

    def views_of(model: keras.Model) -> SeveralViews:
        return SeveralViews(preprocessing_for(model, None, image_size), views)

    scores, meaning = _predict(models, paths, check, average, views_of, batch_size, errors, progress)
    found = pandas.DataFrame({title: ids, **columns_of(scores, meaning, *how)})
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with complete(target) as part:
            _WRITERS[target.suffix.lower()](found, part)
    return found


_SKIPPED = "get the mean prediction of all others"
_WRITERS = {
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".tsv": lambda table, path: table.to_csv(path, index=False, sep="\t"),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
}


def _target(output: Any) -> Path:
    """Return the file to write, if it can be written."""
    target = expanded(output)
    if target.suffix.lower() not in _WRITERS:
        raise ValueError(f"The output file must end in {', '.join(_WRITERS)}. Received: {target}")
    if target.suffix.lower() == ".parquet" and not any(map(importlib.util.find_spec, ("pyarrow", "fastparquet"))):
        raise ImportError(f"Writing {target} needs pyarrow: {INSTALL}. Or write a .csv file.")
    check_writable(target.parent)
    return target


def _ids_and_names(
    table: Any, wanted: Mapping[str, np.ndarray] | None, image: str | None
) -> tuple[str, np.ndarray, list[str]]:
    """Return the title of the ids, the ids, which must be the sample's in any order, and the names of the images."""
    there, first = [*read_columns(table)], [*(wanted or ())][:1]
    image = image or next((name for name in first if name in there), there[0])
    title = first[0] if first else image
    column = title if title in there else image
    columns = read_columns(table, [image, column])
    names, ids = whole_columns(columns, image, column)
    if wanted is not None:
        here, asked = (collections.Counter(map(str, values)) for values in (ids, wanted[title]))
        missing, extra = [*(asked - here).elements()], [*(here - asked).elements()]
        lacks = f"the table lacks {len(missing):,} of them: {first_few(missing)}" if missing else ""
        more = f"the table has {len(extra):,} more: {first_few(extra)}" if extra else ""
        if missing or extra:
            raise ValueError(f"The ids of the sample, {title!r}: {'; '.join(filter(None, (lacks, more)))}.")
    return title, ids, [*map(str, names)]


def _predict(
    models: Sequence[Any],
    paths: list[Path],
    check: Callable[[Meaning], Any],
    average: str,
    views_of: Callable[[keras.Model], SeveralViews],
    batch_size: int,
    errors: str,
    progress: bool,
) -> tuple[np.ndarray, Meaning]:
    """Return the mean prediction of each image, float64 `(n, outputs)`, and its meaning if `check` accepts it."""
    total, decoded = np.zeros(()), {}
    meanings: list[Meaning] = []
    failed: dict[Path, str] = {}  # a size that an image cannot be resized to fails alone
    for number, given in enumerate(models, start=1):
        model = as_model(given)
        meanings.append(meaning_of(model))
        if number == 1:
            check(meanings[0])
            total = np.zeros((len(paths), meanings[0].outputs))
        if meanings[-1] != meanings[0]:
            name = model.name if given is model else given
            raise ValueError(f"All models must predict the same. The first: {meanings[0]}. {name}: {meanings[-1]}.")
        views = views_of(model)
        if views.key() not in decoded:
            decoded[views.key()] = decode_images(paths, views, "auto", 2, progress)
        images = decoded[views.key()]
        if images.failures.keys() - failed.keys():
            failed |= images.failures
            lost = [str(path) for path in failed if not path.is_file()]
            damaged = [(path, why) for path, why in failed.items() if path.is_file()]
            report_unread(lost, damaged, len({*paths}), errors, _SKIPPED)
        rows = np.flatnonzero([path not in images.failures for path in paths])
        with progress_bar(f"model {number} of {len(models)}", len(rows), show=progress) as advance:
            for part in slices(len(rows), batch_size):
                inputs = views.inputs(np.stack([images[n] for n in rows[part]]))
                outputs = [run_filled(model.predict_on_batch, view, min(batch_size, len(rows))) for view in inputs]
                total[rows[part]] += np.mean([_scores(model, each, average) for each in outputs], axis=0)
                advance(len(rows[part]))
        del model  # before the next one is opened
    total, meaning = total / len(models), meanings[0]
    if average == "logits":
        total = {"single": softmax, "multi": sigmoid}.get(meaning.task, np.asarray)(total)
    good = np.array([path not in failed for path in paths])
    total[~good] = total[good].mean(axis=0)
    return total, meaning


def _scores(model: keras.Model, outputs: np.ndarray, average: str) -> np.ndarray:
    """Return the values of one batch for the average: predictions or logits, float64."""
    task = meaning_of(model).task
    predictions = check_outputs(model, anatomy.predictions(model, outputs)).astype("float64")
    if average == "probabilities" or task in NUMBERS:
        return predictions
    if output_kind(model) == "logits":
        return np.asarray(outputs, "float64")
    known = np.clip(predictions, 1e-7, 1 - 1e-7)
    return np.log(known) - (np.log1p(-known) if task == "multi" else 0)

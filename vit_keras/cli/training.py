"""`finetune`, `evaluate`, `predict-table`, `average` and `embed`: models and many images."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .._internal.atomic import check_output, complete
from .._internal.plain_json import as_json
from .._internal.validate import expanded
from ..checkpoints.checkpoint import megabytes
from ..opening import open_model
from ..training import averaging, embeddings, evaluation, finetuning
from ..training.data.folder import folder_of
from ..training.data.table import is_table
from ..training.evaluation import images_of_mistakes, submission
from ..training.evaluation.report import report
from .console import print_table, printable
from .loading import files_of, opened, paths_of, taken
from .options import Setting, settings_of
from .pictures import check_html

__all__ = ["average", "embed", "evaluate", "finetune", "predict_table"]


def finetune(folder: str, *, set: Iterable[Setting] = (), command: str = "", **options: Any) -> None:
    """Fine-tune a model on a folder or table of images, and write a report.

    Args:
        folder: Folder with one subfolder per class: DIR/class/image.jpg; or a table of images and labels: .csv, .tsv
            or .parquet.
        set: Set a field of ViTConfig, or an option of the recipe or its augmentation, such as learning_rate=1e-4 or
            flip=false; may be repeated.
    """
    finetuning.finetune(folder, command=command, **settings_of(set, **options))


def evaluate(
    model: str, folder: str, *, output: str | None = None, json: bool = False, command: str = "", **options: Any
) -> None:
    """Measure the accuracy of a model on a folder or table of images.

    Args:
        model: Saved model (.keras, .h5) or published name.
        folder: Folder with one subfolder per class: DIR/class/image.jpg; or a table of images and labels: .csv, .tsv
            or .parquet.
        output: Also write a report of the mistakes, with attention maps: .html.
        json: Print the result as JSON.
    """
    path = None if output is None else expanded(output)
    if path is not None:
        check_html(path)
        check_output([path])
    found = evaluation.evaluate(model, folder, **options)
    if json:
        print(as_json(found.to_dict(), indent=2))
    else:
        header, *rows = found.table
        print(f"{found.headline}\n")
        print_table([title.upper() for title in header], rows, "<" + ">" * (len(header) - 1))
    if path is not None:
        classifier = open_model(model)
        root = folder_of(folder, options.get("images_dir")) if is_table(folder) else folder
        page = report(
            found,
            title=f"{classifier.name} on {Path(folder).resolve().name}",
            subtitle=model,
            images=images_of_mistakes(classifier, found, root),
            command=command,
        )
        with complete(path, make_folder=True) as part:
            part.write_text(page, encoding="utf-8")


def predict_table(table: str, *, models: Sequence[str], output: str, sample: str | None = None, **options: Any) -> None:
    """Predict every row of a table of images with one model or the average of several.

    Args:
        table: Table with a row for each image: .csv, .tsv or .parquet.
        models: Saved models (.keras, .h5), such as one per fold; predictions of several are averaged.
        output: File to write: .csv, .tsv or .parquet.
        sample: Sample submission; the output gets its columns and ids.
    """
    path, given = expanded(output), paths_of(models)
    check_output([path], [table, *given, *filter(None, [sample])])
    found = submission.predict_table(table, given, sample=sample, output=path, **options)
    print(f"{path}, {len(found):,} rows: {printable(', '.join(map(str, found.columns)))}")


def average(models: Sequence[str], *, output: str) -> None:
    """Average the weights of several models, such as one for each fold, into one model.

    Args:
        models: Saved models (.keras, .h5) of the same architecture.
        output: File to write: .keras.
    """
    given = paths_of(models)
    if (path := expanded(output)).suffix != ".keras":
        raise ValueError(f"The output file must end in .keras. Received: {path}")
    check_output([path], given)
    with complete(path, make_folder=True) as part:
        averaging.average(given).save(part)
    print(f"{output}, the average of {len(given)} models")


def embed(images: Sequence[str], *, output: str, **options: Any) -> None:
    """Compute one feature vector per image.

    Args:
        images: Folder of images, table (.csv, .tsv or .parquet), image file or URL.
        output: File to write: .parquet, .npz or .npy.
    """
    path = expanded(output)
    if path.suffix not in (".parquet", ".npz", ".npy"):
        raise ValueError(f"The output file must end in .parquet, .npz or .npy. Received: {path}")
    one = images[0] if len(images) == 1 else ""
    if not one and any(map(is_table, images)):
        raise ValueError(f"A table is embedded alone. Received: {' '.join(images)}")
    whole = is_table(one) or (one and expanded(one).is_dir())  # a folder has names of subfolders
    chosen: Any = one if whole else files_of(images)
    check_output([path], [one] if is_table(one) else [])
    model = opened(**taken(options))
    path.parent.mkdir(parents=True, exist_ok=True)
    embeddings.embed(model, chosen, output=path, **options)
    print(f"{path}, {megabytes(path.stat().st_size)}")

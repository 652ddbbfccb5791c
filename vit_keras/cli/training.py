"""`finetune`, `evaluate`, `predict-table`, `average` and `embed`: models and many images."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

from .._internal.plain_json import as_json
from .._internal.validate import did_you_mean, expanded
from ..checkpoints.checkpoint import megabytes
from ..config import ViTConfig
from ..opening import from_checkpoint, open_model
from ..training import averaging, embeddings, evaluation, finetuning, recipes
from ..training.data import augment
from ..training.data.folder import first_few, folder_of
from ..training.data.table import find_pictures, is_table, read_columns, whole_columns
from ..training.evaluation import pictures_of_mistakes, submission
from ..training.evaluation.report import report
from .console import print_table, printable
from .options import loading, paths_of
from .pictures import check_html, check_output, complete_in_new_folder, files_of, open_with_options

__all__ = ["average", "embed", "evaluate", "finetune", "predict_table"]


def finetune(options: argparse.Namespace) -> None:
    """Fine-tune a model; `--set` changes the recipe, its augmentation, or the model."""
    given = dict(options.set)
    settings: dict[str, Any] = {n: value for n, value in loading(options).items() if value is not None or n in given}
    recipe = recipes.recipe(options.recipe)
    augmentation = recipe.augmentation or augment.Augmentation(crop=None, flip=False)
    _check_names(given, recipe, augmentation)
    for name in ("epochs", "batch_size"):
        if name in given and getattr(options, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} and --set {name}=… exclude each other. Remove one.")
    changes = {name: settings.pop(name) for name in given if name in recipe.to_dict()}
    augmented = {name: settings.pop(name) for name in given if name in augmentation.to_dict()}
    if augmented:
        changes["augmentation"] = augmentation.replace(**augmented)
    finetuning.finetune(
        options.folder,
        model=options.model,
        weights=options.weights,
        recipe=recipe.replace(**changes),
        epochs=options.epochs,
        minutes=options.minutes,
        batch_size=options.batch_size,
        validation_split=options.held_out,
        folds=int(options.folds) if (options.folds or "").isdecimal() else options.folds,
        metric=options.metric,
        images_dir=options.images_dir,
        image_column=options.image_column,
        label_column=_columns(options.label_column) or "label",
        task=options.task,
        separator=options.separator,
        group_column=options.group_column,
        weight_column=options.weight_column,
        class_names=options.class_names,
        balance=options.balance_by or options.balance,
        probe=options.probe,
        calibrate=options.calibrate,
        output=options.output,
        overwrite=options.overwrite,
        seed=options.seed,
        errors=options.errors,
        command=options.command,
        **settings,
    )


def _check_names(given: dict[str, Any], recipe: recipes.Recipe, augmentation: augment.Augmentation) -> None:
    """Raise a `ValueError` for a name that `--set` cannot set."""
    of_model = [
        *(field.name for field in dataclasses.fields(ViTConfig)),
        *inspect.signature(from_checkpoint).parameters,
    ]
    known = [*recipe.to_dict(), *augmentation.to_dict(), *of_model]
    for name in given:
        if name not in known:
            raise ValueError(
                f"--set cannot set {name!r}.{did_you_mean(name, known)} It takes fields of the recipe "
                f"({', '.join(recipe.to_dict())}), of its augmentation ({', '.join(augmentation.to_dict())}), and of "
                "the model (ViTConfig)."
            )


def evaluate(options: argparse.Namespace) -> None:
    """Print how well a model predicts images, and each class or label, and write a report if asked to."""
    if options.output is not None:
        check_html(options.output)
        check_output([expanded(options.output)], [])
    model = open_model(options.model)
    found = evaluation.evaluate(
        model,
        options.folder,
        images_dir=options.images_dir,
        image_column=options.image_column,
        label_column=_columns(options.label_column),
        separator=options.separator,
        only=options.only,
        image_size=options.image_size,
        batch_size=options.batch_size,
        errors=options.errors,
        progress=sys.stderr.isatty(),
    )
    if options.json:
        print(as_json(found.to_dict(), indent=2))
    else:
        _print_evaluation(found)
    if options.output is not None:
        root = folder_of(options.folder, options.images_dir) if is_table(options.folder) else options.folder
        page = report(
            found,
            title=f"{model.name} on {Path(options.folder).resolve().name}",
            subtitle=str(options.model),
            pictures=pictures_of_mistakes(model, found, root),
            command=options.command,
        )
        with complete_in_new_folder(expanded(options.output)) as part:
            part.write_text(page, encoding="utf-8")


def _columns(names: list[str] | None) -> str | list[str] | None:
    return names[0] if names is not None and len(names) == 1 else names


def _print_evaluation(found: Any) -> None:
    header, *rows = found.table
    print(f"{found.headline}\n")
    print_table([title.upper() for title in header], rows, "<" + ">" * (len(header) - 1))


def predict_table(options: argparse.Namespace) -> None:
    """Write the predictions for a table of images, averaged over models and views."""
    output = expanded(options.output)
    models = paths_of(options.models)
    check_output([output], [options.table, *models, *filter(None, [options.like])])
    found = submission.predict_table(
        options.table,
        models,
        options.images_dir,
        image_column=options.image_column,
        sample=options.like,
        output=output,
        tta=options.tta,
        average=options.average,
        values=options.values,
        threshold=options.threshold,
        separator=options.separator,
        image_size=options.image_size,
        batch_size=options.batch_size,
        errors=options.errors,
        progress=sys.stderr.isatty(),
    )
    print(f"{output}, {len(found):,} rows: {printable(', '.join(map(str, found.columns)))}")


def average(options: argparse.Namespace) -> None:
    """Write the average of several models."""
    models = paths_of(options.models)
    check_output([expanded(options.output)], models)
    averaging.average(models, output=options.output)
    print(f"{options.output}, the average of {len(models)} models")


def embed(options: argparse.Namespace) -> None:
    """Write a feature vector for each image."""
    output = expanded(options.output)
    if output.suffix not in (".parquet", ".npz", ".npy"):
        raise ValueError(f"The output file must end in .parquet, .npz or .npy. Received: {output}")
    given = options.images[0] if len(options.images) == 1 else ""
    if is_table(given):
        images: Any = _images_of_table(given, options)
    elif any(map(is_table, options.images)):
        raise ValueError(f"A table is embedded alone. Received: {' '.join(options.images)}")
    elif options.images_dir is not None or options.image_column is not None:
        raise ValueError(f"--images-dir and --image-column are for a table. Received: {' '.join(options.images)}")
    else:
        one = given and expanded(given).is_dir()  # has names of subfolders
        images = given if one else files_of(options.images)
    check_output([output], [given] if is_table(given) else [])
    model = open_with_options(options)
    output.parent.mkdir(parents=True, exist_ok=True)
    embeddings.embed(
        model,
        images,
        batch_size=options.batch_size,
        output=output,
        layer=options.layer,
        errors=options.errors,
        progress=sys.stderr.isatty(),
    )
    print(f"{output}, {megabytes(output.stat().st_size)}")


def _images_of_table(table: str, options: argparse.Namespace) -> list[str]:
    """Return the image of each row of a table.

    Raises:
        FileNotFoundError: Images are missing. Without them, the rows of the output would not be those of the table.
    """
    column = options.image_column or next(iter(read_columns(table)))
    (names,) = whole_columns(read_columns(table, [column]), column)
    paths, missing = find_pictures([*map(str, names)], folder_of(table, options.images_dir))
    if missing:
        lost = first_few([str(paths[row]) for row in sorted(missing)])
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(paths):,} images of {table} are missing: {lost}. Name their folder by "
            "--images-dir, or leave their rows out of the table."
        )
    return [*map(str, paths)]

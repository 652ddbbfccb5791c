"""Fine-tune a model on a folder of images in one call that survives a kill, and write a report."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import math
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np
from PIL import Image

from ..._internal import validate
from ..._internal.atomic import check_writable
from ..._internal.imports import INSTALL
from ..._internal.validate import Share, expanded, one_of, positive_integer
from ...anatomy.inputs import native_size
from ...anatomy.outputs import NUMBERS
from ...anatomy.parts import find_vit, keeper
from ...backend import openvino
from ...checkpoints.model_weights import ModelWeights
from ...config import ViTConfig
from ...opening import from_checkpoint, open_model, resize
from .. import metrics
from ..data.augment import Augmentation
from ..data.dataset import DatasetOptions, datasets_of
from ..data.folder import Labeled, check_share, is_hidden, split
from ..data.splits import check_fold_column, fold_numbers, hold_out
from ..data.table import Columns, column_numbers, is_table, read_columns, read_images
from ..recipes import PLAIN, Recipe
from ..recipes import recipe as find_recipe
from .results import FinetuneResult, FoldsResult
from .trainings import Trainings, noted_warnings

__all__ = ["FinetuneResult", "FoldsResult", "finetune"]

_FEWEST_PATCHES = 10
"""Patches down and across: a pre-trained ViT that sees fewer is not worth the time that it saves."""

_MINUTES = 12.0
"""The time limit where neither minutes nor epochs are given."""

_REFIT_BELOW = 400
"""Steps on all images below which all of them are learned at the end: measured up to 320 (benchmarks/finetuning.md)."""

_SAMPLED = 1000
"""Number of images whose size is looked at."""


def finetune(
    folder: Any,
    model: keras.Model | str | os.PathLike[str] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    images_dir: str | os.PathLike[str] | None = None,
    image_column: str = "image",
    label_column: str | Sequence[str] = "label",
    task: Literal["auto", "single", "multi", "regression", "ordinal"] = "auto",
    separator: str | None = None,
    group_column: str | None = None,
    class_names: Sequence[str] | None = None,
    recipe: str | Recipe = "finetune",
    epochs: int | None = None,
    minutes: float | None = None,
    image_size: int | tuple[int, int] | str | None = "auto",
    batch_size: int | None = None,
    validation_split: Share = 0.2,
    folds: int | str | None = None,
    metric: str | None = None,
    balance: bool | Literal["weights", "prior"] = False,
    probe: bool = True,
    calibrate: bool = False,
    output: str | os.PathLike[str] = "finetuned",
    overwrite: bool = False,
    seed: int = 0,
    errors: Literal["raise", "skip"] = "raise",
    mistakes: int = 24,
    refit: bool = True,
    command: str | None = None,
    progress: bool = True,
    **options: Any,
) -> FinetuneResult | FoldsResult:
    """Fine-tune a model on a folder of images, one subfolder for each class, or on a table, and write a report.

    A part of the images is held out, the same share of each class, and the model is measured on them after the last
    epoch. If the images are few, it is then trained anew on all of them by the same plan. This model is saved: it is
    usually better, and the report says that the measured one had learned fewer. A call that was interrupted
    continues when it is made again, to the same result.

    The loss follows the task: cross-entropy over the classes, one of its own for each of several labels, or the mean
    squared error of numbers and levels, which are standardized inside and come out in their own unit. With `folds`, one
    model is trained for each fold, in `output/fold0` and so on; the report is of all of them. After a kill, the same
    call goes on: finished folds stay.

    Args:
        folder: Folder with one subfolder for each class, folder/class/image.jpg; or a table of images and labels (see
            `vit_keras.training.image_table`).
        model: The model: a factory such as vit_b16, a published name, the path of a saved model, or a model with a ViT
            in it, which is copied. It gets a new head, unless its `labels` are the names of the classes. Without
            pooling, the head gets the class token, or the mean of the tokens. `None`: what `weights` say.
        weights: Weights of the model: a published name, a file, or a URL.
        images_dir: For a table, the folder of its images; `None`: the folder of the table.
        image_column: For a table, the column of the images: files, or names without a suffix, such as ids.
        label_column: For a table, the column of the labels, or several columns.
        task: For a table, what the labels are: one class per image, several labels, numbers, or ordered levels;
            `"auto"`: inferred from the labels.
        separator: For a table, the text between the labels of a column with several.
        group_column: For a table, the column of groups, such as patients, that are not divided between training and
            validation.
        class_names: For a table, the names of the classes, labels or levels in their order.
        recipe: Recipe of the training, such as `"finetune"`, `"lp_ft"`, `"lora"` or `"vit"`. A name in
            `vit_keras.training.RECIPES`, or a `Recipe`.
        epochs: Number of epochs; `None`: the recipe's.
        minutes: Time limit in minutes, which may reduce the number of epochs; `None`: 12, or none with `epochs`. The
            number follows from the time of the first steps. If not even one epoch fits, a part of one is trained, but
            at least 20 steps. 0: no limit.
        image_size: Input size in pixels; `"native"`: the model's own; `"auto"`: the same, or fewer where the images are
            smaller. `(height, width)`, or one integer for a square. `None` is `"auto"`.
        batch_size: Images in a step; `None`: 32, or 16 for a short training. Short is one that sees fewer than 6,400
            images in all epochs that it has time for (`Recipe.batch_for`), with the recipes `finetune`, `lp_ft` and
            `gradual`.
        validation_split: Share of the images to hold out for validation, without `folds`.
        folds: Number of folds to cross-validate, or the column of a table with their numbers (see
            `splits.fold_numbers`); `None`: one model.
        metric: Metric to measure on the held-out images after each epoch, such as macro_f1, map or rmse (see
            `vit_keras.training.metrics.NAMES`); `None`: the accuracy (one class of several) or the loss.
        balance: Whether to let rare classes count as much as frequent ones: by weights of the classes in the loss
            (weights), or by a loss that does not let the model learn how frequent each class is (prior). The latter
            (`vit_keras.training.losses.CrossEntropy`) was the better one where it was measured; `True` is
            `"weights"`. The metrics `"balanced_accuracy"` and `"macro_f1"` measure by the same rule.
        probe: Whether to look at the images first through the model as it is. It costs one forward pass of each, at
            most a tenth of the time limit. Where an image has one class of several, a linear probe of the features is
            measured; if the accuracy decides (no other `metric`, no `balance`) and fine-tuning does not beat it, it is
            saved too, as `probe.keras`. A new head starts as a ridge regression of the features
            (`Recipe.head`), or else at zero. A test finds out whether mirror images keep their labels
            (`Recipe.flip_test`). The report also has near-duplicates, a learning curve and likely wrong labels.
        calibrate: Whether to calibrate the probabilities on the held-out images (see `vit_keras.training.calibrate`).
            No predicted class changes. It costs nothing. A model that is then trained on all images gets the
            temperature of the measured one.
        output: Folder for the results; it is made.
        overwrite: Whether to start over if `output` has a finished run, or one with other settings.
        seed: Seed of the split, the order of the images and the augmentation.
        errors: What to do with damaged images: `"raise"` an error, or `"skip"` them with a warning.
        mistakes: Largest number of mistakes in the report.
        refit: Whether to train on all images at the end, those held out too. It is done if it takes fewer than 400
            steps, and if the time limit leaves enough after all epochs. It more than doubles the time. Folds are not
            trained again: each model of a fold is the one that was measured.
        command: The command to show in the report.
        progress: Whether to print what happens.
        **options: Fields of the `Recipe` and of its `Augmentation` to change, such as `learning_rate` or `flip`; and
            options of `vit_keras.from_checkpoint`, such as `family`. A name that both have is the recipe's.

    Returns:
        A `FinetuneResult`; with `folds` a `FoldsResult`.

    Raises:
        FileNotFoundError: There is no such folder or weights.
        ImportError: scikit-learn is not installed.
        TypeError: `folder` is neither a folder nor a table, or there is no such argument.
        ValueError: The images, the model or the options do not fit; `output` has a finished or another run; or the
            loss is not a finite number any more.
        PermissionError: `output` cannot be written to.
        NotImplementedError: Keras runs on OpenVINO, which trains nothing.

    Warns:
        UserWarning: Images were left out, or classes are unbalanced.

    Example:
        >>> result = finetune("flowers", weights="Ti_16.npz", epochs=10, output="flowers-ti16")  # doctest: +SKIP
    """
    openvino.refuse("finetune")
    metrics.scikit_learn_metrics()  # which the evaluation needs, after a long training
    started = time.monotonic()
    output = expanded(validate.path_text(output, "output", "the path of a folder for the results"))
    how = _changed(find_recipe(recipe), options)
    _check_opening(model, weights, options)
    one_of(errors, "errors", ("raise", "skip"))
    one_of(balance, "balance", (False, True, "weights", "prior"))
    seed, mistakes = positive_integer(seed, "seed", 0), positive_integer(mistakes, "mistakes", 0)
    epochs = epochs if epochs is None else positive_integer(epochs, "epochs")
    batch_size = batch_size if batch_size is None else positive_integer(batch_size, "batch_size")
    if minutes is None:
        minutes = _MINUTES if epochs is None else 0
    if not (validate.is_number(minutes) and minutes >= 0):
        raise ValueError(f"minutes must be a number of at least 0. Received: {minutes!r}")
    columns = Columns(images_dir, image_column, label_column, task, separator, group_column, class_names)
    _check_output(output, folder, overwrite, folds)
    keras.utils.set_random_seed(seed)
    notes = [_MISSING.format(", ".join(missing))] if (missing := _not_installed()) else []
    if notes and progress:
        print(notes[0], flush=True)
    with noted_warnings(notes):
        data = read_images(folder, columns, errors)
        if data.assumed and progress:
            print(data.assumed, flush=True)
        _check_task(data, metric, balance, calibrate)
        parts = _parts(data, folder, validation_split, folds, seed)
        given = model
        if not isinstance(model, keras.Model):
            given = open_model(model, weights, **options)
        given = _pooled(given)
        wanted, everything = epochs or how.epochs, np.sort(np.concatenate(parts[:2]))
        size = batch_size or how.batch_for(wanted * len(parts[0]))
        steps = wanted * math.ceil(len(everything) / size)
        how = how.for_model(given, data.task, steps)
        reading = DatasetOptions(
            image_size=_size(image_size, find_vit(given), data.paths),
            preprocessing=keeper(find_vit(given)).preprocessing,
            batch_size=size,
            seed=seed,
            augmentation=how.augmentation,
            errors=errors,
            progress=progress,
        )
        if batch_size is None:
            warnings.filterwarnings("ignore", "batch_size=")  # which is chosen here
        sets = datasets_of(
            data, [*parts, everything] if refit and folds is None and steps < _REFIT_BELOW else parts, reading
        )
    trainings = Trainings(
        data=data,
        given=given,
        model=model,
        title=Path(folder).resolve().name if isinstance(folder, (str, os.PathLike)) else "a table",
        recipe=how,
        output=output,
        started=started,
        notes=notes,
        epochs=epochs,
        seconds=60 * minutes or None,
        batch_size=batch_size,
        metric=metric,
        balance=balance,
        probe=probe,
        calibrate=calibrate,
        overwrite=overwrite,
        seed=seed,
        mistakes=mistakes,
        refit=refit,
        command=command,
        progress=progress,
    )
    return trainings.one(*sets) if folds is None else trainings.folds([*zip(sets[::2], sets[1::2])])


# --- what is trained ----------------------------------------------------------------------------------------------


def _changed(how: Recipe, options: dict[str, Any]) -> Recipe:
    """Take the fields of a recipe and of its augmentation out of the options, and return the changed recipe."""
    changes = {name: options.pop(name) for name in [*options] if name in _RECIPE}
    augmented = {name: options.pop(name) for name in [*options] if name in _AUGMENTATION}
    how = how.replace(**changes)
    return how.replace(augmentation=(how.augmentation or PLAIN).replace(**augmented)) if augmented else how


def _check_opening(model: Any, weights: Any, options: Mapping[str, Any]) -> None:
    """Raise `TypeError` for options that nobody would read, such as those of opening a model that is open."""
    is_open = isinstance(model, keras.Model)
    opening = [*_names(ViTConfig), *inspect.signature(from_checkpoint).parameters]
    if "classes" in options:
        raise TypeError(f"The classes are those of the images. Remove classes={options['classes']!r}.")
    for name in options:
        if is_open or name not in opening:
            known = [*inspect.signature(finetune).parameters, *_RECIPE, *_AUGMENTATION, *([] if is_open else opening)]
            fields = "Recipe and of Augmentation" if is_open else "Recipe, of Augmentation and of ViTConfig"
            hint = validate.did_you_mean(name, known) or f" Its further options are fields of {fields}."
            raise TypeError(f"finetune has no argument {name}.{hint}")
    if is_open and weights is not None:
        raise ValueError(f"An open model has its weights. Remove weights={weights!r:.100}.")


def _not_installed() -> list[str]:
    """Return the packages that only parts of the report need."""
    return [name for name in ("cleanlab", "matplotlib") if importlib.util.find_spec(name) is None]


_MISSING = f"The report will lack likely wrong labels or charts, which need {{}}: {INSTALL}"


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


_RECIPE = [name for name in _names(Recipe) if name not in ("name", "source")]
_AUGMENTATION = _names(Augmentation)


def _check_output(output: Path, folder: Any, overwrite: bool, folds: int | str | None) -> None:
    """Raise an error for an output that cannot be written, is finished, or would be a class of the images."""
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file. Pass another folder for the results as output= (--output).")
    check_writable(output)
    names = ("model.keras", "oof.csv") if folds is None else ("model.keras", "oof.csv", "fold[0-9]*/model.keras")
    if any(path for name in names for path in output.glob(name)) and not (output / ".state").exists() and not overwrite:
        raise ValueError(
            f"{output} has a finished run. Pass another folder as output= (--output), or overwrite=True (--overwrite)."
        )
    if is_table(folder) or not isinstance(folder, (str, os.PathLike)):
        return
    place, root = output.resolve(), expanded(folder).resolve()
    if place == root or (root in place.parents and not is_hidden(place.relative_to(root).parts[0])):
        raise ValueError(
            f"{output} is in the folder of the images, where it would be a class. Pass a folder outside of {root} as "
            "output= (--output)."
        )


def _check_task(data: Labeled, metric: str | None, balance: bool | str, calibrate: bool) -> None:
    """Raise a `ValueError` for options that do not fit the task, and for numbers that are all the same."""
    task = data.task
    if task == "regression" and not np.ptp(data.labels, axis=0).any():
        given = ", ".join(f"{name!r}: {value}" for name, value in zip(data.names, np.ravel(data.labels[0])))
        raise ValueError(
            f"Each column of labels has only one value ({given}), so there is nothing to learn. Choose a different "
            "column with label_column= (--label-column)."
        )
    if metric is not None and one_of(metric, "metric", metrics.NAMES) not in metrics.fitting(task):
        fitting = ", ".join(metrics.fitting(task))
        raise ValueError(f"The metric {metric!r} does not fit the task {task!r}, which these fit: {fitting}.")
    if metric == "rmsle":
        targets = np.delete(data.labels, [*data.missing], axis=0)
        scale = metrics.scale_of(data.names) if task == "ordinal" else None
        metrics.score("rmsle", targets, targets, task, scale=scale)  # refuses numbers that it cannot take
    if calibrate and task in NUMBERS:
        raise ValueError(f"calibrate=True is about probabilities, and the task is {task!r}. Leave it out.")
    if balance and task != "single":
        raise ValueError(f"balance={balance!r} weighs classes, one for each image, and the task is {task!r}.")


def _parts(data: Labeled, source: Any, share: float | None, folds: int | str | None, seed: int) -> list[np.ndarray]:
    """Return the numbers of the images for training and for validation, in turn for each fold."""
    if folds is None:
        check_share(share)
        if share is None:
            raise ValueError("validation_split must be a fraction: finetune needs held-out images. Received: None")
        return hold_out(data, share, seed) if is_table(source) else split(data.labels, share, seed)
    if isinstance(folds, str):
        if not is_table(source):
            raise ValueError(f"folds={folds!r} names a column of a table. For a folder, pass the number of folds.")
        numbers = column_numbers(read_columns(source), folds)
        if numbers.max() < 1:
            raise ValueError(f"The column {folds!r} has one value. Folds are two or more.")
        check_fold_column(data, numbers, folds)
    else:
        numbers = fold_numbers(data, folds, seed)
    held_out = [numbers == fold for fold in range(numbers.max() + 1)]
    return [np.flatnonzero(part) for each in held_out for part in (~each, each)]


def _config(model: keras.Model) -> ViTConfig:
    """Return the configuration of a model, which a copy by `keras.models.clone_model` does not know."""
    return ViTConfig(**ModelWeights(model).architecture)


def _pooled(given: keras.Model) -> keras.Model:
    """Return the model or, if it returns all tokens, a copy that returns the class token or the mean of the tokens."""
    config = _config(given)
    if config.pooling is not None:
        return given
    return resize(find_vit(given), config.image_size, pooling="token" if config.has_class_token else "gap")


def _size(wanted: Any, model: keras.Model, paths: Sequence[Path]) -> tuple[int, int] | None:
    """Return the size wanted, or the model's own if any, or fewer patches where nine in ten images need no more."""
    if wanted is not None and not (isinstance(wanted, str) and wanted in ("auto", "native")):
        size = validate.size_pair(wanted, "image_size")
        _config(model).replace(image_size=size)  # refuses what is not a whole number of patches
        return size
    native, stride = native_size(model), _config(model).stride
    if native is None or wanted == "native":
        return native
    longest = []
    for path in paths[:: math.ceil(len(paths) / _SAMPLED) or 1]:
        with contextlib.suppress(Exception), Image.open(path) as image:  # damaged ones are named later
            longest.append(max(image.size))
    if not longest:
        return native
    needed = np.quantile(longest, 0.9)
    down, across = (min(n, max(_FEWEST_PATCHES, math.ceil(needed / step)) * step) for n, step in zip(native, stride))
    return down, across

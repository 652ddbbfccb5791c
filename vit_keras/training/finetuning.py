"""Fine-tune a model on a folder of pictures in one call that survives a kill, and write a report.

>>> from vit_keras.training.finetuning import finetune
>>> result = finetune("vit_ti16", "flowers", output="finetuned")  # doctest: +SKIP
>>> result.evaluation.accuracy  # doctest: +SKIP
0.91
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from .. import __version__
from ..anatomy import find_vit, heads, name_classes, native_size, own_preprocessing
from ..atomic import complete
from ..config import size_pair
from ..model import VisionTransformer
from ..opening import open_model, resize
from ..validate import is_number, one_of
from .dataset import image_folder
from .evaluation import Evaluation, evaluate_decoded, pictures_of_mistakes
from .job import Job, duration
from .listing import pictures_in
from .recipes import Recipe
from .recipes import recipe as find_recipe
from .report import report
from .run import Run, TimeLimit

__all__ = ["FinetuneResult", "finetune"]

MINUTES = 12.0
"""The time limit where neither minutes nor epochs are given."""

_FEWEST_PATCHES = 10
"""Patches down and across: a pre-trained ViT that sees fewer is not worth the time that it saves."""

_SAMPLED = 1000
"""Pictures to look at for their size."""


@dataclasses.dataclass(frozen=True)
class FinetuneResult:
    """The result of fine-tuning.

    Attributes:
        model: The model with the weights of the best epoch; its `labels` are the names of the classes.
        evaluation: The evaluation of the held-out pictures.
        history: Values after each epoch, by name.
        best_epoch: Number, from 0, of the epoch whose weights were kept.
        recipe: How it was trained.
        folder: Where `model.keras`, `report.html`, `history.json`, `recipe.json` and `split.json` are.
    """

    model: keras.Model
    evaluation: Evaluation
    history: dict[str, list[float]]
    best_epoch: int
    recipe: Recipe
    folder: Path


def finetune(
    model: keras.Model | str | os.PathLike[str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    /,
    *,
    weights: str | os.PathLike[str] | None = None,
    recipe: str | Recipe = "finetune",
    epochs: int | None = None,
    minutes: float | None = None,
    image_size: int | tuple[int, int] | str | None = "auto",
    batch_size: int = 32,
    validation_split: float = 0.2,
    balance: bool = False,
    output: str | os.PathLike[str] = "finetuned",
    overwrite: bool = False,
    seed: int = 0,
    errors: str = "raise",
    mistakes: int = 24,
    command: str | None = None,
    progress: bool = True,
    **options: Any,
) -> FinetuneResult:
    """Fine-tune a model on a folder of pictures, one subfolder for each class, and write a report.

    A part of the pictures is held out, the same share of each class. The weights of the epoch with the best held-out
    accuracy are kept; training ends early if a third of the epochs bring no improvement. A call that was interrupted
    continues when it is made again, to the same result.

    Args:
        model: The name of a factory, the path of a saved model (see `vit_keras.opening.open_model`), or a model with
            a ViT in it; the ViT is copied. It gets a new head, unless its `labels` are the names of the classes.
            `None`: what `weights` say. A single positional argument is the folder: `finetune(folder)`,
            `finetune(folder, model=…)`.
        folder: The pictures, `folder/class/picture.jpg` (see `vit_keras.training.image_folder`).
        weights: A published name, a file or a URL.
        recipe: How to train (see `vit_keras.training.recipes`).
        epochs: Number of epochs; `None`: the recipe's.
        minutes: Time limit, approximate, kept by training fewer epochs. The number of epochs follows from the time of
            the first steps, and again from later ones, while the training is young, if these are much faster or slower.
            0: no limit; `None`: 12, or no limit if `epochs` is given.
        image_size: Pixels, `(height, width)` or one integer; `"native"`: the model's own; `"auto"` or `None`: the same,
            or fewer where the pictures are smaller.
        batch_size: Pictures in a step.
        validation_split: Share of the pictures to hold out.
        balance: Whether all classes weigh the same, however many pictures they have.
        output: Folder for the results; it is made. (Also accepted as `out`.)
        overwrite: Whether to begin anew if `output` has a finished run, or one with other settings.
        seed: Seed of the split, the order and the augmentation.
        errors: `"raise"` to refuse damaged pictures, `"skip"` to leave them out with a warning.
        mistakes: Largest number of mistakes in the report.
        command: The command to show in the report.
        progress: Whether to print what happens.
        **options: Options of `vit_keras.from_checkpoint`, such as `family`.

    Returns:
        A `FinetuneResult`.

    Raises:
        FileNotFoundError: There is no such folder or weights.
        TypeError: There is no folder, or an argument is given twice.
        ValueError: The pictures, the model or the options do not fit; `output` has a finished or another run; or the
            loss is not a finite number any more.

    Warns:
        UserWarning: Pictures were left out, or classes are unbalanced.

    Example:
        >>> result = finetune("flowers", weights="Ti_16.npz", epochs=10, output="flowers-ti16")  # doctest: +SKIP
    """
    started = time.monotonic()
    model, folder = _model_and_folder(model, folder, options)
    folder, output, how = Path(folder).expanduser(), Path(options.pop("out", output)).expanduser(), find_recipe(recipe)
    _check(output, overwrite, errors, epochs=epochs, minutes=minutes)
    keras.utils.set_random_seed(seed)
    with _noted_warnings() as notes:
        given = model
        if not isinstance(model, keras.Model):
            given = open_model(model, weights, **options, **({} if how.dtype is None else {"dtype": how.dtype}))
        train, held_out = image_folder(
            folder,
            _size(image_size, find_vit(given), folder),
            preprocessing=own_preprocessing(find_vit(given)),
            batch_size=batch_size,
            validation_split=validation_split,
            seed=seed,
            augmentation=how.augmentation,
            errors=errors,
            progress=progress,
        )
        tuned = _with_head(given, train.image_size, train.class_names)
        how.compile(tuned, train, batch_size=batch_size)
    job = Job(tuned, how, train, held_out, folder, balance, progress)
    job.say(
        f"{job.pictures}; {tuned.name} for {_pixels(tuned)} pixels, {tuned.count_params():,} weights; recipe {how.name}"
    )
    run = Run(output / ".state", {**job.settings(), "epochs": epochs, "seed": seed}, overwrite)
    wanted, limit = epochs or how.epochs, None
    if run.epochs is None:
        minutes = (MINUTES if epochs is None else 0) if minutes is None else minutes
        if minutes:
            limit = TimeLimit(started + 60 * minutes, wanted, len(train), len(held_out))
        run.begin(wanted if limit is None else job.plan(run, limit))
    job.fit(run, limit)
    evaluation = evaluate_decoded(tuned, held_out, folder, batch_size=batch_size)
    low, high = evaluation.interval
    job.say(f"Accuracy on the held-out pictures: {evaluation.accuracy:.1%} (95 % interval: {low:.1%} to {high:.1%})")
    page = report(
        evaluation,
        title=f"{tuned.name}, fine-tuned on {folder.resolve().name}",
        subtitle=job.pictures,
        history=run.history,
        best_epoch=run.best,
        notes=[*notes, *_remarks(run, wanted)],
        pictures=pictures_of_mistakes(tuned, evaluation, folder, mistakes),
        command=command,
        recipe=how.to_dict(),
        facts={
            **_facts(tuned, given, model),
            "epochs": run.epochs,
            "time": duration(run.seconds),
            "batch": batch_size,
            "seed": seed,
        },
    )
    outcome = {"best_epoch": run.best, "seconds": run.seconds, "history": run.history, "held_out": evaluation.to_dict()}
    files = {"report.html": page, "history.json": outcome, "recipe.json": how.to_dict(), "split.json": job.split()}
    _write(output, files, tuned)
    run.remove()
    job.say(f"Wrote {output / 'model.keras'} and, beside it, {', '.join(files)}")
    return FinetuneResult(tuned, evaluation, run.history, run.best, how, output)


# --- what is trained ----------------------------------------------------------------------------------------------


def _model_and_folder(first: Any, second: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model and the folder, by position or by name; a single position is the folder unless that is named."""
    named = {name: options.pop(name) for name in ("model", "folder") if name in options}
    by_position = [argument for argument in (first, second) if argument is not None]
    if second is None and first is not None and "folder" not in named:
        return named.get("model"), first
    if len(by_position) + len(named) > 2:
        raise TypeError(f"finetune takes one model and one folder. Received twice: {', '.join(named)}")
    model, folder = named.get("model", first), named.get("folder", second)
    if folder is None:
        raise TypeError("finetune needs a folder of pictures: finetune(folder) or finetune(model, folder).")
    return model, folder


def _check(output: Path, overwrite: bool, errors: str, **numbers: float | None) -> None:
    """Raise what can be known before anything is loaded."""
    one_of(errors, "errors", ("raise", "skip"))
    for name, value in numbers.items():
        if value is not None and (not is_number(value) or value < 0 or (name == "epochs" and value < 1)):
            raise ValueError(f"{name} must be positive. Received: {value!r}")
    if output.exists() and not output.is_dir():
        raise ValueError(f"{output} is a file. Pass another folder for the results as output= (--output).")
    if (output / "model.keras").exists() and not (output / ".state").exists() and not overwrite:
        raise ValueError(
            f"{output} has a finished run. Pass another folder as output= (--output), or overwrite=True (--overwrite)."
        )


@contextlib.contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """Yield a list that gets the texts of all warnings, for the report; the warnings are shown all the same."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    for warning in caught:
        if warning.category is UserWarning:
            notes.append(str(warning.message))
        warnings.warn(warning.message, warning.category, stacklevel=4)


def _size(wanted: Any, model: keras.Model, folder: Path) -> tuple[int, int]:
    """Return the size wanted, or the model's own, or fewer patches where nine in ten pictures need no more."""
    if wanted not in (None, "auto", "native"):
        return size_pair(wanted, "image_size")
    native, stride = native_size(model), model.config.stride
    if wanted == "native":
        return native
    paths, longest = pictures_in(folder), []
    for path in paths[:: math.ceil(len(paths) / _SAMPLED) or 1]:
        with contextlib.suppress(OSError, ValueError), Image.open(path) as picture:  # damaged ones are named later
            longest.append(max(picture.size))
    if not longest:
        return native
    needed = np.quantile(longest, 0.9)
    return tuple(min(own, max(_FEWEST_PATCHES, math.ceil(needed / step)) * step) for own, step in zip(native, stride))


def _with_head(given: keras.Model, size: tuple[int, int], names: tuple[str, ...]) -> VisionTransformer:
    """Return a copy for pictures of this size and these classes; a new head starts at zero, as the reference's."""
    known = getattr(find_vit(given), "labels", None)
    tuned = resize(given, size, classes=len(names), include_top=True)
    if known is None or tuple(known) != names:
        for head in heads(tuned):
            for variable in head.variables:
                variable.assign(np.zeros(variable.shape))
    name_classes(tuned, names)
    return tuned


# --- the results --------------------------------------------------------------------------------------------------


def _remarks(run: Run, wanted: int) -> list[str]:
    """Return what a reader of the report must know besides the numbers."""
    remarks = []
    if run.best < run.done - 1:
        remarks.append(
            "The epoch was chosen by the same held-out pictures, so the accuracy on new pictures may be a little "
            f"lower; after the last epoch it was {run.history['val_accuracy'][-1]:.1%}."
        )
    if run.epochs < wanted:
        remarks.append(f"The time limit allowed {run.epochs} of {wanted} epochs. More epochs may improve the accuracy.")
    if run.done < run.epochs:
        remarks.append(
            f"Training ended after {run.done} of {run.epochs} epochs, because the last ones brought no improvement."
        )
    return remarks


def _facts(tuned: keras.Model, given: keras.Model, model: Any) -> dict[str, Any]:
    backend = keras.backend.backend()
    versions = f"{backend} {sys.modules[backend].__version__}, Python {platform.python_version()}"
    read = getattr(find_vit(given), "load_report", None)
    return {
        "model": f"{tuned.name}, {tuned.count_params():,} weights",
        "begun with": getattr(read, "source", None) or (given.name if given is model else model),
        "pixels": _pixels(tuned),
        "versions": f"vit_keras {__version__}, Keras {keras.__version__}, {versions}",
    }


def _pixels(model: keras.Model) -> str:
    return "×".join(map(str, model.config.image_size))


def _write(output: Path, texts: dict[str, Any], model: keras.Model) -> None:
    """Write all files, the model last: where it is, everything is."""
    for name, text in texts.items():
        with complete(output / name) as part:
            part.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), encoding="utf-8")
    with complete(output / "model.keras") as part:
        model.save(part)

"""From a folder of pictures to a fine-tuned model and a report, in one call that survives a kill.

>>> from vit_keras.training.finetuning import finetune
>>> result = finetune("flowers", out="finetuned")  # doctest: +SKIP
>>> result.evaluation.accuracy  # doctest: +SKIP
0.91

A run leaves its state in `out/.state`: after each epoch the weights with those of the optimizer, and `state.json`, which
says what was decided and what came of it. The same call goes on from there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from .. import __version__, layers, vit
from ..anatomy import heads
from ..atomic import complete
from ..config import size_pair
from ..labels import name_classes
from ..pretrained import open_model
from .data import EXTENSIONS, ImageFolder, image_folder
from .evaluation import Evaluation, evaluate_decoded, pictures_of_mistakes
from .lora import merge_lora
from .recipes import Recipe
from .recipes import recipe as find_recipe
from .report import report

MINUTES = 12.0
_FEWEST_PATCHES = 10  # down and across: a pre-trained ViT that sees less is not worth the time that it saves
_LOOKED_AT = 1000  # pictures, to learn how large they are
_TIMED_STEPS = 6
_FORWARD = 0.35  # what a batch of validation costs, measured in steps of training
_LATER = 15.0  # seconds for what follows the training: the maps, the report


@dataclasses.dataclass(frozen=True)
class FinetuneResult:
    """What fine-tuning gave.

    Attributes:
        model: The model with the weights of the best epoch, its `labels` the names of the classes.
        evaluation: How good it is on the held-out pictures.
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
    folder: str | os.PathLike[str],
    *,
    model: keras.Model | str | os.PathLike[str] | None = None,
    weights: str | os.PathLike[str] | None = None,
    recipe: str | Recipe = "finetune",
    epochs: int | None = None,
    minutes: float | None = None,
    image_size: int | tuple[int, int] | str | None = None,
    batch_size: int = 32,
    validation_split: float = 0.2,
    balance: bool = False,
    out: str | os.PathLike[str] = "finetuned",
    overwrite: bool = False,
    seed: int = 0,
    errors: str = "skip",
    mistakes: int = 24,
    command: str | None = None,
    progress: bool = True,
    **options: Any,
) -> FinetuneResult:
    """Fine-tune a model on a folder of pictures, one subfolder for each class, and write a report.

    A part of the pictures is held out, the same share of each class; the weights of the epoch with the best accuracy on these are kept,
    and training ends early where a third of the epochs bring nothing better. A call that was interrupted goes on where it
    was when it is made again, to the same result.

    Args:
        folder: The pictures, `folder/class/picture.jpg` (see `vit_keras.training.data.image_folder`).
        model: A factory's name, a saved model's path (see `vit_keras.pretrained.open_model`), or a model with a ViT in it, of which the
            ViT is copied. It gets a new head, unless its `labels` are the names of the classes.
        weights: A published name, a file or a URL.
        recipe: How to train (see `vit_keras.training.recipes`).
        epochs: How often to see all pictures; `None`: as the recipe suggests.
        minutes: In how many minutes to be done, about, if need be by fewer epochs: decided once, by the time of the first
            steps. 0: no limit; `None`: 12, or where `epochs` is given, no limit.
        image_size: Pixels, `(height, width)` or one integer; `"native"`: the model's own; `None`: the same, or fewer
            where the pictures are smaller.
        batch_size: Pictures in a step.
        validation_split: Share of the pictures that is held out.
        balance: Whether all classes weigh the same, however many pictures they have.
        out: Folder for the results; it is made.
        overwrite: Whether to begin anew where `out` has a finished run, or one with other settings.
        seed: What the split, the order and the augmentation follow from.
        errors: `"skip"` to leave out damaged pictures with a warning, `"raise"` to refuse them.
        mistakes: How many mistakes the report shows at most.
        command: What the report is to say it was made by.
        progress: Whether to say what happens.
        **options: Of `vit_keras.from_checkpoint`, such as `family`.

    Returns:
        A `FinetuneResult`.

    Raises:
        FileNotFoundError: There is no such folder or weights.
        ValueError: The pictures, the model or the options do not fit; `out` has a finished or another run; or the loss
            is no number any more.

    Warns:
        UserWarning: Pictures were left out, or classes are unbalanced.

    Example:
        >>> result = finetune("flowers", weights="Ti_16.npz", epochs=10, out="flowers-ti16")  # doctest: +SKIP
    """
    started = time.monotonic()
    folder, out, how = Path(folder).expanduser(), Path(out).expanduser(), find_recipe(recipe)
    _check(out, overwrite, epochs=epochs, minutes=minutes)
    keras.utils.set_random_seed(seed)
    with _noted_warnings() as notes:
        given = model
        if not isinstance(model, keras.Model):
            given = open_model(model, weights, **options, **({} if how.dtype is None else {"dtype": how.dtype}))
        train, held_out = image_folder(
            folder,
            _size(image_size, layers.find_vit(given), folder),
            model=given,
            batch_size=batch_size,
            validation_split=validation_split,
            seed=seed,
            augmentation=how.augmentation,
            errors=errors,
            progress=progress,
        )
        tuned = _with_head(given, train.image_size, train.class_names)
        how.compile(tuned, train, batch_size=batch_size)
    job = _Job(tuned, how, train, held_out, folder, balance, progress)
    job.say(
        f"{job.pictures}; {tuned.name} for {_pixels(tuned)} pixels, {tuned.count_params():,} weights; recipe {how.name}"
    )
    run = _Run(out / ".state", {**job.settings(), "epochs": epochs, "seed": seed}, overwrite)
    wanted = epochs or how.epochs
    if run.epochs is None:
        minutes = (MINUTES if epochs is None else 0) if minutes is None else minutes
        run.begin(job.epochs_within(60 * minutes - (time.monotonic() - started) if minutes else math.inf, wanted))
    job.fit(run)
    evaluation = evaluate_decoded(tuned, held_out, folder, batch_size=batch_size)
    low, high = evaluation.interval
    job.say(f"accuracy on the held-out pictures: {evaluation.accuracy:.1%} (at 95 %: {low:.1%} to {high:.1%})")
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
            "time": _time(run.seconds),
            "batch": batch_size,
            "seed": seed,
        },
    )
    outcome = {"best_epoch": run.best, "seconds": run.seconds, "history": run.history, "held_out": evaluation.to_dict()}
    files = {"report.html": page, "history.json": outcome, "recipe.json": how.to_dict(), "split.json": job.split()}
    _write(out, files, tuned)
    run.remove()
    job.say(f"{out / 'model.keras'}, and beside it {', '.join(files)}")
    return FinetuneResult(tuned, evaluation, run.history, run.best, how, out)


# --- what there is to train ---------------------------------------------------------------------------------------


def _check(out: Path, overwrite: bool, **numbers: float | None) -> None:
    """What is wrong from the beginning should cost no wait."""
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, (int, float)) or value < 0 or (name == "epochs" and value < 1)):
            raise ValueError(f"{name} is to be positive. Received: {value!r}")
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give the folder for the results another name.")
    if (out / "model.keras").exists() and not (out / ".state").exists() and not overwrite:
        raise ValueError(f"{out} has a finished run: give another folder (--out), or overwrite it (--overwrite).")


@contextlib.contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """A list of what was warned of, for the report; it is warned of all the same."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield notes
    for warning in caught:
        if warning.category is UserWarning:
            notes.append(str(warning.message))
        warnings.warn(warning.message, warning.category, stacklevel=4)


def _size(wanted: Any, model: keras.Model, folder: Path) -> tuple[int, int]:
    """The image size wanted, or the model's own, or where nine in ten pictures are smaller, as many patches as these need."""
    if wanted not in (None, "native"):
        return size_pair(wanted, "image_size")
    native, stride = _native_size(model), model.config.stride
    if wanted == "native":
        return native
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in EXTENSIONS)
    longest = []
    for path in paths[:: math.ceil(len(paths) / _LOOKED_AT) or 1]:
        with contextlib.suppress(OSError, ValueError), Image.open(path) as picture:  # the damaged ones are named later
            longest.append(max(picture.size))
    needed = np.quantile(longest, 0.9) if longest else math.inf
    return tuple(
        min(own, max(_FEWEST_PATCHES, math.ceil(needed / step)) * step) if math.isfinite(needed) else own
        for own, step in zip(native, stride)
    )


def _native_size(model: keras.Model) -> tuple[int, int]:
    fixed = tuple(model.input_shape[1:3])
    return model.preprocessing.image_size if None in fixed else fixed


def _with_head(given: keras.Model, size: tuple[int, int], names: tuple[str, ...]) -> vit.VisionTransformer:
    """A copy for pictures of this size and these classes. Its head is zero, as the reference's, if it is not of these classes."""
    known = getattr(layers.find_vit(given), "labels", None)
    tuned = vit.resize(given, size, classes=len(names), include_top=True)
    if known is None or tuple(known) != names:
        for head in heads(tuned):
            for variable in head.variables:
                variable.assign(np.zeros(variable.shape))
    name_classes(tuned, names)
    return tuned


def _digest(text: str, *arrays: np.ndarray) -> str:
    found = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).view("uint8").data)
    return found.hexdigest()


# --- the training -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Job:
    """A compiled model, and what it is trained on."""

    model: keras.Model
    recipe: Recipe
    train: ImageFolder
    held_out: ImageFolder
    folder: Path
    balance: bool
    progress: bool

    def say(self, text: str) -> None:
        """Tell the user, if that is wanted."""
        if self.progress:
            print(text, flush=True)

    @property
    def pictures(self) -> str:
        """What there is, in words."""
        return (
            f"{len(self.train.paths):,} pictures of {len(self.train.class_names)} classes to learn from, "
            f"{len(self.held_out.paths):,} held out"
        )

    def split(self) -> dict[str, list[str]]:
        """The pictures to learn from and those held out."""
        parts = {"training": self.train, "validation": self.held_out}
        return {name: [path.relative_to(self.folder).as_posix() for path in data.paths] for name, data in parts.items()}

    def settings(self) -> dict[str, Any]:
        """What the result depends on, but for the number of epochs and the seed."""
        return {
            "pictures": _digest(json.dumps(self.split())),
            "model": _digest(json.dumps(self.model.settings()), *self.model.get_weights()),
            "recipe": self.recipe.to_dict(),
            "batch_size": self.train.batch_size,
            "balance": self.balance,
        }

    def epochs_within(self, seconds: float, wanted: int) -> int:
        """How many of the epochs wanted can be done in so many seconds, at least one."""
        if seconds == math.inf:
            return wanted
        step = self._seconds_per_step()
        validation = _FORWARD * step * len(self.held_out)
        epoch = step * len(self.train) + validation
        possible = int((seconds - validation - _LATER) / epoch)
        if possible >= wanted:
            decided = f"{wanted} epochs take about {_time(wanted * epoch)}"
        elif possible > 0:
            decided = f"there is time for {possible} of {wanted} epochs (minutes=0 or --minutes 0: for all)"
        else:
            decided = f"one epoch takes {_time(epoch)}, which is more than there is, and is done all the same"
        self.say(f"a step takes {step:.2g} seconds: {decided}")
        return min(wanted, max(1, possible))

    def _seconds_per_step(self) -> float:
        """By some steps, after which the model is again what it was."""
        before = _values(self.model)
        watch = _Stopwatch()
        steps = min(len(self.train), _TIMED_STEPS)
        epochs = math.ceil(_TIMED_STEPS / steps)
        callbacks = [*self._callbacks(), watch]
        self.model.fit(self.train, epochs=epochs, steps_per_epoch=steps, verbose=0, callbacks=callbacks)
        _assign(self.model, before)
        return float(np.median(watch.seconds[2:]))

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        return [*self.recipe.callbacks, *self.train.callbacks]

    def fit(self, run: _Run) -> None:
        """Train, or go on, to the last epoch, and take the weights of the best."""
        if run.done:
            run.restore(self.model, run.done - 1)
            self.say(f"Going on after epoch {run.done} of {run.epochs}")
        verbose = (1 if sys.stdout.isatty() else 2) if self.progress else 0
        try:
            if not run.ended:
                self.model.fit(
                    self.train,
                    validation_data=self.held_out,
                    initial_epoch=run.done,
                    epochs=run.epochs,
                    class_weight=self.train.class_weight if self.balance else None,
                    verbose=verbose,
                    callbacks=[*self._callbacks(), _Keep(run, self.train.seed)],
                )
        except KeyboardInterrupt:
            self.say(f"\nStopped after epoch {run.done} of {run.epochs}: the same call goes on from there")
            raise
        run.restore(self.model, run.best)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # their average, if one is kept
        if self.recipe.lora is not None:
            merge_lora(self.model)


def _variables(model: keras.Model) -> list:
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*model.variables, *model.optimizer.variables]


def _values(model: keras.Model) -> list[np.ndarray]:
    """All that training changes: weights, what the optimizer remembers, states of random numbers."""
    values = [keras.ops.convert_to_numpy(variable) for variable in _variables(model)]
    return [value.astype("float32") if value.dtype.name == "bfloat16" else value.copy() for value in values]


def _assign(model: keras.Model, values: list[np.ndarray]) -> None:
    for variable, value in zip(_variables(model), values, strict=True):
        variable.assign(value)


class _Stopwatch(keras.callbacks.Callback):
    """Seconds that each step took."""

    def on_train_begin(self, logs=None):
        self.seconds = []
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now


class _Run:
    """A training on disk: its settings, what came of each epoch, and what it takes to go on from the last one or to the best.

    `state.json` is written after the values that it names, and values that it does not name are removed last, so that at
    any moment a kill leaves a state that is whole.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], overwrite: bool):
        self.folder = folder
        self._settings = json.loads(json.dumps(settings))
        self._state: dict[str, Any] = {"settings": self._settings, "epochs": None, "seconds": 0.0, "history": {}}
        if self._file.exists():
            found = json.loads(self._file.read_text(encoding="utf-8"))
            other = [name for name, value in self._settings.items() if found["settings"].get(name) != value]
            if not other:
                self._state = found
            elif not overwrite:
                raise ValueError(
                    f"{folder.parent} has an unfinished run with another {', '.join(other)}: make the same call again to go "
                    "on with it, or give another folder (--out), or begin anew (--overwrite)."
                )
        self._begun = time.monotonic()

    @property
    def _file(self) -> Path:
        return self.folder / "state.json"

    @property
    def epochs(self) -> int | None:
        """How many epochs are to be trained; `None`: that is not decided yet."""
        return self._state["epochs"]

    @property
    def history(self) -> dict[str, list[float]]:
        return self._state["history"]

    @property
    def seconds(self) -> float:
        return self._state["seconds"]

    @property
    def done(self) -> int:
        """How many epochs are trained."""
        return len(self.history.get("loss", ()))

    @property
    def best(self) -> int:
        """The epoch of the best accuracy on what is held out; of several, that of the smallest loss."""
        return max(
            range(self.done), key=lambda n: (self.history["val_accuracy"][n], -self.history["val_loss"][n]), default=0
        )

    @property
    def ended(self) -> bool:
        """Whether all epochs are trained, or enough of them since the best."""
        return self.done >= self.epochs or (
            self.done and self.done - 1 - self.best >= max(3, math.ceil(self.epochs / 3))
        )

    def begin(self, epochs: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._state["epochs"] = epochs
        self._save()

    def record(self, logs: dict[str, float], model: keras.Model) -> None:
        """Note the end of an epoch."""
        now = time.monotonic()
        self._state["seconds"] += now - self._begun
        self._begun = now
        with complete(self._values_of(self.done)) as part:
            np.savez(part, *_values(model))
        for name, value in logs.items():
            self.history.setdefault(name, []).append(float(value))
        self._save()
        needed = {self._values_of(self.done - 1), self._values_of(self.best)}
        for path in set(self.folder.glob("epoch-*.npz")) - needed:
            path.unlink()

    def restore(self, model: keras.Model, epoch: int) -> None:
        """Bring a model to where it was at the end of an epoch, the last or the best."""
        with np.load(self._values_of(epoch)) as file:
            _assign(model, [file[name] for name in file.files])

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    def _values_of(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch + 1:04}.npz"

    def _save(self) -> None:
        with complete(self._file) as part:
            part.write_text(json.dumps(self._state, indent=1), encoding="utf-8")


class _Keep(keras.callbacks.Callback):
    """Records each epoch, and ends a training that gets no better or nowhere."""

    def __init__(self, run: _Run, seed: int = 0):
        super().__init__()
        self.run, self.seed = run, seed

    def on_epoch_begin(self, epoch, logs=None):
        if (
            keras.backend.backend() == "torch"
        ):  # where dropout draws from PyTorch's own generator, of which nothing is kept
            sys.modules["torch"].manual_seed(self.seed + epoch)

    def on_epoch_end(self, epoch, logs=None):
        if not all(map(math.isfinite, logs.values())):
            raise ValueError(
                f"The loss is no number any more in epoch {epoch + 1}: {logs}. A smaller learning rate helps, "
                "recipe('finetune', learning_rate=…) or --set learning_rate=…"
            )
        self.run.record(logs, self.model)
        self.model.stop_training = self.run.ended


# --- what is left of it -------------------------------------------------------------------------------------------


def _remarks(run: _Run, wanted: int) -> list[str]:
    """What a reader of the report has to know besides."""
    remarks = []
    if run.best < run.done - 1:
        remarks.append(
            "The epoch was chosen by the same held-out pictures, so on new ones the accuracy may be a little lower; after "
            f"the last epoch it was {run.history['val_accuracy'][-1]:.1%}."
        )
    if run.epochs < wanted:
        remarks.append(f"There was time for {run.epochs} of {wanted} epochs: with more, it may get better.")
    if run.done < run.epochs:
        remarks.append(
            f"The training ended after {run.done} of {run.epochs} epochs, the last of which brought nothing better."
        )
    return remarks


def _facts(tuned: keras.Model, given: keras.Model, model: Any) -> dict[str, Any]:
    backend = keras.backend.backend()
    version = sys.modules[backend].__version__
    read = getattr(layers.find_vit(given), "load_report", None)
    return {
        "model": f"{tuned.name}, {tuned.count_params():,} weights",
        "begun with": getattr(read, "source", None) or (given.name if given is model else model),
        "pixels": _pixels(tuned),
        "versions": f"vit_keras {__version__}, Keras {keras.__version__}, {backend} {version}, Python {platform.python_version()}",
    }


def _pixels(model: keras.Model) -> str:
    return "×".join(map(str, model.config.image_size))


def _time(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes" if seconds >= 100 else f"{seconds:.0f} seconds"


def _write(out: Path, texts: dict[str, Any], model: keras.Model) -> None:
    """All files, the model last: where it is, everything is."""
    for name, text in texts.items():
        with complete(out / name) as part:
            part.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), encoding="utf-8")
    with complete(out / "model.keras") as part:
        model.save(part)

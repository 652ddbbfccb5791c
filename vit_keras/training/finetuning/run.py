"""A training run that survives a kill: its state on disk, and how many epochs fit into its time.

A run keeps its state in a folder: after each epoch the weights with those of the optimizer, and `state.json`, which has
the settings, the number of epochs and the history. The same call continues from there.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ..._internal.atomic import complete, workspace
from ..evaluation.flips import FlipTest
from ..optimizers import NO_STEP

__all__: list[str] = []

_FORWARD = 0.35
"""Cost of a batch of validation, in steps of training."""

LATER = 15.0
"""Seconds for the maps and the report after the training."""

_TIMED_STEPS = 6
_FEWEST_STEPS = 20
"""Steps that are trained however little time there is."""

_LEAST = 1e-6
"""Seconds that a step takes at least."""

_STATE = ("settings", "epochs", "seconds", "history", "flip_test", "refits")
"""What `state.json` has of a `RunState`."""


# --- time -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TimeLimit:
    """The deadline of a training, by `time.monotonic()`, and its work: epochs, and the steps in one."""

    end: float
    wanted: int
    steps: int
    validation_steps: int

    def epoch(self, step: float) -> float:
        """Return the seconds of an epoch from the seconds of a step."""
        return step * (self.steps + _FORWARD * self.validation_steps)

    def epochs(self, step: float) -> float:
        """Return how many of the requested epochs fit into the remaining time: whole ones, or a part of one."""
        validation = _FORWARD * self.validation_steps * step
        left = self.end - time.monotonic() - validation - LATER
        if left >= self.epoch(step):
            return min(self.wanted, int(left / self.epoch(step)))
        steps = max(int((left - validation) / step), _FEWEST_STEPS)
        return steps / self.steps if steps < self.steps else 1


def counted(epochs: float) -> str:
    """Return a number of epochs in words."""
    return f"{epochs:.2f}" if epochs < 1 else str(epochs)


def duration(seconds: float) -> str:
    """Return seconds in words."""
    return f"{seconds / 60:.1f} minutes" if seconds >= 100 else f"{seconds:.0f} seconds"


class Stopwatch(keras.callbacks.Callback):
    """Callback that measures the seconds of each step."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.seconds: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._last = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        now = time.perf_counter()
        self.seconds.append(max(now - self._last, _LEAST))  # a clock may stand still for a moment
        self._last = now


def seconds_per_step(model: keras.Model, data: Any, callbacks: list[keras.callbacks.Callback]) -> float:
    """Train for a few steps, and return the seconds of one, without the first two, which compile."""
    watch = Stopwatch()
    steps = min(len(data), _TIMED_STEPS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NO_STEP)  # of these few batches
        model.fit(
            data,
            epochs=math.ceil(_TIMED_STEPS / steps),
            steps_per_epoch=steps,
            verbose=0,
            callbacks=[*callbacks, watch],
        )
    return float(np.median(watch.seconds[2:]))


def images_within(seconds: float, forward: float) -> float:
    """Return how many images a training sees within some seconds, from the seconds of a forward pass of one."""
    return _FORWARD * seconds / forward


# --- the state --------------------------------------------------------------------------------------------------


class RunState:
    """A training on disk: its settings, its history, and the weights of its last epoch."""

    def __init__(self, folder: Path, settings: dict[str, Any], overwrite: bool = False):
        self.folder: Path = folder
        self.begun: bool = False
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.epochs: float = 0  # to train, or a part of one; 0 until that is decided
        self.seconds: float = 0.0
        self.history: dict[str, list[float]] = {}
        self.flip_test: FlipTest | None = None
        self.refits: bool | None = None  # whether a training on all images follows; `None` until that is decided
        if self._file.exists():
            found = json.loads(self._file.read_text(encoding="utf-8"))
            other = [name for name, value in self.settings.items() if found["settings"].get(name) != value]
            if not other:
                flips = found.pop("flip_test")
                vars(self).update(found, flip_test=flips and FlipTest(**flips), begun=True)
            elif overwrite:
                shutil.rmtree(folder)
            else:
                raise ValueError(
                    f"{folder.parent} has an unfinished run with another {', '.join(other)}. Repeat the first call to "
                    "continue it, name another folder (output=, --output), or start over (overwrite=True, --overwrite)."
                )
        self._since = time.monotonic()

    @property
    def _file(self) -> Path:
        return self.folder / "state.json"

    @property
    def done(self) -> int:
        """Number of epochs trained."""
        return len(self.history.get("loss", ()))

    def begin(self, epochs: float, flip_test: FlipTest | None = None) -> None:
        """Decide the number of epochs (0: not yet), and forget those trained before; a test of flips stays."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.epochs, self.history = epochs, {}
        self.flip_test = flip_test or self.flip_test
        self._save()

    def decide(self, refits: bool) -> bool:
        """Return whether a training on all images follows: as was decided before, or as now."""
        if self.refits is None:
            self.refits = refits
            self._save()
        return self.refits

    def record(self, logs: dict[str, float], model: keras.Model) -> None:
        """Save the end of an epoch."""
        now = time.monotonic()
        self.seconds += now - self._since
        self._since = now
        _write_values(self._values_of(self.done), model)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(float(value))
        self._save()
        for path in set(self.folder.glob("epoch-*.npz")) - {self._values_of(self.done - 1)}:
            path.unlink()

    def restore(self, model: keras.Model) -> None:
        """Set a model to its state at the end of the last epoch."""
        _read_values(self._values_of(self.done - 1), model)

    def save_start(self, model: keras.Model) -> None:
        """Save the state of a model before the training."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _write_values(self.folder / "start.npz", model)

    @property
    def has_start(self) -> bool:
        """Whether the folder has the state before the training of this very run."""
        return self.begun and (self.folder / "start.npz").exists()

    def restore_start(self, model: keras.Model) -> None:
        """Set a model to its state before the training."""
        _read_values(self.folder / "start.npz", model)

    def remove(self) -> None:
        """Delete the state, all at once: a kill leaves the whole state or none."""
        with workspace(self.folder.parent) as away:
            os.replace(self.folder, away / self.folder.name)

    def _values_of(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch + 1:04}.npz"

    def _save(self) -> None:
        with complete(self._file) as part:
            state = {name: getattr(self, name) for name in _STATE}
            part.write_text(json.dumps(state, indent=1, default=dataclasses.asdict), encoding="utf-8")


def _variables(model: keras.Model) -> list[Any]:
    """Return all that training changes: weights, the state of the optimizer and of random numbers."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*model.variables, *model.optimizer.variables]


def _write_values(path: Path, model: keras.Model) -> None:
    values = [keras.ops.convert_to_numpy(variable) for variable in _variables(model)]
    values = [value.astype("float32") if value.dtype.name == "bfloat16" else value for value in values]
    with complete(path) as part:
        np.savez(part, *values)


def _read_values(path: Path, model: keras.Model) -> None:
    with np.load(path) as file:
        for variable, name in zip(_variables(model), file.files, strict=True):
            variable.assign(file[name])


class Checkpointer(keras.callbacks.Callback):
    """Callback that records each epoch, and stops a training that diverges."""

    def __init__(self, run: RunState):
        super().__init__()
        self.run: RunState = run

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        wrong = [name for name, value in logs.items() if not math.isfinite(value)]
        if wrong and not any(name.endswith("loss") for name in wrong):
            raise ValueError(
                f"The held-out images have no {', '.join(wrong)} in epoch {epoch + 1}: {logs}. There are too few of "
                "them, or they are all alike: hold out more (validation_split=, --held-out, fewer folds), or pass "
                "another metric=."
            )
        if wrong:
            raise ValueError(
                f"The loss is not a finite number in epoch {epoch + 1}: {logs}. Lower the learning rate: "
                "recipe('finetune', learning_rate=…) or --set learning_rate=…"
            )
        self.run.record(logs, self.model)

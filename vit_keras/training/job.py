"""One training: a compiled model, the pictures that it learns from and those held out, and what to do with them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .dataset import ImageFolder
from .evaluation import relative
from .lora import merge_lora
from .recipes import Recipe
from .run import Keep, Run, TimeLimit, seconds_per_step

__all__: list[str] = []

_MOST_PLANS = 4


def digest(text: str, *arrays: np.ndarray) -> str:
    """Return a short hash of a text and of arrays."""
    found = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).view("uint8").data)
    return found.hexdigest()


@dataclasses.dataclass(frozen=True)
class Job:
    """A compiled model, and what it is trained on."""

    model: keras.Model
    recipe: Recipe
    train: ImageFolder
    held_out: ImageFolder
    folder: Path
    balance: bool
    progress: bool

    def say(self, text: str) -> None:
        """Print a line, if that is wanted."""
        if self.progress:
            print(text, flush=True)

    @property
    def pictures(self) -> str:
        """The numbers of pictures, in words."""
        return (
            f"{len(self.train.paths):,} pictures of {len(self.train.class_names)} classes to learn from, "
            f"{len(self.held_out.paths):,} held out"
        )

    def split(self) -> dict[str, list[str]]:
        """Return the pictures to learn from and those held out."""
        parts = {"training": self.train, "validation": self.held_out}
        return {name: [relative(path, self.folder) for path in data.paths] for name, data in parts.items()}

    def settings(self) -> dict[str, Any]:
        """Return what the result depends on, apart from the number of epochs and the seed."""
        return {
            "pictures": digest(json.dumps(self.split())),
            "model": digest(json.dumps(self.model.settings()), *self.model.get_weights()),
            "recipe": self.recipe.to_dict(),
            "batch_size": self.train.batch_size,
            "balance": self.balance,
        }

    def plan(self, run: Run, limit: TimeLimit) -> int:
        """Return the number of epochs within the time limit, by a few steps that are then undone."""
        run.save_start(self.model)
        step = seconds_per_step(self.model, self.train, self._callbacks())
        run.restore_start(self.model)
        self.say(f"A step takes {step:.2g} seconds: {planned(limit, step)}")
        return max(1, limit.epochs(step))

    def _callbacks(self) -> list[keras.callbacks.Callback]:
        return [*self.recipe.callbacks, *self.train.callbacks]

    def fit(self, run: Run, limit: TimeLimit | None) -> None:
        """Train, or continue, to the last epoch, and take the weights of the best."""
        if run.done:
            run.restore(self.model, run.done - 1)
            self.say(f"Continuing after epoch {run.done} of {run.epochs}")
        try:
            for attempt in range(_MOST_PLANS):
                keep = Keep(run, self.train.seed, limit if attempt + 1 < _MOST_PLANS else None)
                if not run.ended:
                    self._fit(run, keep)
                if keep.planned is None:
                    break
                run.restore_start(self.model)
                run.begin(keep.planned)
                self.say(f"Steps take another time now: beginning anew with {keep.planned} of {limit.wanted} epochs")
        except KeyboardInterrupt:
            self.say(f"\nStopped after epoch {run.done} of {run.epochs}. The same call continues from there")
            raise
        run.restore(self.model, run.best)
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # their average, if one is kept
        if self.recipe.lora is not None:
            merge_lora(self.model)

    def _fit(self, run: Run, keep: Keep) -> None:
        self.model.fit(
            self.train,
            validation_data=self.held_out,
            initial_epoch=run.done,
            epochs=run.epochs,
            class_weight=self.train.class_weight if self.balance else None,
            verbose=(1 if sys.stdout.isatty() else 2) if self.progress else 0,
            callbacks=[*self._callbacks(), keep],
        )


def planned(limit: TimeLimit, step: float) -> str:
    """Return how many epochs fit into the time, in words."""
    possible = limit.epochs(step)
    if possible >= limit.wanted:
        return f"{possible} epochs take about {duration(possible * limit.epoch(step))}"
    if possible:
        return f"the time limit allows {possible} of {limit.wanted} epochs (minutes=0 or --minutes 0: no limit)"
    return f"one epoch takes {duration(limit.epoch(step))}, more than the time limit allows. Training one epoch"


def duration(seconds: float) -> str:
    """Return seconds in words."""
    return f"{seconds / 60:.1f} minutes" if seconds >= 100 else f"{seconds:.0f} seconds"

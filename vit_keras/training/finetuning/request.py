"""What a call of `finetune` asks for."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import keras

from ..data.folder import Labeled
from ..recipes import Recipe

__all__: list[str] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `finetune` (see there), with the images and the model that were found."""

    data: Labeled
    given: keras.Model
    model: Any
    """As the user named it."""

    title: str
    recipe: Recipe
    output: Path
    started: float
    notes: list[str]
    epochs: int | None
    seconds: float | None
    batch_size: int | None
    metric: str | None
    balance: bool | str
    probe: bool
    calibrate: bool
    overwrite: bool
    seed: int
    mistakes: int
    refit: bool
    command: str | None
    progress: bool

    def say(self, text: str) -> None:
        """Print a line, if that is wanted."""
        if self.progress:
            print(text, flush=True)

    def settings(self) -> dict[str, Any]:
        """Return the options that a run which continues must have again."""
        names = ("epochs", "metric", "balance", "probe", "refit", "seed")
        return {"recipe": self.recipe.to_dict(), **{name: getattr(self, name) for name in names}}

    @property
    def wanted(self) -> int:
        """The number of epochs to train if there is time."""
        return self.epochs or self.recipe.epochs

    def left(self, folds: int = 1) -> float | None:
        """Return the seconds that each of some folds has from now on; `None` for no limit."""
        return None if self.seconds is None else (self.started + self.seconds - time.monotonic()) / folds

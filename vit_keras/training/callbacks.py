"""The callbacks of every recipe: the end of the schedule, and random numbers that a resumed run repeats."""

from __future__ import annotations

import functools
import sys
from typing import Any

import keras
import numpy as np
from keras import ops

from ..backend.keras_internals import batches_seen
from .optimizers import NO_HORIZON, Layerwise

__all__ = ["Horizon", "Reseed", "check_before_training"]


class Horizon(keras.callbacks.Callback):
    """A callback that tells the schedule the steps of `fit`, and logs the rate of the last step of each epoch."""

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        optimizer = _layerwise(self.model)
        if optimizer is not None:
            optimizer.awaits_horizon = True
            check_before_training(self.model)  # a model from a file has lost it

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._begun = False
        optimizer = _layerwise(self.model)
        if optimizer is not None and self.params["steps"] is None and optimizer.needs_horizon:
            optimizer.awaits_horizon = False
            raise ValueError(
                "The learning rate's schedule must know how many batches an epoch has, and this dataset has no length. "
                "Pass steps_per_epoch= to fit (with data.repeat()), or steps= (all steps) to recipe.compile."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not earlier: only here the number of the first epoch is known, and no step has run yet.
        optimizer, steps = _layerwise(self.model), self.params["steps"]
        if optimizer is not None and steps is not None and not self._begun:
            optimizer.begin(self.params["epochs"] * steps, done=epoch * steps)
        self._begun = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        optimizer = _layerwise(self.model)
        if logs is not None and optimizer is not None:
            logs["learning_rate"] = float(ops.convert_to_numpy(optimizer.last_rate))


def check_before_training(model: keras.Model) -> None:
    """Make `fit` and `train_on_batch` of a compiled model raise a `ValueError` where a step would fail."""
    # The optimizer itself can raise only inside the compiled step. On JAX that is too late: Keras has moved the values
    # out of the model's variables by then, and loses them. `make_train_function` is the last that `fit` calls before.
    make = type(model).make_train_function

    @functools.wraps(make)
    def make_train_function(*args, **kwargs):
        optimizer = _layerwise(model)
        if optimizer is not None and not optimizer.can_start:
            raise ValueError(NO_HORIZON)
        if optimizer is not None and optimizer.built and not optimizer.can_update(model.trainable_variables):
            optimizer.awaits_horizon = False
            raise ValueError(
                f"{model.name!r} trains other weights than its optimizer was built for: layers were frozen, unfrozen "
                "or replaced, or adapters were merged. Compile it again: recipe.compile(model, data)."
            )
        return make(model, *args, **kwargs)

    model.make_train_function = make_train_function


def _layerwise(model: keras.Model) -> Layerwise | None:
    """Return a model's optimizer if it is of this package; the one that scales losses (float16) contains it."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return optimizer if isinstance(optimizer, Layerwise) else None


class Reseed(keras.callbacks.Callback):
    """A callback that derives an epoch's random numbers from the steps before it, so a resumed run repeats them."""

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        optimizer = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)  # of one that scales losses
        steps = int(ops.convert_to_numpy(batches_seen(optimizer)))
        states = [variable for variable in self.model.variables if variable.path.endswith("seed_generator_state")]
        for variable in states:
            seed, _ = ops.convert_to_numpy(variable)
            variable.assign(np.array([seed, steps * _DRAWS_PER_STEP % 2**32], "uint32"))
        if states and keras.backend.backend() == "torch":  # whose global generator Keras' plain dropout draws from
            seeds = [int(ops.convert_to_numpy(variable)[0]) % 2**32 for variable in states]  # which Keras keeps signed
            mixed = np.random.SeedSequence([*seeds, steps]).generate_state(1, "uint64")[0]
            sys.modules["torch"].manual_seed(int(mixed))


_DRAWS_PER_STEP = 64  # no layer draws more often in a step

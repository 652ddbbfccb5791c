"""What `fit` must call for a recipe to work: the schedule is told its end, and random numbers follow from the step."""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import ops

from .optimizers import NO_HORIZON, Layerwise

__all__ = ["Horizon", "Reseed", "check_horizon_before_training"]


class Horizon(keras.callbacks.Callback):
    """Tells the schedule how many steps `fit` was asked for, and logs the learning rate after each epoch.

    A second `fit` starts the schedule again. One that goes on, by `initial_epoch` or `BackupAndRestore`, goes on in it.

    Raises:
        ValueError: Nobody knows how many batches an epoch has.
    """

    def set_model(self, model):
        super().set_model(model)
        if self._optimizer() is not None:
            self._optimizer().awaits_horizon = True

    def on_train_begin(self, logs=None):
        self._begun = False
        optimizer = self._optimizer()
        if optimizer is not None and self.params["steps"] is None and optimizer.needs_horizon:
            optimizer.awaits_horizon = False
            raise ValueError(
                "The data does not tell how many batches an epoch has, which the learning rate's schedule must know: give "
                "steps_per_epoch to fit (with data.repeat()), or steps (all there will be) to recipe.compile."
            )

    def on_epoch_begin(self, epoch, logs=None):
        # Not earlier: here the true number of the first epoch is known, and no step has run yet.
        optimizer, steps = self._optimizer(), self.params["steps"]
        if optimizer is not None and steps is not None and not self._begun:
            optimizer.begin(self.params["epochs"] * steps, done=epoch * steps)
        self._begun = True

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None and self._optimizer() is not None:
            logs["learning_rate"] = float(ops.convert_to_numpy(self._optimizer().learning_rate))

    def _optimizer(self) -> Layerwise | None:
        return _layerwise(self.model)


def check_horizon_before_training(model: keras.Model) -> None:
    """Make `fit` and `train_on_batch` of a model refuse to start while nobody can tell the schedule its number of steps.

    The schedule would refuse inside the compiled step. There it is too late on JAX: Keras has taken the variables' values out of
    the model by then, and loses them. `make_train_function` is the last that `fit` calls before its callbacks and its steps.

    Args:
        model: A compiled model. It is changed.
    """
    make = type(model).make_train_function

    @functools.wraps(make)
    def make_train_function(*args, **kwargs):
        optimizer = _layerwise(model)
        if optimizer is not None and not optimizer.can_start:
            raise ValueError(NO_HORIZON)
        return make(model, *args, **kwargs)

    model.make_train_function = make_train_function


def _layerwise(model: keras.Model) -> Layerwise | None:
    """A model's optimizer, if it is one of this package; with mixed precision it is inside the one that scales the loss."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return optimizer if isinstance(optimizer, Layerwise) else None


class Reseed(keras.callbacks.Callback):
    """Makes what dropout draws in an epoch depend on the steps before it, so that a resumed training draws the same.

    Keras saves no state of random numbers. The model must begin with the same seeds (`keras.utils.set_random_seed`); on PyTorch,
    Keras' plain dropout draws from PyTorch's own generator instead.
    """

    def on_epoch_begin(self, epoch, logs=None):
        steps = int(ops.convert_to_numpy(self.model.optimizer.iterations))
        for variable in self.model.variables:
            if variable.path.endswith("seed_generator_state"):
                seed, _ = ops.convert_to_numpy(variable)
                variable.assign(np.array([seed, steps * _DRAWS_PER_STEP % 2**32], "uint32"))


# More often than this no layer draws in a step.
_DRAWS_PER_STEP = 64

"""Several devices of one TensorFlow process: under a `tf.distribute` strategy each trains a replica of the model.

Keras adds the gradients of the replicas up, so each replica's loss is its share of the whole one. Here is what Keras
does not do by itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import keras

__all__ = ["check_accumulation", "count", "scope_of", "share", "summed"]


def count() -> int:
    """Return the number of replicas that train together, which is 1 except under a strategy of TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        return 1
    return sys.modules["tensorflow"].distribute.get_strategy().num_replicas_in_sync


def scope_of(model: keras.Model) -> Any:
    """Return a context in which variables are made under the model's strategy."""
    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    distribute, strategy = sys.modules["tensorflow"].distribute, model.distribute_strategy
    if not distribute.has_strategy():
        return contextlib.nullcontext() if strategy is distribute.get_strategy() else strategy.scope()
    current = distribute.get_strategy()
    if not all(current.extended.variable_created_in_scope(each.value) for each in model.weights):
        raise ValueError(
            f"The model {model.name!r} was made outside the tf.distribute strategy that is in use. Build or open it "
            'inside strategy.scope(), or after vit_keras.distribute("data").'
        )
    return contextlib.nullcontext()


def check_accumulation(batches: int) -> None:
    """Raise a ValueError if gradients are accumulated over batches on several replicas."""
    if batches > 1 and count() > 1:
        raise ValueError(
            f"accumulate={batches} does not work on several devices: Keras cannot add gradients up over batches under "
            "a tf.distribute strategy. Pass accumulate=1 and larger batches."
        )


def share(loss: Any) -> Any:
    """Return a replica's part of the loss: its mean, divided by the number of replicas."""
    # Keras does that with the losses of `compile`, but not with what a `compute_loss` adds to them.
    return loss / count()


def summed(gradients: Sequence[Any]) -> list[Any]:
    """Return the sums of gradients over the replicas, which are the gradients of the whole loss; `None` stays."""
    if count() == 1:
        return list(gradients)
    distribute = sys.modules["tensorflow"].distribute
    there = [each for each in gradients if each is not None]
    sums = iter(distribute.get_replica_context().all_reduce(distribute.ReduceOp.SUM, there))
    return [None if each is None else next(sums) for each in gradients]

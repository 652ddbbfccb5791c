"""What all libraries on Keras do alike: the ways to call a model, a training step, and the stages of a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from . import CLASSES, Job, images, labels

Build = Callable[[dict[str, Any]], keras.Model]


def inference(model: keras.Model, cell: dict[str, Any]) -> Job:
    """Logits of a batch: by `predict`, by a plain call, and by what a user would compile by hand."""
    x = images(cell)
    tensor = keras.ops.convert_to_tensor(x)
    numpy = keras.ops.convert_to_numpy
    calls = {
        "predict": lambda: model.predict(x, verbose=0),
        "call": lambda: numpy(model(tensor, training=False)),
    }
    by_hand = {"tensorflow": _graph, "jax": _jit, "torch": _no_grad}.get(keras.backend.backend())
    if by_hand:  # on OpenVINO there is no such way
        fast = by_hand(model)
        calls["no_grad" if by_hand is _no_grad else "compiled"] = lambda: numpy(fast(tensor))
    return Job(model.count_params(), calls, (cell["batch"], CLASSES))


def _graph(model: keras.Model) -> Callable:
    import tensorflow as tf

    return tf.function(lambda x: model(x, training=False))


def _jit(model: keras.Model) -> Callable:
    import jax

    compiled = jax.jit(lambda t, n, x: model.stateless_call(t, n, x, training=False)[0])
    held: list = []

    def call(x):
        if not held or held[0][0].is_deleted():  # by `predict`, which gives the model new arrays
            held[:] = [
                [v.value for v in variables] for variables in (model.trainable_variables, model.non_trainable_variables)
            ]
        return compiled(*held, x)

    return call


def _no_grad(model: keras.Model) -> Callable:
    import torch

    def call(x):
        with torch.no_grad():
            return model(x, training=False)

    return call


def training(
    model: keras.Model, cell: dict[str, Any], prepare: Callable[[Any], Any] = lambda optimizer: optimizer
) -> Job:
    """One step of AdamW, which `prepare` may change first, on the cross-entropy, as `fit` does it."""
    x, y = images(cell), labels(cell)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=prepare(keras.optimizers.AdamW(1e-4)), loss=loss, metrics=[])  # or KerasHub adds one
    return Job(model.count_params(), {"train_on_batch": lambda: model.train_on_batch(x, y)}, ())


def features(model: keras.Model, cell: dict[str, Any], read: Callable[[list[str]], np.ndarray]) -> Job:
    """Files become arrays, all arrays become features."""

    def run():
        found = model.predict(read(cell["files"]), batch_size=cell["batch"], verbose=0)
        return found if found.ndim == 2 else found[:, 0]

    return Job(model.count_params(), {"read+predict": run}, (cell["images"], cell["architecture"]["hidden"]))


def startup(build: Build, cell: dict[str, Any], load: Callable[[keras.Model, str], Any] | None = None) -> list:
    """Build, load a file of weights, predict for the first time.

    Args:
        build: Builds the model; and loads the weights, if there is no `load`.
        cell: The cell.
        load: Loads the weights.
    """
    held = []
    stages = [
        ("build", lambda: held.append(build(cell))),
        ("load", lambda: load(held[0], cell["weights"])),
        ("predict", lambda: held[0].predict(images(cell), verbose=0)),
    ]
    return [stage for stage in stages if load is not None or stage[0] != "load"]


def load(model: keras.Model, path: str) -> None:
    """Load the weights that `save` has written."""
    model.load_weights(path)


def save(model: keras.Model, path: str) -> None:
    """Write the weights."""
    model.save_weights(path)

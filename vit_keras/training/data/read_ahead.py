"""The batches of an epoch, prepared in threads while a model computes, and what the model learns from them."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from ... import anatomy
from ...anatomy.parts import has_vit, learner
from ...backend.guarded import CheckedModel
from ..distill import Distillation

__all__ = ["ReadAhead", "SetEpoch", "name_learner"]


def name_learner(model: keras.Model, data: Any) -> None:
    """Attach the task and the class names of an `ImageFolder` to the model that learns them; ignore other data."""
    learns = isinstance(model, Distillation) or not isinstance(model, CheckedModel)
    if not (hasattr(data, "class_names") and learns and has_vit(model)):
        return
    independent = data.one_hot and anatomy.task(learner(model)) == "multi"  # by choice, for classes
    anatomy.name_classes(learner(model), data.class_names, "multi" if independent else data.task)


class SetEpoch(keras.callbacks.Callback):
    """A callback that tells a dataset the epoch, also after `BackupAndRestore`, and the model what it learns."""

    def __init__(self, data: Any):
        super().__init__()
        self.data = data

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        name_learner(self.model, self.data)  # for models that are not compiled by a recipe

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.data.epoch = epoch


class ReadAhead:
    """The batches of one epoch in the dataset's order, whatever the indices; threads prepare the next ones."""

    def __init__(self, data: Any, epoch: int):
        self._data, self._epoch = data, epoch
        self.place: dict[int, int] = {}
        self._waiting: dict[int, Future[Any]] = {}
        self._submitted = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(data.threads, "vit_keras-data") if data.threads else None
        if self._pool:  # when this object goes, or at Python's exit before its modules go
            self._stop = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def get(self, index: int) -> tuple[np.ndarray, ...]:
        """Return the first batch for the first index, and so on; for an index that was asked for, its batch again."""
        with self._lock:
            place = self.place.setdefault(index, len(self.place))
            while self._pool and self._submitted < min(place + self._data.threads + 2, len(self._data)):
                self._waiting[self._submitted] = self._pool.submit(self._data._batch, self._epoch, self._submitted)
                self._submitted += 1
            future = self._waiting.pop(place, None)
        return future.result() if future else self._data._batch(self._epoch, place)

    def close(self) -> bool:
        """Drop unused batches, and return whether all batches were requested."""
        with self._lock:
            if self._pool:
                self._stop()
            self._pool, self._waiting = None, {}
            return len(self.place) == len(self._data)

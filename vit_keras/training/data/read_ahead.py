"""The batches of an epoch, prepared in threads while a model computes."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

__all__ = ["ReadAhead", "SetEpoch"]


class SetEpoch(keras.callbacks.Callback):
    """A callback that tells a dataset the epoch, also after `fit(initial_epoch=…)` and `BackupAndRestore`."""

    def __init__(self, data: Any):
        super().__init__()
        self.data = data

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.data.epoch = epoch


class ReadAhead:
    """The batches of one epoch in the dataset's order, whatever the indices; threads prepare the next ones."""

    def __init__(self, data: Any, epoch: int):
        self.data, self.epoch = data, epoch
        self.place: dict[int, int] = {}
        self.waiting: dict[int, Future[Any]] = {}
        self.submitted = 0
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(data.threads, "vit_keras-data") if data.threads else None
        if self.pool:  # when this object goes, or at Python's exit before its modules go
            self.stop = weakref.finalize(self, self.pool.shutdown, wait=False, cancel_futures=True)

    def get(self, index: int) -> tuple[np.ndarray, ...]:
        """Return the first batch for the first index, and so on; for an index that was asked for, its batch again."""
        with self.lock:
            place = self.place.setdefault(index, len(self.place))
            while self.pool and self.submitted < min(place + self.data.threads + 2, len(self.data)):
                self.waiting[self.submitted] = self.pool.submit(self.data._batch, self.epoch, self.submitted)
                self.submitted += 1
            future = self.waiting.pop(place, None)
        return future.result() if future else self.data._batch(self.epoch, place)

    def close(self) -> bool:
        """Drop unused batches, and return whether all batches were requested."""
        with self.lock:
            if self.pool:
                self.stop()
            self.pool, self.waiting = None, {}
            return len(self.place) == len(self.data)

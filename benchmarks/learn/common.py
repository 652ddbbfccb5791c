"""What all contenders share: the images of a request, the steps that fit into its budget, the score."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

BATCH = 32
TIMED = 4


class Data(NamedTuple):
    """A data set: inputs in [-1, 1], float32 `(n, size, size, 3)`, and labels.

    Labels are class numbers, numbers with mean 0 and standard deviation 1, or 0 and 1 for each class.
    """

    pixels: np.ndarray
    labels: np.ndarray
    test_pixels: np.ndarray
    test_labels: np.ndarray
    kind: str
    outputs: int

    def score(self, outputs: np.ndarray) -> float:
        """Return how good outputs for the test images are, in percent: accuracy, R², or mean average precision."""
        labels = self.test_labels
        if self.kind == "single":
            return 100 * float(np.mean(outputs.argmax(axis=1) == labels))
        if self.kind == "regression":
            return 100 * float(1 - np.mean((outputs - labels) ** 2) / labels.var())
        return 100 * float(np.mean([_average_precision(*pair) for pair in zip(labels.T, outputs.T)]))


def read(request: dict[str, Any]) -> Data:
    """Return the data set of a request."""
    with np.load(request["file"]) as file:
        train, labels, test, test_labels = (file[name] for name in ("train", "train_labels", "test", "test_labels"))
    if request["kind"] == "regression":
        mean, std = labels.mean(), labels.std()
        labels, test_labels = (labels - mean) / std, (test_labels - mean) / std
    outputs = int(labels.max()) + 1 if request["kind"] == "single" else labels.shape[1]
    return Data(train, labels, test, test_labels, request["kind"], outputs)


def prepared(pixels: np.ndarray) -> np.ndarray:
    """Return pixels in [0, 255] as float32 in [-1, 1]."""
    return pixels.astype("float32") / 127.5 - 1


def _average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    found = labels[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(found) / np.arange(1, len(found) + 1))[found > 0].mean())


def order(count: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the images of each step, without end: each epoch is a new order, cut into whole batches."""
    rng, waiting = np.random.default_rng(seed), np.zeros(0, int)
    while True:
        while len(waiting) < batch:
            waiting = np.concatenate([waiting, rng.permutation(count)])
        yield waiting[:batch]
        waiting = waiting[batch:]


def steps_within(budget: dict[str, float], step: Callable[[], Any]) -> int:
    """Return how many steps a budget has: `{"steps": n}`, or `{"seconds": s}` of processor time, by timing a few."""
    if "steps" in budget:
        return int(budget["steps"])
    step()
    started = time.process_time()
    for _ in range(TIMED):
        step()
    return max(1, int(budget["seconds"] * TIMED / (time.process_time() - started)))


class Processor:
    """Measure the processor time of a `with` block, in seconds."""

    def __enter__(self) -> Processor:
        self._started = time.process_time()
        return self

    def __exit__(self, *_: Any) -> None:
        self.seconds = time.process_time() - self._started

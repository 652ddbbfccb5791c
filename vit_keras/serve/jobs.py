"""Threads that read pictures and run the model: one job after the other, or several in one batch."""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

__all__ = ["Work", "Workers"]


@dataclasses.dataclass(frozen=True)
class Work:
    """What a job turns out to be.

    Attributes:
        images: A batch `(n, height, width, channels)`.
        outputs: Names of the outputs to compute.
        finish: Takes the outputs of these images, and returns the result of the job.
    """

    images: np.ndarray
    outputs: tuple[str, ...]
    finish: Callable[[Mapping[str, np.ndarray]], Any]


class Workers:
    """Threads that do jobs. A picture is decoded when a thread takes its job, so only that many are in memory.

    Args:
        run: Computes `{name: array}` of a batch of images `(n, height, width, channels)` and the names of outputs.
        threads: How many jobs, or batches, are done at once.
        batch: How many jobs at most are computed together. Only images of one size can be.
        wait: Seconds that an incomplete batch waits for more.

    Example:
        >>> workers = Workers(lambda images, outputs: {"sum": images.sum((1, 2, 3))}, threads=1)
        >>> work = Work(np.ones((1, 2, 2, 3), "uint8"), ("sum",), lambda found: int(found["sum"][0]))
        >>> workers.submit(lambda: work).result()
        12
        >>> workers.close()
    """

    def __init__(
        self,
        run: Callable[[np.ndarray, Sequence[str]], Mapping[str, np.ndarray]],
        *,
        threads: int = 2,
        batch: int = 1,
        wait: float = 0.005,
    ):
        self._run, self._batch, self._wait = run, batch, wait
        self._queue: queue.SimpleQueue[tuple[Callable[[], Work], Future] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, prepare: Callable[[], Work]) -> Future:
        """Add a job.

        Args:
            prepare: Reads the request, in one of the threads.

        Returns:
            What will have the result, or the exception of one of the functions. A job that has not begun can be
            cancelled.
        """
        future: Future = Future()
        self._queue.put((prepare, future))
        return future

    def close(self) -> None:
        """Do the jobs that there are, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            self._compute([first, *self._more()])

    def _more(self) -> list[tuple[Callable[[], Work], Future]]:
        """Return what may be computed together with a job."""
        jobs: list[tuple[Callable[[], Work], Future]] = []
        until = time.monotonic() + self._wait
        while len(jobs) < self._batch - 1:
            try:
                job = self._queue.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                break
            if job is None:  # the end, which the loop has to see
                self._queue.put(None)
                break
            jobs.append(job)
        return jobs

    def _compute(self, jobs: list[tuple[Callable[[], Work], Future]]) -> None:
        groups: dict[Any, list[tuple[Work, Future]]] = {}
        for prepare, future in jobs:
            if future.set_running_or_notify_cancel():
                try:
                    work = prepare()
                    groups.setdefault((work.images.shape[1:], work.outputs), []).append((work, future))
                except Exception as error:
                    future.set_exception(error)
        for (_, outputs), group in groups.items():
            try:
                images = [work.images for work, _ in group]
                found = self._run(images[0] if len(images) == 1 else np.concatenate(images), outputs)
            except Exception as error:
                for _, future in group:
                    future.set_exception(error)
                continue
            start = 0
            for work, future in group:
                part = slice(start, start + len(work.images))
                start += len(work.images)
                try:
                    future.set_result(work.finish({name: value[part] for name, value in found.items()}))
                except Exception as error:
                    future.set_exception(error)

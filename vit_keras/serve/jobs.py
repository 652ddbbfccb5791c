"""Threads that read images and run the model, one job at a time or several in a batch."""

from __future__ import annotations

import dataclasses
import math
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
    """Threads that do jobs. An image is decoded when a thread takes its job, so only that many are in memory.

    Args:
        run: Computes `{name: array}` of a batch of images `(n, height, width, channels)` and the names of outputs.
        threads: How many jobs, or batches, are done at once.
        batch: How many jobs at most are computed together. Only images of one size can be.
        wait: Seconds that an incomplete batch waits for more.
        at_once: How many images of a `(height, width)` one run computes at most, for outputs of these names. Jobs of
            more together are not in one batch, and a job of more is computed in several runs. `None`: any number.

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
        at_once: Callable[[tuple[int, int], Sequence[str]], int] | None = None,
    ):
        self._run, self._batch, self._wait, self._at_once = run, batch, wait, at_once
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, prepare: Callable[[], Work], timeout: float | None = None) -> Future[Any]:
        """Add a job.

        Args:
            prepare: Reads the request, in one of the threads. It is forgotten, with the request that it holds, as soon
                as it has run or the job is cancelled.
            timeout: Seconds after which the job is given up: it is not begun, or it ends between two runs.

        Returns:
            What will have the result, or the exception of one of the functions. A job that has not begun can be
            cancelled.
        """
        job = _Job(prepare, math.inf if timeout is None else time.monotonic() + timeout)
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """Finish pending jobs, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (first := self._queue.get()) is not None:
            self._compute([first, *self._more()])
            first = None  # what is waited for may be long in coming

    def _more(self) -> list[_Job]:
        """Return the jobs that may be computed together with a job."""
        jobs: list[_Job] = []
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

    def _compute(self, jobs: list[_Job]) -> None:
        groups: dict[Any, list[tuple[Work, _Job]]] = {}
        for job in jobs:
            prepare = job.taken()
            if prepare is not None and job.future.set_running_or_notify_cancel():
                try:
                    if time.monotonic() > job.until:
                        raise TimeoutError("The job was given up.")
                    self._add(prepare(), job, groups)
                except Exception as error:
                    job.future.set_exception(error)
            prepare = None  # it holds the request
        for group in groups.values():
            self._compute_together(group)

    def _add(self, work: Work, job: _Job, groups: dict[Any, list[tuple[Work, _Job]]]) -> None:
        """Add a job to its group, which is computed once it is full: only a few small images wait for others."""
        most = self._most(work)
        group = groups.setdefault((work.images.shape[1:], work.outputs), [])
        if sum(len(each.images) for each, _ in (*group, (work, job))) > most:
            self._compute_together(group)
            group.clear()
        group.append((work, job))
        if len(work.images) >= most:
            self._compute_together(group)
            group.clear()

    def _compute_together(self, group: Sequence[tuple[Work, _Job]]) -> None:
        """Compute jobs with images of one size and the same outputs."""
        if not group:
            return
        try:
            images = [work.images for work, _ in group]
            until = max(job.until for _, job in group)
            work = dataclasses.replace(group[0][0], images=images[0] if len(images) == 1 else np.concatenate(images))
            found = self._run_in_parts(work, until)
        except Exception as error:
            for _, job in group:
                job.future.set_exception(error)
            return
        start = 0
        for work, job in group:
            part = slice(start, start + len(work.images))
            start += len(work.images)
            try:
                job.future.set_result(work.finish({name: value[part] for name, value in found.items()}))
            except Exception as error:
                job.future.set_exception(error)

    def _most(self, work: Work) -> float:
        """Return how many images such as those of a job one run computes at most."""
        return math.inf if self._at_once is None else self._at_once(work.images.shape[1:3], work.outputs)

    def _run_in_parts(self, work: Work, until: float) -> Mapping[str, np.ndarray]:
        images, outputs = work.images, work.outputs
        step = int(min(self._most(work), len(images)))
        if len(images) == step:
            return self._run(images, outputs)
        found: dict[str, np.ndarray] = {}
        for start in range(0, len(images), step):
            if time.monotonic() > until:
                raise TimeoutError("The job was given up.")
            for name, value in self._run(images[start : start + step], outputs).items():
                if name not in found:
                    found[name] = np.empty((len(images), *value.shape[1:]), value.dtype)
                found[name][start : start + len(value)] = value  # of one run at a time, two copies are in memory
        return found


class _Job:
    """A job in the queue. What is cancelled stays there until a thread meets it, but its request does not.

    Its future does not refer to it: in a circle, the result would stay in memory until garbage is collected.
    """

    def __init__(self, prepare: Callable[[], Work], until: float):
        self.future, self.until = Future(), until
        self._prepare = held = [prepare]
        self.future.add_done_callback(lambda _: held.clear())

    def taken(self) -> Callable[[], Work] | None:
        """Return what reads the request, once."""
        try:
            return self._prepare.pop()
        except IndexError:  # taken or cancelled
            return None

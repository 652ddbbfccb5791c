"""Counters and durations of a server, as the text that Prometheus reads."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Mapping

__all__ = ["Metrics"]

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_KINDS = {
    "vit_keras_requests_total": ("counter", "Requests that were answered."),
    "vit_keras_request_seconds": ("histogram", "Time from the head of a request to its answer, reading included."),
    "vit_keras_images_total": ("counter", "Images that the model computed."),
    "vit_keras_batches_total": ("counter", "Runs of the model."),
    "vit_keras_inference_seconds": ("histogram", "Time of a run of the model."),
    "vit_keras_pending": ("gauge", "Requests that are read, wait or are computed."),
    "vit_keras_connections": ("gauge", "Open connections."),
}


class Metrics:
    """What a server counts. Threads may share it.

    Example:
        >>> metrics = Metrics()
        >>> metrics.add("vit_keras_images_total", 3)
        >>> print(metrics.text({"vit_keras_pending": 0}))
        # HELP vit_keras_images_total Images that the model computed.
        # TYPE vit_keras_images_total counter
        vit_keras_images_total 3
        # HELP vit_keras_pending Requests that are read, wait or are computed.
        # TYPE vit_keras_pending gauge
        vit_keras_pending 0
        <BLANKLINE>
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], float] = {}
        self._times: dict[tuple[str, str], tuple[list[int], float]] = {}

    def add(self, name: str, amount: float = 1, **labels: object) -> None:
        """Count up."""
        key = (name, _labels(labels))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + amount

    def observe(self, name: str, seconds: float, **labels: object) -> None:
        """Count a duration."""
        key = (name, _labels(labels))
        with self._lock:
            counts, total = self._times.get(key, ([0] * (len(_BUCKETS) + 1), 0.0))
            counts[bisect.bisect_left(_BUCKETS, seconds)] += 1
            self._times[key] = (counts, total + seconds)

    def text(self, gauges: Mapping[str, float]) -> str:
        """Return all numbers in Prometheus' text format.

        Args:
            gauges: Numbers of this moment by their names.
        """
        with self._lock:
            counts = {**self._counts, **{(name, ""): value for name, value in gauges.items()}}
            times = {key: (list(each), total) for key, (each, total) in self._times.items()}
        lines = []
        for name, (kind, about) in _KINDS.items():
            found = [
                f"{name}{_braces(labels)} {value:g}" for (each, labels), value in sorted(counts.items()) if each == name
            ]
            for (each, labels), (buckets, total) in sorted(times.items()):
                found += _histogram(name, labels, buckets, total) if each == name else []
            if found:
                lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}", *found]
        return "\n".join([*lines, ""])


def _histogram(name: str, labels: str, buckets: list[int], total: float) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*map(str, _BUCKETS), "+Inf"), buckets):
        below += count
        lines.append(f"{name}_bucket{_braces(labels, f'le={chr(34)}{bound}{chr(34)}')} {below}")
    return [*lines, f"{name}_sum{_braces(labels)} {total:.6f}", f"{name}_count{_braces(labels)} {below}"]


def _labels(labels: Mapping[str, object]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _braces(*labels: str) -> str:
    inside = ",".join(filter(None, labels))
    return f"{{{inside}}}" if inside else ""

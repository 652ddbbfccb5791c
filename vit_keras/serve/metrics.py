"""Metrics of a server, for Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["Metrics"]

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters, durations and gauges of one server. Threads may share them.

    Attributes:
        registry: What `prometheus_client` writes them from.

    Example:
        >>> metrics = Metrics()
        >>> metrics.images.inc(3)
        >>> metrics.registry.get_sample_value("vit_keras_images_total")
        3.0
    """

    def __init__(self):
        self.registry: Any = CollectorRegistry()

        def new(kind, name, about, labels=(), **options):
            return kind(f"vit_keras_{name}", about, labels, registry=self.registry, **options)

        times = {"buckets": _BUCKETS}
        self.requests: Any = new(Counter, "requests", "Requests that were answered.", ("route", "status"))
        about = "Time from the head of a request to its answer, reading included."
        self.request_seconds: Any = new(Histogram, "request_seconds", about, ("route",), **times)
        self.images: Any = new(Counter, "images", "Images that the model computed.")
        self.batches: Any = new(Counter, "batches", "Runs of the model.")
        self.inference_seconds: Any = new(Histogram, "inference_seconds", "Time of a run of the model.", **times)
        self.pending: Any = new(Gauge, "pending", "Requests that are read, wait or are computed.")
        self.connections: Any = new(Gauge, "connections", "Open connections.")

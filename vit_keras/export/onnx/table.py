"""ONNX equivalents of the operations of `keras.ops`: one table by the names of Keras' classes.

A handler takes the tracer, the operation and the arguments it was called with, and returns a value of the graph, or a
structure of values. The handlers are in `elementwise`, `reductions` and `shapes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["OPERATIONS", "on"]

OPERATIONS: dict[str, Callable[..., Any]] = {}


def on(*names: str) -> Callable[..., Any]:
    """Return a decorator that puts a handler into the table under the names of operations."""

    def put(handler: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, handler))
        return handler

    return put

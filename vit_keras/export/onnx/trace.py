"""Tracing of a function of Keras operations to a graph of ONNX operators, on any backend.

The function is called with symbolic tensors. Every operation of `keras.ops` that meets one is answered by a handler of
`OPERATIONS` with a new symbolic tensor, which carries a value of the graph; layers are entered through their `call`.
What depends on weights alone is computed by the backend meanwhile, and is a constant of the graph.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops, tree

from ... import layers
from ...backend.keras_internals import SymbolicTensor, answering
from .graph import Dimension, Graph, Value

__all__ = ["OPERATIONS", "on", "trace"]

OPERATIONS: dict[str, Callable[..., Any]] = {}
"""Handlers by the names of Keras' classes of operations, from `elementwise`, `reductions` and `shapes`.

A handler takes the tracer, the operation and the arguments it was called with, and returns a value of the graph, or a
structure of values.
"""


def on(*names: str) -> Callable[..., Any]:
    """Return a decorator that makes a function the handler of operations."""

    def put(handler: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, handler))
        return handler

    return put


def trace(function: Callable[..., Mapping[str, Any]], inputs: Mapping[str, tuple[tuple[Dimension, ...], str]]) -> Graph:
    """Trace a function of symbolic tensors, each of a shape, with names for open dimensions, and a dtype."""
    tracer = _Tracer()
    with tracer.at_work():
        tensors = [tracer.tensor(tracer.graph.input(name, *kind)) for name, kind in inputs.items()]
        outputs = function(*tensors)
        tracer.graph.outputs = {name: tracer.value(tensor) for name, tensor in outputs.items()}
    return tracer.graph


class _Tracer:
    """Context for the handlers of operations: the graph, and the way from Keras' tensors to its values and back."""

    def __init__(self) -> None:
        self.graph = Graph()
        self._layers: list[keras.Layer] = []
        self._kept: list[Any] = []  # constants are known by their `id`, which must not be used again

    def tensor(self, value: Value) -> SymbolicTensor:
        """Return a value as a symbolic tensor."""
        shape = [size if isinstance(size, int) else None for size in value.shape]
        return SymbolicTensor(shape, value.dtype, value)

    def value(self, x: Any, dtype: str | None = None) -> Value:
        """Return a tensor, a weight, an array or a number as a value of the graph; float32 for half precision."""
        if isinstance(x, SymbolicTensor):
            return self.graph.cast(x.value, dtype or x.value.dtype)
        if isinstance(x, (bool, int, float, list, tuple, np.ndarray, np.generic)):
            constant = self.graph.constant(x, dtype or self.dtype(x))
        else:
            self._kept.append(x)
            own = _full(keras.backend.standardize_dtype(x.dtype))
            name = getattr(x, "path", "")
            make = lambda: np.asarray(ops.convert_to_numpy(x)).astype(own, copy=False)  # noqa: E731
            constant = self.graph.lazy(make, x.shape, own, key=("constant", id(x)), name=name)
            if not name and constant.shape == ():
                constant = self.graph.constant(make())
        return self.graph.cast(constant, dtype or constant.dtype)

    def dtype(self, *arguments: Any) -> str:
        """Return the type of the result of an operation on these arguments, by Keras' rules; never half precision."""
        kinds = [x if isinstance(x, type) else getattr(x, "dtype", type(x)) for x in arguments]
        if all(isinstance(kind, type) and kind in (int, bool) for kind in kinds):
            return "int64"
        standard = keras.backend.standardize_dtype
        result = keras.backend.result_type(*(x if isinstance(x, type) else standard(x) for x in kinds))
        for wide, narrow in (("float64", "float32"), ("int64", "int32")):  # JAX has neither of 64 bits
            if result == narrow and any(not isinstance(x, type) and standard(x) == wide for x in kinds):
                return wide
        return _full(result)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Answer operations on symbolic tensors while the block runs."""
        plain = {name: getattr(ops, name) for name in ("shape", "broadcast_to")}

        def shape(x):
            if not isinstance(x, SymbolicTensor):
                return plain["shape"](x)
            return tuple(n if isinstance(n, int) else self.tensor(self.graph.size(n)) for n in x.value.shape)

        def broadcast_to(x, shape):  # of weights to a batch whose size is not known
            if any(isinstance(size, SymbolicTensor) for size in shape):
                x = x if isinstance(x, SymbolicTensor) else self.tensor(self.value(x))
            return plain["broadcast_to"](x, shape)

        try:
            ops.shape, ops.broadcast_to = shape, broadcast_to
            # Inside of a tap attention is the plain operations, on every backend.
            with layers.tap(lambda layer, name, tensor: tensor), answering(self.answer):
                yield
        finally:
            for name, function in plain.items():
                setattr(ops, name, function)

    def answer(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of an operation or a layer on symbolic tensors."""
        name = type(operation).__name__
        handler = OPERATIONS.get(name)
        if isinstance(operation, keras.layers.RNN):
            raise ValueError(
                f"The recurrent layer {operation.path!r} is not written to ONNX. Export to another format."
            )
        if isinstance(operation, keras.Layer):
            return args[0] if _rests(operation, name) else self.enter(operation, args, kwargs)
        if handler is None:
            where = f"The layer {self._layers[-1].path!r}" if self._layers else "The model"
            raise ValueError(
                f"{where} uses keras.ops' operation {name!r}, which is not written to ONNX. Write the layer with other "
                f"operations, or export to another format. Known are: {', '.join(sorted(OPERATIONS))}."
            )
        results = handler(self, operation, *args, **kwargs)
        return tree.map_structure(self.tensor, results)

    def enter(self, layer: keras.Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a layer's `call`."""
        outer = self.graph.scope
        self._layers.append(layer)
        self.graph.scope = "" if isinstance(layer, keras.Model) else layer.path
        own = getattr(layer, "backend", None)
        try:
            if hasattr(own, "core"):  # of preprocessing layers, which compute with the backend itself
                object.__setattr__(layer, "backend", _Operations())
            outputs = layer.call(*args, **kwargs)
            return tree.map_structure(  # Keras wants symbolic tensors, also of what does not depend on the inputs
                lambda x: x if x is None or isinstance(x, SymbolicTensor) else self.tensor(self.value(x)), outputs
            )
        finally:
            if hasattr(own, "core"):
                object.__setattr__(layer, "backend", own)
            self._layers.pop()
            self.graph.scope = outer


def _rests(layer: keras.Layer, name: str) -> bool:
    """Return whether a layer is an augmentation of Keras, which changes images in training alone."""
    random = name.startswith("Rand") or name in ("AugMix", "CutMix", "MixUp")
    return random and name != "RandomCrop" and type(layer).__module__.startswith("keras.")


def _full(dtype: str) -> str:
    return "float32" if dtype in ("float16", "bfloat16") else dtype


class _Operations:
    """`keras.ops` as a replacement for a backend's modules."""

    @property
    def name(self) -> str:
        return keras.backend.backend()

    def __getattr__(self, name: str) -> Any:
        return self if name in ("core", "numpy", "nn", "math", "linalg") else getattr(ops, name)

"""Keras on OpenVINO, which runs models and does not train them: float32, current weights, and several threads.

OpenVINO computes in bfloat16 on processors that have it unless it is told otherwise: the logits of a ViT-Ti/16 are then
off by 0.17. Here its property `INFERENCE_PRECISION_HINT` is "f32". For bfloat16, set the environment variable
`VIT_KERAS_OPENVINO_PRECISION=bf16` or the variable `precision` of this module; the next call of a model follows it.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from .._internal.validate import one_of
from .keras_internals import compile_on_openvino, values_of

PRECISIONS = ("f32", "bf16", "f16")
"""What OpenVINO computes in; a processor computes f16 only if it has instructions for it."""

precision: str = os.environ.get("VIT_KERAS_OPENVINO_PRECISION", "f32")
"""The property `INFERENCE_PRECISION_HINT` of all models on Keras' OpenVINO backend."""


def is_active() -> bool:
    """Return whether Keras runs on OpenVINO."""
    return keras.backend.backend() == "openvino"


def refuse(what: str) -> None:
    """Raise a NotImplementedError on OpenVINO for something that needs gradients."""
    if is_active():
        raise NotImplementedError(
            f"{what} needs gradients, and Keras' OpenVINO backend computes none: set the environment variable "
            "KERAS_BACKEND to tensorflow, jax or torch."
        )


class Compiled:
    """A compiled `openvino.Model`, which threads may share: each call has its own inference request."""

    def __init__(self, model: Any, device: str = "CPU"):
        import openvino

        one_of(precision, "VIT_KERAS_OPENVINO_PRECISION", PRECISIONS)
        self._compiled = openvino.compile_model(model, device, {"INFERENCE_PRECISION_HINT": precision})
        self._bfloat16: list[bool] = [each.get_element_type() == openvino.Type.bf16 for each in model.outputs]
        self._idle: list[Any] = []

    def __call__(self, inputs: Any) -> Any:
        """Return the outputs by `to_tuple()`, as `openvino.CompiledModel` does, which takes bfloat16 for float16."""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        outputs = request.infer(inputs, share_inputs=True).to_tuple()
        self._idle.append(request)
        outputs = tuple(x.view("bfloat16") if is_it else x for x, is_it in zip(outputs, self._bfloat16))
        return types.SimpleNamespace(to_tuple=lambda: outputs)


def compile_function(function: Callable[..., Any], specs: Sequence[tuple[Any, ...]]) -> Callable[..., Any]:
    """Return a function of tensors, compiled for specs `(shape without the batch, dtype)`."""
    import openvino
    from openvino import opset13

    types_ = [openvino.Type.bf16 if dtype == "bfloat16" else np.dtype(dtype) for _, dtype in specs]
    shapes = [[-1, *(-1 if n is None else n for n in shape)] for shape, _ in specs]
    parameters = [opset13.parameter(shape, dtype) for shape, dtype in zip(shapes, types_)]
    structure = function(*(keras.ops.convert_to_tensor(each.output(0)) for each in parameters))
    flat = keras.tree.flatten(structure)
    places = [place for place, value in enumerate(flat) if keras.ops.is_tensor(value)]
    results = [opset13.result(flat[place].output) for place in places]
    model = openvino.Model(results, parameters)
    compiled = Compiled(model)
    flat = [None if place in places else value for place, value in enumerate(flat)]

    def run(*tensors):
        outputs = compiled([_array(tensor) for tensor in tensors]).to_tuple()
        found = list(flat)
        for place, output in zip(places, outputs):
            found[place] = keras.ops.convert_to_tensor(output)
        return keras.tree.pack_sequence_as(structure, found)

    return run


def _array(tensor: Any) -> np.ndarray:
    return np.ascontiguousarray(keras.ops.convert_to_numpy(tensor))


def attend(query: Any, key: Any, value: Any, bias: Any = None) -> Any:
    """Attend by OpenVINO's own operation, given `(batch, heads, tokens, width)` each; return the output."""
    from openvino import opset13

    tensors = [x.output for x in (query, key, value)] + [x.output for x in (bias,) if x is not None]
    return keras.ops.convert_to_tensor(opset13.scaled_dot_product_attention(*tensors).output(0))


def compute_now(variables: Iterable[keras.Variable]) -> None:
    """Compute what was assigned to variables. Keras keeps a graph of it, with all batches that a metric has seen."""
    variables = list(variables)
    numbers = compile_function(lambda: [variable.value for variable in variables], [])() if variables else ()
    for variable, number in zip(variables, numbers):
        variable.assign(number)


def values(model: keras.Model) -> tuple[Any, ...]:
    """Return what is compiled besides the layers: the precision, and what the variables of a model hold."""
    return (precision, *values_of(*model.variables, cast=False))


if is_active():
    compile_on_openvino(Compiled, values)

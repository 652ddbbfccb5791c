"""PyTorch without Keras' Python: what a model computes is recorded once, and then played again.

Of a small model, half of the time is spent in some 140 calls of Keras layers, which do the same each time. A record
holds the operations of PyTorch between them and none of their Python. Gradients flow through it as through the layers.
"""

from __future__ import annotations

import collections
import math
import operator
import weakref
from collections.abc import Callable
from typing import Any

import keras

from .keras_internals import flat_layers, in_stateless_scope

AFTER = 3
"""A record is made when images of a shape come for this time: it takes about as long as twenty predictions."""
LARGE = 2**20
"""Values of an image from which on it is recorded at once: Keras keeps the output of every block until the end, and so
needs twice the memory.
"""

_PLAIN = (
    *("Activation", "Add", "Average", "Concatenate", "Conv2D", "Dense", "Dropout", "GroupNormalization"),
    *("InputLayer", "LayerNormalization", "MaxPooling2D", "ReLU", "Reshape"),
)
"""Layers of Keras that do nothing but compute: they keep no state, and add no loss."""


class Replayed:
    """A function of a model and tensors that is recorded for the shapes that come again and again.

    Args:
        model: The model, which is not kept alive.
        function: What to compute; see `compiled.run`.
        training: Whether the model trains.
    """

    def __init__(self, model: weakref.ref, function: Callable, training: bool):
        self.model, self.function = model, function
        self.layers = [layer for layer in flat_layers(model()) if layer is not model()]
        self.allowed = all(map(_is_plain, self.layers)) and not (training and any(map(_is_random, self.layers)))
        self.calls: collections.Counter = collections.Counter()
        self.records: dict[Any, Callable] = {}

    def __call__(self, *tensors: Any) -> Any:
        import torch

        if not self.allowed or _is_watched(tensors) or any(map(_has_hooks, self.layers)):
            return self.function(self.model(), *tensors)
        key = (*((tuple(t.shape), t.dtype, t.device, t.requires_grad) for t in tensors), torch.is_grad_enabled())
        if key not in self.records:
            self.calls[key] += 1
            if self.calls[key] < AFTER and all(math.prod(t.shape[1:]) < LARGE for t in tensors):
                return self.function(self.model(), *tensors)
            self.records[key] = _record(lambda *x: self.function(self.model(), *x), tensors)
        return self.records[key](*tensors)


def _is_plain(layer: keras.layers.Layer) -> bool:
    of, name = type(layer).__module__.partition(".")[0], type(layer).__name__
    ours = of == __package__ and not getattr(layer, "remat", False)
    return (ours or (of == "keras" and name in _PLAIN)) and getattr(layer, "activity_regularizer", None) is None


def _is_random(layer: keras.layers.Layer) -> bool:
    rates = (getattr(layer, name, 0) for name in ("rate", "dropout"))
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


def _has_hooks(layer: Any) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def _is_watched(tensors: tuple) -> bool:
    """Return whether something else looks at PyTorch's operations, or the tensors are none to compute with."""
    import torch
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return (
        in_stateless_scope()
        or torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.is_autocast_enabled()
        or torch.is_autocast_enabled("cpu")
        or _get_current_dispatch_mode() is not None
        or torch.overrides._get_current_function_mode() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(type(t) is not torch.Tensor or t.device.type == "meta" for t in tensors)
    )


def _record(function: Callable, tensors: tuple) -> Callable:
    """Return what PyTorch computes in a function, as a function of its own, with the model's own parameters.

    Nothing is computed meanwhile: the record would hold all of it in memory at once.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    detached = tuple(t.detach() for t in tensors)
    with torch.no_grad():
        module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*detached)
    _simplify(module.graph)
    module.recompile()
    return module.forward


def _simplify(graph: Any) -> None:
    """Write a graph with PyTorch's public functions, which choose a kernel anew and have gradients.

    A product and its bias stay two operations, as in the layers: as one (`addmm`) they round otherwise on some
    processors, and the first calls of a process would give other numbers than those after them. A sum takes the place
    of a term that nothing else needs.
    """
    import torch

    aten = torch.ops.aten
    attend = torch.nn.functional.scaled_dot_product_attention
    firsts = {  # operations of several results, of which the first is used
        aten.native_layer_norm.default: torch.layer_norm,
        aten._scaled_dot_product_flash_attention_for_cpu.default: attend,
    }
    plain = {
        aten.view.default: torch.reshape,  # another kernel may leave its result in another order
        aten.permute.default: torch.permute,
        aten.add.Tensor: torch.add,
        aten.mm.default: torch.mm,
        aten.gelu.default: torch.nn.functional.gelu,
    }
    graph.eliminate_dead_code()  # results that nobody uses
    for node in list(graph.nodes):
        if node.target in firsts and all(user.target is operator.getitem and user.args[1] == 0 for user in node.users):
            args = (*node.args[:3],) if firsts[node.target] is attend else node.args
            kwargs = {name: value for name, value in node.kwargs.items() if name in ("attn_mask", "scale")}
            with graph.inserting_before(node):
                new = graph.call_function(firsts[node.target], args, kwargs)
            for user in list(node.users):
                user.replace_all_uses_with(new)
                graph.erase_node(user)
            graph.erase_node(node)
        elif node.target is aten.view.default and getattr(node.args[0], "target", None) is aten.view.default:
            node.args = (node.args[0].args[0], *node.args[1:])
    new = {aten.mm.default, aten.add.Tensor, torch.Tensor.add_}  # whose results are no views
    for node in graph.nodes:
        if node.target is aten.add.Tensor and not node.kwargs:
            for term, other in (node.args, node.args[::-1]):
                if getattr(term, "target", None) in new and len(term.users) == 1 and _are_alike(term, node):
                    node.target, node.args = torch.Tensor.add_, (term, other)
                    break
    for node in graph.nodes:
        node.target = plain.get(node.target, node.target) if node.op == "call_function" else node.target
    graph.eliminate_dead_code()
    graph.lint()


def _are_alike(*nodes: Any) -> bool:
    return len({(node.meta["val"].shape, node.meta["val"].dtype) for node in nodes}) == 1

"""Compute gradients with respect to tensors inside a model, on every backend.

Each function here takes `forward(watch)`. It runs a model, passes each tensor whose gradient is wanted through
`watch(name, tensor)`, goes on with what that returns, and returns `(score, watched, seen)`: a scalar, `{name:
[tensors]}`, and whatever else is to be kept.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras

from .._internal.tap import hooked
from ..anatomy.dry_run import activation, ending

Forward = Callable[[Callable[[str, Any], Any]], tuple]


def gradients_of(forward: Forward) -> tuple[dict[str, list[Any]], dict[str, list[Any]], Any]:
    """Return `(gradients, watched, seen)` of `forward`; `gradients` is `{name: [tensors]}` as `watched` is."""
    return _GRADIENTS[keras.backend.backend()](forward)


def _tensorflow(forward: Forward) -> tuple[Any, ...]:
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def watch(name, tensor):
            tape.watch(tensor)
            return tensor

        score, watched, seen = forward(watch)
    return tape.gradient(score, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO), watched, seen


def _jax(forward: Forward) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    # The gradient with respect to a tensor inside a model is that with respect to a zero which is added to it.
    shapes: dict[str, list[Any]] = {}
    jax.eval_shape(lambda: forward(lambda name, t: shapes.setdefault(name, []).append((t.shape, t.dtype)) or t)[0])
    zeros = {name: [jnp.zeros(*shape) for shape in shapes[name]] for name in shapes}

    def perturbed(zeros):
        remaining = {name: iter(zeros[name]) for name in zeros}
        score, *seen = forward(lambda name, tensor: tensor + next(remaining[name]))
        return score, seen

    gradients, (watched, seen) = jax.grad(perturbed, has_aux=True)(zeros)
    return gradients, watched, seen


def _torch(forward: Forward) -> tuple[Any, ...]:
    import torch

    score, watched, seen = forward(lambda name, t: t if t.requires_grad else t.detach().requires_grad_())
    tensors = [t for name in watched for t in watched[name]]
    gradients = iter(torch.autograd.grad(score, tensors, allow_unused=True) if tensors else ())
    gradients = {n: [torch.zeros_like(t) if g is None else g for t, g in zip(watched[n], gradients)] for n in watched}
    return gradients, watched, seen


_GRADIENTS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}


@contextlib.contextmanager
def torch_gradients(wanted: bool) -> Iterator[None]:
    """Let PyTorch keep what gradients need, or not, whatever the caller's mode; on other backends it does nothing."""
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    with torch.inference_mode(False) if wanted else contextlib.nullcontext(), torch.set_grad_enabled(wanted):
        yield


_left_out: contextvars.ContextVar[bool] = contextvars.ContextVar("vit_keras_left_out", default=False)
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def logits_only(model: keras.Model) -> Iterator[None]:
    """Leave out a softmax or sigmoid at the end of a model in this thread, inside the block."""
    # Gradients of a logit say more than those of a probability. The activation may be part of the last layer, a layer
    # or an operation of its own, in a nested model, and before layers that pass their input through, such as dropout.
    # Other threads, which may use the model meanwhile, keep it.
    last = activation(model)
    if not isinstance(last, keras.layers.Layer) or last not in ending(model).heads:
        with hooked([] if last is None else [last], lambda layer, call, args, kwargs: args[0]):
            yield
        return
    with _one_at_a_time:
        kept, own = last.activation, vars(last).get("activation")

        def unless_left_out(x):
            return x if _left_out.get() else kept(x)

        token = _left_out.set(True)
        object.__setattr__(last, "activation", unless_left_out)
        try:
            yield
        finally:
            _left_out.reset(token)
            object.__delattr__(last, "activation")
            if own is not None:
                object.__setattr__(last, "activation", own)

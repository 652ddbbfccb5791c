"""Updates of weights in few passes over memory: Adam by a kernel of PyTorch or TensorFlow, and clipping on PyTorch.

Keras writes Adam as a dozen operations, and each reads and writes as much memory as the model has weights. On a CPU,
they took a tenth of a training step of ViT-S/16 with 8 images. XLA fuses them by itself, so JAX needs nothing. Only
the package's own optimizers do so, and those of Keras that a user asks for (`training.fused`).
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from . import direct
from .keras_internals import index_of, moments, update_method, values_of

logger: logging.Logger = logging.getLogger("vit_keras")

enabled: bool = direct.enabled
"""Whether a kernel updates weights: not with `VIT_KERAS_DIRECT=0`, and not after one has failed."""

_LATE = 1e30
"""A step so late that PyTorch's kernel corrects no bias: the rate that it gets has Keras' correction."""


def use_kernel(optimizer: Any) -> None:
    """Let an Adam or AdamW of Keras update weights by one kernel of PyTorch or TensorFlow."""
    # In this one optimizer: Keras makes a copy of it, and what it opens from a file, from the configuration alone.
    name = update_method()
    kernel = functools.partial(update, optimizer, getattr(optimizer, name))
    setattr(optimizer, name, kernel)


def update(optimizer: Any, by_keras: Callable[..., Any], gradient: Any, variable: Any, rate: Any) -> None:
    """Update a variable (on PyTorch a list of them) by the kernel, or by Keras where the kernel does not apply."""
    # It does not with `amsgrad`, in other dtypes than float32, with sparse gradients, inside `torch.compile`, and on a
    # device without such a kernel.
    by_kernel = {"torch": _on_torch, "tensorflow": _on_tensorflow}.get(keras.backend.backend())
    try:
        done = enabled and by_kernel and not optimizer.amsgrad and by_kernel(optimizer, gradient, variable, rate)
    except AttributeError as error:  # a private name of Keras, which is looked up before anything changes
        done = _give_up(error)
    if not done:
        by_keras(gradient, variable, rate)


def clipped(gradients: Sequence[Any], norm: float) -> list[Any] | None:
    """Return gradients clipped to a global norm, as Keras' `global_clipnorm` does, or `None` if Keras must do it."""
    if not enabled or norm <= 0 or not all(direct.is_direct(each) for each in gradients):
        return None
    torch = sys.modules["torch"]
    if not hasattr(torch.nn.utils, "get_total_norm"):  # PyTorch before 2.6
        return None
    if len({(each.device, each.layout) for each in gradients}) > 1:
        return None
    with torch.no_grad():
        total = torch.nn.utils.get_total_norm(gradients)
        scale = torch.clamp(norm / total, max=1.0) + (total - total)  # undefined if a gradient is infinite
        return list(torch._foreach_mul(gradients, scale))


def by_kernel(optimizer: Any, groups: Sequence[tuple[Sequence[Any], Sequence[Any], Any]]) -> bool:
    """Update groups `(gradients, variables, learning rate)` by PyTorch's kernel; return whether this was possible."""
    # False on other backends and with other optimizers; see also `update`.
    is_adam = isinstance(optimizer, keras.optimizers.Adam) and not optimizer.amsgrad
    if not enabled or not is_adam or keras.backend.backend() != "torch":
        return False
    torch = sys.modules["torch"]
    options: dict[str, Any] = {"fused": True, "amsgrad": False, "maximize": False, "weight_decay": 0.0}
    options |= {"beta1": optimizer.beta_1, "beta2": optimizer.beta_2, "eps": optimizer.epsilon}
    done = 0
    try:
        from torch.optim.adam import adam

        ready: list[Any] = [_tensors(optimizer, gradients, variables) for gradients, variables, _ in groups]
        if not all(ready):
            return False
        with torch.no_grad():
            correction = _correction(optimizer)
            late = torch.full((), _LATE, device=correction.device)
            for (weights, gradients, first, second), (*_, rate) in zip(ready, groups):
                steps, lr = [late] * len(weights), rate * correction
                adam(weights, gradients, first, second, [], steps, lr=lr, **options)
                done += 1
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:  # private names, too
        if done or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        return _give_up(error)
    return True


def _give_up(error: Exception) -> bool:
    """Let Keras update all weights from now on, log why, and return that nothing was updated."""
    global enabled
    enabled = False
    logger.info("Keras updates all weights by itself now: %s: %s", type(error).__name__, error)
    return False


def _tensors(optimizer, gradients, variables):
    """The weights, gradients and moments that the kernel takes, or `None` if it does not take them."""
    if not direct.is_direct(gradients[0]):
        return None
    torch = sys.modules["torch"]
    kept = [moments(optimizer, index_of(optimizer, variable)) for variable in variables]
    weights, first, second = (values_of(*each, cast=False) for each in (variables, *zip(*kept)))
    device = weights[0].device
    for tensor in (*weights, *gradients, *first, *second):
        if tensor.dtype is not torch.float32 or tensor.device != device or tensor.layout is not torch.strided:
            return None
    if not all(tensor.is_contiguous() for tensor in (*weights, *first, *second)):
        return None
    return weights, [gradient.contiguous() for gradient in gradients], first, second


def _on_torch(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], rate: Any) -> bool:
    """Update variables, and return whether this was done."""
    return by_kernel(optimizer, [(gradients, variables, ops.cast(rate, "float32"))])


def _correction(optimizer):
    """Keras' correction of the moments' bias, by which the learning rate is multiplied."""
    step = ops.cast(optimizer.iterations, "float32") + 1  # Keras' variable plus 1 copies a number to a GPU, and waits
    first, second = (1 - beta**step for beta in (optimizer.beta_1, optimizer.beta_2))
    return ops.sqrt(second) / first


def _on_tensorflow(optimizer: Any, gradient: Any, variable: Any, rate: Any) -> bool:
    """Update one variable, and return whether this was done."""
    tf = sys.modules["tensorflow"]
    if not isinstance(gradient, tf.Tensor):
        return False
    first, second = (each.value for each in moments(optimizer, index_of(optimizer, variable)))
    if any(each.dtype != tf.float32 for each in (gradient, variable, first, second)):
        return False
    step = ops.cast(optimizer.iterations, "float32") + 1
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=first.handle,
        v=second.handle,
        beta1_power=tf.pow(optimizer.beta_1, step),
        beta2_power=tf.pow(optimizer.beta_2, step),
        lr=tf.cast(rate, tf.float32),
        beta1=optimizer.beta_1,
        beta2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        grad=gradient,
    )
    return True

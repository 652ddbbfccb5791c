"""What training keeps for the backward pass, and how it computes what lies between two products of matrices.

TensorFlow computes GELU's tanh form in eight passes over memory, and its gradient in about as many. XLA compiles each
into one pass. Where it compiles the function alone, it cuts the gradient into pieces, so value and gradient are
compiled apart, as the two halves of a custom gradient.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

logger: logging.Logger = logging.getLogger("vit_keras")


def recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a cheap function that is computed again in the backward pass instead of keeping what is inside it."""
    # For element-wise functions: a training step takes a quarter less memory for 2 % of the time. (At the end of a
    # matrix product, only the gradient is computed, which does not need its result.) PyTorch's kernels keep little by
    # themselves. All tensors must be arguments: TensorFlow gives no gradient to a tensor in the closure, only to
    # variables.
    if keras.backend.backend() not in ("tensorflow", "jax"):
        return function
    return keras.remat(lambda *x: function(*x))  # a new lambda each time: JAX would reuse the trace of a known one


def in_one_pass(function: Callable[..., Any], *constants: Any) -> Callable[..., Any]:
    """Return a function of tensors, for training, that keeps only its arguments for the backward pass."""
    # Where `has_one_pass`, value and gradient take one pass over memory each, in at least float32, compiled once for
    # each function, constants and shapes. So the function must be defined in a module, read nothing but its arguments
    # (hashable constants first), and return one tensor like the first. Elsewhere it is `recomputed`.
    return _halves(function, *constants) if has_one_pass() else recomputed(functools.partial(function, *constants))


def layer_norm(epsilon: float, x: Any, gamma: Any, beta: Any) -> Any:
    """Return Keras' layer normalization of the last axis, in at least float32, as a function."""
    dtype = keras.backend.result_type(x.dtype, "float32")
    mean, variance = ops.moments(ops.cast(x, dtype), axes=-1, keepdims=True)
    scale = ops.rsqrt(variance + epsilon) * ops.cast(gamma, dtype)
    return ops.cast(ops.cast(x, dtype) * scale + (ops.cast(beta, dtype) - mean * scale), x.dtype)


@functools.cache
def _halves(function: Callable[..., Any], *constants: Any) -> Callable[..., Any]:
    import tensorflow as tf

    compiled = functools.partial(tf.function, jit_compile=True, autograph=False)
    value = compiled(functools.partial(function, *constants))

    @compiled
    def gradient(upstream, *tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            result = function(*constants, *tensors)
        return tape.gradient(result, tensors, upstream)

    def wide(*tensors):  # XLA's code for half precision on processors takes two to four times the time of float32's
        return [tf.cast(each, tf.float32) if each.dtype.size < 4 else each for each in tensors]

    @tf.custom_gradient
    def whole(*tensors):
        def backward(upstream):
            found: Any = gradient(*wide(upstream, *tensors))
            return [tf.cast(each, tensor.dtype) for each, tensor in zip(found, tensors)]

        return tf.cast(value(*wide(*tensors)), tensors[0].dtype), backward

    return lambda *tensors: whole(*map(tf.convert_to_tensor, tensors))


@functools.cache
def has_one_pass() -> bool:
    """Return whether XLA compiles functions for TensorFlow on the processor. Accelerators have kernels of their own."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    if any(device.device_type != "CPU" for device in tf.config.list_physical_devices()):
        return False
    try:
        with tf.init_scope():
            return float(tf.function(tf.square, jit_compile=True)(tf.constant(2.0))) == 4.0
    except Exception as error:
        logger.info("Training computes without XLA, which does not compile here: %s", error)
        return False

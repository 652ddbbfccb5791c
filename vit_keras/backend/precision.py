"""Products of float32 in full precision, where a GPU would round their inputs to TF32 (10 bits)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

__all__ = ["full_precision"]


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Let the backend multiply float32 in full precision while the block runs; a no-op where it does.

    TensorFlow and JAX round to TF32 on NVIDIA GPUs unless they are asked not to, PyTorch in convolutions.

    Example:
        >>> with full_precision():
        ...     product = keras.ops.matmul(keras.ops.ones((2, 2)), keras.ops.ones((2, 2)))
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    elif backend == "tensorflow":
        from tensorflow.config import experimental

        before = experimental.tensor_float_32_execution_enabled()
        experimental.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            experimental.enable_tensor_float_32_execution(before)
    elif backend == "torch":
        from torch.backends import cuda, cudnn

        places = (cuda.matmul, cudnn)
        before = [place.allow_tf32 for place in places]
        for place in places:
            place.allow_tf32 = False
        try:
            yield
        finally:
            for place, allowed in zip(places, before):
                place.allow_tf32 = allowed
    else:
        yield

"""Products of float32 in full precision, where a GPU would round their inputs to TF32 (10 bits)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

__all__ = ["full_precision"]


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """Let the backend multiply float32 in full precision inside the block."""
    # TensorFlow and JAX round to TF32 on NVIDIA GPUs by default, PyTorch in convolutions.
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
        with _of_torch():
            yield
    else:
        yield


@contextlib.contextmanager
def _of_torch() -> Iterator[None]:
    """Set PyTorch's precision by its newer names, where it has them: after them, it refuses to read the older."""
    import torch

    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    newer = hasattr(cudnn, "conv")
    places: tuple[Any, ...] = (cuda.matmul, cudnn.conv, cudnn.rnn) if newer else (cuda.matmul, cudnn)
    name, full = ("fp32_precision", "ieee") if newer else ("allow_tf32", False)
    before = [getattr(place, name) for place in places]
    try:
        for place in places:
            setattr(place, name, full)
        yield
    finally:
        for place, value in zip(places, before):
            setattr(place, name, value)

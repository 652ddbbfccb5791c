"""Run on several devices: `distribute("data")`, `"fsdp"` or `"tensor"`.

On JAX, this is `keras.distribution`: XLA divides one computation among the devices, so that it gives the numbers of one
device. On TensorFlow, it is `tf.distribute.MirroredStrategy`. `docs/scale.md` says what to use when.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from .._internal.validate import is_number, one_of, positive_integer
from .keras_internals import take_any_batch
from .sharding import KINDS, MIN_SIZE, divided_axis

__all__ = ["distribute"]

_BATCH, _MODEL = "batch", "model"
"""Axes of the mesh of devices."""

_STREAM = re.compile(r"(^|/)(embedding|\w+block_\d+)/output$")
_WITHIN = re.compile(r"(^|/)(query|key|value|out|Dense_\d|Gate|head)/output$")
"""Layers whose output is divided along the batch alone: between the blocks, and within them where no group of devices
shares a model. XLA would otherwise gather images on each device rather than a divided kernel.
"""


def distribute(
    how: str | None,
    devices: int | Sequence[str] | None = None,
    *,
    model_parallel: int | None = None,
    min_size: int = MIN_SIZE,
) -> Any:
    """Let all models that are made from now on use several devices. Call it before a model is made or opened.

    - `"data"` (JAX, TensorFlow): each device holds the whole model, and a part of each batch.
    - `"fsdp"` (JAX): a part of each large variable and of its optimizer's state, and a part of each batch.
    - `"tensor"` (JAX): some heads of each attention and some neurons of each MLP, for the whole batch.

    Args:
        how: One of these; `None`: one device again.
        devices: How many devices, or their names, as `["gpu:0", "gpu:1"]`. `None`: all.
        model_parallel: For `"tensor"`: the number of devices that share a model. The batch is divided among such groups
            of devices. It should divide the number of heads. `None`: all devices.
        min_size: For `"fsdp"`: the number of values from which on a variable is divided, along its largest axis that
            the devices divide. The default is 4 MiB of float32.

    Returns:
        The backend's own object, with a method `scope()`: a `keras.distribution.Distribution` or a
        `tf.distribute.Strategy`; `None` for `None`.

    Raises:
        ValueError: An argument is out of range, or there are fewer devices.
        NotImplementedError: The backend cannot do it; the message says what can.

    Example:
        >>> distribute("data", devices=1)  # doctest: +SKIP
        >>> model = vit_keras.open_model("vit_b16")  # doctest: +SKIP
        >>> distribute(None)  # one device again
    """
    if how is not None:
        one_of(how, "how", KINDS)
    if model_parallel is not None and how != "tensor":
        raise ValueError(f'model_parallel={model_parallel!r} is for how="tensor". Received: how={how!r}')
    if model_parallel is not None:
        model_parallel = positive_integer(model_parallel, "model_parallel")
    if not is_number(min_size) or min_size < 0:
        raise ValueError(f"min_size must be a number that is not negative. Received: {min_size!r}")
    return _BACKENDS[keras.backend.backend()](how, devices, model_parallel, min_size)


def _chosen(devices: int | Sequence[str] | None, there: Sequence[str]) -> list[str]:
    """Return the names of the devices that are asked for."""
    if devices is None:
        return list(there)
    if isinstance(devices, (int, np.integer)):
        if isinstance(devices, bool) or not 1 <= devices <= len(there):
            raise ValueError(f"devices must be from 1 to {len(there)}, which are there. Received: {devices}")
        return list(there[:devices])
    chosen = [str(name).lower() for name in ([devices] if isinstance(devices, str) else devices)]
    missing = [name for name in chosen if name not in there]
    if missing or not chosen or len({*chosen}) < len(chosen):
        raise ValueError(f"devices must be some of {list(there)}, each once. Received: {devices!r}")
    return chosen


# --- JAX --------------------------------------------------------------------------------------------------------


class Sharded(keras.distribution.ModelParallel):
    """A `keras.distribution.Distribution` in which `axis_of` returns the divided axis of a variable, or `None`."""

    takes_any_batch = True  # for `take_any_batch`

    def __init__(
        self, mesh: keras.distribution.DeviceMesh, axis_of: Callable[[Any], int | None], along: str = _BATCH
    ) -> None:
        layouts = keras.distribution.LayoutMap(mesh)
        # Each process gives its own share of a batch: Keras could divide nothing but a tf.data.Dataset.
        super().__init__(layout_map=layouts, batch_dim_name=_BATCH, auto_shard_dataset=False)
        self._axis_of = axis_of
        self._along = along

    def get_variable_layout(self, variable: Any) -> keras.distribution.TensorLayout:
        axes: list[str | None] = [None] * len(variable.shape)
        axis = self._axis_of(variable)
        if axis is not None:
            axes[axis] = self._along
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_tensor_layout(self, path: str) -> keras.distribution.TensorLayout | None:
        by_batch = _STREAM.search(path) or (self._along == _BATCH and _WITHIN.search(path))
        if by_batch and _is_traced():
            return keras.distribution.TensorLayout([_BATCH], self.device_mesh)
        return None


def _is_traced() -> bool:
    """Whether JAX is tracing: outside of a trace a batch that the devices do not divide cannot be placed."""
    return isinstance(keras.ops.zeros(()), sys.modules["jax"].core.Tracer)


def _on_jax(how, devices, model_parallel, min_size):
    if how is None:
        keras.distribution.set_distribution(None)
        take_any_batch(False)
        return None
    devices = _chosen(devices, keras.distribution.list_devices())
    total = len(devices)
    size = total if model_parallel is None else model_parallel
    if how == "tensor" and total % size:
        raise ValueError(f"model_parallel must divide the number of devices, {total}. Received: {size!r}")
    shape, names = ((total // size, size), [_BATCH, _MODEL]) if how == "tensor" else ((total,), [_BATCH])
    mesh = keras.distribution.DeviceMesh(shape, names, np.array(devices))
    parts, along = (size, _MODEL) if how == "tensor" else (total, _BATCH)

    def axis_of(variable):
        return divided_axis(how, variable.path, tuple(variable.shape), parts, min_size)

    made = Sharded(mesh, axis_of, along)
    take_any_batch(True)
    keras.distribution.set_distribution(made)
    return made


def _of_several_processes() -> keras.distribution.Distribution | None:
    current = keras.distribution.distribution() if keras.backend.backend() == "jax" else None
    # Distributions of Keras have a public `num_processes` from 3.15 on.
    return current if current is not None and sys.modules["jax"].process_count() > 1 else None


def of_this_process(step: Callable[..., Any], steps_per_execution: int = 1) -> Callable[..., Any]:
    """Return a step of `predict` that returns only the rows of this process's images, if there are several."""
    # More than one step per execution would mix the rows of the processes.
    current = _of_several_processes()
    if current is None:
        return step
    if steps_per_execution > 1:
        raise ValueError(f"predict with several processes needs steps_per_execution=1. Received: {steps_per_execution}")
    import jax

    layout = keras.distribution.TensorLayout([current.batch_dim_name], current.device_mesh).backend_layout
    by_rows = jax.jit(lambda outputs: outputs, out_shardings=layout)

    def own(rows):
        parts = {shard.index[0].start or 0: shard.data for shard in rows.addressable_shards}
        return np.concatenate([np.asarray(parts[start]) for start in sorted(parts)])

    def own_step(state, iterator):
        outputs, state = step(state, iterator)
        return keras.tree.map_structure(own, by_rows(outputs)), state

    return own_step


def whole_outputs() -> Any:
    """Return JAX's sharding for outputs that each of several processes must hold whole; `None` for one process."""
    current = _of_several_processes()
    return None if current is None else keras.distribution.TensorLayout([], current.device_mesh).backend_layout


# --- TensorFlow, others ----------------------------------------------------------------------------------------


def _on_tensorflow(how, devices, model_parallel, min_size):
    import tensorflow as tf

    if how is None:
        tf.distribute.experimental_set_strategy(None)
        return None
    if how != "data":
        raise NotImplementedError(
            f'distribute({how!r}) needs KERAS_BACKEND=jax: TensorFlow\'s Keras has replicas alone, distribute("data").'
        )
    workers = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}).get("worker", [])
    if len(workers) > 1:
        raise NotImplementedError(
            f"TF_CONFIG names {len(workers)} workers, and Keras 3 does not train on several machines with TensorFlow "
            "(MultiWorkerMirroredStrategy fails on a single Dense layer: github.com/keras-team/keras/issues/20585). "
            "Use KERAS_BACKEND=jax and keras.distribution.initialize, see docs/scale.md."
        )
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    there = [f"{kind.lower()}:{n}" for n in range(len(tf.config.list_logical_devices(kind)))]
    strategy = tf.distribute.MirroredStrategy(_chosen(devices, there))
    tf.distribute.experimental_set_strategy(strategy)
    return strategy


def _nowhere(how, devices, model_parallel, min_size):
    if how is not None:
        raise NotImplementedError(
            f"distribute({how!r}): Keras has nothing for several devices on {keras.backend.backend()}. Use "
            "KERAS_BACKEND=jax, or on PyTorch torch's DistributedDataParallel, as docs/scale.md shows."
        )


_BACKENDS = {"jax": _on_jax, "openvino": _nowhere, "tensorflow": _on_tensorflow, "torch": _nowhere}

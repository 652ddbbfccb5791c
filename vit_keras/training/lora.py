"""Low-rank adapters (LoRA, arXiv 2106.09685) for Vision Transformers, by Keras' own `Dense.enable_lora`.

>>> from vit_keras import vit
>>> model = vit.build_model(32, 16, 2, 16, 2, "tiny", 32, classes=3)
>>> add_lora(model, rank=4)
>>> # model.fit(…)
>>> merge_lora(model)
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import keras
import numpy as np
from keras import ops

from .. import layers
from .freeze import train_only

PROJECTIONS = ("query", "key", "value", "out", "Dense_0", "Dense_1", "Gate")


def add_lora(
    model: keras.Model,
    rank: int = 8,
    projections: Sequence[str] = ("query", "value"),
    alpha: float | None = None,
) -> None:
    """Put a low-rank adapter beside some projections of every block, and freeze all but these and the head.

    Compile the model afterwards. What Keras saves has the adapters merged in; `merge_lora` does so in the model itself.

    Args:
        model: A Keras model with a Vision Transformer of this package in it. It is changed.
        rank: Width of the adapters.
        projections: Which of `"query"`, `"key"`, `"value"`, `"out"` (of the attention), `"Dense_0"`, `"Dense_1"`, `"Gate"` (of
            the MLP) get one.
        alpha: The adapters' output is scaled by `alpha / rank`; `None`: not scaled.

    Raises:
        ValueError: A projection does not exist, the model has adapters already, or Keras is too old for `alpha`.
    """
    unknown = [name for name in projections if name not in PROJECTIONS]
    if unknown or not projections:
        raise ValueError(f"projections must be of {', '.join(map(repr, PROJECTIONS))}. Received: {projections!r}")
    if not isinstance(rank, int) or rank < 1:
        raise ValueError(f"rank must be a positive integer. Received: {rank!r}")
    if _adapted(model):
        raise ValueError(f"The model {model.name!r} has low-rank adapters already: merge_lora(model) merges them.")
    scale = {} if alpha is None else {"lora_alpha": alpha}
    if scale and "lora_alpha" not in inspect.signature(keras.layers.Dense.enable_lora).parameters:
        raise ValueError(
            f"alpha needs a newer Keras, of which Dense.enable_lora takes lora_alpha. This is Keras {keras.__version__}."
        )
    chosen = [dense for dense in _projections(model) if dense.name in projections]
    if not chosen:
        raise ValueError(f"The model {model.name!r} has no {', '.join(projections)} in its blocks.")
    train_only(model, "head")
    for block in _blocks(model):
        block.trainable = True
        for variable in block.variables:
            variable.trainable = False
    for dense in chosen:
        dense.enable_lora(rank, **scale)
    _forget_compiled(model)


def merge_lora(model: keras.Model) -> None:
    """Add the adapters to the kernels that they stand beside, and remove them: a plain model again, all of it trainable.

    Its outputs are the same up to rounding. Compile it again before training goes on.

    Args:
        model: What `add_lora` changed. It is changed back.

    Raises:
        ValueError: It has no adapters.
    """
    adapted = _adapted(model)
    if not adapted:
        raise ValueError(f"The model {model.name!r} has no low-rank adapters to merge.")
    for dense in adapted:
        dense._kernel.assign(dense.kernel)
        dense.lora_enabled, dense.lora_rank = False, None
        del dense.lora_kernel_a, dense.lora_kernel_b
    train_only(model, "all")
    _forget_compiled(model)


class RestartLora(keras.callbacks.Callback):
    """Lets adapters learn again that `BackupAndRestore` restored.

    Keras saves adapters merged into their kernels, and sets both of their factors to 0 when it loads: they would stay 0 for
    ever. So the first ones become random again. The model is the same as before; the course of its training is not quite.
    """

    def on_epoch_begin(self, epoch, logs=None):
        for dense in _adapted(self.model):
            if not np.any(ops.convert_to_numpy(dense.lora_kernel_a)):
                fresh = keras.initializers.HeUniform()(dense.lora_kernel_a.shape, dense.lora_kernel_a.dtype)
                dense.lora_kernel_a.assign(fresh)


def _blocks(model: keras.Model) -> list[layers.TransformerBlock]:
    return [layer for layer in layers.find_vit(model).layers if isinstance(layer, layers.TransformerBlock)]


def _projections(model: keras.Model) -> Iterator[keras.layers.Dense]:
    for block in _blocks(model):
        yield from (layer for layer in block._flatten_layers() if isinstance(layer, keras.layers.Dense))


def _adapted(model: keras.Model) -> list[keras.layers.Dense]:
    return [dense for dense in _projections(model) if dense.lora_enabled]


def _forget_compiled(model: keras.Model) -> None:
    """Drop the compiled steps of a model and of those in it: they compute with the old variables."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.Model):
            layer.train_function = layer.test_function = layer.predict_function = None

"""Low-rank adapters (LoRA, arXiv 2106.09685) for Vision Transformers, with Keras' own `Dense.enable_lora`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras

from .._internal.validate import positive_integer
from .._internal.warn import warn_caller
from ..anatomy.parts import attention_blocks, find_vit
from ..backend import compiled
from ..backend.keras_internals import flat_layers
from .freeze import heads_if_any, train_layers, train_only

__all__ = ["add_lora", "merge_lora"]

PROJECTIONS = ("query", "key", "value", "out", "Dense_0", "Dense_1", "Gate")


def add_lora(
    model: keras.Model, rank: int = 8, projections: Sequence[str] = ("query", "value"), alpha: float | None = None
) -> None:
    """Add a low-rank adapter to some projections of every block, and freeze everything but the adapters and the head.

    A model without a head trains the adapters alone, such as an image tower whose features are compared with texts'.
    Compile the model afterwards. A saved model opens with its adapters, frozen weights and optimizer. Files of weights
    and other formats hold the merged kernels; `merge_lora` merges the adapters in the model. The kernels may be
    quantized (`model.quantize("int8")` or `"int4"`). Of a quantized head only the bias is trained: leave it out by
    `model.quantize("int8", filters=lambda layer: layer.name != "head")` (Keras 3.13).

    Args:
        model: A Keras model with a Vision Transformer of this package in it. It is changed.
        rank: Rank of the adapters.
        projections: The projections that get one: `"query"`, `"key"`, `"value"`, `"out"` of the attention, `"Dense_0"`,
            `"Dense_1"`, `"Gate"` of the MLP.
        alpha: The output of the adapters is scaled by `alpha / rank`. `None`: not scaled.

    Raises:
        ValueError: A projection does not exist, the model has adapters already, its kernels are quantized in another
            way.

    Warns:
        UserWarning: The head is quantized, so that only its bias is trained.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> add_lora(tiny, rank=4)
        >>> len(tiny.trainable_variables)  # two factors of queries and values each, and the head
        6
    """
    unknown = [name for name in projections if name not in PROJECTIONS]
    if unknown or not projections:
        raise ValueError(f"projections must be of {', '.join(map(repr, PROJECTIONS))}. Received: {projections!r}")
    rank = positive_integer(rank, "rank")
    if _adapted(model):
        raise ValueError(f"The model {model.name!r} has low-rank adapters already. merge_lora(model) merges them.")
    chosen = [dense for dense in _projections(model) if dense.name in projections]
    if not chosen:
        raise ValueError(f"The model {model.name!r} has no {', '.join(projections)} in its blocks.")
    _check_quantization(model, chosen)
    heads, blocks = heads_if_any(model), attention_blocks(find_vit(model))
    train_layers(model, [*heads, *blocks])
    quantized = [layer.name for layer in heads if getattr(layer, "quantization_mode", None)]
    if quantized:
        warn_caller(
            f"Only the bias of the quantized {', '.join(quantized)} of {model.name!r} is trained. To train the kernel "
            'too, leave it out: model.quantize("int8", filters=lambda layer: layer.name not in '
            f"{quantized})."
        )
    for variable in (variable for block in blocks for variable in block.variables):
        variable.trainable = False
    for dense in chosen:
        dense.enable_lora(rank, **({} if alpha is None else {"lora_alpha": alpha}))
    compiled.forget(model)


def merge_lora(model: keras.Model) -> None:
    """Merge the adapters into the kernels of their layers, which leaves a plain model, trainable as a whole.

    The outputs are the same up to rounding. An `int8` or `int4` kernel is quantized again, with a scale for the sum.
    Compile the model again before training it further.

    Args:
        model: A model that `add_lora` changed. It is changed back.

    Raises:
        ValueError: It has no adapters, or kernels that are quantized in another way. Nothing is changed then.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=2)
        >>> add_lora(tiny)
        >>> merge_lora(tiny)
        >>> len(tiny.trainable_variables) == len(tiny.weights)
        True
    """
    adapted = _adapted(model)
    if not adapted:
        raise ValueError(f"The model {model.name!r} has no low-rank adapters to merge.")
    _check_quantization(model, adapted)
    for dense in adapted:
        merged: dict[str, Any] = {}
        keras.layers.Dense.save_own_variables(dense, merged)
        dense.lora_enabled, dense.lora_rank = False, None
        del dense.lora_kernel_a, dense.lora_kernel_b
        keras.layers.Dense.load_own_variables(dense, merged)
    train_only(model, "all")
    compiled.forget(model)


def check_plain(layers: Iterable[keras.layers.Dense], model: keras.Model, purpose: str) -> None:
    """Raise a `ValueError` if the kernel of a layer is not a plain one, which can be assigned for some purpose."""
    if changed := [each.name for each in layers if each.lora_enabled or getattr(each, "quantization_mode", None)]:
        raise ValueError(
            f"The layer {changed[0]!r} of {model.name!r} has low-rank weights or is quantized. Call "
            f"training.merge_lora(model) first, or {purpose} before the quantization."
        )


def _check_quantization(model: keras.Model, dense: Sequence[keras.layers.Dense]) -> None:
    """Raise a `ValueError` if kernels are quantized in a way in which Keras adds or merges no adapters."""
    modes = {str(getattr(each, "quantization_mode", None)) for each in dense} - {"None", "int8", "int4"}
    if modes:
        raise ValueError(
            f"Low-rank adapters need float, int8 or int4 kernels. Those of {model.name!r} are {', '.join(modes)}."
        )


def _projections(model: keras.Model) -> Iterator[keras.layers.Dense]:
    for block in attention_blocks(find_vit(model)):
        yield from (layer for layer in flat_layers(block) if isinstance(layer, keras.layers.Dense))


def _adapted(model: keras.Model) -> list[keras.layers.Dense]:
    return [dense for dense in _projections(model) if dense.lora_enabled]

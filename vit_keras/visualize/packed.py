"""Recordings of images of several sizes, from one pass of a packed model."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from .. import anatomy
from .._internal.tap import tap
from .._internal.validate import instance
from ..anatomy.parts import attention_blocks, prefix_names
from ..backend.keras_internals import no_gradients
from ..packing.model import PackedTransformer
from .pictures import displayable
from .recorder import projection_of, readout_of
from .recording import Recording

__all__ = ["record_packed"]


def record_packed(packed: PackedTransformer, images: Sequence[np.ndarray]) -> list[Recording]:
    """Run a packed model once on images of any sizes, and return a separate recording for each.

    Args:
        packed: The model (`vit_keras.pack`).
        images: Arrays `(height, width, channels)`, as the model takes them.

    Returns:
        A `Recording` of each image, with attention, values, tokens and features, for `attention_rollout` and the other
        maps that need no gradients.

    Raises:
        ValueError: An image has another shape, or more tokens than a sequence.

    Example:
        >>> import vit_keras
        >>> from vit_keras import vit, visualize
        >>> packed = vit_keras.pack(vit.build_model(64, 8, 2, 64, 2, "tiny", 128, classes=10), tokens=128)
        >>> images = [np.zeros((64, 32, 3), "float32"), np.zeros((24, 48, 3), "float32")]
        >>> [visualize.attention_rollout(recording).shape for recording in visualize.record_packed(packed, images)]
        [(1, 8, 4), (1, 3, 6)]
    """
    seen: dict[str, list[Any]] = collections.defaultdict(list)

    def collect(layer, name, tensor):
        seen[name].append(tensor)
        return tensor

    packing = instance(packed, PackedTransformer, "packed").arrange(images)
    with no_gradients(), tap(collect):
        outputs = packed(packing.inputs, training=False)
        last = seen["output"][-1]
        normed = packed.config.final_norm == "tokens"
        features = packed.vit.get_layer("Transformer_encoder_norm")(last) if normed else last
    arrays = {name: [_array(x) for x in seen[name]] for name in ("attention", "values", "tokens", "pooling")}
    arrays["tokens"].append(_array(last))
    blocks = attention_blocks(packed.vit)
    del arrays["values"][len(blocks) :]  # those of a MAP head
    outputs, features = _array(outputs), _array(features)
    shared = {
        "prefix": prefix_names(packed.vit),
        "layers": tuple(range(len(blocks))),
        "patch_size": packed.config.stride,
        "labels": anatomy.class_names(packed.vit),
        "projections": np.stack([projection_of(block) for block in blocks]),
    }
    recordings = []
    for image, grid, (row, slot), (start, stop) in zip(images, packing.grids, packing.slots, packing.spans):
        own = slice(start, stop)
        output = outputs[row, own] if packing.of_tokens else outputs[row, slot]
        here = np.nan if np.isnan(output).any() else 1.0  # lost: the model has computed with zeros
        pooling = arrays["pooling"][0][row, :, slot, own][None] * here if arrays["pooling"] else None
        recordings.append(
            Recording(
                images=(displayable(packed.vit.preprocessing.denormalize(image).astype("float32")),),
                grid=grid,
                readout=readout_of(packed.vit, stop - start, pooling, 1),
                logits=outputs[row, slot][None] if packed.config.include_top else None,
                attention=np.stack([x[row, :, own, own] for x in arrays["attention"]])[:, None] * here,
                values=np.stack([x[row, :, own] for x in arrays["values"]])[:, None] * here,
                tokens=np.stack([x[row, own] for x in arrays["tokens"]])[:, None] * here,
                features=features[row, own][None] * here,
                pooling_attention=pooling,
                **shared,
            )
        )
    return recordings


def _array(tensor: Any) -> np.ndarray:
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))

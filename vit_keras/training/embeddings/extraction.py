"""Embeddings: what the head of a Vision Transformer sees, for any number of pictures."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from ...anatomy import blocks, find_vit, heads
from ...atomic import complete
from ...config import size_pair
from ...preprocess import GOOGLE
from ...vit import VisionTransformer
from .batches import _batches, _labels, _run
from .writers import _writer


def embed(
    model: keras.Model,
    images: Any,
    *,
    batch_size: int = 32,
    output: str | os.PathLike[str] | None = None,
    layer: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    return_labels: bool = False,
    errors: str = "raise",
    progress: bool = True,
) -> Any:
    """Compute what a Vision Transformer sees in any number of pictures: one vector for each, the input of its head.

    Pictures are read and prepared in threads while the model computes, and only a few batches are in memory at a time.

    Args:
        model: A ViT of this package, or a model with one inside (of which the ViT alone is run).
        images: A folder (searched for pictures, its subfolders included), an `ImageFolder` (whose pictures come in the order of its
            `paths`, without augmentation), an array, a list or iterator of pictures (whatever `vit_keras.utils.read` reads), or a
            data set of batches `x` or `(x, y, …)`: `tf.data`, PyDataset, DataLoader. Batches of integers are pixels in
            [0, 255], which are prepared as the model wants; batches of floats go into the model as they are, as in `predict`.
        batch_size: Pictures that the model sees at once; data sets have their own.
        output: A file to write instead of returning an array: `.npy`, `.npz` (`features`, and `paths` and `labels` where they are
            known) or `.parquet` (columns `path`, `label`, `features`; needs the extra `parquet`). It appears when it is whole.
        layer: Name of the layer of the ViT whose output is wanted, `"tokens"` for all tokens as the pooling sees them, or `None`: what
            the head sees, or what a model without a head returns. (Of two heads, DeiT's: the mean of what they see.)
        image_size: `(height, width)` or one integer, for a model that takes any size; `None`: the size of its checkpoint.
        return_labels: Whether to return the labels too: those of an `ImageFolder` or a data set, or the names of a folder's
            subfolders. A data set that shuffles has them in another order each time.
        errors: `"skip"` to leave out damaged files with a warning, whose rows then are missing; `"raise"` to refuse them.
        progress: Whether to draw a progress bar.

    Returns:
        float32 `(n, …)`; with `return_labels` this and the labels; with `output` the path of the file.

    Raises:
        FileNotFoundError: There is no such picture or folder.
        ImportError: A `.parquet` file is to be written, and PyArrow is not installed.
        ValueError: There are no pictures, one is damaged, or an argument is out of range.
        TypeError: The images are none of the above.

    Warns:
        UserWarning: Damaged pictures were left out.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> embed(tiny, [np.zeros((480, 640, 3), "uint8")], progress=False).shape
        (1, 64)
    """
    if errors not in ("raise", "skip"):
        raise ValueError(f"errors is 'raise' or 'skip'. Received: {errors!r}")
    tower = _tower(model, layer)
    prepare = _preparation(model, image_size)
    write = None if output is None else _writer(output)
    batches, total = _batches(images, batch_size)
    rows = _run(tower, batches, prepare, total if progress else False, errors)
    with contextlib.closing(rows):
        if write is not None:
            with complete(output) as part:
                write(part, rows)
            return Path(output)
        done = list(rows)
    found = np.concatenate([row.images for row in done])
    return (found, _labels(done)) if return_labels else found


_towers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _tower(model: keras.Model, layer: str | None) -> VisionTransformer:
    """The part of a model from the images to the features, the same object each time, so that it is compiled once."""
    vit = find_vit(model)
    towers = _towers.setdefault(vit, {})
    if layer not in towers:
        towers[layer] = VisionTransformer(vit.input, _features_of(vit, layer), name=f"{vit.name}-features")
    towers[layer].run_eagerly = vit.run_eagerly
    towers[layer].preprocessing = getattr(vit, "preprocessing", GOOGLE)
    return towers[layer]


def _features_of(vit: keras.Model, layer: str | None):
    if layer == "tokens":
        norms = [each for each in vit.layers if each.name == "Transformer_encoder_norm"]
        return (norms or blocks(vit))[-1].output
    if layer is not None:
        names = [each.name for each in vit.layers]
        if layer not in names:
            raise ValueError(f"{vit.name!r} has no layer {layer!r}; it has 'tokens', {str(names)[1:-1]}.")
        return vit.get_layer(layer).output
    seen = [head.input for head in heads(vit)]
    return vit.output if not seen else seen[0] if len(seen) == 1 else keras.layers.Average()(seen)


def _preparation(model: keras.Model, image_size: Any) -> Callable:
    """From pictures, or pixels in [0, 255], to the model's input."""
    vit = find_vit(model)
    own = getattr(vit, "preprocessing", GOOGLE)
    fixed = tuple(vit.input_shape[1:3])
    if image_size is not None and None not in fixed and size_pair(image_size, "image_size") != fixed:
        raise ValueError(f"{vit.name!r} takes images of {fixed} pixels only. Received: image_size={image_size!r}")
    return own.replace(image_size=(image_size or own.image_size) if None in fixed else fixed)

"""Embeddings of any number of images: the inputs of a Vision Transformer's head."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from typing import Any, Literal

import keras
import numpy as np

from ..._internal.atomic import complete
from ..._internal.tap import tap
from ..._internal.validate import expanded, one_of, received
from ...anatomy.around import around, heads, mixes
from ...anatomy.inputs import front, preprocessing_of
from ...anatomy.parts import blocks, final_norm, find_vit, learner
from ...backend import compiled
from ...backend.keras_internals import kept, no_gradients
from ...model import VisionTransformer
from ...preprocess import Preprocessing
from ..checks import check_range
from ..data.table import images_of_table, is_table
from .batches import batches_of, joined_labels, run_over
from .writers import writer_for

__all__ = ["embed"]


def embed(
    model: keras.Model,
    images: Any,
    *,
    images_dir: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    batch_size: int = 32,
    output: str | os.PathLike[str] | None = None,
    layer: str | None = None,
    image_size: int | tuple[int, int] | str | None = "native",
    return_labels: bool = False,
    errors: Literal["raise", "skip"] = "raise",
    progress: bool = True,
) -> Any:
    """Compute the features of any number of images: one vector for each, the input of the model's head.

    Images are read and prepared in threads while the model computes, and only a few batches are in memory at a time.

    Args:
        model: A ViT of this package, or a model with one inside. What stands before the ViT (preprocessing,
            augmentation) is applied. Layers after it are not, except those that turn its tokens into one vector, such
            as `GlobalAveragePooling1D` after a ViT with `pooling=None`.
        images: The images: a folder (searched with its subfolders), a table (see `vit_keras.training.image_table`), an
            `ImageFolder` (whose images come in the order of its `paths`, without augmentation), an array, a list or
            iterator of images (whatever `vit_keras.utils.read` reads), or a dataset of batches `x` or `(x, y, …)`:
            `tf.data`, PyDataset, DataLoader. Batches of integers are pixels in [0, 255], which are prepared as the
            model needs; batches of floats go into the model as they are, as in `predict`.
        images_dir: For a table, the folder of its images; `None`: the folder of the table.
        image_column: For a table, the column of the images; `None`: the first column.
        batch_size: Images in a batch. Datasets have their own.
        output: File to write instead of returning an array: .parquet, .npz or .npy. `.npz` has `features`, and `paths`
            and `labels` where they are known; `.parquet` the columns `path`, `label`, `features` (it needs the extra
            `parquet`). The file appears when it is whole.
        layer: Layer whose output to take, or `"tokens"` for all tokens before pooling; `None`: the input of the head.
            Without a head, it is the output of the ViT; with two heads, DeiT's, the mean of their inputs.
        image_size: Pixels, `(height, width)` or one integer, for a model that takes any size; `"native"` or `None`: the
            size of its checkpoint. A model that resizes images itself gets each image in its own size.
        return_labels: Whether to return the labels too: those of an `ImageFolder` or a dataset, or the names of a
            folder's subfolders. A dataset that shuffles has them in another order each time.
        errors: What to do with damaged images: `"raise"` an error, or `"skip"` them and their rows with a warning.
        progress: Whether to draw a progress bar.

    Returns:
        float32 `(n, …)`; with `return_labels` this and the labels; with `output` the path of the file.

    Raises:
        FileNotFoundError: There is no such image or folder.
        ImportError: A `.parquet` file is to be written, and PyArrow is not installed.
        ValueError: There are no images, one is damaged, or an argument is out of range.
        TypeError: The images are none of the above, or files for a model of other than 1 or 3 channels.

    Warns:
        UserWarning: Damaged images were left out.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> embed(tiny, [np.zeros((480, 640, 3), "uint8")], progress=False).shape
        (1, 64)
    """
    one_of(errors, "errors", ("raise", "skip"))
    if is_table(images):
        images = images_of_table(images, images_dir, image_column)
    elif images_dir is not None or image_column is not None:
        raise ValueError(f"images_dir and image_column are for a table. Received: images={received(images)}")
    extractor = Extractor.of(model, layer, image_size)
    write = None if output is None else writer_for(output)
    batches, total = batches_of(images, batch_size)
    rows = run_over(
        batches,
        extractor,
        extractor.preprocessing,
        model=extractor.model,
        errors=errors,
        total=total,
        progress=progress,
        check=lambda first: check_range(extractor.model, first),
    )
    with contextlib.closing(rows):
        if output is not None and write is not None:
            with complete(path := expanded(output)) as part:
                write(part, rows)
            return path
        done = list(rows)
    found = np.concatenate([row.images for row in done])
    return (found, joined_labels(done)) if return_labels else found


@dataclasses.dataclass(frozen=True)
class Extractor:
    """The part of a model from its images to its features."""

    model: keras.Model
    """The model whose images these are: the given one, or its ViT where the layers before that have no graph."""
    parts: tuple[Any, ...]
    """What is before the ViT, and the ViT up to its features, one after another; or the whole, up to a vector.
    """
    preprocessing: Preprocessing

    @classmethod
    def of(cls, model: keras.Model, layer: str | None, image_size: Any) -> Extractor:
        """Return the extractor of a layer; see `embed`."""
        vit, before = find_vit(model), front(model)
        if before is not None and len(before.inputs) > 1:
            raise ValueError(
                f"The model {model.name!r} computes the image of its ViT from {len(before.inputs)} inputs. "
                "Pass the Vision Transformer: anatomy.find_vit(model) returns it."
            )
        before = None if before is None or len(before.output.shape) != 4 else before  # frames, of which one is an image
        start, parts = vit if before is None else model, [*filter(None, [before]), _tower(vit, layer)]
        if layer is None and len(parts[-1].output.shape) == 3 and (learner(model) is not vit or around(vit)):
            taken = [x.shape for x in getattr(learner(model), "inputs", None) or vit.inputs]
            if len(taken) > 1 or len(taken[0]) != 4:
                raise ValueError(
                    f"The model {model.name!r} makes a vector of the tokens of its ViT, and takes more than one image: "
                    f'{", ".join(map(str, taken))}. Pass layer="tokens" for all tokens.'
                )
            start, parts = model, [functools.partial(_vector_of, learner(model))]
        return cls(start, tuple(parts), preprocessing_of(start, image_size))

    def __call__(self, images: np.ndarray) -> Any:
        """Return the features of a batch of images."""
        with no_gradients():
            for part in self.parts:
                images = part(images, training=False)
        return images


def _vector_of(model: keras.Model, images: Any, training: bool = False) -> Any:
    return compiled.run(model, _vector, keras.ops.convert_to_tensor(images), key="the vector of tokens")


def _vector(model: keras.Model, images: Any) -> Any:
    """Return the vector that layers around a ViT make of its tokens, or else the tokens: what its head takes."""
    vit, taken, tokens = find_vit(model), [], []

    def note(layer, name, tensor):
        if (name == "output") == (layer is vit):
            (tokens if layer is vit else taken).append(tensor)
        return tensor

    with tap(note, [vit, *(layer for layer in around(model) if mixes(layer))]):
        outputs = keras.tree.flatten(model(images, training=False))
    return next((x for x in (*taken, *outputs) if len(x.shape) == 2), tokens[0])


def _tower(vit: keras.Model, layer: str | None) -> VisionTransformer:
    """Return the ViT from its images to the features: the same object each time, so that it is compiled once."""

    def make():
        tower = VisionTransformer(vit.input, _features_of(vit, layer), name=f"{vit.name}-features")
        tower.config = getattr(vit, "config", None)  # which has the size of the smallest image
        tower.range_checked = True  # by `embed`, before any preprocessing
        return tower

    tower = kept(vit, ("tower", layer), make)
    tower.run_eagerly = vit.run_eagerly
    return tower


def _features_of(vit: keras.Model, layer: str | None):
    if layer == "tokens":
        return (final_norm(vit) or blocks(vit)[-1]).output
    if layer is not None:
        names = [each.name for each in vit.layers]
        if layer not in names:
            raise ValueError(f"The model {vit.name!r} has no layer {layer!r}. It has 'tokens', {str(names)[1:-1]}.")
        return vit.get_layer(layer).output
    inputs = list({id(head.input): head.input for head in heads(vit)}.values())
    if not inputs and len(vit.outputs) > 1:
        raise ValueError(f"The model {vit.name!r} has {len(vit.outputs)} outputs. Pass layer=, the name of one layer.")
    return vit.output if not inputs else inputs[0] if len(inputs) == 1 else keras.layers.Average()(inputs)

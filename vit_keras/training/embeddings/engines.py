"""Embeddings and predictions by an engine for large data, such as Ray Data or Spark, in workers of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ..._internal.validate import one_of, positive_integer
from ...anatomy.inputs import preprocessing_of
from ...opening import as_model
from .batches import run_filled, slices
from .extraction import Extractor

__all__ = ["Embedder"]


class Embedder:
    """A model that an engine makes once in each worker, and calls with batches of rows.

    Every row comes back, in its place: a damaged image has an error instead of features. All batches are filled up to
    one size before they are computed, so that the features of an image do not depend on which batch the engine puts
    it in, and nothing is compiled twice.

    Args:
        model: What `open_model` opens, so that each worker opens it for itself; or an open model.
        outputs: `"features"`: what the head sees, as `embed` returns it. `"predictions"`: the model's output.
        batch_size: Rows that are computed at once; the engine may send more or fewer.
        layer: See `embed`; for features.
        image_size: `(height, width)` or one integer, for a model that takes any size.
        **options: Options of `open_model`, such as `weights`.

    Raises:
        ValueError: An argument is out of range, or the model takes any size and there is no `image_size`.

    Example:
        >>> embedder = Embedder("vit_cifar10")
        >>> rows = embedder({"path": np.array(["flowers/rose/0.png", "no_such_file.png"])})
        >>> rows["features"].shape, [bool(error) for error in rows["error"]]
        ((2, 128), [False, True])
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | keras.Model,
        outputs: str = "features",
        *,
        batch_size: int = 32,
        layer: str | None = None,
        image_size: int | tuple[int, int] | str | None = "native",
        **options: Any,
    ) -> None:
        self.outputs: str = one_of(outputs, "outputs", ("features", "predictions"))
        self.batch_size: int = positive_integer(batch_size, "batch_size")
        self.model: keras.Model = as_model(model, **options)
        if outputs == "features":
            self._run = Extractor.of(self.model, layer, image_size)
        else:
            self._run = Extractor(self.model, (self.model,), preprocessing_of(self.model, image_size))
        self._preprocessing, self._shape = self._run.preprocessing, tuple(self._run.parts[-1].output_shape[1:])
        if self._preprocessing.image_size is None or None in self._shape:
            raise ValueError("The model takes images of any size: pass image_size, such as 224.")

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Compute a batch of rows.

        Args:
            batch: Columns of one length. `"bytes"` has the images' files or, where there is no such column, `"path"`
                their paths.

        Returns:
            The columns without `"bytes"`; `"features"` (or `"predictions"`), float32 `(rows, …)`, NaN in a row of a
            damaged image; and `"error"`, empty where all is well.
        """
        sources = batch["bytes"] if "bytes" in batch else [str(path) for path in batch["path"]]
        rows = np.full((len(sources), *self._shape), np.nan, "float32")
        good, images, errors = [], [], [""] * len(sources)
        for n, source in enumerate(sources):
            try:
                images.append(self._preprocessing(source)[0])
                good.append(n)
            except (ValueError, OSError, TypeError) as error:  # a missing value is of another type
                errors[n] = str(error) or type(error).__name__
        for part in slices(len(good), self.batch_size):
            rows[good[part]] = run_filled(self._run, np.stack(images[part]), self.batch_size)
        kept = {name: column for name, column in batch.items() if name != "bytes"}
        return {**kept, self.outputs: rows, "error": np.array(errors, dtype=object)}

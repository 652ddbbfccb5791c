"""A model and its images, as all three tests use them."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from keras import ops

from ... import anatomy
from ..._internal.validate import one_of, positive_integer, received
from ...anatomy.dry_run import readout
from ...anatomy.outputs import why_not_classifier
from ...anatomy.parts import find_vit, learner, patch_grid, prefix_names
from ...backend import compiled
from ...labels import class_numbers
from ..attention import attention_map
from ..gradients import torch_gradients
from ..methods import METHODS
from ..pictures import ModelInputs, pictures_of
from . import masked_pass

MapMethod = str | Mapping[str, Any] | Callable[..., Any]
"""What makes a map: see `vit_keras.visualize.faithfulness`."""


class Case:
    """A model, and images in the size that it takes."""

    batch_size: Any
    given_grid: Any
    model: Any
    preprocess: Any
    vit: Any

    def __init__(self, model: Any, images: Any, preprocess: Any, grid: Any, batch_size: Any):
        batch_size = positive_integer(batch_size, "batch_size")
        model = learner(model)
        self.model, self.vit = model, find_vit(model)
        self.preprocess, self.given_grid, self.batch_size = preprocess, grid, batch_size
        self.model_inputs: ModelInputs = ModelInputs(model, preprocess)
        self.originals: list[np.ndarray] = [*pictures_of(images, self.model_inputs.channels)]
        self.pictures: np.ndarray = np.clip(np.rint(self.model_inputs.resized(self.originals)), 0, 255).astype("uint8")
        size = self.model_inputs.seen_size(self.model_inputs.size_of(self.originals))
        self.grid: tuple[Any, ...] | tuple[int, int] = tuple(grid) if grid is not None else patch_grid(self.vit, size)
        if not model.built:
            model(self.inputs(self.pictures[:1]))

    @functools.cached_property
    def _read_tokens(self) -> np.ndarray:
        return readout(self.model, self.masks().shape[1])  # computes numbers, so it is asked before anything compiles

    def showing(self, pictures: Any) -> Any:
        """Return the same case with other images, of the right size."""
        case = copy.copy(self)
        case.pictures = pictures
        return case

    def inputs(self, pictures: Any) -> Any:
        """Return images, of the right size, as the model takes them."""
        return self.model_inputs.prepared(pictures.astype("float64"))

    def _chunks(self):
        return (slice(n, n + self.batch_size) for n in range(0, len(self.pictures), self.batch_size))

    def maps(self, method: Any, classes: Any = None) -> Any:
        """Return float64 maps `(images, down, across)` by a method."""
        maps = []
        for c in self._chunks():
            made = self._map(method, self.pictures[c], None if classes is None else classes[c])
            maps.append(_on_grid(made, self.pictures[c], self.grid))
        return np.concatenate(maps)

    def _map(self, method, pictures, classes):
        if callable(method):
            return method(self.model, pictures, **({"target": classes} if wants_target(method) else {}))
        options = {"preprocess": self.preprocess, "grid": self.given_grid, **_options(method)}
        if classes is not None and wants_target(method):
            options["target"] = list(classes)
        return attention_map(self.model, pictures, **options, return_map=True)

    def masks(self, removed: Any = None) -> Any:
        """Return float32 `(images, tokens)`, 0 for the removed patches, given by their numbers."""
        patches = np.ones((len(self.pictures), math.prod(self.grid)), "float32")
        if removed is not None:
            np.put_along_axis(patches, removed, 0, axis=1)
        prefix = np.ones((len(patches), len(prefix_names(self.vit))), "float32")
        return np.concatenate([prefix, patches], axis=1)

    def without(self, kind: Any, removed: Any, filler: Any) -> Any:
        """Return what the model reads without some patches, given by their numbers `(images, removed)`."""
        if filler is None:
            return self.read(kind, masks=self.masks(removed))
        lost = np.zeros((len(self.pictures), math.prod(self.grid)), bool)
        np.put_along_axis(lost, removed, True, axis=1)
        lost = lost.reshape(-1, *self.grid)
        for axis, size in enumerate(self.pictures.shape[1:3], start=1):
            lost = np.take(lost, np.arange(size) * self.grid[axis - 1] // size, axis=axis)
        return self.read(kind, np.where(lost[..., None], filler, self.pictures))

    def read(self, kind: Any, pictures: Any = None, masks: Any = None) -> Any:
        """Return the model's outputs for the images, `(images, ...)`; see `masked_pass.read`."""
        pictures = self.pictures if pictures is None else pictures
        if kind == "probability" and (lack := why_not_classifier(self.model)):
            raise ValueError(
                f"The model {self.model.name!r} has no single output of the shape (batch, classes): {lack}. Pass as "
                "target None or a function of its outputs."
            )
        tokens = self._read_tokens if kind == "similarity" else np.empty(0)
        results, function = [], functools.partial(masked_pass.read, kind, tokens)
        for c in self._chunks():
            arrays = [self.inputs(pictures[c])] + ([] if masks is None else [masks[c]])
            tensors = [ops.convert_to_tensor(a) for a in arrays]
            with torch_gradients(wanted=False):
                seen = compiled.run(
                    self.model, function, *tensors, key=("evaluate", kind, masks is not None, tokens.tobytes())
                )
            results.append(ops.convert_to_numpy(seen))
        found = np.concatenate(results)
        return (anatomy.probabilities(self.model, found) if kind == "probability" else found).astype("float64")

    def classes(self, target: Any, probabilities: Any = None) -> Any:
        """Return the class of each image, by number, from what a caller passed."""
        classes = class_numbers(target, len(self.pictures), anatomy.class_names(self.model))
        shape = getattr(self.model, "output_shape", None)
        if isinstance(shape, tuple) and len(shape) == 2 and classes.max() >= shape[1]:
            raise ValueError(f"The model has the classes 0 to {shape[1] - 1}. Received: {classes.max()}")
        predicted = classes < 0
        if not predicted.any():
            return classes
        probabilities = self.read("probability") if probabilities is None else probabilities
        return np.where(predicted, probabilities.argmax(axis=-1), classes)


def _options(method):
    return {"method": method} if isinstance(method, str) else dict(method)


def wants_target(method: MapMethod) -> bool:
    """Return whether a method explains a class that it does not name itself; a function does if it has a `target`."""
    if callable(method):
        return "target" in inspect.signature(method).parameters
    if not isinstance(method, (str, Mapping)):
        raise TypeError(f"A method is a name, options of attention_map, or a function. Received: {received(method)}")
    options = _options(method)
    name = options.get("method")  # None: as in attention_map, of a class only if it names one
    return name is not None and METHODS[one_of(name, "method", METHODS)].of_class and "target" not in options


def _on_grid(maps, pictures, grid):
    maps = np.asarray(ops.convert_to_numpy(maps), "float64")
    if maps.ndim == 4 and maps.shape[-1] == 1:
        maps = maps[..., 0]
    size = pictures.shape[1:3]
    if maps.shape == (len(pictures), *size) and size != grid and not any(n % cells for n, cells in zip(size, grid)):
        down, across = (n // cells for n, cells in zip(size, grid))
        maps = maps.reshape(-1, grid[0], down, grid[1], across).mean(axis=(2, 4))
    if maps.shape != (len(pictures), *grid):
        raise ValueError(
            f"A method must return maps of the shape {(len(pictures), *grid)}, (images, patches down, across), or "
            f"{(len(pictures), *size)}. Received: {maps.shape}"
        )
    if not np.isfinite(maps).all():
        raise ValueError("A map has values that are not finite numbers.")
    return maps

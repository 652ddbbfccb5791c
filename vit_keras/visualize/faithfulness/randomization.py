"""Randomized weights: a map that stays the same does not explain what the model has learned."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from ...anatomy.parts import attention_blocks, find_vit
from ...backend.keras_internals import flat_layers
from .case import Case, MapMethod, wants_target
from .tables import table


@dataclasses.dataclass(frozen=True, eq=False)
class RandomizationCheck:
    """How similar a map stays while more and more of the model is randomized. `str()` of it is a table.

    In the shapes, S stages, B images.

    Attributes:
        stages: What was randomized last: `"head"`, `"block 11"` …, `"embedding"`; all before it in the list stayed so.
        correlation: float `(S, B)`: Spearman's rank correlation of each map with the map of the original model.
        maps: float32 `(S + 1, B, down, across)`: first those of the model as it is.
    """

    stages: tuple[str, ...]
    correlation: np.ndarray
    maps: np.ndarray

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each stage, with the mean over the images."""
        return [{"stage": s, "correlation": float(c.mean())} for s, c in zip(self.stages, self.correlation)]

    def __str__(self) -> str:
        lines = [(row["stage"], f"{row['correlation']:+.3f}") for row in self.rows()]
        return table(("randomized down to", "Spearman"), lines)


def randomization_check(
    model: keras.Model,
    image: Any,
    method: MapMethod = "relevance",
    *,
    target: Any = "predicted",
    seed: int = 0,
    batch_size: int = 16,
    preprocess: Callable[..., Any] | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> RandomizationCheck:
    """Randomize a model from its head down to its first layer, and measure how long a map stays the same.

    Adebayo et al. 2018 (Sanity Checks for Saliency Maps, arXiv 1810.03292), section 3: cascading randomization. The
    correlation that remains at the end comes from the image and the architecture, not from what the model has
    learned.

    A weight is randomized by a permutation of its entries: so it keeps its scale, and a head that was initialized with
    zeros or a small layer scale does not silence the model instead. The model's weights are restored in the end, after
    an error too.

    Args:
        model: See `record`.
        image: One or more, as for `record`.
        method: See `vit_keras.visualize.faithfulness`.
        target: For a method that is for a class: `"predicted"`, by the model as it is; a class, its name, or a list of
            them.
        seed: Seed of the permutations.
        batch_size: How many images go through the model at once.
        preprocess: See `record`.
        grid: See `record`.

    Returns:
        A `RandomizationCheck`; print it.

    Raises:
        ValueError: There is no such class, or the model has no blocks.
        TypeError: The method is none of those kinds.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pictures = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), "uint8")
        >>> randomization_check(model, pictures, "rollout").stages
        ('head', 'block 1', 'block 0', 'embedding')
    """
    case = Case(model, image, preprocess, grid, batch_size)
    model = case.model
    stages = _stages(model)
    classes = case.classes(target) if wants_target(method) else None
    maps = [case.maps(method, classes)]
    rng = np.random.default_rng(seed)
    with _weights_kept(model):
        for _, parts in stages:
            for weight in (w for part in parts for w in part.weights):
                values = ops.convert_to_numpy(weight)
                weight.assign(rng.permutation(values.reshape(-1)).reshape(values.shape))
            maps.append(case.maps(method, classes))
    correlation = np.array([[spearman(*pair) for pair in zip(maps[0], other)] for other in maps[1:]])
    names = tuple(name for name, _ in stages)
    return RandomizationCheck(names, correlation, np.stack(maps).astype("float32"))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation of two arrays: ties get their mean rank; 0 if one is constant."""
    a, b = (_ranks(x) for x in (a, b))
    if len(a) != len(b):
        raise ValueError(f"Rank correlation is of two arrays of one size. Received: {len(a)} and {len(b)} values")
    a, b = (x - x.mean() for x in (a, b))
    scale = math.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else 0.0


def _ranks(values):
    _, inverse, counts = np.unique(np.ravel(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]


def _stages(model):
    """Return what is randomized, from the output down: names and layers."""
    vit = find_vit(model)
    blocks = attention_blocks(vit)
    places = [n for n, layer in enumerate(vit.layers) if any(b in flat_layers(layer) for b in blocks)]
    after, before = _outside(model, vit)
    after, before = vit.layers[places[-1] + 1 :] + after, before + vit.layers[: places[0]]
    inside = [(f"block {n}", [block]) for n, block in reversed([*enumerate(blocks)])]
    stages = [("head", after), *inside, ("embedding", before)]
    return [stage for stage in stages if any(part.weights for part in stage[1])]


def _outside(model, vit):
    """Return the layers of a model after and before the ViT that is nested in it."""
    after, before = [], []
    while model is not vit:
        parts = model.layers if isinstance(model, keras.Model) else flat_layers(model)[1:]
        place = next(n for n, part in enumerate(parts) if any(layer is vit for layer in flat_layers(part)))
        after, before = parts[place + 1 :] + after, before + parts[:place]
        model = parts[place]
    return after, before


@contextlib.contextmanager
def _weights_kept(model: keras.Model) -> Iterator[None]:
    values = [np.array(ops.convert_to_numpy(weight)) for weight in model.weights]
    try:
        yield
    finally:
        for weight, value in zip(model.weights, values):
            weight.assign(value)

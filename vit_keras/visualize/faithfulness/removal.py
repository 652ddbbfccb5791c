"""Deletion and insertion: removing the patches that a map calls important should lower the model's score."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ... import anatomy
from ..._internal.validate import listed, one_of
from ...anatomy.outputs import NUMBERS
from ...anatomy.parts import attention_blocks
from .case import Case, MapMethod, wants_target
from .masked_pass import pools
from .tables import standard_error, table, with_error

METRICS = ("token_removal", "pixel")
RANDOM = "random"


@dataclasses.dataclass(frozen=True, eq=False)
class MapEvaluation:
    """The remaining scores without the patches that each map calls most, or least, important.

    `str()` of it is a table. In the shapes, M methods, the last of them random, B images, F fractions.

    Attributes:
        methods: Their names.
        metric: `"token_removal"` or `"pixel"`.
        score: What was compared: `"similarity"`, `"probability"` or `"value"`.
        fractions: Shares of the patches that were removed.
        full: float `(B,)`, the score of the whole images.
        deletion_curves: float `(M, B, F)`, the score without the highest patches.
        insertion_curves: The same, without the lowest.
        target: int `(B,)`, the classes whose probability was the score, or `None`.
    """

    methods: tuple[str, ...]
    metric: str
    score: str
    fractions: tuple[float, ...]
    full: np.ndarray
    deletion_curves: np.ndarray
    insertion_curves: np.ndarray
    target: np.ndarray | None = None

    @property
    def deletion(self) -> np.ndarray:
        """`(M, B)`: the mean over the fractions; low is good."""
        return self.deletion_curves.mean(axis=-1)

    @property
    def insertion(self) -> np.ndarray:
        """`(M, B)`: the mean over the fractions; high is good."""
        return self.insertion_curves.mean(axis=-1)

    @property
    def gap(self) -> np.ndarray:
        """`(M, B)`: insertion less deletion. It is about 0 for a random map, and high is good."""
        return self.insertion - self.deletion

    @property
    def gain(self) -> np.ndarray:
        """`(M, B)`: by how much the gap is wider than the first method's for the same image."""
        return self.gap - self.gap[0]

    def rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each method: means over the images, the standard error of the gain, and wins."""
        rows = []
        for n, name in enumerate(self.methods):
            row = {"method": name, **{k: float(getattr(self, k)[n].mean()) for k in ("deletion", "insertion", "gap")}}
            row["gain"] = float(self.gain[n].mean()) if n else None
            row["error"] = standard_error(self.gain[n]) if n else None
            row["wins"] = int((self.gain[n] > 0).sum()) if n else None
            rows.append({**row, "images": len(self.full)})
        return rows

    def __str__(self) -> str:
        scores = {"similarity": "cosine of the pooled features", "probability": "probability of the target"}
        head = f"{self.metric}: {scores.get(self.score, 'value of the target')} without " + (
            f"{', '.join(f'{f:.0%}' for f in self.fractions)} of the patches; {len(self.full)} images"
        )
        columns = ("method", "deletion", "insertion", "gap", f"gain over {self.methods[0]}", "wins")
        lines = []
        for row in self.rows():
            line = [row["method"], *(f"{row[k]:.3f}" for k in ("deletion", "insertion", "gap"))]
            if row["gain"] is not None:
                line += [with_error(row["gain"], row["error"]), f"{row['wins']}/{row['images']}"]
            lines.append(line)
        return f"{head}\n{table(columns, lines)}"


def evaluate_maps(
    model: keras.Model,
    images: Any,
    methods: Mapping[str, MapMethod] | Iterable[str] | str,
    *,
    metric: str = "token_removal",
    fractions: Sequence[float] = (0.1, 0.3, 0.5, 0.8),
    target: Any = None,
    seed: int = 0,
    batch_size: int = 16,
    preprocess: Callable[..., Any] | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> MapEvaluation:
    """Remove the patches that maps call most, or least, important, and compare the model's scores.

    With a faithful map the score falls much in the first case (deletion) and little in the second (insertion): the gap
    between them measures how faithful it is. Petsiuk et al. 2018 (RISE, arXiv 1806.07421) do so with pixels. But pixels
    must be replaced by something, and masked images are off-distribution. A ViT can drop tokens instead: with
    `metric="token_removal"` the patches' tokens are removed from the sequence after the position embeddings were added,
    and nothing takes their place. The tokens before the patches stay.

    Args:
        model: See `record`.
        images: See `record`. Each is resized to the model's input and rounded to 8 bits; the maps are of these.
        methods: `{name: method}`, see `vit_keras.visualize.faithfulness` for what a method is; or names of methods of
            `attention_map`. The others are compared with the first. A random map is always added.
        metric: `"token_removal"`; or `"pixel"`, which puts the image's mean color in place of a removed patch, and
            works on any model that the methods work on.
        fractions: Shares of the patches to remove, between 0 and 1; at least one patch is removed and one is left.
        target: What is compared. `None`: the pooled features, which the model's head reads, by their cosine with those
            of the whole image; it needs no classes. `"predicted"`, a class, its name, or a list with one for each
            image: its probability, as in RISE. A function of the model's output: what it returns, one number for each
            image. Methods for a class explain the classes that it names, or else the predicted ones.
        seed: Seed of the random map, and of the order of patches that have the same value in a map.
        batch_size: How many images go through the model at once.
        preprocess: See `record`.
        grid: See `record`.

    Returns:
        A `MapEvaluation`; print it.

    Raises:
        ValueError: An argument is not one of these, a map does not fit the grid, or tokens cannot be removed from such
            a model.
        TypeError: A method is none of the kinds above.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), "uint8")
        >>> result = evaluate_maps(model, pictures, ["rollout", "alti"])
        >>> result.methods, result.gap.shape
        (('rollout', 'alti', 'random'), (3, 3))
    """
    one_of(metric, "metric", METRICS)
    named = _named(methods)
    fractions = tuple(float(f) for f in fractions)
    if not fractions or not all(0 < f < 1 for f in fractions):
        raise ValueError(f"fractions must be one or more between 0 and 1. Received: {fractions}")
    case = Case(model, images, preprocess, grid, batch_size)
    model = case.model
    kind = target if callable(target) else "similarity" if target is None else "probability"
    if kind == "probability" and anatomy.task(model) in NUMBERS:
        raise ValueError(
            f"The model {model.name!r} predicts numbers, which have no probability. Pass as target None, or a function "
            "of its outputs, such as lambda outputs: outputs[:, 0]."
        )
    if metric == "token_removal" or kind == "similarity":
        attention_blocks(case.vit)  # or raise
    if metric == "token_removal" and kind != "similarity" and not pools(model):
        raise ValueError(
            f"The model {model.name!r} pools its tokens by itself, and would read removed ones too. Use "
            "metric='pixel', or target=None, which compares the tokens before that."
        )
    whole = case.read(kind, **({"masks": case.masks()} if metric == "token_removal" else {}))
    classes = None if target is None or callable(target) else case.classes(target, whole)
    left_of = functools.partial(_left, kind, whole, classes)
    filler = case.pictures.mean(axis=(1, 2), keepdims=True) if metric == "pixel" else None

    rng = np.random.default_rng(seed)
    ties = rng.random((len(case.pictures), math.prod(case.grid)))
    chance = rng.random((len(case.pictures), *case.grid))
    curves = []
    for maps in (*(case.maps(method, classes) for method in named.values()), chance):
        rising = np.stack([np.lexsort(keys) for keys in zip(ties, maps.reshape(len(maps), -1))])
        for order in (rising[:, ::-1], rising):
            lost = [order[:, : _count(f, order.shape[1])] for f in fractions]
            curves.append(np.stack([left_of(case.without(kind, patches, filler)) for patches in lost], axis=-1))
    score = "value" if callable(kind) else kind
    return MapEvaluation(
        methods=(*named, RANDOM),
        metric=metric,
        score=score,
        fractions=fractions,
        full=left_of(whole),
        deletion_curves=np.stack(curves[::2]),
        insertion_curves=np.stack(curves[1::2]),
        target=classes,
    )


def _named(methods):
    if not isinstance(methods, Mapping):
        methods = listed(methods, (str,), "methods")
        if not all(isinstance(m, str) for m in methods):
            raise TypeError(f"Functions need names: {{'mine': function}}. Received: {methods}")
        methods = {name: name for name in methods}
    if not methods or RANDOM in methods:
        raise ValueError(f"methods must name one or more; {RANDOM!r} is always added. Received: {', '.join(methods)}")
    for method in methods.values():
        wants_target(method)
    return dict(methods)


def _count(fraction, patches):
    return min(max(1, round(fraction * patches)), patches - 1)


def _left(kind, whole, classes, seen):
    """Return the score of each image from what the model reads of it, whole and with patches removed."""
    if callable(kind):
        return seen
    if kind == "probability":
        return np.take_along_axis(seen, classes[:, None], axis=1)[:, 0]
    length = np.linalg.norm(whole, axis=1) * np.linalg.norm(seen, axis=1)
    return (whole * seen).sum(axis=1) / np.maximum(length, np.finfo("float64").tiny)

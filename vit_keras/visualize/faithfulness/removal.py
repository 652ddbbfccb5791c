"""Which map is faithful? Three tests of maps, none of which needs anybody to look at one.

- `evaluate_maps`: what the map calls important is taken away, and so should be what the model sees.
- `grid_pointing_game`: among several pictures side by side, a map for a class should point at the one of that class.
- `randomization_check`: a map that stays the same when the model's weights are shuffled does not explain these weights.

A *method* is, in all three: the name of a method of `attention_map`; a dictionary of its arguments, such as `{"method": "relevance",
"start_layer": 6}`; or a function of a model and of images, uint8 `(batch, height, width, channels)` in the model's size, that
returns maps `(batch, down, across)` on the grid of patches, or of the images' size. If the function has a parameter `target`, it
also gets the classes to explain, `(batch,)`, or `None`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from ... import compiled
from ...labels import class_names
from ...layers import AttentionPooling, ExtractToken, MeanToken, find_vit, patch_grid, tap
from ...positions import resize_bilinear
from ..attention import METHODS, OF_A_CLASS, attention_map
from ..recorder import (
    block_numbers,
    blocks_of,
    class_numbers,
    input_shape,
    last_layer,
    model_inputs,
    prefix_names,
    read_pictures,
    readers,
    torch_gradients,
)

METRICS = ("token_removal", "pixel")
RANDOM = "random"

Method = str | Mapping[str, Any] | Callable


# --- deletion and insertion -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class MapEvaluation:
    """How much of what a model sees is left without the patches that each map calls most, or least, important.

    `str()` of it is a table. In the shapes, M methods, the last of them random, B images, F fractions.

    Attributes:
        methods: Their names.
        metric: `"token_removal"` or `"pixel"`.
        score: What was compared: `"similarity"`, `"probability"` or `"value"`.
        fractions: Shares of the patches that were removed.
        reference: The method that the others are compared with.
        full: float `(B,)`, the score of the whole images.
        deletion_curves: float `(M, B, F)`, the score without the highest patches.
        insertion_curves: Likewise, without the lowest.
        target: int `(B,)`, the classes whose probability was the score, or `None`.
    """

    methods: tuple[str, ...]
    metric: str
    score: str
    fractions: tuple[float, ...]
    reference: str
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
        """`(M, B)`: by how much the gap is wider than the reference's for the same image."""
        return self.gap - self.gap[self.methods.index(self.reference)]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each method: means over the images, the standard error of the gain, and on how many images it won."""
        rows = []
        for n, name in enumerate(self.methods):
            row = {"method": name, **{k: float(getattr(self, k)[n].mean()) for k in ("deletion", "insertion", "gap")}}
            compared = name != self.reference
            row["gain"] = float(self.gain[n].mean()) if compared else None
            row["error"] = _standard_error(self.gain[n]) if compared else None
            row["wins"] = int((self.gain[n] > 0).sum()) if compared else None
            rows.append({**row, "images": len(self.full)})
        return rows

    def to_dict(self) -> dict[str, Any]:
        """All that the table says, ready for JSON."""
        return {
            "metric": self.metric,
            "score": self.score,
            "fractions": list(self.fractions),
            "reference": self.reference,
            "rows": self.rows(),
        }

    def __str__(self) -> str:
        scores = {"similarity": "cosine of the pooled features", "probability": "probability of the target"}
        head = f"{self.metric}: {scores.get(self.score, 'value of the target')} without " + (
            f"{', '.join(f'{f:.0%}' for f in self.fractions)} of the patches; {len(self.full)} images"
        )
        columns = ("method", "deletion", "insertion", "gap", f"gain over {self.reference}", "wins")
        lines = []
        for row in self.rows():
            line = [row["method"], *(f"{row[k]:.3f}" for k in ("deletion", "insertion", "gap"))]
            if row["gain"] is not None:
                line += [_with_error(row["gain"], row["error"]), f"{row['wins']}/{row['images']}"]
            lines.append(line)
        return f"{head}\n{_table(columns, lines)}"


def evaluate_maps(
    model: keras.Model,
    images: Any,
    methods: Mapping[str, Method] | Iterable[str] | str,
    *,
    metric: str = "token_removal",
    fractions: Sequence[float] = (0.1, 0.3, 0.5, 0.8),
    target: Any = None,
    reference: str | None = None,
    baseline: Any = "mean",
    seed: int = 0,
    batch_size: int = 16,
    preprocess: Callable | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> MapEvaluation:
    """Remove the patches that a map calls most important, and those that it calls least important, and see what the model still sees.

    A faithful map loses much in the first case (deletion) and little in the second (insertion): the gap between them says how
    faithful it is. Petsiuk et al. 2018 (RISE, arXiv 1806.07421) do so with pixels. Pixels must be replaced by something, and a picture
    with grey holes is none that the model was made for. A ViT can do without tokens: with `metric="token_removal"` the patches'
    tokens are taken out of the sequence after the position embeddings were added, so that nothing at all is in their place. Those
    before the patches stay.

    Tokens meet each other in attention alone, and a softmax over some of the tokens is the softmax over all of them, cut out and
    divided by its sum. So the tokens are not really taken out but no other attends to them, in any block, and a mean of the tokens
    is over the others; the result is the same, and one compiled function does for all fractions.

    Args:
        model: See `record`.
        images: See `record`. Each is resized to the model's input and rounded to 8 bits; the maps are of these.
        methods: `{name: method}`, see `vit_keras.visualize.evaluate` for what a method is; or names of methods of `attention_map`. A
            random map is always added.
        metric: `"token_removal"`; or `"pixel"`, which works on any model that the methods work on.
        fractions: Shares of the patches to remove, between 0 and 1; at least one patch is removed and one is left.
        target: What is compared. `None`: the pooled features, which the model's head reads, by their cosine with those of the whole image;
            it needs no classes. `"predicted"`, a class, its name, or a list with one for each image: its probability, as in RISE.
            A function of the model's output: what it returns, one number for each image. If it names classes, the methods that
            are for a class explain these, else the predicted ones.
        reference: The method that the others are compared with; `None` for the first.
        baseline: What replaces a removed patch with `metric="pixel"`: `"mean"`, the image's mean colour; `"blur"`, the image blurred with a
            standard deviation of one patch; or a grey level or colour in [0, 255].
        seed: Of the random map, and of the order of patches that have the same value in a map.
        batch_size: How many images go through the model at once.
        preprocess: See `record`.
        grid: See `record`.

    Returns:
        A `MapEvaluation`; print it.

    Raises:
        ValueError: An argument is not one of these, a map does not fit the grid, or tokens cannot be removed from such a model.
        TypeError: A method is none of the kinds above.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pictures = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), "uint8")
        >>> result = evaluate_maps(model, pictures, ["rollout", "alti"])
        >>> result.methods, result.gap.shape
        (('rollout', 'alti', 'random'), (3, 3))
    """
    if metric not in METRICS:
        raise ValueError(f"metric is one of {', '.join(METRICS)}. Received: {metric!r}")
    named = _named(methods)
    reference = next(iter(named)) if reference is None else reference
    if reference not in (*named, RANDOM):
        raise ValueError(f"reference is one of {', '.join(named)} or {RANDOM}. Received: {reference!r}")
    fractions = tuple(float(f) for f in fractions)
    if not fractions or not all(0 < f < 1 for f in fractions):
        raise ValueError(f"fractions are between 0 and 1, at least one. Received: {fractions}")
    case = _Case(model, read_pictures(images, input_shape(model)[-1]), preprocess, grid, batch_size)
    kind = target if callable(target) else "similarity" if target is None else "probability"
    if metric == "token_removal" or kind == "similarity":
        blocks_of(case.vit)  # or say that there are none
    if metric == "token_removal" and kind != "similarity" and not _pools(model):
        raise ValueError(
            f"The model {model.name!r} pools its tokens by itself, and would read removed ones too. Use metric='pixel', or target=None, "
            "which compares the tokens before that."
        )
    whole = case.read(kind, **({"masks": case.masks()} if metric == "token_removal" else {}))
    classes = None if target is None or callable(target) else case.classes(target, whole)
    left_of = functools.partial(_left, kind, whole, classes)
    filler = _filler(case.pictures, baseline, case.grid) if metric == "pixel" else None

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
        reference=reference,
        full=left_of(whole),
        deletion_curves=np.stack(curves[::2]),
        insertion_curves=np.stack(curves[1::2]),
        target=classes,
    )


# --- the grid pointing game -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class GridPointing:
    """How well a map finds the picture of a class among several. `str()` of it is one line.

    In the shapes, M mosaics of n pictures, row by row.

    Attributes:
        grid: Pictures down and across in a mosaic.
        mosaics: uint8 `(M, height, width, channels)`.
        pictures: int `(M, n)`, which pictures are in it.
        target: int `(M, n)`, their classes.
        energy: float `(M, n)`: of the positive part of the map for the class of each, the share inside its cell; 1/n for a map that is blank.
        hits: bool `(M, n)`: whether the map is highest there.
    """

    grid: tuple[int, int]
    mosaics: np.ndarray
    pictures: np.ndarray
    target: np.ndarray
    energy: np.ndarray
    hits: np.ndarray

    @property
    def chance(self) -> float:
        """The mean energy of a map that is not of a class: exactly one picture's share."""
        return 1 / self.energy.shape[1]

    @property
    def mean(self) -> float:
        """The mean energy."""
        return float(self.energy.mean())

    @property
    def error(self) -> float:
        """Its standard error, over mosaics, for the targets of one mosaic are not independent."""
        return _standard_error(self.energy.mean(axis=1))

    def to_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        numbers = {"energy": self.mean, "error": self.error, "hits": float(self.hits.mean()), "chance": self.chance}
        return {**numbers, "mosaics": len(self.energy), "targets": self.energy.size}

    def __str__(self) -> str:
        return (
            f"energy in the right picture {_with_error(self.mean, self.error, sign='')}, highest there in {self.hits.mean():.0%}; "
            f"chance {self.chance:.3f}; {self.energy.size} targets in {len(self.energy)} mosaics"
        )


def grid_pointing_game(
    model: keras.Model,
    images: Any,
    method: Method = "relevance",
    *,
    classes: Any = None,
    grid: int | tuple[int, int] = 2,
    mosaics: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    preprocess: Callable | str | None = "own",
) -> GridPointing:
    """Put pictures of different classes side by side, and see whether a map for a class points at its picture.

    Boehle et al. 2021 (Convolutional Dynamic Alignment Networks, CVPR, arXiv 2104.00032), after the pointing game of Zhang et al. 2016
    (arXiv 1608.00507). A map that is the same for all classes scores one picture's share exactly, however good it looks.

    A mosaic has the size of the model's input: a ViT has positions for that size only. So each picture is seen at a fraction of the
    size that the model was trained with, and what it says of such small pictures is less sure.

    Args:
        model: See `record`. It needs classes.
        images: See `record`; of at least as many classes as there are pictures in a mosaic.
        method: See `vit_keras.visualize.evaluate`.
        classes: The class of each image, by number or name. `None`: what the model predicts for the image alone.
        grid: Pictures down and across in a mosaic; one number for both.
        mosaics: How many. `None`: as many as the images fill, each used once at most. For more the images are shuffled again.
        seed: Which images share a mosaic.
        batch_size: How many images go through the model at once.
        preprocess: See `record`.

    Returns:
        A `GridPointing`; print it.

    Raises:
        ValueError: There are too few images or classes, or an argument is out of range.
        TypeError: The method is none of those kinds.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pictures = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), "uint8")
        >>> result = grid_pointing_game(model, pictures, "rollout", classes=[0, 1, 2, 3])
        >>> result.energy.shape, round(result.mean, 6)
        ((1, 4), 0.25)
    """
    cells = tuple(operator.index(n) for n in (grid if isinstance(grid, Iterable) else (grid, grid)))
    count = math.prod(cells)
    if len(cells) != 2 or min(cells) < 1 or count < 2:
        raise ValueError(f"grid is the pictures down and across in a mosaic, two or more in all. Received: {grid}")
    case = _Case(model, read_pictures(images, input_shape(model)[-1]), preprocess, None, batch_size)
    labels = case.classes("predicted" if classes is None else classes)
    chosen = _mosaics(labels, count, mosaics, np.random.default_rng(seed))
    pictures = np.stack([_mosaic([case.originals[n] for n in row], cells, case.pictures.shape[1:]) for row in chosen])
    if any(n > patches for n, patches in zip(cells, case.grid)):
        raise ValueError(f"The model sees {case.grid[0]} x {case.grid[1]} patches: too few for grid={cells}.")

    if _wants_target(method):
        maps = case.showing(np.repeat(pictures, count, axis=0)).maps(method, labels[chosen].reshape(-1))
    else:
        maps = np.repeat(case.showing(pictures).maps(method), count, axis=0)
    maps = maps.reshape(len(chosen), count, *case.grid)
    down, across = (_overlaps(n, patches) for n, patches in zip(cells, case.grid))
    shares = np.einsum("ih,mthw,jw->mtij", down, np.maximum(maps, 0), across).reshape(len(chosen), count, count)
    total = shares.sum(axis=-1)
    right = np.einsum("mtt->mt", shares)
    energy = np.where(total > 0, right / np.where(total > 0, total, 1), 1 / count)
    highest = maps.reshape(len(chosen), count, -1).argmax(axis=-1)
    cell_of = np.add.outer(down.argmax(axis=0) * cells[1], across.argmax(axis=0)).reshape(-1)
    hits = cell_of[highest] == np.arange(count)
    return GridPointing(cells, pictures, chosen, labels[chosen], energy, hits)


# --- randomised weights -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class RandomizationCheck:
    """How much a map is still the same after more and more of the model was randomised. `str()` of it is a table.

    In the shapes, S stages, B images.

    Attributes:
        stages: What was randomised last: `"head"`, `"block 11"` …, `"embedding"`; all before it in the list stayed so.
        correlation: float `(S, B)`: Spearman's rank correlation of each map with that of the model as it is.
        maps: float32 `(S + 1, B, down, across)`: first those of the model as it is.
    """

    stages: tuple[str, ...]
    correlation: np.ndarray
    maps: np.ndarray

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary for each stage, with the mean over the images."""
        return [{"stage": s, "correlation": float(c.mean())} for s, c in zip(self.stages, self.correlation)]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {"images": self.correlation.shape[1], "rows": self.rows()}

    def __str__(self) -> str:
        lines = [(row["stage"], f"{row['correlation']:+.3f}") for row in self.rows()]
        return _table(("randomised down to", "Spearman"), lines)


def randomization_check(
    model: keras.Model,
    image: Any,
    method: Method = "relevance",
    *,
    layers: Sequence[int] | int | None = None,
    target: Any = "predicted",
    seed: int = 0,
    batch_size: int = 16,
    preprocess: Callable | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> RandomizationCheck:
    """Randomise a model from its head down to its first layer, and see how long a map stays the same.

    Adebayo et al. 2018 (Sanity Checks for Saliency Maps, arXiv 1810.03292), section 3: cascading randomisation. What is left of the
    correlation at the end comes from the picture and the architecture, not from what the model has learned.

    A weight is randomised by a permutation of its entries: so it keeps its scale, and a head that was initialised with zeros or a small
    layer scale does not silence the model instead. The model's weights are put back in the end, after an error too.

    Args:
        model: See `record`.
        image: One or more, as for `record`.
        method: See `vit_keras.visualize.evaluate`.
        layers: After which blocks to look, from the end if negative: fewer are faster. `None`: after each, and after the embedding. All
            blocks above are randomised in any case.
        target: For a method that is for a class: `"predicted"`, by the model as it is; a class, its name, or a list of them.
        seed: Of the permutations.
        batch_size: How many images go through the model at once.
        preprocess: See `record`.
        grid: See `record`.

    Returns:
        A `RandomizationCheck`; print it.

    Raises:
        ValueError: There is no such block or class, or the model has no blocks.
        TypeError: The method is none of those kinds.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> pictures = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), "uint8")
        >>> randomization_check(model, pictures, "rollout").stages
        ('head', 'block 1', 'block 0', 'embedding')
    """
    case = _Case(model, read_pictures(image, input_shape(model)[-1]), preprocess, grid, batch_size)
    stages = _stages(model, layers)
    classes = case.classes(target) if _wants_target(method) else None
    maps = [case.maps(method, classes)]
    rng = np.random.default_rng(seed)
    with _weights_kept(model):
        for _, parts, is_shown in stages:
            for weight in (w for part in parts for w in part.weights):
                values = ops.convert_to_numpy(weight)
                weight.assign(rng.permutation(values.reshape(-1)).reshape(values.shape))
            if is_shown:
                maps.append(case.maps(method, classes))
    correlation = np.array([[spearman(*pair) for pair in zip(maps[0], other)] for other in maps[1:]])
    names = tuple(name for name, _, is_shown in stages if is_shown)
    return RandomizationCheck(names, correlation, np.stack(maps).astype("float32"))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation of two arrays of the same size, with the mean rank for equal values; 0 if one is constant.

    Raises:
        ValueError: The sizes differ.

    Example:
        >>> round(spearman([1, 2, 3, 4], [10, 20, 20, 90]), 6)
        0.948683
    """
    a, b = (_ranks(x) for x in (a, b))
    if len(a) != len(b):
        raise ValueError(f"Rank correlation is of two arrays of one size. Received: {len(a)} and {len(b)} values")
    a, b = (x - x.mean() for x in (a, b))
    scale = math.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale else 0.0


def _ranks(values):
    _, inverse, counts = np.unique(np.ravel(values), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse.reshape(-1)]


# --- a model and its images -------------------------------------------------------------------------------------


class _Case:
    """A model, and pictures of the size that it takes."""

    def __init__(self, model, originals, preprocess, grid, batch_size):
        if batch_size < 1:
            raise ValueError(f"batch_size is 1 or more. Received: {batch_size}")
        self.model, self.vit, self.originals = model, find_vit(model), originals
        self.preprocess, self.given_grid, self.batch_size = preprocess, grid, batch_size
        resized, size = model_inputs(model, originals, None)
        self.pictures = np.clip(np.rint(resized), 0, 255).astype("uint8")
        self.grid = tuple(grid) if grid is not None else patch_grid(self.vit, size)
        if not model.built:
            model(self._inputs(self.pictures[:1]))

    def showing(self, pictures):
        """The same model with other pictures, of the right size."""
        case = copy.copy(self)
        case.pictures = pictures
        return case

    def _inputs(self, pictures):
        return model_inputs(self.model, pictures.astype("float64"), self.preprocess)[0]

    def _chunks(self):
        return (slice(n, n + self.batch_size) for n in range(0, len(self.pictures), self.batch_size))

    def maps(self, method, classes=None):
        """float64 `(images, down, across)` by a method."""
        maps = []
        for c in self._chunks():
            made = self._map(method, self.pictures[c], None if classes is None else classes[c])
            maps.append(_on_grid(made, self.pictures[c], self.grid))
        return np.concatenate(maps)

    def _map(self, method, pictures, classes):
        if callable(method):
            return method(self.model, pictures, **({"target": classes} if _wants_target(method) else {}))
        options = {"preprocess": self.preprocess, "grid": self.given_grid, **_options(method)}
        if classes is not None and _wants_target(method):
            options["target"] = list(classes)
        return attention_map(self.model, pictures, **options, return_map=True)

    def masks(self, removed=None):
        """float32 `(images, tokens)`, 0 for the patches removed."""
        patches = np.ones((len(self.pictures), math.prod(self.grid)), "float32")
        if removed is not None:
            np.put_along_axis(patches, removed, 0, axis=1)
        prefix = np.ones((len(patches), len(prefix_names(self.vit))), "float32")
        return np.concatenate([prefix, patches], axis=1)

    def without(self, kind, removed, filler):
        """What the model reads without some patches: `(images, removed)`, their numbers."""
        if filler is None:
            return self.read(kind, masks=self.masks(removed))
        lost = np.zeros((len(self.pictures), math.prod(self.grid)), bool)
        np.put_along_axis(lost, removed, True, axis=1)
        lost = lost.reshape(-1, *self.grid)
        for axis, size in enumerate(self.pictures.shape[1:3], start=1):
            lost = np.take(lost, np.arange(size) * self.grid[axis - 1] // size, axis=axis)
        return self.read(kind, np.where(lost[..., None], filler, self.pictures))

    def read(self, kind, pictures=None, masks=None):
        """What the model makes of the pictures: `(images, ...)`; `kind` is `"similarity"`, `"probability"` or a function."""
        pictures = self.pictures if pictures is None else pictures
        if kind == "probability":
            _refuse_without_classes(self.model)
        results, function = [], functools.partial(_read, kind)
        for c in self._chunks():
            arrays = [self._inputs(pictures[c])] + ([] if masks is None else [masks[c]])
            tensors = [ops.convert_to_tensor(a) for a in arrays]
            with torch_gradients(wanted=False):
                seen = compiled.run(self.model, function, *tensors, key=("evaluate", kind, masks is not None))
            results.append(ops.convert_to_numpy(seen))
        return np.concatenate(results).astype("float64")

    def classes(self, target, probabilities=None):
        """The class of each picture as a number, of what a caller says."""
        classes = class_numbers(target, len(self.pictures), class_names(self.model))
        if probabilities is None and (classes < 0).any():
            probabilities = self.read("probability")
        count = _count_of_classes(self.model)
        if count is not None and classes.max() >= count:
            raise ValueError(f"The model has the classes 0 to {count - 1}. Received: {classes.max()}")
        return classes if (classes >= 0).all() else np.where(classes < 0, probabilities.argmax(axis=-1), classes)


def _read(kind: Any, model: keras.Model, images: Any, masks: Any = None) -> Any:
    """What is compared, computed without the tokens that a mask calls 0."""
    remove = _Removal(model, masks)
    with contextlib.nullcontext() if masks is None and kind != "similarity" else tap(remove):
        outputs = model(images, training=False)
        if kind == "similarity":
            return ops.cast(_pooled(model, remove.tokens, masks), "float32")
    if callable(kind):
        value = kind(outputs)
        if not ops.is_tensor(value) or math.prod(n or 1 for n in value.shape[1:]) != 1 or not value.shape:
            raise ValueError("A target function returns a tensor of one number for each image.")
        return ops.cast(ops.reshape(value, (-1,)), "float32")
    outputs = ops.cast(outputs, "float32")
    if getattr(last_layer(model), "activation", None) in (keras.activations.softmax, keras.activations.sigmoid):
        return outputs
    return ops.sigmoid(outputs) if outputs.shape[-1] == 1 else ops.softmax(outputs, axis=-1)


class _Removal:
    """A visitor that leaves tokens out, and remembers those after the last block."""

    def __init__(self, model, masks):
        blocks = blocks_of(find_vit(model)) if masks is not None else _blocks(model)
        self.last = blocks[-1] if blocks else None
        self.readers = {id(b.att) for b in blocks} | {
            id(p.att) for p in _pools(model) if isinstance(p, AttentionPooling)
        }
        self.masks = masks
        self.tokens = None

    def __call__(self, layer, name, tensor):
        if layer is self.last and name == "output":
            self.tokens = tensor
        if self.masks is None:
            return tensor
        if id(layer) in self.readers and name in ("attention", "pooling"):
            return self._without(tensor)
        if isinstance(layer, MeanToken):
            kept = self.masks[:, layer.prefix_tokens :]
            share = kept / ops.mean(kept, axis=1, keepdims=True)
            return tensor * ops.cast(ops.pad(share, ((0, 0), (layer.prefix_tokens, 0)))[..., None], tensor.dtype)
        return tensor

    def _without(self, scores):
        tokens = self.masks.shape[-1]
        if scores.shape[-1] not in (None, tokens):
            raise ValueError(
                f"{scores.shape[-1]} tokens are not the {tokens} that the grid makes: say which grid=(down, across)."
            )
        kept = ops.cast(scores, "float32") * self.masks[:, None, None]
        total = ops.sum(kept, axis=-1, keepdims=True)
        return ops.cast(kept / ops.maximum(total, np.finfo("float32").tiny), scores.dtype)


def _pooled(model: keras.Model, tokens: Any, masks: Any) -> Any:
    """What the head reads of the last block's tokens: `(batch, width)`."""
    named = {layer.name: layer for layer in find_vit(model).layers}
    if "Transformer_encoder_norm" in named:
        tokens = named["Transformer_encoder_norm"](tokens)
    pools = _pools(model)
    if pools:
        parts = [pool(tokens) for pool in pools]
    else:
        weights = ops.ones_like(tokens[..., :1]) if masks is None else ops.cast(masks[..., None], tokens.dtype)
        weighted = tokens * weights
        parts = [ops.sum(weighted[:, r], axis=1) / ops.sum(weights[:, r], axis=1) for r in readers(find_vit(model))]
    if "fc_norm" in named:
        parts = [named["fc_norm"](part) for part in parts]
    return ops.concatenate(parts, axis=-1)


def _pools(model):
    return [
        layer for layer in model._flatten_layers() if isinstance(layer, (ExtractToken, MeanToken, AttentionPooling))
    ]


def _blocks(model):
    try:
        return blocks_of(find_vit(model))
    except ValueError:  # an MLP-Mixer
        return []


def _count_of_classes(model):
    shape = getattr(model, "output_shape", None)
    return shape[-1] if isinstance(shape, tuple) and len(shape) == 2 else None


def _refuse_without_classes(model):
    shape = getattr(model, "output_shape", None)
    if isinstance(shape, (list, dict)) or (isinstance(shape, tuple) and len(shape) != 2):
        raise ValueError(
            f"The model {model.name!r} has no single output of the shape (batch, classes) but {shape}: give as target None or a "
            "function of its outputs."
        )


# --- parts ------------------------------------------------------------------------------------------------------


def _named(methods):
    if isinstance(methods, str):
        methods = [methods]
    if not isinstance(methods, Mapping):
        methods = list(methods)
        if not all(isinstance(m, str) for m in methods):
            raise TypeError(f"Name what is not the name of a method: {{'mine': function}}. Received: {methods}")
        methods = {name: name for name in methods}
    if not methods or RANDOM in methods:
        raise ValueError(f"Name one method or more; {RANDOM!r} is always added. Received: {', '.join(methods)}")
    for method in methods.values():
        _wants_target(method)
    return dict(methods)


def _options(method):
    return {"method": method} if isinstance(method, str) else dict(method)


def _wants_target(method: Method) -> bool:
    """Whether a method is for a class that it does not name itself, or a function asks for one."""
    if callable(method):
        return "target" in inspect.signature(method).parameters
    if not isinstance(method, (str, Mapping)):
        raise TypeError(
            f"A method is a name, a dictionary of arguments of attention_map, or a function. Received: {type(method).__name__}"
        )
    options = _options(method)
    if options.get("method") not in METHODS:
        raise ValueError(f"method is one of {', '.join(METHODS)}. Received: {options.get('method')!r}")
    return options["method"] in OF_A_CLASS and "target" not in options


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
            f"A method returns maps of the shape {(len(pictures), *grid)}, (images, patches down, across), or {(len(pictures), *size)}. "
            f"Received: {maps.shape}"
        )
    if not np.isfinite(maps).all():
        raise ValueError("A map has values that are not finite numbers.")
    return maps


def _count(fraction, patches):
    return min(max(1, round(fraction * patches)), patches - 1)


def _left(kind, whole, classes, seen):
    """The score of each image, of what the model reads of it whole and with patches removed."""
    if callable(kind):
        return seen
    if kind == "probability":
        return np.take_along_axis(seen, classes[:, None], axis=1)[:, 0]
    length = np.linalg.norm(whole, axis=1) * np.linalg.norm(seen, axis=1)
    return (whole * seen).sum(axis=1) / np.maximum(length, np.finfo("float64").tiny)


def _filler(pictures, baseline, grid):
    """What replaces pixels, to be broadcast over `(images, height, width, channels)`."""
    if isinstance(baseline, str) and baseline == "mean":
        return pictures.mean(axis=(1, 2), keepdims=True)
    if isinstance(baseline, str) and baseline == "blur":
        down, across = (_gaussian(n, n / cells) for n, cells in zip(pictures.shape[1:3], grid))
        return np.einsum("ih,bhwc,jw->bijc", down, pictures, across, optimize=True)
    try:
        colour = np.asarray(baseline, "float64")
        np.broadcast_to(colour, pictures.shape[-1:])
    except (TypeError, ValueError):
        raise ValueError(
            f"baseline is 'mean', 'blur', or a colour of {pictures.shape[-1]} numbers. Received: {baseline!r}"
        ) from None
    if not (np.isfinite(colour).all() and colour.min() >= 0 and colour.max() <= 255):
        raise ValueError(f"A colour is in [0, 255]. Received: baseline={baseline!r}")
    return colour


def _gaussian(size, deviation):
    """`(size, size)`: each row a Gaussian around a pixel, which sums to 1 at the edges too."""
    distance = np.subtract.outer(np.arange(size), np.arange(size))
    weights = np.exp(-0.5 * (distance / deviation) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)


def _mosaics(labels, count, wanted, rng):
    """`(mosaics, count)`: which pictures are in each, all of different classes."""
    if len(np.unique(labels)) < count:
        raise ValueError(
            f"A mosaic has {count} pictures of different classes. Received: {len(labels)} of {len(np.unique(labels))} classes"
        )
    if wanted is not None and operator.index(wanted) < 1:
        raise ValueError(f"mosaics is 1 or more. Received: {wanted}")
    mosaics, rest = [], list(rng.permutation(len(labels)))
    while wanted is None or len(mosaics) < wanted:
        first: dict[int, int] = {}
        for n in rest:
            first.setdefault(labels[n], n)
        if len(first) >= count:
            mosaics.append(list(first.values())[:count])
            rest = [n for n in rest if n not in mosaics[-1]]
        elif wanted is None:
            break
        else:
            rest = list(rng.permutation(len(labels)))
    return np.array(mosaics)


def _mosaic(pictures, cells, shape):
    """One picture of several, each resized to its cell."""
    rows, columns = (np.linspace(0, n, k + 1).round().astype(int) for n, k in zip(shape[:2], cells))
    mosaic = np.zeros(shape, "uint8")
    for n, picture in enumerate(pictures):
        (top, bottom), (left, right) = (edges[i : i + 2] for edges, i in zip((rows, columns), divmod(n, cells[1])))
        mosaic[top:bottom, left:right] = _shrunk(picture, (bottom - top, right - left))
    return mosaic


def _shrunk(picture, size):
    """Resized without aliasing: a mean over whole pixels first."""
    factors = [max(1, n // target) for n, target in zip(picture.shape, size)]
    height, width = (n // f * f for n, f in zip(picture.shape, factors))
    blocks = picture[:height, :width].reshape(height // factors[0], factors[0], width // factors[1], factors[1], -1)
    return np.clip(np.rint(resize_bilinear(blocks.mean(axis=(1, 3)), size, align_corners=False)), 0, 255)


def _overlaps(cells, patches):
    """`(cells, patches)`: which share of each patch is in which cell."""
    edges = np.linspace(0, patches, cells + 1)
    starts = np.arange(patches)
    return np.clip(np.minimum.outer(edges[1:], starts + 1) - np.maximum.outer(edges[:-1], starts), 0, 1)


def _stages(model, layers):
    """What is randomised, from the output down: names, layers, and whether to look at the map then."""
    vit = find_vit(model)
    blocks = blocks_of(vit)
    shown = block_numbers(layers, len(blocks))
    places = [n for n, layer in enumerate(vit.layers) if any(b in layer._flatten_layers() for b in blocks)]
    after, before = _outside(model, vit)
    after, before = vit.layers[places[-1] + 1 :] + after, before + vit.layers[: places[0]]
    stages = [("head", after, True)]
    stages += [(f"block {n}", [blocks[n]], n in shown) for n in reversed(range(len(blocks)))]
    return [
        stage for stage in (*stages, ("embedding", before, layers is None)) if any(part.weights for part in stage[1])
    ]


def _outside(model, vit):
    """The layers of a model after and before the ViT that is nested in it."""
    after, before = [], []
    while model is not vit:
        parts = list(model._flatten_layers(include_self=False, recursive=False))
        place = next(n for n, part in enumerate(parts) if any(layer is vit for layer in part._flatten_layers()))
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


def _standard_error(values):
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def _with_error(value, error, sign="+"):
    return f"{value:{sign}.3f}" + ("" if error is None else f" ± {error:.3f}")


def _table(columns, lines):
    lines = [[*line, *[""] * (len(columns) - len(line))] for line in (columns, *lines)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    )

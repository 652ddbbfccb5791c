"""One pass through a model: what its attention was, what it carried, and what an output owes to it.

The layers show what they compute (`vit_keras.layers.tap`), so no second model is built, and it does not matter how deep the
Vision Transformer sits in another model. The pass is compiled once for a model and a kind of recording.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from .. import compiled, utils
from ..labels import class_names
from ..layers import (
    AttentionPooling,
    ClassToken,
    ExtractToken,
    MeanToken,
    RegisterTokens,
    TransformerBlock,
    find_vit,
    patch_grid,
    tap,
)
from ..preprocess import GOOGLE, Preprocess
from ..vit import preprocess_inputs

KEPT = ("attention", "values", "tokens", "normed")


@dataclasses.dataclass(frozen=True)
class Recording:
    """What happened in a model while it saw a batch of images. Made by `record`; all arrays are NumPy's.

    In the shapes, L blocks were recorded of B images; H heads of width d; N tokens of width D: those before the patches, then
    the patches row by row. A row of attention is a query, a column a key.

    Attributes:
        images: The pictures, uint8 `(height, width, 3)` each, to draw on: the grid covers each of them from edge to edge.
        grid: Patches down and across.
        prefix: Names of the tokens before the patches: `"cls"`, `"dist"`, `"reg0"` …
        layers: Numbers of the blocks recorded.
        patch_size: Pixels of the model's input between two patches, down and across.
        readout: float32 `(B, N)`, how much the model's output reads from each token of the last block; rows sum to 1. All from the
            class token; or the mean of the patches, or what a MAP head attends to.
        logits: float32 `(B, classes)`, the model's output before a last softmax or sigmoid; `None` of a model with several outputs.
        target: int `(B,)`, the classes whose logits were explained, or `None`.
        labels: Names of the classes, where the model knows them.
        heads: How the heads were fused, or `None`.
        exits: Whether each block's gradients are those of its own exit (`legrad`) and not of the model's output.
        attention: float32 `(L, B, H, N, N)`; `(L, B, N, N)` with fused heads; `(L, B, H, N)` with `rows="readout"`.
        values: float32 `(L, B, H, N, d)`.
        projections: float32 `(L, H, d, D)`, what brings each head's values into the residual stream (with layer scale).
        tokens: float32 `(L + 1, B, N, D)`: the input of each block recorded, and the output of the last of them.
        features: float32 `(B, N, D)`, the tokens after the final normalisation, where the last block was recorded.
        normed: float32 `(L, B, N, D)`, the tokens after the first normalisation of each block.
        gradients: Of the explained score with respect to `attention`.
        normed_gradients: Likewise, to `normed`.
        pooling_attention: float32 `(B, H, N)`, the attention of a MAP head.
        pooling_gradients: Likewise its gradients.
    """

    images: tuple[np.ndarray, ...]
    grid: tuple[int, int]
    prefix: tuple[str, ...]
    layers: tuple[int, ...]
    patch_size: tuple[int, int]
    readout: np.ndarray
    logits: np.ndarray | None = None
    target: np.ndarray | None = None
    labels: tuple[str, ...] | None = None
    heads: str | None = None
    exits: bool = False
    attention: np.ndarray | None = None
    values: np.ndarray | None = None
    projections: np.ndarray | None = None
    tokens: np.ndarray | None = None
    features: np.ndarray | None = None
    normed: np.ndarray | None = None
    gradients: np.ndarray | None = None
    normed_gradients: np.ndarray | None = None
    pooling_attention: np.ndarray | None = None
    pooling_gradients: np.ndarray | None = None

    def patches(self, rows: np.ndarray) -> np.ndarray:
        """The patches of `(..., N)` as `(..., down, across)`."""
        return rows[..., len(self.prefix) :].reshape(*rows.shape[:-1], *self.grid)


def record(
    model: keras.Model,
    images: Any,
    layers: Sequence[int] | int | None = None,
    target: Any = None,
    *,
    keep: Iterable[str] = ("attention", "values", "tokens"),
    heads: str | None = None,
    rows: str = "all",
    exits: bool = False,
    preprocess: Callable | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> Recording:
    """Run a model once on images and keep what its blocks computed, in inference mode.

    Args:
        model: A ViT of this package, or any model of one image input with one inside: `Sequential`, a fine-tuned
            model, nested to any depth.
        images: Pixels: an array `(height, width)`, `(height, width, channels)` or `(batch, height, width, channels)` in [0, 255], or
            floats in [-1, 1]; anything that `vit_keras.utils.read` reads; or a list of such. Each is resized for the model.
        layers: Numbers of the blocks to keep, from the end if negative; `None` for all.
        target: What the gradients are of. `None`: there are none. `"predicted"`: the logit of the class with the highest one. A class,
            by its number or its name, or a list with one for each image: its logit. A function of the model's output: what it returns,
            one number for each image, or their sum.
        keep: What to keep, of `"attention"`, `"values"`, `"tokens"` and `"normed"`. With a target also the gradients with respect to
            attention and normed tokens, if these are kept.
        heads: How to fuse the heads while the model runs, which takes far less memory: `"mean"`, `"max"`, `"min"`; with a target
            `"relevance"`, the mean of the positive parts of attention × gradient, or `"gradient"`, the positive part of their mean.
        rows: `"readout"` to keep only the mean of those rows of attention that the output is read from: the class token's.
        exits: Whether to explain each block by the score that the rest of the model gives to its own output (for `legrad`).
        preprocess: What the model's input needs, from pixels in [0, 255]. `"own"`: the ViT's own normalisation
            (`model.preprocessing`), or nothing if the model has a layer for it; `None`: nothing.
        grid: Patches down and across, where nothing in the model tells.

    Returns:
        A `Recording`.

    Raises:
        ValueError: There is no ViT in the model or more than one, an image does not fit it, there is no such block or class, or the
            model has no classes and the target is one.
        TypeError: An argument is not of these kinds.

    Warns:
        UserWarning: All gradients are zero, as of a head that has not been trained yet.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> recording = record(model, np.zeros((2, 48, 64, 3), "uint8"))
        >>> recording.attention.shape, recording.tokens.shape, recording.grid, recording.prefix
        ((2, 2, 2, 17, 17), (3, 2, 17, 64), (4, 4), ('cls',))
    """
    options = {"keep": keep, "heads": heads, "rows": rows, "exits": exits, "preprocess": preprocess, "grid": grid}
    return Recorder(model, layers, **options)(images, target)


class Recorder:
    """A reusable `record`: the same options for many images.

    Args:
        model: See `record`, as for all others.

    Example:
        >>> from vit_keras import vit
        >>> recorder = Recorder(vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10), layers=-1, keep=("tokens",))
        >>> recorder(np.zeros((2, 32, 32, 3), "uint8")).features.shape
        (2, 17, 64)
    """

    def __init__(
        self,
        model: keras.Model,
        layers: Sequence[int] | int | None = None,
        *,
        keep: Iterable[str] = ("attention", "values", "tokens"),
        heads: str | None = None,
        rows: str = "all",
        exits: bool = False,
        preprocess: Callable | str | None = "own",
        grid: tuple[int, int] | None = None,
    ):
        self.model = model
        self.vit = find_vit(model)
        self.grid = grid
        self.preprocess = preprocess
        blocks = blocks_of(self.vit)
        self.plan = _Plan(block_numbers(layers, len(blocks)), _kept(keep), heads, rows, exits)

    def __call__(self, images: Any, target: Any = None) -> Recording:
        pictures = read_pictures(images, input_shape(self.model)[-1])
        inputs, size = model_inputs(self.model, pictures, self.preprocess)
        labels = class_names(self.model)
        plan, classes = _aim(self.plan, target, len(inputs), labels)
        if plan.exits and classes is not None and (classes < 0).any():  # what the whole model predicts, not each exit
            predicted = _watch(self.model, inputs, None, _Plan(plan.layers, frozenset()))["logits"]
            classes = np.where(classes < 0, predicted.argmax(axis=-1), classes).astype("int32")
        seen = _watch(self.model, inputs, classes, plan)
        _check(seen, classes, plan)
        grid = tuple(self.grid) if self.grid is not None else patch_grid(self.vit, size)
        tokens, prefix = int(seen.pop("count")), prefix_names(self.vit)
        if tokens != len(prefix) + math.prod(grid):
            raise ValueError(
                f"{tokens} tokens are not {len(prefix)} and {grid[0]} x {grid[1]} patches: say which grid=(down, across)."
            )
        if "values" in plan.keep:
            seen["projections"] = np.stack([_projection(blocks_of(self.vit)[n]) for n in plan.layers])
        return Recording(
            images=tuple(displayable(p) for p in pictures),
            grid=grid,
            prefix=prefix,
            layers=plan.layers,
            patch_size=_patch_size(self.vit, size, grid),
            readout=_readout(self.vit, tokens, seen.get("pooling_attention"), len(inputs)),
            labels=labels,
            heads=plan.heads,
            exits=plan.exits,
            **seen,
        )


def attention_scores(model: keras.Model, inputs: np.ndarray, *, mean_heads: bool = False) -> np.ndarray:
    """The attention scores of all blocks, from one forward pass in inference mode.

    Args:
        model: Any model of one image input with blocks of this package in it.
        inputs: `(batch, height, width, channels)` as the model takes them.
        mean_heads: Whether to return the mean over the heads, which takes far less memory.

    Returns:
        float32 `(layers, batch, heads, tokens, tokens)`, rows are queries; without the heads' axis if
        `mean_heads`.

    Raises:
        ValueError: The model has no attention layer of this package.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> attention_scores(model, np.zeros((1, 32, 32, 3), "float32")).shape
        (2, 1, 2, 17, 17)
    """
    layers = tuple(range(len(blocks_of(find_vit(model)))))
    plan = _Plan(layers, frozenset({"attention"}), "mean" if mean_heads else None)
    return _watch(model, np.asarray(inputs, "float32"), None, plan)["attention"]


def patch_logit_lens(
    model: keras.Model,
    images: Any,
    layers: Sequence[int] | int | None = None,
    *,
    preprocess: Callable | str | None = "own",
    grid: tuple[int, int] | None = None,
) -> np.ndarray:
    """What the model would say of each patch, were it the only token that the head reads, after each block.

    The rest of the model, from the final normalisation on, sees one patch at a time (the "logit lens" of nostalgebraist, 2020, on patches).
    A head that was trained on a class token or a mean of patches is only roughly valid for a single one.

    Args:
        model: See `record`.
        images: See `record`.
        layers: After which blocks; `None` for all.
        preprocess: See `record`.
        grid: See `record`.

    Returns:
        float32 `(layers, batch, down, across, classes)`: logits.

    Raises:
        ValueError: The model has no single output `(batch, classes)`; see `record` for the rest.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> patch_logit_lens(model, np.zeros((32, 32, 3), "uint8")).argmax(axis=-1).shape
        (2, 1, 4, 4)
    """
    recorder = Recorder(model, layers, keep=(), exits="patches", preprocess=preprocess, grid=grid)
    recording = recorder(images)
    if recording.logits is None:
        raise ValueError("The model has no single output of the shape (batch, classes).")
    return recording.logits.reshape(len(recording.layers), len(recording.images), *recording.grid, -1)


# --- what is asked for ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What to record; it tells one compiled function from another."""

    layers: tuple[int, ...]
    keep: frozenset[str]
    heads: str | None = None
    rows: str = "all"
    exits: bool | str = False  # or "patches", which leave one by one
    target: Any = None  # or "class", or a function

    def __post_init__(self):
        if self.heads not in (None, "mean", "max", "min", *_WITH_GRADIENTS):
            raise ValueError(
                f"heads is None, 'mean', 'max', 'min', 'relevance' or 'gradient'. Received: {self.heads!r}"
            )
        if self.rows not in ("all", "readout"):
            raise ValueError(f"rows is 'all' or 'readout'. Received: {self.rows!r}")


_WITH_GRADIENTS = ("relevance", "gradient")


def block_numbers(layers: Any, count: int) -> tuple[int, ...]:
    """Numbers of blocks, rising, of what a caller says: one or several, from the end if negative; `None` for all."""
    if layers is None:
        return tuple(range(count))
    try:
        given = [operator.index(n) for n in (layers if isinstance(layers, Iterable) else [layers])]
    except TypeError:
        raise TypeError(f"layers are numbers of blocks. Received: {layers!r}") from None
    if not given or not all(-count <= n < count for n in given):
        raise ValueError(f"The model has the blocks 0 to {count - 1}. Received: layers={layers!r}")
    return tuple(sorted({n % count for n in given}))


def _kept(keep: Iterable[str]) -> frozenset[str]:
    kept = frozenset([keep] if isinstance(keep, str) else keep)
    if not kept <= set(KEPT):
        raise ValueError(f"What can be kept is {', '.join(KEPT)}. Received: {', '.join(sorted(kept - set(KEPT)))}")
    return kept


def _aim(plan: _Plan, target: Any, count: int, labels: Sequence[str] | None) -> tuple[_Plan, np.ndarray | None]:
    """The plan with its target, and the class of each image, -1 for the predicted one."""
    if target is None:
        if plan.heads in _WITH_GRADIENTS or plan.exits is True:
            raise ValueError("This needs gradients: give a target, such as 'predicted' or the number of a class.")
        return plan, None
    if callable(target):
        return dataclasses.replace(plan, target=target), None
    return dataclasses.replace(plan, target="class"), class_numbers(target, count, labels)


def class_numbers(target: Any, count: int, labels: Sequence[str] | None) -> np.ndarray:
    """The class of each of so many images, of what a caller says, one or a list; -1 for the predicted one."""
    single = isinstance(target, str) or not isinstance(target, Iterable) or np.ndim(target) == 0
    classes = [_class(t, labels) for t in ([target] * count if single else target)]
    if len(classes) != count:
        raise ValueError(f"There are {count} images and {len(classes)} targets: give one for each, or one for all.")
    return np.array(classes, "int32")


def _class(target: Any, labels: Sequence[str] | None) -> int:
    if isinstance(target, str):
        return -1 if target == "predicted" else class_named(target, labels)
    try:
        number = operator.index(target)
    except TypeError:
        raise TypeError(f"A class is a number, a name or 'predicted'. Received: {target!r}") from None
    if number < 0:
        raise ValueError(f"A class has a number from 0. Received: {number}")
    return number


def class_named(name: str, labels: Sequence[str] | None) -> int:
    """The number of a class, by its whole name or by one of its names between commas."""
    if labels is None:
        raise ValueError(f"The model knows no names of classes: give the number of {name!r}.")
    wanted = name.strip().lower()
    whole = [number for number, label in enumerate(labels) if label.lower() == wanted]
    part = [number for number, label in enumerate(labels) if wanted in map(str.strip, label.lower().split(","))]
    found = whole or part
    if len(found) == 1:
        return found[0]
    near = [label for label in labels if wanted in label.lower()][:5]
    hint = f" There are: {'; '.join(near)}." if near else ""
    raise ValueError(f"{len(found) or 'No'} class{'es have' if found else ' has'} the name {name!r}.{hint}")


# --- the pass ---------------------------------------------------------------------------------------------------


def _watch(model: keras.Model, inputs: np.ndarray, classes: np.ndarray | None, plan: _Plan) -> dict[str, Any]:
    """Run the model once and return what the plan asks for, as arrays under the names of `Recording`'s fields."""
    if not model.built:
        model(inputs[:1])
    tensors = [ops.convert_to_tensor(array) for array in (inputs, classes) if array is not None]
    with torch_gradients(plan.target is not None):
        seen = compiled.run(model, functools.partial(_observe, plan), *tensors, key=("record", plan))
    return {name: _array(value) for name, value in seen.items()}


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, list):
        return ops.convert_to_numpy(value)
    array = np.empty((len(value), *value[0].shape), keras.backend.standardize_dtype(value[0].dtype))
    for n in range(len(value)):  # one by one, so that not all of them are there twice
        array[n], value[n] = ops.convert_to_numpy(value[n]), None
    return array


def _observe(plan: _Plan, model: keras.Model, images: Any, classes: Any = None) -> dict[str, Any]:
    vit = find_vit(model)

    def forward(watch):
        visitor = _Visitor(vit, plan, watch)
        with tap(visitor), contextlib.nullcontext() if callable(plan.target) else _linear_head(model):
            outputs = model(images, training=False)
        visitor.check(model)
        score, chosen = _score(outputs, classes, plan)
        return score, visitor.watched, {**visitor.seen, "logits": _logits(outputs), "target": chosen}

    if plan.target is None:
        _, watched, seen = forward(lambda name, tensor: tensor)
        gradients = {name: [None] * len(tensors) for name, tensors in watched.items()}
    else:
        gradients, watched, seen = _GRADIENTS[keras.backend.backend()](forward)
    count = ops.shape(seen.pop("any"))[1]
    batch = ops.shape(images)[0]
    if plan.exits is True:
        seen |= {name: seen[name][-batch:] for name in ("logits", "target") if seen[name] is not None}
    if "tokens" in seen:
        seen["tokens"] = [_float(t) for t in seen["tokens"]]
    if plan.layers[-1] == len(blocks_of(vit)) - 1 and "tokens" in seen:
        norm = next((layer for layer in vit.layers if layer.name == "Transformer_encoder_norm"), lambda x: x)
        seen["features"] = _float(norm(seen["tokens"][-1]))
    seen |= _reduced(watched, gradients, plan, vit)
    seen["count"] = count
    return {name: value for name, value in seen.items() if value is not None}


class _Visitor:
    """Keeps what the plan asks for while a model runs; what is to have gradients goes through `watch(name, tensor)`."""

    def __init__(self, vit: keras.Model, plan: _Plan, watch: Callable):
        self.blocks = blocks_of(vit)
        self.numbers = {id(layer): n for n, block in enumerate(self.blocks) for layer in (block, block.att)}
        self.pooling = {id(layer.att) for layer in vit.layers if isinstance(layer, AttentionPooling)}
        self.prefix = len(prefix_names(vit))
        self.vit, self.plan, self.watch = vit, plan, watch
        self.watched: dict[str, list] = {}
        self.seen: dict[str, Any] = {}
        self.exits: list = []
        self.calls: list[int] = []

    def __call__(self, layer, name, tensor):
        number, plan = self.numbers.get(id(layer)), self.plan
        if name == "pooling" and id(layer) in self.pooling and "attention" in plan.keep:
            return self._keep(self.watched, name, self.watch(name, tensor))
        if number is None:
            return tensor
        if name == "tokens":
            self.calls.append(number)
            tensor = ops.stop_gradient(tensor) if plan.exits is True else tensor
            self.seen["any"] = tensor
        if name == "output":
            return self._leave(number, tensor)
        if number not in plan.layers or name not in plan.keep:
            return tensor
        if name == "attention" and plan.target is None:
            return _computed_after(self._keep(self.watched, name, _slim(tensor, None, plan, self.vit)[0]), tensor)
        if name in ("attention", "normed"):
            return self._keep(self.watched, name, self.watch(name, tensor))
        return self._keep(self.seen, name, tensor)

    def _leave(self, number, tensor):
        plan = self.plan
        if "tokens" in plan.keep and number == plan.layers[-1]:
            self._keep(self.seen, "tokens", tensor)
        if plan.exits and number in plan.layers:
            self.exits.append(tensor)
        if not plan.exits or number < len(self.blocks) - 1:
            return tensor
        tokens = ops.concatenate(self.exits, axis=0)
        if plan.exits == "patches":
            patches = ops.reshape(tokens[:, self.prefix :], (-1, 1, tokens.shape[-1]))
            tokens = ops.repeat(patches, max(2, self.prefix + 1), axis=1)  # so that any pooling gives the patch
        return tokens

    @staticmethod
    def _keep(where, name, tensor):
        where.setdefault(name, []).append(tensor)
        return tensor

    def check(self, model):
        if self.calls != list(range(len(self.blocks))):
            raise ValueError(
                f"The model {model.name!r} does not run each block of its Vision Transformer once, in order: it ran {self.calls}."
            )
        for name in self.plan.keep - {"tokens"}:
            if len((self.watched | self.seen).get(name, ())) != len(self.plan.layers):
                raise ValueError(
                    f"A block of the model {model.name!r} has an attention of its own, which shows no {name}."
                )


def _logits(outputs: Any) -> Any:
    return _float(outputs) if ops.is_tensor(outputs) and len(outputs.shape) == 2 else None


def _score(outputs: Any, classes: Any, plan: _Plan) -> tuple[Any, Any]:
    """What the gradients are of, a sum over the images, and the classes that it is of."""
    if plan.target is None:
        return None, None
    if callable(plan.target):
        score = plan.target(outputs)
        if not ops.is_tensor(score) or math.prod(n or 1 for n in score.shape[1:]) != 1:
            found = f"the shape {tuple(score.shape)}" if ops.is_tensor(score) else f"a {type(score).__name__}"
            raise ValueError(f"A target function returns a tensor of one number for each image. Received: {found}")
        return ops.sum(_float(score)), None
    logits = _logits(outputs)
    if logits is None:
        raise ValueError(
            "The model has no single output of the shape (batch, classes): give as target a function that makes of its "
            "outputs one number for each image."
        )
    if plan.exits:
        classes = ops.tile(classes, (len(plan.layers),))
    chosen = ops.where(classes < 0, ops.cast(ops.argmax(logits, axis=-1), classes.dtype), classes)
    chosen = ops.minimum(chosen, logits.shape[-1] - 1)  # one that does not exist is refused afterwards
    return ops.sum(ops.take_along_axis(logits, chosen[:, None], axis=-1)), chosen


_FIELDS = {
    "attention": ("attention", "gradients"),
    "normed": ("normed", "normed_gradients"),
    "pooling": ("pooling_attention", "pooling_gradients"),
}


def _reduced(watched: dict, gradients: dict, plan: _Plan, vit: keras.Model) -> dict[str, Any]:
    """What was watched and its gradients, in float32, with heads fused and rows chosen as planned."""
    reduced: dict[str, Any] = {}
    for name, fields in ((n, f) for n, f in _FIELDS.items() if n in watched):
        pairs = list(zip(watched[name], gradients[name]))
        if name == "attention" and plan.target is not None:
            pairs = [_slim(*pair, plan, vit) for pair in pairs]
        for field, tensors in zip(fields, zip(*pairs)):
            if tensors[0] is None:
                continue
            # A MAP head is one layer with one query.
            reduced[field] = _float(tensors[0])[:, :, 0] if name == "pooling" else [_float(t) for t in tensors]
    return reduced


def _slim(attention: Any, slope: Any, plan: _Plan, vit: keras.Model) -> tuple[Any, Any]:
    """Attention of a block and its gradient, in float32, with heads fused and rows chosen as planned."""
    attention, slope = _float(attention), None if slope is None else _float(slope)
    if plan.heads is not None:
        attention, slope = fuse_heads(attention, slope, plan.heads, xp=ops), None
    if plan.rows == "readout":
        attention, slope = (None if t is None else _readout_rows(t, vit) for t in (attention, slope))
    return attention, slope


def _computed_after(first: Any, tensor: Any) -> Any:
    """The tensor, which waits for the other. TensorFlow would put that off, and keep the attention of many blocks meanwhile."""
    if keras.backend.backend() != "tensorflow" or first is tensor:
        return tensor
    import tensorflow as tf

    with tf.control_dependencies([first]):
        return tf.identity(tensor)


def fuse_heads(attention: Any, gradients: Any, how: str, xp: Any = np) -> Any:
    """`(..., heads, queries, keys)` without its heads: see `record`."""
    if how == "relevance":
        return xp.mean(xp.maximum(attention * gradients, 0), axis=-3)
    if how == "gradient":
        return xp.maximum(xp.mean(attention * gradients, axis=-3), 0)
    return getattr(xp, how)(attention, axis=-3)


def _float(tensor: Any) -> Any:
    return ops.cast(tensor, "float32")


def _check(seen: dict[str, Any], classes: np.ndarray | None, plan: _Plan) -> None:
    if classes is not None and classes.max() >= seen["logits"].shape[-1]:
        raise ValueError(
            f"The model has the classes 0 to {seen['logits'].shape[-1] - 1}. Received the target {classes.max()}."
        )
    slopes = (
        "attention"
        if plan.heads in _WITH_GRADIENTS
        else "gradients"
        if "attention" in plan.keep
        else "normed_gradients"
    )
    if plan.target is not None and slopes in seen and not seen[slopes].any():
        warnings.warn(
            "All gradients are zero, as of a model whose head has not been trained: a map of them will be blank.",
            UserWarning,
            stacklevel=4,
        )


# --- gradients of each backend: of `forward(watch)`, which gives a score, what was watched and what was seen ----


def _tensorflow_gradients(forward: Callable) -> tuple:
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def watch(name, tensor):
            tape.watch(tensor)
            return tensor

        score, watched, seen = forward(watch)
    return tape.gradient(score, watched, unconnected_gradients=tf.UnconnectedGradients.ZERO), watched, seen


def _jax_gradients(forward: Callable) -> tuple:
    import jax
    import jax.numpy as jnp

    # The gradient with respect to what is inside of a model is that with respect to a zero which is added there.
    shapes: dict[str, list] = {}
    jax.eval_shape(lambda: forward(lambda name, t: shapes.setdefault(name, []).append((t.shape, t.dtype)) or t)[0])
    zeros = {name: [jnp.zeros(*shape) for shape in shapes[name]] for name in shapes}

    def perturbed(zeros):
        remaining = {name: iter(zeros[name]) for name in zeros}
        score, *seen = forward(lambda name, tensor: tensor + next(remaining[name]))
        return score, seen

    gradients, (watched, seen) = jax.grad(perturbed, has_aux=True)(zeros)
    return gradients, watched, seen


def _pytorch_gradients(forward: Callable) -> tuple:
    import torch

    score, watched, seen = forward(lambda name, t: t if t.requires_grad else t.detach().requires_grad_())
    tensors = [t for name in watched for t in watched[name]]
    gradients = iter(torch.autograd.grad(score, tensors, allow_unused=True))
    gradients = {n: [torch.zeros_like(t) if g is None else g for t, g in zip(watched[n], gradients)] for n in watched}
    return gradients, watched, seen


_GRADIENTS = {"tensorflow": _tensorflow_gradients, "jax": _jax_gradients, "torch": _pytorch_gradients}


def torch_gradients(wanted: bool) -> contextlib.AbstractContextManager:
    """Whether PyTorch keeps what gradients need; nothing on other backends."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.set_grad_enabled(wanted)


def last_layer(model: keras.Model) -> Any:
    """The layer that gives a model's output, however deep it is nested; `None` where that cannot be told."""
    layer: Any = model
    while isinstance(layer, keras.Model):
        outputs = getattr(layer, "outputs", None)
        one = outputs is not None and len(outputs) == 1 and not isinstance(layer, keras.Sequential)
        layer = outputs[0]._keras_history.operation if one else layer.layers[-1] if layer.layers else None
    return layer


@contextlib.contextmanager
def _linear_head(model: keras.Model) -> Iterator[None]:
    """Leave out a softmax or sigmoid at the end of a model: gradients of a logit tell more than those of a probability."""
    layer = last_layer(model)
    activation = getattr(layer, "activation", None)
    if activation not in (keras.activations.softmax, keras.activations.sigmoid):
        yield
        return
    layer.activation = keras.activations.linear
    try:
        yield
    finally:
        layer.activation = activation


# --- what a model tells of its tokens ---------------------------------------------------------------------------


def blocks_of(vit: keras.Model) -> list[TransformerBlock]:
    """The transformer blocks of a model, in order.

    Raises:
        ValueError: There are none, as in an MLP-Mixer.
    """
    blocks = [layer for layer in vit._flatten_layers() if isinstance(layer, TransformerBlock)]
    if not blocks:
        raise ValueError(f"The model {vit.name!r} has no attention layer of vit_keras in it.")
    return blocks


def prefix_names(vit: keras.Model) -> tuple[str, ...]:
    """Names of the tokens before the patches."""
    layers = list(vit._flatten_layers())
    single = ["dist" if "dist" in layer.name else "cls" for layer in layers if isinstance(layer, ClassToken)]
    registers = sum(layer.count for layer in layers if isinstance(layer, RegisterTokens))
    return (*sorted(single), *(f"reg{n}" for n in range(registers)))  # the class token comes before the other


def readers(vit: keras.Model) -> list[slice]:
    """The tokens of the last block that the output is read from: the mean of their means."""
    layers = list(vit._flatten_layers())
    single = [slice(layer.index, layer.index + 1) for layer in layers if isinstance(layer, ExtractToken)]
    means = [slice(layer.prefix_tokens, None) for layer in layers if isinstance(layer, MeanToken)]
    prefix = prefix_names(vit)
    return single + means or [slice(0, 1) if "cls" in prefix else slice(len(prefix), None)]


def _readout_rows(attention: Any, vit: keras.Model) -> Any:
    rows = [ops.mean(attention[..., reader, :], axis=-2) for reader in readers(vit)]
    return sum(rows) / len(rows)


def _readout(vit: keras.Model, tokens: int, pooling_attention: np.ndarray | None, count: int) -> np.ndarray:
    if pooling_attention is not None:
        return pooling_attention.mean(axis=1)
    read = readers(vit)
    row = np.zeros(tokens, "float32")
    for reader in read:
        row[reader] += 1 / len(read) / len(row[reader])
    return np.tile(row, (count, 1))


def _projection(block: TransformerBlock) -> np.ndarray:
    att = block.att
    kernel = ops.convert_to_numpy(att.combine_heads.kernel).astype("float32")
    if block.layer_scale is not None:
        kernel = kernel * ops.convert_to_numpy(block.layerscale1.gamma).astype("float32")
    return kernel.reshape(att.num_heads, att.projection_dim, -1)


def _patch_size(vit: keras.Model, size: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
    config = getattr(vit, "config", None)
    return tuple(n // cells for n, cells in zip(size, grid)) if config is None else config.stride


# --- pictures ---------------------------------------------------------------------------------------------------


def read_pictures(images: Any, channels: int) -> list[np.ndarray]:
    """One or many pictures as float arrays `(height, width, channels)` of pixels in [0, 255].

    Raises:
        ValueError: An array is no image, or not of these channels; or there is none.
    """
    if is_list_of_pictures(images):
        if not images:
            raise ValueError("There are no images.")
        return [picture for image in images for picture in read_pictures(image, channels)]
    image = images if isinstance(images, np.ndarray) else read_picture(images)
    if image.ndim == 2:
        image = image[..., None]
    if image.ndim not in (3, 4) or 0 in image.shape:
        raise ValueError(
            f"An image has the shape (height, width[, channels]), a batch one more axis. Received: {image.shape}"
        )
    pixels = utils.to_pixels(image)
    if image.shape[-1] == 1 and channels == 3:
        pixels = np.repeat(pixels, 3, axis=-1)
    elif image.shape[-1] == 3 and channels == 1:
        pixels = utils.grey(pixels)
    elif image.shape[-1] != channels:
        raise ValueError(f"The model takes images of {channels} channels. Received: {image.shape[-1]} channels")
    return list(pixels) if image.ndim == 4 else [pixels]


def is_list_of_pictures(images: Any) -> bool:
    """Whether this is a list of pictures, and not a picture as a list of its rows."""
    return isinstance(images, (list, tuple)) and not (images and isinstance(images[0], (list, tuple, int, float)))


def read_picture(image: Any) -> np.ndarray:
    """One picture, or a batch as a tensor, as an array."""
    if hasattr(image, "__array__") and not hasattr(image, "convert"):  # a tensor
        return ops.convert_to_numpy(image)
    return utils.read(image, None)


def input_shape(model: keras.Model) -> tuple:
    """`(batch, height, width, channels)` of what a model takes, or of what the ViT inside takes where it does not tell."""
    return tuple(getattr(model, "input_shape", None) or find_vit(model).input_shape)


def model_inputs(
    model: keras.Model, pictures: Sequence[np.ndarray], preprocess: Callable | str | None
) -> tuple[np.ndarray, tuple[int, int]]:
    """What a model takes, of pictures in [0, 255], and the size that its ViT sees them in."""
    shape = input_shape(model)
    size = tuple(given or wanted for given, wanted in zip(shape[1:3], pictures[0].shape[:2]))
    interpolation = getattr(find_vit(model), "preprocessing", GOOGLE).interpolation
    inputs = np.stack([utils.resize(p, size, interpolation) for p in pictures])
    inside = [layer for layer in model._flatten_layers() if isinstance(layer, _PREPROCESSING)]
    if preprocess == "own":
        preprocess = None if inside else _normalisation(find_vit(model), shape[-1])
    elif isinstance(preprocess, str):
        raise ValueError(f"preprocess is 'own', None or a function of pixels. Received: {preprocess!r}")
    inputs = inputs if preprocess is None else np.asarray(preprocess(inputs))
    resized = (layer.preprocessing.image_size for layer in inside if isinstance(layer, Preprocess))
    return inputs.astype("float32"), next((s for s in resized if s), size)


_PREPROCESSING = (Preprocess, keras.layers.Rescaling, keras.layers.Normalization)


def _normalisation(vit: keras.Model, channels: int) -> Callable:
    own = getattr(vit, "preprocessing", GOOGLE)
    return own.normalise if own.channels == channels else preprocess_inputs


def displayable(pixels: np.ndarray) -> np.ndarray:
    """Pixels in [0, 255] of any channels as a uint8 picture in RGB."""
    if pixels.shape[-1] != 3:
        pixels = np.repeat(pixels.mean(axis=-1, keepdims=True), 3, axis=-1)
    return np.clip(np.rint(pixels), 0, 255).astype("uint8")

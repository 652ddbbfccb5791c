"""Questions that numbers answer: a dry run of a model as it is, eagerly, while hooks show or replace what passes.

The encoder blocks return their tokens unchanged, so that it takes milliseconds. It needs no graph: functional models,
subclasses, wrappers, several inputs and outputs are one case. It runs in a thread of its own, in which no function is
traced or compiled.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from .._internal.tap import hooked
from ..backend import changes
from ..backend.keras_internals import flat_layers, input_structure, kept, no_gradients
from ..layers import AttentionPooling
from ..preprocess.layer import Preprocess
from .around import around, backbone, mixes, own_variables
from .parts import blocks, checked, find_vit, has_attention, has_vit, input_shape, learner, prefix_names

Hook = Callable[[keras.layers.Layer, tuple[Any, ...], Callable[..., Any]], Any]


class Enough(BaseException):
    """Ends a dry run when its question is answered; Keras would rewrite the message of an `Exception`."""


def asked(question: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a question about a model: its answer is kept with the model until a layer around the blocks changes."""

    @functools.wraps(question)
    def ask(model: keras.Model) -> Any:
        answers = kept(checked(model), "answers", dict)
        before, answer = answers.get(question.__name__, ((), None))
        if not changes.is_same(before, _state(model)):
            try:
                with concurrent.futures.ThreadPoolExecutor(1) as thread:  # what is traced is a matter of the thread
                    answer = thread.submit(question, learner(model)).result()
            except (TypeError, ValueError):
                raise
            except Exception as error:  # each backend's own
                reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                does = f"Cannot tell what the model {learner(model).name!r} does. On gray images it fails: {reason}"
                raise ValueError(does) from error
            answers[question.__name__] = (_state(model), answer)  # the first call may have built layers
        return answer

    return ask


def _state(model: keras.Model) -> list[Any]:
    """Return what an answer depends on: the layers, and what a user has set of models."""
    models = [each for each in flat_layers(model) if isinstance(each, keras.Model)]
    own = [x for each in models for name, x in vars(each).items() if name[0] != "_" and name not in _OF_TRAINING]
    return changes.watch(model)[0] + own


_OF_TRAINING = {"optimizer", "loss", "history", "train_function", "test_function", "predict_function"}


def dry_run(model: keras.Model, inputs: Any, watched: Iterable[Any], hook: Hook) -> Any:
    """Return a model's outputs, a list of several, where blocks return their tokens; `None` if the hook ended it.

    `hook(layer, args, call)` returns what a watched layer or operation returns.
    """
    watched, inside = set(watched), set(blocks(model))

    def each(layer, call, args, kwargs):
        def own(*new):
            if layer not in inside:
                return call(*(new or args), **kwargs)
            tokens = (new or args)[0]
            merges = getattr(layer, "merge_tokens", 0) or kwargs.get("sizes") is not None
            return (tokens, keras.ops.ones_like(tokens[..., :1])) if merges else tokens

        return hook(layer, args, own) if layer in watched else own()

    with contextlib.suppress(Enough), no_gradients(), hooked([*inside | watched], each):
        outputs = keras.tree.flatten(model(inputs, training=False))
        return outputs[0] if len(outputs) == 1 else outputs


def images(model: keras.Model, values: Any) -> Any:
    """Return inputs of a model with one constant image for each value; what is not an image is 1 everywhere."""
    values, vit = np.asarray(values, "float32"), find_vit(model) if has_vit(model) else None
    stride = getattr(getattr(vit, "config", None), "stride", (16, 16))
    channels = 3 if vit is None else input_shape(vit)[-1]
    sizes = [-(-64 // stride[0]) * stride[0], -(-64 // stride[1]) * stride[1], channels]  # of images of any size
    built = next((m for m in flat_layers(model) if getattr(m, "inputs", None)), None)
    if built is None:
        raise ValueError(f"The model {model.name!r} is not built: nothing tells what it takes. Call it once.")
    known = built.inputs
    of_vit = [x for x in known if len(x.shape) > 3 and x.shape[-1] in (None, channels)]
    of_images = {id(x) for x in of_vit or known if len(x.shape) > 3 or not known[1:]}  # one input may be a flat image

    def filled(x):
        given = x.shape[1:]
        shape = [n or m for n, m in zip(given, [*[1] * len(given), *sizes][-len(given) :])]
        each = values if id(x) in of_images else np.ones(len(values))
        each = each.reshape(-1, *[1] * len(shape)).astype(keras.backend.standardize_dtype(x.dtype))
        return np.broadcast_to(each, (len(values), *shape)).copy()

    return keras.tree.map_structure(filled, input_structure(built) if built is model else known[0])


def either(model: keras.Model, rows: int, answer: Callable[[Any], Any]) -> Any:
    """Return an answer for one image or, where another input must have as many rows, for several."""
    with contextlib.suppress(Exception):  # each backend's own, of shapes that do not go together
        return answer(images(model, [0.0]))
    return answer(images(model, [0.0] * rows))


def reaching(model: keras.Model, batch: Any, zeros: Iterable[keras.layers.Layer] = ()) -> np.ndarray:
    """Return what reaches the ViT of a batch, the input of its first layer that learns, where others return zeros."""
    result: list[np.ndarray] = []
    zeros = set(zeros)

    def stop(layer, args, call):
        if layer in zeros:
            return keras.tree.map_structure(keras.ops.zeros_like, call())
        result.append(keras.ops.convert_to_numpy(keras.ops.cast(args[0], "float32")))
        raise Enough

    dry_run(model, batch, [*_learning(model), *zeros], stop)
    if not result:
        raise ValueError(f"The Vision Transformer in the model {model.name!r} gets no images when the model is called.")
    return result[0]


def _learning(model: keras.Model) -> list[keras.layers.Layer]:
    return [x for x in backbone(model) if own_variables(x, learned=True) and not isinstance(x, keras.Model)]


@asked
def input_range(model: keras.Model) -> str:
    """Return the range of the pixels that a model takes, from what its ViT sees of -1, 0, 1 and 255 at the median."""
    batch = images(model, [-1.0, 0.0, 1.0, 255.0])
    if any("int" in each.dtype.name for each in keras.tree.flatten(batch)):
        return "pixels"
    seen = reaching(model, batch)
    if makes_features(model, batch, seen):
        return "normalized"
    seen = seen.reshape(4, -1)  # `TimeDistributed` makes images of frames
    moving = np.ptp(seen, axis=0) > 0  # unlike padding
    below, black, one, white = np.median(seen[:, moving] if moving.any() else seen, axis=1)
    if all(0.5 < abs(step) < 2 for step in (black - below, one - black)):
        return "normalized"  # -1, 0 and 1 arrive as such
    if abs(one - black) > 0.5:
        return "unit"
    return "pixels" if 0.5 < abs(white - black) < 10 else "normalized"


def makes_features(model: keras.Model, batch: Any, seen: np.ndarray) -> bool:
    """Return whether what reaches the ViT of a batch depends on kernels before it: features, of any range."""
    learned = [layer for layer in around(model) if mixes(layer)]
    return bool(learned) and not np.array_equal(seen, reaching(model, batch, learned))


RESIZING = (Preprocess, keras.layers.Resizing, keras.layers.CenterCrop, keras.layers.RandomCrop)


def called(model: keras.Model, inputs: Any, watched: Iterable[Any], until: Iterable[Any] = ()) -> tuple[list[Any], Any]:
    """Return the layers that a model calls, in order, until one that ends the run, and the outputs."""
    found: list[Any] = []

    def note(layer, args, call):
        if layer in ends:
            raise Enough
        found.append(layer)
        return call()

    ends = set(until)
    outputs = dry_run(model, inputs, [*watched, *ends], note)
    return found, outputs


@asked
def resizing(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the layers that resize images before they reach the ViT of a model, in the order in which they run."""
    watched = [layer for layer in flat_layers(model) if isinstance(layer, RESIZING)]
    return called(model, images(model, [0.0]), watched, _learning(model))[0] if watched else []


@asked
def runs(model: keras.Model) -> int:
    """Return how many times a model runs its ViT for a batch of images: 2 if it is siamese."""
    return len(called(model, images(model, [0.0]), blocks(find_vit(model))[:1])[0]) or 1


# --- what comes out -----------------------------------------------------------------------------------------------

_SIZES = (*[1] * 4, *[10] * 4, *[100] * 4, 0, 0)
_LEVELS = (*[0] * 12, 3, -3)


@dataclasses.dataclass
class Ending:
    """The end of a model: the last layers with a kernel that its output comes from, and what becomes of theirs."""

    kind: str | None = None  # "logits", "probabilities", "features" (there is no head), or anything else
    heads: list[keras.layers.Layer] = dataclasses.field(default_factory=list)  # in the order in which they run
    behind: list[keras.layers.Layer] = dataclasses.field(default_factory=list)  # others with weights, such as a norm
    alone: bool = False  # whether each probability is one of its own, of a sigmoid: they may sum to more than 1
    outputs: int = 1  # how many outputs the model has; only of one, there is a kind
    width: int = 0  # the last dimension of the first output


@asked
def ending(model: keras.Model) -> Ending:
    """Return the end of a model with one output, found by numbers in place of what its last layers return."""
    return either(model, len(_SIZES), functools.partial(_ending, model))


def _ending(model: keras.Model, inputs: Any) -> Ending:
    known = has_vit(model)
    inside = blocks(find_vit(model)) if known else []
    layers = around(model) if known else [layer for layer in flat_layers(model) if own_variables(layer)]
    layers = [layer for layer in layers if layer.name != "pre_logits"]
    ran, outputs = called(model, inputs, [*layers, *inside])
    outputs = keras.tree.flatten(outputs)
    found = Ending("features" if known else None, outputs=len(outputs), width=outputs[0].shape[-1])
    if found.outputs > 1:
        return dataclasses.replace(found, kind=None)
    ran = list(dict.fromkeys(reversed(ran)))[::-1]  # the last call of each
    after = ran[max((n for n, layer in enumerate(ran) if layer in inside), default=-1) + 1 :]
    for layer in filter(mixes, reversed(after)):
        (y, taken), (other, others) = (_replaced(model, inputs, [layer], found.heads, seed) for seed in (0, 1))
        if np.allclose(y, other, atol=1e-6) or not all(map(np.allclose, taken, others)):
            continue  # the output does not depend on it, or through another head
        found.behind = found.behind or after[after.index(layer) + 1 :]
        found.heads.insert(0, layer)
        if not known:
            break  # what is before it may be a deep network
    found.behind = [layer for layer in found.behind if layer not in found.heads]
    if found.heads:  # all at once: a gate alone, behind its experts, would hide that they are logits
        y, _ = _replaced(model, inputs, found.heads, [], 0)
        found.kind, found.alone = _kind(y), found.width == 1 or bool((y[12].sum(axis=-1) > 1.01).any())
    return found


def _replaced(model, inputs, replaced, heads, seed, left_out=None):
    """Return a model's output if some layers return random numbers, and what other layers take then.

    An operation that is left out returns what it takes; a layer with an `activation` computes without it.
    """
    taken: list[np.ndarray] = []
    random = np.random.default_rng(seed)

    def numbers(like):
        rows, *shape = keras.ops.shape(like)
        rows = len(_SIZES) if rows == 1 else rows
        size, level = (np.resize(each, rows).reshape(-1, *[1] * len(shape)) for each in (_SIZES, _LEVELS))
        z = random.normal(size=(rows, *shape)) * size + level
        return keras.ops.cast(keras.ops.convert_to_tensor(z.astype("float32")), like.dtype)

    def replace(layer, args, call):
        if layer in heads:
            taken.append(_float(args[0]))
            return call()
        if layer not in replaced:
            return args[0]
        if not isinstance(layer, _WITH_ACTIVATION):  # numbers go in, not out
            return call(numbers(args[0]), *args[1:])
        z = numbers(call())
        return z if layer.activation is None or layer is left_out else layer.activation(z)

    watched = [*replaced, *heads, *([] if left_out is None else [left_out])]
    return _float(dry_run(model, inputs, watched, replace)), taken


@asked
def activation(model: keras.Model) -> Any:
    """Return the layer or operation without which the probabilities of a model are logits; `None` if there is none.

    It is a head whose `activation` makes them, or what comes behind the head.
    """
    end = ending(model)
    if end.kind != "probabilities" or len(end.heads) != 1:
        return None
    (head,) = end.heads
    inside = {layer for each in (*blocks(model), head) for layer in flat_layers(each)}
    found = [x for each in flat_layers(model) for x in getattr(each, "operations", [each])]
    found = [x for x in dict.fromkeys(found) if x not in inside and not getattr(x, "weights", ())]
    for x in [head, *(x for x in reversed(found) if not isinstance(x, (keras.Model, keras.layers.InputLayer)))]:
        with contextlib.suppress(Exception):  # of what cannot be left out
            y, _ = either(model, len(_SIZES), lambda inputs, x=x: _replaced(model, inputs, [head], [], 0, x))
            if _kind(y) == "logits":
                return x
    return None


_WITH_ACTIVATION = (keras.layers.Dense, keras.layers.EinsumDense, *keras.layers.Conv2D.__bases__)


def _float(tensor: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32")), "float64")


def _kind(y: np.ndarray) -> str | None:
    """Return what outputs are for numbers of three sizes: what stays in [0, 1], or grows on both sides of 0."""
    y = y[:12]
    if not np.isfinite(y).all():
        return None
    if (y > -1e-3).all() and (y < 1 + 1e-3).all():
        return "probabilities"
    # A cosine does not grow, and leaves [-1, 1] by its scale. A smooth ReLU stays near 0 where it is negative.
    below = np.maximum(-y, 0)
    grows = below[8:].max() > 4 * below[4:8].max() or below.max() > 2
    columns = y.reshape(-1, y.shape[-1])
    mixed = ((columns >= 0) & (columns <= 1)).all(axis=0) & (np.ptp(columns, axis=0) > 0)
    return "logits" if grows and not mixed.any() else None


# --- what is read of the tokens -----------------------------------------------------------------------------------


@asked
def shares(model: keras.Model) -> np.ndarray:
    """Return the share of each token of the last block in what the head takes, `(tokens,)`; zeros if it takes none."""
    # All tokens are one vector, but for one token in each row: how far the head's input moves is that token's share.
    last = blocks(find_vit(model))[-1]
    heads = [layer for layer in around(model) if mixes(layer)]
    plain, other = np.random.default_rng(0).normal(size=(2, 1 << 14)).astype("float32")
    count = 1

    def vectors(places, inputs):
        """Return what heads take, `(rows, numbers)`, where a token of each row differs; at place -1, none."""
        result: list[Any] = []
        ran: list[Any] = []

        def hook(layer, args, call):
            nonlocal count
            if layer is last:
                _, count, width = args[0].shape
                tokens = np.broadcast_to(plain[:width], (len(places), count, width)).copy()
                for row, place in enumerate(places if not ran else ()):  # a siamese model runs the ViT again
                    if place >= 0:
                        tokens[row, place] = other[:width]
                ran.append(layer)
                return call(keras.ops.cast(keras.ops.convert_to_tensor(tokens), args[0].dtype))
            if len(args[0].shape) != 2:
                return call()
            result.append(args[0])
            return keras.ops.zeros_like(call())  # what is behind it does not count

        y = dry_run(model, inputs, [last, *heads], hook)
        found = [x for x in result or keras.tree.flatten(y) if len(x.shape) != 3]  # tokens are not read
        found = [_float(x).reshape(len(x), -1) for x in found if len(x) == len(places)]
        return np.concatenate([np.zeros((len(places), 1)), *found], axis=-1)

    def moved(places):
        return np.linalg.norm(either(model, len(places), functools.partial(vectors, places))[1:] - nothing, axis=1)

    nothing = either(model, 2, functools.partial(vectors, [-1, -1]))[:1]
    found = np.concatenate([moved([-1, *range(n, min(n + 32, count))]) for n in range(0, count, 32)])
    found[found <= 1e-4 * found.max()] = 0
    return found / found.sum() if found.any() else found


def readout(model: keras.Model, tokens: int | None = None) -> np.ndarray:
    """Return how much each token of the last block counts in what the head takes, float32 `(tokens,)`; they sum to 1.

    For another number of `tokens` than images of one size make, the patches share what they have there.
    """
    names, found = prefix_names(find_vit(model)), shares(model)
    prefix = len(names)
    if not found.any():  # nothing makes a vector of the tokens
        found = np.arange(len(found)) == 0 if "cls" in names else np.arange(len(found)) >= prefix
    if found.dtype == bool or any(isinstance(layer, AttentionPooling) for layer in flat_layers(model)):
        found = (found > 0) / np.count_nonzero(found)  # an image says how much of each
    if tokens not in (None, len(found)):
        patches = tokens - prefix
        found = np.concatenate([found[:prefix], np.full(patches, found[prefix:].sum() / max(1, patches))])
    return found.astype("float32")


def shows_attention(model: Any) -> bool:
    """Return whether a model has attention to show for an image: one ViT, with attention, that runs once."""
    return has_attention(model) and runs(model) == 1

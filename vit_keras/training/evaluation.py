"""How good a classifier is on labelled pictures: accuracy, classes, confusions, mistakes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from PIL import Image

from .. import layers, utils, visualize
from ..labels import class_names
from ..pretrained import open_model
from ..visualize.record import blocks_of, class_named
from .data import ImageFolder, image_folder

_MAP_SIDE = 384  # longest side, in pixels, of the pictures that maps are drawn over
_MAP_BATCH = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """What a classifier said of labelled pictures, and the measures that follow from it.

    Attributes:
        class_names: Names of the classes, in the order of the outputs.
        paths: The pictures, relative to their folder.
        labels: int array `(n,)`, the true class of each.
        probabilities: float array `(n, classes)`.

    Example:
        >>> said = Evaluation(("cat", "dog"), ("1.jpg", "2.jpg"), np.array([0, 1]), np.array([[0.9, 0.1], [0.6, 0.4]]))
        >>> said.accuracy, said.confusion.tolist(), said.mistakes().tolist()
        (0.5, [[1, 0], [1, 0]], [1])
    """

    class_names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: np.ndarray
    probabilities: np.ndarray

    @functools.cached_property
    def predictions(self) -> np.ndarray:
        """The most probable class of each picture."""
        return self.probabilities.argmax(axis=-1)

    @functools.cached_property
    def confusion(self) -> np.ndarray:
        """Pictures by true class (rows) and predicted class (columns)."""
        counts = np.zeros((len(self.class_names),) * 2, int)
        np.add.at(counts, (self.labels, self.predictions), 1)
        return counts

    @property
    def accuracy(self) -> float:
        """Share of the pictures whose most probable class is the true one."""
        return float(np.mean(self.predictions == self.labels))

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy on very many such pictures lies, at 95 % (Wilson's interval)."""
        z, n, p = 1.96, len(self.labels), self.accuracy
        centre, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)

    @property
    def loss(self) -> float:
        """Mean cross-entropy, in nats."""
        return float(-np.log(np.maximum(self.of_true_class, 1e-7)).mean())

    @property
    def of_true_class(self) -> np.ndarray:
        """The probability that each picture's true class was given."""
        return self.probabilities[np.arange(len(self.labels)), self.labels]

    @property
    def commonest(self) -> float:
        """The accuracy of always saying the commonest class: what a model has to beat."""
        return float(np.bincount(self.labels).max() / len(self.labels))

    @property
    def per_class(self) -> tuple[dict[str, Any], ...]:
        """`name`, `pictures`, `precision`, `recall` and `f1` of each class; `None` where there is nothing to divide by."""
        right, true, said = np.diag(self.confusion), self.confusion.sum(axis=1), self.confusion.sum(axis=0)

        def share(part, whole):
            return float(part / whole) if whole else None

        return tuple(
            {
                "name": name,
                "pictures": int(true[k]),
                "precision": share(right[k], said[k]),
                "recall": share(right[k], true[k]),
                "f1": share(2 * right[k], true[k] + said[k]),
            }
            for k, name in enumerate(self.class_names)
        )

    @property
    def macro_f1(self) -> float:
        """Mean of F1 over the classes that there are pictures of: small classes count as much as large ones."""
        return float(np.mean([scores["f1"] for scores in self.per_class if scores["pictures"]]))

    def mistakes(self) -> np.ndarray:
        """Numbers of the pictures that were taken for something else, the worst (least of the true class) first."""
        wrong = np.flatnonzero(self.predictions != self.labels)
        return wrong[np.argsort(self.of_true_class[wrong], kind="stable")]

    def confused(self) -> list[tuple[str, str, int]]:
        """True class, what it was taken for, and how often; the most frequent first."""
        counts = self.confusion * (1 - np.eye(len(self.class_names), dtype=int))
        order = np.argsort(-counts, axis=None, kind="stable")[: np.count_nonzero(counts)]
        pairs = zip(*np.unravel_index(order, counts.shape))
        return [(self.class_names[i], self.class_names[j], int(counts[i, j])) for i, j in pairs]

    def to_dict(self) -> dict[str, Any]:
        """The measures, as plain JSON."""
        return {
            "pictures": len(self.labels),
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "loss": self.loss,
            "macro_f1": self.macro_f1,
            "classes": list(self.per_class),
            "confusion": self.confusion.tolist(),
        }


def evaluate(
    model: keras.Model | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    only: str | os.PathLike[str] | Iterable[str] | None = None,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 32,
    errors: str = "skip",
    progress: bool = True,
) -> Evaluation:
    """Measure a classifier on a folder of pictures, one subfolder for each class.

    Args:
        model: A model, or the path of a saved one. Where it knows the names of its classes, those of the folders are looked for among
            them (one of several between commas will do: `tabby` for `tabby, tabby cat`); else the folders are its
            classes, in their order.
        folder: The pictures, `folder/class/picture.jpg`.
        only: Which pictures, relative to the folder: their names, or the path of the `split.json` that `finetune` wrote, of which
            those that were held out. `None`: all.
        image_size: Pixels, for a model that takes any size.
        batch_size: Pictures that the model sees at once.
        errors: `"skip"` to leave out damaged pictures with a warning, `"raise"` to refuse them.
        progress: Whether to show a bar.

    Returns:
        An `Evaluation`.

    Raises:
        FileNotFoundError: There is no such model, folder or picture.
        ValueError: A folder is no class of the model, or a picture is damaged.

    Example:
        >>> evaluate("finetuned/model.keras", "flowers", only="finetuned/split.json").accuracy  # doctest: +SKIP
        0.91
    """
    model = model if isinstance(model, keras.Model) else open_model(model)
    if len(model.outputs) != 1 or len(model.output_shape) != 2:
        raise ValueError(f"{model.name} is no classifier: its output has the shape {model.output_shape}.")
    data = image_folder(folder, image_size, model=model, shuffle=False, errors=errors, progress=progress)
    names, numbers = _match(model, data.class_names)
    chosen = None if only is None else _chosen(_relative(data, folder), only)
    found = judge(model, data, folder, chosen, batch_size=batch_size, progress=progress)
    return dataclasses.replace(found, class_names=names, labels=numbers[found.labels])


def _match(model: keras.Model, folders: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the model's classes, and the number of each folder's class."""
    names, outputs = class_names(model), model.output_shape[-1]
    if names is not None:
        return names, np.array([class_named(name, names) for name in folders])
    if outputs != len(folders):
        raise ValueError(f"{model.name} has {outputs} classes without names, and there are {len(folders)} folders.")
    return tuple(folders), np.arange(outputs)


def _relative(data: ImageFolder, folder: str | os.PathLike[str]) -> tuple[str, ...]:
    root = Path(folder).expanduser()
    return tuple(path.relative_to(root).as_posix() for path in data.paths)


def _chosen(paths: Sequence[str], only: Any) -> np.ndarray:
    """Numbers of the pictures that `only` names."""
    if isinstance(only, (str, os.PathLike)):
        only = json.loads(Path(only).expanduser().read_text(encoding="utf-8"))["validation"]
    place = {path: number for number, path in enumerate(paths)}
    missing = [path for path in only if path not in place]
    if missing:
        raise FileNotFoundError(f"{len(missing):,} of the pictures to evaluate are not there, {missing[0]} for one.")
    return np.array([place[path] for path in only], int)


def judge(
    model: keras.Model,
    data: ImageFolder,
    folder: str | os.PathLike[str],
    chosen: np.ndarray | None = None,
    *,
    batch_size: int = 32,
    progress: bool = False,
) -> Evaluation:
    """What a model says of the pictures of a dataset, not augmented; its outputs are the dataset's classes.

    Args:
        model: A classifier, of logits or probabilities.
        data: The pictures.
        folder: Where they are.
        chosen: Numbers of pictures; `None`: all.
        batch_size: Pictures that the model sees at once.
        progress: Whether to show a bar.

    Returns:
        An `Evaluation`.
    """
    chosen = np.arange(len(data.paths)) if chosen is None else chosen
    bar = keras.utils.Progbar(len(chosen), unit_name="picture") if progress else None
    outputs = []
    for first in range(0, len(chosen), batch_size):
        numbers = chosen[first : first + batch_size]
        pixels = np.stack([data.pixels(number) for number in numbers])
        outputs.append(np.asarray(model.predict_on_batch(data.preprocessing.normalise(pixels)), "float32"))
        if bar is not None:
            bar.update(first + len(numbers))
    paths = _relative(data, folder)
    return Evaluation(
        data.class_names,
        tuple(paths[number] for number in chosen),
        data.labels[chosen],
        _probabilities(np.concatenate(outputs)),
    )


def _probabilities(outputs: np.ndarray) -> np.ndarray:
    """Of logits their softmax; what sums to 1 already stays."""
    if (outputs >= 0).all() and np.allclose(outputs.sum(axis=-1), 1, atol=1e-2):  # half precision sums to that
        return outputs
    powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def pictures_of_mistakes(
    model: keras.Model, evaluation: Evaluation, folder: str | os.PathLike[str], count: int = 24
) -> dict[int, tuple[np.ndarray, np.ndarray | None]]:
    """The pictures of the worst mistakes, and over each what spoke for the predicted class, where the model is a ViT.

    Args:
        model: What made the mistakes.
        evaluation: The mistakes.
        folder: Where the pictures are.
        count: How many at most.

    Returns:
        By the number of the picture, worst first: uint8 pixels, and the same with the relevance of the predicted class or `None`.
    """
    chosen = [int(number) for number in evaluation.mistakes()[:count]]
    pictures = [_small(Path(folder).expanduser() / evaluation.paths[number]) for number in chosen]
    overlays: list[np.ndarray | None] = [None] * len(pictures)
    if _has_attention(model):
        overlays = []
        for first in range(0, len(pictures), _MAP_BATCH):
            overlays.extend(visualize.attention_map(model, pictures[first : first + _MAP_BATCH], method="relevance"))
    return dict(zip(chosen, zip(pictures, overlays)))


def _has_attention(model: keras.Model) -> bool:
    with contextlib.suppress(ValueError):
        return bool(blocks_of(layers.find_vit(model)))
    return False


def _small(path: Path) -> np.ndarray:
    picture = Image.fromarray(utils.read(path, None))
    picture.thumbnail((_MAP_SIDE, _MAP_SIDE), Image.Resampling.LANCZOS)
    return np.asarray(picture)

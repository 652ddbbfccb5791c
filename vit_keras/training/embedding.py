"""What a frozen model sees, computed once: embeddings, a cache of them, a linear probe and nearest neighbours.

>>> from vit_keras.training.embedding import embed, features, linear_probe
>>> embed(model, "photos", output="photos.parquet")  # doctest: +SKIP
>>> seen = features(model, folder)  # computed once, then read from the disk  # doctest: +SKIP
>>> linear_probe(seen, folder.labels).apply_to(model)  # doctest: +SKIP
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from .. import __version__
from ..atomic import complete
from ..checkpoints.download import home
from ..config import size_pair
from ..layers import MixerBlock, TransformerBlock, find_vit
from ..preprocess import GOOGLE
from ..visualize.record import torch_gradients
from ..vit import VisionTransformer
from .checks import check_range
from .data import pictures_in, report_damaged

# --- embeddings -------------------------------------------------------------------------------------------------


class _Batch(NamedTuple):
    """Some pictures, or what became of them: one row each."""

    images: Any
    paths: Sequence[str] | None = None
    labels: Any = None


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


def heads(vit: keras.Model) -> list[keras.layers.Dense]:
    """The layers of a ViT that turn features into classes: one, DeiT's two, or none.

    Example:
        >>> from vit_keras import vit
        >>> [layer.name for layer in heads(vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10))]
        ['head']
    """
    dense = [layer for layer in vit.layers if isinstance(layer, keras.layers.Dense) and layer.name != "pre_logits"]
    return [layer for layer in dense if layer.name in ("head", "head_dist")] or dense[-1:]


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
        blocks = [each for each in vit.layers if isinstance(each, (TransformerBlock, MixerBlock))]
        norms = [each for each in vit.layers if each.name == "Transformer_encoder_norm"]
        return (norms or blocks)[-1].output
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


def _batches(images: Any, batch_size: int) -> tuple[Iterator[_Batch], int | None]:
    """The pictures in batches, and how many they are, where that is known."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"batch_size is a positive integer. Received: {batch_size!r}")
    if hasattr(images, "paths") and hasattr(images, "labels"):
        paths, labels = [str(path) for path in images.paths], np.asarray(images.labels)
        return _slices(paths, batch_size, paths, labels), len(paths)
    if isinstance(images, (str, os.PathLike)):
        paths, labels = _files(images)
        return _slices(paths, batch_size, paths, labels), len(paths)
    if isinstance(images, tuple) and images and len(getattr(images[0], "shape", ())) == 4:
        labels = images[1] if len(images) > 1 else None
        return _slices(images[0], batch_size, labels=labels), len(images[0])
    if len(getattr(images, "shape", ())) == 4:
        return _slices(images, batch_size), len(images)
    if isinstance(images, keras.utils.PyDataset):
        return (_of_data_set(images[n]) for n in range(images.num_batches)), None
    if not isinstance(images, Iterable):
        raise TypeError(
            "images are a folder, an array (n, height, width, channels), pictures or a data set. "
            f"Received: {type(images).__name__}"
        )
    rest = iter(images)
    first = list(itertools.islice(rest, 1))
    everything = itertools.chain(first, rest)
    if first and (isinstance(first[0], (tuple, list, dict)) or len(getattr(first[0], "shape", ())) == 4):
        return map(_of_data_set, everything), None
    chunks = iter(lambda: list(itertools.islice(everything, batch_size)), [])
    return (_Batch(chunk, _names(chunk)) for chunk in chunks), len(images) if hasattr(images, "__len__") else None


def _slices(images: Any, size: int, paths: Any = None, labels: Any = None) -> Iterator[_Batch]:
    for n in range(0, len(images), size):
        yield _Batch(*(None if column is None else column[n : n + size] for column in (images, paths, labels)))


def _of_data_set(batch: Any) -> _Batch:
    images, *others = batch if isinstance(batch, (tuple, list)) else [batch]
    if len(getattr(images, "shape", ())) != 4:
        raise TypeError(
            "A batch of a data set is x or (x, y, …), with x (batch, height, width, channels): map the data set to that. "
            f"Received as x: {type(images).__name__}"
        )
    return _Batch(images, labels=others[0] if others and not isinstance(others[0], dict) else None)


def _names(pictures: Sequence[Any]) -> list[str] | None:
    names = [str(each) if isinstance(each, (str, os.PathLike)) else "" for each in pictures]
    return names if any(names) else None


def _files(images: str | os.PathLike[str]) -> tuple[list[str], np.ndarray | None]:
    """The pictures in a folder, and for each the subfolder that it is in, if all are in some; or the one picture."""
    folder = Path(images).expanduser()
    if not folder.is_dir():
        return [os.fspath(images)], None
    paths = pictures_in(folder)
    parts = [path.relative_to(folder).parts for path in paths]
    if not paths:
        raise ValueError(f"There are no pictures in {folder}.")
    labels = np.array([part[0] for part in parts]) if all(len(part) > 1 for part in parts) else None
    return [str(path) for path in paths], labels


def _run(
    tower: VisionTransformer, batches: Iterator[_Batch], prepare: Callable, total: Any, errors: str
) -> Iterator[_Batch]:
    """Features of batch after batch, float32; the next batches are prepared meanwhile."""
    shape, largest, done, checked = tower.input_shape[1:], 0, 0, False
    damaged: list[tuple[Path, str]] = []

    def read(batch: _Batch) -> tuple[_Batch, bool]:
        if isinstance(batch.images, list):
            try:
                return batch._replace(images=prepare(batch.images)), True
            except ValueError:
                if errors == "raise":
                    raise
                return _readable(batch, prepare, damaged), True
        images = np.asarray(keras.ops.convert_to_numpy(batch.images))
        whole = images.dtype.kind in "ui"
        return batch._replace(images=prepare(images) if whole else images.astype("float32")), whole

    with _progress_bar(total) as advance:
        for batch, prepared in _ahead(read, batches):
            images = batch.images
            if prepared and not len(images):  # all of them damaged
                continue
            if images.ndim != 4 or any(want not in (None, have) for want, have in zip(shape, images.shape[1:])):
                raise ValueError(f"The model takes images of {('batch', *shape)}. Received: {images.shape}")
            if not (prepared or checked):
                checked = True
                check_range(tower, images)
            count, largest = len(images), max(largest, len(images))
            if count < largest:  # JAX compiles for each size of a batch: let the last be as large as the others
                images = np.pad(images, [(0, largest - count), *[(0, 0)] * 3])
            with torch_gradients(False):
                found = keras.ops.convert_to_numpy(tower(images, training=False))
            yield batch._replace(images=found[:count].astype("float32"))
            advance(count)
            done += count
    report_damaged(sorted(damaged), done + len(damaged), errors)
    if not done:
        raise ValueError("There are no images to embed.")


def _readable(batch: _Batch, prepare: Callable, damaged: list[tuple[Path, str]]) -> _Batch:
    """A batch of files without the damaged ones, which are noted."""
    images, kept = [], []
    for n, picture in enumerate(batch.images):
        try:
            images.append(prepare([picture])[0])
            kept.append(n)
        except ValueError as error:
            if not isinstance(picture, (str, os.PathLike)):
                raise
            damaged.append((Path(picture), str(error)))
    labels = None if batch.labels is None else batch.labels[kept]
    paths = None if batch.paths is None else [batch.paths[n] for n in kept]
    return _Batch(np.stack(images) if images else np.empty(0), paths, labels)


def _ahead(function: Callable, items: Iterable[Any], workers: int = 2) -> Iterator[Any]:
    """`map` in threads, which are never more than a few items ahead."""
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting: collections.deque = collections.deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextlib.contextmanager
def _progress_bar(total: int | bool | None) -> Iterator[Callable[[int], None]]:
    if total is False:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("pictures", total=total)
        yield lambda count: bar.update(task, advance=count)


def _labels(rows: Sequence[_Batch]) -> np.ndarray | None:
    """All labels, or `None` where there are none."""
    if any(row.labels is None for row in rows):
        return None
    return np.concatenate([np.asarray(keras.ops.convert_to_numpy(row.labels)) for row in rows])


# --- files ------------------------------------------------------------------------------------------------------


def _writer(output: str | os.PathLike[str]) -> Callable[[Path, Iterable[_Batch]], Any]:
    suffix = Path(output).suffix.lower()
    if suffix not in _WRITERS:
        raise ValueError(f"Features are written to {', '.join(_WRITERS)}. Received: {os.fspath(output)!r}")
    if suffix == ".parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise ImportError(
                'Parquet files need PyArrow: pip install "vit-keras[parquet]". Without it there are .npy and .npz.'
            ) from None
    return _WRITERS[suffix]


def _write_npy(path: Path, rows: Iterable[_Batch]) -> list[_Batch]:
    """Write the features, and return what else there is to each batch."""
    count, others, shape = 0, [], ()

    def header(file):
        # NumPy leaves room in it for more rows.
        fields = {"descr": "<f4", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, fields)

    with open(path, "wb") as file:
        for row in rows:
            if not count:
                shape = row.images.shape[1:]
                header(file)
            np.ascontiguousarray(row.images, "<f4").tofile(file)
            count += len(row.images)
            others.append(row._replace(images=None))
        file.seek(0)
        header(file)
    return others


def _write_npz(path: Path, rows: Iterable[_Batch]) -> None:
    features = path.with_name("features.npy")
    others = _write_npy(features, rows)
    columns = {"labels": _labels(others)}
    if all(row.paths is not None for row in others):
        columns["paths"] = np.array([name for row in others for name in row.paths])
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(features, features.name)
        for name, column in columns.items():
            if column is not None:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, column, allow_pickle=False)


# Rows that a Parquet file keeps together, and that are in memory at a time.
_ROW_GROUP = 1024


def _write_parquet(path: Path, rows: Iterable[_Batch]) -> None:
    import pyarrow
    import pyarrow.parquet

    def table(group: list[_Batch]):
        features = np.concatenate([row.images for row in group])
        column = pyarrow.array(features.ravel())
        for size in features.shape[:0:-1]:
            column = pyarrow.FixedSizeListArray.from_arrays(column, size)
        columns = {"features": column}
        labels = _labels(group)
        if labels is not None:
            columns = {"label": pyarrow.array(labels.tolist()), **columns}
        if all(row.paths is not None for row in group):
            columns = {"path": pyarrow.array([name for row in group for name in row.paths]), **columns}
        return pyarrow.table(columns)

    with contextlib.ExitStack() as stack:
        writer, group = None, []
        for row in itertools.chain(rows, [None]):
            if row is not None:
                group.append(row)
            if group and (row is None or sum(len(each.images) for each in group) >= _ROW_GROUP):
                ready, group = table(group), []
                writer = writer or stack.enter_context(pyarrow.parquet.ParquetWriter(path, ready.schema))
                writer.write_table(ready)


_WRITERS = {".npy": _write_npy, ".npz": _write_npz, ".parquet": _write_parquet}

# --- the cache --------------------------------------------------------------------------------------------------


def features(
    model: keras.Model,
    data: Any,
    *,
    batch_size: int = 32,
    layer: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> np.ndarray:
    """`embed`, computed once: the next call with the same model and pictures reads the result from the disk.

    What is kept is known by the weights and layers that the features depend on, by how the pictures are prepared, and by the
    pictures: path, size and time of change of each file, or the values of an array. So it is never out of date, and the folder of the
    cache may be deleted at any time. A pass that is interrupted leaves nothing.

    Args:
        model: As in `embed`.
        data: A folder, an `ImageFolder`, a list of paths, or an array.
        batch_size: As in `embed`.
        layer: As in `embed`.
        image_size: As in `embed`.
        cache: The folder to keep features in; `None`: `features` in `VIT_KERAS_HOME` (default `~/.cache/vit_keras`).
        progress: As in `embed`.

    Returns:
        float32 `(n, …)`, memory-mapped and not to be written to.

    Raises:
        TypeError: The data cannot be known again, as of an iterator or a data set: use `embed`.
        ValueError: As in `embed`.

    Example:
        >>> from vit_keras import vit
        >>> tiny = vit.build_model(32, 8, 2, 64, 2, "tiny", 128, classes=10)
        >>> features(tiny, np.zeros((3, 32, 32, 3), "uint8"), progress=False).shape
        (3, 64)
    """
    folder = home() / "features" if cache is None else Path(cache).expanduser()
    digest = hashlib.blake2b(digest_size=16)
    tower, prepare = _tower(model, layer), _preparation(model, image_size)
    known = [__version__, _description(tower), prepare.to_dict()]
    digest.update(json.dumps(known, sort_keys=True, default=repr).encode())
    for array in (*(keras.ops.convert_to_numpy(weight) for weight in tower.weights), *_identity(data)):
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(np.ascontiguousarray(array).view("uint8").data)
    path = folder / f"{digest.hexdigest()}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        options = {"batch_size": batch_size, "layer": layer, "image_size": image_size, "progress": progress}
        embed(model, data, output=path, **options)
    return np.load(path, mmap_mode="r")


def _description(tower: keras.Model) -> list[Any]:
    """What the layers compute, without what does not matter to it."""
    idle = ("name", "trainable")
    return [
        [type(layer).__name__, {key: value for key, value in layer.get_config().items() if key not in idle}]
        for layer in tower.layers
    ]


def _identity(data: Any) -> list[np.ndarray]:
    """Arrays that are the same if and only if the pictures are."""
    if isinstance(data, tuple) and data and len(getattr(data[0], "shape", ())) == 4:
        data = data[0]
    if len(getattr(data, "shape", ())) == 4:
        return [np.asarray(keras.ops.convert_to_numpy(data))]
    paths = getattr(data, "paths", data)
    if isinstance(paths, (str, os.PathLike)):
        paths, _ = _files(paths)
    if not isinstance(paths, Sequence) or not all(isinstance(path, (str, os.PathLike)) for path in paths):
        raise TypeError(
            "Features are kept for a folder, an ImageFolder, a list of paths or an array, which can be known again. "
            f"Received: {type(data).__name__}. embed(model, data, output='features.npy') takes any data."
        )
    files = [Path(path).expanduser() for path in paths]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise FileNotFoundError(f"Could not find image at path: {missing}")
    known = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [np.frombuffer(json.dumps(known).encode(), "uint8")]


# --- what can be read from features -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """A linear classifier of features. Made by `linear_probe`.

    Attributes:
        kernel: float32 `(features, classes)`.
        bias: float32 `(classes,)`.
        l2: The weight decay it was trained with.
        held_out: Accuracy on what was held out while `l2` was chosen, or on the `validation` given; `None` without either.
    """

    kernel: np.ndarray
    bias: np.ndarray
    l2: float
    held_out: float | None = None

    def logits(self, features: np.ndarray) -> np.ndarray:
        """float32 `(n, classes)`, of features `(n, features)`."""
        return np.asarray(features, "float32") @ self.kernel + self.bias

    def predict(self, features: np.ndarray) -> np.ndarray:
        """The classes, int `(n,)`, of features `(n, features)`."""
        return self.logits(features).argmax(axis=-1)

    def accuracy(self, features: np.ndarray, labels: Any) -> float:
        """The share of features `(n, features)` whose class is their label, `(n,)` or one-hot."""
        return float(np.mean(self.predict(features) == _class_numbers(labels, len(features))))

    def apply_to(self, model: keras.Model) -> None:
        """Put the probe into a model's head: it then predicts what the probe does, and is a good start for fine-tuning.

        Args:
            model: A ViT with a head, or a model with a ViT inside that ends in a `Dense` layer, which sees the features.

        Raises:
            ValueError: The model has no head, or one of another shape.
        """
        last = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)][-1:]
        found = heads(find_vit(model)) or last
        if not found:
            raise ValueError(f"The model {model.name!r} has no head: build it with classes={len(self.bias)}.")
        for head in found:
            if tuple(head.kernel.shape) != self.kernel.shape or not head.use_bias:
                raise ValueError(
                    f"The probe has a kernel of {self.kernel.shape} and a bias; the layer {head.name!r} of {model.name!r} has a "
                    f"kernel of {tuple(head.kernel.shape)} and {'a' if head.use_bias else 'no'} bias. "
                    f"Build the model with classes={len(self.bias)}."
                )
        for head in found:
            head.kernel.assign(self.kernel)
            head.bias.assign(self.bias)


# Weight decays that are tried, relative to standardised features; there is hardly a data set whose best is outside.
_DECAYS = tuple(10.0 ** (-exponent / 2) for exponent in range(13))


def linear_probe(
    features: np.ndarray,
    labels: Any,
    *,
    classes: int | None = None,
    validation: tuple[np.ndarray, Any] | None = None,
    l2: float | str = "auto",
    seed: int = 0,
) -> Probe:
    """Train a linear classifier on features: multinomial logistic regression, solved to its optimum.

    The features are standardised for training, which the kernel and the bias undo: the probe takes them as they are.

    Args:
        features: `(n, features)`, as `embed` and `features` return them.
        labels: `(n,)` integers, or one-hot `(n, classes)`.
        classes: How many there are; `None`: one more than the highest label.
        validation: Features and labels to choose `l2` by; `None`: a fifth of each class, which the final probe is trained with too.
        l2: Weight decay of the kernel, as in `mean(cross entropy) + l2 / 2 * sum(kernel ** 2)`; `"auto"`: that of the lowest cross
            entropy on the validation data.
        seed: Which fifth.

    Raises:
        ImportError: scikit-learn, which solves it, is not installed.
        ValueError: The shapes do not fit each other, labels are out of range, there is only one class, or values are not finite.

    Example:
        >>> points = np.array([[0.0, 1.0], [0.2, 0.8], [1.0, 0.1], [0.9, 0.0]])
        >>> linear_probe(points, [0, 0, 1, 1], l2=0.01).predict([[0.1, 0.9], [0.8, 0.3]])
        array([0, 1])
    """
    features, labels = _checked(features, labels, "features")
    classes = int(labels.max()) + 1 if classes is None else classes
    _check_labels(labels, classes)
    if l2 != "auto" and (isinstance(l2, str) or not l2 > 0):
        raise ValueError(f"l2 is a positive number or 'auto'. Received: {l2!r}")
    if validation is not None:
        validation = _checked(*validation, "validation features", width=features.shape[1])
        _check_labels(validation[1], classes)
    elif l2 == "auto":
        held = _a_fifth_of_each(labels, seed)
        if not held.any():  # one picture of each class: nothing to choose by
            return linear_probe(features, labels, classes=classes, l2=0.01)
        parts = features[~held], labels[~held], features[held], labels[held]
        chosen = linear_probe(*parts[:2], classes=classes, validation=parts[2:])
        probe = linear_probe(features, labels, classes=classes, l2=chosen.l2)
        return dataclasses.replace(probe, held_out=chosen.held_out)
    probes = _fit(features, labels, classes, _DECAYS if l2 == "auto" else [l2])
    return next(probes) if validation is None else _best(probes, *validation)


def _best(probes: Iterable[Probe], features: np.ndarray, labels: np.ndarray) -> Probe:
    """The probe of the lowest cross entropy; the search ends when it has risen twice in a row."""
    best, lowest, risen = None, np.inf, 0
    for probe in probes:
        loss = -np.mean(np.log(_softmax(probe.logits(features))[np.arange(len(labels)), labels] + 1e-30))
        risen = risen + 1 if loss >= lowest else 0
        if not risen:
            best, lowest = probe, loss
        if risen == 2:
            break
    return dataclasses.replace(best, held_out=best.accuracy(features, labels))


def _fit(features: np.ndarray, labels: np.ndarray, classes: int, decays: Iterable[float]) -> Iterator[Probe]:
    """The probe of each weight decay, each starting from the one before."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise ImportError('A linear probe needs scikit-learn: pip install "vit-keras[probe]".') from None

    mean = features.mean(axis=0, dtype="float64")
    std = features.std(axis=0, dtype="float64")
    std[std < 1e-6 * max(std.max(), 1e-30)] = np.inf  # a feature that never changes says nothing
    x = ((features - mean) / std).astype("float32")
    present = np.unique(labels)
    if len(present) < 2:
        raise ValueError(f"There are pictures of one class only: {present[0]}")
    solver = LogisticRegression(max_iter=1000, tol=1e-5, warm_start=True)
    for l2 in decays:
        # Of two classes it fits one row, the difference of ours, of which the penalty is twice ours.
        solver.set_params(C=(2 if len(present) == 2 else 1) / (l2 * len(x)))
        solver.fit(x, labels)
        rows, biases = solver.coef_, solver.intercept_
        if len(present) == 2:
            rows, biases = np.outer([-0.5, 0.5], rows), np.outer([-0.5, 0.5], biases)[:, 0]
        kernel = np.zeros((x.shape[1], classes))
        kernel[:, present] = rows.T / std[:, None]
        bias = np.full(classes, biases.min() - 10)  # classes without a picture are unlikely
        bias[present] = biases
        yield Probe(kernel.astype("float32"), (bias - mean @ kernel).astype("float32"), float(l2))


def knn(
    features: np.ndarray,
    labels: Any,
    queries: np.ndarray,
    k: int = 20,
    temperature: float = 0.07,
) -> np.ndarray:
    """Classify by the nearest neighbours: no training, and nothing to tune; a measure of how good the features are.

    As DINO does (arXiv 2104.14294, `eval_knn.py`): each of the `k` features with the largest cosine similarity votes for its class
    with `exp(similarity / temperature)`.

    Args:
        features: `(n, features)`, of which the class is known.
        labels: `(n,)` integers, or one-hot.
        queries: `(m, features)`.
        k: How many neighbours vote; at most `n`.
        temperature: The lower, the more the nearest count.

    Returns:
        The classes of the queries, int `(m,)`.

    Raises:
        ValueError: The shapes do not fit each other, or an argument is out of range.

    Example:
        >>> knn([[0.0, 1.0], [0.1, 0.9], [1.0, 0.0]], [0, 0, 1], [[0.9, 0.2]], k=1)
        array([1])
    """
    features, labels = _checked(features, labels, "features")
    queries = np.asarray(queries, "float32")
    if queries.ndim != 2 or queries.shape[1] != features.shape[1]:
        raise ValueError(f"queries have the shape (m, {features.shape[1]}), as the features. Received: {queries.shape}")
    if not 1 <= k <= len(features):
        raise ValueError(f"k is at least 1 and at most the number of features, {len(features)}. Received: {k!r}")
    if not temperature > 0:
        raise ValueError(f"temperature must be positive. Received: {temperature!r}")
    _check_labels(labels, int(labels.max()) + 1)
    features, queries = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (features, queries))
    classes = np.eye(labels.max() + 1, dtype="float32")[labels]
    predictions = [np.zeros(0, int)]
    for start in range(0, len(queries), 256):  # the similarities of these are in memory
        similarity = queries[start : start + 256] @ features.T
        nearest = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
        votes = np.exp((np.take_along_axis(similarity, nearest, axis=1) - 1) / temperature)
        predictions.append(np.einsum("qk,qkc->qc", votes, classes[nearest]).argmax(axis=1))
    return np.concatenate(predictions)


def _checked(features: Any, labels: Any, what: str, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    features = np.asarray(features, "float32")
    if features.ndim != 2 or 0 in features.shape or width not in (None, features.shape[1]):
        shape = f"(n, {width or 'features'})"
        raise ValueError(f"{what} have the shape {shape}. Received: {features.shape}")
    if not np.isfinite(features).all():
        raise ValueError(f"There are {what} that are not finite numbers.")
    return features, _class_numbers(labels, len(features))


def _class_numbers(labels: Any, count: int) -> np.ndarray:
    labels = np.asarray(keras.ops.convert_to_numpy(labels) if keras.ops.is_tensor(labels) else labels)
    if labels.ndim == 2 and labels.shape[1] > 1:
        labels = labels.argmax(axis=1)
    labels = labels.reshape(-1) if labels.ndim == 2 else labels
    whole = labels.dtype.kind in "ui" or (labels.dtype.kind == "f" and np.array_equal(labels, np.rint(labels)))
    if labels.shape != (count,) or not whole:
        raise ValueError(
            f"labels are {count} integers, or one-hot, one for each picture. Received: the shape {labels.shape}, "
            f"dtype {labels.dtype}. (Of names, np.unique(names, return_inverse=True) makes integers.)"
        )
    return labels.astype("int64")


def _check_labels(labels: np.ndarray, classes: int) -> None:
    if labels.min() < 0 or labels.max() >= classes or classes < 2:
        raise ValueError(
            f"Labels of {classes} classes are 0 … {classes - 1}, and there are at least two. "
            f"Received: {labels.min()} … {labels.max()}"
        )


def _a_fifth_of_each(labels: np.ndarray, seed: int) -> np.ndarray:
    """Which are held out, bool `(n,)`: a fifth of each class, rounded down, but one where there are two to five."""
    random, held = np.random.default_rng(seed), np.zeros(len(labels), bool)
    for label in np.unique(labels):
        of_it = random.permutation(np.flatnonzero(labels == label))
        held[of_it[: max(len(of_it) // 5, min(1, len(of_it) - 1))]] = True
    return held


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)

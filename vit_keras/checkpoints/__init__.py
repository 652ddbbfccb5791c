"""Files of weights: find them, read them, put them into a model.

>>> from vit_keras import checkpoints
>>> [c.name for c in checkpoints.available(variant="Ti_16")][:2]
['Ti_16/augreg-imagenet21k', 'Ti_16/augreg-imagenet21k+imagenet2012-224']
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np

from ..config import VARIANTS
from ..layers import find_vit, patch_grid
from ..positions import resize_position_embeddings, square_grid
from .download import cached_path, download
from .families import google
from .readers import NpzReader
from .registry import CHECKPOINTS, Checkpoint

__all__ = ["Checkpoint", "LoadReport", "Weights", "available", "fetch", "find", "is_local", "load_weights"]

logger = logging.getLogger("vit_keras")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did.

    Attributes:
        source: The file.
        loaded: Number of weights of the model that were set.
        adapted: What had to be changed to fit, a sentence each.
        fresh: Weights of the model that the file could not give (a new head).
        ignored: Names in the file that are no weights of the model (a dropped head, an optimiser's state).
    """

    source: str
    loaded: int
    adapted: tuple[str, ...]
    fresh: tuple[str, ...]
    ignored: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"Loaded {self.loaded} weights from {self.source}", *self.adapted]
        if self.fresh:
            lines.append(f"not in the file, left as they were: {', '.join(self.fresh)}")
        return "; ".join(lines) + "."


def available(*, variant: str | None = None, classes: int | None = None, image_size: int | None = None):
    """The published checkpoints that this version can load.

    Args:
        variant: Only this architecture, by Google's name (`"B_16"`).
        classes: Only those with a head of so many classes.
        image_size: Only those trained (or fine-tuned) at this many pixels.

    Returns:
        A list of `Checkpoint`.

    Raises:
        ValueError: There is no such variant.

    Example:
        >>> available(variant="Ti_16", image_size=384)[0].top1
        78.22
    """
    if variant is not None and variant not in VARIANTS:
        raise ValueError(f"Unknown variant {variant!r}. There are: {', '.join(VARIANTS)}.")
    return [
        c
        for c in CHECKPOINTS
        if c.variant in VARIANTS
        and variant in (None, c.variant)
        and classes in (None, c.classes)
        and image_size in (None, c.image_size)
    ]


def find(weights: str, variant: str | None = None) -> Checkpoint | None:
    """The published checkpoint of that name, or `None`.

    Args:
        weights: A full name (`"B_16/imagenet21k"`), or with `variant` what follows the slash.
        variant: Google's name of the architecture.

    Example:
        >>> find("imagenet21k", "B_16").classes
        21843
    """
    for checkpoint in CHECKPOINTS:
        if weights == checkpoint.name or (weights == checkpoint.weights and variant == checkpoint.variant):
            return checkpoint
    return None


def fetch(
    weights: str | os.PathLike, variant: str | None = None, *, timeout: float = 30.0, progress: bool = True
) -> Path:
    """Bring a file of weights to this machine, if it is not here already, and say where it is.

    A published checkpoint is looked for in the files and folders that the environment variable
    `VIT_KERAS_WEIGHTS` names (several are separated as in `PATH`), in the cache, in vit-keras 0.x's
    cache, and then fetched.

    Args:
        weights: A published name (`"B_16/imagenet21k"`; with `variant` just `"imagenet21k"`), the path
            of a file, or a URL.
        variant: Google's name of the architecture.
        timeout: Seconds to wait for the server at any one time.
        progress: Whether to draw a progress bar.

    Returns:
        The path of the file.

    Raises:
        FileNotFoundError: There is no file at that path or URL, or being offline it is not at hand.
        ConnectionError: The server could not be reached.
        ValueError: The name is not a published one, or what arrived is not the file.
    """
    text = os.fspath(weights)
    if text.startswith(("http://", "https://")):
        return download(text, timeout=timeout, progress=progress)
    checkpoint = find(text, variant)
    if checkpoint is None:
        return _local_file(text, variant)
    local = _find_local(checkpoint)
    return local or download(
        checkpoint.url, size=checkpoint.bytes, sha256=checkpoint.sha256, timeout=timeout, progress=progress
    )


def _local_file(text: str, variant: str | None) -> Path:
    path = Path(text).expanduser()
    if path.is_file():
        return path
    looks_like_a_path = path.suffix in (".npz", ".h5", ".keras", ".safetensors", ".pth", ".bin", ".pt")
    if looks_like_a_path or path.is_absolute() or text.startswith("."):
        raise FileNotFoundError(f"There is no file of weights at {path}.")
    names = [c.weights if variant else c.name for c in available(variant=variant)]
    raise ValueError(
        f"Unexpected weights: {text}. Give the path of a file, a URL, None, or one of the published names"
        f"{' of ' + variant if variant else ''}: {', '.join(map(repr, names))}."
    )


def is_local(checkpoint: Checkpoint) -> bool:
    """Whether `fetch` would find a published checkpoint on this machine."""
    return _find_local(checkpoint) is not None


def _find_local(checkpoint: Checkpoint) -> Path | None:
    for path, by_name in _local_copies(checkpoint):
        if path.is_file() and (by_name or path.stat().st_size == checkpoint.bytes):
            return path
    return None


def _local_copies(checkpoint: Checkpoint) -> Iterator[tuple[Path, bool]]:
    """Where a checkpoint may be, and whether its name there is proof enough; otherwise its size must be right too."""
    published = Path(checkpoint.path)
    vit_keras_0 = f"ViT-{checkpoint.variant}_{checkpoint.weights}.npz"
    unique = sum(Path(c.path).name == published.name for c in CHECKPOINTS) == 1
    for place in filter(None, os.environ.get("VIT_KERAS_WEIGHTS", "").split(os.pathsep)):
        place = Path(place).expanduser()
        if place.is_dir():
            yield from ((place / published, True), (place / vit_keras_0, True), (place / published.name, unique))
        elif place.name in (published.name, vit_keras_0):
            yield place, unique or place.name == vit_keras_0
    yield cached_path(checkpoint.url), False
    yield Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "weights" / vit_keras_0, False


class Weights:
    """A checkpoint file, read name by name under canonical names.

    Args:
        path: An .npz file as Google publishes them.

    Attributes:
        path: The file.
        architecture: Fields of `ViTConfig` that the file tells.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a ViT checkpoint, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._reader = NpzReader(self.path)
        try:
            self._names = google.canonical_names(self._reader)
            self.shapes = {name: self._reader.shape(source) for name, source in self._names.items()}
            self.architecture = google.architecture(self.shapes)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        self.positions = self.architecture.pop("positions")

    @property
    def outside(self) -> tuple[str, ...]:
        """Names in the file that are not weights of the model, such as an optimiser's state."""
        return tuple(sorted(set(self._reader) - set(self._names.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self._reader[self._names[name]], np.float32)


def load_weights(
    model: keras.Model,
    weights: str | os.PathLike | Weights,
    *,
    include_head: bool | None = None,
    source_grid: tuple[int, int] | None = None,
) -> LoadReport:
    """Put the weights of a file into a model: all of them, or none.

    Everything is read and checked before the model is touched. What does not fit is adapted by the
    reference's rules where there is one (position embeddings are resampled to the model's grid, the head
    is dropped) and is an error otherwise.

    Args:
        model: A ViT of this package, or a model with one inside.
        weights: A published name (`"B_16/imagenet21k"`), the path of a file, a URL, or an open `Weights`.
        include_head: Whether to load the head. `None`: if the model has one of as many classes.
        source_grid: Patches down and across of the file's position embeddings; `None` for a square.

    Returns:
        A `LoadReport`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, is not a ViT checkpoint, or is one of another architecture.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.vit_ti16(pretrained=False)
        >>> report = load_weights(model, "Ti_16.npz")  # doctest: +SKIP
    """
    vit = find_vit(model)
    source = weights if isinstance(weights, Weights) else Weights(fetch(weights))
    targets = _canonical_variables(vit)
    _check_architecture(vit, source, targets)
    head = _head_names(source, targets, include_head)

    values: dict[str, np.ndarray] = {}
    adapted: list[str] = []
    problems: list[str] = []
    for name, variable in targets.items():
        if name in source.shapes and not (_is_top(name) and name not in head):
            values[name] = _adapt(name, source, vit, tuple(variable.shape), source_grid, adapted)
            if values[name].shape != tuple(variable.shape):
                problems.append(f"{name} has shape {source.shapes[name]}, the model's is {tuple(variable.shape)}")
        elif not _is_top(name):
            problems.append(f"{name} is missing in the file")
    unused = sorted(set(source.shapes) - set(values))
    problems += [f"{name} has no place in the model" for name in unused if not _is_top(name)]
    if problems:
        raise ValueError(
            f"{source.path} does not fit the model {vit.name!r}; nothing was loaded. "
            + "; ".join(problems[:5])
            + (f"; and {len(problems) - 5} more." if len(problems) > 5 else ".")
        )
    dropped = sorted({name.split("/")[0] for name in unused})
    adapted += [f"{name} dropped" for name in dropped]
    for name, value in values.items():
        targets[name].assign(value)
    fresh = tuple(name for name in targets if name not in values)
    report = LoadReport(str(source.path), len(values), tuple(adapted), fresh, (*unused, *source.outside))
    logger.info("%s", report)
    return report


def _is_top(name: str) -> bool:
    return name.startswith(("head/", "pre_logits/"))


def _head_names(source: Weights, targets: dict, include_head: bool | None) -> set[str]:
    """The weights after the class token that are to be loaded: a head means nothing without its pre_logits."""
    names = {name for name in (*source.shapes, *targets) if _is_top(name)}
    shared = {n for n in names if n in source.shapes and n in targets and _same_size(source, targets, n)}
    head = {n for n in names if n.startswith("head/")}
    fits = bool(head) and shared == names
    if include_head and not fits:
        raise ValueError(
            f"include_head=True, but the file's top ({_top(source.shapes)}) is not the model's "
            f"({_top({n: tuple(v.shape) for n, v in targets.items()})})."
        )
    if fits and include_head is not False:
        return shared
    return shared - head


def _same_size(source: Weights, targets: dict, name: str) -> bool:
    return tuple(source.shapes[name]) == tuple(targets[name].shape)


def _top(shapes: dict[str, tuple[int, ...]]) -> str:
    parts = [f"{name} of {shapes[name + '/bias'][0]}" for name in ("pre_logits", "head") if name + "/bias" in shapes]
    return ", ".join(parts) or "none"


def _canonical_variables(vit: keras.Model) -> dict:
    """The variables of a ViT under their canonical names: the one spelling rule between Keras and Google.

    Layers that a user put behind the ViT in the same model have no such name and are left alone.
    """
    variables = {}
    for layer in vit.layers:
        for variable in layer.weights:
            path = variable.path.split("/")
            name = "/".join(path[path.index(layer.name) :]) if layer.name in path else variable.path
            for keras_name, google_name in (
                ("class_token/", ""),
                ("Transformer_", "Transformer/"),
                ("/gamma", "/scale"),
                ("/beta", "/bias"),
            ):
                name = name.replace(keras_name, google_name)
            if name == "cls" or name.startswith(("embedding/", "Transformer/", "pre_logits/", "head/")):
                variables[name] = variable
    return variables


def _check_architecture(vit: keras.Model, source: Weights, targets: dict) -> None:
    """Compare what shapes of fused kernels would hide, and say what differs before a list of shapes does."""
    file = source.architecture
    blocks = [layer for layer in vit.layers if hasattr(layer, "num_heads")]
    patch_size, width = targets["embedding/kernel"].shape[:2], targets["embedding/kernel"].shape[-1]
    pooling = "token" if "cls" in targets else "gap"
    differences = [
        f"{what} {theirs} and {ours}"
        for what, theirs, ours in (
            ("transformer blocks", file["num_layers"], len(blocks)),
            ("attention heads", file["num_heads"], blocks[0].num_heads if blocks else 0),
            ("hidden size", file["hidden_size"], width),
            ("patch size", tuple(file["patch_size"]), tuple(patch_size)),
            ("class token", file["pooling"] == "token", pooling == "token"),
        )
        if theirs != ours
    ]
    if differences:
        raise ValueError(
            f"{source.path} is another architecture than the model {vit.name!r}; nothing was loaded. In the file and "
            f"in the model: {'; '.join(differences)}."
        )


def _adapt(name, source, vit, shape, source_grid, adapted):
    """Read one weight and bring it to the shape of the model's."""
    value = source[name]
    if "/MultiHeadDotProductAttention_1/" in name and math.prod(value.shape) == math.prod(shape):
        return value.reshape(shape)  # Google keeps (heads, width) apart where a Dense layer has one axis
    if name == "embedding/kernel" and value.shape[2] != shape[2]:
        adapted.append(f"channels of the patch embedding adapted from {value.shape[2]} to {shape[2]}")
        return adapt_channels(value, shape[2])
    if name == "Transformer/posembed_input/pos_embedding":
        grid = patch_grid(vit)
        tokens = shape[1] - math.prod(grid)
        given = tuple(source_grid) if source_grid else square_grid(value.shape[1] - tokens)
        if given is None and value.shape == shape:
            given = grid
        resized = resize_position_embeddings(value, grid, prefix_tokens=tokens, source_grid=given)
        if given != grid:
            adapted.append(f"position embeddings resampled from {given[0]}×{given[1]} to {grid[0]}×{grid[1]}")
        return resized
    return value


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Make a patch kernel for images of another number of channels.

    One channel gets the sum over the old ones, so that a grey image gives the same tokens as its RGB copy.
    More channels repeat the old ones in turn, scaled to keep the size of the response.

    Args:
        kernel: `(patch height, patch width, old channels, hidden_size)`.
        channels: New number of channels.

    Returns:
        `(patch height, patch width, channels, hidden_size)`

    Example:
        >>> adapt_channels(np.ones((16, 16, 3, 8)), 1).max().item()
        3.0
    """
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return np.take(kernel, np.arange(channels) % old, axis=2) * (old / channels)

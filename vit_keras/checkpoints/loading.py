"""Load weights under canonical names into a model, adapting them where the model differs from their own."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from .. import anatomy
from .._internal import finite
from .._internal.bounds import about
from .._internal.validate import see
from .._internal.warn import warn_caller
from ..anatomy.parts import attention_blocks, find_vit, has_attention, patch_grid, prefix_names
from ..positions import relative_position_rows, resize_position_embeddings, resize_relative_position_bias
from ..resampling import resize_patch_kernel
from . import saved_models
from .checkpoint import Checkpoint
from .families.rules import POSITIONS
from .locate import fetch, find
from .model_weights import ModelWeights, adapted_layers, canonical_variables
from .settings import take_settings, warn_of_other_numerics
from .weights import Weights

__all__ = ["LoadReport", "adapt_channels", "fill", "load_weights", "open_source"]

logger: logging.Logger = logging.getLogger("vit_keras")


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """The result of `load_weights`.

    Attributes:
        source: The file.
        loaded: Number of weights of the model that were set.
        adapted: Changes that made weights fit, one sentence each.
        fresh: Weights of the model that are not in the file (a new head).
        ignored: Names in the file that are not weights of the model (a dropped head, the state of an optimizer).
        not_finite: Weights with infinite or undefined values.
        assumed: Fields of the model's `ViTConfig` that neither the file nor its neighbors show, with the assumed
            values, which are common to published models with such arrays or to the file's family.
        key: The state dict that was read, if the file has several, or `None`.
        published: Name of the published checkpoint that the file is, or `None`.

    Example:
        >>> from vit_keras import vit
        >>> report = vit.vit_cifar10(classes=3).load_report
        >>> report.fresh
        ('head/kernel', 'head/bias')
    """

    source: str
    loaded: int
    adapted: tuple[str, ...]
    fresh: tuple[str, ...]
    ignored: tuple[str, ...]
    not_finite: tuple[str, ...] = ()
    assumed: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    key: str | None = None
    published: str | None = None

    @property
    def missing(self) -> str:
        """The weights that are not in the file, in words; `""` if there are none."""
        names = ", ".join(self.fresh)
        return names and f"{names}: not in {self.source}, and untrained in a new model"

    def __str__(self) -> str:
        which = f" ({self.key!r}, one of several state dicts)" if self.key else ""
        lines = [f"Loaded {self.loaded} weights from {self.source}{which}", *self.adapted, self.missing]
        if self.assumed:
            values = ", ".join(f"{field}={value!r}" for field, value in self.assumed.items())
            lines.append(f"assumed, as nothing shows it: {values}")
        return "; ".join(filter(None, lines)) + "."


def load_weights(
    model: keras.Model,
    weights: str | os.PathLike[str] | Checkpoint | Weights | ModelWeights,
    *,
    include_head: bool | None = None,
    source_grid: tuple[int, int] | None = None,
    resize_patches: bool = False,
    family: str | None = None,
    strict: bool = True,
    key: str | None = None,
) -> LoadReport:
    """Load the weights of a file into a model: all of them, or none.

    All names and shapes are checked, and the whole file is read, before the model is changed. Weights of a different
    shape are adapted: position embeddings are resampled to the model's grid, and a head for a different number of
    classes is dropped. Weights that cannot be adapted raise an error.

    The model also gets the preprocessing that the file or its neighbors state. With the head, it gets the names and the
    task of the classes, if they are stated.

    Args:
        model: A ViT of this package, or a model with one inside.
        weights: A published name (`"B_16/imagenet21k"`), a `Checkpoint`, the path of a file, a URL, or an open
            `Weights`.
        include_head: Whether to load the head. `None` loads it if the model has a head with as many classes.
        source_grid: Patches down and across of the file's position embeddings. `None` uses `config.json` or the
            registry, or else assumes a square.
        resize_patches: Whether to resample the patch embedding to the model's patch size (FlexiViT's PI-resize).
        family: As for `Weights`; this and the next two are for a file of weights.
        strict: As for `Weights`.
        key: As for `Weights`.

    Returns:
        A `LoadReport`.

    Raises:
        FileNotFoundError: The file does not exist.
        ValueError: The file is damaged, of an unknown family, or of a different architecture.

    Warns:
        UserWarning: The file is for a model that computes differently (such as a different GELU), or values are not
            finite.

    Example:
        >>> from vit_keras import vit
        >>> model = vit.vit_ti16(pretrained=False)
        >>> report = load_weights(model, "Ti_16.npz")  # doctest: +SKIP
    """
    vit, options = find_vit(model), {"family": family, "strict": strict, "key": key}
    if not isinstance(weights, (Weights, ModelWeights)):
        channels = getattr(getattr(vit, "config", None), "channels", None)
        source = open_source(weights, channels=channels, **options)
    else:
        source = weights
        _refuse("Weights that are open", options)
    _settle_grid(vit, source, source_grid)
    warn_of_other_numerics(vit, source)
    report = fill(
        vit,
        source,
        include_head=include_head,
        source_grid=source_grid,
        resize_patches=resize_patches,
        verify=True,
    )
    take_settings(vit, source, report.fresh)
    return report


def open_source(
    weights: str | os.PathLike[str] | Checkpoint, variant: str | None = None, **options: Any
) -> Weights | ModelWeights:
    """Open the weights of a published checkpoint, a path or a URL."""
    published = find(weights, variant)
    path = fetch(published or weights, variant)
    if saved_models.is_whole_model(path):
        _refuse(f"{path} is a whole model. It", {name: options[name] for name in options if name not in _OF_EVERY_FILE})
        return ModelWeights(saved_models.load_model(path, compile=False), path)
    with about(path):
        return Weights(path, published=published, **options)


_OF_EVERY_FILE = ("strict", "channels")


def _refuse(what: str, options: Mapping[str, Any]) -> None:
    given = [f"{name}={value!r}" for name, value in options.items() if value is not None and value is not True]
    if given:
        raise ValueError(f"{what} cannot be read with other options. Received: {', '.join(given)}")


def fill(
    vit: Any,
    source: Any,
    *,
    include_head: bool | None = None,
    source_grid: Any = None,
    resize_patches: bool = False,
    verify: bool = False,
) -> LoadReport:
    """Load open weights into a ViT, without a warning about other numerics."""
    targets = canonical_variables(vit)
    _check_architecture(vit, source, targets, resize_patches)
    head = _head_names(source, targets, include_head)
    adapted: dict[str, None] = {}  # sentences in their order
    problems: list[str] = []
    plans: dict[str, Callable[..., Any]] = {}
    for name, variable in targets.items():
        if name in source.shapes and not (_is_top(name) and name not in head):
            with about(source.path):
                plan = _plan(name, source, vit, tuple(variable.shape), source_grid, adapted)
            if plan is None:
                problems.append(f"{name} has shape {source.shapes[name]}, the model's is {tuple(variable.shape)}")
            else:
                plans[name] = plan
        elif not _is_top(name):
            problems.append(f"{name} is missing in the file")
    unused = sorted(set(source.shapes) - set(plans))
    problems += [
        f"{name} has no place in the model"
        for name in unused
        if name not in targets and not _is_top(name) and not _is_pooling(name)
    ]
    if problems:
        raise ValueError(
            f"{source.path} does not fit the model {vit.name!r}; nothing was loaded. "
            + "; ".join(problems[:5])
            + (f"; and {len(problems) - 5} more." if len(problems) > 5 else ".")
            + see("file-refused")
        )
    names = source.grouped(plans)
    if verify:
        for name in names:
            source[name]
    not_finite, with_adapter = [], adapted_layers(vit)
    for name in names:
        value = plans[name](source[name])
        if not finite.is_finite(value, targets[name].dtype):
            not_finite.append(name)
        targets[name].assign(value)
        if adapter := with_adapter.get(id(targets[name])):  # the file's kernel is the whole; the other factor can learn
            adapter.lora_kernel_b.assign(np.zeros(adapter.lora_kernel_b.shape))
    adapted |= dict.fromkeys(f"{name} dropped" for name in sorted({name.split("/")[0] for name in unused}))
    fresh = tuple(name for name in targets if name not in plans)
    vit.origin = source.origin
    report = LoadReport(
        str(source.path),
        len(plans),
        tuple(adapted),
        fresh,
        (*unused, *source.ignored),
        tuple(not_finite),
        key=source.key,
        published=source.published and source.published.name,
    )
    logger.info("%s", report)
    if source.table is not None and source.table.warning:
        warn_caller(f"{source.path}: {source.table.warning}")
    if source.other_key is not None:
        warn_caller(
            f"{source.path} holds several networks. {source.key!r} is read, which its authors use. Pass key="
            f"{source.other_key!r} for the other."
        )
    if isinstance(source, Weights) or isinstance(source.path, str):  # who opened a whole model has warned
        finite.warn_not_finite(source.path, not_finite, len(plans))
    return report


def _settle_grid(vit: keras.Model, source: Weights | ModelWeights, source_grid: tuple[int, int] | None) -> None:
    """Use the model to decide the patch grid of a file's positions, and the tokens that have rows."""
    config = getattr(vit, "config", None)
    if config is None:  # a plain ViT of vit-keras 0.x
        size = tuple(vit.input_shape[1:3])
        source.settle(source_grid, image_size=None if None in size else size, position_prefix=True)
        return
    fields = ("position_prefix", "register_positions") if config.position == "learned" else ()
    source.settle(source_grid, image_size=config.image_size, **{field: getattr(config, field) for field in fields})


def _is_pooling(name: str) -> bool:
    """Return whether a weight belongs to the pooling, for which a model with a different pooling has no place."""
    return name.startswith(("MAPHead_0/", "fc_norm/", "Transformer/encoder_norm/"))


def _is_top(name: str) -> bool:
    return name.startswith(("head/", "head_dist/", "pre_logits/"))


def _head_names(source: Weights | ModelWeights, targets: dict[Any, Any], include_head: bool | None) -> set[str]:
    """Return the weights after the pooling to load. A head is useless without its pre_logits."""
    names = {name for name in (*source.shapes, *targets) if _is_top(name)}
    shared = {n for n in names & {*source.shapes} & {*targets} if tuple(source.shapes[n]) == tuple(targets[n].shape)}
    head = {n for n in names if not n.startswith("pre_logits/")}
    fits = bool(head) and shared == names
    if include_head and not fits:
        raise ValueError(
            f"include_head=True, but the file's top ({_top(source.shapes)}) is not the model's "
            f"({_top({n: tuple(v.shape) for n, v in targets.items()})})."
        )
    if fits and include_head is not False:
        return shared
    return shared - head


def _top(shapes: Mapping[str, tuple[int, ...]]) -> str:
    names = ("pre_logits", "head", "head_dist")
    parts = [f"{name} of {shapes[name + '/kernel'][1]}" for name in names if name + "/kernel" in shapes]
    return ", ".join(parts) or "none"


def _check_architecture(
    vit: keras.Model, source: Weights | ModelWeights, targets: dict[Any, Any], resize_patches: bool
) -> None:
    """Compare architectures for differences that the shapes of fused kernels hide, or that a sentence says better."""
    file = source.architecture
    num_heads = attention_blocks(vit)[0].num_heads if has_attention(vit) else file.get("num_heads")
    assumed = "num_heads" in source.assumptions.open  # then the model knows better
    patch_size, width = tuple(targets["embedding/kernel"].shape[:2]), targets["embedding/kernel"].shape[-1]
    differences = [
        f"{what} {theirs} and {ours}"
        for what, theirs, ours in (
            ("transformer blocks", file["num_layers"], len(anatomy.blocks(vit))),
            ("attention heads", num_heads if assumed else file.get("num_heads", num_heads), num_heads),
            ("hidden size", file["hidden_size"], width),
            ("patch size", patch_size if resize_patches else tuple(file["patch_size"]), patch_size),
            ("class token", "cls" in source.shapes, "cls" in targets),
        )
        if theirs != ours
    ]
    if differences:
        raise ValueError(
            f"{source.path} has another architecture than the model {vit.name!r}; nothing was loaded. In the file and "
            f"in the model: {'; '.join(differences)}."
            + (
                " Pass resize_patches=True to resample the patch embedding."
                if differences[0].startswith("patch")
                else ""
            )
        )


def _plan(name, source, vit, shape, source_grid, adapted) -> Callable[..., Any] | None:
    """Return the function that adapts a weight to the shape of the model's, or `None` if that is impossible."""
    given = tuple(source.shapes[name])
    if name == POSITIONS:
        return _plan_positions(source, vit, shape, source_grid, adapted)
    if name.endswith("/relative_position_bias"):
        old, new = source.grid(source_grid), patch_grid(vit)
        if given == shape and old in (None, new):
            return lambda value: value
        prefix = len(prefix_names(vit))
        if old is None or given != (relative_position_rows(old, prefix), shape[1]):
            return None
        adapted.setdefault(f"relative positions resampled from {old[0]}×{old[1]} to {new[0]}×{new[1]}")
        method = source.architecture.get("relative_resize", "bilinear")
        return lambda value: resize_relative_position_bias(value, old, new, method)
    if given == shape:
        return lambda value: value
    if name in ("embedding/kernel", "conv_root/kernel") and len(given) == 4 and given[3] == shape[3]:
        return _plan_kernel(name, source, given, shape, adapted)
    return None


def _plan_positions(source, vit, shape, source_grid, adapted):
    given, config = source.shapes[POSITIONS], getattr(vit, "config", None)
    new = (config.position_grid if config is not None and config.image_size is None else None) or patch_grid(vit)
    prefix_tokens = shape[1] - math.prod(new)
    old = source.grid(source_grid) or (new if source.table is None else None)
    if given[2] != shape[2] or (old is not None and given[1] - math.prod(old) != prefix_tokens):
        return None
    method = source.architecture.get("position_resize", "bilinear_align_corners")
    if old is not None and old != tuple(new):
        adapted.setdefault(f"position embeddings resampled from {old[0]}×{old[1]} to {new[0]}×{new[1]}")
    if old is None:
        raise ValueError(source.table.error)  # pyright: ignore[reportOptionalMemberAccess] (without one, old is new)
    return lambda value: resize_position_embeddings(
        value, new, prefix_tokens=prefix_tokens, source_grid=old, method=method
    )


def _plan_kernel(name, source, given, shape, adapted):
    steps: list[Callable[..., Any]] = []
    if given[2] != shape[2]:
        adapted.setdefault(f"channels of the patch embedding adapted from {given[2]} to {shape[2]}")
        steps.append(lambda value: adapt_channels(value, shape[2]))
    if given[:2] != shape[:2]:
        if name == "conv_root/kernel":
            return None
        adapted.setdefault(f"patches resampled from {given[0]}×{given[1]} to {shape[0]}×{shape[1]} pixels")
        method = source.architecture.get("patch_resize", "bilinear")
        steps.append(lambda value: resize_patch_kernel(value, shape[:2], method))
    return lambda value: functools.reduce(lambda result, step: step(result), steps, value)


def adapt_channels(kernel: np.ndarray, channels: int) -> np.ndarray:
    """Adapt a patch kernel to images with a different number of channels."""
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    return np.take(kernel, np.arange(channels) % old, axis=2) * (old / channels)

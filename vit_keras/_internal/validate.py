"""Checks of arguments, with errors that name what was received and what would work."""

from __future__ import annotations

import dataclasses
import difflib
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Share",
    "check_activations",
    "check_fields",
    "check_remat",
    "check_switches",
    "did_you_mean",
    "expanded",
    "instance",
    "is_number",
    "numbers",
    "one_of",
    "path_text",
    "positive_integer",
    "python_numbers",
    "received",
    "see",
]

Share: TypeAlias = float
"""A number from 0 to 1, in annotations of arguments."""


def see(symptom: str) -> str:
    """Return the end of a message that leads to a section of docs/troubleshooting.md, by its anchor."""
    return f" See troubleshooting: {symptom}."


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path in which a leading `~` is the home folder; `~name` stays if there is no such user."""
    # `Path.expanduser` raises an error there, but a file may have this name.
    return Path(os.path.expanduser(path))


def positive_integer(value: Any, name: str, least: int = 1) -> int:
    """Return an integer of any integer type as `int`, or raise a ValueError that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {wanted}. Received: {value!r}")
    return number


def size_pair(value: Any, argument: str) -> tuple[int, int]:
    """Return `(height, width)` from an integer or a pair of them, or raise a ValueError."""
    values = value.tolist() if hasattr(value, "tolist") else value
    values = values if isinstance(values, (tuple, list)) else [values, values]
    try:
        pair = tuple(operator.index(v) for v in values)
    except TypeError:
        pair = ()
    if len(pair) != 2 or min(pair) < 1 or bool in map(type, values):
        raise ValueError(
            f"The {argument} argument must be a tuple of 2 integers or a single integer. Received: {value!r}"
        )
    return pair


def instance(value: Any, kind: Any, name: str) -> Any:
    """Return a value, or raise a TypeError that names it if its type is different."""
    if isinstance(value, kind):
        return value
    kinds = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    raise TypeError(f"{name} must be of the type {kinds}. Received: {received(value)}")


def listed(value: Any, kind: tuple[type, ...], name: str) -> list[Any]:
    """Return one value or several as a list, or raise an error that names them if there is neither."""
    values = [value] if isinstance(value, kind) else list(instance(value, (*kind, Iterable), name))
    if not values:
        raise ValueError(f"{name} must be one or more. Received: {received(value)}")
    return values


def python_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return only the NumPy numbers of a dictionary, as Python's numbers, which JSON can hold."""
    import numpy as np  # the checks of names do without

    return {name: value.item() for name, value in values.items() if isinstance(value, np.generic)}


def path_text(value: Any, name: str = "weights", kinds: str = "a published name, a path or a URL") -> str:
    """Return a path or a name as text, or raise a TypeError that lists what would work."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        is_open = ". A model that is open is used as it is." if hasattr(value, "predict") else ""
        raise TypeError(f"{name} must be {kinds}. Received: {received(value)}{is_open}")
    return text


def received(value: Any) -> str:
    """Return what an error shows of a value: the columns of a table, or the first letters of anything else."""
    columns = getattr(value, "columns", value if isinstance(value, Mapping) else None)
    if columns is not None and not callable(columns):
        return f"a table with the columns {', '.join(map(repr, columns)):.100}"
    return f"{value!r:.100}"


def as_array(values: Any, dtype: Any = None) -> np.ndarray:
    """Return values as a NumPy array, also those of a PyTorch tensor that is on a GPU or has a gradient."""
    import numpy as np  # the checks of names do without

    if hasattr(values, "detach") and hasattr(values, "cpu"):  # an open file has the first
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    array = np.asarray(values, dtype)
    return array.astype("float32") if array.dtype.name == "bfloat16" else array  # which NumPy does not know


def native_order(value: Any) -> Any:
    """Return arrays, also nested ones, in the machine's byte order, which PyTorch and JAX need."""
    # Astronomers' files (FITS) have the other order.
    if type(value) in (list, tuple):
        return type(value)(map(native_order, value))
    if type(value) is dict:
        return {name: native_order(each) for name, each in value.items()}
    if getattr(getattr(value, "dtype", None), "isnative", True):
        return value
    return value.astype(value.dtype.newbyteorder("="))


def numbers(value: Any, name: str, axes: int = 0) -> np.ndarray:
    """Return numbers as an array of at least `axes` axes, in their own dtype (bfloat16 becomes float32)."""
    try:
        array = as_array(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array of numbers: {error}") from None
    if array.dtype.kind in "OUSMm":
        given = f"an array of dtype {array.dtype}" if array.ndim else received(value)
        raise TypeError(f"{name} must be an array of numbers. Received: {given}")
    if array.ndim < axes:
        raise ValueError(f"{name} must have at least {axes} axes. Received: an array of shape {array.shape}")
    return array


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite real number and not a bool."""
    try:
        return not isinstance(value, (bool, str, bytes)) and math.isfinite(value)
    except (TypeError, OverflowError):  # an integer can be too large for a float
        return False


def one_of(value: Any, name: str, choices: Iterable[Any]) -> Any:
    """Return a value if it is one of the choices, or raise a ValueError that suggests the nearest."""
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}.{did_you_mean(value, choices)} Received: {value!r}")
    return value


_OF_AN_MLP = ("gelu", "gelu_tanh", "quick_gelu")
KNOWN_ACTIVATIONS = ("linear", "relu", "sigmoid", "silu", "softmax", "tanh")
"""Names of Keras that are known without importing it, which takes seconds."""


def check_activations(options: Mapping[str, Any]) -> None:
    """Raise a ValueError if a field of a `ViTConfig` names an unknown activation."""
    for name, own in (("activation", ()), ("mlp_activation", _OF_AN_MLP)):
        value = options.get(name)
        if not isinstance(value, str) or value in (*own, *KNOWN_ACTIVATIONS):
            continue
        from keras import activations as of_keras

        try:
            of_keras.get(value)
        except ValueError:
            known = {*own, *(each for each in dir(of_keras) if each[0] != "_")} - {"get", "serialize", "deserialize"}
            near = did_you_mean(value, known) or f" There are: {', '.join(sorted(known))}."
            raise ValueError(f"{name} must be the name of an activation.{near} Received: {value!r:.100}") from None


ALIASES = {
    **dict.fromkeys(("lr", "base_lr", "max_lr", "eta"), ("learning_rate", "peak")),
    **dict.fromkeys(("bs", "batch", "batchsize", "per_device_train_batch_size"), ("batch_size",)),
    **dict.fromkeys(("wd", "decay", "l2"), ("weight_decay",)),
    **dict.fromkeys(("dp", "ddp", "data_parallel", "mirrored", "replicate"), ("data",)),
    **dict.fromkeys(("zero", "zero3", "fully_sharded"), ("fsdp",)),
    **dict.fromkeys(("tp", "tensor_parallel", "model_parallel"), ("tensor", "model")),
    **dict.fromkeys(("epoch", "num_epochs", "n_epochs", "num_train_epochs"), ("epochs",)),
    **dict.fromkeys(("num_classes", "nb_classes", "n_classes", "num_labels"), ("classes",)),
    **dict.fromkeys(("img_size", "imgsz", "resolution", "input_size", "size"), ("image_size",)),
    **dict.fromkeys(("drop_path", "drop_path_rate"), ("stochastic_depth",)),
    **dict.fromkeys(("drop", "drop_rate", "dropout_rate"), ("dropout",)),
    **dict.fromkeys(("clip", "grad_clip", "clipnorm", "clip_grad", "max_grad_norm"), ("clip_norm",)),
    **dict.fromkeys(("ls", "smoothing", "label_smooth"), ("label_smoothing",)),
    **dict.fromkeys(("accum", "accum_iter", "grad_accum_steps", "gradient_accumulation_steps"), ("accumulate",)),
    **dict.fromkeys(("opt", "optim"), ("optimizer",)),
    **dict.fromkeys(("depth", "layers", "num_hidden_layers"), ("num_layers",)),
    **dict.fromkeys(("dim", "embed_dim", "width"), ("hidden_size",)),
    **dict.fromkeys(("heads", "num_attention_heads"), ("num_heads",)),
    **dict.fromkeys(("patch", "patchsize"), ("patch_size",)),
    **dict.fromkeys(("llrd", "layerwise_decay"), ("layer_decay",)),
    **dict.fromkeys(("warmup_ratio", "warmup_epochs", "warmup_steps"), ("warmup",)),
    **dict.fromkeys(("scheduler", "sched", "lr_scheduler_type"), ("schedule",)),
    **dict.fromkeys(("arch", "architecture", "model_name"), ("model",)),
    **dict.fromkeys(("checkpoint", "ckpt", "pretrained"), ("weights",)),
    **dict.fromkeys(("k", "topk", "top_k"), ("top",)),
    **dict.fromkeys(("out", "output_dir", "save", "to"), ("output",)),
    **dict.fromkeys(("val_split", "validation_split"), ("held_out",)),
    **dict.fromkeys(("kfold", "k_fold"), ("folds",)),
    **dict.fromkeys(("precision", "half"), ("dtype",)),
    **dict.fromkeys(("gpus", "num_gpus", "num_devices"), ("devices",)),
    **dict.fromkeys(("prompt", "prompts", "texts"), ("text",)),
    **dict.fromkeys(("cubic",), ("bicubic", "bicubic_antialias")),
    **dict.fromkeys(("linear",), ("bilinear",)),
    **dict.fromkeys(("acc", "top1"), ("accuracy",)),
    **dict.fromkeys(("auc", "auroc"), ("roc_auc",)),
    **dict.fromkeys(("f1",), ("macro_f1",)),
    **dict.fromkeys(("kappa", "qwk"), ("quadratic_kappa",)),
}
"""What others call a name: the first that is possible where it was typed is suggested."""


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """Return `" Did you mean '…'?"` with the choices nearest to a misspelled name, or an empty text."""
    by_spelling = {str(choice).lower().replace("-", "_"): choice for choice in choices if choice is not None}
    name = str(value)[:100].lower().replace("-", "_")
    near = [each for each in ALIASES.get(name, ()) if each in by_spelling][:1]
    if not near:
        near = difflib.get_close_matches(name, list(by_spelling), n=3, cutoff=0.65 if len(name) > 2 else 1.0)
    if not near and len(name) > 3:  # a part of a longer name: at its beginning or that of its last part, if there are
        parts = [each for each in by_spelling if name in each]
        near = sorted(parts, key=lambda each: (f"/{name}" not in f"/{each}", len(each)))[:3]
    return f" Did you mean {' or '.join(repr(by_spelling[name]) for name in near)}?" if near else ""


def check_fields(kind: Any, names: Iterable[str], **parts: Any) -> None:
    """Raise a ValueError if names are not fields of a dataclass or, after a dot, of one of its `parts`."""
    known = [field.name for field in dataclasses.fields(kind)]
    unknown = sorted(set(names) - set(known))
    if unknown:
        near = did_you_mean(unknown[0], known) if len(unknown) == 1 else ""
        for part, inner in parts.items():
            if {*unknown} <= {field.name for field in dataclasses.fields(inner)}:
                near = f" Pass {part}=dict({', '.join(f'{name}=…' for name in unknown)})."
        near = near or f" The fields of {kind.__name__} are {', '.join(known)}."
        raise ValueError(f"Unknown option {', '.join(unknown)}.{near}")


def check_switches(settings: Any) -> None:
    """Refuse anything but True and False in a dataclass' boolean fields, since any text would count as True."""
    values = python_numbers(vars(settings))  # those of NumPy
    for field in dataclasses.fields(settings):
        value = values.get(field.name, getattr(settings, field.name))
        left_open = value is None and field.type == "bool | None"
        switched = isinstance(value, (bool, int)) and value in (0, 1)
        if field.type in ("bool", "bool | None") and not left_open and not switched:
            raise ValueError(f"{field.name} must be True or False. Received: {value!r:.100}")


def check_remat(settings: Any) -> None:
    """Refuse to compute a block twice if Keras would drop out other values the second time."""
    rates = {name: getattr(settings, name) for name in ("dropout", "attention_dropout", "stochastic_depth")}
    if settings.remat and any(rates.values()):
        received = ", ".join(f"{name}={rate}" for name, rate in rates.items())
        raise ValueError(f"remat=True computes each block twice, so it needs rates of 0. Received: {received}")


def merge_schedule(value: Any, blocks: int, patches: int | None) -> int | tuple[int, ...]:
    """Return how many tokens each block merges: one number for all, or one for each."""
    # A block can merge at most half of the patches that are left.
    value = value.tolist() if hasattr(value, "tolist") else value
    one = not isinstance(value, Sequence)
    counts = tuple(positive_integer(count, "merge_tokens", least=0) for count in ([value] if one else value))
    there = patches or 0
    decided = min(blocks, there + 1)  # a file may claim any number of blocks
    if one:
        counts *= decided
    elif len(counts) != blocks:
        raise ValueError(f"merge_tokens must be one integer, or one for each of {blocks} blocks. Received: {value!r}")
    if any(counts) and patches is None:
        raise ValueError(
            "merge_tokens needs a known number of patches: pass image_size (vit_keras.resize), or merge_tokens=0 for a "
            "model of images of any size."
        )
    if (short := _too_many(counts, there)) is not None:
        most = next(count for count in range(max(counts), -1, -1) if _too_many([count] * decided, there) is None)
        raise ValueError(
            f"merge_tokens={value!r} leaves {there - sum(counts[:short])} of {there} patches before block {short}, "
            f"which can merge one half of them at most. The most that every block can merge is {most}."
        )
    return counts[0] if len(set(counts)) == 1 else counts


def _too_many(counts: Sequence[int], patches: int) -> int | None:
    """Return the first block that has to merge more than one half of its patches."""
    left = patches
    for block, count in enumerate(counts):
        if count > left // 2:
            return block
        left -= count
    return None

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
    """Return the end of a message that leads to a section of docs/troubleshooting.md, by its anchor.

    Example:
        >>> see("nan")
        ' See troubleshooting: nan.'
    """
    return f" See troubleshooting: {symptom}."


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path in which a leading `~` is the home folder; `~name` stays where nobody has that name.

    `Path.expanduser` raises an error there, and a file may be called so.

    Example:
        >>> expanded("~nobody-has-this-name.png").name
        '~nobody-has-this-name.png'
    """
    return Path(os.path.expanduser(path))


def positive_integer(value: Any, name: str, least: int = 1) -> int:
    """Return an integer of any integer type as `int`.

    Args:
        value: The value.
        name: What an error calls it.
        least: The least integer that is accepted.

    Raises:
        ValueError: It is not an integer, it is a bool, or it is less than `least`.

    Example:
        >>> positive_integer(3, "rank")
        3
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise ValueError(f"{name} must be {wanted}. Received: {value!r}")
    return number


def size_pair(value: Any, argument: str) -> tuple[int, int]:
    """Read an `int` or a `(height, width)` pair; any integer type will do.

    Raises:
        ValueError: `value` is neither one positive integer nor two.
    """
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
    """Return a value of a type.

    Args:
        value: The value.
        kind: The type, or several.
        name: What an error calls it.

    Raises:
        TypeError: It is of another type.

    Example:
        >>> instance("a", (str, bytes), "name")
        'a'
    """
    if isinstance(value, kind):
        return value
    kinds = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
    raise TypeError(f"{name} must be of the type {kinds}. Received: {received(value)}")


def python_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values that are NumPy's numbers, as Python's, which JSON can hold.

    Example:
        >>> import numpy as np
        >>> python_numbers({"rate": np.float64(0.5), "steps": 3})
        {'rate': 0.5}
    """
    import numpy as np  # the checks of names do without

    return {name: value.item() for name, value in values.items() if isinstance(value, np.generic)}


def path_text(value: Any, name: str = "weights", kinds: str = "a published name, a path or a URL") -> str:
    """Return a path or a name as text.

    Args:
        value: The value.
        name: What an error calls it.
        kinds: What else an error says would work.

    Raises:
        TypeError: It is neither.

    Example:
        >>> from pathlib import Path
        >>> path_text(Path("vit.npz"))
        'vit.npz'
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str):
        is_open = ". A model that is open is used as it is." if hasattr(value, "predict") else ""
        raise TypeError(f"{name} must be {kinds}. Received: {received(value)}{is_open}")
    return text


def received(value: Any) -> str:
    """Return what an error says was received: the columns of a table, and the first letters of anything else.

    Example:
        >>> received({"image": ["1.png"], "label": [0]}), received("x" * 200)[-3:]
        ("a table with the columns 'image', 'label'", 'xxx')
    """
    columns = getattr(value, "columns", value if isinstance(value, Mapping) else None)
    if columns is not None and not callable(columns):
        return f"a table with the columns {', '.join(map(repr, columns)):.100}"
    return f"{value!r:.100}"


def as_array(values: Any, dtype: Any = None) -> np.ndarray:
    """Return values as a NumPy array, also those of a PyTorch tensor that is on a GPU or has a gradient.

    Example:
        >>> as_array([1, 2], "float32")
        array([1., 2.], dtype=float32)
    """
    import numpy as np  # the checks of names do without

    if hasattr(values, "detach") and hasattr(values, "cpu"):  # an open file has the first
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    array = np.asarray(values, dtype)
    return array.astype("float32") if array.dtype.name == "bfloat16" else array  # which NumPy does not know


def native_order(value: Any) -> Any:
    """Return an array in the machine's byte order, which PyTorch and JAX need: astronomers' files have the other.

    Arrays in a list, a tuple or a dictionary are converted, too. Anything else is returned as it is.

    Example:
        >>> import numpy as np
        >>> native_order((np.zeros(2, ">f4"), None))[0].dtype.isnative
        True
    """
    if type(value) in (list, tuple):
        return type(value)(map(native_order, value))
    if type(value) is dict:
        return {name: native_order(each) for name, each in value.items()}
    if getattr(getattr(value, "dtype", None), "isnative", True):
        return value
    return value.astype(value.dtype.newbyteorder("="))


def numbers(value: Any, name: str, axes: int = 0) -> np.ndarray:
    """Return numbers as an array of their own dtype; of bfloat16, in float32.

    Args:
        value: An array, or what becomes one.
        name: What an error calls it.
        axes: The least number of axes.

    Raises:
        TypeError: They are not numbers.
        ValueError: They have fewer axes, or rows of different lengths.

    Example:
        >>> numbers([1, 2], "scores").shape
        (2,)
    """
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
    """Return whether a value is a finite real number and not a bool.

    Example:
        >>> is_number(0.5), is_number(True), is_number("0.5")
        (True, False, False)
    """
    try:
        return not isinstance(value, (bool, str, bytes)) and math.isfinite(value)
    except (TypeError, OverflowError):  # an integer can be too large for a float
        return False


def one_of(value: Any, name: str, choices: Iterable[Any]) -> Any:
    """Return a value if it is one of the choices.

    Raises:
        ValueError: It is none of them. The error lists them and suggests the nearest.

    Example:
        >>> one_of("skip", "errors", ("raise", "skip"))
        'skip'
    """
    choices = list(choices)
    if value not in choices:
        listed = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {listed}.{did_you_mean(value, choices)} Received: {value!r}")
    return value


_OF_AN_MLP = ("gelu", "gelu_tanh", "quick_gelu")
KNOWN_ACTIVATIONS = ("linear", "relu", "sigmoid", "silu", "softmax", "tanh")
"""Names of Keras that are known without importing it, which takes seconds."""


def check_activations(options: Mapping[str, Any]) -> None:
    """Check the names of activations among the fields of a `ViTConfig`.

    Raises:
        ValueError: One is neither Keras' nor, of an MLP, ours.

    Example:
        >>> check_activations({"activation": "sofmax"})
        Traceback (most recent call last):
        ValueError: activation must be the name of an activation. Did you mean 'softmax'? Received: 'sofmax'
    """
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
    **dict.fromkeys(("img_size", "resolution", "input_size"), ("image_size",)),
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
    **dict.fromkeys(("cubic",), ("bicubic", "bicubic_antialias")),
    **dict.fromkeys(("linear",), ("bilinear",)),
    **dict.fromkeys(("acc", "top1"), ("accuracy",)),
    **dict.fromkeys(("auc", "auroc"), ("roc_auc",)),
    **dict.fromkeys(("f1",), ("macro_f1",)),
    **dict.fromkeys(("kappa", "qwk"), ("quadratic_kappa",)),
}
"""What others call a name: the first that is possible where it was typed is suggested."""


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """Return a hint for an error, with a space before it: the choices nearest to a misspelled name, or nothing.

    Example:
        >>> did_you_mean("kat", ["cat", "dog"])
        " Did you mean 'cat'?"
        >>> did_you_mean("zebra", ["cat", "dog"])
        ''
        >>> did_you_mean("lr", ["lora", "learning_rate"])
        " Did you mean 'learning_rate'?"
        >>> did_you_mean("dinov2", ["timm/vit_dinov2", "facebook/dinov2-base"])
        " Did you mean 'facebook/dinov2-base' or 'timm/vit_dinov2'?"
    """
    by_spelling = {str(choice).lower().replace("-", "_"): choice for choice in choices if choice is not None}
    name = str(value)[:100].lower().replace("-", "_")
    near = [each for each in ALIASES.get(name, ()) if each in by_spelling][:1]
    if not near:
        near = difflib.get_close_matches(name, list(by_spelling), n=3, cutoff=0.6 if len(name) > 2 else 1.0)
        far = {each: _changes(each, name) for each in near}
        near = [each for each in near if each.startswith(name) or name.startswith(each) or _is_near(each, name)]
        near = [each for each in near if far[each] == min(far[other] for other in near)]
    if not near and len(name) > 3:  # a part of a longer name: at its beginning or that of its last part, if there are
        parts = [each for each in by_spelling if name in each]
        near = sorted(parts, key=lambda each: (f"/{name}" not in f"/{each}", len(each)))[:3]
    return f" Did you mean {' or '.join(repr(by_spelling[name]) for name in near)}?" if near else ""


def check_fields(kind: Any, names: Iterable[str], **parts: Any) -> None:
    """Refuse names that are not fields of a dataclass.

    Args:
        kind: The dataclass.
        names: Names of fields that were received.
        **parts: Fields of `kind` that are dataclasses themselves, with their types.

    Raises:
        ValueError: There are some; the error names the nearest field, or all.
    """
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
    """Refuse anything but True and False in a field of a dataclass that is one of them: any text would count as True.

    Raises:
        ValueError: A field has another value.
    """
    values = python_numbers(vars(settings))  # those of NumPy
    for field in dataclasses.fields(settings):
        value = values.get(field.name, getattr(settings, field.name))
        left_open = value is None and field.type == "bool | None"
        switched = isinstance(value, (bool, int)) and value in (0, 1)
        if field.type in ("bool", "bool | None") and not left_open and not switched:
            raise ValueError(f"{field.name} must be True or False. Received: {value!r:.100}")


def _is_near(one: str, other: str) -> bool:
    """Return whether changes of at most a third of the letters make one word the other."""
    return _changes(one, other) <= max(1, max(len(one), len(other)) // 3)


def _changes(one: str, other: str) -> int:
    """Return how many letters must be changed, added, removed or exchanged with the next."""
    rows = [[*range(len(other) + 1)]]
    for number, letter in enumerate(one, start=1):
        above, row = rows[-1], [number]
        for place, wanted in enumerate(other, start=1):
            row.append(min(above[place] + 1, row[-1] + 1, above[place - 1] + (letter != wanted)))
            if min(number, place) > 1 and one[number - 2 : number] == other[place - 2 : place][::-1]:
                row[-1] = min(row[-1], rows[-2][place - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def merge_schedule(value: Any, blocks: int, patches: int | None) -> int | tuple[int, ...]:
    """Read how many tokens each block merges: one number for all blocks, or one for each.

    Raises:
        ValueError: It is neither, the number of patches is not known, or a block has too few patches left: it can merge
            one half of them.

    Example:
        >>> merge_schedule([8, 8], 2, 196), merge_schedule([8, 0], 2, 196)
        (8, (8, 0))
    """
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

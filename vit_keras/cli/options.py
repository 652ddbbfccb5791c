"""Values of options: what they may be, without importing Keras, and what they mean."""

from __future__ import annotations

import argparse
import ast
import contextlib
import glob
import json
import math
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from .._internal.validate import expanded, one_of
from ..visualize.methods import METHODS

__all__ = [
    "DEFAULT_MODEL",
    "SORTS",
    "STYLES",
    "TABLES",
    "image_size",
    "image_size_or_any",
    "integer",
    "loading",
    "method",
    "number",
    "paths_of",
    "setting",
    "settings",
]

# Names from modules that import Keras, which takes seconds; a test compares them with their originals.
DEFAULT_MODEL = "vit_ti16"
STYLES = ("overlay", "paper", "vit_keras")

SORTS = ("name", "top1", "mb", "params", "gmac", "px")
"""The columns that `models` sorts by."""

TABLES = {".csv": "csv", ".json": "array", ".jsonl": "json"}
"""The suffixes of files of predictions, and the form of each."""


def method(text: str) -> str:
    """Return the name of a method of `attention_map`.

    Raises:
        argparse.ArgumentTypeError: The method is unknown.

    Example:
        >>> method("rollout")
        'rollout'
    """
    try:
        return one_of(text, "--method", METHODS)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def integer(least: int = 1, most: float = math.inf) -> Callable[[str], int]:
    """Return the type of an option: an integer in a range.

    Raises:
        argparse.ArgumentTypeError: By the type, if a text is another one.

    Example:
        >>> integer()("3")
        3
    """
    return lambda text: _in_range(text, int, "an integer", least, most)


def number(least: float = 0.0, most: float = math.inf) -> Callable[[str], float]:
    """Return the type of an option: a number in a range.

    Raises:
        argparse.ArgumentTypeError: By the type, if a text is another one.

    Example:
        >>> number(most=1)("0.2")
        0.2
    """
    return lambda text: _in_range(text, float, "a number", least, most)


def _in_range(text: str, kind: Callable[[str], Any], words: str, least: float, most: float) -> Any:
    with contextlib.suppress(ValueError):
        if math.isfinite(value := kind(text)) and least <= value <= most:
            return value
    limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    raise argparse.ArgumentTypeError(f"expected {words} {limits}. Received: {text!r}")


def setting(text: str) -> tuple[str, Any]:
    """Return the name and the value of `--set NAME=VALUE`; a value in JSON or Python is parsed, another is a text.

    Raises:
        argparse.ArgumentTypeError: The text has another form.

    Example:
        >>> setting("num-heads=6"), setting("activation=softmax")
        (('num_heads', 6), ('activation', 'softmax'))
    """
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, such as num_heads=3. Received: {text!r}")
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return name, parse(value.strip())
    return name, value


def image_size(text: str) -> tuple[int, int] | str:
    """Return `(height, width)`; `"native"` stays.

    Raises:
        argparse.ArgumentTypeError: The text is not a size.

    Example:
        >>> image_size("224"), image_size("96x64"), image_size("native")
        ((224, 224), (96, 64), 'native')
    """
    if text == "native":
        return text
    found = re.fullmatch(r"([1-9]\d{0,5})(?:[x×]([1-9]\d{0,5}))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"expected N for a square, HxW or native. Received: {text!r}")
    return int(found[1]), int(found[2] or found[1])


def image_size_or_any(text: str) -> tuple[int, int] | str | None:
    """Return what `image_size` does, and `None` for `any`.

    Example:
        >>> image_size_or_any("224"), image_size_or_any("any")
        ((224, 224), None)
    """
    return None if text == "any" else image_size(text)


def paths_of(names: Iterable[str]) -> list[str]:
    """Return names, and for patterns such as `fold*/model.keras`, which not every shell expands, what they match.

    A pattern that matches nothing stays, and so does a file whose name is one.

    Example:
        >>> paths_of(["vit_b16", "no_such_folder/*.jpg"])
        ['vit_b16', 'no_such_folder/*.jpg']
    """
    found: list[str] = []
    for name in names:
        path = expanded(name)
        found += [name] if os.path.exists(path) else sorted(glob.glob(os.fspath(path))) or [name]
    return found


def loading(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `from_checkpoint`.

    Raises:
        ValueError: One is given both as an option and by `--set`.
    """
    own = [name for name in ("family", "key", "image_size") if name in vars(options)]
    return settings(options, own) | {name: getattr(options, name) for name in own}


def settings(options: argparse.Namespace, own: Iterable[str]) -> dict[str, Any]:
    """Return what `--set` sets.

    Raises:
        ValueError: It sets one of the command's own options, or what the command passes in another way.
    """
    found = dict(options.set)
    for name in own:
        if name in found:
            raise ValueError(f"Use --{name.replace('_', '-')} instead of --set {name}=…")
    for name in ("model", "weights", "tokenizer"):
        if name in found:
            raise ValueError(f"--set cannot set {name!r}, which is not a field of a model.")
    return found

"""Turn an argument into an option of argparse, by its annotation and its documentation. Imports nothing heavy."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from .signatures import Argument

__all__ = ["Setting", "form_of", "help_of", "setting", "settings_of"]

Setting: TypeAlias = tuple[str, Any]
"""`--set NAME=VALUE`."""


def form_of(argument: Argument) -> dict[str, Any]:
    """Return the arguments of `add_argument` that follow from an annotation: type, choices, number of values."""
    words, default = set(re.findall(r"\w+", argument.annotation)), argument.default
    name = argument.option.upper().replace("-", "_").rpartition("_")[2]
    form: dict[str, Any] = {"metavar": name}
    one_text = "str" in argument.annotation.split(" | ")
    if "Sequence" in words or ("Iterable" in words and not one_text):
        several = _OneOrSeveral if one_text else "extend"
        form = {"metavar": name.removesuffix("S"), "nargs": "+", "action": several}
    if argument.choices:
        module, _, table = argument.choices.rpartition(".")
        return {"choices": list(getattr(importlib.import_module(f"vit_keras.{module}"), table))}
    if literal := re.search(r"Literal\[(.*?)\]", argument.annotation):
        both = {"nargs": "?", "const": True} if "bool" in words else {}
        return {"choices": ast.literal_eval(f"({literal[1]},)"), **both}
    if "bool" in words:
        switches = {False: "store_true", True: "store_false", None: argparse.BooleanOptionalAction}
        return {"action": switches[default]}
    for word, more in _FORMS.items():
        if word in words:
            return form | more
    if "int" in words:
        if "str" in words:
            return form | {"metavar": "N|NAME", "type": lambda text: int(text) if text.isdecimal() else text}
        return form | {"metavar": "N", "type": integer(min(1, default) if isinstance(default, int) else 1)}
    return form


class _OneOrSeveral(argparse.Action):
    """Keeps one text as a text, and several as a list."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, values[0] if len(values) == 1 else values)


def help_of(argument: Argument) -> str:
    """Return the first sentence of the documentation of an argument, and its default."""
    text = re.split(r"(?<=[^.A-Z])\. ", argument.text, maxsplit=1)[0].removesuffix(".")
    text = re.sub(r" \(see [^)]*\)", "", text).removeprefix("Whether to ").replace("`None`:", "default:")
    text = re.sub(r"`\"?(.*?)\"?`", r"\1", text)
    text = text if text[1:2].isupper() else text[0].lower() + text[1:]
    default = argument.default
    if not (argument.required or "default: " in text or isinstance(default, bool) or default in (None, (), "")):
        text += f"; default: {default:g}" if isinstance(default, float) else f"; default: {default}"
    return text.replace("%", "%%")


def integer(least: int = 1, most: float = math.inf) -> Callable[[str], int]:
    """Return the type of an option: an integer in a range."""
    return lambda text: _in_range(text, int, "an integer", least, most)


def number(least: float = 0.0, most: float = math.inf) -> Callable[[str], float]:
    """Return the type of an option: a number in a range."""
    return lambda text: _in_range(text, float, "a number", least, most)


def _in_range(text: str, kind: Callable[[str], Any], words: str, least: float, most: float) -> Any:
    with contextlib.suppress(ValueError):
        if math.isfinite(value := kind(text)) and least <= value <= most:
            return value
    limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    raise argparse.ArgumentTypeError(f"expected {words} {limits}. Received: {text!r}")


def setting(text: str) -> Setting:
    """Return the name and the value of `--set NAME=VALUE`, a value in JSON or Python, or else a text."""
    name, equals, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, such as num_heads=3. Received: {text!r}")
    for parse in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return name, parse(value.strip())
    return name, value


def image_size(text: str) -> tuple[int, int] | str:
    """Return `(height, width)` of `224` or `96x64`; `"native"` stays."""
    if text in ("auto", "native"):
        return text
    size = re.fullmatch(r"([1-9]\d{0,5})(?:[x×]([1-9]\d{0,5}))?", text)
    if not size:
        raise argparse.ArgumentTypeError(f"expected N for a square, HxW or native. Received: {text!r}")
    return int(size[1]), int(size[2] or size[1])


def settings_of(set: Iterable[Setting] = (), **own: Any) -> dict[str, Any]:
    """Return the settings of `--set` and a command's own options; raise a ValueError if both have one."""
    settings = dict(set)
    for name in settings:
        if name in ("model", "weights", "tokenizer"):
            raise ValueError(f"--set cannot set {name!r}, which is not a field of a model.")
        if name in own:
            raise ValueError(f"--{name.replace('_', '-')} and --set {name}=… exclude each other. Remove one.")
    return settings | own


_FORMS: dict[str, dict[str, Any]] = {
    "ImageSize": {"metavar": "N|HxW|any", "type": lambda text: None if text == "any" else image_size(text)},
    "Port": {"metavar": "N", "type": integer(0, 65535)},
    "Setting": {"metavar": "NAME=VALUE", "type": setting, "nargs": None, "action": "append"},
    "Share": {"metavar": "SHARE", "type": number(most=1)},
    "tuple": {"metavar": "N|HxW", "type": image_size},
    "float": {"metavar": "N", "type": number()},
}
"""By a word of an annotation. The names that are not types of Python are aliases."""

"""Read signatures and documentation from source: the modules of the functions, which may import Keras, are not run."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Argument", "Command", "arguments_of", "head_of"]

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_HEAD = r'^(?:def {0}\(.*?""".*?"""|class {0}:.*?(?=\n    def |\n    @|\n\S))'
_ARGUMENTS = re.compile(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", re.DOTALL | re.MULTILINE)
_ARGUMENT = re.compile(r"^    (\w+): (.*?)(?=^    \S|\Z)", re.DOTALL | re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Command:
    """A command: the function that runs it, and how its options differ from the arguments of that function.

    Attributes:
        function: `module.function` in this package.
        example: The arguments of an example.
        more: Functions and dataclasses that get the `**options` of the function, or that describe its arguments.
        without: Arguments that are not options.
        names: Other names of arguments on the command line.
        choices: Tables of the names among which an argument chooses, as `module.TABLE`.
    """

    function: str
    example: str
    more: tuple[str, ...] = ()
    without: str = ""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Argument:
    """An argument of a command; `option` is its name on the command line."""

    name: str
    annotation: str
    default: Any
    positional: bool
    text: str
    option: str
    choices: str = ""

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty


@functools.cache
def head_of(path: str) -> Callable[..., Any]:
    """Return a function with the signature and the documentation of `module.function`, and without its body."""
    # The fields of a dataclass are its arguments. Without source, as in a frozen program, it is the function itself.
    module, _, name = path.rpartition(".")
    place = os.path.join(_PACKAGE, *module.split("."))
    try:
        with open(f"{place}/__init__.py" if os.path.isdir(place) else f"{place}.py", encoding="utf-8") as file:
            head = re.search(_HEAD.format(name), file.read(), flags=re.DOTALL | re.MULTILINE)
    except OSError:
        return getattr(importlib.import_module(f"vit_keras.{module}"), name)
    if head is None:
        raise LookupError(f"vit_keras.{path} is not a function or class with documentation.")
    names: dict[str, Any] = {}
    source = f"from __future__ import annotations\n{head[0]}"
    exec(compile(source, place, "exec", optimize=0), names)  # `python -OO` would leave the documentation out
    return names[name] if head[0].startswith("def") else dataclasses.dataclass(kw_only=True)(names[name])


def arguments_of(command: Command) -> dict[str, Argument]:
    """Return the arguments of a command by name, each from the first function that documents it."""
    # The command's own function may have another default, and decides which arguments are positional.
    found: dict[str, Argument] = {}
    heads = [head_of(path) for path in (command.function, *command.more)]
    own = inspect.signature(heads[0]).parameters
    for head in heads:
        section = _ARGUMENTS.search(inspect.getdoc(head) or "")
        parameters = inspect.signature(head).parameters
        for name, text in _ARGUMENT.findall(section[1]) if section else ():
            if name in parameters and name not in (*found, *command.without.split()):
                theirs, ours = parameters[name], own.get(name)
                found[name] = Argument(
                    name,
                    str(theirs.annotation),
                    theirs.default if ours is None or ours.default is ours.empty else ours.default,
                    ours is not None and ours.kind is ours.POSITIONAL_OR_KEYWORD,
                    " ".join(text.split()),
                    command.names.get(name, name),
                    command.choices.get(name, ""),
                )
    return found

"""Names of options, and errors that name the nearest one for a misspelled name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from .._internal.validate import did_you_mean


def parameters_of(function: Callable[..., Any], without: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names of a function's parameters, except those that a `functools.partial` has bound."""
    bound = function.keywords if isinstance(function, functools.partial) else ()
    return tuple(name for name in inspect.signature(function).parameters if name not in (*bound, *without))


def check_options(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise a TypeError that suggests a name if an option does not exist."""
    known = list(known)
    for name in given:
        if name not in known:
            listed = f" Its options: {', '.join(known)}." if known else ""
            raise TypeError(f"{what} has no option {name!r}.{did_you_mean(name, known)}{listed}")

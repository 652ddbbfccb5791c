"""Warnings that point to the user's own line."""

from __future__ import annotations

import re
import sys
import warnings

LIMIT = 4_000
"""Characters of a warning, which may quote a file."""

_PACKAGE = __name__.partition(".")[0]


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the nearest caller outside of this package, as `skip_file_prefixes=` of Python 3.12 does."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message if len(message) <= LIMIT else f"{message[:LIMIT]} …", category, stacklevel=level)


def ignore_in_process(category: type[Warning], module: str = "") -> None:
    """Ignore a kind of warning from now on, in the whole process."""
    # Up to Python 3.13, `warnings.catch_warnings` in several threads leaves the filters of one thread to another, or
    # forgets those that were added in between.
    rule = ("ignore", None, category, re.compile(module) if module else None, 0)
    if rule not in warnings.filters:  # each change lets warnings appear again that are shown once
        warnings.filterwarnings("ignore", category=category, module=module)

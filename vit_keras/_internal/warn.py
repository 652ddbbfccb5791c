"""Warnings that point to the user's own line."""

from __future__ import annotations

import sys
import warnings

LIMIT = 4_000
"""Characters of a warning, which may quote a file."""

_PACKAGE = __name__.partition(".")[0]


def warn_caller(message: str) -> None:
    """Issue a `UserWarning` at the nearest caller outside of this package, however deep inside it the cause is.

    `warnings.warn(skip_file_prefixes=)` does the same from Python 3.12 on.
    """
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message if len(message) <= LIMIT else f"{message[:LIMIT]} …", UserWarning, stacklevel=level)

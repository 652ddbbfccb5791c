"""Numbers and tables in plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean; `None` of fewer than two values."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


def with_error(value: float, error: float | None, sign: str = "+") -> str:
    """Return a number with three digits and, where there is one, its error."""
    return f"{value:{sign}.3f}" + ("" if error is None else f" ± {error:.3f}")


def table(columns: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table in plain text; the first column is aligned left, the others right."""
    lines = [[*line, *[""] * (len(columns) - len(line))] for line in (columns, *lines)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    )

"""Checks of arguments, with errors that name what was received and what would work."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["did_you_mean", "is_number", "one_of", "positive_integer"]


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


def is_number(value: Any) -> bool:
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


def did_you_mean(value: Any, choices: Iterable[Any]) -> str:
    """Return a hint for an error, with a space before it: the choices nearest to a misspelled name, or nothing.

    Example:
        >>> did_you_mean("kat", ["cat", "dog"])
        " Did you mean 'cat'?"
        >>> did_you_mean("zebra", ["cat", "dog"])
        ''
    """
    by_spelling = {str(choice).lower().replace("-", "_"): choice for choice in choices if choice is not None}
    near = difflib.get_close_matches(str(value).lower().replace("-", "_"), list(by_spelling), n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(repr(by_spelling[name]) for name in near)}?" if near else ""


def merge_schedule(value: Any, blocks: int, patches: int | None) -> int | tuple[int, ...]:
    """Read how many tokens each block merges: one number for all blocks, or one for each.

    Raises:
        ValueError: It is neither, the number of patches is not known, or a block has too few patches left: it can merge
            one half of them.

    Example:
        >>> merge_schedule([8, 8], 2, 196), merge_schedule([8, 0], 2, 196)
        (8, (8, 0))
    """
    one = not isinstance(value, (tuple, list))
    counts = tuple(positive_integer(count, "merge_tokens", least=0) for count in ([value] if one else value))
    decided = min(blocks, (patches or 0) + 1)  # a file may claim any number of blocks
    if one:
        counts *= decided
    elif len(counts) != blocks:
        raise ValueError(f"merge_tokens must be one integer, or one for each of {blocks} blocks. Received: {value!r}")
    if any(counts) and patches is None:
        raise ValueError("merge_tokens needs a known number of patches: pass image_size (vit_keras.resize) first.")
    if (short := _too_many(counts, patches)) is not None:
        most = next(count for count in range(max(counts), -1, -1) if _too_many([count] * decided, patches) is None)
        raise ValueError(
            f"merge_tokens={value!r} leaves {patches - sum(counts[:short])} of {patches} patches before block {short}, "
            f"which can merge one half of them at most. The most that every block can merge is {most}."
        )
    return counts[0] if len(set(counts)) == 1 else counts


def _too_many(counts: Sequence[int], patches: int | None) -> int | None:
    """Return the first block that has to merge more than one half of its patches."""
    left = patches or 0
    for block, count in enumerate(counts):
        if count > left // 2:
            return block
        left -= count
    return None

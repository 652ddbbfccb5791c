"""The progress bar. It is on standard error, so that standard output holds results alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(
    description: str, total: int | None, *, unit: str = "pictures", start: int = 0, show: bool = True
) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar on standard error while the block runs.

    Args:
        description: The task; of a longer text the first 20 characters are shown.
        total: Number of units; `None` if unknown.
        unit: What is counted; `"bytes"` are shown as kB and MB, with their speed.
        start: Units that are done already.
        show: Whether to draw anything.

    Yields:
        A function that advances the bar by a number of units.

    Example:
        >>> with progress_bar("cats", 2, show=False) as advance:
        ...     advance(2)
    """
    if not show:
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    if unit == "bytes":
        counts = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    else:
        counts = (progress.MofNCompleteColumn(), progress.TextColumn(unit))
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *counts, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        name = description if len(description) <= 20 else f"{description[:19]}…"
        task = bar.add_task(name, total=total, completed=start)
        yield lambda count: bar.advance(task, count)

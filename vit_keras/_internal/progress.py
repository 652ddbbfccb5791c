"""The progress bar. It is on standard error, so that standard output holds results alone; in a notebook, inline."""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(
    description: str, total: int | None, *, unit: str = "images", start: int = 0, show: bool = True
) -> Iterator[Callable[[int], None]]:
    """Draw a progress bar on standard error while the block runs, and yield a function that advances it."""
    # In a notebook, it is one line below the cell. `start` units are done already; the unit "bytes" is shown as kB and
    # MB.
    if not show:
        yield lambda count: None
        return
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    name = description if len(description) <= 20 else f"{description[:19]}…"
    if console.is_jupyter:  # Rich needs ipywidgets there, and without them draws nothing
        with _inline(name, total, unit, start) as advance:
            yield advance
        return
    if unit == "bytes":
        counts = (progress.DownloadColumn(), progress.TransferSpeedColumn())
    else:
        counts = (progress.MofNCompleteColumn(), progress.TextColumn(unit))
    columns = (progress.TextColumn("{task.description}"), progress.BarColumn(), *counts, progress.TimeRemainingColumn())
    with progress.Progress(*columns, console=console) as bar:
        task = bar.add_task(name, total=total, completed=start)
        yield lambda count: bar.advance(task, count)


@contextlib.contextmanager
def _inline(name: str, total: int | None, unit: str, start: int) -> Iterator[Callable[[int], None]]:
    """Draw a bar below a cell of a notebook: one output, which is replaced a few times a second."""
    from IPython.display import HTML, display

    done, next_time = start, 0.0

    def bar() -> HTML:
        counted = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        length = "" if total is None else f' value="{done}" max="{total}"'
        return HTML(f"{html.escape(name)} <progress{length}></progress> {counted} {unit}")

    shown = display(bar(), display_id=True)

    def advance(count: int) -> None:
        nonlocal done, next_time
        done += count
        if time.monotonic() >= next_time:
            shown.update(bar())
            next_time = time.monotonic() + _SECONDS

    try:
        yield advance
    finally:
        shown.update(bar())


_SECONDS = 0.3
"""Seconds between two updates in a notebook."""

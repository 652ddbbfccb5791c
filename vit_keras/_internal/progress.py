"""The progress bar. It is on standard error, so that standard output holds results alone; in a notebook, inline.

Without a terminal, there is a line every few seconds instead.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["SECONDS_BETWEEN_LINES", "progress_bar", "still_working"]

SECONDS_BETWEEN_LINES = 5.0


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
    if console.is_jupyter or not console.is_terminal:  # Rich needs ipywidgets in a notebook
        with (_inline if console.is_jupyter else _lines)(name, total, unit, start) as advance:
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
def still_working(description: str) -> Iterator[None]:
    """Print a line on standard error every few seconds while the block runs."""
    done, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(SECONDS_BETWEEN_LINES):
            print(f"{description}: {time.monotonic() - begun:.0f} seconds", file=sys.stderr, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextlib.contextmanager
def _lines(name: str, total: int | None, unit: str, start: int) -> Iterator[Callable[[int], None]]:
    def show(done: int) -> None:
        scale, word = (1e6, "MB") if unit == "bytes" else (1, unit)
        of_all = "" if total is None else f"/{total / scale:,.0f}"
        print(f"{name}: {done / scale:,.0f}{of_all} {word}", file=sys.stderr, flush=True)

    yield _every(SECONDS_BETWEEN_LINES, start, show)


@contextlib.contextmanager
def _inline(name: str, total: int | None, unit: str, start: int) -> Iterator[Callable[[int], None]]:
    """Draw a bar below a cell of a notebook: one output, which is replaced a few times a second."""
    import html

    from IPython.display import HTML, display

    last = start

    def bar(done: int) -> HTML:
        counted = f"{done:,}" if total is None else f"{done:,}/{total:,}"
        length = "" if total is None else f' value="{done}" max="{total}"'
        return HTML(f"{html.escape(name)} <progress{length}></progress> {counted} {unit}")

    shown = display(bar(start), display_id=True)
    advance = _every(0.3, start, lambda done: shown.update(bar(done)))

    def count(more: int) -> None:
        nonlocal last
        last += more
        advance(more)

    try:
        yield count
    finally:
        shown.update(bar(last))


def _every(seconds: float, done: int, show: Callable[[int], None]) -> Callable[[int], None]:
    """Return a function that counts, and shows the count when some seconds have passed since it last did."""
    next_time = time.monotonic() + seconds

    def advance(count: int) -> None:
        nonlocal done, next_time
        done += count
        if time.monotonic() >= next_time:
            show(done)
            next_time = time.monotonic() + seconds

    return advance

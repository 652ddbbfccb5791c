"""Output of the command line: messages, headings with texts, tables. Needs no Keras and no NumPy."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .._internal.imports import spec_around

__all__ = [
    "complain",
    "print_pairs",
    "print_table",
    "printable",
    "quiet_imports",
    "quietly",
    "warnings_in_one_line",
]

_HEADING = 14  # columns
_COLORS = {"red": ("problem", "unreadable"), "yellow": ("say", "pass", "unknown", "but", "new")}
_STYLES = {heading: color for color, headings in _COLORS.items() for heading in headings}


def complain(problem: Any) -> None:
    """Print an error or a warning in one line on standard error."""
    if isinstance(problem, OSError) and problem.strerror is not None:  # the words of the system
        problem = problem.strerror if problem.filename is None else f"{problem.filename}: {problem.strerror}"
    print("vit-keras:", printable(" ".join(str(problem).split())), file=sys.stderr)


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Print warnings to the user in one line each while the block runs; those to developers as Python does."""
    with warnings.catch_warnings():
        as_python_does = warnings.showwarning

        def show(message, category, *place):
            if category is UserWarning:
                complain(f"warning: {message}")
            else:
                as_python_does(message, category, *place)

        warnings.showwarning = show
        yield


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide what libraries write to standard error while they are imported, unless the import fails."""
    # TensorFlow 2.21 writes lines about oneDNN there that no setting of its own turns off.
    try:
        shown = os.dup(2)
    except OSError:  # there is no standard error
        yield
        return
    with tempfile.TemporaryFile() as hidden:
        sys.stderr.flush()
        os.dup2(hidden.fileno(), 2)
        try:
            yield
        except BaseException:
            hidden.seek(0)
            os.write(shown, hidden.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


class _Quiet:
    """A finder that imports Keras and TensorFlow, which Keras imports on PyTorch too, quietly."""

    def find_spec(self, name, path=None, target=None):
        return spec_around(self, quietly(), name, path, target) if name in ("keras", "tensorflow") else None


@contextlib.contextmanager
def quiet_imports() -> Iterator[None]:
    """Import Keras and its backend quietly while the block runs, wherever in the package that happens."""
    finder = _Quiet()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def printable(text: str) -> str:
    """Return a text with its control characters spelled out: a name in a file must not steer a terminal."""
    return "".join(c if c.isprintable() or c == "\xa0" else c.encode("unicode_escape").decode() for c in text)


def print_pairs(pairs: Iterable[tuple[str, str]], title: str | None = None) -> None:
    """Print headings on the left and wrapped texts on the right; a repeated heading is printed once."""
    from rich.table import Table
    from rich.text import Text

    console = _console()
    if title is not None:
        console.print(printable(title), style="bold", soft_wrap=True)
        console.print()
    grid = Table.grid()
    grid.add_column(width=_HEADING)
    grid.add_column(overflow="fold", min_width=20)
    previous = None
    for heading, text in pairs:
        shown = "" if heading == previous else heading
        grid.add_row(Text(shown, _STYLES.get(heading, "cyan")), Text(printable(text)))
        previous = heading
    _print_lines(console, grid, console.width)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], aligns: str, least: int = 0) -> None:
    """Print a table, each column aligned by `<` or `>`; a cell that is too wide continues on the next line."""
    # At least `least` columns wide. Cells beyond the last heading are left out.
    from rich.table import Table
    from rich.text import Text

    console = _console()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading, align in zip(header, aligns):
        table.add_column(heading, justify="left" if align == "<" else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row[: len(header)]))
    _print_lines(console, table, max(console.width, least))


def _console():
    """Return where to print: in color and as wide as the terminal, or plain and with long lines in a pipe."""
    from rich.console import Console

    narrow = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()
    width = shutil.get_terminal_size().columns if narrow else 1000  # which knows that COLUMNS=0 is no width
    return Console(width=width, markup=False, highlight=False, emoji=False)


def _print_lines(console, table, width: int) -> None:
    """Print a table without the spaces at the ends of its lines."""
    from rich.text import Text

    for line in console.render_lines(table, console.options.update(width=width), pad=False):
        text = Text.assemble(*((segment.text, segment.style or "") for segment in line))
        text.rstrip()
        console.print(text, soft_wrap=True)

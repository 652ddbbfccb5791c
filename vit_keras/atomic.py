"""Files that appear only when they are complete."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["complete"]


@contextlib.contextmanager
def complete(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Write a file that appears at its path when the block ends, and not at all if the block raises.

    Args:
        target: The file; its folder must exist.

    Yields:
        The path to write to: the same name, in a temporary folder beside the target.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The target is a folder.

    Example:
        >>> with complete("notes.txt") as part:
        ...     part.write_text("complete")
        8
    """
    target = Path(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} to write {target.name} to.")
    if target.is_dir():
        raise ValueError(f"{target} is a folder: name the file in it.")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".vit_keras-") as folder:
        part = Path(folder, target.name)
        yield part
        os.replace(part, target)

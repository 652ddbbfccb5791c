"""Files that appear only when they are complete, whatever happens to the process or the disk."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .validate import expanded, path_text

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

__all__ = [
    "check_not_read",
    "check_output",
    "check_writable",
    "complete",
    "delete_left",
    "naming",
    "of_the_disk",
    "put_together",
    "workspace",
]

_PREFIX = ".vit_keras-"
_NAMES = ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO")
_OF_THE_DISK = {getattr(errno, name) for name in _NAMES if hasattr(errno, name)}


@contextlib.contextmanager
def complete(target: str | os.PathLike[str], make_folder: bool = False) -> Iterator[Path]:
    """Write a file that appears at its path when the block ends, and not at all if the block raises.

    Args:
        target: The file.
        make_folder: Whether to make its folder, which must exist otherwise.

    Yields:
        The path to write to: the same name, in a temporary folder beside the target (see `workspace`).

    Raises:
        FileNotFoundError: The folder does not exist.
        OSError: The disk is full or failed; the error names the target.
        TypeError: The target is not a path.
        ValueError: The target is a folder.

    Example:
        >>> with complete("notes.txt") as part:
        ...     part.write_text("complete")
        8
    """
    target = Path(path_text(target, "The file to write", "a path"))
    if make_folder:
        target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"There is no folder {target.parent} to write {target.name} to.")
    if target.is_dir():
        raise ValueError(f"{target} is a folder: name the file in it.")
    with naming(target), workspace(target.parent) as folder:
        part = folder / target.name
        yield part
        os.replace(part, target)


@contextlib.contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """Make a temporary folder in a folder, and delete it when the block ends.

    The temporary folders of processes that were killed are deleted first. A process holds a lock on its own folder as
    long as it lives. Where there are no such locks (on Windows, and in some network folders), they are left.

    Args:
        parent: The folder, which must exist.

    Yields:
        The path of the temporary folder.

    Raises:
        PermissionError: The folder may not be written to; the error names it.

    Example:
        >>> with workspace(Path(".")) as folder:
        ...     folder.is_dir()
        True
    """
    delete_left(parent)
    while True:
        try:
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=_PREFIX))
        except OSError as error:  # it names the temporary folder
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            reason = f"Could not write to {parent}: {error.strerror}. Choose another folder."
            raise PermissionError(reason) from None
        with _lock(folder) as alone:
            if alone is False:  # another process took it for one that was left
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


def check_writable(folder: Path) -> None:
    """Check, before what takes time, that files can be written into a folder, which need not exist yet.

    Args:
        folder: The folder.

    Raises:
        NotADirectoryError: The folder, or one that it is in, is a file.
        PermissionError: The folder, or the nearest one above it that exists, may not be written to.

    Example:
        >>> check_writable(Path("new/folder"))
    """
    nearest = next((each for each in (folder, *folder.parents) if each.exists()), folder)
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest} is a file, not a folder. Choose another name for the output.")
    with workspace(nearest):
        pass


def check_output(targets: Iterable[Path], sources: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Raise an error if an output is a folder, would replace a file that is read, or cannot be written."""
    targets = [*targets]
    for target in targets:
        if target.is_dir():
            raise ValueError(f"{target} is a folder. Pass the name of a file in it.")
    check_not_read(targets, sources)
    for folder in {target.parent for target in targets}:
        check_writable(folder)


def check_not_read(targets: Iterable[Path], sources: Iterable[str | os.PathLike[str]]) -> None:
    """Raise `ValueError` if an output would replace a file that is read. Each file is looked up once."""
    targets = [target for target in targets if target.exists()]
    found = [source for source in map(expanded, sources) if source.exists()] if targets else []
    read, in_pieces = {_identity(source) for source in found}, set()
    for source in found:
        if source.is_dir() or source.name.endswith(".json"):
            in_pieces.add(_identity(source if source.is_dir() else source.parent))
    for target in targets:
        if _identity(target) in read or (in_pieces and _identity(target.parent) in in_pieces):
            raise ValueError(f"{target} is an input too. Choose another name for the output.")


def _identity(path: Path) -> tuple[int, int]:
    """Return a value that all names of a file share; see `os.path.samestat`."""
    status = path.stat()
    return status.st_dev, status.st_ino


def put_together(source: Path, target: Path, names: Sequence[str]) -> None:
    """Move files that belong together to their folder. Old ones and new ones are never there together.

    One file or folder alone is replaced at once. Of several, the old ones after the first are deleted before: whoever
    stops the process between two moves leaves a part of the new ones.

    Args:
        source: The folder where they are: a `workspace` in the target, or beside it.
        target: The folder where they go.
        names: Their names. Each one after the first describes those before it. A name that the source does not have is
            only deleted in the target.

    Raises:
        OSError: The disk failed.

    Example:
        >>> with workspace(Path(".")) as folder:
        ...     for name in ("weights.bin", "config.json"):
        ...         _ = (folder / name).write_text("new")
        ...     put_together(folder, Path("."), ["weights.bin", "config.json"])
    """
    first, *others = [name for name in names if (source / name).exists()]
    old = [name for name in names if (target / name).exists()]
    for name in reversed(old):
        if name != first or old[0] != first:  # else it is replaced at once, and needs none that are deleted
            (target / name).unlink(missing_ok=True)
    if (target / first).is_dir():
        _exchange(source / first, target / first)
    else:
        os.replace(source / first, target / first)
    for name in others:
        os.replace(source / name, target / name)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders: at once where the system can, else in three steps."""
    library, names = ctypes.CDLL(None, use_errno=True) if fcntl else None, [os.fsencode(path) for path in (one, other)]
    if library is not None and sys.platform == "linux" and hasattr(library, "renameat2"):
        here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        if library.renameat2(here, names[0], here, names[1], exchange) == 0:
            return
    elif library is not None and sys.platform == "darwin" and library.renamex_np(*names, 2) == 0:  # RENAME_SWAP
        return
    before = one.with_name(f"{one.name}.before")
    os.replace(other, before)
    try:
        os.replace(one, other)
    except OSError:
        os.replace(before, other)
        raise
    os.replace(before, one)


def delete_left(parent: Path) -> None:
    """Delete the temporary folders that killed processes left in a folder; see `workspace`.

    Example:
        >>> delete_left(Path("."))
    """
    for left in parent.glob(f"{_PREFIX}*"):
        with _lock(left) as alone:
            if alone:
                shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool | None]:
    """Yield whether the folder exists and no other process holds it; `None` where that cannot be known."""
    if fcntl is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alone = folder.exists()  # the one before us may have deleted it
        except (BlockingIOError, FileNotFoundError):
            alone = False
        except OSError:
            alone = None
        yield alone


@contextlib.contextmanager
def naming(target: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file that is written in errors of the disk, which are raised without a name.

    Args:
        target: The file.

    Raises:
        OSError: The disk is full or failed while the block ran.

    Example:
        >>> with naming("features.npz"):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
        OSError: Could not write features.npz: No space left on device. Free some space there, or choose another folder.
    """
    try:
        yield
    except Exception as error:
        number = _number(error)
        if number is None or (isinstance(error, OSError) and error.strerror is None):  # it has a text of ours
            raise
        reason = os.strerror(number)
        new = OSError(
            f"Could not write {os.fspath(target)}: {reason}. Free some space there, or choose another folder."
        )
        new.errno = number
        raise new from error


def _number(error: BaseException) -> int | None:
    """Return the number of an error of the disk. TensorFlow and others tell it in the text of errors of their own."""
    if isinstance(error, OSError):
        return error.errno if error.errno in _OF_THE_DISK else None
    return next((number for number in _OF_THE_DISK if os.strerror(number) in str(error)), None)


def of_the_disk(error: BaseException) -> bool:
    """Return whether an error says that the disk is full, read-only or failed.

    Example:
        >>> of_the_disk(OSError(errno.ENOSPC, "No space left on device")), of_the_disk(ConnectionResetError())
        (True, False)
    """
    return isinstance(error, OSError) and _number(error) is not None

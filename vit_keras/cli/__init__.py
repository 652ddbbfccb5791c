"""The command `vit-keras`: every subcommand is a call into the package."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
import shlex
import sys
from collections.abc import Sequence

from .console import complain, quiet_imports, warnings_in_one_line
from .loading import check_given
from .parser import COMMANDS, build_parser

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, and return the exit status: 0, 1 after an error message, or 130 after Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _open_missing_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: its encoding may lack a character
    try:
        command = [name for name in arguments[:1] if name in COMMANDS]
        options = vars(build_parser(*command).parse_args(arguments))
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # standard error is for what we say
        check_given(options)
        with warnings_in_one_line(), quiet_imports():
            module, _, name = options.pop("run").rpartition(".")
            function = getattr(importlib.import_module(f"vit_keras.{module}"), name)
            if "command" in inspect.signature(function).parameters:
                options["command"] = _as_typed(["vit-keras", *arguments])
            return function(**options) or 0
    except BrokenPipeError:  # the program that reads our output, such as `head`, has ended
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ImportError, NotImplementedError, OSError, TypeError, ValueError) as error:
        complain(error)
        return 1


def _open_missing_streams() -> None:
    """Open standard streams that go nowhere in a process that was started without them, as by `2>&-` or `pythonw`."""
    # Python prints to standard output what goes to a missing standard error, and the next file that is opened gets the
    # number of the missing stream, with all that libraries print there.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _as_typed(words: Sequence[str]) -> str:
    """Return a command quoted for this system's shell: Windows does not read single quotes."""
    if os.name != "nt":
        return shlex.join(words)
    from subprocess import list2cmdline

    return list2cmdline(words)

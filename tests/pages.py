"""Type a page as a reader does: its code and its `vit-keras` commands, from top to bottom, in the current folder."""

import glob
import io
import re
import shlex
from contextlib import redirect_stdout

import numpy as np
from support import ROOT

from vit_keras.cli import main

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n^```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


def type_page(page):
    """Run each block, and compare what it prints with what the page shows; return the variables."""
    variables = {}
    for language, code, shown in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        with redirect_stdout(io.StringIO()) as printed:
            if language == "python":
                exec(compile(code, page, "exec"), variables)
            else:
                for line in code.replace("\\\n", " ").splitlines():
                    assert not line.startswith("vit-keras ") or main(arguments(line)) == 0, line
        assert not shown or same(printed.getvalue(), shown), f"{code}\n{printed.getvalue()}"
    return variables


def arguments(line):
    """What a shell makes of a line."""
    parts = shlex.split(line, comments=True)[1:]
    return [each for part in parts for each in (sorted(glob.glob(part)) if "*" in part else [part])]


def same(printed, shown):
    """Compare word by word, and numbers with a point to 1e-5: their last digit depends on the processor."""
    texts, numbers = zip(*((NUMBER.sub("#", text).split(), NUMBER.findall(text)) for text in (printed, shown)))
    return texts[0] == texts[1] and np.allclose(*(np.array(found, float) for found in numbers), rtol=1e-5, atol=0)

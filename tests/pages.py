"""Run a page as somebody does who has just installed the package: its code in one file, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys

from support import ROOT

SNIPPET = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def script_of(page):
    """The Python and the `vit-keras` commands of a page, in order, as one script."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    parts = ["import subprocess, sys"]
    for language, code in SNIPPET.findall(text):
        if language == "python":
            parts.append(code)
            continue
        for line in code.replace("\\\n", " ").splitlines():
            if line.startswith("vit-keras "):
                parts.append(
                    f"subprocess.run([sys.executable, '-m', 'vit_keras', *{shlex.split(line)[1:]}], check=True)"
                )
    return "\n".join(parts)


def run_as_a_stranger(page, folder, **environment):
    """Run a page in a new, empty folder, and return the folder."""
    folder.mkdir(parents=True)
    (folder / "page.py").write_text(script_of(page), encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "VIT_KERAS_HOME": str(folder / "cache"), "MPLBACKEND": "agg", **environment}
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder

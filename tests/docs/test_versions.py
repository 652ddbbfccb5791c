"""The script that tries versions, and the workflows that call scripts and `make`."""

import re
import shlex

from support import ROOT

SCRIPT = ROOT / "tools" / "version_matrix.py"
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def test_the_workflow_calls_what_exists():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = re.findall(r"\brun: (.*)", WORKFLOW.read_text(encoding="utf-8"))
    assert {"make lint", "make test", "make docs", "make test-slow"} < set(commands)
    for command in commands:
        program, *arguments = shlex.split(command)
        if program == "make":
            assert set(arguments) <= set(targets), command
        else:
            assert (program, arguments[0]) == ("python", SCRIPT.relative_to(ROOT).as_posix())

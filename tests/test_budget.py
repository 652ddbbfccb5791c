"""Every folder of tests has a budget, and a folder above its own is marked."""

import types

import budget
import pytest
from support import ROOT

pytestmark = pytest.mark.any_backend


def test_every_folder_of_tests_has_a_budget():
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders == {*budget.SECONDS}


def test_a_folder_above_its_budget_is_marked():
    plugin, lines = budget.Budget(), {}
    for folder, seconds in (("tests/cli", 20.0), ("tests/cli", 16.0), ("tests/docs", 1.0)):
        report = types.SimpleNamespace(nodeid=f"{folder}/test_a.py::test_b[c/d::e]", processor_time=seconds)
        plugin.pytest_runtest_logreport(report)
    write = lines.__setitem__
    reporter = types.SimpleNamespace(section=lambda title: None, write_line=lambda line, **how: write(line, how))
    plugin.pytest_terminal_summary(reporter)
    assert lines == {
        "   36.0 s  tests/cli, of 35 s: above its budget": {"yellow": True},
        "    1.0 s  tests/docs, of 30 s": {"yellow": False},
        "   37.0 s  in all": {},
    }

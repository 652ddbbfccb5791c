"""The processor time that each folder of tests may take, and a table of the time it took: `pytest --budget`."""

import collections
import resource
from pathlib import Path

import pytest

SECONDS = {
    "tests": 150,
    "tests/checkpoints": 60,
    "tests/cli": 32,
    "tests/docs": 12,
    "tests/export": 14,
    "tests/export/onnx": 10,
    "tests/layers": 15,
    "tests/packing": 6,
    "tests/serve": 7,
    "tests/text": 9,
    "tests/training": 85,
    "tests/visualize": 33,
}
"""Most processor time of `make test` on PyTorch by folder, in seconds: about what it takes on two quiet cores."""


def add_option(parser):
    """Let `--budget` ask for the table."""
    parser.addoption("--budget", action="store_true", help="show the processor time of each folder of tests")


def used():
    """Processor time of this process and of the processes that it waited for, in seconds."""
    parts = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(part.ru_utime + part.ru_stime for part in parts)


class Budget:
    """Measure each test in the process that runs it, and sum the times in the process that reports them."""

    def __init__(self):
        self.before = used()
        self.seconds = collections.Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self):
        self.before = used()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self):
        outcome = yield
        now = used()
        outcome.get_result().processor_time = now - self.before  # of setup, call, or teardown
        self.before = now

    def pytest_runtest_logreport(self, report):
        folder = Path(report.nodeid.partition("::")[0]).parent.as_posix()
        self.seconds[folder] += getattr(report, "processor_time", 0)

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("processor time by folder")
        for folder, seconds in self.seconds.most_common():
            most = SECONDS.get(folder)
            line = f"{seconds:7.1f} s  {folder}" + (f", of {most} s" if most else "")
            too_much = most is not None and seconds > most
            terminalreporter.write_line(f"{line}: above its budget" if too_much else line, yellow=too_much)
        terminalreporter.write_line(f"{self.seconds.total():7.1f} s  in all")

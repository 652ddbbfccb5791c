"""The progress bar: on standard error, and in a notebook one output that is replaced."""

import re
import sys
import time
import types

import pytest

from vit_keras._internal import progress
from vit_keras._internal.progress import progress_bar

pytestmark = pytest.mark.any_backend


def test_without_a_terminal_a_line_is_on_standard_error_every_few_seconds(monkeypatch, capsys):
    monkeypatch.setattr(progress.time, "monotonic", iter(range(100)).__next__)
    for total, unit in ((40, "images"), (None, "bytes")):
        with progress_bar("pictures", total, unit=unit) as advance:
            for _ in range(40):
                advance(1)
    captured = capsys.readouterr()
    assert captured.out == "" and 10 < captured.err.count("\n") < 20
    assert all(re.fullmatch(r"pictures: (\d+/40 images|0 MB)", line) for line in captured.err.splitlines())


def test_a_terminal_has_a_bar_with_counts_in_their_unit(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for unit, counts in (("images", r"40/40.*images"), ("bytes", "40/40 bytes")):
        with progress_bar("pictures", 40, unit=unit) as advance:
            advance(40)
        out, err = capsys.readouterr()
        assert out == "" and re.search(counts, err)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.01)
    with progress.still_working("waiting"):
        time.sleep(0.1)
    assert "waiting: 0 seconds" in capsys.readouterr().err


def test_a_notebook_has_one_output_that_is_replaced(monkeypatch, capsys):
    outputs, updates = [], []

    def display(content, display_id):
        outputs.append(content)
        return types.SimpleNamespace(update=updates.append)

    notebook = types.ModuleType("IPython.display")
    notebook.display, notebook.HTML = display, str
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    clock = types.SimpleNamespace(monotonic=iter(n / 100 for n in range(4000)).__next__)
    monkeypatch.setattr("vit_keras._internal.progress.time", clock)
    with progress_bar("cats & dogs", 1000) as advance:
        for _ in range(1000):
            advance(1)
    assert len(outputs) == 1 and outputs[0].startswith("cats &amp; dogs <progress")
    assert 2 < len(updates) < 100
    assert updates[-1].endswith('value="1000" max="1000"></progress> 1,000/1,000 images')
    with pytest.raises(KeyError), progress_bar("of unknown length", None) as advance:
        advance(2)
        raise KeyError
    assert updates[-1].endswith("<progress></progress> 2 images")
    assert capsys.readouterr() == ("", "")

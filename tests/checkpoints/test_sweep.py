"""No file loads silently wrong: timm's ViTs and transformers' models with one in them, alone and with config.json.

Which of them are exact and which refused is in `docs/sweep.csv`, and changes with the families. What was exact once
stays so.
"""

import csv
import functools

import argument_sweep
import pytest
import sweep
from support import ROOT

ALLOWED = {"folder": {"exact", "refused"}, "alone": {"exact", "refused", "warned"}}

with (ROOT / "docs" / "sweep.csv").open(encoding="utf-8") as file:
    EXACT = {(row["model"], row["file"]) for row in csv.DictReader(file) if row["outcome"] == "exact"}


with (ROOT / "docs" / "sweep_arguments.csv").open(encoding="utf-8") as file:
    ROWS = list(csv.DictReader(file))
EXACT |= {(row["model"], row["file"]) for row in ROWS if row["outcome"] == "exact"}
ARGUMENTS = sorted({(row["library"], row["model"]) for row in ROWS if row["outcome"] != "not made"})


def check(write, name, folder, made=False):
    """Read what `write` writes; `made`: that the other library can make it is known."""
    for place, found, reason in sweep.rows(write, folder):
        if found == "not made":
            (pytest.fail if made else pytest.skip)(reason)
        assert found in ({"exact"} if (name, place) in EXACT else ALLOWED[place]), f"{place}: {found}, {reason}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.timm_cases())
def test_timm(name, tmp_path):
    pytest.importorskip("timm")
    check(functools.partial(sweep.timm_case, name), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.hugging_face_cases())
def test_hugging_face(name, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    check(functools.partial(sweep.hugging_face_case, name), name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("library", "name"), ARGUMENTS)
def test_one_argument_of_a_constructor(library, name, tmp_path):
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    check(argument_sweep.cases()[library, name], name, tmp_path, made=True)


@pytest.mark.slow
def test_every_argument_was_tried():
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    tried = {(row["library"], row["model"]) for row in ROWS}
    assert set(argument_sweep.cases()) == tried

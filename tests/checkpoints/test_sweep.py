"""No file loads silently wrong: timm's ViTs and transformers' models with one in them, alone and with config.json.

Which of them are exact and which refused is in `docs/sweep.csv`, and changes with the families. What was exact once
stays so.
"""

import csv

import pytest
import sweep
from support import ROOT

ALLOWED = {"folder": {"exact", "refused"}, "alone": {"exact", "refused", "warned"}}

with (ROOT / "docs" / "sweep.csv").open(encoding="utf-8") as file:
    EXACT = {(row["model"], row["file"]) for row in csv.DictReader(file) if row["outcome"] == "exact"}


def check(write, name, folder):
    for place, found, reason in sweep.rows(write, name, folder):
        if found == "not made":
            pytest.skip(reason)
        assert found in ({"exact"} if (name, place) in EXACT else ALLOWED[place]), f"{place}: {found}, {reason}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.timm_cases())
def test_timm(name, tmp_path):
    pytest.importorskip("timm")
    check(sweep.timm_case, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.hugging_face_cases())
def test_hugging_face(name, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    check(sweep.hugging_face_case, name, tmp_path)

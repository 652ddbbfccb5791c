"""No file loads silently wrong: timm's ViTs and transformers' models with one in them, alone and with config.json.

Which of them are exact and which refused is in `docs/sweep.csv`, and changes with the families.
"""

import pytest
import sweep

ALLOWED = {"folder": {"exact", "refused"}, "alone": {"exact", "refused", "warned"}}


def check(write, name, folder):
    for place, found, reason in sweep.rows(write, name, folder):
        if found == "not made":
            pytest.skip(reason)
        assert found in ALLOWED[place], f"{place}: {found}, {reason}"


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

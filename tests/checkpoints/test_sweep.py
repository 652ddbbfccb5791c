"""No file loads silently wrong: every architecture of timm and of transformers, alone and with its config.json."""

import pytest
import sweep

ALLOWED = {"exact", "refused", "warned"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.timm_cases())
def test_timm(name, tmp_path):
    pytest.importorskip("timm")
    for place, found, reason in sweep.rows(sweep.timm_case, name, tmp_path):
        assert found in (ALLOWED if place == "alone" else {"exact", "refused"}), f"{place}: {found}, {reason}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sweep.hugging_face_cases())
def test_hugging_face(name, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    for place, found, reason in sweep.rows(sweep.hugging_face_case, name, tmp_path):
        allowed = {*ALLOWED, "recorded"} if place == "alone" else {"exact", "refused"}
        assert found in allowed, f"{place}: {found}, {reason}"

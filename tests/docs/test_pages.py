"""The pages for newcomers run as they stand: no name, file or setting comes from here."""

import pytest
from pages import run_as_a_stranger

pytest.importorskip("skimage", reason="the pages use its photographs")
pytest.importorskip("sklearn", reason="the probes need it")
pytestmark = [pytest.mark.slow, pytest.mark.any_backend]


@pytest.mark.parametrize("page", ["classify.md", "embed.md"])
def test_a_page_runs_in_an_empty_folder(page, tmp_path):
    run_as_a_stranger(page, tmp_path / "here")

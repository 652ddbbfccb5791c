"""The guide runs as it stands, with nothing but a server that has the model."""

from pathlib import Path

import pytest
from encoded_files import write, write_tokenizer
from hub import running_hub
from pages import type_page

pytest.importorskip("skimage", reason="the guide needs scikit-image")
NAME = "openai/clip-vit-base-patch32"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a reader sees them
def test_the_guide_to_zero_shot_runs_as_it_stands(tmp_path, monkeypatch):
    write("hf_clip", tmp_path / "model")
    write_tokenizer("clip_json", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with running_hub() as hub:
        hub.repositories[NAME] = tmp_path / "model"
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("VIT_KERAS_OFFLINE", "0")
        type_page("docs/zero_shot.md")
    assert {path.name for path in Path().iterdir()} >= {"pets.keras", "pets.html", "tuned.keras"}

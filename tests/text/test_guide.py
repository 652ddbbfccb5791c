"""The guide runs as it stands, with nothing but a server that has the model."""

import pytest
from encoded_files import write, write_tokenizer
from hub import running_hub
from pages import run_as_a_stranger

pytest.importorskip("skimage", reason="the guide needs scikit-image")
NAME = "openai/clip-vit-base-patch32"


@pytest.mark.slow
def test_the_guide_to_zero_shot_runs_as_it_stands(tmp_path):
    write("hf_clip", tmp_path / "model")
    write_tokenizer("clip_json", tmp_path / "model")
    with running_hub() as hub:
        hub.repositories[NAME] = tmp_path / "model"
        options = {"HF_ENDPOINT": hub.address, "no_proxy": "127.0.0.1", "VIT_KERAS_OFFLINE": "0"}
        folder = run_as_a_stranger("zero_shot.md", tmp_path / "here", **options)
    assert {path.name for path in folder.iterdir()} >= {"pets.keras", "pets.html", "tuned.keras"}

"""Published names, against a server on this machine that answers as Hugging Face does."""

import numpy as np
import pytest
from encoded_files import ASCII, LENGTH, load, write, write_tokenizer
from hub import running_hub

from vit_keras import open_image_text, text
from vit_keras.checkpoints.cache import cached_path
from vit_keras.text import open_text
from vit_keras.text.published import published, tokenizer_folder

pytestmark = pytest.mark.any_backend
NAME, OPEN_CLIP = "openai/clip-vit-base-patch32", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("VIT_KERAS_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("VIT_KERAS_WEIGHTS", "VIT_KERAS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with running_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        for name, files, tokenizer in (
            (NAME, "hf_clip", "clip_json"),
            (OPEN_CLIP, "open_clip_not_causal", "clip_gzip"),
        ):
            folder = server.repositories[name] = tmp_path / "hub" / name
            write(files, folder)
            write_tokenizer(tokenizer, folder)
            (folder / "README.md").write_text("# A model")
            (folder / "flax_model.msgpack").write_bytes(bytes(9000))
        yield server


def test_weights_settings_and_tokenizer_are_downloaded_once(hub, capsys, monkeypatch):
    model = open_image_text(NAME)
    assert model.image.origin == NAME
    np.testing.assert_allclose(text.encode_texts(model, ASCII), load("hf_clip")[: len(ASCII)], rtol=0, atol=1e-5)
    said = capsys.readouterr().err.splitlines()[0]
    assert said.startswith(f"{NAME}: downloading model.safetensors, config.json, tokenizer.json, tokenizer_config.json")
    assert said.endswith("kB)")
    wanted = {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.rpartition("/")[2] for path in hub.seen if "/resolve/" in path} == wanted
    hub.seen.clear()
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    for open_again in (open_image_text, open_text):
        open_again(NAME)
    assert text.Tokenizer(NAME, LENGTH)("a photo").tolist() == model.tokenizer("a photo").tolist()
    assert hub.seen == []


def test_a_file_that_was_cut_off_is_downloaded_again(hub):
    path = published(NAME, progress=False).path
    content = path.read_bytes()
    path.write_bytes(content[:100])
    hub.seen.clear()
    assert published(NAME, progress=False).path.read_bytes() == content
    assert [each.rpartition("/")[2] for each in hub.seen if "/resolve/" in each] == ["model.safetensors"]


def test_a_repository_of_open_clip(hub):
    found = published(OPEN_CLIP, progress=False)
    assert found.path.name == "open_clip_model.safetensors"
    assert not open_text(OPEN_CLIP).config.causal
    assert text.Tokenizer(OPEN_CLIP, LENGTH)("a")[0, -1] == 0


def test_weights_without_a_tokenizer_get_the_published_one(hub, tmp_path, monkeypatch):
    """Weights that `open_model` has downloaded, or that somebody has put into a folder."""
    folder = tmp_path / "weights" / NAME
    write("hf_clip", folder)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path / "weights"))
    found = published(NAME, progress=False)
    assert found.path.parent == folder
    assert (found.folder / "tokenizer.json").is_file()
    assert not any(path.endswith(".safetensors") for path in hub.seen)
    hub.seen.clear()
    assert published(NAME, progress=False).folder == found.folder and hub.seen == []


def test_a_model_in_pieces(hub):
    folder = hub.repositories[NAME]
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for n in (1, 2):
        (folder / f"model-0000{n}-of-00002.safetensors").write_bytes(content)
    (folder / "model.safetensors.index.json").write_text("{}")
    assert published(NAME, progress=False).path.name == "model.safetensors.index.json"
    there = cached_path(f"https://huggingface.co/{NAME}/resolve/main/config.json").parent
    assert (there / "model-00002-of-00002.safetensors").read_bytes() == content


def test_a_repository_without_weights_is_named(hub):
    (hub.repositories[NAME] / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=f"{NAME} has no file of weights: none of model.safetensors, py"):
        open_image_text(NAME)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", bytes(8) + b"{}", "bytes where"),
        ("tokenizer.json", b"<!DOCTYPE html>", "is a web page"),
        ("config.json", b"", "is an empty file"),
    ],
)
def test_a_wrong_file_never_becomes_a_cached_one(hub, file, content, message):
    hub.changed[file] = content
    with pytest.raises(ValueError, match=message):
        open_image_text(NAME)
    assert not cached_path(f"https://huggingface.co/{NAME}/resolve/main/{file}").exists()
    hub.changed.clear()
    open_image_text(NAME)


def test_offline_the_error_says_what_to_put_where(hub, monkeypatch):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=f"{NAME} is not .*resolve"):
        open_image_text(NAME)
    assert hub.seen == []


def test_without_a_network_the_error_says_what_to_put_where(hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port that nobody listens on
    with pytest.raises(ConnectionError, match="VIT_KERAS_OFFLINE") as refused:
        open_image_text(NAME)
    assert "put the file at" not in str(refused.value)


@pytest.mark.parametrize("asked", [open_image_text, tokenizer_folder])
def test_a_server_that_refuses_is_no_lack_of_a_network(hub, monkeypatch, asked):
    def refuse(url, **options):
        raise ConnectionError(f"The server refused {url}: 401 Unauthorized.")

    monkeypatch.setattr("vit_keras.checkpoints.download.download", refuse)
    with pytest.raises(ConnectionError, match=r"401 Unauthorized\.$"):
        asked(NAME)

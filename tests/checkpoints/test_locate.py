"""Names of published checkpoints, and where their files are found."""

import functools
import os
import re
from pathlib import Path

import keras
import numpy as np
import pytest
from hub import served

import vit_keras
from vit_keras import checkpoints, config, open_model, variants, vit
from vit_keras.checkpoints import locate, registry, timm_models
from vit_keras.checkpoints.download import cached_path
from vit_keras.checkpoints.locate import fetch, find, is_local

# The architecture of make_google_npz's "ViT-mu_16".
MU = config.ViTConfig(image_size=64, num_layers=2, hidden_size=64, num_heads=2, mlp_dim=128, classes=10)


def fresh(**options):
    return vit.build(MU.replace(**options))


def assert_same_weights(model, expected):
    for got, wanted in zip(model.get_weights(), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)  # exact: loading only copies


# --- the published checkpoints -----------------------------------------------------------------------------

# (What the lists hold is tested in test_registry.py.)


def test_available_lists_everything_that_can_be_built():
    listed = checkpoints.available()
    assert {c.variant for c in listed} > set(variants.VARIANTS)
    assert [c.name for c in registry.listed() if c not in listed] == [
        c.name for c in registry.listed() if (model := timm_models.of_file(c.name)) and model.refused
    ]


@pytest.mark.parametrize(("field", "value"), [("variant", "S_32"), ("classes", 21843), ("image_size", 384)])
def test_available_filters(field, value):
    listed = checkpoints.available(**{field: value})
    assert listed
    assert listed == [c for c in checkpoints.available() if getattr(c, field) == value]


def test_available_filters_together():
    [only] = checkpoints.available(variant="Ti_16", classes=1000, image_size=384)
    assert only.name == "Ti_16/augreg-imagenet21k+imagenet2012-384"
    assert checkpoints.available(variant="Ti_16", image_size=999) == []
    assert checkpoints.available(variant="Ti_16", image_size=(384, 384)) == checkpoints.available(
        variant="Ti_16", image_size=384
    )
    with pytest.raises(ValueError, match="image_size"):
        checkpoints.available(image_size="384")


def test_find_by_either_name():
    for checkpoint in registry.listed():
        assert find(checkpoint.name) is checkpoint
        assert find(checkpoint.weights, checkpoint.variant) is checkpoint


# --- where files come from ---------------------------------------------------------------------------------

# Options that make any factory build MU, so that small files will do.
SMALL = {"image_size": 64, "num_layers": 2, "hidden_size": 64, "num_heads": 2, "mlp_dim": 128}


@pytest.fixture
def http(tmp_path, monkeypatch):
    """A server of the files in `tmp_path`: its address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served(tmp_path) as address:
        yield address


@pytest.mark.parametrize("kind", [Path, str])
def test_factory_takes_a_path(google_npz, kind):
    path = google_npz()
    model = vit.vit_b16(weights=kind(path), **SMALL)
    assert_same_weights(model, vit_keras.from_checkpoint(path).get_weights())
    assert model.load_report.source == str(path)


@pytest.mark.parametrize(
    "load", [functools.partial(vit.vit_b16, **SMALL), lambda weights: vit_keras.from_checkpoint(weights)]
)
def test_weights_may_be_a_url(google_npz, http, load):
    path = google_npz()
    url = f"{http}/{path.name}"
    model = load(weights=url)
    assert_same_weights(model, vit_keras.from_checkpoint(path).get_weights())
    assert model.load_report.source == str(cached_path(url))


def test_load_weights_takes_a_url(google_npz, http):
    model, path = fresh(), google_npz()
    assert checkpoints.load_weights(model, f"{http}/{path.name}").loaded == len(model.weights)


@pytest.mark.parametrize("name", ["x.keras", "x.h5", "x.keras?download=true"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_a_url_of_a_whole_model(tmp_path, http, name):
    made = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.GlobalAveragePooling2D()])
    made.save(tmp_path / name.partition("?")[0])
    assert open_model(f"{http}/{name}").output_shape == (None, 3)
    with pytest.raises(ValueError, match=r"no options.*\['classes'\]"):
        open_model(f"{http}/{name}", classes=3)


@pytest.mark.parametrize(("factory", "variant"), [(vit.vit_b16, "B_16"), (vit.vit_h14, "H_14")])
def test_wrong_name_lists_those_of_the_variant(factory, variant):
    with pytest.raises(ValueError, match="weights: imagenet22k") as error:
        factory(weights="imagenet22k")
    listed = re.findall("'([^']+)'", str(error.value).partition("published names")[2])
    assert listed == [checkpoint.weights for checkpoint in checkpoints.available(variant=variant)]


@pytest.fixture
def dummy(monkeypatch):
    """Write a file that has the size of a published one, and takes no space; forbid to request the real one."""
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")

    def write(path, checkpoint, longer=0):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            file.truncate(checkpoint.bytes + longer)
        return path

    return write


B_16 = find("B_16/imagenet21k")
PLACES = ["imagenet21k/ViT-B_16.npz", "ViT-B_16.npz", "ViT-B_16_imagenet21k.npz"]


def test_fetch_nowhere(monkeypatch):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    assert not is_local(B_16)
    with pytest.raises(FileNotFoundError, match="VIT_KERAS_WEIGHTS") as error:
        fetch("B_16/imagenet21k")
    assert str(cached_path(B_16.url)) in str(error.value)


@pytest.mark.parametrize("name", PLACES)
def test_fetch_in_a_folder(tmp_path, dummy, monkeypatch, name):
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    path = dummy(tmp_path / name, B_16)
    assert fetch("B_16/imagenet21k") == fetch("imagenet21k", "B_16") == path
    assert is_local(B_16)


def test_fetch_in_one_of_several_places(tmp_path, dummy, monkeypatch):
    path = dummy(tmp_path / "two" / PLACES[0], B_16)
    places = [str(tmp_path / "missing"), "", str(tmp_path / "one.npz"), str(tmp_path / "two")]
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", os.pathsep.join(places))
    assert fetch("imagenet21k", "B_16") == path


def test_fetch_in_the_cache(dummy):
    path = dummy(cached_path(B_16.url), B_16)
    assert is_local(B_16)
    assert fetch("imagenet21k", "B_16") == path


def test_fetch_users_place_comes_before_the_cache(tmp_path, dummy, monkeypatch):
    dummy(cached_path(B_16.url), B_16)
    path = dummy(tmp_path / PLACES[0], B_16)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    assert fetch("imagenet21k", "B_16") == path


@pytest.mark.parametrize("longer", [-1, 1])
def test_fetch_takes_a_file_of_another_size_only_if_its_name_leaves_no_doubt(tmp_path, dummy, monkeypatch, longer):
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    dummy(tmp_path / "ViT-B_16.npz", B_16, longer)  # two checkpoints have a file of this name
    with pytest.raises(FileNotFoundError):
        fetch("imagenet21k", "B_16")
    path = dummy(tmp_path / PLACES[0], B_16, longer)
    assert fetch("imagenet21k", "B_16") == path


def test_fetch_the_file_of_another_checkpoint_is_not_taken(tmp_path, dummy, monkeypatch):
    other = find("imagenet21k+imagenet2012", "B_16")  # its file has the same name
    path = dummy(tmp_path / "ViT-B_16.npz", other)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(path))
    assert fetch("imagenet21k+imagenet2012", "B_16") == path
    with pytest.raises(FileNotFoundError):
        fetch("imagenet21k", "B_16")


DEIT = "timm/deit_tiny_patch16_224.fb_in1k"


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("deit_tiny_patch16_224.fb_in1k", True),
        ("input/weights/deit_tiny_patch16_224.fb_in1k", True),
        (DEIT, True),
        ("deit-tiny/pytorch/default/1", False),
        ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_model_safetensors_is_of_the_model_that_its_folder_is_named_after(
    tmp_path, monkeypatch, folder, found, is_file
):
    path = tmp_path / folder / "model.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(path if is_file else tmp_path))
    assert find(DEIT).bytes is None  # so that the size proves nothing
    assert locate.find_local(find(DEIT)) == (path if found else None)
    assert locate.find_local(find("timm/vit_base_patch16_224.augreg_in21k")) is None


@pytest.mark.parametrize("is_file", [False, True])
def test_a_file_that_is_named_after_its_model_is_found(tmp_path, monkeypatch, is_file):
    path = tmp_path / "deit_tiny_patch16_224.fb_in1k.safetensors"
    path.touch()
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(path if is_file else tmp_path))
    assert locate.find_local(find(DEIT)) == path
    assert locate.find_local(find("timm/vit_base_patch16_224.augreg_in21k")) is None


def test_a_file_of_unknown_size_is_told_by_the_folder_that_it_is_published_in(tmp_path, monkeypatch):
    sam, gsam = find("B_16/sam"), find("B_16/gsam")
    path = tmp_path / "sam" / "ViT-B_16.npz"
    path.parent.mkdir()
    path.touch()
    for place in (tmp_path, path.parent, path):
        monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(place))
        assert locate.find_local(sam) == path and locate.find_local(gsam) is None


def test_the_error_names_the_folder_that_a_file_must_be_in(monkeypatch):
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=r"'deit_tiny_patch16_224\.fb_in1k'"):
        fetch(DEIT)


def test_a_checkpoint_opens_like_its_name():
    assert open_model(find("vit_cifar10")).output_shape == (None, 10)


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("HF_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_the_cache_of_hugging_face(tmp_path, monkeypatch, variable, folder):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" and variable == "HOME" else variable, str(tmp_path))
    path = tmp_path / folder / f"models--{DEIT.replace('/', '--')}" / "snapshots" / "1234" / "model.safetensors"
    path.parent.mkdir(parents=True)
    path.touch()
    assert locate.find_local(find(DEIT)) == path


def test_a_factory_finds_its_default(tmp_path, google_npz, monkeypatch):
    checkpoint = find("augreg-imagenet21k+imagenet2012-224", "Ti_16")
    google_npz("ViT-Ti_16", image_size=224, classes=1000).rename(tmp_path / Path(checkpoint.path).name)
    monkeypatch.setenv("VIT_KERAS_WEIGHTS", str(tmp_path))
    model = vit.vit_ti16()
    assert model.load_report.loaded == len(model.weights)
    assert model.load_report.adapted == ()

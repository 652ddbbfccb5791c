"""The tables of published checkpoints, and how one is found in them."""

import csv
import dataclasses
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import make_google_npz
import pytest

import vit_keras
from vit_keras import checkpoints, preprocess, vit
from vit_keras.checkpoints import Checkpoint, families, registry, timm_models
from vit_keras.checkpoints.checkpoint import preset
from vit_keras.checkpoints.locate import by_filename, fetch, find
from vit_keras.checkpoints.published import published_config
from vit_keras.checkpoints.registry import select
from vit_keras.config import ViTConfig
from vit_keras.cost import cost

ALL = registry.listed()
GOOGLE = [c for c in ALL if c.variant is not None]
EACH_FAMILY = pytest.mark.parametrize("family", sorted({c.family for c in ALL}))
# Files of SAM and GSAM are larger than their arrays, by what is not known: optimiser's slots, fields of zip64.
UNKNOWN_SIZE = re.compile(r"/(sam|gsam)/")


def architecture(variant):
    """`"R50_L_32"` is `"R50+ViT-L_32"`."""
    *root, size, patch = variant.split("_")
    return variant if variant.startswith("Mixer-") else "+".join([*root, f"ViT-{size}_{patch}"])


@EACH_FAMILY
def test_rows_are_complete(family):
    for checkpoint in select(family=family):
        check_row(checkpoint)


def check_row(checkpoint):
    url = urlsplit(checkpoint.url)
    in_the_package = checkpoint.source == "vit_keras"
    assert url.scheme == ("package" if in_the_package else "https")
    assert in_the_package or "." in url.netloc
    assert not set(checkpoint.url) & set(' +"<>{}')
    assert checkpoint.filename.endswith((".npz", ".safetensors", ".pth", ".pt", ".bin"))
    assert unquote(checkpoint.url).endswith(checkpoint.path)
    assert (32 if in_the_package else 64) <= checkpoint.image_size <= 1024
    assert checkpoint.preprocessing.image_size == (checkpoint.image_size,) * 2
    assert (checkpoint.classes is None) or checkpoint.classes > 1
    assert (checkpoint.top1 is None) == (checkpoint.top1_source is None)
    assert checkpoint.top1 is None or 65 < checkpoint.top1 < 91
    assert checkpoint.bytes is None or checkpoint.bytes > (10**6 if in_the_package else 10**7)
    assert checkpoint.sha256 is None or re.fullmatch("[0-9a-f]{64}", checkpoint.sha256)
    assert checkpoint.license
    assert checkpoint.family in families.FAMILIES
    fields = set(ViTConfig.__dataclass_fields__)
    assert set(checkpoint.options) <= fields
    assert find(checkpoint.name) is checkpoint
    assert find(checkpoint.url) is checkpoint
    hash(checkpoint)


def test_every_file_has_a_size():
    assert not [c.name for c in ALL if not (c.parameters and c.macs and c.megabytes)]
    assert not [c.name for c in ALL if c.license_url is None]


def test_sizes_are_those_of_the_architectures():
    """`python tools/make_sizes.py` writes the table."""
    for checkpoint in ALL:
        found = cost(published_config(checkpoint))
        assert (found.parameters, found.flops // 2) == (checkpoint.parameters, checkpoint.macs), checkpoint.name


def test_parameters_are_those_that_the_publishers_name():
    """torchvision's are exact (`num_params`, `_ops`), timm's are in millions (results-imagenet.csv)."""
    exact = {
        "vit_b_16.IMAGENET1K_V1": (86567656, 17.564),
        "vit_b_16.IMAGENET1K_SWAG_E2E_V1": (86859496, 55.484),
        "vit_l_16.IMAGENET1K_SWAG_E2E_V1": (305174504, 361.986),
        "vit_l_32.IMAGENET1K_V1": (306535400, 15.378),
        "vit_h_14.IMAGENET1K_SWAG_E2E_V1": (633470440, 1016.717),
    }
    for name, (parameters, gmacs) in exact.items():
        checkpoint = find(f"torchvision/{name}")
        assert (checkpoint.parameters, round(checkpoint.macs / 1e9, 3)) == (parameters, gmacs)
    millions = {
        "beit_large_patch16_512.in22k_ft_in22k_in1k": 305.67,
        "deit_base_distilled_patch16_384.fb_in1k": 87.63,
        "eva02_large_patch14_448.mim_in22k_ft_in1k": 305.08,
        "eva_giant_patch14_560.m30m_ft_in22k_in1k": 1014.45,
        "flexivit_small.1200ep_in1k": 22.06,
        "mixer_l16_224.goog_in21k_ft_in1k": 208.20,
        "vit_huge_patch14_clip_336.laion2b_ft_in12k_in1k": 632.46,
        "vit_large_r50_s32_384.augreg_in21k_ft_in1k": 329.09,
        "vit_mediumd_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k": 64.27,
        "vit_tiny_r_s16_p8_384.augreg_in21k_ft_in1k": 6.36,
    }
    for name, number in millions.items():
        assert round(find(f"timm/{name}").parameters / 1e6, 2) == number, name


@pytest.mark.parametrize(
    "name, task",
    [
        ("vit_cifar10", "classify"),
        ("timm/vit_base_patch16_clip_224.openai", "image-text"),
        ("timm/vit_base_patch16_clip_224.openai_ft_in1k", "classify"),
        ("google/siglip2-base-patch16-224", "image-text"),
        ("lit/LiT-B16B", "image-text"),
        ("facebook/dinov2-small", "features"),
    ],
)
def test_task_of_a_file(name, task):
    assert find(name).task == task


def test_googles_sizes_are_those_of_the_architecture():
    variants = {"Mixer-S_32": ("Mixer-S_16", 32), "Mixer-S_8": ("Mixer-S_16", 8)}
    for each in GOOGLE:
        base, patch = variants.get(each.variant, (architecture(each.variant), None))
        spec = dict(make_google_npz.VARIANTS[base], **({"patch": patch} if patch else {}))
        sizes = {"image_size": each.image_size, "classes": each.classes, "representation": each.representation_size}
        size = make_google_npz.file_size(make_google_npz.spec(spec, **sizes))
        assert each.bytes == (None if UNKNOWN_SIZE.search(each.url) else size), each.name


def test_all_of_googles_files_as_measured_elsewhere(shared):
    with (shared / "facts" / "google_checkpoints.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 58
    for row in rows:
        checkpoint = find(row["url"])
        assert checkpoint is not None, row["name"]
        assert checkpoint.url == row["url"]
        assert checkpoint.image_size == int(row["image_size"])
        assert checkpoint.classes == int(row["classes"])
        assert architecture(checkpoint.variant) == row["variant"]
        assert checkpoint.representation_size == (int(row["representation"]) if row["representation"] else None)
        assert (checkpoint.sha256 or "") == row["sha256"]
        if not UNKNOWN_SIZE.search(row["url"]):
            assert checkpoint.bytes == int(row["predicted_bytes"])
        if not row["name"].startswith("augreg"):
            assert find(row["name"]) is checkpoint
            assert find(row["name"] + ".npz") is checkpoint


def test_select():
    assert select() == list(ALL)
    assert {c.source for c in select(source="torchvision")} == {"torchvision"}
    assert [c.name for c in select(variant="Ti_16", image_size=384)] == ["Ti_16/augreg-imagenet21k+imagenet2012-384"]
    found = select(name="timm/*siglip*", image_size=512)
    assert found
    assert all("siglip" in c.name and c.image_size == 512 for c in found)
    assert {c.classes for c in select(labels="imagenet-12k")} == {11821}
    assert select(license="cc-by-nc-4.0") == select(license="CC-BY-NC-4.0") != []
    assert select(family="mixer", classes=21843, name="Mixer-B*")[0].name == "Mixer-B_16/imagenet21k"
    assert select(name="no*such") == []


def test_families_that_are_refused_are_not_available():
    assert {c.family for c in registry.listed() if families.FAMILIES[c.family].refused} == set()
    assert checkpoints.available(family="vit-pytorch") == []  # nobody publishes files of this family


def test_models_of_timm_that_are_refused_are_not_available(monkeypatch):
    pattern, table = "timm/vit_tiny_patch16_224.*", dict(timm_models.models())
    assert len(checkpoints.available(name=pattern)) == len(select(name=pattern)) == 2
    table["vit_tiny_patch16_224"] = table["vit_tiny_patch16_224"]._replace(refused="it is odd")
    monkeypatch.setattr(timm_models, "models", lambda: table)
    assert checkpoints.available(name=pattern) == []
    assert len(select(name=pattern)) == 2
    with pytest.raises(ValueError, match="augreg_in21k .*it is odd"):
        fetch("timm/vit_tiny_patch16_224.augreg_in21k")  # not after a download


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("imagenet22k", "B_16"), "'imagenet21k'"),
        (("B_16/imagenet22k",), "'B_16/imagenet21k'"),
        (("deit_tiny_patch16_224.fb_in1k",), "'timm/deit_tiny_patch16_224.fb_in1k'"),
        (("b-16/imagenet21K",), "'B_16/imagenet21k'"),
    ],
)
def test_an_unknown_name_gets_a_hint(arguments, hint):
    with pytest.raises(ValueError, match="weights: .*Did you mean '") as error:
        fetch(*arguments)
    assert hint in str(error.value).partition("?")[0]


def test_a_local_copy_is_recognised():
    assert by_filename("deit_tiny_patch16_224-a1311bcf.pth").name == "facebook/deit_tiny_patch16_224"
    assert by_filename("ViT-B_16-224.npz").name == "B_16/imagenet21k+imagenet2012-224"
    assert by_filename("ViT-B_16-224.npz", 346335542).name == "B_16/imagenet21k+imagenet2012-224"
    assert by_filename("ViT-B_16-224.npz", 1) is None
    assert by_filename("ViT-B_16.npz") is None
    assert by_filename("ViT-B_16.npz", 412811466).name == "B_16/imagenet21k"
    assert by_filename("ViT-B_16.npz", 347502902).name == "B_16/imagenet21k+imagenet2012"
    assert by_filename("ViT-L_16.npz", 1) is None
    assert by_filename("jx_vit_base_p16_224-80ecf9dd.pth", 1).name == "rwightman/jx_vit_base_p16_224"  # size not known
    assert by_filename("model.safetensors") is None
    assert by_filename("holiday.npz") is None
    stem = "B_16-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.003-res_384"
    assert by_filename(f"{stem}.npz").classes == 100


def in_a_new_process(code):
    environment = {**os.environ, "PYTHONPATH": str(Path(vit_keras.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def test_finding_imports_neither_keras_nor_numpy():
    """Listing and finding, what is here included, needs no Keras; reading and the preprocessing need NumPy alone."""
    code = """
import sys
from vit_keras import checkpoints
heavy = "keras tensorflow jax torch numpy h5py rich PIL".split()
checkpoints.available(source="timm")
here = checkpoints.locate.find("vit_cifar10")
assert checkpoints.locate.is_local(here)
path = checkpoints.locate.fetch("vit_cifar10")
print([name for name in heavy if name in sys.modules])
import vit_keras.checkpoints.download
assert len(checkpoints.readers.open_weights(path)) > 0
assert here.preprocessing.image_size == (32, 32)
import vit_keras.checkpoints.hints
print([name for name in heavy[:4] if name in sys.modules])
"""
    assert in_a_new_process(code) == ["[]", "[]", ""]


def test_a_checkpoint_stands_for_its_name():
    checkpoint = find("vit_cifar10")
    assert find(checkpoint) is checkpoint
    assert fetch(checkpoint) == fetch("vit_cifar10")
    model = vit.vit_cifar10(pretrained=False)
    for report in (
        checkpoints.load_weights(model, checkpoint),
        vit_keras.from_checkpoint(checkpoint).load_report,
        vit_keras.open_model(weights=checkpoint).load_report,
    ):
        assert report.loaded == 107


def test_preprocessing_may_be_given():
    mine = Checkpoint(weights="mine", url="https://example.org/mine.npz", preprocessing=preprocess.CLIP)
    assert mine.preprocessing is preprocess.CLIP
    assert dataclasses.replace(mine, image_size=384).preprocessing is preprocess.CLIP
    assert dataclasses.asdict(mine)["preprocessing"] == dataclasses.asdict(preprocess.CLIP)
    other = Checkpoint(weights="mine", url="https://example.org/mine.npz", image_size=384)
    assert other.preprocessing == preprocess.GOOGLE.replace(image_size=384)
    assert other == pickle.loads(pickle.dumps(other))


@pytest.mark.parametrize("text", ["clip@left", "clip@0.9squash"])
def test_a_preset_with_a_wrong_crop_is_named(text):
    with pytest.raises(ValueError, match=text):
        preset(text, 224)

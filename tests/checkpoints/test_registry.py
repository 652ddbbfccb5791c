"""The tables of published checkpoints, and AugReg's grammar."""

import csv
import json
import re
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import make_google_npz
import pytest

from vit_keras.checkpoints import families, registry
from vit_keras.checkpoints.registry import Checkpoint, augreg, by_filename, find, parse_augreg, query_augreg, select
from vit_keras.config import ViTConfig

ALL = registry.listed()
GOOGLE = [c for c in ALL if c.variant is not None]
EVERY = pytest.mark.parametrize("checkpoint", ALL, ids=lambda c: c.name)
# Files of SAM and GSAM are larger than their arrays, by what is not known: optimiser's slots, fields of zip64.
UNKNOWN_SIZE = re.compile(r"/(sam|gsam)/")


def architecture(variant):
    """`"R50_L_32"` is `"R50+ViT-L_32"`."""
    *root, size, patch = variant.split("_")
    return variant if variant.startswith("Mixer-") else "+".join([*root, f"ViT-{size}_{patch}"])


def test_names_are_unique_and_many():
    names = [c.name for c in ALL]
    assert len(names) == len(set(names)) > 550
    assert len({c.url for c in ALL}) == len(ALL)
    assert registry.CHECKPOINTS is ALL
    with pytest.raises(AttributeError, match="NOTHING"):
        registry.NOTHING  # noqa: B018


@EVERY
def test_a_line_is_complete(checkpoint):
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
    assert checkpoint.licence
    assert checkpoint.family in families.FAMILIES
    fields = set(ViTConfig.__dataclass_fields__)
    assert set(checkpoint.options) <= fields
    assert find(checkpoint.name) is checkpoint
    assert find(checkpoint.url) is checkpoint
    hash(checkpoint)


@EVERY
def test_options_make_a_configuration(checkpoint):
    """Their values are of the type and in the range that a `ViTConfig` asks for."""
    size = {"image_size": checkpoint.image_size, "drop_remainder": True}
    config = ViTConfig(hidden_size=768 * 16, **size).replace(**checkpoint.options)
    assert {field: getattr(config, field) for field in checkpoint.options} == checkpoint.options


@pytest.mark.parametrize("checkpoint", GOOGLE, ids=lambda c: c.name)
def test_googles_sizes_are_those_of_the_architecture(checkpoint):
    variants = {"Mixer-S_32": ("Mixer-S_16", 32), "Mixer-S_8": ("Mixer-S_16", 8)}
    base, patch = variants.get(checkpoint.variant, (architecture(checkpoint.variant), None))
    spec = dict(make_google_npz.VARIANTS[base], **({"patch": patch} if patch else {}))
    arrays = make_google_npz.spec(
        spec,
        image_size=checkpoint.image_size,
        classes=checkpoint.classes,
        representation=checkpoint.representation_size,
    )
    if UNKNOWN_SIZE.search(checkpoint.url):
        assert checkpoint.bytes is None
    else:
        assert checkpoint.bytes == make_google_npz.file_size(arrays)


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


@pytest.mark.parametrize(
    ("name", "url", "facts"),
    [
        (
            "R50_B_16/imagenet21k+imagenet2012",
            "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
            {"classes": 1000, "image_size": 384, "family": "google", "interpolation": "bilinear", "crop": None},
        ),
        (
            "sam/ViT-B_16",
            "https://storage.googleapis.com/vit_models/sam/ViT-B_16.npz",
            {"name": "B_16/sam", "top1": 80.25, "top1_source": "timm"},
        ),
        (
            "mixer/imagenet21k/Mixer-L_16",
            "https://storage.googleapis.com/mixer_models/imagenet21k/Mixer-L_16.npz",
            {"name": "Mixer-L_16/imagenet21k", "family": "mixer", "labels": "imagenet-21k"},
        ),
        (
            "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k",
            "https://huggingface.co/timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k/resolve/main/model.safetensors",
            {"family": "timm", "crop": 0.9, "interpolation": "bicubic_antialias", "top1": 75.452, "source": "timm"},
        ),
        (
            "timm/vit_large_patch14_clip_336.openai",
            "https://huggingface.co/timm/vit_large_patch14_clip_336.openai/resolve/main/model.safetensors",
            {"options": {"mlp_activation": "quick_gelu", "epsilon": 1e-5}, "classes": 768, "labels": None},
        ),
        (
            "facebook/deit_tiny_patch16_224",
            "https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth",
            {"sha256_prefix": "a1311bcf", "sha256": None, "family": "deit", "source": "facebook"},
        ),
        (
            "torchvision/vit_b_16.IMAGENET1K_V1",
            "https://download.pytorch.org/models/vit_b_16-c867db91.pth",
            {"sha256_prefix": "c867db91", "crop": 0.875, "interpolation": "bilinear_antialias"},
        ),
        (
            "openai/ViT-B-32",
            "https://openaipublic.azureedge.net/clip/models/"
            "40d365715913c9da98579312b702a82c18be219cc2a73407c4526f58eba950af/ViT-B-32.pt",
            {
                "licence": "MIT",
                "family": "clip",
                "sha256_prefix": "40d36571",
                "mean": (0.48145466, 0.4578275, 0.40821073),
            },
        ),
        (
            "facebook/dinov2-base",
            "https://huggingface.co/facebook/dinov2-base/resolve/main/model.safetensors",
            {"classes": None, "image_size": 518, "std": (0.229, 0.224, 0.225)},
        ),
        (
            "timm/vit_medium_patch16_gap_384.sw_in12k_ft_in1k",
            "https://huggingface.co/timm/vit_medium_patch16_gap_384.sw_in12k_ft_in1k/resolve/main/model.safetensors",
            {"crop": 0.95},
        ),
    ],
)
def test_some_in_full(name, url, facts):
    checkpoint = find(name)
    assert checkpoint.url == url
    assert {field: getattr(checkpoint, field) for field in facts} == facts


def test_crops_are_the_publishers():
    assert find("timm/vit_medium_patch16_gap_384.sw_in12k_ft_in1k").preprocessing.crop_mode == "squash"
    edges = {224: 242, 512: 512}
    for name, size in (("vit_l_16.IMAGENET1K_V1", 224), ("vit_l_16.IMAGENET1K_SWAG_E2E_V1", 512)):
        checkpoint = find(f"torchvision/{name}")
        assert checkpoint.image_size == size
        assert checkpoint.preprocessing.geometry((600, 600), (size, size))[0] == (edges[size],) * 2


def test_what_factories_ask_for():
    assert find("imagenet21k", "B_16").name == "B_16/imagenet21k"
    assert find("augreg-imagenet21k+imagenet2012-224", "Ti_16").top1 == 75.45
    assert find("imagenet21k", "B_64") is None
    assert find("imagenet21k") is None
    assert find("nothing/like-it") is None
    assert find("timm/deit_tiny_patch16_224.fb_in1k", "Ti_16").family == "deit"


def test_select():
    assert select() == list(ALL)
    assert {c.source for c in select(source="torchvision")} == {"torchvision"}
    assert [c.name for c in select(variant="Ti_16", image_size=384)] == ["Ti_16/augreg-imagenet21k+imagenet2012-384"]
    found = select(name="timm/*siglip*", image_size=512)
    assert found
    assert all("siglip" in c.name and c.image_size == 512 for c in found)
    assert {c.classes for c in select(labels="imagenet-12k")} == {11821}
    assert select(licence="cc-by-nc-4.0") == select(licence="CC-BY-NC-4.0") != []
    assert select(family="mixer", classes=21843, name="Mixer-B*")[0].name == "Mixer-B_16/imagenet21k"
    assert select(name="no*such") == []


@pytest.mark.parametrize("field", ["family", "source", "variant", "licence", "labels"])
def test_select_names_what_there_is(field):
    with pytest.raises(ValueError, match=f"Unknown {field} 'marble'. There are: "):
        select(**{field: "marble"})


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


def test_importing_reads_no_table():
    """A user who only builds models waits for no table."""
    code = "import vit_keras.checkpoints.registry as r; print(r.listed.cache_info().currsize)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "0"


# ---------------------------------------------------------------------------------------------- AugReg

STEM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
ADAPTED = f"{STEM}--imagenet2012-steps_20k-lr_0.03-res_384"


@pytest.mark.parametrize("checkpoint", [c for c in GOOGLE if c.path.startswith("augreg/")], ids=lambda c: c.name)
def test_augreg_there_and_back(checkpoint):
    fields = parse_augreg(checkpoint.path)
    assert augreg(**fields) is checkpoint
    for name in (checkpoint.path, checkpoint.filename, checkpoint.filename.removesuffix(".npz"), checkpoint.url):
        assert find(name) is checkpoint


@pytest.mark.parametrize(
    "stem",
    [
        "R_Ti_16-i1k-300ep-lr_0.001-aug_strong2-wd_0.03-do_0.1-sd_0.1",
        "L_16-i21k-30ep-lr_0.0003-aug_light0-wd_0.1-do_0.0-sd_0.0--oxford_iiit_pet-steps_0k-lr_0.003-res_224",
        "R26_S_32-i21k-300ep-lr_0.001-aug_medium2-wd_0.03-do_0.0-sd_0.0--resisc45-steps_2k-lr_0.001-res_384",
    ],
)
def test_augreg_files_that_are_not_listed(stem):
    checkpoint = augreg(**parse_augreg(f"{stem}.npz"))
    assert checkpoint.url == f"https://storage.googleapis.com/vit_models/augreg/{stem}.npz"
    for name in (stem, f"{stem}.npz", f"augreg/{stem}", checkpoint.name, checkpoint.url):
        assert find(name) == checkpoint
    assert checkpoint.variant == stem.partition("-")[0]
    assert checkpoint not in ALL


def test_augreg_facts():
    kept = augreg("B_16", aug="light1", adapt_ds="cifar100", steps=10_000, adapt_lr=0.003, res=384)
    assert (kept.classes, kept.image_size, kept.labels, kept.bytes) == (100, 384, "cifar100", None)
    other = augreg("B_16", "i21k", aug="strong1", wd=0.03)
    assert (other.classes, other.labels, other.bytes) == (21843, "imagenet-21k", 410448610)
    assert augreg("B_16", "i1k").classes == 1000
    assert parse_augreg(augreg("S_16", "i21k_30").path)["epochs"] == 30
    assert parse_augreg(ADAPTED) == {
        "name": "B_16", "ds": "i21k", "epochs": 300, "lr": 0.001, "aug": "medium1", "wd": 0.1, "do": 0.0, "sd": 0.0,
        "adapt_ds": "imagenet2012", "steps": 20000, "adapt_lr": 0.03, "res": 384,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "B_64"}, "name of an AugReg file is one of 'Ti_16'"),
        ({"ds": "jft"}, "ds of an AugReg file"),
        ({"aug": "mild"}, "'none', 'light0'"),
        ({"adapt_ds": "cifar10"}, "None, 'imagenet2012', 'cifar100'"),
        ({"res": 512}, "224, 384"),
        ({"epochs": 7}, "30, 300"),
        ({"wd": "much"}, "are numbers"),
        ({"lr": -1}, "not negative"),
    ],
)
def test_augreg_mistakes(options, message):
    with pytest.raises(ValueError, match=message):
        augreg(**{"name": "B_16", **options})


@pytest.mark.parametrize(
    "name",
    [
        "ViT-B_16.npz",
        f"{STEM}-extra",
        STEM.replace("i21k", "jft"),
        STEM.replace("0.1", "0.1.0"),
        f"{STEM}--imagenet2012",
        "",
    ],
)
def test_what_is_no_augreg_name(name):
    with pytest.raises(ValueError, match=r"is no name of an AugReg file|is not a number"):
        parse_augreg(name)
    assert name == "ViT-B_16.npz" or find(name) is None


def test_a_name_is_taken_only_as_it_is_spelled():
    assert find(ADAPTED) is not None
    for other in (ADAPTED.replace("0.03-res", "0.030-res"), ADAPTED.replace("B_16", "B_64"), f"sam/{ADAPTED}"):
        assert find(other) is None


COLUMNS = (
    "name,ds,epochs,lr,aug,wd,do,sd,best_val,final_val,final_test,adapt_ds,adapt_lr,adapt_steps,adapt_resolution,"
    "adapt_final_val,adapt_final_test,params,infer_samples_per_sec,filename,adapt_filename"
)


@pytest.fixture
def index(tmp_path):
    """A small index, in Google's columns."""
    lines = [COLUMNS]
    for aug, final_val in (("light1", 0.44), ("medium1", 0.47), ("none", 0.41)):
        stem = f"B_16-i21k-300ep-lr_0.001-aug_{aug}-wd_0.1-do_0.0-sd_0.0"
        for data, lr, res, test in (("imagenet2012", 0.03, 384, 0.85494), ("cifar100", 0.01, 224, 0.9)):
            adapted = f"{stem}--{data}-steps_20k-lr_{lr}-res_{res}"
            lines.append(
                f"B_16,i21k,300,0.001,{aug},0.1,0.0,0.0,{final_val},{final_val},,{data},{lr},20000,{res},"
                f"{final_val + 0.3},{test},86567656,500.0,{stem},{adapted}"
            )
    path = tmp_path / "index.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_query(index):
    found = query_augreg(index, name="B_16", ds="i21k", adapt_ds="imagenet2012")
    assert [parse_augreg(c.path)["aug"] for c in found] == ["medium1", "light1", "none"]
    best = found[0]
    assert (best.name, best.top1, best.top1_source) == ("B_16/augreg-imagenet21k+imagenet2012-384", 85.49, "google")
    assert len(query_augreg(str(index))) == 6
    assert [c.classes for c in query_augreg(index, adapt_resolution=224, aug="none", wd=0.10)] == [100]
    assert query_augreg(index, adapt_ds="cifar100")[0].top1 is None
    assert query_augreg(index, name="L_16") == []


def test_query_for_pretrained_files(index):
    found = query_augreg(index, adapt_ds=None)
    assert [parse_augreg(c.path)["aug"] for c in found] == ["medium1", "light1", "none"]
    assert {c.classes for c in found} == {21843}
    assert found[0] is find("B_16/augreg-imagenet21k")


def test_query_mistakes(index, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no column size. There are: name, ds"):
        query_augreg(index, size=3)
    with pytest.raises(FileNotFoundError, match="no index of AugReg at"):
        query_augreg(tmp_path / "nowhere.csv")
    (tmp_path / "other.csv").write_text(json.dumps({"a": 1}))
    with pytest.raises(ValueError, match="is not AugReg's index"):
        query_augreg(tmp_path / "other.csv")
    monkeypatch.setenv("VIT_KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("VIT_KERAS_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="VIT_KERAS_OFFLINE"):
        query_augreg()


def test_a_checkpoint_needs_only_a_name_and_a_place():
    checkpoint = Checkpoint(weights="mine", url="https://example.org/a%2Bb/mine.npz")
    assert (checkpoint.name, checkpoint.path, checkpoint.filename) == ("mine", "a+b/mine.npz", "mine.npz")
    assert checkpoint.sha256_prefix is None

"""AugReg's checkpoints, which a grammar describes."""

import json

import pytest

from vit_keras.checkpoints import registry
from vit_keras.checkpoints.augreg import augreg, parse_augreg, query_augreg
from vit_keras.checkpoints.locate import find

LISTED = [c for c in registry.listed() if c.variant is not None and c.path.startswith("augreg/")]
STEM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
ADAPTED = f"{STEM}--imagenet2012-steps_20k-lr_0.03-res_384"


@pytest.mark.parametrize("checkpoint", LISTED, ids=lambda c: c.name)
def test_augreg_there_and_back(checkpoint):
    fields = parse_augreg(checkpoint.path)
    assert augreg(**fields) is checkpoint
    for name in (checkpoint.path, checkpoint.filename, checkpoint.filename.removesuffix(".npz"), checkpoint.url):
        assert find(name) is checkpoint


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
        ({"name": "B_64"}, "name .*'Ti_16'"),
        ({"ds": "jft"}, "ds of an AugReg file"),
        ({"aug": "mild"}, "'none', 'light0'"),
        ({"adapt_ds": "cifar10"}, "None, 'imagenet2012', 'cifar100'"),
        ({"res": 512}, "224, 384"),
        ({"epochs": 7}, "30, 300"),
        ({"wd": "much"}, "must be numbers"),
        ({"lr": -1}, "must not be negative"),
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
    with pytest.raises(ValueError, match="AugReg file|not a number"):
        parse_augreg(name)
    assert name == "ViT-B_16.npz" or find(name) is None


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
    with pytest.raises(ValueError, match="no column size.*name, ds"):
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

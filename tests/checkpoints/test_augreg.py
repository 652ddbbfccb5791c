"""AugReg's checkpoints, which a grammar describes."""

import pytest

from vit_keras.checkpoints import registry
from vit_keras.checkpoints.locate import find

LISTED = [c for c in registry.listed() if c.variant is not None and c.path.startswith("augreg/")]
STEM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


def test_augreg_there_and_back():
    for checkpoint in LISTED:
        for name in (checkpoint.path, checkpoint.filename, checkpoint.filename.removesuffix(".npz"), checkpoint.url):
            assert find(name) is checkpoint, name


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        (
            f"{STEM.replace('medium1', 'light1')}--cifar100-steps_10k-lr_0.003-res_384",
            (100, 384, "cifar100", None),
        ),
        (STEM.replace("medium1", "strong1").replace("wd_0.1", "wd_0.03"), (21843, 224, "imagenet-21k", 410448610)),
        (STEM.replace("i21k-300", "i1k-30"), (1000, 224, "imagenet-1k", 346335542)),
    ],
)
def test_augreg_facts(name, facts):
    found = find(name)
    assert (found.classes, found.image_size, found.labels, found.bytes) == facts


@pytest.mark.parametrize(
    "name",
    [
        f"{STEM}-extra",
        f"{STEM}--imagenet2012",
        f"{STEM}--cifar10-steps_10k-lr_0.003-res_384",
        f"{STEM}--cifar100-steps_10k-lr_0.003-res_512",
        *(
            STEM.replace(*change)
            for change in (("i21k", "jft"), ("0.1", "0.1.0"), ("B_16", "B_64"), ("medium1", "mild"), ("300", "7"))
        ),
        "",
    ],
)
def test_what_is_no_augreg_name(name):
    assert find(name) is None

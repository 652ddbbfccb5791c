"""The 52,268 AugReg checkpoints, described by the grammar of their file names.

They are the files of "How to train your ViT?" (arXiv 2106.10270). A file name contains the training settings.
"""

from __future__ import annotations

import re

from . import registry
from .checkpoint import STORAGE, Checkpoint

__all__ = ["find_augreg"]

BUCKET = f"{STORAGE}vit_models/"
AUGREG_MODELS = ("Ti_16", "S_32", "S_16", "B_32", "B_16", "B_8", "L_16", "R_Ti_16", "R26_S_32", "R50_L_32")
AUGREG_AUGMENTATIONS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
AUGREG_CLASSES = {"i1k": 1000, "i21k": 21843}
AUGREG_ADAPTED = {"imagenet2012": 1000, "cifar100": 100, "kitti": 4, "oxford_iiit_pet": 37, "resisc45": 45}
_NUMBER = r"\d+(?:\.\d+|e-\d+)"
_NAME = re.compile(
    rf"(?P<name>{'|'.join(AUGREG_MODELS)})-(?P<ds>{'|'.join(AUGREG_CLASSES)})-30?0ep-lr_{_NUMBER}"
    rf"-aug_(?:{'|'.join(AUGREG_AUGMENTATIONS)})-wd_{_NUMBER}-do_{_NUMBER}-sd_{_NUMBER}"
    rf"(?:--(?P<adapt_ds>{'|'.join(AUGREG_ADAPTED)})-steps_\d+k-lr_{_NUMBER}-res_(?P<res>224|384))?"
)


def find_augreg(stem: str) -> Checkpoint | None:
    """Return the checkpoint with this file name (without `.npz`), or `None` if the grammar has no such name."""
    found = _NAME.fullmatch(stem)
    if found is None:
        return None
    if known := registry.named(f"augreg/{stem}"):
        return known
    name, adapted = found["name"], found["adapt_ds"]
    size, classes = int(found["res"] or 224), AUGREG_ADAPTED[adapted] if adapted else AUGREG_CLASSES[found["ds"]]
    # The size of a file depends on names and shapes alone.
    listed = (c for c in registry.listed() if c.path.startswith("augreg/"))
    same = (c.bytes for c in listed if (c.variant, c.image_size, c.classes) == (name, size, classes))
    return Checkpoint(
        variant=name,
        weights=stem,
        url=f"{BUCKET}augreg/{stem}.npz",
        image_size=size,
        classes=classes,
        labels=registry.LABELS.get(classes, adapted),
        bytes=next(same, None),
    )

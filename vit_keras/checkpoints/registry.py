"""The published checkpoints, as data.

Sources: the file lists of google-research/vision_transformer (README, `configs/models.py`), the AugReg
paper (arXiv 2106.10270) and, for the AugReg files at 224 pixels, the ones that timm publishes too.
Sizes follow from the format (an uncompressed zip) and agree with every size Google lists; a hash is given
where one is public. Top-1 is on ImageNet-1k: Google's own figure, or timm's where Google gives none.
"""

from __future__ import annotations

import dataclasses
from urllib.parse import quote

BUCKET = "https://storage.googleapis.com/vit_models/"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """One published file of weights.

    Attributes:
        variant: Google's name of the architecture, such as `"B_16"` (`vit_keras.config.VARIANTS`).
        weights: What to pass as `weights=` to the factory of that variant.
        path: Place of the file in Google's bucket.
        image_size: Pixels, height = width.
        classes: Number of classes of its head.
        bytes: Exact size of the file.
        representation_size: Width of `pre_logits`, or `None` where the file has none.
        top1: ImageNet-1k top-1 accuracy in percent, or `None`.
        sha256: Hash of the file, or `None` where none is public.
        licence: SPDX name.
    """

    variant: str
    weights: str
    path: str
    image_size: int
    classes: int
    bytes: int
    representation_size: int | None = None
    top1: float | None = None
    sha256: str | None = None
    licence: str = "Apache-2.0"

    @property
    def name(self) -> str:
        """The name that tells it from all others, for `weights=` of any function: `B_16/imagenet21k`."""
        return f"{self.variant}/{self.weights}"

    @property
    def url(self) -> str:
        """Where it is published."""
        return BUCKET + quote(self.path)


def _original(variant, weights, image_size, size, representation_size=None, top1=None, sha256=None):
    kind, dash, suffix = weights.partition("-")
    *root, size_letter, patch = variant.split("_")
    architecture = "+".join([*root, f"ViT-{size_letter}_{patch}"])
    path = f"{kind}/{architecture}{dash}{suffix}.npz"
    classes = 21843 if kind == "imagenet21k" else 1000
    return Checkpoint(variant, weights, path, image_size, classes, size, representation_size, top1, sha256)


def _augreg(variant, pretraining, rows):
    """One pre-trained AugReg file and its fine-tuned ones: (learning rate, pixels, bytes, top-1)."""
    stem = f"augreg/{variant}-i21k-300ep-lr_0.001-{pretraining}"
    for lr, image_size, size, top1 in rows:
        if lr is None:
            yield Checkpoint(variant, "augreg-imagenet21k", f"{stem}.npz", image_size, 21843, size)
        else:
            path = f"{stem}--imagenet2012-steps_20k-lr_{lr}-res_{image_size}.npz"
            weights = f"augreg-imagenet21k+imagenet2012-{image_size}"
            yield Checkpoint(variant, weights, path, image_size, 1000, size, None, top1)


_B_16_SHA256 = "19d3f569702e80c3a19101c8a3bde16b34f0c475ce565e999cb96068a580fdbf"
_R50_B_16_SHA256 = "ff009bf39bb4f9198b834cfe46aba2bfdaf730e933ab3e3c4b1edf4226eaafbe"

CHECKPOINTS: tuple[Checkpoint, ...] = (
    _original("B_8", "imagenet21k", 224, 412848330, 768),
    _original("B_16", "imagenet21k", 224, 412811466, 768),
    _original("B_32", "imagenet21k", 224, 419437770, 768),
    _original("L_16", "imagenet21k", 224, 1307089850, 1024),
    _original("L_32", "imagenet21k", 224, 1315924922, 1024),
    _original("H_14", "imagenet21k", 224, 2641712218, 1280),
    _original("R50_B_16", "imagenet21k", 224, 461217452, 768, sha256=_R50_B_16_SHA256),
    _original("R26_B_32", "imagenet21k", 224, 472099176, 768),
    _original("R50_L_32", "imagenet21k", 224, 1405803704, 1024),
    _original("B_8", "imagenet21k+imagenet2012", 384, 351041846),
    _original("B_16", "imagenet21k+imagenet2012", 384, 347502902, top1=84.21, sha256=_B_16_SHA256),
    _original("B_16", "imagenet21k+imagenet2012-224", 224, 346335542, top1=81.2),
    _original("B_32", "imagenet21k+imagenet2012", 384, 353253686),
    _original("L_16", "imagenet21k+imagenet2012", 384, 1218991142),
    _original("L_16", "imagenet21k+imagenet2012-224", 224, 1217434662, top1=82.7),
    _original("L_32", "imagenet21k+imagenet2012", 384, 1226658854, top1=81.51),
    _original("R50_B_16", "imagenet21k+imagenet2012", 384, 395908888, top1=84.99),
    # AugReg: the recommended pre-trained file of each architecture with its fine-tuned one at 384 pixels.
    *_augreg(
        "Ti_16",
        "aug_none-wd_0.03-do_0.0-sd_0.0",
        [(None, 224, 39025378, None), (0.03, 224, 22934582, 75.45), (0.03, 384, 23226422, 78.22)],
    ),
    *_augreg(
        "S_16",
        "aug_light1-wd_0.03-do_0.0-sd_0.0",
        [(None, 224, 120365794, None), (0.03, 224, 88267574, 81.40), (0.03, 384, 88851254, 83.73)],
    ),
    *_augreg("S_32", "aug_none-wd_0.1-do_0.0-sd_0.0", [(None, 224, 123678946, None), (0.01, 384, 91726646, 79.58)]),
    *_augreg("B_8", "aug_medium2-wd_0.1-do_0.0-sd_0.0", [(None, 224, 410485474, None), (0.03, 224, 346372406, 85.58)]),
    *_augreg(
        "B_16",
        "aug_medium1-wd_0.1-do_0.0-sd_0.0",
        [(None, 224, 410448610, None), (0.01, 224, 346335542, 84.53), (0.03, 384, 347502902, 85.49)],
    ),
    *_augreg("B_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", [(None, 224, 417074914, None), (0.01, 384, 353253686, 83.59)]),
    *_augreg(
        "L_16", "aug_strong1-wd_0.1-do_0.0-sd_0.0", [(None, 224, 1302890962, None), (0.01, 384, 1218991142, 85.59)]
    ),
    # AugReg at 224 pixels, where the published file comes from another pre-training run than the recommended one.
    *_augreg("S_32", "aug_light1-wd_0.03-do_0.0-sd_0.0", [(0.03, 224, 91580726, 76.01)]),
    *_augreg("B_32", "aug_medium1-wd_0.03-do_0.0-sd_0.0", [(0.03, 224, 352961846, 80.73)]),
    *_augreg("L_16", "aug_medium1-wd_0.1-do_0.1-sd_0.1", [(0.01, 224, 1217434662, 85.86)]),
    # The recommended hybrids: a ResNet before the Transformer.
    *_augreg(
        "R_Ti_16",
        "aug_none-wd_0.03-do_0.0-sd_0.0",
        [(None, 224, 41507248, None), (0.03, 224, 25416452, 71.80), (0.03, 384, 25489412, 75.40)],
    ),
    *_augreg(
        "R26_S_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", [(None, 224, 177913216, None), (0.01, 384, 145960916, 83.85)]
    ),
    *_augreg(
        "R50_L_32",
        "aug_medium1-wd_0.1-do_0.1-sd_0.1",
        [(None, 224, 1401604816, None), (0.01, 224, 1316148516, 84.43), (0.01, 384, 1316537636, 85.99)],
    ),
    *_augreg("R26_S_32", "aug_light0-wd_0.03-do_0.1-sd_0.1", [(0.03, 224, 145814996, 81.86)]),
)

"""Our maps of the models in the golden files: what the parity test checks and `benchmarks/lab/maps.py` prints."""

import contextlib
import functools
import tempfile

import numpy as np
from map_files import load, write
from support import uncompiled

from vit_keras import from_checkpoint
from vit_keras.resampling import resize_bilinear
from vit_keras.visualize import maps
from vit_keras.visualize.recorder import record

CORE = "vit_rectangle"
"""The case that every backend runs, and TensorFlow compiles: most of the time of these tests is that of compiling."""


class Recordings:
    """One golden file and what our model of its weights did with its pictures.

    Attributes:
        golden: the file.
        all: the recording with everything kept.
        exits: the one with the gradients of each block's own exit, for LeGrad.
    """

    def __init__(self, name):
        self.golden = load(name)
        with tempfile.TemporaryDirectory() as folder:
            model = from_checkpoint(write(self.golden, folder), **self.golden.meta["options"])
        pictures, target = list(self.golden.images), self.golden.meta["targets"]
        keep = ("attention", "values", "tokens", "normed")
        options = {"target": target, "preprocess": lambda pixels: (pixels - 127.5) / 127.5}
        with contextlib.nullcontext() if name == CORE else uncompiled():
            self.all = record(model, pictures, keep=keep, **options)
            self.exits = record(model, pictures, keep=("attention",), exits=True, **options)


recordings = functools.cache(Recordings)


def drawn(cams, size):
    """Maps as pytorch-grad-cam draws them: from 0 to 1, enlarged, from 0 to 1 again."""

    def scaled(cam):
        cam = cam - cam.min()
        return cam / (1e-7 + cam.max())

    return np.stack([scaled(np.maximum(resize_bilinear(scaled(cam), size, align_corners=False), 0)) for cam in cams])


OURS = {
    "logits": lambda r: r.all.logits,
    "attention": lambda r: r.all.attention,
    "gradients": lambda r: r.all.gradients,
    "gradient_times_attention": lambda r: r.all.gradients * r.all.attention,
    "normed": lambda r: r.all.normed[-1],
    "normed_gradients": lambda r: r.all.normed_gradients[-1],
    "pooling": lambda r: r.all.pooling_attention,
    "pooling_gradients": lambda r: r.all.pooling_gradients,
    "rollout": lambda r: maps.attention_rollout(r.all),
    "rollout_from_layer_1": lambda r: maps.attention_rollout(r.all, start_layer=1),
    "rollout_residual_08": lambda r: maps.attention_rollout(r.all, residual=0.8),
    "rollout_patch_1_2": lambda r: maps.attention_rollout(r.all, query=(1, 2)),
    "rollout_max_09": lambda r: maps.attention_rollout(r.all, head_fusion="max", discard_ratio=0.9),
    "rollout_min_05": lambda r: maps.attention_rollout(r.all, head_fusion="min", discard_ratio=0.5),
    "fast_vit_rollout_mean": lambda r: maps.attention_rollout(r.all),
    "fast_vit_rollout_max": lambda r: maps.attention_rollout(r.all, head_fusion="max"),
    "fast_vit_rollout_min": lambda r: maps.attention_rollout(r.all, head_fusion="min"),
    "torchxai_rollout": lambda r: maps.attention_rollout(r.all),
    "txv_rollout": lambda r: maps.attention_rollout(r.all),
    "rollout_vit_keras": lambda r: maps.attention_rollout(r.all),
    "cls_attention": lambda r: maps.cls_attention(r.all),
    "mass_mask_06": lambda r: maps.mass_mask(maps.cls_attention(r.all), 0.6),
    "chefer": lambda r: maps.relevance_map(r.all),
    "chefer_from_layer_1": lambda r: maps.relevance_map(r.all, start_layer=1),
    "chefer_pooling": lambda r: maps.relevance_map(r.all),
    "gradient_rollout": lambda r: maps.gradient_rollout(r.all),
    "gradient_rollout_pooling": lambda r: maps.gradient_rollout(r.all),
    "gradient_rollout_09": lambda r: maps.gradient_rollout(r.all, discard_ratio=0.9),
    "gradcam": lambda r: maps.grad_cam(r.all),
    "hirescam": lambda r: maps.grad_cam(r.all, kind="hirescam"),
    "elementwise": lambda r: maps.grad_cam(r.all, kind="elementwise"),
    "layercam": lambda r: maps.grad_cam(r.all, kind="layercam"),
    "gradcam_drawn": lambda r: drawn(maps.grad_cam(r.all), r.golden.images.shape[1:3]),
    "hirescam_drawn": lambda r: drawn(maps.grad_cam(r.all, kind="hirescam"), r.golden.images.shape[1:3]),
    "captum_gradcam": lambda r: maps.grad_cam(r.all),
    "captum_hirescam": lambda r: maps.grad_cam(r.all, kind="hirescam"),
    "alti": lambda r: maps.alti_rollout(r.all),
    "alti_from_layer_1": lambda r: maps.alti_rollout(r.all, start_layer=1),
    "norm_rollout": lambda r: maps.alti_rollout(r.all, kind="norm"),
    "legrad": lambda r: maps.legrad(r.exits),
}
"""{name of a reference: what makes the same of `Recordings`}"""

DIFFERENT = {
    "gradient_rollout_vit_explain": "gradient_rollout",
    "rollout_max_09_columns": "rollout_max_09",
    "txv_generic": "chefer",
    "fast_vit_rollout_min_05": "rollout_min_05",
}
"""{a reference that makes another map than the method it is named after: the one that does not}. Ours is the latter."""

UP_TO_A_FACTOR = {"rollout_vit_keras"}
"""References whose maps mean something only after a division by their largest value."""


def by_maximum(maps):
    """Each map divided by its largest value."""
    return maps / maps.max(axis=(1, 2), keepdims=True)


def pair(name, key):
    """(our array, the reference's) of a case."""
    ours, reference = OURS[key](recordings(name)), recordings(name).golden.arrays[key]
    if key in UP_TO_A_FACTOR:
        ours, reference = by_maximum(ours), by_maximum(reference)
    return ours, reference


def distance(a, b):
    """Largest difference of two arrays, in parts of the largest value of the second."""
    return np.abs(a - b).max() / np.abs(b).max()

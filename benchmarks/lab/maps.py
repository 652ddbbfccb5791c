"""Print the tables of docs/gallery.md: the difference of each map from its reference implementation."""

import collections
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "goldens")]

from map_files import cases, load
from map_parity import DIFFERENT, OURS, distance, pair, recordings

CALLS = {
    "logits": "`recording.logits`",
    "attention": "`recording.attention`",
    "gradients": "`recording.gradients`",
    "gradient_times_attention": "`recording.gradients * recording.attention`",
    "normed": "`recording.normed`",
    "normed_gradients": "`recording.normed_gradients`",
    "pooling": "`recording.pooling_attention`",
    "pooling_gradients": "`recording.pooling_gradients`",
    "rollout": "`attention_rollout`",
    "rollout_from_layer_1": "`attention_rollout(start_layer=1)`",
    "rollout_residual_08": "`attention_rollout(residual=0.8)`",
    "rollout_patch_1_2": "`attention_rollout(query=(1, 2))`",
    "rollout_max_09": '`attention_rollout(head_fusion="max", discard_ratio=0.9)`',
    "rollout_min_05": '`attention_rollout(head_fusion="min", discard_ratio=0.5)`',
    "fast_vit_rollout_mean": "`attention_rollout`",
    "fast_vit_rollout_max": '`attention_rollout(head_fusion="max")`',
    "fast_vit_rollout_min": '`attention_rollout(head_fusion="min")`',
    "torchxai_rollout": "`attention_rollout`",
    "txv_rollout": "`attention_rollout`",
    "rollout_vit_keras": "`attention_rollout`, each divided by its maximum",
    "cls_attention": "`cls_attention`",
    "mass_mask_06": "`mass_mask(0.6)`",
    "chefer": "`relevance_map`",
    "chefer_from_layer_1": "`relevance_map(start_layer=1)`",
    "chefer_pooling": "`relevance_map`, MAP head",
    "gradient_rollout": "`gradient_rollout`",
    "gradient_rollout_pooling": "`gradient_rollout`, MAP head",
    "gradient_rollout_09": "`gradient_rollout(discard_ratio=0.9)`",
    "gradcam": "`grad_cam`",
    "hirescam": '`grad_cam(kind="hirescam")`',
    "elementwise": '`grad_cam(kind="elementwise")`',
    "layercam": '`grad_cam(kind="layercam")`',
    "gradcam_drawn": "`grad_cam`, scaled and enlarged",
    "hirescam_drawn": '`grad_cam(kind="hirescam")`, scaled and enlarged',
    "captum_gradcam": "`grad_cam`",
    "captum_hirescam": '`grad_cam(kind="hirescam")`',
    "alti": "`alti_rollout`",
    "alti_from_layer_1": "`alti_rollout(start_layer=1)`",
    "norm_rollout": '`alti_rollout(kind="norm")`',
    "legrad": "`legrad`",
}
"""{name of a reference: the call of ours}"""


def correlation(a, b):
    """Return Pearson's correlation of two arrays."""
    return np.corrcoef(a.ravel(), b.ravel())[0, 1]


def tables():
    """Print both tables."""
    found, sources, apart = collections.defaultdict(list), {}, collections.defaultdict(list)
    for name in cases():
        golden = load(name)
        for key in golden.arrays:
            sources[key] = golden.meta["sources"][key]
            if key in OURS:
                found[key].append(distance(*pair(name, key)))
            elif key in DIFFERENT:
                ours = OURS[DIFFERENT[key]](recordings(name))
                apart[key] += [correlation(*maps) for maps in zip(ours, golden.arrays[key])]

    print("| ours | reference | | models | largest difference |")
    print("|---|---|---|---|---|")
    for key in (key for key in OURS if key in found):
        source, kind = sources[key]
        print(f"| {CALLS[key]} | {source} | {kind} | {len(found[key])} | {max(found[key]):.1e} |")

    print("\n| ours | not the same as | | maps | correlation, mean (lowest) | ours from the definition |")
    print("|---|---|---|---|---|---|")
    for key, values in apart.items():
        source, kind = sources[key]
        corrected = max(found[DIFFERENT[key]])
        print(
            f"| {CALLS[DIFFERENT[key]]} | {source} | {kind} | {len(values)} "
            f"| {np.mean(values):.2f} ({min(values):.2f}) | {corrected:.1e} |"
        )


if __name__ == "__main__":
    tables()

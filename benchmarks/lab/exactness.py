"""Print the table of docs/checkpoints.md: the difference of each family from its original implementation."""

import collections
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "goldens")]

import make_google_npz
from family_files import OPTIONS, PATCH_SIZES, cases, load, run, write
from support import DATA

from vit_keras import from_checkpoint, vit
from vit_keras.checkpoints.weights import Weights

found = collections.defaultdict(list)


def compare(path, inputs, expected, options):
    family = Weights(path, family=options.get("family")).family.name
    difference = np.abs(run(from_checkpoint(path, **options), inputs) - expected).max()
    found[family].append((difference, difference / max(1, np.abs(expected).max())))


for name in cases():
    golden, patch = load(name), {"patch_size": PATCH_SIZES[name]} if name in PATCH_SIZES else {}
    options = {**golden.options, **OPTIONS.get(name, {})}
    with tempfile.TemporaryDirectory() as folder:
        path = write(golden, folder)
        compare(path, golden.inputs, golden.output, options)
        if golden.output_2 is not None:
            options |= {"image_size": golden.inputs_2.shape[1:3], **patch}
            compare(path, golden.inputs_2, golden.output_2, options)

for stored in sorted(DATA.glob("*-mu_16*.npz")):
    golden = np.load(stored)
    meta = json.loads(str(golden["meta"]))
    made = {"seed": meta["seed"], "image_size": meta["ckpt_size"], "classes": meta["classes"]}
    made |= {"representation": meta["representation"], "overrides": meta["overrides"]}
    with tempfile.TemporaryDirectory() as folder:
        make_google_npz.save(f"{folder}/file.npz", make_google_npz.make(meta["variant"], **made))
        options = {"image_size": meta["size"], "drop_remainder": True}
        compare(f"{folder}/file.npz", vit.preprocess_inputs(golden["image"]), golden["logits"], options)

for family, differences in sorted(found.items()):
    absolute, relative = np.max(differences, axis=0)
    print(f"| `{family}` | {len(differences)} | {absolute:.1e} | {relative:.1e} |")

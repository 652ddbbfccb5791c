"""Measure what `vit_keras.merge_tokens` costs in accuracy and saves in time: the tables of docs/merging.md.

The models take turns on each batch, so that whatever else the machine does falls on all of them. The time is that of
the processor, on one thread of PyTorch (`KERAS_BACKEND=torch`); the ratio is the median over the batches.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from keras import ops

import vit_keras


def measure(model, counts, images, batch):
    """Yield for each r: r, the patches that are left, the share of the time without merging, and the outputs."""
    models = {0: model} | {r: vit_keras.merge_tokens(model, r) for r in counts}
    outputs, seconds = ({r: [] for r in models} for _ in range(2))
    for start in range(-batch, len(images), batch):  # the first batch twice: what is called first warms up
        for r, one in models.items():
            began = time.process_time()
            out = ops.convert_to_numpy(one(images[max(0, start) :][:batch], training=False))
            if start >= 0:
                outputs[r].append(out)
                seconds[r].append(time.process_time() - began)
    for r, one in models.items():
        left = ops.prod(model.config.grid) - sum(map(one.config.tokens_merged_in, range(one.config.num_layers)))
        yield r, int(left), np.median(np.divide(seconds[r], seconds[0])), np.concatenate(outputs[r])


def main():
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="a classifier, run with its own images")
    parser.add_argument("pictures", type=Path, help="a folder with images and labels.json, {file: class}")
    parser.add_argument("--sizes", type=int, nargs="*", default=[224, 384], help="pixels")
    parser.add_argument("--variants", nargs="*", default=["vit_b16"], help="models with random weights, of 224 pixels")
    parser.add_argument(
        "--r", type=int, nargs="*", default=[4, 8, 12, 15], help="at 224 pixels; else for as many shares"
    )
    parser.add_argument("--batch", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    labels = json.loads((options.pictures / "labels.json").read_text(encoding="utf-8"))
    paths, classes = [str(options.pictures / name) for name in labels], np.array([*labels.values()])
    print("| model | pixels | r | patches left | right | as without | probability of the class | time |")
    print("|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        model = vit_keras.from_checkpoint(options.weights, image_size=size)
        counts, before = [round(r * (size / 224) ** 2) for r in options.r], None
        for r, left, ratio, logits in measure(model, counts, model.preprocess(paths), options.batch):
            best = logits.argmax(axis=1)
            before = best if before is None else before
            shares = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
            sure = shares[np.arange(len(best)), classes].mean()
            found = f"{(best == classes).sum()} | {(best == before).sum()} | {sure:.3f}"
            print(f"| {model.name} | {size} | {r} | {left} | {found} | {ratio:.2f} |", flush=True)
    for variant in options.variants:
        model = getattr(vit_keras.vit, variant)(pretrained=False, classes=1000)
        for r, left, ratio, _ in measure(model, options.r, model.preprocess(paths[:10]), 2):
            print(f"| {model.name}, random | 224 | {r} | {left} | | | | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""Time models on the PyTorch backend of Keras beside timm's, in turns, on one thread.

pip install timm
KERAS_BACKEND=torch python -m benchmarks.lab.compare_timm [--models ti16 s16 b16] [--batches 1 8] [--bfloat16]

Random weights, images of 224 pixels, exact GELU, as in timm, in float32. With `--bfloat16`, ours have the policy
`mixed_bfloat16`, and timm's run under `torch.autocast`. Prediction is `model(images)` under
`torch.no_grad()`; a training step is the forward and the backward pass. What is printed is timm's CPU time divided by
ours, of medians: above 1, ours is faster.
"""

import argparse
import functools
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import timm
import torch

from vit_keras import vit
from vit_keras.backend import products

NAMES = {"ti16": "vit_tiny_patch16_224", "s16": "vit_small_patch16_224", "b16": "vit_base_patch16_224"}


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--bfloat16", action="store_true")
    given = parser.parse_args()
    dtype = "bfloat16" if given.bfloat16 else "float32"
    torch.set_num_threads(1)
    print(f"{processor()}; PyTorch {torch.__version__}; {dtype}, our products by {products.library(dtype)}.\n")
    print("| model | batch | predict | train |\n| --- | --- | --- | --- |")
    for name in given.models:
        theirs = timm.create_model(NAMES[name], pretrained=False)  # without dropout, so the same in training
        ours = getattr(vit, f"vit_{name}")(
            pretrained=False, mlp_activation="gelu", dropout=0.0, dtype="mixed_bfloat16" if given.bfloat16 else None
        )
        for batch in given.batches:
            images = torch.rand(batch, 224, 224, 3) * 2 - 1
            runs = (
                functools.partial(run, model, images, given.bfloat16)
                for run in (predicted, trained)
                for model in (theirs, ours)
            )
            predict, train = (ratio(given.rounds, *pair) for pair in zip(runs, runs))
            print(f"| {name} | {batch} | {predict:.2f} | {train:.2f} |", flush=True)


def processor():
    """Return the name of the processor, its family and model, and which wide instructions it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = known.get("flags", "").split()
    wide = [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile") if flag in flags]
    numbers = f"family {known.get('cpu family')} model {known.get('model')}"
    return f"{known.get('model name', platform.machine())} ({numbers}; {', '.join(wide)})"


def outputs(model, images, half, **options):
    """Return what a model computes. Those of timm take the channels first, and half precision by a context."""
    if hasattr(model, "preprocess"):
        return model(images, **options)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        return model(images.permute(0, 3, 1, 2))


def predicted(model, images, half):
    """Predict once."""
    with torch.no_grad():
        return outputs(model, images, half)


def trained(model, images, half):
    """Compute the gradients of a loss once."""
    model.zero_grad()
    logits = outputs(model, images, half, training=True)
    torch.nn.functional.cross_entropy(logits.float(), torch.zeros(len(images), dtype=torch.long)).backward()


def ratio(rounds, theirs, ours):
    """Return the time of one divided by that of the other."""
    times = {theirs: [], ours: []}
    for number in range(rounds + 4):
        for run in times:
            start = time.thread_time()
            run()
            if number >= 4:  # what is recorded and compiled comes first
                times[run].append(time.thread_time() - start)
    return statistics.median(times[theirs]) / statistics.median(times[ours])


if __name__ == "__main__":
    main()

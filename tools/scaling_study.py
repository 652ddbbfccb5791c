"""Measure quality against compute for small ViTs, as Figure 5 of the paper does for large ones, and draw it.

python tools/scaling_study.py CIFAR10 [--budgets 0.1 0.3 1 3] [-o docs/scaling.json]

CIFAR10 holds train/class/image and test/class/image. Each model is trained from scratch once for each budget of
training TFLOPs (`vit_keras.cost`), with a schedule of its own, so that every point is the end of a run. A run that is
interrupted goes on where it was. Beside the JSON comes a figure of the same name.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from PIL import Image

from vit_keras import vit
from vit_keras.config import ViTConfig
from vit_keras.cost import cost

SIZES = {"2 × 24": (2, 24, 2), "3 × 48": (3, 48, 3), "4 × 80": (4, 80, 4), "6 × 128": (6, 128, 4)}
"""Layers, hidden size, heads. The last has the layers and the width of `vit_cifar10`."""

BATCH = 64
COLORS = ("#56B4E9", "#009E73", "#E69F00", "#0072B2")


def config(name):
    layers, width, heads = SIZES[name]
    return ViTConfig(
        name=name, image_size=32, patch_size=4, num_layers=layers, hidden_size=width, num_heads=heads,
        mlp_dim=2 * width, classes=10, pooling="gap",
    )  # fmt: skip


def load(folder):
    """Return 8-bit images and their labels."""
    paths = [(path, n) for n, group in enumerate(sorted(folder.iterdir())) for path in sorted(group.iterdir())]
    return np.stack([np.asarray(Image.open(path)) for path, _ in paths]), np.array([n for _, n in paths])


def batches(images, labels, steps, seed=0):
    """Yield batches in a new order in every epoch, images shifted by up to four pixels and half of them mirrored."""
    rng = np.random.default_rng(seed)
    padded, order = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), "reflect"), np.array([], int)
    for _ in range(steps):
        if len(order) < BATCH:
            order = np.concatenate([order, rng.permutation(len(images))])
        chosen, order = order[:BATCH], order[BATCH:]
        places = rng.integers(0, 9, (BATCH, 2))
        pixels = np.stack([padded[i, y : y + 32, x : x + 32] for i, (y, x) in zip(chosen, places)])
        mirrored = rng.random(BATCH) < 0.5
        pixels[mirrored] = pixels[mirrored][:, :, ::-1]
        yield vit.preprocess_inputs(pixels), labels[chosen]


def train(name, budget, data, test):
    """Train a model for a budget of TFLOPs; return what came out."""
    keras.utils.set_random_seed(0)
    step = cost(config(name), batch_size=BATCH, training=True)
    steps = round(1e12 * budget / step.flops)
    model = vit.build(config(name))
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=2e-3, warmup_steps=steps // 10
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.05, clipnorm=1.0), loss, metrics=["accuracy"])
    started = time.process_time()
    model.fit(batches(*data, steps), steps_per_epoch=steps, verbose=0)
    seconds = time.process_time() - started
    measured, accuracy = model.evaluate(vit.preprocess_inputs(test[0]), test[1], batch_size=500, verbose=0)
    return {
        "model": name, "parameters": step.parameters, "tflops": steps * step.flops / 1e12, "steps": steps,
        "images": steps * BATCH, "loss": float(measured), "accuracy": float(accuracy), "cpu_seconds": round(seconds),
    }  # fmt: skip


def draw(results, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 4.2))
    for name, color in zip(SIZES, COLORS):
        points = sorted((r["tflops"], 100 * r["accuracy"]) for r in results if r["model"] == name)
        millions = next(r["parameters"] for r in results if r["model"] == name) / 1e6
        axis.plot(*zip(*points), marker="o", color=color, label=f"{name} ({millions:.2f} M)")
    axis.set_xscale("log")
    budgets = sorted({round(r["tflops"], 1) for r in results})
    axis.set_xticks(budgets, [f"{b:g}" for b in budgets])
    axis.minorticks_off()
    axis.set_xlabel("training compute, TFLOP")
    axis.set_ylabel("accuracy on CIFAR-10's test images, %")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(title="layers × hidden size (parameters)", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budgets", type=float, nargs="+", default=[0.1, 0.3, 1, 3], help="training TFLOPs")
    parser.add_argument("-o", "--output", type=Path, default=Path("scaling.json"))
    options = parser.parse_args()
    data, test = load(options.folder / "train"), load(options.folder / "test")
    results = json.loads(options.output.read_text()) if options.output.exists() else []
    known = {(r["model"], round(r["tflops"], 1)) for r in results}
    for budget in options.budgets:
        for name in SIZES:
            if (name, round(budget, 1)) not in known:
                results.append(train(name, budget, data, test))
                print(results[-1], flush=True)
                options.output.write_text(json.dumps(results, indent=1) + "\n")
    draw(results, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()

"""Measure in miniature what the paper's Figures 3 to 5 measure at full size, on CIFAR-10: accuracy against training
compute, images and architecture.

    python -m benchmarks.lab.scaling_study CIFAR10 sizes [-o docs/scaling.json]
    python -m benchmarks.lab.scaling_study CIFAR10 paper [-o docs/paper/study.json]

CIFAR10 is a folder with train/CLASS/PICTURE and test/CLASS/PICTURE, or a ZIP file of it. Each model is trained from
scratch once for each run of the study, with a schedule of its own, so that every point is the end of a run. A study
that is interrupted goes on where it was: finished runs are in the JSON. Beside it come its figures.
"""

import argparse
import json
import math
import os
import time
import warnings
import zipfile
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from PIL import Image

from vit_keras import layers, vit
from vit_keras.config import ViTConfig
from vit_keras.cost import cost
from vit_keras.layers.resnet import GroupNorm

SIZES = {"2 × 24": (2, 24, 2), "3 × 48": (3, 48, 3), "4 × 80": (4, 80, 4), "6 × 128": (6, 128, 4)}
"""Layers, hidden size, heads of ViTs. The last has the layers and the width of `vit_cifar10`."""

ARCHITECTURES = {"ViT": ((), (2, 32, 2)), "hybrid": ((32,), (1, 32, 2)), "ResNet": ((32, 64), None)}
"""Filters of the residual blocks, and the ViT behind them. An image costs about as much in each."""

EVERY = 50_000
"""Training images of CIFAR-10."""

PICTURES = (1_000, 5_000, 20_000, EVERY)
BUDGETS = (0.02, 0.08, 0.32)
SEEDS = (0, 1, 2)
BATCH = 64
COLORS = ("#56B4E9", "#009E73", "#E69F00", "#0072B2")


class Run(NamedTuple):
    """A model trained once."""

    model: str
    budget: float
    """TFLOPs of training."""
    pictures: int = EVERY
    """Training images that it is shown again and again."""
    seed: int = 0


def sizes():
    """The study of size: four ViTs, all images."""
    return [Run(name, budget) for budget in (0.1, 0.3, 1, 3) for name in SIZES]


def paper():
    """The studies of compute (Figure 5) and of data (Figures 3 and 4), which share runs."""
    runs = []
    for seed in SEEDS:
        runs += [Run(name, budget, EVERY, seed) for budget in BUDGETS for name in ARCHITECTURES]
        runs += [Run(name, BUDGETS[-1], pictures, seed) for pictures in PICTURES[:-1] for name in ("ViT", "ResNet")]
    return runs


STUDIES = {"sizes": sizes, "paper": paper}


def build(name):
    """Return a model and the operations of a training step for one image."""
    if name in SIZES:
        config = _config(SIZES[name])
        return vit.build(config), cost(config, training=True).flops
    filters, size = ARCHITECTURES[name]
    if not filters:
        config = _config(size)
        return vit.build(config), cost(config, training=True).flops
    x = image = keras.Input((32, 32, 3))
    x = keras.layers.ReLU()(_normalized(x, 16, 3, 2))
    for width in filters:
        x = _residual_block(x, width)
    if size is None:
        outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x))
    else:
        outputs = vit.build(_config(size, image_size=x.shape[1], channels=x.shape[3], patch_size=1))(x)
    model = keras.Model(image, outputs, name=name)
    return model, training_flops(model)


def _config(size, image_size=32, channels=3, patch_size=4):
    depth, width, heads = size
    return ViTConfig(
        name="vit", image_size=image_size, channels=channels, patch_size=patch_size, num_layers=depth,
        hidden_size=width, num_heads=heads, mlp_dim=2 * width, classes=10, pooling="gap",
    )  # fmt: skip


def _normalized(x, filters, kernel_size, strides=1):
    """As in the paper's ResNets: standardized convolutions and group normalization."""
    return GroupNorm(8, epsilon=1e-6)(layers.StdConv2D(filters, kernel_size, strides)(x))


def _residual_block(x, filters):
    """Two 3x3 convolutions, which halve the size, around a projection."""
    y = keras.layers.ReLU()(_normalized(x, filters, 3, 2))
    y = _normalized(y, filters, 3)
    return keras.layers.ReLU()(y + _normalized(x, filters, 1, 2))


def training_flops(model):
    """Return the operations of a training step for one image, as `vit_keras.cost` counts them.

    These are products forward and twice backward, except that nobody asks for the gradient of the image.

    Args:
        model: A functional model of convolutions, dense layers and ViTs.
    """
    products = []
    for layer in model.layers:
        if isinstance(layer, vit.VisionTransformer):
            products.append(cost(layer.config).flops // 2)
        elif hasattr(layer, "kernel"):
            products.append(math.prod(layer.kernel.shape) * math.prod(layer.output.shape[1:-1]))
    return 2 * (3 * sum(products) - products[0])


def load(source, part):
    """Return 8-bit images and their labels, of a folder or a ZIP file."""
    root = zipfile.Path(source) if source.is_file() else source

    def inside(folder):
        return sorted(folder.iterdir(), key=lambda path: path.name)

    paths = [(path, n) for n, group in enumerate(inside(root / part)) for path in inside(group)]
    images = []
    for path, _ in paths:
        with path.open("rb") as file:
            images.append(np.asarray(Image.open(file)))
    return np.stack(images), np.array([n for _, n in paths])


def batches(images, labels, steps, seed=0):
    """Yield batches in a new order in every epoch, images shifted by up to four pixels and half of them mirrored."""
    rng = np.random.default_rng(seed)
    padded, order = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), "reflect"), np.array([], int)
    for _ in range(steps):
        while len(order) < BATCH:
            order = np.concatenate([order, rng.permutation(len(images))])
        chosen, order = order[:BATCH], order[BATCH:]
        places = rng.integers(0, 9, (BATCH, 2))
        pixels = np.stack([padded[i, y : y + 32, x : x + 32] for i, (y, x) in zip(chosen, places)])
        mirrored = rng.random(BATCH) < 0.5
        pixels[mirrored] = pixels[mirrored][:, :, ::-1]
        yield vit.preprocess_inputs(pixels), labels[chosen]


def train(run, data, test):
    """Train a model for a budget; return what came out."""
    keras.utils.set_random_seed(run.seed)
    model, flops = build(run.model)
    steps = max(1, round(1e12 * run.budget / (BATCH * flops)))
    if run.pictures < len(data[0]):
        chosen = np.random.default_rng(run.seed).permutation(len(data[0]))[: run.pictures]
        data = tuple(array[chosen] for array in data)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps - steps // 10, warmup_target=2e-3, warmup_steps=max(1, steps // 10)
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(schedule, weight_decay=0.05, clipnorm=1.0), loss, metrics=["accuracy"])
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a hybrid's ViT sees feature maps, and says that these are no pixels
        history = model.fit(batches(*data, steps, run.seed), steps_per_epoch=steps, verbose=0).history
    seconds = time.process_time() - started
    measured, accuracy = model.evaluate(vit.preprocess_inputs(test[0]), test[1], batch_size=500, verbose=0)
    return {
        **run._asdict(), "parameters": model.count_params(), "tflops": steps * BATCH * flops / 1e12, "steps": steps,
        "images": steps * BATCH, "loss": float(measured), "accuracy": float(accuracy),
        "training_accuracy": float(history["accuracy"][-1]), "cpu_seconds": round(seconds),
    }  # fmt: skip


def read(path):
    """Return the finished runs of a study."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def run_of(result):
    """Return which run gave a result. Results of the study of size name neither pictures nor seed."""
    budget = result.get("budget", round(result["tflops"], 1))
    return Run(result["model"], budget, result.get("pictures", EVERY), result.get("seed", 0))


def go_on(study, source, output, seeds=SEEDS):
    """Do what is left of a study; each run is written to `output` when it is finished."""
    known = {run_of(result) for result in read(output)}
    left = [run for run in STUDIES[study]() if run not in known and run.seed in seeds]
    if not left:
        return
    data, test = load(source, "train"), load(source, "test")
    for run in left:
        result = train(run, data, test)
        print(result, flush=True)
        lines = [json.dumps(result) for result in [*read(output), result]]
        output.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def summary(results, **wanted):
    """Return, for results whose run is as wanted: seeds, and mean and standard deviation of the accuracy, in %."""
    runs = [(run_of(result), 100 * result["accuracy"]) for result in results]
    found = [value for run, value in runs if all(getattr(run, name) == it for name, it in wanted.items())]
    if not found:
        return None
    return len(found), float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else None


def rows_of_data(results):
    """Return the table of the effect of data: `(pictures, times seen, {model: summary})`."""
    budget, rows = BUDGETS[-1], []
    for pictures in PICTURES:
        cells = {name: summary(results, model=name, budget=budget, pictures=pictures) for name in ("ViT", "ResNet")}
        seen = [r["images"] for r in results if run_of(r).budget == budget and run_of(r).model == "ViT"]
        if all(cells.values()):
            rows.append((pictures, seen[0] / pictures, cells))
    return rows


def rows_of_compute(results):
    """Return the table of the effect of compute: `(TFLOPs, {model: summary})`."""
    rows = []
    for budget in BUDGETS:
        cells = {name: summary(results, model=name, budget=budget, pictures=EVERY) for name in ARCHITECTURES}
        if all(cells.values()):
            rows.append((budget, cells))
    return rows


def _axes(xlabel, ticks):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 4.2))
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel(xlabel)
    axis.set_ylabel("accuracy on CIFAR-10's test images, %")
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    return figure, axis


def _save(figure, axis, path, title=None):
    axis.legend(title=title, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def draw_sizes(results, folder, stem):
    """Draw accuracy against compute, a curve for each size."""
    figure, axis = _axes("training compute, TFLOP", sorted({run_of(r).budget for r in results}))
    for name, color in zip(SIZES, COLORS):
        points = sorted((r["tflops"], 100 * r["accuracy"]) for r in results if r["model"] == name)
        if points:
            millions = next(r["parameters"] for r in results if r["model"] == name) / 1e6
            axis.plot(*zip(*points), marker="o", color=color, label=f"{name} ({millions:.2f} M)")
    _save(figure, axis, folder / f"{stem}.png", "layers × hidden size (parameters)")


def draw_paper(results, folder, stem):
    """Draw accuracy against images and against compute, with the standard deviation over seeds."""
    compute, data = rows_of_compute(results), rows_of_data(results)
    of_data = [(pictures, cells) for pictures, _, cells in data]
    for name, xlabel, rows in (
        ("data", "training pictures", of_data),
        ("compute", "training compute, TFLOP", compute),
    ):
        if not rows:
            continue
        figure, axis = _axes(xlabel, [place for place, _ in rows])
        for (model, color), marker in zip(zip(ARCHITECTURES, COLORS[1:]), "os^"):
            points = [(place, *cells[model]) for place, cells in rows if model in cells]
            if points:
                x, _, mean, spread = zip(*points)
                bars = [value or 0 for value in spread]
                axis.errorbar(x, mean, bars, marker=marker, color=color, capsize=3, label=model)
        _save(figure, axis, folder / f"{stem}_{name}.png")


OUTPUTS = {"sizes": Path("scaling.json"), "paper": Path("study.json")}
FIGURES = {"sizes": draw_sizes, "paper": draw_paper}


def main(arguments=None):
    """Do what is left of a study, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="CIFAR10")
    parser.add_argument("study", nargs="?", choices=STUDIES, default="sizes")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="do the runs of these alone")
    parser.add_argument("-o", "--output", type=Path, help="default: scaling.json or study.json, here")
    options = parser.parse_args(arguments)
    output = options.output or OUTPUTS[options.study]
    go_on(options.study, options.source, output, options.seeds)
    FIGURES[options.study](read(output), output.parent, output.stem)


if __name__ == "__main__":
    main()

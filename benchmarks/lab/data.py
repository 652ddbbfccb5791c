"""Measure the input pipeline and training a ViT-Ti/16 in images a second, and a frozen ViT-Ti/16 in seconds.

python -m benchmarks.lab.data [FOLDER] [--sizes 128 224] [--weights Ti_16.npz]

The frozen model computes features, once and from the cache; then come a linear probe and the nearest neighbors. The
images are FOLDER/class/image.jpg; without FOLDER, 500 random ones of 320 × 240. Without --weights the model is random,
which makes the probe slower.
"""

import argparse
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from vit_keras import training, vit
from vit_keras.training.data.augment import Augmentation
from vit_keras.training.data.dataset import image_folder

BATCH = 32


def make(folder, count=500):
    rng = np.random.default_rng(0)
    for name, n in itertools.product("ab", range(count // 2)):
        path = Path(folder, name, f"{n}.jpg")
        path.parent.mkdir(exist_ok=True)
        noise = Image.fromarray(rng.integers(0, 256, (30, 40, 3), "uint8"))
        noise.resize((320, 240), Image.Resampling.BICUBIC).save(path, quality=90)


def seconds(run):
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def rate(count, run):
    return count / seconds(run)


def vit_ti16(size, weights=None):
    return vit.vit_ti16(image_size=size, classes=2, weights=weights)


def train(size, batches, steps=3):
    model = vit_ti16(size)
    model.compile("adamw", "sparse_categorical_crossentropy")
    inputs, labels = batches[0]
    labels = labels % 2
    model.train_on_batch(inputs, labels)
    return rate(steps * len(inputs), lambda: [model.train_on_batch(inputs, labels) for _ in range(steps)])


def measure(folder, size):
    def load(**options):
        return image_folder(folder, size, batch_size=BATCH, progress=False, **options)

    started = time.perf_counter()
    augmented = load(augmentation=Augmentation())
    first_pass = len(augmented.paths) / (time.perf_counter() - started)
    served = [augmented, load(shuffle=False), load(augmentation=Augmentation(), cache=False)]
    rates = [rate(len(data.paths), lambda data=data: list(map(len, data))) for data in served]
    return first_pass, *rates, train(size, augmented)


def measure_frozen(folder, size, weights, cache):
    """Return the number of images and the seconds of each step; a fifth looks for neighbors in the rest."""
    model = vit_ti16(size, weights)
    known, asked = image_folder(folder, size, validation_split=0.2, progress=False)

    def features(data):
        return training.features(model, data, cache=cache, progress=False)

    queries = features(asked)
    times = [seconds(lambda: features(known)) for _ in range(2)]
    seen = features(known)
    times.append(seconds(lambda: training.linear_probe(seen, known.labels)))
    times.append(seconds(lambda: training.knn(seen, known.labels, queries)))
    return len(seen), *times


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--weights")
    parser.add_argument("--sizes", nargs="+", type=int, default=[128, 224])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if arguments.folder is None:
            make(made)
        print("images a second | first pass | training set | evaluation | decoded each time | training step Ti/16")
        for size in arguments.sizes:
            rates = measure(arguments.folder or made, size)
            print(f"{size} px | " + " | ".join(f"{r:,.0f}" for r in rates), flush=True)
        print("frozen Ti/16, seconds | images | features | again | probe | neighbors")
        for size in arguments.sizes:
            with tempfile.TemporaryDirectory() as cache:
                count, *times = measure_frozen(arguments.folder or made, size, arguments.weights, cache)
            print(f"{size} px | {count:,} | " + " | ".join(f"{t:.2f}" for t in times), flush=True)


if __name__ == "__main__":
    main()

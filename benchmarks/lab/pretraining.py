"""Measure what pre-training without labels gains: a small ViT on few labeled images, with and without it.

python -m benchmarks.lab.pretraining FOLDER [--seeds 3] [--unlabeled 1000] [--labeled 100]

FOLDER holds train/class/image and test/class/image, all of 32 pixels (CIFAR-10). Each seed is a fresh model, another
order of the images and other masks. It prints the accuracy on the test images, and its gain with a standard error.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from PIL import Image

from vit_keras import vit
from vit_keras.training import MaskedAutoencoder, MaskedPatchPrediction

KINDS = {
    MaskedPatchPrediction: {},
    MaskedAutoencoder: {"decoder_depth": 1, "decoder_width": 48, "decoder_heads": 4},
}


def load(folder, per_class):
    """Return images in [-1, 1], and their labels: the first so many of each class."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    paths = [(path, label) for label, group in enumerate(classes) for path in sorted(group.iterdir())[:per_class]]
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB"), "float32") for path, _ in paths])
    return (pixels - 127.5) / 127.5, np.array([label for _, label in paths])


def adamw(rate, images, epochs, batch_size, **options):
    steps = -(-len(images) // batch_size) * epochs
    warmup = steps // 10
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=rate, warmup_steps=warmup)
    return keras.optimizers.AdamW(schedule, weight_decay=0.05, clipnorm=1.0, **options)


def accuracy(kind, seed, unlabeled, labeled, test):
    keras.utils.set_random_seed(seed)
    model = vit.build_model(32, 4, 2, 64, 2, "ViT-mu", 128, classes=10, dropout=0.0, pooling="gap")
    if kind is not None:
        pretraining = kind(model, seed=seed, **KINDS[kind])
        pretraining.compile(adamw(2e-3, unlabeled, 10, 128, beta_2=0.95))
        pretraining.fit(unlabeled, epochs=10, batch_size=128, verbose=0)
    images = np.concatenate([labeled[0], labeled[0][:, :, ::-1]])  # and seen in a mirror
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(adamw(1e-3, images, 20, 64), loss, metrics=["accuracy"])
    model.fit(images, np.tile(labeled[1], 2), epochs=20, batch_size=64, verbose=0)
    return model.evaluate(*test, batch_size=200, verbose=0)[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3, help="models of each kind")
    parser.add_argument("--unlabeled", type=int, default=1000, help="images of each class to pre-train on")
    parser.add_argument("--labeled", type=int, default=100, help="labeled images of each class")
    options = parser.parse_args()
    unlabeled, _ = load(options.folder / "train", options.unlabeled)
    labeled, test = load(options.folder / "train", options.labeled), load(options.folder / "test", 200)
    results = {None: [], **{kind: [] for kind in KINDS}}
    for seed in range(options.seeds):
        for kind, found in results.items():
            found.append(accuracy(kind, seed, unlabeled, labeled, test))
            print(f"seed {seed}, {kind.__name__ if kind else 'from scratch'}: {found[-1]:.1%}", flush=True)
    for kind in KINDS:
        gains = 100 * np.subtract(results[kind], results[None])
        error = f" ± {gains.std(ddof=1) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else ""
        print(f"{keras.backend.backend()}, {kind.__name__}: gains {gains.mean():.1f}{error} points of accuracy")


if __name__ == "__main__":
    main()

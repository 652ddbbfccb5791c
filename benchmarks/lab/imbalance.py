"""Measure what losses for unbalanced classes gain: a ViT fine-tuned on a long tail, tested on equal classes.

python -m benchmarks.lab.imbalance FOLDER --weights Ti_16.npz [--largest 80] [--ratio 16] [--seeds 3] [--epochs 6]

FOLDER holds class/image. Each seed draws other images, and gives the classes other places in the tail: the first has
`largest` images, the last `largest / ratio`, and those between fall by equal factors. 40 other images of each class
are the test. All losses start from the same weights and see the same batches. Printed are balanced accuracy and macro
F1 on the test and, at the end, the gain over the plain loss in points, with its standard error over the seeds. With
--frozen only a linear head is trained, on features that are computed once, which takes seconds.
"""

import argparse
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import ops

from vit_keras import training
from vit_keras.opening import from_checkpoint
from vit_keras.training import metrics

TESTED = 40  # images of each class
POOL = 200  # images of each class that features are computed of
PROBE_STEPS = 150


class WithPrior(keras.losses.Loss):
    """Cross-entropy of logits to which the logarithm of each class's share is added (arXiv 2007.07314)."""

    def __init__(self, counts):
        super().__init__()
        self.prior = np.log(counts / counts.sum()).astype("float32")

    def call(self, y_true, y_pred):
        return keras.losses.categorical_crossentropy(y_true, ops.add(y_pred, self.prior), from_logits=True)


def effective(counts, beta):
    """Return weights by the effective number of images of each class (arXiv 1901.05555), 1 in the mean."""
    weights = (1 - beta) / (1 - beta**counts)
    return dict(enumerate(weights * counts.sum() / (weights * counts).sum()))


def plain(counts):
    return keras.losses.CategoricalCrossentropy(from_logits=True)


def focal(counts):
    return keras.losses.CategoricalFocalCrossentropy(alpha=1.0, gamma=2.0, from_logits=True)


def balanced(counts):
    return dict(enumerate(counts.sum() / (len(counts) * counts)))


METHODS = {
    "plain": (plain, lambda counts: None),
    "balanced": (plain, balanced),
    "effective": (plain, lambda counts: effective(counts, 0.99)),
    "focal": (focal, lambda counts: None),
    "prior": (WithPrior, lambda counts: None),
}


def draw(source, target, largest, ratio, seed):
    """Link images into target/train/class and target/test/class."""
    rng = np.random.default_rng(seed)
    classes = sorted(path for path in source.iterdir() if path.is_dir())
    for place, number in enumerate(rng.permutation(len(classes))):
        files = rng.permutation(sorted(classes[number].iterdir())[:POOL])
        count = round(largest * ratio ** (-place / (len(classes) - 1)))
        for part, chosen in (("test", files[:TESTED]), ("train", files[TESTED : TESTED + count])):
            folder = target / part / classes[number].name
            folder.mkdir(parents=True)
            for file in chosen:
                (folder / file.name).symlink_to(file.resolve())


def fine_tuned(method, weights, folder, size, epochs, seed):
    """Return the test's labels, and the outputs of a model that was fine-tuned."""
    loss, class_weight = METHODS[method]
    recipe = training.recipe("finetune", epochs=epochs)
    train = training.image_folder(folder / "train", size, seed=seed, augmentation=recipe.augmentation, progress=False)
    train.one_hot = True
    test = training.image_folder(folder / "test", size, shuffle=False, progress=False)
    model = from_checkpoint(weights, image_size=size, classes=len(train.class_names))
    recipe.compile(model, train, loss=loss(train.counts))
    callbacks = [*recipe.callbacks, *train.callbacks]
    model.fit(train, epochs=epochs, callbacks=callbacks, class_weight=class_weight(train.counts), verbose=0)
    return test.labels, model.predict(test, verbose=0)


def probed(method, features, folder):
    """Return the test's labels, and the outputs of a linear head on features by the name of their file."""
    loss, class_weight = METHODS[method]
    parts, classes = {}, sorted(path.name for path in (folder / "train").iterdir())
    for part in ("train", "test"):
        files = [(file, classes.index(file.parent.name)) for file in sorted((folder / part).glob("*/*"))]
        parts[part] = np.stack([features[file.resolve()] for file, _ in files]), np.array([n for _, n in files])
    (seen, labels), (held_out, truth) = parts["train"], parts["test"]
    mean, std = seen.mean(axis=0), seen.std(axis=0) + 1e-6
    counts, inputs = np.bincount(labels), (seen - mean) / std
    head = keras.Sequential(
        [keras.Input(inputs.shape[1:]), keras.layers.Dense(len(classes), kernel_initializer="zeros")]
    )
    head.compile(keras.optimizers.AdamW(0.003, weight_decay=0.01), loss(counts))
    weights, targets = class_weight(counts), np.eye(len(classes), dtype="float32")[labels]
    weights = np.array([1.0 if weights is None else weights[n] for n in labels], "float32")
    for _ in range(PROBE_STEPS):
        head.train_on_batch(inputs, targets, weights)
    return truth, head.predict_on_batch((held_out - mean) / std)


def all_features(folder, weights, size):
    """Return the features of the first images of each class, by file."""
    model = from_checkpoint(weights, image_size=size, include_top=False)
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [str(file) for path in classes for file in sorted(path.iterdir())[:POOL]]
    return dict(zip((Path(file).resolve() for file in files), training.embed(model, files, progress=False)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--size", type=int, default=96, help="pixels of a side")
    parser.add_argument("--largest", type=int, default=80, help="pictures of the first class")
    parser.add_argument("--ratio", type=float, default=16, help="pictures of the first class to one of the last")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--frozen", action="store_true", help="train only a linear head")
    options = parser.parse_args()
    size, features = options.size, None
    if options.frozen:
        features = all_features(options.folder, options.weights, size)
    found = {method: [] for method in METHODS}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            draw(options.folder, Path(folder), options.largest, options.ratio, seed)
            for method in METHODS:
                keras.utils.set_random_seed(seed)
                if options.frozen:
                    labels, outputs = probed(method, features, Path(folder))
                else:
                    labels, outputs = fine_tuned(method, options.weights, Path(folder), size, options.epochs, seed)
                outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
                row = [100 * metrics.score(name, labels, outputs) for name in ("balanced_accuracy", "macro_f1")]
                found[method].append(row)
                print(f"seed {seed}  {method:16} {row[0]:5.1f} {row[1]:5.1f}", flush=True)
    for method, rows in found.items():
        gains = np.array(rows) - np.array(found["plain"])
        errors = gains.std(axis=0, ddof=1) / np.sqrt(len(rows)) if len(rows) > 1 else [np.nan] * 2
        names = ("balanced accuracy", "macro F1")
        said = (f"{name} {gain:+.1f} ± {error:.1f}" for name, gain, error in zip(names, gains.mean(axis=0), errors))
        print(f"{method:16} {', '.join(said)}")


if __name__ == "__main__":
    main()

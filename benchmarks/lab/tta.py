"""Measure what several views of an image at test time gain: `predict_table(tta=…)` of a linear probe on a frozen ViT.

python -m benchmarks.lab.tta FOLDER --weights Ti_16.npz [--image-size 128] [--train 40] [--test 40] [--seeds 5]

FOLDER holds class/image. Each seed draws `train` and `test` images of each class. Printed are the accuracy and the
cross-entropy with one view and, for more views, the gain in points and the change of the cross-entropy, with their
standard errors over the seeds.
"""

import argparse
from pathlib import Path

import numpy as np

from vit_keras import training
from vit_keras.opening import from_checkpoint

VIEWS = ("", "flip", "crops", "flip,crops")


def results(model, folder, paths, labels):
    """Return `(accuracy in %, cross-entropy)` by each of `VIEWS`."""
    rows, found = {"image": [str(path.relative_to(folder)) for path in paths]}, []
    for tta in VIEWS:
        table = training.predict_table(rows, [model], folder, image_column="image", tta=tta, values="probabilities")
        shares = table[[str(n) for n in range(labels.max() + 1)]].to_numpy()
        cross_entropy = -np.log(shares[np.arange(len(labels)), labels]).mean()
        found.append((100 * np.mean(shares.argmax(axis=1) == labels), cross_entropy))
    return np.array(found)


def main():
    """Measure, and print a line for each choice of views."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--image-size", type=int, default=128)
    for name, number in (("train", 40), ("test", 40), ("seeds", 5)):
        parser.add_argument(f"--{name}", type=int, default=number)
    given = parser.parse_args()
    groups = [sorted(group.iterdir()) for group in sorted(given.folder.iterdir())]
    model = from_checkpoint(given.weights, classes=len(groups), image_size=given.image_size)
    model.labels = tuple(map(str, range(len(groups))))
    found = []
    for seed in range(given.seeds):
        rng = np.random.default_rng(seed)
        drawn = [rng.permutation(len(group))[: given.train + given.test] for group in groups]
        parts = [
            [(group[n], k) for k, (group, order) in enumerate(zip(groups, drawn)) for n in order[part]]
            for part in (slice(given.train), slice(given.train, None))
        ]
        (train, train_labels), (test, test_labels) = ((list(p), np.array(y)) for p, y in (zip(*part) for part in parts))
        probe = training.linear_probe(training.embed(model, train, progress=False), train_labels)
        model.get_layer("head").set_weights([probe.kernel, probe.bias])
        found.append(results(model, given.folder, test, test_labels))
    found = np.array(found)
    gains = found - found[:, :1]
    mean, error = gains.mean(axis=0), gains.std(axis=0, ddof=1) / len(gains) ** 0.5
    print("| views | accuracy | cross-entropy |\n| --- | --- | --- |")
    print("| one | {:.1f} % | {:.3f} |".format(*found[:, 0].mean(axis=0)))
    for n, name in enumerate(VIEWS[1:], 1):
        cells = [f"{m:+.{digits}f} ± {e:.{digits}f}" for m, e, digits in zip(mean[n], error[n], (1, 3))]
        print(f"| `{name}` | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()

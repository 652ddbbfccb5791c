"""Compare ViT-Ti/16, EfficientNetB0 and ResNet50 on your images, each trained for the same time.

python examples/compare_backbones.py --data FOLDER --minutes 5    (FOLDER/CLASS/IMAGES; without it, CIFAR-10)

Images, size, batches, optimizer and seconds of training are the same (compiling and testing do not count). All start
from ImageNet weights (ViT-Ti/16's were first trained on ImageNet-21k), or all from scratch if one has no weights.
"""

import argparse
import math
import time
from pathlib import Path

import keras
import numpy as np

import vit_keras
from vit_keras import utils, vit

COLORS = {"ViT-Ti/16": "#0072B2", "EfficientNetB0": "#E69F00", "ResNet50": "#009E73"}  # safe for color-blind readers
BATCH = 32


def load(folder, size):
    """Return uint8 images and their classes, in random order."""
    if folder is None:
        (images, labels), _ = keras.datasets.cifar10.load_data()
        images, labels = [utils.resize_image(image, (size, size)) for image in images[:12_000]], labels[:12_000, 0]
    else:
        paths = [p for p in sorted(Path(folder).glob("*/*")) if p.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp")]
        images = [utils.read(path, size) for path in paths]
        labels = np.unique([path.parent.name for path in paths], return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(images))
    return np.stack(images)[order], labels[order]


def build(name, size, classes, pretrained):
    """Return a model from pixels in [0, 255] to logits, with a head that starts at zero."""
    pixels = keras.Input((size, size, 3))
    if name == "ViT-Ti/16":
        backbone = vit.vit_ti16(image_size=size, include_top=False, pretrained=pretrained)
        inputs = vit_keras.preprocessing_layer(backbone)(pixels)
    else:
        options = {"include_top": False, "pooling": "avg", "input_shape": (size, size, 3)}
        backbone = getattr(keras.applications, name)(weights="imagenet" if pretrained else None, **options)
        inputs = keras.applications.resnet.preprocess_input(pixels) if name == "ResNet50" else pixels
    for layer in backbone.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # their 0.99 is too slow for a short training
    return keras.Model(pixels, keras.layers.Dense(classes, kernel_initializer="zeros")(backbone(inputs)))


def batch(images, labels, step):
    """Return random images, half of them mirrored; a step always has the same ones."""
    random = np.random.default_rng(step)
    chosen, mirrored = random.integers(len(images), size=BATCH), random.random(BATCH) < 0.5
    images = images[chosen].astype("float32")
    images[mirrored] = images[mirrored, :, ::-1]
    return images, labels[chosen]


def train(model, images, labels, test, rate, seconds):
    """Train for `seconds` and return the results. The learning rate rises for a tenth of it, then falls as a cosine."""
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.05, clipnorm=1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=keras.backend.backend() == "jax")
    optimizer.learning_rate = 0.0
    model.train_on_batch(*batch(images, labels, 0))  # compiles
    used, step, curve = 0.0, 0, [(0.0, model.evaluate(*test, verbose=0)[1])]
    while used < seconds:
        optimizer.learning_rate = rate * min(10 * used / seconds + 0.01, (1 + math.cos(math.pi * used / seconds)) / 2)
        start, step = time.perf_counter(), step + 1
        model.train_on_batch(*batch(images, labels, step))
        used += time.perf_counter() - start
        if used >= seconds * len(curve) / 10:
            curve.append((used, model.evaluate(*test, verbose=0)[1]))
    for _ in range(2):  # the first pass compiles
        start = time.perf_counter()
        model.predict(test[0], batch_size=BATCH, verbose=0)
    speeds = {"trained": step * BATCH / used, "tested": len(test[0]) / (time.perf_counter() - start)}
    return {"curve": curve, "accuracy": curve[-1][1], "parameters": model.count_params(), **speeds}


def draw(results, title, path):
    """Plot the accuracy over the time of training, and over the speed of the trained model."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for name, row in results.items():
        minutes, accuracy = np.array(row["curve"]).T * [[1 / 60], [100]]
        label = f"{name}, {row['parameters'] / 1e6:.1f} M parameters"
        left.plot(minutes, accuracy, "o-", ms=4, color=COLORS[name], label=label)
        right.plot(row["tested"], accuracy[-1], "o", ms=9, color=COLORS[name])
    left.set(xlabel="minutes of training", ylabel="accuracy on held-out images (%)", title=title)
    right.set(xlabel="images/s of the trained model", title="after training")
    right.set(xlim=(0, 1.2 * max(row["tested"] for row in results.values())))
    figure.legend(loc="outside upper center", ncols=len(results), frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=200)
    plt.close(figure)


def main(arguments=None):
    """Print and draw the comparison, and return the results by name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder with a folder of images for each class; without it, CIFAR-10")
    parser.add_argument("--minutes", type=float, default=5, help="minutes of training for each model")
    parser.add_argument("--size", type=int, default=128, help="image size in pixels")
    parser.add_argument("--weights", choices=["imagenet", "none"], default="imagenet")
    parser.add_argument("--out", default="compare_backbones.png")
    options = parser.parse_args(arguments)
    images, labels = load(options.data, options.size)
    test = images[: len(images) // 5].astype("float32"), labels[: len(images) // 5]
    sizes, pretrained = (options.size, int(labels.max()) + 1), options.weights == "imagenet"
    try:
        models = {name: build(name, *sizes, pretrained) for name in COLORS}
    except Exception as error:  # Keras raises several kinds without a network
        if not pretrained:
            raise
        print(f"{error}\n\nALL START FROM SCRATCH. With few images, do not choose a backbone by this result.\n")
        pretrained, models = False, {name: build(name, *sizes, False) for name in COLORS}
    results, title = {}, "from ImageNet weights" if pretrained else "from scratch"
    print(f"{title}, {options.minutes:g} minutes each\n{'':14} accuracy  parameters  images/s: training  trained")
    for name, model in models.items():
        rate = 1e-4 if pretrained else 1e-3
        row = train(model, images[len(test[1]) :], labels[len(test[1]) :], test, rate, 60 * options.minutes)
        print(f"{name:14} {row['accuracy']:8.1%} {row['parameters'] / 1e6:9.1f} M", end="")
        print(f"{row['trained']:20.0f} {row['tested']:8.0f}", flush=True)
        results[name] = row
    draw(results, title, options.out)
    return results


if __name__ == "__main__":
    main()

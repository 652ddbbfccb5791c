"""Segment images: heads on the feature maps of a ViT, frozen and then trained, next to a small U-Net from scratch.

Each image is a scene of one or two things before a background, which have been pasted there: so each pixel's class
is known. Without files, the things are drawn shapes before clouds of color. With a .zip of photographs of hands before
a plain wall, in a folder for each class, and one of any other photographs, they are hands that sign a digit.

python examples/segment.py [--hands sign_digits.zip --backgrounds flowers.zip] [--weights Ti_16.npz] [--out segment.png]
"""

import argparse
import io
import time
import zipfile
from pathlib import Path

import keras
import numpy as np
from keras import layers
from PIL import Image, ImageDraw

import vit_keras

SHAPES = ("disc", "ring", "square", "triangle", "cross", "star")
COLORS = np.random.default_rng(4).integers(60, 256, (32, 3)) * (np.arange(32) > 0)[:, None]  # of the classes in figures


def clouds(random):
    """Return a background: smooth noise of several sizes."""
    octaves = [Image.fromarray(random.integers(0, 256, (n, n, 3), "uint8")).resize((128, 128), 3) for n in (2, 4, 12)]
    return Image.fromarray(np.mean([np.asarray(octave) for octave in octaves], axis=0).astype("uint8"))


def shape(random, kind):
    """Return a drawn shape, filled with clouds: an image with transparency."""
    mask = Image.new("L", (96, 96))
    draw, turn = ImageDraw.Draw(mask), random.uniform(0, 2 * np.pi)
    corners = {"square": 4, "triangle": 3, "cross": 12, "star": 10}.get(SHAPES[kind], 60)
    radius = {"cross": (44, 44, 18), "star": (46, 20), "disc": (40,), "ring": (40,)}.get(SHAPES[kind], (46,))
    angles = turn + 2 * np.pi * (np.arange(corners) + 0.25 * (SHAPES[kind] == "cross")) / corners
    draw.polygon(
        [
            (48 + radius[n % len(radius)] * np.cos(a), 48 + radius[n % len(radius)] * np.sin(a))
            for n, a in enumerate(angles)
        ],
        fill=255,
    )
    if SHAPES[kind] == "ring":
        draw.ellipse((28, 28, 68, 68), fill=0)
    found = clouds(random).resize((96, 96))
    found.putalpha(mask)
    return found


def photographs(path, part):
    """Yield the images in a .zip, with the names of their folders: each fifth is for the test."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.lower().endswith((".jpg", ".png")))
        for n, name in enumerate(names):
            if (n % 5 == 0) == (part == "test"):
                yield Image.open(io.BytesIO(archive.read(name))).convert("RGB"), Path(name).parent.name


def hand(image):
    """Return a hand before a wall, cut out by its color: an image with transparency."""
    from skimage.filters import threshold_otsu

    pixels = np.asarray(image, "int16")
    redness = pixels[..., 0] - pixels[..., 2]
    found = image.copy()
    found.putalpha(Image.fromarray(np.uint8(255 * (redness > threshold_otsu(redness)))))
    return found


def scenes(count, pixels, part, hands=None, backgrounds=None):
    """Return images `(count, pixels, pixels, 3)`, the class of each pixel, 0 for the background, and all classes."""
    random = np.random.default_rng({"train": 0, "test": 1}[part])
    names = ("background", *SHAPES)
    if hands:
        cut = [(hand(image), name) for image, name in photographs(hands, part)]
        names = ("background", *sorted({name for _, name in cut}))
        behind = [image for image, _ in photographs(backgrounds, part)]
    images, masks = np.zeros((count, pixels, pixels, 3), "uint8"), np.zeros((count, pixels, pixels), "uint8")
    for image, mask in zip(images, masks):
        scene = behind[random.integers(len(behind))] if hands else clouds(random)
        scene, classes = scene.resize((pixels, pixels), 3), Image.new("L", (pixels, pixels))
        for _ in range(random.integers(1, 3)):
            kind = random.integers(1, len(names))
            if hands:
                thing, name = cut[random.integers(len(cut))]
                kind = names.index(name)
            else:
                thing = shape(random, kind - 1)
            side = int(pixels * random.uniform(0.5, 0.9))
            thing = thing.resize((side, side), 3).rotate(random.uniform(-20, 20), 2)
            place = tuple(int(n) for n in random.integers(-side // 8, pixels - side * 7 // 8, 2))
            opaque = thing.getchannel("A").point(lambda alpha: 255 * (alpha > 127))
            scene.paste(thing, place, opaque)
            classes.paste(int(kind), place, opaque)
        image[:], mask[:] = scene, classes
    return images, masks, names


def linear_head(maps, classes, stride):
    """Return a head that decides for each patch alone, and interpolates: batch normalization and a 1×1 convolution."""
    inputs = [keras.Input(each[1:]) for each in maps]
    x = layers.BatchNormalization()(layers.Concatenate()(inputs))
    x = layers.Conv2D(classes, 1)(x)
    return keras.Model(inputs, layers.UpSampling2D(stride, interpolation="bilinear")(x), name="linear")


def dpt_head(maps, classes, stride, width=32):
    """Return a small DPT (arXiv 2103.13413): the maps become a pyramid, which is fused from the coarsest one on."""

    def residual(x):
        y = layers.Conv2D(width, 3, padding="same")(layers.ReLU()(x))
        return layers.Add()([x, layers.Conv2D(width, 3, padding="same")(layers.ReLU()(y))])

    inputs = [keras.Input(each[1:]) for each in maps]
    pyramid = [layers.Conv2D(width, 1)(layers.LayerNormalization()(x)) for x in inputs]
    finest = 2 ** (len(inputs) - 2)  # of four maps: 4, 2, 1 and 1/2 times as many cells as patches
    for n in range(len(inputs) - 1):
        factor = finest >> n
        pyramid[n] = layers.Conv2DTranspose(width, factor, factor)(pyramid[n]) if factor > 1 else pyramid[n]
    pyramid[-1] = layers.Conv2D(width, 3, 2, padding="same")(pyramid[-1])
    x = residual(pyramid[-1])
    for level in pyramid[-2::-1]:
        x = layers.UpSampling2D(2, interpolation="bilinear")(x)
        x = residual(layers.Add()([x, residual(level)]))
    x = layers.Conv2D(width // 2, 3, padding="same", activation="relu")(x)
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Conv2D(width // 2, 3, padding="same", activation="relu")(x)
    x = layers.Conv2D(classes, 1)(x)
    return keras.Model(inputs, layers.UpSampling2D(stride // finest // 2, interpolation="bilinear")(x), name="dpt")


def u_net(pixels, classes, widths=(16, 32, 64, 128)):
    """Return a small U-Net (arXiv 1505.04597) on half as many pixels, as its first convolution has a stride of 2."""

    def twice(x, width):
        for _ in range(2):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(width, 3, padding="same")(x)))
        return x

    image, passed = keras.Input((pixels, pixels, 3)), []
    x = layers.Conv2D(widths[0], 3, strides=2, padding="same")(image)
    for width in widths[:-1]:
        passed.append(twice(x, width))
        x = layers.MaxPooling2D()(passed[-1])
    x = twice(x, widths[-1])
    for width, same_size in zip(widths[-2::-1], passed[::-1]):
        x = layers.Conv2DTranspose(width, 2, 2)(x)
        x = twice(layers.Concatenate()([x, same_size]), width)
    x = layers.Conv2D(classes, 1)(x)
    return keras.Model(image, layers.UpSampling2D(2, interpolation="bilinear")(x), name="u-net")


def learn(model, x, masks, epochs, learning_rate, batch_size=16):
    """Train a model on masks by AdamW, with a warm-up and a cosine decay."""
    steps = epochs * -(-len(masks) // batch_size)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=learning_rate, warmup_steps=steps // 10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.01), loss, jit_compile=False)
    model.fit(x, masks, batch_size=batch_size, epochs=epochs, verbose=2)


def quality(masks, predicted, classes):
    """Return the mean intersection over union of the classes, and the share of pixels that are right."""
    counts = np.bincount(classes * masks.ravel().astype("int64") + predicted.ravel(), minlength=classes**2)
    counts = counts.reshape(classes, classes)
    shared = np.diag(counts)
    union = counts.sum(axis=0) + counts.sum(axis=1) - shared
    return (shared[union > 0] / union[union > 0]).mean(), shared.sum() / counts.sum()


def main(
    backbone=None, pixels=128, count=400, tests=200, epochs=(10, 5, 15), kinds=("linear", "dpt", "u-net"), **files
):
    """Train all models, print how good they are, and return their predictions of the test images.

    Args:
        backbone: A ViT; `None` for the published ViT-Ti/16.
        pixels: Height and width of the images.
        count: Images to train on.
        tests: Images to measure on.
        epochs: Of a head on the frozen backbone; then of both together; of the U-Net.
        kinds: Which models.
        **files: `hands` and `backgrounds` of `scenes`.
    """
    keras.utils.set_random_seed(0)
    images, masks, names = scenes(count, pixels, "train", **files)
    test_images, test_masks, _ = scenes(tests, pixels, "test", **files)
    backbone = backbone or vit_keras.vit.vit_ti16(image_size=pixels, include_top=False)
    x, test_x = backbone.preprocess(list(images)), backbone.preprocess(list(test_images))
    found = {"truth": test_masks}

    def measure(name, model, seconds):
        found[name] = model.predict(test_x, batch_size=16, verbose=0).argmax(axis=-1)
        overlap, right = quality(test_masks, found[name], len(names))
        print(f"{name:24} mIoU {overlap:.3f}, pixels {right:.3f}, {seconds / 60:.1f} min of processor time", flush=True)

    start, depth = backbone.get_weights(), len(vit_keras.anatomy.blocks(backbone))
    quarters = [depth * n // 4 - 1 for n in (1, 2, 3, 4)]  # of twelve blocks 2, 5, 8 and 11
    stride = backbone.config.stride[0]
    for kind in kinds:
        began = time.process_time()
        if kind == "u-net":
            model = u_net(pixels, len(names))
            learn(model, x, masks, epochs[2], 2e-3)
            measure("U-Net from scratch", model, time.process_time() - began)
            continue
        backbone.set_weights(start)
        trunk = vit_keras.feature_maps(backbone, quarters)
        build = {"linear": linear_head, "dpt": dpt_head}[kind]
        head = build([each.shape for each in trunk.outputs], len(names), stride)
        maps = trunk.predict(x, batch_size=16, verbose=0)  # once: a frozen backbone computes the same each time
        learn(head, maps, masks, epochs[0], 1e-3)
        model = keras.Model(trunk.input, head(trunk(trunk.input)))
        measure(f"{kind}, frozen", model, time.process_time() - began)
        learn(model, x, masks, epochs[1], 2e-4)
        measure(f"{kind}, trained", model, time.process_time() - began)
    return test_images, found


def figure(images, found, rows=5):
    """Return images, their masks and what each model found, side by side."""
    shown = [[image, *(COLORS[masks[n]] for masks in found.values())] for n, image in enumerate(images[:rows])]
    return Image.fromarray(np.uint8(np.concatenate([np.concatenate(row, axis=1) for row in shown])))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hands")
    parser.add_argument("--backgrounds")
    parser.add_argument("--weights")
    parser.add_argument("--epochs", type=int, nargs=3, default=(10, 5, 15), help="of heads, of heads and ViT, of U-Net")
    parser.add_argument("--out", default="segment.png")
    given = parser.parse_args()
    vit = given.weights and vit_keras.from_checkpoint(given.weights, image_size=128, include_top=False)
    data = {"hands": given.hands, "backgrounds": given.backgrounds}
    figure(*main(vit, epochs=given.epochs, **data)).save(given.out)

"""Train the model that comes with the package, `vit_cifar10`, from scratch on CIFAR-10.

A small hybrid ViT (a convolution of stride 4 before the tokens; paper, section 3.1) learns three targets at once: the
label, the teacher's probabilities (soft distillation), and the principal components of the teacher's tokens at the same
places of the image, which helps most on a small data set. The teacher is a ViT-Ti/16, fine-tuned for one epoch on the
same images. The student is trained on crops of 24 pixels, then on whole images with resampled positions (section 3.2):
first mixed by CutMix, at the end unmixed.

python examples/train_cifar10.py --teacher Ti_16-….npz --out runs/cifar10
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import vit_keras
from vit_keras import utils, vit
from vit_keras.training.recipes import recipe

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 8  # tokens down and across, of the teacher and of the student on the whole image
COMPONENTS = 64  # of the teacher's tokens
STAGES = {  # size of the images, whether they are mixed, learning rate, epochs
    "24": (24, False, 1.5e-3, 24),
    "32": (32, True, 1e-3, 16),
    "32-unmixed": (32, False, 3e-4, 4),
}


def cifar10(folder=None):
    """Return (training images, labels) and (test images, labels), from a folder of images or downloaded."""
    if folder is None:
        return [(images, labels[:, 0]) for images, labels in keras.datasets.cifar10.load_data()]
    parts = []
    for part in ("train", "test"):
        files = [(path, n) for n, name in enumerate(CLASSES) for path in sorted(Path(folder, part, name).iterdir())]
        parts.append((np.stack([utils.read(path, None) for path, _ in files]), np.array([n for _, n in files])))
    return parts


def ask_teacher(weights, images, labels, folder):
    """Fine-tune the teacher, and return its probabilities and the components of its tokens for each image."""
    files = folder / "probabilities.npy", folder / "tokens.npy"
    if not all(file.exists() for file in files):
        teacher = vit_keras.from_checkpoint(weights, image_size=16 * SIDE, classes=len(CLASSES))
        enlarge = keras.layers.Resizing(16 * SIDE, 16 * SIDE)
        model = keras.Sequential([keras.Input(images.shape[1:]), enlarge, teacher])
        finetune = recipe("finetune", epochs=1, batch_size=128, learning_rate=6e-4, weight_decay=0.0)
        finetune.compile(model)
        mirror = np.random.default_rng(0).random(len(images)) < 0.5
        seen = np.where(mirror[:, None, None, None], images[:, :, ::-1], images)
        model.fit(vit.preprocess_inputs(seen), labels, batch_size=128, verbose=2, callbacks=finetune.callbacks)
        model.save(folder / "teacher.keras")

        tokens = teacher.get_layer("Transformer_encoder_norm").output[:, 1:]
        inside = keras.Model(teacher.input, [keras.layers.Softmax()(teacher.output), tokens])
        probabilities, components, basis = [], [], None
        for start in range(0, len(images), 500):
            probability, token = inside.predict_on_batch(enlarge(vit.preprocess_inputs(images[start : start + 500])))
            if basis is None:
                sample = token.reshape(-1, token.shape[-1])
                mean = sample.mean(0)
                basis = np.linalg.svd(sample - mean, full_matrices=False)[2][:COMPONENTS].T
                basis /= ((sample - mean) @ basis).std()
            probabilities.append(probability)
            components.append(((token - mean) @ basis).astype("float16"))
        probabilities = np.concatenate(probabilities)
        print(f"accuracy of the teacher on the training images: {np.mean(probabilities.argmax(-1) == labels):.2%}")
        np.save(files[0], probabilities)
        np.save(files[1], np.concatenate(components))
    return np.load(files[0]), np.load(files[1], mmap_mode="r")


class Crops(keras.utils.PyDataset):
    """Batches of crops, half of them mirrored, with their targets."""

    def __init__(self, images, labels, probabilities, tokens, size, mixed, batch_size=128, seed=0, **kwargs):
        super().__init__(**kwargs)
        self.mixed = mixed
        self.margin = 0 if size < 32 else 2  # whole images are shifted by up to two pixels
        pad = ((0, 0), (self.margin,) * 2, (self.margin,) * 2, (0, 0))
        self.images, self.size, self.batch_size = np.pad(images, pad, "reflect"), size, batch_size
        self.labels = 0.5 * np.eye(len(CLASSES), dtype="float32")[labels] + 0.5 * probabilities
        self.tokens = tokens.reshape(-1, SIDE, SIDE, COMPONENTS)
        self.random = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self):
        return len(self.images) // self.batch_size

    def on_epoch_end(self):
        self.order = self.random.permutation(len(self.images))

    def __getitem__(self, index):
        chosen = np.sort(self.order[index * self.batch_size : (index + 1) * self.batch_size])
        corners = self.random.integers(0, self.images.shape[1] - self.size + 1, (len(chosen), 2))
        mirrored, side = self.random.random(len(chosen)) < 0.5, self.size // 4
        images, tokens, labels = [], [], self.labels[chosen]
        for n, (top, left), mirror in zip(chosen, corners, mirrored):
            step = slice(None, None, -1 if mirror else 1)
            images.append(self.images[n, top : top + self.size, left : left + self.size][:, step])
            down, across = np.rint((np.array([top, left]) - self.margin) / 4).astype(int).clip(0)
            tokens.append(self.tokens[n, down : down + side, across : across + side][:, step])
        images, tokens = vit.preprocess_inputs(np.stack(images)), np.stack(tokens)
        if self.margin:
            images = self.change_light(images)
        if self.mixed:
            images, tokens, labels = self.cutmix(images, tokens, labels)
        return images, {"label": labels, "tokens": tokens.reshape(len(chosen), -1, COMPONENTS)}

    def change_light(self, images):
        """Change brightness and contrast of each image at random."""
        brightness, contrast = self.random.uniform([[-0.3], [0.7]], [[0.3], [1.3]], (2, len(images)))
        mean = images.mean((1, 2, 3), keepdims=True)
        changed = (images - mean) * contrast[:, None, None, None] + mean + brightness[:, None, None, None]
        return changed.clip(-1, 1).astype("float32")

    def cutmix(self, images, tokens, labels):
        """Paste a square of whole tokens from another image into half of the images (CutMix, arXiv 1905.04899)."""
        mixed, side = (images.copy(), tokens.copy(), labels.copy()), self.size // 4
        for n, other in enumerate(self.random.permutation(len(images))):
            width = int(np.rint(side * np.sqrt(self.random.random()))) if self.random.random() < 0.5 else 0
            top, left = self.random.integers(0, side - width + 1, 2)
            for array, unit in zip((images, tokens), (4, 1)):
                place = np.s_[unit * top : unit * (top + width), unit * left : unit * (left + width)]
                mixed[array is tokens][n][place] = array[other][place]
            share = (width / side) ** 2
            mixed[2][n] = (1 - share) * labels[n] + share * labels[other]
        return mixed


def train(model, data, epochs, rate, folder, stage):
    """Train the model with a second head, which predicts the teacher's tokens and is not kept; return the model."""
    done = folder / f"{stage}.keras"
    if done.exists():
        return keras.models.load_model(done)
    tokens = model.get_layer("Transformer_encoder_norm").output[:, 1:]
    outputs = {"label": model.output, "tokens": keras.layers.Dense(COMPONENTS, name="tokens")(tokens)}
    learner = keras.Model(model.input, outputs)
    steps = epochs * len(data)
    schedule = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=rate, warmup_steps=steps // 20)
    learner.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.05, clipnorm=1.0),
        {"label": keras.losses.CategoricalCrossentropy(from_logits=True), "tokens": "mse"},
        metrics={"label": "accuracy"},
        jit_compile=False,
    )
    log = keras.callbacks.CSVLogger(folder / f"{stage}.csv", append=True)
    backup = keras.callbacks.BackupAndRestore(folder / f"backup-{stage}")
    learner.fit(data, epochs=epochs, verbose=2, callbacks=[log, backup])
    model.save(done)
    return model


def publish(model, path):
    """Write the weights in Google's format in half precision, and return the model that these files give."""
    vit_keras.save_weights(model, path)
    with np.load(path) as file:
        halves = {name: file[name].astype("float16") for name in file}
    np.savez_compressed(path, **halves)
    return vit_keras.from_checkpoint(path)


def main(data=None, teacher=None, out="runs/cifar10", epochs=None):
    """Return the published model and its accuracy on the test images."""
    keras.utils.set_random_seed(0)
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    (images, labels), (test_images, test_labels) = cifar10(data)
    shuffled = np.random.default_rng(0).permutation(len(images))
    images, labels = images[shuffled], labels[shuffled]
    targets = ask_teacher(teacher, images, labels, out)
    model = vit.build_model(
        image_size=24, patch_size=1, num_layers=6, hidden_size=128, num_heads=4, name="vit-cifar10", mlp_dim=256,
        classes=10, dropout=0.0, resnet=(),
    )  # fmt: skip
    for n, (stage, (size, mixed, rate, usual)) in enumerate(STAGES.items()):
        crops = Crops(images, labels, *targets, size, mixed, seed=n)
        model = train(vit_keras.resize(model, size), crops, epochs[n] if epochs else usual, rate, out, stage)
    model = publish(model, out / "vit_cifar10.npz")
    logits = model.predict(vit.preprocess_inputs(test_images), batch_size=500, verbose=0)
    accuracy = np.mean(logits.argmax(-1) == test_labels)
    print(f"accuracy on 10,000 test images: {accuracy:.2%}")
    return model, accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder with train/CLASS and test/CLASS; default: keras.datasets.cifar10")
    parser.add_argument("--teacher", required=True, help="weights of a ViT-Ti/16")
    parser.add_argument("--out", default="runs/cifar10")
    parser.add_argument("--epochs", type=int, nargs=len(STAGES), help="epochs of each stage")
    main(**vars(parser.parse_args()))

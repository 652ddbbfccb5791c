"""Fine-tune on a small data set with `model.fit`: scikit-learn's handwritten digits.

python examples/finetune.py
"""

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from vit_keras import utils, vit


def digits(size):
    """8×8 digits as RGB images of `size` pixels in [-1, 1]: (training images, test images, training labels, …)."""
    data = load_digits()
    images = np.repeat((data.images * (255 / 16)).astype("uint8")[..., None], 3, axis=-1)
    images = np.stack([utils.resize(image, (size, size)) for image in images])
    return train_test_split(vit.preprocess_inputs(images), data.target, test_size=0.2, random_state=0)


def main(pretrained=True, epochs=3, samples=None):
    """Return the fine-tuned model, its accuracy on the test images, and the test images."""
    train_images, test_images, train_labels, test_labels = digits(size=64)
    utils.check_pixels(train_images)  # warns if the pixels are not in [-1, 1]

    # Another size than in pre-training: the position embeddings are resampled. The new head starts at zero.
    model = vit.vit_ti16(image_size=64, classes=10, pretrained=pretrained)
    steps = epochs * (len(train_images[:samples]) // 32 + 1)
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=3e-4, warmup_steps=steps // 5)
    model.compile(
        optimizer=keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(train_images[:samples], train_labels[:samples], batch_size=32, epochs=epochs, verbose=2)
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    return model, accuracy, test_images


if __name__ == "__main__":
    print(f"accuracy on digits it has not seen: {main()[1]:.1%}")

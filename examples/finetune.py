"""Fine-tune on a small data set with `model.fit`: scikit-learn's handwritten digits.

python examples/finetune.py
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from vit_keras import training, utils, vit


def digits(size):
    """Return 8×8 digits as RGB images of `size` pixels in [-1, 1]: training images, test images, and their labels."""
    data = load_digits()
    images = np.repeat((data.images * (255 / 16)).astype("uint8")[..., None], 3, axis=-1)
    images = np.stack([utils.resize_image(image, (size, size)) for image in images])
    return train_test_split(vit.preprocess_inputs(images), data.target, test_size=0.2, random_state=0)


def main(epochs=4, samples=None):
    """Return the fine-tuned model, its accuracy on the test images, and the test images."""
    train_images, test_images, train_labels, test_labels = digits(size=32)

    # Part of the package; vit_ti16, vit_b16 … are larger and better. The new head starts at zero.
    model = vit.vit_cifar10(classes=10)
    finetune = training.recipe("finetune", epochs=epochs, learning_rate=1e-3)
    finetune.compile(model, (train_images, train_labels))  # warns if the pixels are not in [-1, 1]
    model.fit(
        train_images[:samples],
        train_labels[:samples],
        batch_size=32,
        epochs=epochs,
        verbose=2,
        callbacks=finetune.callbacks,  # they tell the schedule the number of steps
    )
    _, accuracy = model.evaluate(test_images, test_labels, verbose=0)
    return model, accuracy, test_images


if __name__ == "__main__":
    print(f"accuracy on digits that were held out: {main()[1]:.1%}")

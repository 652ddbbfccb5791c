"""Classify an image.

python examples/classify.py [IMAGE [WEIGHTS]]
"""

import sys

import keras
from skimage import data

import vit_keras
from vit_keras import anatomy


def main(image=None, weights="vit_cifar10", top=3):
    """Return the classes with the highest probabilities, (name, probability), highest first."""
    # "vit_cifar10" is part of the package and has ten classes. "vit_ti16" (a download of 23 MB) and larger models have
    # 1000: `vit-keras models` lists them. A file of weights is accepted too.
    model = vit_keras.open_model(weights)

    # A path, a URL, bytes, a PIL image or an array; by default scikit-image's photograph of a cat (CC0).
    images = model.preprocess(data.chelsea() if image is None else image)
    logits = model.predict(images, verbose=0)

    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
    names = anatomy.class_names(model)
    return [(names[i], float(probabilities[i])) for i in probabilities.argsort()[::-1][:top]]


if __name__ == "__main__":
    for name, probability in main(*sys.argv[1:3]):
        print(f"{probability:6.1%}  {name}")

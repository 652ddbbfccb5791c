"""Name what is in a picture.

python examples/classify.py [PICTURE [WEIGHTS]]
"""

import sys

import keras
from skimage import data

import vit_keras
from vit_keras import labels


def main(picture=None, weights="vit_cifar10", top=3):
    """Return the likeliest classes as (name, probability), likeliest first."""
    # Comes with the package, and knows ten kinds of things. "Ti_16/augreg-imagenet21k+imagenet2012-224" (23 MB to
    # download) and larger ones know a thousand: `vit-keras models` lists them. A file of weights will do, too.
    model = vit_keras.from_checkpoint(weights)

    # A path, a URL, bytes, a PIL image or an array; by default the CC0 photograph of a cat in scikit-image.
    images = model.preprocess(data.chelsea() if picture is None else picture)
    logits = model.predict(images, verbose=0)

    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
    names = labels.class_names(model)
    return [(names[i], float(probabilities[i])) for i in probabilities.argsort()[::-1][:top]]


if __name__ == "__main__":
    for name, probability in main(*sys.argv[1:3]):
        print(f"{probability:6.1%}  {name}")

"""Name what is in a picture, with a model pre-trained on ImageNet.

python examples/classify.py [PICTURE]
"""

import sys

import keras
from skimage import data

from vit_keras import utils, vit


def main(picture=None, top=3):
    """Return the likeliest classes as (name, probability), likeliest first."""
    model = vit.vit_ti16()  # downloads 23 MB the first time; vit_b16(), vit_l16() … are larger and better

    # A path, a URL, bytes, a PIL image or an array; by default the CC0 photograph of a cat in scikit-image.
    image = utils.read(data.chelsea() if picture is None else picture, size=224)
    logits = model.predict(vit.preprocess_inputs(image)[None], verbose=0)

    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(logits))[0]
    names = utils.get_imagenet_classes()
    return [(names[i], float(probabilities[i])) for i in probabilities.argsort()[::-1][:top]]


if __name__ == "__main__":
    for name, probability in main(*sys.argv[1:2]):
        print(f"{probability:6.1%}  {name}")

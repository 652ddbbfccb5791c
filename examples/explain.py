"""Draw an attention map: what a model looks at in an image.

python examples/explain.py [IMAGE [OUT.PNG [WEIGHTS]]]
"""

import sys

import numpy as np
from PIL import Image
from skimage import data

import vit_keras
from vit_keras import utils, visualize


def main(image=None, out="attention.png", weights="vit_cifar10"):
    """Write the image and its attention map side by side to `out`, and return the map."""
    model = vit_keras.open_model(weights)
    image = utils.read(data.chelsea() if image is None else image, size=None)

    overlay = visualize.attention_map(model, image)  # uint8, of the image's size
    Image.fromarray(np.concatenate([image, overlay], axis=1)).save(out)

    return visualize.attention_map(model, image, return_map=True)  # float32, one value per patch


if __name__ == "__main__":
    heat = main(*sys.argv[1:4])
    print(f"{heat.shape[0]}×{heat.shape[1]} patches; written to {(sys.argv[2:3] or ['attention.png'])[0]}")

"""Use a ViT as the backbone of a larger model, and freeze part of it.

python examples/backbone.py
"""

import keras
import numpy as np
from skimage import data

from vit_keras import visualize, vit


def main(steps=2):
    """Return a model with two heads on a partly frozen backbone, and its attention map of an image."""
    backbone = vit.vit_ti16(image_size=(96, 160), include_top=False)  # the class token: (batch, 192)
    for layer in backbone.layers[:10]:  # up to the sixth block
        layer.trainable = False

    images = keras.Input((96, 160, 3), name="images")
    features = backbone(images)
    features = keras.layers.Dropout(0.2)(features)
    kind = keras.layers.Dense(4, "softmax", kernel_initializer="zeros", name="kind")(features)
    age = keras.layers.Dense(1, kernel_initializer="zeros", name="age")(features)
    model = keras.Model(images, {"kind": kind, "age": age})

    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "age": "mse"}, jit_compile=False)
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (8 * steps, 96, 160, 3)).astype("float32")
    y = {"kind": random.integers(0, 4, 8 * steps), "age": random.uniform(0, 1, 8 * steps)}
    model.fit(x, y, batch_size=8, verbose=2)

    # The backbone is found in a nested model; its images are rectangles of 6×10 patches.
    return model, visualize.attention_map(model, data.chelsea(), return_map=True)


if __name__ == "__main__":
    two_heads, heat = main()
    trained, total = len(two_heads.trainable_variables), len(two_heads.variables)
    print(f"{trained} of {total} variables are trained; attention over {heat.shape[0]}×{heat.shape[1]} patches")

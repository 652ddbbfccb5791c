"""Make the files of this folder with vit-keras 0.x itself, in an environment of its own.

    pip install vit-keras==0.2.0 scipy validators opencv-python-headless typing_extensions tensorflow-cpu==2.18.1
    keras==3.8.0 python make.py v020
    pip install vit-keras==0.1.0 tensorflow-cpu==2.13.1 tensorflow-addons==0.22.0 "numpy<1.25"    (Python 3.10)
    python make.py v010

Weights are random and large, so that the exact and the tanh GELU give visibly different outputs.
"""

import sys

import numpy as np

from vit_keras import vit

try:
    import keras
except ImportError:
    from tensorflow import keras

if not keras.__version__.startswith("3."):
    from tensorflow import keras

version = sys.argv[1]
model = vit.build_model(
    image_size=16,
    patch_size=8,
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    name="vit-tiny",
    mlp_dim=16,
    classes=5,
    dropout=0.1,
    activation="softmax",
    representation_size=6,
)
random = np.random.RandomState(0)
model.set_weights([random.normal(size=w.shape, scale=0.7).astype("float32") for w in model.get_weights()])
images = random.randint(0, 256, size=(3, 16, 16, 3)).astype("uint8")
nested = keras.Sequential([model, keras.layers.Dense(3, name="classifier")])
inputs = images / 127.5 - 1
np.savez(f"{version}.npz", images=images, outputs=model.predict(inputs), nested_outputs=nested.predict(inputs))
model.save(f"{version}.keras")
model.save(f"{version}.h5")
model.save_weights(f"{version}.weights.h5")
nested.save(f"{version}_nested.h5")
if version == "v020":
    nested.save(f"{version}_nested.keras")
else:
    model.save_weights(f"{version}_weights.h5")

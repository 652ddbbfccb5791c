"""Export a SavedModel, and use it in a new process without this package.

python examples/export.py
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from vit_keras import vit

SERVE = """
import json, sys
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
outputs = model.serve(np.load(sys.argv[2])).numpy()
print(json.dumps({"outputs": outputs.tolist(), "vit_keras": "vit_keras" in sys.modules}))
"""


def main(model=None, images=None, folder=None):
    """Return the largest difference between the model's outputs and those of its export."""
    model = vit.vit_ti16() if model is None else model
    images = np.random.default_rng(0).uniform(-1, 1, (2, *model.input_shape[1:])) if images is None else images
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(folder or temporary)
        model.export(folder / "saved_model", verbose=False)  # for TensorFlow Serving, LiteRT, TensorFlow.js …
        np.save(folder / "images.npy", images.astype("float32"))
        arguments = [sys.executable, "-c", SERVE, str(folder / "saved_model"), str(folder / "images.npy")]
        served = json.loads(subprocess.run(arguments, stdout=subprocess.PIPE, check=True, text=True).stdout)
    if served["vit_keras"]:
        raise RuntimeError("the new process imported vit_keras")
    return float(np.abs(np.array(served["outputs"]) - model.predict(images, verbose=0)).max())


if __name__ == "__main__":
    print(f"largest difference between the model and its SavedModel in a new process: {main():.1e}")

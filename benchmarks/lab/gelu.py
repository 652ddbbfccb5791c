"""Print how far the logits of ViT-Ti/16 are from the reference's: ours, and those of libraries with the exact GELU.

KERAS_BACKEND=torch python -m benchmarks.lab.gelu PICTURES [--environments FOLDER]

PICTURES is a folder of images, for which our logits are the reference, or an .npz file of `image` (uint8) and of the
`logits` that Google's code computed. The weights are downloaded, or found in VIT_KERAS_WEIGHTS. Each library gets the
same pixels, in its environment of the benchmarks (`benchmarks/environments.py`), which is made if it is missing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from vit_keras.checkpoints.locate import fetch

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # last: an environment may have another vit_keras


def timm(weights, folder, pixels):
    """Return the logits of timm."""
    from benchmarks.contenders._torchvision import stand_in

    stand_in()
    import timm
    import torch

    model = timm.create_model("vit_tiny_patch16_224").eval()
    model.load_pretrained(weights)
    with torch.inference_mode():
        return model(torch.from_numpy(pixels).permute(0, 3, 1, 2)).numpy()


def vit_keras_0_2(weights, folder, pixels):
    """Return the logits of vit-keras 0.2."""
    from vit_keras import utils, vit

    model = vit.build_model(224, 16, 12, 192, 3, "vit", 768, classes=1000, include_top=True)
    utils.load_weights_numpy(model, weights, pretrained_top=True, num_x_patches=14, num_y_patches=14)
    return model.predict(pixels)


def keras_hub(weights, folder, pixels):
    """Return the logits of KerasHub, which reads Hugging Face's format."""
    from keras_hub.models import ViTImageClassifier

    return ViTImageClassifier.from_preset(f"{folder}/huggingface", preprocessor=None).predict(pixels)


CLEAN = {"KERAS_BACKEND": "tensorflow", "PYTHONPATH": ""}
LIBRARIES = {
    "vit-keras 0.2": ("vit-keras-0.2", vit_keras_0_2), "KerasHub": ("keras-hub", keras_hub), "timm": ("torch", timm),
}  # fmt: skip


def main():
    """Compute the logits in each environment, and print a table."""
    import vit_keras
    from benchmarks import environments
    from vit_keras.training.data.folder import images_in

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-benchmarks")
    given = parser.parse_args()
    held = np.load(given.pictures) if given.pictures.is_file() else {"image": images_in(given.pictures)}
    weights = str(fetch("Ti_16/augreg-imagenet21k+imagenet2012-224"))
    ours, exact = vit_keras.open_model(weights), vit_keras.open_model(weights, mlp_activation="gelu")
    pixels = ours.preprocess(held["image"])
    found = {"ours": ours.predict(pixels, verbose=0), "ours, exact GELU": exact.predict(pixels, verbose=0)}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/pixels.npy", pixels)
        vit_keras.save_weights(exact, f"{folder}/huggingface", format="huggingface")
        for name, (environment, _) in LIBRARIES.items():
            command = [environments.make(environment, given.environments), __file__, name, weights, folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | CLEAN)
            found[name] = np.load(f"{folder}/logits.npy")
    reference = held.get("logits", found["ours"])
    print("| library | largest difference of a logit | images with another class |\n| --- | --- | --- |")
    for name, logits in found.items():
        changed = np.sum(logits.argmax(axis=1) != reference.argmax(axis=1))
        print(f"| {name} | {np.abs(logits - reference).max():.1e} | {changed} of {len(logits)} |")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in LIBRARIES:  # in its environment
        name, weights, folder = sys.argv[1:]
        np.save(f"{folder}/logits.npy", LIBRARIES[name][1](weights, folder, np.load(f"{folder}/pixels.npy")))
    else:
        main()

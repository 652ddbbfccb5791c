"""Print how far the logits of ViT-Ti/16 are from the reference's: ours, and those of libraries with the exact GELU.

KERAS_BACKEND=torch python -m benchmarks.lab.gelu IMAGES [--libraries] [--environments FOLDER]

IMAGES is a folder of images, or an .npz file of `image` (uint8) and of the `logits` that Google's code computed. For a
folder, the reference is the forward pass of Google's code, computed here by NumPy in float64. The weights (23 MB) are
downloaded, or found in VIT_KERAS_WEIGHTS. This takes half a minute.

`--libraries` adds vit-keras 0.2, KerasHub and timm. Each gets the same pixels, in its environment of the benchmarks
(`benchmarks/environments.py`): they are made if they are missing, which takes minutes, a network and 6.5 GB.
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


def reference(weights, pixels):
    """Return the logits by Google's definition (models_vit.py of google-research/vision_transformer), in float64."""
    arrays = {name: array.astype("float64") for name, array in np.load(weights).items()}

    def norm(x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
        return x * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]

    def dense(x, name, axes=1):
        return np.tensordot(x, arrays[f"{name}/kernel"], axes) + arrays[f"{name}/bias"]

    def gelu(x):
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    kernel = arrays["embedding/kernel"]
    size, grid = len(kernel), pixels.shape[1] // len(kernel)
    patches = pixels.reshape(-1, grid, size, grid, size, 3).swapaxes(2, 3).reshape(-1, grid**2, size, size, 3)
    x = np.tensordot(patches, kernel, 3) + arrays["embedding/bias"]
    x = np.concatenate([np.broadcast_to(arrays["cls"], (len(x), 1, x.shape[-1])), x], axis=1)
    x += arrays["Transformer/posembed_input/pos_embedding"]
    for n in range(sum(name.endswith("LayerNorm_0/scale") for name in arrays)):
        block = f"Transformer/encoderblock_{n}"
        y, inner = norm(x, f"{block}/LayerNorm_0"), f"{block}/MultiHeadDotProductAttention_1"
        query, key, value = (dense(y, f"{inner}/{part}").swapaxes(1, 2) for part in ("query", "key", "value"))
        scores = np.exp(query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1]))
        heads = scores / scores.sum(axis=-1, keepdims=True) @ value
        x = x + dense(heads.swapaxes(1, 2), f"{inner}/out", 2)
        y = gelu(dense(norm(x, f"{block}/LayerNorm_2"), f"{block}/MlpBlock_3/Dense_0"))
        x = x + dense(y, f"{block}/MlpBlock_3/Dense_1")
    return dense(norm(x, "Transformer/encoder_norm")[:, 0], "head")


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
    parser.add_argument("images", type=Path)
    parser.add_argument("--libraries", action="store_true")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-benchmarks")
    given = parser.parse_args()
    held = np.load(given.images) if given.images.is_file() else {"image": images_in(given.images)}
    weights = str(fetch("Ti_16/augreg-imagenet21k+imagenet2012-224"))
    ours, exact = vit_keras.open_model(weights), vit_keras.open_model(weights, mlp_activation="gelu")
    pixels = ours.preprocess(held["image"])
    found = {"ours": ours.predict(pixels, verbose=0), "ours, exact GELU": exact.predict(pixels, verbose=0)}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/pixels.npy", pixels)
        for name, (environment, _) in LIBRARIES.items() if given.libraries else ():
            vit_keras.save_weights(exact, f"{folder}/huggingface", format="huggingface")  # for KerasHub
            command = [environments.make(environment, given.environments), __file__, name, weights, folder]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | CLEAN)
            found[name] = np.load(f"{folder}/logits.npy")
    expected = held["logits"] if "logits" in held else reference(weights, pixels)
    print("| library | largest difference of a logit | images with another class |\n| --- | --- | --- |")
    for name, logits in found.items():
        changed = np.sum(logits.argmax(axis=1) != expected.argmax(axis=1))
        print(f"| {name} | {np.abs(logits - expected).max():.1e} | {changed} of {len(logits)} |")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in LIBRARIES:  # in its environment
        name, weights, folder = sys.argv[1:]
        np.save(f"{folder}/logits.npy", LIBRARIES[name][1](weights, folder, np.load(f"{folder}/pixels.npy")))
    else:
        main()

"""What `make quickstart` does: classify a photograph, explain, fine-tune, export. Everything lands in ./quickstart."""

import os
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import classify
import explain
import export
import finetune
import numpy as np
from PIL import Image
from skimage import data

from vit_keras import checkpoints, utils, visualize

OUT = Path("quickstart")
NEIGHBOUR = Path(__file__).parents[2] / "shared" / "weights"


def imagenet_weights():
    """Where the pre-trained weights are, or `None` if they cannot be had here."""
    places = [os.environ.get("VIT_KERAS_WEIGHTS"), str(NEIGHBOUR) if NEIGHBOUR.is_dir() else None]
    os.environ["VIT_KERAS_WEIGHTS"] = os.pathsep.join(filter(None, places))
    try:
        return checkpoints.fetch("Ti_16/augreg-imagenet21k+imagenet2012-224", timeout=5)
    except OSError as error:  # includes a missing file and a network that cannot be reached
        print(f"   {error}\n")


def main(samples=None):
    """Run all steps; return the accuracy on the digits and the difference after export."""
    start = time.time()
    OUT.mkdir(exist_ok=True)
    Image.fromarray(data.chelsea()).save(OUT / "cat.png")
    print("1. Weights: ViT-Ti/16, pre-trained on ImageNet")
    weights = imagenet_weights()
    if weights:
        print(f"   {weights}\n\n2. What is in {OUT / 'cat.png'}?")
        for name, probability in classify.main(OUT / "cat.png"):
            print(f"   {probability:6.1%}  {name}")
        explain.main(OUT / "cat.png", OUT / "cat_attention.png")
        print(f"   What it looked at: {OUT / 'cat_attention.png'}")
    else:
        print(
            "   WITHOUT THEM this cannot name what is in a photograph: that step is left out, and the next one trains"
        )
        print("   from scratch. To see all of it, fetch the file named above and set VIT_KERAS_WEIGHTS to its folder.")
    print(f"\n3. {'Fine-tuning' if weights else 'Training from scratch'} on 1,437 handwritten digits")
    model, accuracy, images = finetune.main(pretrained=bool(weights), epochs=3 if weights else 12, samples=samples)
    print(f"   Accuracy on 360 digits it has not seen: {accuracy:.1%}")
    digit = utils.resize(utils.to_uint8(images[0]), (256, 256), "lanczos")
    pair = np.concatenate([digit, visualize.attention_map(model, digit)], axis=1)
    Image.fromarray(pair).save(OUT / "digit_attention.png")
    print(f"   What it looked at in the first: {OUT / 'digit_attention.png'}")
    print("\n4. Export, and the same images in a new process without vit_keras")
    difference = export.main(model, images[:8], OUT)
    print(f"   {OUT / 'saved_model'} gives the same outputs to {difference:.0e}")
    print(f"\nDone in {time.time() - start:.0f} s. Next: README.md, and the examples beside this file.")
    return accuracy, difference


if __name__ == "__main__":
    main()

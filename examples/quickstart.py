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

from vit_keras import utils, visualize

OUT = Path("quickstart")


def main(samples=None):
    """Run all steps; return the accuracy on the digits and the difference after export."""
    start = time.time()
    OUT.mkdir(exist_ok=True)
    Image.fromarray(data.chelsea()).save(OUT / "cat.png")
    print(f"1. What is in {OUT / 'cat.png'}? Of the ten kinds of things that the small model in this package knows:")
    for name, probability in classify.main(OUT / "cat.png"):
        print(f"   {probability:6.1%}  {name}")
    explain.main(OUT / "cat.png", OUT / "cat_attention.png")
    print(f"   What it looked at: {OUT / 'cat_attention.png'}")
    print("\n2. Fine-tuning on 1,437 handwritten digits")
    model, accuracy, images = finetune.main(samples=samples)
    print(f"   Accuracy on 360 digits it has not seen: {accuracy:.1%}")
    digit = utils.resize(utils.to_uint8(images[0]), (256, 256), "lanczos")
    pair = np.concatenate([digit, visualize.attention_map(model, digit)], axis=1)
    Image.fromarray(pair).save(OUT / "digit_attention.png")
    print(f"   What it looked at in the first: {OUT / 'digit_attention.png'}")
    print("\n3. Export, and the same images in a new process without vit_keras")
    difference = export.main(model, images[:8], OUT)
    print(f"   {OUT / 'saved_model'} gives the same outputs to {difference:.0e}")
    print(f"\nDone in {time.time() - start:.0f} s. The larger models take the same lines, and a download:")
    print(f"   vit-keras predict {OUT / 'cat.png'} --model vit_ti16")
    print("Next: README.md, and the examples beside this file.")
    return accuracy, difference


if __name__ == "__main__":
    main()

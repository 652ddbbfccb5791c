"""Run `make quickstart`: classify a photograph, explain, fine-tune, export. Results are in ./quickstart."""

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
    print(f"1. Classify {OUT / 'cat.png'} with the small model of this package, which has ten classes:")
    for name, probability in classify.main(OUT / "cat.png"):
        print(f"   {probability:6.1%}  {name}")
    explain.main(OUT / "cat.png", OUT / "cat_attention.png")
    print(f"   Attention map: {OUT / 'cat_attention.png'}")
    print("\n2. Fine-tune on 1,437 handwritten digits")
    model, accuracy, images = finetune.main(samples=samples)
    print(f"   Accuracy on 360 other digits: {accuracy:.1%}")
    digit = utils.resize_image(utils.to_uint8(images[0]), (256, 256), "lanczos")
    pair = np.concatenate([digit, visualize.attention_map(model, digit)], axis=1)
    Image.fromarray(pair).save(OUT / "digit_attention.png")
    print(f"   Attention map of the first: {OUT / 'digit_attention.png'}")
    print("\n3. Export, and run the same images in a new process without vit_keras")
    difference = export.main(model, OUT)
    print(f"   {OUT / 'saved_model'}: the largest difference of an output is {difference:.0e}")
    print(f"\nDone in {time.time() - start:.0f} s. Larger models need a download and the same lines:")
    print(f"   vit-keras predict {OUT / 'cat.png'} --model vit_ti16")
    print("Next: README.md, and the examples next to this file.")
    return accuracy, difference


if __name__ == "__main__":
    main()

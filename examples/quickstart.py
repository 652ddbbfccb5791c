"""Run `make quickstart`: classify a photograph, explain, fine-tune, export. Open quickstart/index.html."""

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
PAGE = """<!doctype html>
<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Quickstart of vit_keras</title>
<style>body {{ font: 16px sans-serif; max-width: 60em; margin: 2em auto }} img {{ max-width: 100% }}</style>
<h2>1. The class of a photograph, and where the model looks</h2><pre>{classes}</pre><img src="cat_attention.png">
<h2>2. Digits: {accuracy:.1%} of 360 that it has not learned</h2><img src="digit_attention.png">
<h2>3. saved_model</h2><p>The exported model needs no vit_keras. Its outputs differ by {difference:.0e} at most.</p>
"""


def main(samples=None):
    """Run all steps; return the accuracy on the digits and the difference after export."""
    start = time.time()
    OUT.mkdir(exist_ok=True)
    Image.fromarray(data.chelsea()).save(OUT / "cat.png")
    print(f"1. Classify {OUT / 'cat.png'} with the small model of this package, which has ten classes:")
    classes = [f"{probability:6.1%}  {name}" for name, probability in classify.main(OUT / "cat.png")]
    print(*(f"   {line}" for line in classes), sep="\n")
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
    page = PAGE.format(classes="\n".join(classes), accuracy=accuracy, difference=difference)
    (OUT / "index.html").write_text(page, encoding="utf-8")
    print(f"\nDone in {time.time() - start:.0f} s. Open {OUT / 'index.html'}: it shows all of this.")
    print("Larger models need a download and the same lines:")
    print(f"   vit-keras predict {OUT / 'cat.png'} --model vit_ti16")
    print("Next: README.md, and the examples next to this file.")
    return accuracy, difference


if __name__ == "__main__":
    main()

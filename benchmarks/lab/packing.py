"""Time images of several shapes three ways: packed, padded to one length, and one by one.

python -m benchmarks.lab.packing WEIGHTS IMAGES [--longest 224 192 160 128 96] [--rounds 5]

The images of a folder keep their aspect ratio. The longest side gets each of the given sizes, in pixels. The
ways take turns on one thread of the backend of Keras; what is printed is the CPU time of the best round. The outputs of
all three are compared.
"""

import argparse
import os
import time
from pathlib import Path

for threads in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
    os.environ.setdefault(threads, "1")

import keras
import numpy as np

import vit_keras


def main():
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("weights")
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--longest", type=int, nargs="+", default=[224, 192, 160, 128, 96])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="*", default=[256, 384, 512, 1024])
    given = parser.parse_args()
    model = vit_keras.from_checkpoint(given.weights, image_size=None)
    paths = sorted(path for path in given.pictures.iterdir() if path.suffix != ".json")
    images = [picture(model, path, longest) for path in paths for longest in given.longest]
    counts = [1 + np.prod(model.config.grid_of(image.shape[:2])) for image in images]
    ways = {"one by one": lambda: [model.predict(image[None], verbose=0)[0] for image in images]}
    padded = vit_keras.pack(model, tokens=int(max(counts)), images=1)
    ways["padded"] = lambda: padded.predict_images(images)
    fills = {"padded": padded.arrange(images).fill}
    for tokens in given.tokens:
        packed = vit_keras.pack(model, tokens=tokens, images=16)
        rows = max(1, 2048 // tokens)
        fills[f"packed into {tokens}"] = packed.arrange(images, rows).fill
        ways[f"packed into {tokens}"] = lambda packed=packed, rows=rows: packed.predict_images(images, rows)
    outputs = {way: np.stack(run()) for way, run in ways.items()}
    times = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, run in ways.items():
            start = time.process_time()
            run()
            times[way].append(time.process_time() - start)
    shapes = len({image.shape for image in images})
    print(f"{keras.backend.backend()}: {len(images)} images of {shapes} shapes, {sum(counts):,} tokens")
    print("| way | padding | CPU seconds | times padded | largest difference |\n| --- | --- | --- | --- | --- |")
    for way, output in outputs.items():
        speed = min(times["padded"]) / min(times[way])
        padding = f"{1 - fills.get(way, 1):.0%}"
        difference = np.abs(output - outputs["one by one"]).max()
        print(f"| {way} | {padding} | {min(times[way]):.2f} | {speed:.2f} | {difference:.1e} |")


def picture(model, path, longest):
    """Return the model's input for an image whose longest side gets this many pixels."""
    pixels = vit_keras.utils.read(path, None)
    height, width = (max(16, round(side * longest / max(pixels.shape[:2]))) for side in pixels.shape[:2])
    size = (height // 16 * 16, width // 16 * 16)
    return model.preprocessing.replace(crop=None)(pixels, size)[0]


if __name__ == "__main__":
    main()

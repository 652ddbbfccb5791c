"""Print the table of docs/export.md: size, accuracy and time of int8 files next to float files, by format.

    KERAS_BACKEND=torch python -m benchmarks.lab.int8 WEIGHTS FOLDER [FOLDER ...]

A folder with a `labels.json`, `{file name: number of its class}`, counts for top-1; the images of all folders count for
agreement, the share of images that keep the class of the float file in the same runtime. The error is the norm of all
differences of the logits, divided by the norm of the float file's logits. The time is processor time for one image on
one thread, with the two files in turns; the ratio of the minima, int8 ÷ float, is printed. WEIGHTS may also be the name
of a variant, such as `vit_b16`, which gets random weights.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import vit_keras
from benchmarks.exported import RUNTIMES, in_turns, noise
from vit_keras import vit
from vit_keras.export.formats import FORMATS, exported_files
from vit_keras.export.running import Running
from vit_keras.training.data.folder import images_in


def litert(path):
    """Return a function without arguments that runs a file on one image."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path, num_threads=1)
    (images,) = interpreter.get_input_details()
    run = interpreter.get_signature_runner()
    picture = noise(images["shape_signature"].tolist(), "float32")
    return lambda: run(images=picture)


TIMED = {"onnx": RUNTIMES["onnxruntime"], "openvino": RUNTIMES["openvino"], "litert": litert}


def random_model(name):
    """Return a model of a variant with random weights, also in its head."""
    keras.utils.set_random_seed(0)
    model = getattr(vit, name)(image_size=224, classes=1000, pretrained=False)
    kernel = model.layers[-1].kernel
    kernel.assign(np.random.default_rng(0).normal(0, 0.05, kernel.shape).astype("float32"))
    return model


def logits(name, path, inputs):
    """Return what a file makes of each of some inputs, in its runtime."""
    with Running(name, path) as file:
        return np.concatenate([outputs["logits"] for outputs in file.run(inputs)])


def pictures_and_labels(folders):
    """Return the paths of all images in folders, and the number of the class of each, or -1."""
    paths, labels = [], []
    for folder in folders:
        known = json.loads((folder / "labels.json").read_text()) if (folder / "labels.json").is_file() else {}
        found = images_in(folder)
        paths += found
        labels += [known.get(Path(each).name, -1) for each in found]
    return paths, np.array(labels)


def main():
    """Print a row for each format."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("pictures", nargs="+", type=Path)
    parser.add_argument("--formats", nargs="+", default=list(TIMED), choices=TIMED)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calibration", type=Path, help="folder of images to calibrate with, in formats that can")
    arguments = parser.parse_args()
    is_file = Path(arguments.weights).is_file()
    model = vit_keras.from_checkpoint(arguments.weights) if is_file else random_model(arguments.weights)
    paths, labels = pictures_and_labels(arguments.pictures)
    prepare = model.preprocessing.replace(image_size=model.input_shape[1:3])  # of a random model it resizes nothing
    inputs = [prepare(path) for path in paths]
    known = labels >= 0
    print(f"{len(paths)} images, {known.sum()} of them with labels\n")
    print("| Format | MB (float) | Agreement | Error | Top-1 (float) | Lost, won | Time |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in arguments.formats:
        with tempfile.TemporaryDirectory() as folder:
            files = {kind: Path(folder, f"{kind}{FORMATS[name].suffix}") for kind in ("float", "int8")}
            for kind, path in files.items():
                options = {"quantize": "int8"} if kind == "int8" else {}
                if options and "calibration" in FORMATS[name].options:
                    options["calibration"] = arguments.calibration
                vit_keras.export(model, path, preprocessing=False, check=False, **options)
            sizes = {k: sum(each.stat().st_size for each in exported_files(path)) for k, path in files.items()}
            exact, found = (logits(name, path, inputs) for path in files.values())
            seconds = in_turns([TIMED[name](str(path)) for path in files.values()], arguments.rounds)
        same, right, before = found.argmax(1) == exact.argmax(1), found.argmax(1) == labels, exact.argmax(1) == labels
        row = [f"`{name}`", f"{sizes['int8'] / 1e6:.2f} ({sizes['float'] / 1e6:.2f})", f"{same.mean():.1%}"]
        row += [f"{np.linalg.norm(found - exact) / np.linalg.norm(exact):.3f}"]
        if is_file and known.any():
            row += [f"{right[known].mean():.1%} ({before[known].mean():.1%})"]
            row += [f"{(before & ~right)[known].sum()}, {(right & ~before)[known].sum()}"]
        else:
            row += ["", ""]
        print("|", " | ".join([*row, f"{min(seconds[1]) / min(seconds[0]):.2f}"]), "|", flush=True)


if __name__ == "__main__":
    main()

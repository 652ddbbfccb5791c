"""Export a SavedModel, and compare it with the model in a new process without this package.

python examples/export.py
"""

import sys
from pathlib import Path

import vit_keras


def main(model=None, folder="."):
    """Return the largest difference between the outputs of the model and of its export, for the same pixels."""
    model = vit_keras.open_model("vit_cifar10") if model is None else model
    report = vit_keras.export(model, Path(folder) / "saved_model")  # or model.onnx, model.tflite, model.pt2 …
    print(report, file=sys.stderr)
    return report.comparisons[0].difference


if __name__ == "__main__":
    print(f"largest difference between the model and its SavedModel in a new process: {main():.1e}")

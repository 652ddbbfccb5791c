"""Compare the cost of maps with a forward pass of the same model: `python -m benchmarks.attention [--rounds N]`.

The model is B/16 with random weights on one image of 224 px, on the backend of Keras. All contenders take turns, and
the medians of the paired ratios are printed. Memory is the peak of a process that only draws maps, minus the peak of a
process that only runs the model.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import numpy as np

from vit_keras.visualize.methods import OF_A_CLASS

FORWARD = "model(image)"
PIXELS = {"time": 224, "memory": 384}  # a larger image needs more memory


def contenders(size):
    """Return functions without arguments: the model alone, and a map by each method."""
    import keras

    from vit_keras import visualize, vit

    model = vit.vit_b16(image_size=size, classes=1000, pretrained=False)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(0.03 * rng.standard_normal(weight.shape))
    image = rng.integers(0, 256, (size, size, 3), dtype="uint8")
    inputs = vit.preprocess_inputs(image)[None]

    def forward():
        if keras.backend.backend() != "torch":
            return keras.ops.convert_to_numpy(model(inputs))
        import torch

        with torch.no_grad():
            return model(inputs).numpy()

    def map_by(method):
        target = 3 if method in OF_A_CLASS else None
        return lambda: visualize.attention_map(model, image, method=method, target=target, return_map=True)

    heat = np.random.default_rng(0).random((14, 14))
    return {
        FORWARD: forward,
        "drawing the overlay": lambda: visualize.overlay(image, heat),
        **{method: map_by(method) for method in visualize.METHODS},
    }


def measure_time(rounds):
    """Print the ratio of each contender's time to that of the forward pass."""
    functions = contenders(PIXELS["time"])
    for function in functions.values():
        function()  # compiles
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    alone = np.array(times[FORWARD])
    print(f"{FORWARD}: {1000 * np.median(alone):.0f} ms")
    for name in list(functions)[1:]:
        print(f"{name}: {np.median(times[name] / alone):.2f} x")


def peak(name):
    """Return the peak memory of a process that runs a contender twice, in MB."""
    command = [sys.executable, "-m", "benchmarks.attention", "--alone", name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def measure_memory():
    """Print how much more memory a map takes than the forward pass."""
    alone = peak(FORWARD)
    layer = 12 * (1 + (PIXELS["memory"] // 16) ** 2) ** 2 * 4 / 1e6
    print(f"{FORWARD} at {PIXELS['memory']} px: {alone:.0f} MB at its peak; one layer's attention: {layer:.0f} MB")
    for name in ("rollout", "attention"):
        print(f"{name}: {peak(name) - alone:+.0f} MB")


def main():
    """Measure; or, with `--alone`, run one contender in a process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.alone:
        function = contenders(PIXELS["memory"])[options.alone]
        function()
        function()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)
        return
    measure_memory()  # first, because a process inherits the peak of its parent
    measure_time(options.rounds)


if __name__ == "__main__":
    main()

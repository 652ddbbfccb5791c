"""What maps cost, beside a forward pass of the same model: `python -m benchmarks.attention [--rounds N]`.

B/16 on one image of 224 px, random weights, on the backend that Keras has. All contenders take turns; the medians of the paired ratios
are printed. Memory is the peak of a process that does nothing but this, less that of one which runs the model alone.
"""

import argparse
import os
import resource
import subprocess
import sys
import time

import numpy as np

FORWARD = "model(image)"
PIXELS = {"time": 224, "memory": 384}  # of a larger image there is more to keep


def contenders(size):
    """Functions of no arguments: the model alone, and a map by each method."""
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
        target = 3 if method in visualize.OF_A_CLASS else None
        return lambda: visualize.attention_map(model, image, method=method, target=target, return_map=True)

    heat = np.random.default_rng(0).random((14, 14))
    return {
        FORWARD: forward,
        "drawing the overlay": lambda: visualize.overlay(image, heat),
        **{method: map_by(method) for method in visualize.METHODS},
    }


def measure_time(rounds):
    """Print the ratio of each contender's time to the forward pass's."""
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
    """The most memory of a process that does this twice, in MB."""
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
    """Measure, or be a process that is measured."""
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
    measure_memory()  # first: a process begins with the peak of the one that it comes from
    measure_time(options.rounds)


if __name__ == "__main__":
    main()

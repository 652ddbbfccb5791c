"""Print the processor time of a model in mixed_bfloat16, divided by its time in float32, in turns.

KERAS_BACKEND=torch OMP_NUM_THREADS=1 python -m benchmarks.lab.bfloat16 [MODEL ...] [--size 224] [--batch 8]

Each row is the median of some rounds: one training step of the recipe `finetune`, and one `predict_on_batch`.
"""

import argparse
import time

import keras
import numpy as np

from vit_keras import training, vit

DTYPES = ("float32", "mixed_bfloat16")


def seconds(run, count):
    """Return the processor seconds of one run."""
    started = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - started) / count


def ratio(runs, rounds, count):
    """Return the median ratio of the times of two runs, after three calls of each that do not count."""
    for run in runs:
        seconds(run, 3)
    times = np.array([[seconds(run, count) for run in runs] for _ in range(rounds)])
    return float(np.median(times[:, 1] / times[:, 0]))


def main():
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=["vit_ti16", "vit_s16", "vit_b16"], metavar="MODEL")
    parser.add_argument("--size", type=int, default=224, help="pixels of a side")
    parser.add_argument("--batch", type=int, default=8, help="images of a batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=2, help="calls in a round")
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (given.batch, given.size, given.size, 3)).astype("float32")
    labels = rng.integers(0, 10, given.batch)
    print(f"{keras.backend.backend()}, {given.batch} images of {given.size} px: a training step, predict")
    for name in given.models:
        models = [getattr(vit, name)(image_size=given.size, classes=10, weights=None, dtype=each) for each in DTYPES]
        for model in models:
            training.recipe("finetune").compile(model, steps=1000)
        steps = [lambda model=model: model.train_on_batch(images, labels) for model in models]
        predictions = [lambda model=model: model.predict_on_batch(images) for model in models]
        step, prediction = (ratio(runs, given.rounds, given.count) for runs in (steps, predictions))
        print(f"{name} {step:.2f} {prediction:.2f}", flush=True)


if __name__ == "__main__":
    main()

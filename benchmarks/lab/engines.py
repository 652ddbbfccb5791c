"""Measure `training.Embedder` in Ray Data on this machine: the gain of a second worker, and the memory of many rows.

    python -m benchmarks.lab.engines workers [--model vit_b16] [--rows 200] [--rounds 3]
    python -m benchmarks.lab.engines memory [--rows 1000000]

`workers` computes features with one worker and with two, in turns, each on one thread. A rate counts from the end of
the first batch on, when all workers are up. `memory` sends rows through two workers with a tiny model, and prints the
resident memory of each while they go by. The images are noise. Needs `pip install "ray[data]"`.
"""

import argparse
import io
import os
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.update(OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0")

import numpy as np
import ray
from PIL import Image
from ray.data import ActorPoolStrategy, DataContext

from vit_keras import vit
from vit_keras.training import Embedder


class Watched(Embedder):
    """An `Embedder` that writes down its time and memory after each batch: `time process rows MB`."""

    def __init__(self, diary, every, **options):
        super().__init__(**options)
        self.diary, self.every, self.rows = diary, every, 0

    def __call__(self, batch):
        found = super().__call__(batch)
        before, self.rows = self.rows, self.rows + len(found["features"])
        if before == 0 or before // self.every < self.rows // self.every:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            with open(f"{self.diary}/{os.getpid()}", "a") as file:
                file.write(f"{time.time()} {os.getpid()} {self.rows} {resident}\n")
        return found


def pictures(count, pixels):
    """Return JPEG files of noise."""
    files = []
    for noise in np.random.default_rng(0).integers(0, 256, (count, 8, 8, 3), "uint8"):
        file = io.BytesIO()
        Image.fromarray(noise).resize((pixels, pixels)).save(file, "JPEG")
        files.append(file.getvalue())
    return files


def embed(files, rows, workers, batch, every, model):
    """Compute features of so many rows; return the diaries: lists of `(time, process, rows, MB)`, one a worker."""
    with tempfile.TemporaryDirectory() as folder:
        diary, features = Path(folder, "diary"), Path(folder, "features")
        diary.mkdir()
        data = ray.data.range(rows).map_batches(
            lambda ids: {"id": ids["id"], "bytes": np.array([files[n % len(files)] for n in ids["id"]], object)}
        )
        data.map_batches(
            Watched,
            fn_constructor_kwargs={"diary": str(diary), "every": every, "batch_size": batch, "model": model},
            batch_size=batch,
            num_cpus=1,
            compute=ActorPoolStrategy(size=workers),
        ).write_parquet(str(features))
        written = ray.data.read_parquet(str(features)).count()
        if written != rows:
            raise SystemExit(f"{written:,} rows were written, of {rows:,}.")
        texts = [path.read_text().splitlines() for path in diary.iterdir()]
    return [[tuple(map(float, line.split())) for line in lines] for lines in texts]


def rate(diaries, batch):
    """Return rows a second between the moment at which every worker had finished a batch and the end of the first."""
    start, end = max(diary[0][0] for diary in diaries), min(diary[-1][0] for diary in diaries)
    done = sum(batch * sum(start < line[0] <= end for line in diary) for diary in diaries)
    return done / (end - start)


def main():
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("workers", "memory"))
    parser.add_argument("--model", default="vit_b16")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    DataContext.get_current().target_max_block_size = 16 << 20  # as examples/embed_with_ray.py
    DataContext.get_current().enable_progress_bars = False
    variables = {
        name: os.environ[name] for name in ("KERAS_BACKEND", "OMP_NUM_THREADS", "PYTHONPATH") if name in os.environ
    }
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=4, runtime_env={"env_vars": variables})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        if given.what == "workers":
            getattr(vit, given.model)(pretrained=False).save(path)
            compare(given.model, str(path), given.rows or 200, given.rounds)
        else:
            vit.build_model(32, 16, 1, 16, 2, "tiny", 32, classes=10).save(path)
            rows = given.rows or 1_000_000
            for diary in embed(pictures(100, 32), rows, 2, 256, rows // 20, str(path)):
                parts = " ".join(f"{megabytes:.0f}" for *_, megabytes in diary)
                print(f"{diary[-1][2]:,.0f} rows; MB after each part: {parts}")


def compare(name, model, rows, rounds):
    """Print the rates of one worker and of two, in turns."""
    rates = {1: [], 2: []}
    for _ in range(rounds):
        for workers, found in rates.items():
            found.append(rate(embed(pictures(20, 224), rows, workers, 4, 1, model), 4))
            print(f"{workers} worker(s): {found[-1]:.2f} images a second", flush=True)
    ratio = statistics.median(two / one for one, two in zip(rates[1], rates[2]))
    print(f"{name}: two workers are {ratio:.2f} × one, the median of {rounds} rounds")


if __name__ == "__main__":
    main()

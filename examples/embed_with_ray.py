"""Compute a feature vector for each of any number of images, on all machines of a Ray cluster.

The images stay where they are, in a folder or a bucket: they are read, computed and written in a stream, so that the
memory does not grow with their number. A worker that is lost is replaced, and what it had not finished is done again. A
damaged image becomes a row with an error. Needs `pip install "ray[data]"`.

python examples/embed_with_ray.py IMAGES FEATURES [--model vit_ti16] [--workers 4]
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")  # starts fastest, and compiles nothing

import ray
from ray.data import ActorPoolStrategy, DataContext, read_binary_files

from vit_keras.training import Embedder

BATCH = 32


def main(images, features, model="vit_cifar10", workers=2, embedder=Embedder):
    """Write Parquet files with the columns path, features and error into the folder `features`."""
    ray.init(ignore_reinit_error=True)
    processors = ray.cluster_resources().get("CPU", 1)
    share = min(1, (processors - 1) / workers)  # leave one to read and write: workers that hold all would wait for ever
    DataContext.get_current().target_max_block_size = 16 << 20  # bytes; a small machine has no room for Ray's 128 MiB
    rows = read_binary_files(images, include_paths=True, file_extensions=["jpg", "jpeg", "png", "webp"])
    made = {"model": model, "batch_size": BATCH}
    computed = rows.map_batches(
        embedder,
        fn_constructor_kwargs=made,
        batch_size=BATCH,
        num_cpus=share,  # or num_gpus=1
        compute=ActorPoolStrategy(size=workers),
    )
    computed.write_parquet(features)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", help="folder, or bucket such as s3://…")
    parser.add_argument("features", help="folder for the Parquet files, or bucket")
    parser.add_argument("--model", default="vit_cifar10")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with a model of its own")
    main(**vars(parser.parse_args()))

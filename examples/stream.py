"""Train on more images than a disk holds: Grain with ArrayRecord, WebDataset, or streaming `datasets`.

All three call the same function for each image, `training.sample(model, augmentation)`: (bytes, rng) → float32. It is
pickled into their worker processes, and imports no backend there. Each function below gives batches `(images, labels)`
for `model.fit`, without end. The same `start` gives the same batches: a run that was interrupted continues with
`start=int(model.optimizer.iterations)` of the model that was saved. Grain goes there at once, the others pass over what
comes before.

python examples/stream.py grain train-*.array_record
python examples/stream.py webdataset "train-{000000..000999}.tar"
python examples/stream.py datasets "train-*.parquet"
"""

import argparse
import itertools
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np

from vit_keras import training, vit

BATCH = 32


def with_grain(files, sample, batch=BATCH, seed=0, workers=0, start=0):
    """Records are the number of the class in one byte, and then the bytes of the image."""
    import grain

    class Prepare(grain.transforms.RandomMap):
        def random_map(self, record, rng):
            return sample(record[1:], rng), np.int32(record[0])

    records = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(files))
    shuffled = records.shuffle(seed=seed).repeat().seed(seed).random_map(Prepare())
    data = shuffled[start * batch :].to_iter_dataset().batch(batch)
    return data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(workers)) if workers else data


def with_webdataset(files, sample, batch=BATCH, seed=0, workers=0, start=0):
    """Shards hold `000123.jpg` and, beside it, the number of the class in `000123.cls`."""
    import webdataset

    for epoch in itertools.count():

        def prepare(item, epoch=epoch):
            number, image, label = item
            return sample(image, np.random.default_rng([seed, epoch, int(number)])), np.int32(int(label))

        shards = webdataset.WebDataset(files, shardshuffle=100, seed=seed + epoch)
        rows = shards.shuffle(1000, seed=seed + epoch).to_tuple("__key__", "jpg", "cls").map(prepare)
        loader = webdataset.WebLoader(rows.batched(batch, partial=False), batch_size=None, num_workers=workers)
        for images, labels in loader:
            if (start := start - 1) < 0:
                yield np.asarray(images), np.asarray(labels)


def with_datasets(files, sample, batch=BATCH, seed=0, start=0):
    """Parquet files have a column `image` with images, and a column `label`; `files` may also be on Hugging Face."""
    import datasets

    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    rows = rows.cast_column("image", datasets.Image(decode=False)).shuffle(seed=seed, buffer_size=1000)
    for epoch in itertools.count():

        def prepare(row, number, epoch=epoch):
            rng = np.random.default_rng([seed, epoch, number])
            return {"image": sample(row["image"]["bytes"], rng), "label": row["label"]}

        rows.set_epoch(epoch)
        for each in rows.map(prepare, with_indices=True).batch(batch, drop_last_batch=True):
            if (start := start - 1) < 0:
                yield np.stack(each["image"]), np.array(each["label"], "int32")


LIBRARIES = {"grain": with_grain, "webdataset": with_webdataset, "datasets": with_datasets}


def main(library, files, classes=10, steps=100, batch=BATCH):
    """Fine-tune the model that comes with the package; return it."""
    model = vit.vit_cifar10(classes=classes)
    recipe = training.recipe("finetune", epochs=1)
    data = LIBRARIES[library](files, training.sample(model, recipe.augmentation), batch)
    recipe.compile(model)
    model.fit(data, steps_per_epoch=steps, epochs=recipe.epochs, callbacks=recipe.callbacks)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    main(**vars(parser.parse_args()))

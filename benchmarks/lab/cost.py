"""Compare the cost model with what PyTorch measures, and write the tables of docs/cost.md.

KERAS_BACKEND=torch python -m benchmarks.lab.cost [--models vit_ti16 vit_s16 vit_b16] [--sizes 96 224] [--batches 1 4 8]
    [-o docs/cost.md]

Operations are counted by `torch.utils.flop_counter`, in the form of attention whose products it knows. What is kept for
the backward pass is seen by `torch.autograd.graph.saved_tensors_hooks`, each piece of memory once and without the
weights. Peaks are those of `torch.distributed._tools.mem_tracker`, which follows every tensor. With -o, the tables
between the marks in that file are written anew.
"""

import argparse
import os
import re
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import torch
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

from vit_keras import vit
from vit_keras.config import ViTConfig
from vit_keras.cost import cost
from vit_keras.cost.step import SIZES
from vit_keras.training import fused

QUANTITIES = ("forward", "forward and backward", "kept", "peak, predicting", "peak, training")
TABLE = ("vit_ti16", "vit_s16", "vit_b16", "vit_l16", "vit_h14", "vit_g14")
DEVICES = (1, 8, 64, 1024)
BATCH = 64


def flops(run):
    """Operations of all products of matrices and convolutions."""
    exact = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    with FlopCounterMode(display=False) as counter, exact:
        run()
    return counter.get_total_flops()


def kept(model, images):
    """Bytes that the backward pass needs, without the weights."""
    known = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    held, sizes = [], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        held.append(tensor)  # so that no other tensor gets its place
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(images, training=True)
    del output
    return sum(sizes.values())


def peak(run, *there):
    """The most bytes of tensors at once, with those that are there already."""
    tracker = MemTracker()
    tracker.track_external(*there)
    with tracker:
        run()
    return sum(device["Total"] for device in tracker.get_tracker_snapshot("peak").values())


def measure(config: ViTConfig, batch: int, dtype: str = "float32") -> dict[str, tuple[float, float]]:
    """Return (computed, measured) of each quantity.

    Args:
        config: The model.
        batch: Images in a step.
        dtype: Keras dtype policy.

    Returns:
        Operations in FLOP, memory in bytes.
    """
    model = vit.build(config, dtype=dtype)
    images = torch.zeros(batch, *config.image_size, config.channels)
    labels = torch.zeros(batch, dtype=torch.int64)
    predicting, training = (cost(config, batch_size=batch, dtype=dtype, training=trains) for trains in (False, True))

    def predict():
        with torch.no_grad():
            model(images, training=False)

    def both_ways():
        model(images, training=True).sum().backward()

    found = {
        "forward": (predicting.flops, flops(predict)),
        "forward and backward": (training.flops, flops(both_ways)),
        "kept": (training.activation_bytes, kept(model, images)),
    }
    model.zero_grad()
    found["peak, predicting"] = (predicting.memory_bytes, peak(predict, model, images))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(fused(keras.optimizers.AdamW(1e-4)), loss)
    model.train_on_batch(images, labels)  # makes the optimizer's state
    state = [variable.value for variable in model.optimizer.variables]
    step = peak(lambda: model.train_on_batch(images, labels), model, images, *state)
    found["peak, training"] = (training.memory_bytes, step)
    return found


def checked(models, sizes, batches):
    """Yield the lines of the table of measurements; each cell is computed, and computed / measured."""
    yield f"| model | pixels | images | {' | '.join(QUANTITIES)} |"
    yield "|---|---|---" + "|---" * len(QUANTITIES) + "|"
    for model in models:
        for size in sizes:
            for batch in batches:
                found = measure(SIZES[model].replace(image_size=size, dropout=0.0), batch)
                cells = []
                for quantity in QUANTITIES:
                    computed, measured = found[quantity]
                    unit = "GFLOP" if quantity.startswith("forward") else "MB"
                    scale = 1e9 if unit == "GFLOP" else 1e6
                    cells.append(f"{computed / scale:,.4g} {unit} ({computed / measured:.3f})")
                row = f"| {model} | {size} | {batch} | {' | '.join(cells)} |"
                print(row, flush=True)
                yield row


def computed():
    """Yield the lines of the tables of larger models on many devices."""
    yield "| model | parameters, M | forward, GFLOP | kept, MB | with `remat`, MB | in bfloat16, MB |"
    yield "|---|---|---|---|---|---|"
    for name in TABLE:
        options = {"image_size": 224, "dropout": 0.0, "training": True}
        one = cost(name, image_size=224)
        kept = [
            cost(name, **options, **more).activation_bytes / 1e6
            for more in ({}, {"remat": True}, {"dtype": "bfloat16"})
        ]
        cells = (f"{one.parameters / 1e6:,.1f}", f"{one.flops / 1e9:,.4g}", *(f"{each:,.0f}" for each in kept))
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield f"| model | strategy | {' | '.join(f'{n:,} devices' if n > 1 else '1 device' for n in DEVICES)} |"
    yield "|---|---" + "|---" * len(DEVICES) + "|"
    for name in TABLE:
        for strategy in ("data", "fsdp", "tensor"):
            cells = []
            for n in DEVICES:
                heads = SIZES[name].num_heads
                together = max(k for k in range(1, 9) if heads % k == 0 and n % k == 0)
                more = {"strategy": strategy, "model_devices": together if strategy == "tensor" else None}
                each = cost(
                    name, image_size=224, batch_size=BATCH * n, training=True, devices=n, dropout=0.0,
                    dtype="mixed_bfloat16", **more,
                )  # fmt: skip
                lasting = each.memory_bytes - max(each.activation_bytes, each.update_bytes)
                cells.append(f"{lasting / 1e9:.3g} + {each.activation_bytes / 1e9:.3g}, {each.sent_bytes / 1e9:.3g}")
            yield f"| {name} | {strategy} | {' | '.join(cells)} |"


def write(path, mark, lines):
    """Replace what stands between two marks of a page."""
    text = Path(path).read_text(encoding="utf-8")
    block = f"<!-- {mark} -->\n" + "\n".join(lines) + f"\n<!-- end of {mark} -->"
    new, count = re.subn(rf"<!-- {mark} -->.*?<!-- end of {mark} -->", lambda _: block, text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(
            f"{path} must have <!-- {mark} --> and <!-- end of {mark} --> once. It has them {count} times."
        )
    Path(path).write_text(new, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_ti16", "vit_s16", "vit_b16"], choices=SIZES)
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 224])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--only-computed", action="store_true", help="measure nothing")
    parser.add_argument("-o", "--output", type=Path, help="page to write the tables into")
    options = parser.parse_args()
    tables = {"computed": [*computed()]}
    if not options.only_computed:
        tables["measured"] = [*checked(options.models, options.sizes, options.batches)]
    for mark, lines in tables.items():
        if options.output:
            write(options.output, mark, lines)
        else:
            print("\n".join(lines))


if __name__ == "__main__":
    main()

"""Compare what devices send, by the cost model, with what XLA makes of a training step on eight simulated devices.

python -m benchmarks.lab.sent [--models vit_ti16 vit_s16 vit_b16] [--sizes 96 224] [--images 16] [-o docs/cost.md]

Each cell is a process: `vit_keras.distribute` with a strategy, one step of `fit` with JAX, and the bytes of all
collective operations in the program that XLA has compiled, sent around a ring. The models have two blocks, which is
enough to tell what a block sends. With -o, the table between the marks in that file is written anew.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

DEVICES = 8
LAYERS = 2
STRATEGIES = ("data", "fsdp", "tensor")
FACTORS = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,  # of its output, the n-th part
    "collective-permute": lambda n: 1,
}
WIDTHS = {"f32": 4, "u32": 4, "s32": 4, "bf16": 2, "pred": 1}


def step(strategy, model, size, images, together):
    """Train for one step."""
    import keras

    from vit_keras import vit
    from vit_keras.backend.distribution import distribute
    from vit_keras.cost.step import SIZES

    distribute(strategy, **({"model_parallel": together} if strategy == "tensor" else {}))
    built = vit.build(SIZES[model].replace(image_size=size, num_layers=LAYERS, dropout=0.0))
    built.compile(keras.optimizers.AdamW(1e-4), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    built.fit(np.zeros((images, size, size, 3), "float32"), np.zeros(images, int), batch_size=images, verbose=0)


def sent(program):
    """Bytes that a device sends in a compiled program."""
    total = 0.0
    operation = re.compile(r"\s*(?:ROOT )?%?\S+ = (.*?) (" + "|".join(FACTORS) + r")(?:-start)?\(")
    for line in program.splitlines():
        found = operation.match(line)
        if not found:
            continue
        shapes = re.findall(r"(\w+)\[([\d,]*)\]", found[1])
        values = sum(WIDTHS[kind] * int(np.prod([int(n) for n in shape.split(",") if n])) for kind, shape in shapes)
        total += FACTORS[found[2]](group_size(line)) * values
    return total


def group_size(line):
    """Devices that take part in a collective operation together, in any of XLA's ways to write them."""
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(found[1].split(","))
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]", line):
        return int(found[1])
    if found := re.search(r"replica_groups=mesh\[(.*?)\][^{]*\{(.*?)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return int(np.prod([int(sizes[name]) for name in re.findall(r"'(\w+)'", found[2])]))
    return DEVICES


def measure(strategy, model, size, images, together):
    """Return the bytes that XLA lets a device send in a step."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_force_host_platform_device_count={DEVICES} --xla_dump_to={folder} --xla_dump_hlo_as_text "
        environment = {
            **os.environ,
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": f"{flags} --xla_dump_hlo_module_re=.*train_step",
        }
        arguments = [strategy, model, size, images, together]
        command = [sys.executable, __file__, "--step", *map(str, arguments)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        programs = sorted(Path(folder).glob("*after_optimizations.txt"), key=os.path.getsize)
        return sent(programs[-1].read_text())


def table(models, sizes, images):
    """Yield the lines of the table."""
    from vit_keras.cost import cost
    from vit_keras.cost.step import SIZES

    yield "| model, two blocks | pixels | images | " + " | ".join(STRATEGIES) + " |"
    yield "|---|---|---" + "|---" * len(STRATEGIES) + "|"
    for model in models:
        together = max(k for k in (1, 2, 4, 8) if SIZES[model].num_heads % k == 0)
        for size in sizes:
            cells = []
            for strategy in STRATEGIES:
                options = {"image_size": size, "num_layers": LAYERS, "dropout": 0.0, "batch_size": images}
                shared = together if strategy == "tensor" else None
                computed = cost(
                    model, training=True, devices=DEVICES, strategy=strategy, model_devices=shared, **options
                ).sent_bytes
                measured = measure(strategy, model, size, images, together)
                cells.append(f"{computed / 1e6:,.1f} MB ({computed / measured:.3f})")
            yield f"| {model} | {size} | {images} | {' | '.join(cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_ti16", "vit_s16", "vit_b16"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[96, 224])
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--step", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path, help="page to write the table into")
    options = parser.parse_args()
    if options.step:
        strategy, model, *numbers = options.step
        step(strategy, model, *map(int, numbers))
        return
    lines = []
    for line in table(options.models, options.sizes, options.images):
        print(line, flush=True)
        lines.append(line)
    if options.output:
        mark = r"(<!-- sent -->\n).*?(<!-- end of sent -->)"
        text = options.output.read_text(encoding="utf-8")
        options.output.write_text(re.sub(mark, lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S))


if __name__ == "__main__":
    main()

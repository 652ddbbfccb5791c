"""Time ViT-B/16 and L/16 on one GPU: ours on JAX and PyTorch beside timm, as it is and compiled.

pip install timm torch "jax[cuda12]"
python -m benchmarks.lab.gpu [--models b16 l16] [--batches 1 64 256] [--rounds 3] [--output gpu.json]
KERAS_BACKEND=jax python -m benchmarks.lab.gpu --exact WEIGHTS GOLDEN

Random weights, images of 224 pixels that are on the device, exact GELU, the fused attention of each framework.
Prediction is in bfloat16. A step of training is one of AdamW, in bfloat16 with weights of float32. Ours trains by
Keras' `fit`, and in a loop of PyTorch as timm does, compiled or not. Each contender has a process of its own for each
round, and they take turns; medians are printed. "Of peak" is the share of the device's TFLOP/s in dense bfloat16
(`--peak`, where the device is not known here) that the products of the model are (`vit_keras.cost`).

With `--exact`, it prints how far the logits of a checkpoint are from those in a file (arrays `image`, uint8, and
`logits`) in each dtype. It prints the device's name. docs/why_believe_it.md has the results: logits on an H200, speed
on an H100.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

CONTENDERS = {
    "ours, JAX": ("jax", "fit"),
    "ours, PyTorch": ("torch", "fit"),
    "ours, PyTorch, own loop": ("torch", "loop"),
    "ours, PyTorch, compiled": ("torch", "compiled"),
    "timm": ("timm", "loop"),
    "timm, compiled": ("timm", "compiled"),
}
"""Names, each with its framework, and how it trains: by Keras' `fit`, or in a loop of PyTorch, compiled or not."""
TIMM = {"ti16": "vit_tiny_patch16_224", "s16": "vit_small_patch16_224", "b16": "vit_base_patch16_224"}
TIMM["l16"] = "vit_large_patch16_224"
PEAK = {"H200": 989, "GH200": 989, "H100": 989, "A100": 312, "L40S": 362, "RTX 4090": 165, "A10": 125, "L4": 121}
"""TFLOP/s of dense bfloat16, as the manufacturer states them."""
CLASSES = 1000


def main():
    """Measure all contenders in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["b16", "l16"], choices=TIMM)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64, 256])
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--steps", type=int, default=20, help="timed steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device in dense bfloat16")
    parser.add_argument("--output", help="file for the measurements, JSON")
    parser.add_argument("--exact", nargs=2, metavar=("WEIGHTS", "GOLDEN"), help="compare logits, and time nothing")
    given = parser.parse_args()
    if given.exact:
        print_differences(*given.exact)
        return
    rows = []
    for model in given.models:
        for batch in given.batches:
            found = {name: [] for name in given.contenders}
            for _ in range(given.rounds):
                for name in given.contenders:
                    found[name].append(in_its_own_process(name, model, batch, given.image_size, given.steps))
            rows += [joined(name, model, batch, each, given) for name, each in found.items()]
    if given.output:
        with open(given.output, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    print_table(rows)


def print_differences(weights, golden):
    """Print the largest difference of the logits from those of a file, in each dtype."""
    import keras
    import numpy as np

    from vit_keras import open_model, vit

    golden = np.load(golden)
    print(f"| {keras.backend.backend()} | difference | same class |\n|---|---|---|")
    for dtype in ("float32", "float16", "bfloat16", "mixed_bfloat16"):
        model = open_model(weights, dtype=dtype)
        logits = model.predict(vit.preprocess_inputs(golden["image"]), verbose=0).astype("float32")
        same = (logits.argmax(axis=1) == golden["logits"].argmax(axis=1)).mean()
        print(f"| {dtype} | {np.abs(logits - golden['logits']).max():.1e} | {same:.0%} |", flush=True)


def in_its_own_process(*what):
    """Return what one process measures: a dictionary, with `error` where it failed."""
    command = [sys.executable, __file__, "--one", *map(str, what)]
    backend = CONTENDERS[what[0]][0]
    environment = {**os.environ, "KERAS_BACKEND": "torch" if backend == "timm" else backend}
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # so that its memory can be told
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def joined(name, model, batch, rounds, given):
    """Return one row: medians over the rounds, and the share of the device's peak."""
    from vit_keras import cost

    good = [each for each in rounds if "error" not in each]
    row = {"contender": name, "model": model, "batch": batch, "image_size": given.image_size}
    if not good:
        return {**row, "error": rounds[0]["error"]}
    row["device"] = good[0]["device"]
    known = max((name for name in PEAK if name in row["device"]), key=len, default=None)
    peak = given.peak or PEAK.get(known)
    for kind in ("predict", "train"):
        step = cost.cost(f"vit_{model}", image_size=given.image_size, batch_size=batch, training=kind == "train")
        seconds = statistics.median(each[kind] for each in good)
        row[f"{kind}, images a second"] = batch / seconds
        row[f"{kind}, of peak"] = step.flops / seconds / (peak * 1e12) if peak else None
        row[f"{kind}, MiB"] = max(each[f"{kind}, MiB"] for each in good)
    return row


def print_table(rows):
    """Print the rows as Markdown."""
    devices = ", ".join(sorted({row["device"] for row in rows if "device" in row})) or "nothing"
    print(f"Measured on: {devices}\n")
    columns = [f"{kind}, {what}" for kind in ("predict", "train") for what in ("images a second", "of peak", "MiB")]
    print("|".join(["", " model ", " batch ", " contender ", *(f" {column} " for column in columns), ""]))
    print("|---" * (3 + len(columns)) + "|")
    for row in rows:
        cells = [row.get("error", "")] if "error" in row else [shown(row[column], column) for column in columns]
        print(f"| {row['model']} | {row['batch']} | {row['contender']} | {' | '.join(cells)} |", flush=True)


def shown(value, column):
    """Return a number as text."""
    if value is None:
        return "–"
    return f"{value:.0%}" if "peak" in column else f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# --- one contender ------------------------------------------------------------------------------------------------


def measure(name, model, batch, image_size, steps):
    """Return seconds and memory of a prediction and of a training step."""
    framework, how = CONTENDERS[name]
    ways = {"jax": of_jax, "torch": of_torch, "timm": of_timm}[framework]
    found = {}
    for kind in ("predict", "train"):
        run, wait, peak, device = ways(model, batch, image_size, how, kind)
        run(5)  # what is compiled and chosen comes first
        wait()
        start = time.perf_counter()
        run(steps)
        wait()
        found |= {kind: (time.perf_counter() - start) / steps, f"{kind}, MiB": peak() / 2**20, "device": device}
    return found


def ours(model, image_size, kind):
    """Return our model, in bfloat16 to predict and in mixed precision to train."""
    from vit_keras import vit

    dtype = "bfloat16" if kind == "predict" else "mixed_bfloat16"
    options = {"pretrained": False, "mlp_activation": "gelu", "dropout": 0.0, "dtype": dtype, "classes": CLASSES}
    return getattr(vit, f"vit_{model}")(image_size=image_size, **options)


def of_jax(model, batch, image_size, how, kind):
    """Return what runs a number of our steps on JAX, what waits for it, what it took of memory, and the device."""
    import jax
    import keras
    import numpy as np

    keras.config.enable_flash_attention()
    device, network = jax.devices()[0], ours(model, image_size, kind)
    pixels = np.random.default_rng(0).uniform(-1, 1, (batch, image_size, image_size, 3))
    images, labels = jax.device_put(pixels.astype("float32")), jax.device_put(np.zeros(batch, "int32"))
    last = []

    def predict(steps):
        for _ in range(steps):
            last[:] = [network(images)]

    def wait():  # `fit` has waited
        jax.block_until_ready(last)

    def peak():
        return (device.memory_stats() or {}).get("peak_bytes_in_use", 0)

    run = predict if kind == "predict" else fits(network, images, labels)
    return run, wait, peak, device.device_kind


def fits(network, images, labels):
    """Return what trains a model of ours for a number of steps, by Keras' `fit`."""
    import keras

    from vit_keras.training import fused

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    network.compile(fused(keras.optimizers.AdamW(1e-4)), loss)

    def run(steps):
        network.fit(((images, labels) for _ in range(steps)), steps_per_epoch=steps, verbose=0)

    return run


def of_torch(model, batch, image_size, how, kind):
    """Return what runs our steps on PyTorch, as Keras or as PyTorch's users write them; see `of_jax`."""
    network = ours(model, image_size, kind)
    images, labels, wait, peak, device = torch_data(batch, image_size)
    if kind == "train" and how == "fit":
        return fits(network, images, labels), wait, peak, device
    weights = [variable.value for variable in network.trainable_variables]
    return torch_steps(network, weights, images, labels, how, kind), wait, peak, device


def of_timm(model, batch, image_size, how, kind):
    """Return what runs timm's steps, as its own scripts do it; see `of_jax`."""
    import timm
    import torch

    images, labels, wait, peak, device = torch_data(batch, image_size)
    images = images.permute(0, 3, 1, 2).contiguous()
    network = timm.create_model(TIMM[model], pretrained=False, img_size=image_size, num_classes=CLASSES)
    network = network.to(images.device)
    if kind == "predict":
        network, images = network.to(torch.bfloat16).eval(), images.to(torch.bfloat16)
    return torch_steps(network, network.parameters(), images, labels, how, kind, autocast=True), wait, peak, device


def torch_steps(network, weights, images, labels, how, kind, autocast=False):
    """Return what runs a model of PyTorch for a number of steps, in a plain loop."""
    import torch

    call = torch.compile(network) if how == "compiled" else network
    optimizer = torch.optim.AdamW(weights, 1e-4)
    network.train(kind == "train")

    def predict(steps):
        with torch.no_grad():
            for _ in range(steps):
                call(images)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
                loss = torch.nn.functional.cross_entropy(call(images), labels)
            loss.backward()
            optimizer.step()

    return predict if kind == "predict" else train


def torch_data(batch, image_size):
    """Return images and labels on the device, what waits for it, what tells its memory, and its name."""
    import torch

    there = torch.cuda.is_available()
    place = "cuda" if there else "cpu"
    images = torch.rand(batch, image_size, image_size, 3, device=place) * 2 - 1
    labels = torch.zeros(batch, dtype=torch.long, device=place)
    if not there:
        return images, labels, lambda: None, lambda: 0, "cpu"
    torch.cuda.reset_peak_memory_stats()
    return images, labels, torch.cuda.synchronize, torch.cuda.max_memory_allocated, torch.cuda.get_device_name()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        contender, which, *numbers = sys.argv[2:]
        print(json.dumps(measure(contender, which, *map(int, numbers))))
    else:
        main()

"""Compare the speed of exported ViTs: `python -m benchmarks.exported OURS.onnx [OTHER.onnx ...] [--timm NAME]`.

The files take turns on one image of noise, in onnxruntime and in OpenVINO (float32), on one thread. Printed are the
median time of the processor, and the median of its ratios to the first file in the same round: above 1, the first file
is the faster one. `--timm NAME` adds the file that timm's own exporter (`timm.utils.onnx.onnx_export`) writes of a
model of that name with random weights.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np


def onnxruntime(path):
    """Return a function without arguments that runs a file on one image."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (images,) = session.get_inputs()
    picture = noise(images.shape, images.type)
    return lambda: session.run([session.get_outputs()[0].name], {images.name: picture})


def openvino(path):
    """Return the same in OpenVINO, in float32 whatever the processor."""
    import openvino as ov

    core = ov.Core()
    model = core.read_model(path)
    shape = [None if size.is_dynamic else size.get_length() for size in model.inputs[0].partial_shape]
    picture = noise(shape, model.inputs[0].element_type.to_string())
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    request = core.compile_model(model, "CPU", options).create_infer_request()
    return lambda: request.infer({0: picture})


RUNTIMES = {"onnxruntime": onnxruntime, "openvino": openvino}


def noise(shape, dtype):
    """Return one image for an input: 224 pixels where the size is open."""
    shape = [1, *(size if isinstance(size, int) else 224 for size in shape[1:])]
    values = np.random.default_rng(0).uniform(0, 255, shape)
    return values.astype("uint8") if dtype in ("tensor(uint8)", "u8") else (values / 127.5 - 1).astype("float32")


def in_turns(runs, rounds):
    """Return the seconds of the processor of each run in each round; every second round goes backwards."""
    seconds = [[] for _ in runs]
    for run in runs * 2:
        run()
    for number in range(rounds):
        order = range(len(runs)) if number % 2 else range(len(runs))[::-1]
        for each in order:
            start = time.process_time()
            runs[each]()
            seconds[each].append(time.process_time() - start)
    return seconds


def timm_export(name, path):
    """Write a model of timm with random weights by timm's own exporter."""
    import timm
    from timm.utils.onnx import onnx_export

    model = timm.create_model(name, exportable=True).eval()
    onnx_export(model, str(path), batch_size=1, check=False)


def main():
    """Print a table for each runtime."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--timm", help="name of a model of timm")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--runtimes", nargs="+", default=list(RUNTIMES), choices=RUNTIMES)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = list(arguments.files)
        if arguments.timm:
            files.append(Path(folder, f"{arguments.timm}.onnx"))
            timm_export(arguments.timm, files[-1])
        for name in arguments.runtimes:
            seconds = in_turns([RUNTIMES[name](str(file)) for file in files], arguments.rounds)
            for file, own in zip(files, seconds):
                ratio = statistics.median(mine / first for mine, first in zip(own, seconds[0]))
                print(f"{name:12} {file.name:40} {1000 * statistics.median(own):8.1f} ms  {ratio:5.2f}")


if __name__ == "__main__":
    main()

"""Open hostile input in a process of its own, under limits: `python batch.py KIND FOLDER CANARY STEP`.

KIND can be `all`.

One line of JSON for each case: what happened, the seconds of CPU, and the peak of memory so far.
"""

import itertools
import json
import os
import pathlib
import re
import resource
import sys
import time
import warnings

MEMORY = 2 << 30  # bytes beyond those that the imports take
DISK = 1 << 29  # bytes of one file
SECONDS = 600  # of CPU, for all cases together
FEW = 42  # with a step, the first cases of each kind: files that are quick to make


def use(call, source):
    import numpy as np

    import vit_keras
    from vit_keras.checkpoints.readers import open_weights
    from vit_keras.utils import read

    if call == "picture":
        model = vit_keras.preprocess.PRESETS["timm"].replace(image_size=(32, 32))
        read(source, 32)
        assert np.isfinite(model(source)).all()
    elif call == "arrays":
        reader = open_weights(source)
        for name in reader:
            if not reader.stored(name).problem:
                assert reader[name].shape == reader.shape(name)
    else:
        model = vit_keras.open_model(source) if str(source).endswith((".keras", ".h5")) else opened(source)
        if hasattr(model, "load_report"):
            model.preprocess(np.zeros((40, 50, 3), "uint8"))
            model.predict(np.zeros((1, *model.input_shape[1:])), verbose=0)
            return list(model.load_report.ignored) if model.load_report else []
    return []


def opened(source):
    import vit_keras

    return vit_keras.open_model(source, num_heads=2)


def memory(field):
    """Return the bytes that Linux counts for this process; unlike `ru_maxrss`, none that its parent had."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) << 10


def main(kind, folder, canary, step):
    os.environ["VIT_KERAS_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    from files import KINDS

    import vit_keras

    vit_keras.vit.build_model(32, 16, 1, 64, 2, "warm", 64, classes=2)  # what is imported late
    used = memory("VmData")
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (DISK, DISK))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    kinds = list(KINDS) if kind == "all" else [kind]
    for kind in kinds:
        place = pathlib.Path(folder, kind)
        place.mkdir()
        cases = KINDS[kind](place, pathlib.Path(canary))
        for name, call, source in itertools.islice(cases, 0, FEW if step > 1 else None, step):
            start, outcome = time.process_time(), {"kind": kind, "name": name, "source": str(source)}
            try:
                outcome["ignored"] = use(call, str(source))
            except BaseException as error:
                outcome |= {
                    "error": type(error).__name__,
                    "module": type(error).__module__,
                    "text": str(error)[:200_000],
                }
            seconds = round(time.process_time() - start, 2)
            outcome |= {"seconds": seconds, "megabytes": memory("VmHWM") >> 20}
            print("CASE " + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))

"""Where data and programs are, and what tests of several folders use.

Nothing here imports Keras at the top: conftest.py is read by the process that only starts those that run the tests.
"""

import contextlib
import importlib.util
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"

ASSUMED = pytest.mark.filterwarnings(r"ignore:.*(It is read with|Its (\d+ )?positions are read as)")
"""For tests of files without a config.json, where what is assumed is not the point."""
OTHER_PIXELS = pytest.mark.filterwarnings("ignore:The pixels (are between|that reach)")
"""For tests with images that are not normalized for the model, where that is not the point."""
OTHER_RESIZING = pytest.mark.filterwarnings("ignore:transformers does not compute all of this model")
"""For tests of folders for transformers, where the preprocessing is not the point."""


@contextlib.contextmanager
def uncompiled():
    """Run TensorFlow's functions operation by operation: faster for what is run once."""
    import keras

    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def one_at_a_time(*axes):
    """Return all combinations of values, as cases; those that differ from the first in more than one value are slow."""
    axes = [*map(list, axes)]
    return [
        pytest.param(*values, marks=[pytest.mark.slow] if sum(v is not a[0] for v, a in zip(values, axes)) > 1 else [])
        for values in itertools.product(*axes)
    ]


def noise(*shape, seed=0):
    """Return random pixels from 0 to 255."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype="uint8")


def forget_settings(file):
    """Take our settings out of a safetensors file: a published one has none."""
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]) | {"__metadata__": {"format": "pt"}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def script(path):
    """Return a script that is in no package as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tiny_model(
    image_size=32, patch_size=8, num_layers=1, *, classes=3, dropout=0.0, seed=0, scale=None, eagerly=True, **options
):
    """Return a ViT with 2 heads of 8 numbers, the same on each call; `scale` is as for `far_from_uniform`."""
    import keras

    from vit_keras import vit

    keras.utils.set_random_seed(seed)
    sizes = {"hidden_size": 16, "num_heads": 2, "name": "tiny", "mlp_dim": 32}
    sizes["include_top"] = options.get("pooling", "token") is not None  # tokens have no head
    options = {**sizes, "classes": classes, "dropout": dropout, **options}
    model = vit.build_model(image_size, patch_size, num_layers, **options)
    return model if scale is None else far_from_uniform(model, scale, seed + 1, eagerly)


def far_from_uniform(model, scale, seed=1, eagerly=True):
    """Give a model weights that make its attention far from uniform, the same on every backend, and return it.

    It runs without compiling, which takes most of the time of a tiny one, unless many tests run it (`eagerly=False`).
    """
    import keras

    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(scale * rng.standard_normal(weight.shape) + (weight.name == "gamma"))
    model.run_eagerly = eagerly and keras.backend.backend() != "jax"  # which compiles operations one by one then
    return model


@contextlib.contextmanager
def peak_memory():
    """Measure a block: what is yielded returns how many bytes more the process held at its peak than before (Linux)."""
    status = Path("/proc/self/status")

    def kilobytes(name):
        return int(next(line for line in status.read_text().splitlines() if line.startswith(name)).split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # forget the peak until now
    before = kilobytes("VmRSS")
    found = []
    yield lambda: found[0]
    found.append(1024 * (kilobytes("VmHWM") - before))


def some_of(cases, count):
    """Return cases as parameters of a test; those after the first few are exhaustive."""
    return [pytest.param(case, marks=() if n < count else pytest.mark.exhaustive) for n, case in enumerate(cases)]

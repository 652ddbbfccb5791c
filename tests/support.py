"""Where data and programs are, and what tests of several folders use."""

import contextlib
import importlib.util
from pathlib import Path

import keras
import numpy as np

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"


@contextlib.contextmanager
def uncompiled():
    """Run TensorFlow's functions operation by operation: faster for what is run once."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)


def script(path):
    """Return a script that is in no package as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def far_from_uniform(model, scale, seed=1, eagerly=True):
    """Give a model weights that make its attention far from uniform, the same on every backend, and return it.

    It runs without compiling, which takes most of the time of a tiny one, unless many tests run it (`eagerly=False`).
    """
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(scale * rng.standard_normal(weight.shape) + (weight.name == "gamma"))
    model.run_eagerly = eagerly and keras.backend.backend() != "jax"  # which compiles operations one by one then
    return model

"""Where data and programs are, and what tests of several folders use."""

import contextlib
from pathlib import Path

import keras

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

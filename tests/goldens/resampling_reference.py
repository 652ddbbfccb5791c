"""What make_resampling_data.py wrote: grids, positions and biases of other libraries."""

import re

import numpy as np
from keras import ops
from support import DATA

REFERENCE = dict(np.load(DATA / "resampling.npz"))


def cases(prefix):
    """The reference's arrays of such names, as `(array, case, new size)`, where a case is like 5x4_9x11 or 9x11."""
    found = [re.fullmatch(rf"{prefix}_((?:\d+x\d+_)?(\d+x\d+))", key) for key in REFERENCE]
    return [(REFERENCE[match[0]], match[1], sides(match[2])) for match in found if match]


def sides(text):
    return tuple(map(int, text.split("x")))


def close(got, wanted, tolerance):
    got = ops.convert_to_numpy(got)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance)

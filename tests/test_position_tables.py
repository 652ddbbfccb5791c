"""Tables of learned positions resampled to other grids, against the definition, the reference and SciPy."""

import make_google_npz
import numpy as np
import pytest
from support import DATA

from vit_keras.positions import resize_position_embeddings
from vit_keras.resampling import resize_bilinear

# The last three are those for which SciPy, as Google called it, makes the last row and column zero.
PAIRS = [(4, 6), (14, 24), (24, 14), (7, 12), (5, 1), (1, 5), (2, 3), (9, 9), (24, 22), (28, 14), (32, 16)]


def slowly(array, size, align_corners):
    """Bilinear interpolation from its definition: one value at a time."""
    height, width = array.shape[:2]
    result = np.zeros((*size, *array.shape[2:]))
    for i, j in np.ndindex(*size):
        y, x = (_place(k, n, m, align_corners) for k, n, m in ((i, height, size[0]), (j, width, size[1])))
        for row, column in np.ndindex(height, width):
            result[i, j] += max(0, 1 - abs(y - row)) * max(0, 1 - abs(x - column)) * array[row, column]
    return result


def _place(k, old, new, align_corners):
    if align_corners:
        return k * (old - 1) / (new - 1) if new > 1 else 0
    return min(max((k + 0.5) * old / new - 0.5, 0), old - 1)


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_resize_bilinear_is_its_definition(old, new, align_corners):
    array = make_google_npz.uniform(0, "resize", (old, 3, 2)).astype("float64")
    for axes in ((0, 1, 2), (1, 0, 2)):
        turned, size = array.transpose(axes), (new, 4) if axes[0] == 0 else (4, new)
        # Both are float64 sums of at most four products of about 1.
        np.testing.assert_allclose(
            resize_bilinear(turned, size, align_corners=align_corners),
            slowly(turned, size, align_corners),
            rtol=0,
            atol=1e-12,
        )


@pytest.mark.parametrize("rule", ["google", "bilinear"])
@pytest.mark.parametrize("size", [(12, 12), (5, 5), (9, 14)])
def test_resize_bilinear_against_the_reference(rule, size):
    golden = np.load(DATA / "posemb_resize.npz")
    got = resize_bilinear(golden["grid"], size, align_corners=rule == "google")
    # Values below 1: Google's resizing is exact but for its float32 result, the other computes in float32.
    tolerance = 1e-7 if rule == "google" else 1e-6
    np.testing.assert_allclose(got, golden[f"{rule}_{size[0]}x{size[1]}"], rtol=0, atol=tolerance)


@pytest.mark.parametrize("prefix_tokens", [0, 1, 2])
def test_prefix_tokens_stay_as_they_are(prefix_tokens):
    old = make_google_npz.uniform(0, "prefix", (1, prefix_tokens + 9, 8))
    got = resize_position_embeddings(old, (5, 4), prefix_tokens=prefix_tokens)
    assert (got.shape, got.dtype) == ((1, prefix_tokens + 20, 8), np.float32)
    np.testing.assert_array_equal(got[:, :prefix_tokens], old[:, :prefix_tokens])
    alone = resize_position_embeddings(old[:, prefix_tokens:], (5, 4), prefix_tokens=0)
    np.testing.assert_array_equal(got[:, prefix_tokens:], alone)


@pytest.mark.parametrize(
    ("source_grid", "message"), [(None, "11 patches, which is not a square"), ((3, 4), r"not the grid \(3, 4\)")]
)
def test_table_that_is_no_such_grid(source_grid, message):
    with pytest.raises(ValueError, match=message):
        resize_position_embeddings(np.zeros((1, 12, 8)), (2, 2), source_grid=source_grid)

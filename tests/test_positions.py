"""Tables of positions and computed ones, against torch, timm, transformers and vit-pytorch."""

import keras
import numpy as np
import pytest
from keras import ops
from resampling_reference import REFERENCE, cases, close, sides
from support import DATA

from vit_keras import positions
from vit_keras.resampling import METHODS, resize_grid

rng = np.random.default_rng(0)


@pytest.mark.parametrize("method", METHODS)
def test_position_embeddings_by_each_method(method):
    table = rng.standard_normal((1, 2 + 35, 4)).astype("float32")
    got = positions.resize_position_embeddings(table, (8, 3), prefix_tokens=2, source_grid=(5, 7), method=method)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got[:, :2], table[:, :2])
    wanted = resize_grid(table[0, 2:].reshape(5, 7, 4), (8, 3), method).reshape(1, 24, 4)
    np.testing.assert_array_equal(got[:, 2:], wanted.astype("float32"))


def test_position_embeddings_are_resized_as_google_does_by_default():
    golden = np.load(DATA / "posemb_resize.npz")
    got = positions.resize_position_embeddings(golden["grid"].reshape(1, 49, 8), (9, 14), prefix_tokens=0)
    close(got.reshape(9, 14, 8), golden["google_9x14"], 1e-7)  # values below 1, rounded to float32 once


@pytest.mark.core
@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "ops"])
def test_sincos2d_against_vit_pytorch(xp):
    got = positions.sincos2d((5, 3), 24, xp=xp)
    assert keras.backend.standardize_dtype(got.dtype) == "float32"
    close(got, REFERENCE["vit_pytorch_sincos_5x3"][None], 1e-6)  # float32 angles of at most 4


@pytest.mark.core
@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "ops"])
@pytest.mark.parametrize("key", ["transformers_rope_5x3", "timm_rope_5x3"])
def test_rope_against_other_projects(key, xp):
    for got, wanted in zip(positions.rope_sincos((5, 3), 16, xp=xp), REFERENCE[key], strict=True):
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        close(got, wanted, 2e-6)  # float32 angles of at most 2 pi, on both sides


def test_relative_position_index_against_timm():
    got = positions.relative_position_index((3, 4))
    assert got.dtype == np.int32 and got.max() + 1 == positions.relative_position_rows((3, 4))
    np.testing.assert_array_equal(got, REFERENCE["timm_index_3x4"])
    without = positions.relative_position_index((3, 4), prefix_tokens=0)
    np.testing.assert_array_equal(without, REFERENCE["timm_index_3x4"][1:, 1:])
    several = positions.relative_position_index((3, 4), prefix_tokens=3)
    as_one = np.r_[0, 0, 0, 1:13]
    np.testing.assert_array_equal(several, REFERENCE["timm_index_3x4"][np.ix_(as_one, as_one)])
    for prefix in (0, 1, 3):
        index = positions.relative_position_index((3, 4), prefix_tokens=prefix)
        assert np.unique(index).tolist() == [*range(positions.relative_position_rows((3, 4), prefix))]


@pytest.mark.parametrize("method", ["geometric", "geometric_linear", "bilinear"])
def test_relative_position_biases_against_other_projects(method):
    found = cases("transformers_bilinear" if method == "bilinear" else f"timm_{method}")
    assert len(found) == (3 if method == "bilinear" else 4)
    for wanted, case, size in found:
        table, source = REFERENCE[f"biases_{case}"], sides(case.split("_")[0])
        got = positions.resize_relative_position_bias(table, source, size, method)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got[-3:], table[-3:])
        np.testing.assert_array_equal(
            positions.resize_relative_position_bias(table[:-3], source, size, method), got[:-3]
        )
        # Values of up to 4. BEiT's splines are computed in float64; the others' places in float32.
        close(got, wanted, 5e-7 if method == "geometric" else 5e-6)


def test_the_same_relative_position_biases():
    table = rng.standard_normal((5 * 3 + 3, 2)).astype("float32")
    np.testing.assert_array_equal(positions.resize_relative_position_bias(table, (3, 2), (3, 2)), table)
    with pytest.raises(ValueError, match=r"\(2, 2\) .*\(12, heads\), or .*\(18, 2\)"):
        positions.resize_relative_position_bias(table, (2, 2), (3, 2))


@pytest.mark.only_on("tensorflow", reason="only TensorFlow's sizes may be unknown")
def test_sizes_known_only_when_the_graph_runs():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None))])
    def graph(like):
        size = ops.shape(like)
        return positions.sincos2d(size, 16, xp=ops), *positions.rope_sincos(size, 16, xp=ops)

    for size in ((7, 6), (12, 5), (3, 30), (7, 12)):
        wanted = positions.sincos2d(size, 16), *positions.rope_sincos(size, 16)
        for got, value in zip(graph(np.zeros(size, "float32")), wanted, strict=True):
            close(got, value, 5e-6)  # sines and cosines in float32 of angles up to 30

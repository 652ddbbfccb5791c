"""The resampling and the computed positions, against torch, timm, transformers, vit-pytorch, TensorFlow and SciPy."""

import itertools
import re

import keras
import numpy as np
import pytest
from keras import ops
from support import DATA

from vit_keras import positions
from vit_keras.positions import METHODS, resampling_matrix, resize_grid

pytestmark = pytest.mark.core

REFERENCE = dict(np.load(DATA / "resampling.npz"))
INTERPOLATE = {
    "bilinear_align_corners": {"mode": "bilinear", "align_corners": True},
    "bilinear": {"mode": "bilinear"},
    "bilinear_antialias": {"mode": "bilinear", "antialias": True},
    "bicubic": {"mode": "bicubic"},
    "bicubic_align_corners": {"mode": "bicubic", "align_corners": True},
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},
    "bicubic_dino": {"mode": "bicubic"},
}
GOLDEN = {
    "google": "bilinear_align_corners",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "bicubic_aa": "bicubic_antialias",
    "bilinear_aa": "bilinear_antialias",
    "dino": "bicubic_dino",
}
SIZES = (1, 2, 3, 5, 7, 14, 24, 37)
rng = np.random.default_rng(0)


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


def traced(function, *args, **options):
    """Call as part of a graph: JAX compiles each operation for each shape otherwise, which takes minutes."""
    if keras.backend.backend() != "jax" or options.get("xp") is np:
        return function(*args, **options)
    import jax

    return jax.jit(lambda: function(*args, **options))()


def test_the_methods_are_the_ones_with_a_reference():
    assert set(METHODS) == set(INTERPOLATE) == set(GOLDEN.values()) | {"bicubic_align_corners"}


@pytest.mark.parametrize("method", METHODS)
def test_grids_against_values_of_torch(method):
    assert len(cases(f"torch_{method}")) == 6
    for wanted, case, size in cases(f"torch_{method}"):
        # Both in float64, values of about 1.
        close(resize_grid(REFERENCE[f"grid_{case}"], size, method), wanted, 1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_grids_against_torch(method):
    functional = pytest.importorskip("torch.nn.functional")
    torch = pytest.importorskip("torch")
    for old, new in itertools.product(SIZES, SIZES):
        grid, size = rng.standard_normal((old, old + 1, 2)), (new, new + 3)
        scale = {"scale_factor": ((new + 0.1) / old, (new + 3.1) / (old + 1))}
        scale = scale if method == "bicubic_dino" else {"size": size}
        wanted = functional.interpolate(torch.tensor(grid).permute(2, 0, 1)[None], **scale, **INTERPOLATE[method])
        # Both in float64, values of about 1; torch's own places in the grid are rounded to 1e-14.
        close(resize_grid(grid, size, method), wanted[0].permute(1, 2, 0).numpy(), 1e-12)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("size", [(12, 12), (5, 5), (9, 14)])
def test_grids_against_the_golden_ones(name, size):
    golden = np.load(DATA / "posemb_resize.npz")
    # Computed in float32 but for Google's: values of about 1, sums of up to 16 products or more.
    wanted = golden["{}_{}x{}".format(name, *size)]
    close(resize_grid(golden["grid"], size, GOLDEN[name]), wanted, 1e-7 if name == "google" else 2e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_backend_gives_the_same_matrices(method):
    for source, target in [(14, 100), (37, 10), (5, 1), (1, 3)]:
        got = traced(resampling_matrix, source, target, method, xp=ops)
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        # Weights of about 1, each from a few operations in float32.
        close(got, resampling_matrix(source, target, method), 1e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(7, 6), (12, 5), (7, 30)])
def test_the_backend_gives_the_same_grids(method, size):
    grid = rng.standard_normal((7, 6, 8)).astype("float32")
    # Values of up to 4, weighted by two matrices that are 1e-6 off at most.
    close(traced(resize_grid, grid, size, method, xp=ops), resize_grid(grid, size, method), 5e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow's sizes may be unknown")
@pytest.mark.parametrize("method", METHODS)
def test_sizes_known_only_when_the_graph_runs(method):
    import tensorflow as tf

    grid = rng.standard_normal((7, 6, 8)).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec((None, None))])
    def graph(like):
        size = ops.shape(like)
        return (
            resampling_matrix(7, size[0], method, xp=ops),
            resize_grid(grid, size, method, xp=ops),
            positions.sincos2d(size, 16, xp=ops),
            *positions.rope_sincos(size, 16, xp=ops),
        )

    for size in ((7, 6), (12, 5), (3, 30), (7, 12)):
        matrix, resized, sincos, sine, cosine = graph(np.zeros(size, "float32"))
        close(matrix, resampling_matrix(7, size[0], method), 1e-6)  # as above
        close(resized, resize_grid(grid, size, method), 5e-6)
        # Sines and cosines in float32 of angles up to 30.
        close(sincos, positions.sincos2d(size, 16), 5e-6)
        for got, wanted in zip((sine, cosine), positions.rope_sincos(size, 16)):
            close(got, wanted, 5e-6)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "ops"])
def test_the_same_size_is_the_same_grid(method, xp):
    grid = rng.standard_normal((5, 8, 3)).astype("float32")
    np.testing.assert_array_equal(ops.convert_to_numpy(traced(resize_grid, grid, (5, 8), method, xp=xp)), grid)
    table = np.concatenate([grid[:1, :1], grid.reshape(1, 40, 3)], axis=1)
    got = positions.resize_position_embeddings(table, (5, 8), source_grid=(5, 8), method=method)
    np.testing.assert_array_equal(got, table)


@pytest.mark.parametrize("align_corners", [True, False])
def test_resize_bilinear_is_resize_grid(align_corners):
    method = "bilinear_align_corners" if align_corners else "bilinear"
    for old, new in itertools.product(SIZES, SIZES):
        grid, size = rng.standard_normal((old, old + 1, 2)), (new, new + 3)
        # Both in float64, values of about 1; places in the grid of up to 37.
        close(
            positions.resize_bilinear(grid, size, align_corners=align_corners), resize_grid(grid, size, method), 1e-12
        )


def test_dino_keeps_an_axis_only_if_it_keeps_both():
    plain, dino = (resize_grid(np.eye(6)[:, :, None], (6, 9), method) for method in ("bicubic", "bicubic_dino"))
    assert np.abs(plain - dino).max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_each_row_of_a_matrix_sums_to_one(method):
    for source, target in itertools.product(SIZES, SIZES):
        matrix = resampling_matrix(source, target, method)
        assert (matrix.shape, matrix.dtype) == ((target, source), np.float64)
        close(matrix.sum(axis=1), np.ones(target), 1e-14)  # at most 37 numbers below 2 in float64


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


@pytest.mark.parametrize(
    "call",
    [
        lambda method: resampling_matrix(3, 4, method),
        lambda method: resize_grid(np.zeros((2, 2)), (2, 2), method),
        lambda method: positions.resize_position_embeddings(np.zeros((1, 5, 4)), (2, 2), method=method),
        lambda method: positions.resize_patch_kernel(np.zeros((4, 4, 3, 2)), (8, 8), method),
        lambda method: positions.resize_relative_position_bias(np.zeros((12, 2)), (2, 2), (2, 2), method),
    ],
)
def test_a_method_that_there_is_not(call):
    with pytest.raises(ValueError, match=r"no method 'nearest' .* bilinear_align_corners, bilinear, .*bicubic_dino"):
        call("nearest")


@pytest.mark.parametrize(("source", "target"), [(0, 3), (3, 0), (3, np.int64(-1))])
def test_an_axis_without_cells(source, target):
    with pytest.raises(ValueError, match=f"at least one cell. Received: {source} cells to be made {target}"):
        resampling_matrix(source, target, "bilinear")


def test_patch_kernels_against_timm():
    assert len(cases("timm_kernel")) == 3
    for wanted, _, size in cases("timm_kernel"):
        got = positions.resize_patch_kernel(REFERENCE["kernel"], size, "bicubic_antialias")
        assert got.dtype == np.float32
        # timm inverts in float32 a matrix of condition 10 or so; values of about 1.
        close(got, wanted, 1e-5)


@pytest.mark.parametrize("size", [(9, 12), (5, 3), (16, 4), (6, 8)])
def test_patch_kernels_against_the_pseudo_inverse_of_tensorflow(size):
    tf = pytest.importorskip("tensorflow")
    kernel = rng.standard_normal((6, 8, 3, 2)).astype("float32")
    pixels = np.eye(48, dtype="float32").reshape(48, 6, 8, 1)
    resize = tf.image.resize(pixels, size, method="bilinear", antialias=False).numpy().reshape(48, -1)
    wanted = np.linalg.pinv(resize.astype("float64")) @ kernel.reshape(48, -1)
    # Weights that TensorFlow rounds to float32, in a matrix of condition 10 or so.
    close(positions.resize_patch_kernel(kernel, size), wanted.reshape(*size, 3, 2), 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_larger_patch_kernel_gives_what_the_kernel_gave(method):
    patch, kernel = rng.standard_normal((6, 5, 3)), rng.standard_normal((6, 5, 3, 4)).astype("float32")
    larger = positions.resize_patch_kernel(kernel, (11, 8), method)
    got = np.einsum("hwc,hwcd->d", resize_grid(patch, (11, 8), method), larger)
    # Sums of 264 products of about 1 whose kernel is rounded to float32.
    close(got, np.einsum("hwc,hwcd->d", patch, kernel), 1e-5)


def test_the_same_patch_kernel():
    kernel = rng.standard_normal((4, 5, 3, 2)).astype("float32")
    close(positions.resize_patch_kernel(kernel, (4, 5)), kernel, 0)
    with pytest.raises(ValueError, match=r"height, width, channels, hidden_size.* Received: shape \(4, 5, 3\)"):
        positions.resize_patch_kernel(kernel[..., 0], (4, 5))


@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "ops"])
def test_sincos2d_against_vit_pytorch(xp):
    got = positions.sincos2d((5, 3), 24, xp=xp)
    assert keras.backend.standardize_dtype(got.dtype) == "float32"
    close(got, REFERENCE["vit_pytorch_sincos_5x3"][None], 1e-6)  # float32 angles of at most 4


@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "ops"])
@pytest.mark.parametrize("key", ["transformers_rope_5x3", "timm_rope_5x3"])
def test_rope_against_other_projects(key, xp):
    for got, wanted in zip(positions.rope_sincos((5, 3), 16, xp=xp), REFERENCE[key], strict=True):
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        close(got, wanted, 2e-6)  # float32 angles of at most 2 pi, on both sides


@pytest.mark.parametrize("width", [4, 10, 0])
def test_a_width_that_four_parts_do_not_make(width):
    with pytest.raises(ValueError, match=f"multiple of 4 from 8 on. Received: {width}"):
        positions.sincos2d((2, 2), width)


@pytest.mark.parametrize("width", [6, 0])
def test_a_head_that_four_parts_do_not_make(width):
    with pytest.raises(ValueError, match=f"multiple of 4. Received: {width}"):
        positions.rope_sincos((2, 2), width)


def test_relative_position_index_against_timm():
    got = positions.relative_position_index((3, 4))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, REFERENCE["timm_index_3x4"])


@pytest.mark.parametrize("method", ["geometric", "geometric_linear", "bilinear"])
def test_relative_position_biases_against_other_projects(method):
    found = cases("transformers_bilinear" if method == "bilinear" else f"timm_{method}")
    assert len(found) == (3 if method == "bilinear" else 4)
    for wanted, case, size in found:
        table, source = REFERENCE[f"biases_{case}"], sides(case.split("_")[0])
        got = positions.resize_relative_position_bias(table, source, size, method)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got[-3:], table[-3:])
        # Values of up to 4. BEiT's splines are computed in float64; the others' places in float32.
        close(got, wanted, 5e-7 if method == "geometric" else 5e-6)


@pytest.mark.parametrize(("old", "new"), [((1, 1), (3, 2)), ((2, 1), (4, 4)), ((2, 2), (1, 1)), ((14, 14), (40, 24))])
@pytest.mark.parametrize("method", ["geometric", "geometric_linear"])
def test_relative_position_biases_that_are_the_same_stay_so(old, new, method):
    rows = [(2 * height - 1) * (2 * width - 1) + 3 for height, width in (old, new)]
    table = np.full((rows[0], 2), 0.7, "float32")
    got = positions.resize_relative_position_bias(table, old, new, method)
    close(got, np.full((rows[1], 2), 0.7, "float32"), 1e-6)  # rounded to float32 twice


def test_the_same_relative_position_biases():
    table = rng.standard_normal((5 * 3 + 3, 2)).astype("float32")
    np.testing.assert_array_equal(positions.resize_relative_position_bias(table, (3, 2), (3, 2)), table)
    with pytest.raises(ValueError, match=r"grid \(2, 2\) have the shape \(12, heads\). Received: shape \(18, 2\)"):
        positions.resize_relative_position_bias(table, (2, 2), (3, 2))

"""Resampling, against torch, timm, TensorFlow and Google's own."""

import keras
import numpy as np
import pytest
from keras import ops
from PIL import Image
from resampling_reference import REFERENCE, cases, close
from support import DATA

from vit_keras import positions, resampling
from vit_keras.resampling import METHODS, PICTURES, picture_filter, resampling_matrix, resize_grid, table_filter

GOLDEN = {
    "google": "bilinear_align_corners",
    "bilinear": "bilinear",
    "bicubic": "bicubic",
    "bicubic_aa": "bicubic_antialias",
    "bilinear_aa": "bilinear_antialias",
    "dino": "bicubic_dino",
}
rng = np.random.default_rng(0)


def some_by_default(methods, *chosen):
    return [m if m in chosen else pytest.param(m, marks=pytest.mark.slow) for m in methods]


def traced(function, *args, **options):
    """Call as part of a graph: JAX compiles each operation for each shape otherwise, which takes minutes."""
    if keras.backend.backend() != "jax" or options.get("xp") is np:
        return function(*args, **options)
    import jax

    return jax.jit(lambda: function(*args, **options))()


@pytest.mark.parametrize("method", METHODS)
def test_grids_against_values_of_torch(method):
    assert len(cases(f"torch_{method}")) == 6
    for wanted, case, size in cases(f"torch_{method}"):
        # Both in float64, values of about 1.
        close(resize_grid(REFERENCE[f"grid_{case}"], size, method), wanted, 1e-13)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("size", [(12, 12), (5, 5), (9, 14)])
def test_grids_against_the_golden_ones(name, size):
    golden = np.load(DATA / "posemb_resize.npz")
    # Computed in float32 but for Google's: values of about 1, sums of up to 16 products or more.
    wanted = golden["{}_{}x{}".format(name, *size)]
    close(resize_grid(golden["grid"], size, GOLDEN[name]), wanted, 1e-7 if name == "google" else 2e-6)


@pytest.mark.core
@pytest.mark.parametrize("method", METHODS)
def test_the_backend_gives_the_same_matrices(method):
    for source, target in [(14, 100), (37, 10), (5, 1), (1, 3)]:
        got = traced(resampling_matrix, source, target, method, xp=ops)
        assert keras.backend.standardize_dtype(got.dtype) == "float32"
        # Weights of about 1, each from a few operations in float32.
        close(got, resampling_matrix(source, target, method), 1e-6)


@pytest.mark.core
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [(7, 6), (12, 5), (7, 30)])
def test_the_backend_gives_the_same_grids(method, size):
    grid = rng.standard_normal((7, 6, 8)).astype("float32")
    # Values of up to 4, weighted by two matrices that are 1e-6 off at most.
    close(traced(resize_grid, grid, size, method, xp=ops), resize_grid(grid, size, method), 5e-6)


@pytest.mark.only_on("tensorflow", reason="only TensorFlow's sizes may be unknown")
@pytest.mark.parametrize(
    "method", some_by_default(METHODS, "bilinear_align_corners", "bicubic_antialias", "bicubic_dino")
)
def test_sizes_known_only_when_the_graph_runs(method):
    import tensorflow as tf

    grid = rng.standard_normal((7, 6, 8)).astype("float32")

    @tf.function(input_signature=[tf.TensorSpec((None, None))])
    def graph(like):
        size = ops.shape(like)
        return resampling_matrix(7, size[0], method, xp=ops), resize_grid(grid, size, method, xp=ops)

    for size in ((7, 6), (12, 5), (3, 30), (7, 12)):
        matrix, resized = graph(np.zeros(size, "float32"))
        close(matrix, resampling_matrix(7, size[0], method), 1e-6)  # as above
        close(resized, resize_grid(grid, size, method), 5e-6)


def test_dino_keeps_an_axis_only_if_it_keeps_both():
    plain, dino = (resize_grid(np.eye(6)[:, :, None], (6, 9), method) for method in ("bicubic", "bicubic_dino"))
    assert np.abs(plain - dino).max() > 1e-3


@pytest.mark.parametrize(
    "call",
    [
        lambda method: resize_grid(np.zeros((2, 2)), (2, 2), method),
        lambda method: positions.resize_position_embeddings(np.zeros((1, 5, 4)), (2, 2), method=method),
        lambda method: resampling.resize_patch_kernel(np.zeros((4, 4, 3, 2)), (8, 8), method),
        lambda method: positions.resize_relative_position_bias(np.zeros((12, 2)), (2, 2), (2, 2), method),
    ],
)
def test_a_method_that_there_is_not(call):
    with pytest.raises(ValueError, match="bicubic_dino.*'nearest'"):
        call("nearest")


@pytest.mark.parametrize(
    ("name", "table", "picture"),
    [
        ("bilinear", "bilinear", "bilinear"),
        ("bilinear-antialias", "bilinear_antialias", "bilinear_antialias"),
        ("bicubic", "bicubic", "bicubic_antialias"),  # what Pillow calls so
        ("bicubic-dino", "bicubic_dino", None),
        ("lanczos", None, "lanczos"),
        ("nearest", None, "nearest"),
        (None, None, None),
        (3, None, None),
    ],
)
def test_a_filter_has_one_name(name, table, picture):
    for choose, expected in ((table_filter, table), (picture_filter, picture)):
        if expected is None:
            with pytest.raises(ValueError, match=str(name)):
                choose(name)
        else:
            assert choose(name) == choose(expected) == expected


@pytest.mark.core
@pytest.mark.parametrize("method", PICTURES)
@pytest.mark.parametrize("xp", [np, ops], ids=["numpy", "ops"])
def test_a_window_of_the_matrix(method, xp):
    whole = traced(resampling_matrix, 12, 7, method, xp=xp)
    window = traced(resampling_matrix, 12, 7, method, rows=(2, 4), xp=xp)
    close(window, ops.convert_to_numpy(whole)[2:6], 1e-6)  # weights of about 1; XLA orders operations by shape


def by_pillow(row, target, method):
    """Pillow's resizing of an image of one row."""
    name = {"bilinear_antialias": "BILINEAR", "bicubic_antialias": "BICUBIC"}.get(method, method.upper())
    return np.asarray(Image.fromarray(row).resize((target, 1), Image.Resampling[name]))[0]


@pytest.mark.parametrize("method", PICTURES)
@pytest.mark.parametrize(("source", "target"), [(37, 64), (64, 37), (96, 48), (5, 1)])
def test_pictures_against_pillow(method, source, target):
    """Of a row of floats, which Pillow does not round to grey levels."""
    row = rng.uniform(0, 255, (1, source)).astype("float32")
    matrix = resampling_matrix(source, target, method)
    if method == "bilinear":  # Pillow has no bilinear filter without antialiasing
        close(matrix @ row[0], resampling.resize_bilinear(row.T, (target, 1), align_corners=False)[:, 0], 1e-11)
        return
    close(matrix @ row[0], by_pillow(row, target, method), 1e-4)  # float32 up to 255


@pytest.mark.parametrize(("source", "target"), [(0, 3), (3, 0), (3, np.int64(-1))])
def test_an_axis_without_cells(source, target):
    with pytest.raises(ValueError, match=f"one cell.*{source} .*{target}"):
        resampling_matrix(source, target, "bilinear")


def test_patch_kernels_against_timm():
    assert len(cases("timm_kernel")) == 3
    for wanted, _, size in cases("timm_kernel"):
        got = resampling.resize_patch_kernel(REFERENCE["kernel"], size, "bicubic_antialias")
        assert got.dtype == np.float32
        # timm inverts in float32 a matrix of condition 10 or so; values of about 1.
        close(got, wanted, 1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_larger_patch_kernel_gives_what_the_kernel_gave(method):
    patch, kernel = rng.standard_normal((6, 5, 3)), rng.standard_normal((6, 5, 3, 4)).astype("float32")
    larger = resampling.resize_patch_kernel(kernel, (11, 8), method)
    got = np.einsum("hwc,hwcd->d", resize_grid(patch, (11, 8), method), larger)
    # Sums of 264 products of about 1 whose kernel is rounded to float32.
    close(got, np.einsum("hwc,hwcd->d", patch, kernel), 1e-5)

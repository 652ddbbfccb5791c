"""The range of pixels, and pixels in [0, 255]."""

import ml_dtypes
import numpy as np
import pytest

from vit_keras.preprocess import Preprocessing, pixels

H, W = 6, 10


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape).astype("uint8")


@pytest.mark.filterwarnings("ignore:A float image is meant to be")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 7, 255], "uint8"), [0, 7, 255]),
        (np.array([0, 7, 255], "int64"), [0, 7, 255]),
        (np.array([0, 257, 65535], "uint16"), [0, 1, 255]),
        (np.array([False, True]), [0, 255]),
        (np.array([-1, -0.2, 1], "float32"), [0, 102, 255]),
        (np.array([-1, 0, 1], "float16"), [0, 127.5, 255]),
        (np.array([-1, 0, 1], ml_dtypes.bfloat16), [0, 127.5, 255]),
        (np.array([0, 0.2, 1.0]), [0, 51, 255]),
        (np.array([0, 0.2, 255]), [0, 0.2, 255]),
    ],
)
def test_to_pixels_judges_the_range(values, expected):
    before = values.copy()
    result = pixels.to_pixels(values)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)  # 0.2 in float32 is off by 3e-9, times 127.5
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("values", [np.array([0.0, 0.7]), np.array([0.0, 200.0])])
def test_to_pixels_warns_of_floats_that_models_do_not_take(values):
    with pytest.warns(UserWarning, match=r"\[-1, 1\].*read as \[0, (1|255)\]"):
        pixels.to_pixels(values)


@pytest.mark.parametrize("bits", [9, 10, 12, 14])
@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_a_few_bits_of_16_are_read_as_nearly_black_with_a_warning(bits, dtype):
    with pytest.warns(UserWarning, match=f" {2**bits - 1:,}.* {2 ** (16 - bits)}"):
        assert pixels.to_uint8(np.array([0, 2**bits - 1], dtype)).max() <= 64


@pytest.mark.filterwarnings("ignore:A float image is meant to be")
@pytest.mark.parametrize("values", [[-1000.0, 2000.0], [-1000.0, 1.5], [-1000, 3000], [0.0, 1000.0]])
def test_values_that_are_cut_off_are_said(values):
    with pytest.warns(UserWarning, match="cut off"):
        pixels.to_uint8(np.array(values))


@pytest.mark.filterwarnings("ignore:A float image is meant to be")
def test_to_uint8_rounds_and_clips():
    result = pixels.to_uint8(np.array([0.4, 0.6, 254.6, 256.0]))
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, [0, 1, 255, 255])
    np.testing.assert_array_equal(pixels.to_uint8(np.array([-1.05, -1.0, 1.0, 1.05])), [0, 0, 255, 255])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-1.0, 1.0], "[-1, 1]"),
        ([-0.1, 0.0], "[-1, 1]"),
        ([-1.1, 1.2], "[-1, 1]"),  # bicubic and Lanczos overshoot
        ([0.0, 0.7], "[0, 1]"),
        ([0.0, 1.1], "[0, 1]"),
        ([0.0, 255.0], "[0, 255]"),
        ([-5.0, 260.0], "[0, 255]"),
        ([0, 1], "[0, 255]"),  # integers leave no doubt
    ],
)
def test_pixel_range(values, expected):
    assert pixels.pixel_range(np.array(values)) == expected


@pytest.mark.parametrize(
    ("received", "plausible"),
    [
        ((0.57, 0.87), ["[-1, 1]", "[0, 1]"]),  # a bright image
        ((-1, 1), ["[-1, 1]"]),
        ((-1.9, 1.9), []),
        ((0, 1.1), ["[0, 1]"]),
        ((0.1, 0.8), ["[0, 1]"]),
        ((3, 250), ["[0, 255]"]),
        ((-0.01, 0.99), ["[0, 1]"]),
    ],
)
def test_the_range_that_pixels_may_be_meant_for(received, plausible):
    images = np.linspace(*received, 50)[:, None].repeat(3, axis=1)
    ranges = {"[-1, 1]": (0.5, 0.5), "[0, 1]": (0.0, 1.0), "[0, 255]": (0.0, 1 / 255)}
    fine = [name for name, (m, s) in ranges.items() if Preprocessing(mean=m, std=s).range_warning(images) is None]
    assert fine == plausible

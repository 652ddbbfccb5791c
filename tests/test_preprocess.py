"""One description of the preprocessing, in NumPy and in a graph."""

import itertools
import math

import keras
import numpy as np
import pytest
from keras import ops
from PIL import Image
from support import noise

from vit_keras import utils, vit
from vit_keras.preprocess import GOOGLE, IMAGENET, PRESETS, Preprocess, Preprocessing
from vit_keras.resampling import PICTURES

PLAIN = {"mean": 0.0, "std": 1 / 255}  # the result is the pixels
CROPS = [(None, "center"), (0.875, "center"), (0.9, "squash")]
SIZES = [(64, 64), (48, 80)]


def photo(height, width):
    """Smooth, with an edge: what a picture is to a filter."""
    y, x = np.mgrid[:height, :width]
    waves = 127 + 80 * np.sin(x / 7) * np.cos(y / 11) + 48 * (x > y)
    return np.stack([waves, 255 - waves, waves / 2], axis=-1).round().clip(0, 255).astype("uint8")


def run(layer, pixels):
    return ops.convert_to_numpy(layer(pixels))


# ---------------------------------------------------------------------------------------------- values


def test_google_is_read_and_preprocess_inputs():
    image = noise(50, 70, 3)
    expected = vit.preprocess_inputs(utils.read(image, (48, 64)))[None]
    np.testing.assert_allclose(GOOGLE(image, image_size=(48, 64)), expected, atol=1e-6)  # float32's rounding


@pytest.mark.parametrize("name", PRESETS)
def test_normalising_is_exact(name):
    settings = PRESETS[name]
    pixels = np.arange(256, dtype="uint8").reshape(1, 16, 16, 1).repeat(3, axis=-1)
    exact = (pixels / 255 - np.array(settings.mean)) / np.array(settings.std)  # float64
    result = settings(pixels)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, exact, atol=1e-6)
    np.testing.assert_allclose(run(Preprocess(settings), pixels), exact, atol=1e-6)
    np.testing.assert_array_equal(settings.denormalize(result), pixels)


@pytest.mark.parametrize(
    ("source", "size", "crop", "resized", "box"),
    [  # left and upper edge by torchvision's rule, round(rest / 2) with halves to the even side
        ((500, 375), 224, 0.875, (341, 256), (16, 58)),
        ((375, 500), 224, 0.9, (248, 330), (53, 12)),
        ((301, 301), 224, 0.95, (235, 235), (6, 6)),  # 11 left over: 5.5 becomes 6
        ((100, 100), 37, 0.9, (41, 41), (2, 2)),
        ((37, 100), 32, 1.0, (32, 86), (27, 0)),
    ],
)
def test_the_crop_is_torchvisions(source, size, crop, resized, box):
    """Resize(floor(size / crop)), then CenterCrop(size), written out with Pillow."""
    image = photo(*source)
    pil = Image.fromarray(image).resize(resized[::-1], Image.Resampling.BICUBIC)
    left, top = box
    expected = np.asarray(pil)[top : top + size, left : left + size]
    result = Preprocessing(image_size=size, interpolation="bicubic", crop=crop, **PLAIN)(image)[0]
    assert np.abs(result - expected).max() <= 1.001  # Pillow 13 takes the axes in another order for some sizes


@pytest.mark.parametrize("source", [(480, 640), (641, 333), (50, 70), (224, 224), (37, 1000)])
@pytest.mark.parametrize("crop", [0.875, 0.9, 0.95, 0.96, 1.0])
def test_the_geometry_is_torchvisions_for_squares(source, crop):
    size = 224
    scaled = math.floor(size / crop)
    short, long = min(source), max(source)
    sides = {short: scaled, long: int(scaled * long / short)}
    expected = tuple(sides[s] if source[0] != source[1] else scaled for s in source)
    resized, origin = Preprocessing(crop=crop).geometry(source, (size, size))
    assert resized == expected
    assert origin == tuple(round((r - size) / 2) for r in expected)


def test_a_picture_that_is_not_square_is_covered_whole():
    resized, origin = Preprocessing(crop=0.8).geometry((100, 300), (80, 160))
    assert resized == (100, 300)
    assert origin == (10, 70)
    assert Preprocessing(crop=0.8).geometry((300, 100), (80, 160))[0] == (600, 200)


def test_squashing_and_cropping():
    resized, origin = Preprocessing(crop=0.875, crop_mode="squash").geometry((480, 640), (224, 224))
    assert (resized, origin) == ((256, 256), (16, 16))


# ---------------------------------------------------------------------------------------------- the layer


@pytest.mark.parametrize("interpolation", PICTURES)
@pytest.mark.parametrize(("crop", "mode"), CROPS)
def test_the_layer_does_what_numpy_and_pillow_do(interpolation, crop, mode):
    """Equal but for values half-way between two grey levels, which these sizes have many of.

    A level more or less after the first axis can be one more after the second, where filters have weights over 1.
    """
    levels = 2.001 if interpolation in ("bicubic_antialias", "lanczos") else 1.001
    for size in SIZES:
        settings = Preprocessing(image_size=size, interpolation=interpolation, crop=crop, crop_mode=mode, **PLAIN)
        for image in (photo(90, 130), noise(50, 41, 3), noise(300, 128, 3), noise(96, 96, 3)):
            difference = np.abs(run(Preprocess(settings), image[None]) - settings(image))
            assert difference.max() <= levels
            assert (difference > 0.5).mean() <= 0.02


@pytest.mark.core
def test_a_batch_is_its_pictures():
    settings = IMAGENET.replace(image_size=32)
    batch = noise(3, 50, 40, 3)
    whole = run(Preprocess(settings), batch)
    np.testing.assert_allclose(whole, np.concatenate([run(Preprocess(settings), b[None]) for b in batch]), atol=1e-6)
    np.testing.assert_array_equal(settings(batch), np.concatenate([settings(b) for b in batch]))
    np.testing.assert_allclose(run(Preprocess(settings), batch[0]), whole[0], atol=1e-6)
    assert Preprocess(settings)(keras.Input(batch_shape=(50, 40, 3))).shape == (32, 32, 3)


@pytest.mark.only_on("tensorflow", reason="sizes that come with the data are TensorFlow's")
@pytest.mark.parametrize(
    ("interpolation", "crop", "mode", "size"),
    [
        pytest.param(
            *(interpolation, *crop, size),
            marks=() if interpolation in ("bilinear", "lanczos", "box", "nearest") and n == k % 6 else pytest.mark.slow,
        )
        for k, interpolation in enumerate(PICTURES)
        for n, (crop, size) in enumerate(itertools.product(CROPS, SIZES))
    ],
)
def test_sizes_known_only_at_run_time(interpolation, crop, mode, size):
    """By default each mechanism once: without and with antialiasing, and Pillow's two; and each way to crop."""
    import tensorflow as tf

    settings = Preprocessing(image_size=size, interpolation=interpolation, crop=crop, crop_mode=mode, **PLAIN)
    layer = Preprocess(settings)
    graph = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, 3), "uint8")])
    for image in (photo(90, 130), photo(131, 64), noise(51, 47, 3)):
        result = graph(image[None]).numpy()
        assert result.shape == (1, *size, 3)
        known = np.abs(result - run(layer, image[None]))
        assert known.max() <= 1.001  # a value half-way between two levels may fall to the other side
        assert (known > 0.5).mean() <= 0.02


def test_inside_a_model_that_is_saved(tmp_path):
    pixels = keras.Input((None, None, 3), dtype="uint8")
    model = keras.Model(pixels, Preprocess(IMAGENET, image_size=(24, 32))(pixels))
    assert model.output_shape == (None, 24, 32, 3)
    images = noise(2, 40, 50, 3)
    expected = model.predict(images, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(images, verbose=0), expected)
    assert again.layers[-1].preprocessing == IMAGENET.replace(image_size=(24, 32))
    np.testing.assert_allclose(expected, IMAGENET(images, image_size=(24, 32)), atol=1 / 255 / 0.224 + 1e-5)  # 1 level


@pytest.mark.compiles_long
@pytest.mark.core
def test_gray_and_color():
    color, gray = noise(2, 20, 30, 3), noise(2, 20, 30, 1)
    color[:, 0, 0] = 0, 0, 250  # half a level, which XLA's division by 1000 misses
    settings = Preprocessing(image_size=16, channels=1)
    assert settings.mean == (0.5,)
    small = color[:, :16, :16]
    luminance = np.rint((small @ np.array([299, 587, 114]) + 0.25) / 1000)[..., None] / 127.5 - 1  # as in a dataset
    for found in (settings(small), run(Preprocess(settings), small)):
        np.testing.assert_allclose(found, luminance, atol=1e-6)
    np.testing.assert_allclose(run(Preprocess(settings), color), settings(color), atol=0.0080)  # 1 level
    np.testing.assert_allclose(run(Preprocess(settings), gray), settings(gray), atol=0.0080)
    np.testing.assert_allclose(run(Preprocess(GOOGLE, 16), gray), GOOGLE(gray, 16), atol=0.0080)
    assert IMAGENET.replace(channels=1).mean == (pytest.approx(0.449),)


# ---------------------------------------------------------------------------------------------- what is taken


def test_whatever_read_reads(tmp_path):
    image = noise(20, 30, 3)
    path = tmp_path / "image.png"
    Image.fromarray(image).save(path)
    expected = GOOGLE(image, image_size=16)
    assert expected.shape == (1, 16, 16, 3)
    for way in (
        path,
        str(path),
        Image.fromarray(image),
        path.read_bytes(),
        [path],
        image[None],
        (image,),
        np.array([str(path)]),
    ):
        np.testing.assert_array_equal(GOOGLE(way, image_size=16), expected)
    for way in (ops.convert_to_tensor(image[None]), [ops.convert_to_tensor(image)], np.str_(path), np.array([path])):
        np.testing.assert_array_equal(GOOGLE(way, image_size=16), expected)
    assert GOOGLE([path, Image.new("RGB", (9, 7))], image_size=16).shape == (2, 16, 16, 3)
    assert GOOGLE(image[..., 0], image_size=16).shape == (1, 16, 16, 3)


@pytest.mark.only_on("tensorflow", reason="tf.data needs TensorFlow")
def test_inside_tf_data():
    import tensorflow as tf

    images = tf.data.Dataset.from_tensors(noise(20, 30, 3))
    expected = IMAGENET.normalize(noise(20, 30, 3))
    np.testing.assert_allclose(next(iter(images.map(IMAGENET.normalize))), expected, atol=1e-6)
    with pytest.raises(TypeError, match="vit_keras.*preprocessing_layer"):
        images.map(IMAGENET)


def test_without_a_size_pictures_keep_their_own():
    assert GOOGLE(noise(20, 30, 3)).shape == (1, 20, 30, 3)
    assert run(Preprocess(GOOGLE), noise(1, 20, 30, 3)).shape == (1, 20, 30, 3)
    with pytest.raises(ValueError, match=r"\(20, 30\), \(30, 20\).*image_size="):
        GOOGLE([noise(20, 30, 3), noise(30, 20, 3)])


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ValueError, match="images"):
        GOOGLE([], image_size=16)
    with pytest.raises(FileNotFoundError, match="nothing.png"):
        GOOGLE(tmp_path / "nothing.png", image_size=16)
    with pytest.raises(TypeError, match="image"):
        GOOGLE(3, image_size=16)
    with pytest.raises(ValueError, match="image_size"):
        GOOGLE(noise(20, 30, 3), image_size="big")
    with pytest.raises(TypeError, match="5 channels.*1 or 3"):
        Preprocessing(channels=5)(noise(20, 30, 3))
    with pytest.raises(ValueError, match="must have 3 channels"):
        GOOGLE.normalize(np.zeros((4, 4, 2)))
    for call in (GOOGLE, GOOGLE.normalize, Preprocess(GOOGLE)):
        with pytest.raises(ValueError, match="channels"):
            call(np.zeros((1, 3, 16, 16), "uint8"))
    with pytest.raises(ValueError, match="with 3 channels"):
        Preprocess(GOOGLE)(np.zeros((1, 4, 4, 2), "uint8"))
    with pytest.raises(TypeError, match="Preprocessing or a dict"):
        Preprocess("google")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (0.5, 0.5)}, "mean .* 3 channels"),
        ({"mean": "grey"}, "mean must be"),
        ({"std": 0.0}, "std must be positive"),
        ({"std": float("nan")}, "std must be a number"),
        ({"interpolation": "cubic"}, "interpolation must be one of 'bilinear'"),
        ({"crop": 1.5}, "crop must be None or the fraction"),
        ({"crop": "most"}, "crop must be None or the fraction"),
        ({"crop_mode": "border"}, "crop_mode must be"),
        ({"image_size": 0}, "image_size"),
        ({"channels": True}, "channels must be"),
        ({"chanels": 3}, "chanels.*'channels'"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing.from_dict(options)
    with pytest.raises(ValueError, match=message):
        GOOGLE.replace(**options)


# ---------------------------------------------------------------------------------------------- others' files


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"do_resize": True, "size": {"height": 224, "width": 224}, "resample": 2, "image_mean": [0.5] * 3},
            PRESETS["hugging-face"].replace(image_size=224),
        ),
        ({"size": 224, "resample": 2}, PRESETS["hugging-face"].replace(image_size=224)),
        (
            {
                "size": {"shortest_edge": 224},
                "do_center_crop": True,
                "crop_size": {"height": 224, "width": 224},
                "resample": 3,
                "image_mean": [0.48145466, 0.4578275, 0.40821073],
                "image_std": [0.26862954, 0.26130258, 0.27577711],
            },
            PRESETS["clip"].replace(image_size=224),
        ),
        (
            {
                "feature_extractor_type": "CLIPFeatureExtractor",
                "size": 224,
                "do_center_crop": True,
                "crop_size": 224,
                "resample": 3,
            },
            Preprocessing(image_size=224, interpolation="bicubic", crop=1.0),
        ),
        (
            {"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224, "resample": 3},
            Preprocessing(image_size=224, interpolation="bicubic", crop=0.875, crop_mode="squash"),
        ),
        ({"do_resize": False, "do_normalize": False}, PRESETS["hugging-face"].replace(mean=0.0, std=1.0)),
        ({"size": 224, "do_center_crop": True, "crop_size": 224}, PRESETS["hugging-face"].replace(image_size=224)),
    ],
)
def test_hugging_face(config, expected):
    assert Preprocessing.from_hugging_face(config) == expected


def test_a_shortest_edge_becomes_a_fraction_and_an_edge_again():
    for edge in range(224, 300):
        config = {"size": {"shortest_edge": edge}, "do_center_crop": True, "crop_size": 224}
        settings = Preprocessing.from_hugging_face(config)
        assert min(settings.geometry((600, 800), (224, 224))[0]) == edge


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"resample": 5}, "resample=5"),
        ({"size": {"longest_edge": 224}}, "a height and a width"),
        ({"size": None}, "a height and a width.*None"),
        ({"do_center_crop": True, "crop_size": None}, "crop_size must be.*None"),
        ({"image_mean": None}, "image_mean must be a number.*None"),
        ({"rescale_factor": None}, "rescale_factor must be a number.*None"),
        ({"rescale_factor": [0.1]}, "rescale_factor must be a number"),
        ({"image_std": [1, [2]]}, "image_std must be a number"),
        ({"size": {"shortest_edge": 224}}, "would keep several sizes"),
        ({"do_resize": False, "do_center_crop": True}, "crop without a resize"),
        ({"size": {"shortest_edge": 200}, "do_center_crop": True, "crop_size": 224}, "square inside a square"),
        ({"size": 224, "do_center_crop": True, "crop_size": {"longest_edge": 2}}, "crop_size must be"),
    ],
)
def test_hugging_face_what_cannot_be_done(config, message):
    with pytest.raises(ValueError, match=message):
        Preprocessing.from_hugging_face(config)


def test_timm():
    config = {
        "input_size": [3, 224, 224],
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
    }
    assert Preprocessing.from_timm(config) == PRESETS["timm"].replace(image_size=224)
    assert Preprocessing.from_timm({"architecture": "vit", "pretrained_cfg": config}) == Preprocessing.from_timm(config)
    squashed = Preprocessing.from_timm({**config, "crop_mode": "squash", "crop_pct": 1.0})
    assert squashed == PRESETS["siglip"].replace(image_size=224)
    default = Preprocessing.from_timm({})
    assert (default.interpolation, default.crop, default.image_size) == ("bilinear_antialias", 0.875, (224, 224))
    assert default == PRESETS["torchvision"].replace(image_size=224)
    with pytest.raises(ValueError, match="border"):
        Preprocessing.from_timm({**config, "crop_mode": "border"})
    with pytest.raises(ValueError, match="hamming"):
        Preprocessing.from_timm({**config, "interpolation": "hamming"})

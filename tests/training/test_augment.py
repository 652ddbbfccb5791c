"""Augmentation: what is random stays in its bounds, follows from the seed alone, and labels follow the images."""

import dataclasses
import json

import keras
import numpy as np
import pytest

from vit_keras.training.data.augment import Augmentation

PLAIN = {"crop": None, "flip": False}


@pytest.fixture
def photos():
    return np.random.default_rng(0).integers(0, 256, (6, 24, 32, 3), "uint8")


def augmented(augmentation, photos, labels=None, seed=0):
    """Return a batch as a dataset augments it: each image by random numbers of its own, then all together."""
    *rngs, rest = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(len(photos) + 1))
    images = [augmentation.augment_image(each, photos.shape[1:3], rng) for each, rng in zip(photos, rngs)]
    return augmentation.augment_batch(np.stack(images), labels, rest)


def test_crops_stay_inside_and_have_the_area_and_shape_asked_for():
    augmentation, rng = Augmentation(crop=0.2), np.random.default_rng(0)
    left, top, right, bottom = np.array([augmentation._window(0.2, 60, 80, rng) for _ in range(500)]).T
    area, aspect = (right - left) * (bottom - top) / 4800, (right - left) / (bottom - top)
    assert min(left.min(), top.min()) >= 0 and right.max() <= 80 and bottom.max() <= 60
    assert 0.2 <= area.min() < 0.25 and 0.9 < area.max() <= 1 + 1e-9
    assert 0.75 <= aspect.min() < 0.8 and 1.25 < aspect.max() <= 4 / 3 + 1e-9


def test_a_crop_shows_a_part_enlarged():
    ramp = np.broadcast_to(np.arange(0, 256, 4, dtype="uint8")[None, :, None], (64, 64, 3))
    seen, _ = augmented(Augmentation(crop=0.1, flip=False), ramp[None].repeat(50, 0), seed=1)
    slopes = np.diff(seen.mean((1, 3)), axis=1)[:, 8:-8].mean(1)  # grey levels a column: 4 of the whole image
    assert (slopes <= 4.01).all() and slopes.min() < 2 and (slopes > 1).all()


def test_half_of_the_images_are_flipped(photos):
    many = photos[:1].repeat(400, 0)
    seen, _ = augmented(Augmentation(crop=None), many)
    flipped = (seen == many[:, :, ::-1]).all((1, 2, 3))
    assert 160 < flipped.sum() < 240  # 200 ± 4 standard deviations
    np.testing.assert_array_equal(seen[~flipped], many[~flipped])


@pytest.mark.parametrize("options", [{}, {"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
@pytest.mark.core
def test_everything_follows_from_the_seed(photos, options):
    labels = np.eye(6, dtype="float32")
    augmentation = Augmentation(crop=0.3, three_augment=True, **options)
    state = np.random.get_state()[1].copy()
    first, again, other = (augmented(augmentation, photos, labels, seed) for seed in (5, 5, 6))
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
    assert np.abs(first[0] - other[0]).max() > 50
    assert first[0].dtype == np.float32 and first[0].shape == photos.shape
    np.testing.assert_array_equal(np.random.get_state()[1], state)


@pytest.mark.parametrize("options", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_labels_are_mixed_as_the_images_are(options):
    """Images of one grey level each, which their mean tells: it is the same mixture of levels as the label's."""
    levels = np.array([0.0, 10, 40, 90, 160, 250])
    images = np.broadcast_to(levels.astype("uint8")[:, None, None, None], (6, 16, 24, 3))
    mixed = 0
    for seed in range(8):
        seen, labels = augmented(Augmentation(**PLAIN, **options), images, np.eye(6), seed)
        np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)  # float32
        np.testing.assert_allclose(seen.mean((1, 2, 3)), labels @ levels, atol=1e-3)  # of 255: float32
        mixed += (labels.max(1) < 0.99).sum()
    assert mixed > 12  # of 48


def test_cutmix_pastes_rectangles_and_mixup_does_not(photos):
    labels = np.eye(6)
    cut, _ = augmented(Augmentation(cutmix=1.0, **PLAIN), photos, labels)
    assert all(any((pixel == p).all() for p in photos[:, 3, 4]) for pixel in cut[:, 3, 4])
    mixed, _ = augmented(Augmentation(mixup=1.0, **PLAIN), photos, labels)
    assert not all(any((pixel == p).all() for p in photos[:, 3, 4]) for pixel in mixed[:, 3, 4])


KERAS_LAYERS = {
    "RandomColorJitter": {"color_jitter": 0.4},
    "RandAugment": {"rand_augment": (2, 9)},
    "RandomErasing": {"random_erasing": 1.0},
}


@pytest.mark.parametrize("name", KERAS_LAYERS)
def test_layers_of_keras(photos, name):
    augmentation = Augmentation(**PLAIN, **KERAS_LAYERS[name])
    keras.config.set_dtype_policy("mixed_float16")  # which must not reach the pixels
    try:
        first, again, other = (augmented(augmentation, photos, seed=seed)[0] for seed in (3, 3, 4))
    finally:
        keras.config.set_dtype_policy("float32")
    np.testing.assert_array_equal(first, again)
    assert not (first == other).all() and not (first == photos).all()
    assert first.dtype == np.float32 and first.min() >= 0 and first.max() <= 255
    gray, _ = augmented(augmentation, photos[..., :1], seed=3)
    assert gray.shape == (*photos.shape[:3], 1) and not (gray == photos[..., :1]).all()


def test_random_erasing_makes_noise_of_a_rectangle():
    white = np.full((40, 16, 16, 3), 255, "uint8")
    erased = (augmented(Augmentation(random_erasing=0.5, **PLAIN), white)[0] < 255).any((1, 2, 3))
    assert 8 <= erased.sum() <= 32  # 20 ± 4 standard deviations


def test_as_data():
    augmentation = Augmentation(crop=None, rand_augment=[2, 9])
    assert augmentation.rand_augment == (2, 9.0) and hash(augmentation)
    assert Augmentation(**json.loads(json.dumps(dataclasses.asdict(augmentation)))) == augmentation
    assert augmentation.replace(crop=0.1).crop == 0.1
    of_numpy = Augmentation(crop=None, rand_augment=(np.int64(2), 9), mixup=np.float32(0.5))
    assert of_numpy == augmentation.replace(mixup=0.5) and json.dumps(dataclasses.asdict(of_numpy))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"crop": 0}, "crop .*Received: 0"),
        ({"crop": "big"}, "Received: 'big'"),
        ({"flip": "no"}, "flip must be True or False. Received: 'no'"),
        ({"mixup": -1}, "mixup must be None or a number above 0"),
        ({"rand_augment": (2, 11)}, "rand_augment .*from 0 to 10"),
        ({"rand_augment": (0, 9)}, r"Received: \(0, 9\)"),
        ({"rand_augment": (float("inf"), 9)}, "rand_augment must be"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Augmentation(**options)


def test_mistakes(photos):
    with pytest.raises(ValueError, match=r"\(n, classes\).*6 images.*\(6,\)"):
        augmented(Augmentation(mixup=0.2), photos, np.arange(6))

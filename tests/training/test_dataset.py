"""Folders of pictures as datasets: the right pixels, the same batches whatever happens, and mistakes said in time."""

import functools
import os
import pickle
import random
import warnings

import keras
import numpy as np
import pytest
from PIL import Image
from support import tiny_model

from vit_keras import open_model, preprocess, vit
from vit_keras.anatomy import class_names, name_classes, task
from vit_keras.anatomy.parts import has_vit
from vit_keras.training.checks import check, class_weights
from vit_keras.training.data import decoding
from vit_keras.training.data import folder as listing
from vit_keras.training.data.augment import Augmentation
from vit_keras.training.data.dataset import image_folder
from vit_keras.training.distill import Distillation

pytestmark = pytest.mark.filterwarnings("ignore:batch_size=32, but")

CLASSES = {"ant": 7, "bee": 9, "cow": 6}
SIZE = 16
EAGER = keras.backend.backend() != "jax"  # where tracing takes longer than the few steps


def save(path, rng, size=(20, 24), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = rng.integers(0, 256, (3, 4, 3), "uint8")
    Image.fromarray(rows).resize(size[::-1], Image.Resampling.BICUBIC).save(path, **options)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in CLASSES.items():
        for n in range(count):
            save(tmp_path / "photos" / name / f"{n}.png", rng)
    return tmp_path / "photos"


small = functools.partial(tiny_model, SIZE, hidden_size=8, num_heads=1, mlp_dim=8, name="small")


def linear(loss):
    """Not a ViT, whose compilation would be most of a test; SGD has no state."""
    dense = keras.layers.Dense(3, "softmax", kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((SIZE, SIZE, 3)), keras.layers.Flatten(), dense])
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"], run_eagerly=EAGER)
    return model


def batches(data, epoch=0):
    data.epoch = epoch
    return [data[i] for i in range(len(data))]


def same(first, second):
    return all((x == u).all() and (y == v).all() for (x, y), (u, v) in zip(first, second))


def test_pixels_are_those_of_the_preprocessing(folder):
    for way in (preprocess.GOOGLE, preprocess.Preprocessing(interpolation="bicubic", crop=0.8, mean=(0.4, 0.5, 0.6))):
        data = image_folder(folder, SIZE, preprocessing=way, batch_size=5, shuffle=False)
        inputs = np.concatenate([x for x, _ in data])
        assert inputs.dtype == np.float32
        np.testing.assert_allclose(inputs, way(data.paths, SIZE), atol=1e-6)  # of values up to 1.3: float32
        np.testing.assert_array_equal(data.arrays()[0], inputs)
        np.testing.assert_array_equal(data._images.plain(3), way.denormalize(inputs[3]))


def test_what_a_dataset_knows(folder):
    data = image_folder(folder, SIZE, shuffle=False, batch_size=4)
    assert data.class_names == ("ant", "bee", "cow") and data.counts.tolist() == [7, 9, 6]
    assert [path.relative_to(folder).as_posix() for path in data.paths[6:8]] == ["ant/6.png", "bee/0.png"]
    assert len(data) == 6 and data[5][1].tolist() == [2, 2] and data.image_size == (SIZE, SIZE)
    assert data.class_weight == class_weights(data.labels)
    weight = np.array([data.class_weight[label] for label in data.labels])
    np.testing.assert_allclose(np.bincount(data.labels, weight), 22 / 3)  # all the same
    with pytest.raises(IndexError):
        data[6]


def test_the_model_says_size_and_preprocessing(folder):
    model = vit.build_model(SIZE, 8, 1, 8, 1, "grey", 8, classes=3, channels=1)
    nested = keras.Sequential([keras.Input((SIZE, SIZE, 1)), model])
    for augmentation in (None, Augmentation()):
        inputs, _ = image_folder(folder, model=nested, augmentation=augmentation)[0]
        assert inputs.shape == (22, SIZE, SIZE, 1)
    data = image_folder(folder, model=model, shuffle=False)
    np.testing.assert_allclose(data[0][0], model.preprocess(data.paths), atol=0.5 / 127.5 + 1e-6)  # half a grey level
    with pytest.raises(ValueError, match="Pass image_size="):
        image_folder(folder)


def test_names_of_classes_and_files(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("10", "9", "2/deep/deeper"):
        save(tmp_path / name / "a.JPG", rng, format="jpeg")
    for name in ("2/notes.txt", "9/Thumbs.db", "9/._a.JPG", ".DS_Store", "readme.md"):
        (tmp_path / name).write_bytes(b"no picture")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    data = image_folder(tmp_path, SIZE, shuffle=False, batch_size=3)
    assert data.class_names == ("10", "2", "9") and len(data.paths) == 3
    assert image_folder(tmp_path, SIZE, class_names=["9", "10", "2"], shuffle=False).paths[0].parent.name == "9"
    with pytest.raises(ValueError, match="folders '9'.*'10', '2'"):
        image_folder(tmp_path, SIZE, class_names=["10", "2"])
    with pytest.raises(ValueError, match="class_names"):
        image_folder(tmp_path, SIZE, class_names=["10", "2", "9", "2"])
    with pytest.raises(TypeError, match="takes 4 channels"):  # not damaged files, which can be skipped
        image_folder(tmp_path, SIZE, preprocessing=preprocess.GOOGLE.for_channels(4), errors="skip")


@pytest.mark.parametrize("augmentation", [None, Augmentation(crop=0.3), Augmentation(crop=None, mixup=0.5)])
def test_batches_are_the_same_whatever_the_threads_and_the_cache(folder, tmp_path, augmentation):
    def epoch(epoch=2, **options):
        options = {"batch_size": 5, "seed": 3, "shuffle": True, "augmentation": augmentation, "workers": 0, **options}
        return batches(image_folder(folder, SIZE, **options), epoch)

    plain = epoch()
    for options in ({"workers": 3}, {"cache": False}, {"cache": tmp_path / "cache"}, {"cache": tmp_path / "cache"}):
        assert same(plain, epoch(**options)), options
    assert not same(plain, epoch(3)) and not same(plain, epoch(seed=4))
    data = image_folder(folder, SIZE, batch_size=5, seed=3, shuffle=True, augmentation=augmentation, workers=3)
    data.epoch = 2
    assert same(plain, data)  # read ahead
    data.on_epoch_begin()  # as `fit` does before it hands the dataset to processes that are spawned
    assert same(plain, batches(pickle.loads(pickle.dumps(data)), 2))
    data.on_epoch_end()


def test_every_epoch_has_every_picture_once(folder):
    data = image_folder(folder, SIZE, batch_size=5, shuffle=True)
    plain = data.arrays()[0]
    for epoch in range(2):
        seen = np.concatenate([x for x, _ in batches(data, epoch)])
        order = [int(np.abs(plain - x).sum((1, 2, 3)).argmin()) for x in seen]
        assert sorted(order) == list(range(22)) and order != list(range(22))


def test_the_split(folder, monkeypatch):
    training, validation = image_folder(folder, SIZE, validation_split=0.3, seed=1)
    assert validation.counts.tolist() == [2, 3, 2] and training.counts.tolist() == [5, 6, 4]
    assert not set(training.paths) & set(validation.paths)
    assert training.shuffle and not validation.shuffle
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top, **how: ((p, d[::-1], f[::-1]) for p, d, f in walk(top, **how)))
    again = image_folder(folder, SIZE, validation_split=0.3, seed=1)
    assert again[0].paths == training.paths and again[1].paths == validation.paths
    assert image_folder(folder, SIZE, validation_split=0.3, seed=2)[1].paths != validation.paths


def test_links_to_folders_are_followed_once(folder, tmp_path):
    links = tmp_path / "links"
    for name in ("ant", "bee"):
        (links / name).mkdir(parents=True)
        (links / name / "more").symlink_to(folder / name)
        (links / name / "again").symlink_to(links)
    (links / "all").symlink_to(links)  # not a class
    data = image_folder(links, SIZE)
    assert data.class_names == ("ant", "bee") and data.counts.tolist() == [7, 9]
    assert len(listing.images_in(links)) == 16


def test_an_augmentation_touches_the_training_set_alone(folder):
    augmentation = Augmentation(cutmix=1.0)
    training, validation = image_folder(folder, SIZE, validation_split=0.3, augmentation=augmentation, batch_size=7)
    np.testing.assert_array_equal(validation[0][0], validation.arrays()[0])
    assert training[0][1].shape == (7, 3) and (training[0][1].max(1) < 1).any()
    assert (validation[0][1] == np.eye(3)[validation.labels]).all()  # of the same kind, for the same loss


def test_random_crops_come_from_the_larger_picture(tmp_path):
    """A gradient of 640 columns, turned by its EXIF data: a crop shows finer steps than a picture of 16 columns has."""
    ramp = np.broadcast_to(np.linspace(0, 255, 640).astype("uint8")[:, None, None], (640, 480, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90° to the right
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(ramp).save(tmp_path / name / "ramp.jpg", exif=exif, quality=95)
    data = image_folder(tmp_path, 64, augmentation=Augmentation(crop=1.0, flip=False))
    pixels = data._images[0]
    assert pixels.shape[:2] == (80, 107)  # 1.25 × 64 high, upright
    expected = np.linspace(255, 0, 107)[None, :, None]
    np.testing.assert_allclose(pixels, np.broadcast_to(expected, pixels.shape), atol=4)  # JPEG and a pixel: 2.4 levels
    plain = preprocess.GOOGLE.denormalize(preprocess.GOOGLE(data.paths[0], 64)[0])
    np.testing.assert_array_equal(data._images.plain(0), plain)  # in evaluation as always
    seen = preprocess.GOOGLE.denormalize(data[0][0][0]).astype(float)
    np.testing.assert_allclose(seen, plain, atol=6)  # the whole picture: a column is 4 levels


def test_a_part_without_an_image_is_refused(folder):
    for name, count in CLASSES.items():
        for n in range(name == "ant", count):
            (folder / name / f"{n}.png").write_bytes(b"")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="damaged"),
    ):
        image_folder(folder, SIZE, errors="skip", validation_split=0.5)


@pytest.mark.parametrize("damaged", [b"", b"P6 20000 20000 255 "])  # of the second, Pillow refuses the size
def test_damaged_pictures(folder, damaged):
    whole = (folder / "bee" / "0.png").read_bytes()
    (folder / "bee" / "2.png").write_bytes(whole[: len(whole) // 2])
    (folder / "cow" / "3.png").write_bytes(damaged)
    for options in ({}, {"cache": False}, {"validation_split": 0.5, "augmentation": Augmentation()}):
        with pytest.raises(ValueError, match=r'2 damaged: .*\d.png.*errors="skip"'):
            image_folder(folder, SIZE, **options)
    with pytest.warns(UserWarning, match="2.png.*'.*cow.3.png'") as warned:
        data = image_folder(folder, SIZE, errors="skip", shuffle=False)
    assert warned.pop(UserWarning).filename == __file__ and data.counts.tolist() == [7, 8, 5]
    np.testing.assert_allclose(data[0][0], preprocess.GOOGLE(data.paths, SIZE), atol=1e-6)  # float32
    with pytest.warns(UserWarning, match="2 damaged"):
        training, validation = image_folder(
            folder, SIZE, errors="skip", validation_split=0.5, augmentation=Augmentation()
        )
    assert len(training.paths) + len(validation.paths) == 20 and (training.counts > 0).all()
    with pytest.warns(UserWarning, match="2 damaged"):
        cached = [image_folder(folder, SIZE, errors="skip", cache=folder.parent / "cache")[0][0] for _ in range(2)]
    np.testing.assert_array_equal(*cached)


def test_the_cache_is_used_and_notices_changes(folder, tmp_path, monkeypatch):
    decoded = []
    decode = decoding.Decoder.__call__
    monkeypatch.setattr(decoding.Decoder, "__call__", lambda self, path: decoded.append(path) or decode(self, path))

    def load(**options):
        decoded.clear()
        image_folder(folder, SIZE, cache=tmp_path / "cache", **options)[0]
        return len(decoded)

    assert [load(), load(), load(augmentation=Augmentation()), load(preprocessing=preprocess.IMAGENET)] == [
        22,
        0,
        22,
        22,
    ]
    save(folder / "ant" / "0.png", np.random.default_rng(5), size=(30, 30))
    assert load() == 22
    monkeypatch.setattr(decoding, "complete", None)  # a pass that does not come to its end …
    with pytest.raises(TypeError):
        load(preprocessing=preprocess.CLIP)
    monkeypatch.undo()
    assert not [p for p in (tmp_path / "cache").iterdir() if p.suffix not in (".pixels", ".json")]


def test_no_room_for_the_cache(folder, monkeypatch):
    usage = decoding.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(decoding.shutil, "disk_usage", lambda path: usage)
    with pytest.warns(UserWarning, match="every epoch .*cache=FOLDER"):
        data = image_folder(folder, SIZE, shuffle=False)
    assert data._images.store is None and data[0][0].shape == (22, SIZE, SIZE, 3)


def test_wrong_folders(tmp_path):
    def message(**options):
        with pytest.raises(ValueError) as caught:
            image_folder(tmp_path, SIZE, **options)
        return str(caught.value)

    rng = np.random.default_rng(0)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        image_folder(tmp_path / "nowhere", SIZE)
    assert "no folders of classes" in message()
    (tmp_path / "train").mkdir()
    assert "the folders 'train', which are splits and not classes" in message()
    (tmp_path / "train").rename(tmp_path / "ant")
    assert "There is no image of 'ant'" in message(errors="skip")
    save(tmp_path / "ant" / "1.png", rng)
    assert "only one class, 'ant'" in message()
    (tmp_path / "bee").mkdir()
    assert "There is no image of 'bee'" in message() and 'errors="skip"' in message()
    save(tmp_path / "cow" / "1.png", rng)
    with pytest.warns(UserWarning, match="'bee'.*left out"):
        data = image_folder(tmp_path, SIZE, errors="skip", batch_size=2)
    assert data.class_names == ("ant", "cow")
    with pytest.warns(UserWarning, match="'bee'"):
        data = image_folder(
            tmp_path, SIZE, errors="skip", class_names=["ant", "bee", "cow"], batch_size=2, shuffle=False
        )
    assert data.class_names == ("ant", "bee", "cow") and data.labels.tolist() == [0, 2]
    (tmp_path / "bee").rmdir()
    assert "nothing to hold out" in message(validation_split=0.2)
    with pytest.warns(UserWarning, match="batch_size=32.* 2 images"):
        image_folder(tmp_path, SIZE, shuffle=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size .*Received: 0"),
        ({"workers": -1}, "workers must be an integer of at least 0"),
        ({"validation_split": 20}, "validation_split.*Received: 20"),
        ({"errors": "ignore"}, "errors .*'raise', 'skip'.*'ignore'"),
    ],
)
def test_wrong_arguments(folder, options, message):
    with pytest.raises(ValueError, match=message):
        image_folder(folder, SIZE, **options)


@pytest.mark.core
def test_fit_evaluate_and_predict(folder):
    model = linear("sparse_categorical_crossentropy")
    options = {"validation_split": 0.3, "augmentation": Augmentation(), "batch_size": 5}
    training, validation = image_folder(folder, SIZE, **options)
    history = model.fit(training, validation_data=validation, epochs=2, callbacks=training.callbacks, verbose=0)
    assert set(history.history) >= {"loss", "val_accuracy"} and training.epoch == 2
    mixed = image_folder(folder, SIZE, batch_size=11)  # shuffled once, so that these are in one order
    assert len(set(mixed[0][1])) == 3
    predicted = model.predict(mixed, verbose=0)
    np.testing.assert_allclose(
        predicted, model.predict(mixed.arrays()[0], verbose=0), atol=1e-5
    )  # float32, other batches
    accuracy = (predicted.argmax(-1) == mixed.labels).mean()
    assert model.evaluate(mixed, verbose=0)[1] == pytest.approx(accuracy, abs=1e-6)  # float32


@pytest.mark.core
@pytest.mark.parametrize("told", [True, False])
def test_steps_below_an_epoch_go_on_to_other_images(folder, told, monkeypatch):
    data, served = image_folder(folder, SIZE, batch_size=2, shuffle=True, workers=0), []
    batch = type(data)._batch
    monkeypatch.setattr(type(data), "_batch", lambda self, *at: served.append(at) or batch(self, *at))
    model, callbacks = linear("sparse_categorical_crossentropy"), data.callbacks if told else []
    for first in (0, 2):
        model.fit(data, steps_per_epoch=3, epochs=first + 2, initial_epoch=first, verbose=0, callbacks=callbacks)
    assert {epoch for epoch, _ in served} >= {0, 1, 2, 3}


@pytest.mark.core
@pytest.mark.compiles_long
def test_a_run_continued_is_the_run_uninterrupted(folder, tmp_path):
    """Though Python's random numbers, with which Keras shuffles, are others each time."""

    def run(path=None, workers=2, **options):
        random.seed(os.urandom(8))
        data = image_folder(folder, SIZE, augmentation=Augmentation(mixup=0.5), batch_size=2, workers=workers)
        model = linear("categorical_crossentropy")
        if path:
            model.load_weights(path)
        model.fit(data, callbacks=data.callbacks, verbose=0, **options)
        return model

    whole = run(epochs=2)
    run(epochs=1, workers=0).save_weights(tmp_path / "1.weights.h5")
    continued = run(tmp_path / "1.weights.h5", initial_epoch=1, epochs=2, workers=3)
    for a, b in zip(whole.get_weights(), continued.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)  # float32: a backend's threads may add up in another order


def test_a_picture_that_vanishes_stops_the_run(folder):
    data = image_folder(folder, SIZE, cache=False, shuffle=False)
    kept = image_folder(folder, SIZE, cache=True, shuffle=False)
    np.testing.assert_array_equal(data[0][0], kept[0][0])
    with pytest.raises(TypeError, match="cache .*Received: 3"):
        image_folder(folder, SIZE, cache=3)
    data.paths[0].unlink()
    with pytest.raises(FileNotFoundError, match="0.png"):
        next(iter(data))


@pytest.mark.parametrize(("labels", "expected"), [([0, 0, 0, 1], {0: 2 / 3, 1: 2.0}), (np.eye(2), {0: 1.0, 1: 1.0})])
def test_class_weights(labels, expected):
    assert class_weights(labels) == pytest.approx(expected)
    assert class_weights(np.array([[3], [3]])) == {3: 1.0}
    for wrong in ([0.5, 1], [-1, 2], [], np.zeros((2, 2, 2))):
        with pytest.raises(ValueError, match="abels must be"):
            class_weights(wrong)


AROUND = {
    "no head": lambda: keras.Sequential([small(include_top=False), keras.layers.Dense(3, name="new")]),
    "a head": lambda: keras.Sequential([small(classes=5), keras.layers.Dense(3, name="new")]),
    "tensors": lambda: keras.Model(
        (inner := small(classes=5)).input, keras.layers.Dense(3, name="new")(inner.layers[-2].output)
    ),
}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize(("kind", "suffix"), [*((kind, ".keras") for kind in AROUND), ("no head", ".h5")])
def test_names_and_task_of_a_model_of_keras_around_a_vit_are_saved(kind, suffix, tmp_path):
    model, names = AROUND[kind](), ("ant", "bee", "cow")
    assert name_classes(model, names, "multi")
    path = tmp_path / f"model{suffix}"
    model.save(path)
    for _ in range(2):
        opened = open_model(path)
        new = keras.layers.Dense(3)(opened.get_layer("new").input)
        again = keras.Model(opened.inputs, new, name=opened.name)  # a head that nobody has trained
        assert [(task(each), class_names(each)) for each in (again, opened)] == [("single", None), ("multi", names)]
        opened.save(path)


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: Distillation(model, small()), lambda _: None])
def test_a_model_that_is_trained_gets_the_names_of_what_it_learns(folder, wrap):
    data, learner = image_folder(folder, SIZE), small()
    learner.labels = ("cat", "dog", "mouse")  # of the classes before
    model = wrap(learner) or linear("sparse_categorical_crossentropy")
    for data.task in ("single", "multi"):
        for callback in data.callbacks:
            callback.set_model(model)
            callback.on_train_begin()
        if has_vit(model):
            assert (learner.labels, learner.task) == (("ant", "bee", "cow"), data.task)
    assert has_vit(model) or not hasattr(model, "labels")


@pytest.fixture(scope="module")
def model():
    return small()


def quiet(model, data, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        check(model, data, **options)


PIXELS = np.random.default_rng(0).uniform(-1, 1, (20, SIZE, SIZE, 3)).astype("float32")
LABELS = np.arange(20) % 3


def test_good_data_passes(folder, model):
    quiet(model, (PIXELS, LABELS), loss="sparse_categorical_crossentropy")
    quiet(model, (PIXELS, np.eye(3)[LABELS]), loss=keras.losses.CategoricalCrossentropy())
    quiet(model, PIXELS)
    quiet(model, image_folder(folder, model=model, augmentation=Augmentation(), batch_size=8))
    headless = vit.build_model(SIZE, 8, 1, 8, 1, "two", 8, classes=2, include_top=False)
    pair = keras.Model(headless.input, [keras.layers.Dense(2)(headless.output), keras.layers.Dense(1)(headless.output)])
    quiet(pair, (PIXELS, [LABELS, LABELS]))
    regression = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    quiet(regression, (np.zeros((20, 4)), np.linspace(-3, 4, 20)), loss="mean_squared_error")
    quiet(regression, (np.zeros((20, 4)), np.linspace(0, 1, 20)))


@pytest.mark.parametrize(
    ("pixels", "found"),
    [(PIXELS * 127.5 + 127.5, "from 0.* to 255"), (PIXELS / 2 + 0.5, "to 1"), (PIXELS * 0.3 + 0.4, "to 0.7")],
)
def test_pixels_in_another_range(model, pixels, found):
    with pytest.warns(UserWarning, match=f"{found}.*from -1 to 1.*Normalize"):
        check(model, (pixels, LABELS))


def served(model, *before, size=None):
    """The model behind layers of its own preprocessing."""
    return keras.Sequential([keras.Input((size, size, 3)), *before, model])


CROPPED = preprocess.CLIP.replace(crop=0.8)
READY = {  # layers before the ViT, the size of the model's input, and the size and kind of what it is to be given
    "rescaling": (lambda: [keras.layers.Rescaling(1 / 127.5, -1)], SIZE, 16, "pixels"),
    "augmentation": (lambda: [keras.layers.RandomFlip()], SIZE, 16, "normalized"),
    "preprocess of one size": (lambda: [preprocess.Preprocess(preprocess.CLIP)], SIZE, 16, "pixels"),
    "preprocess of any size": (lambda: [preprocess.Preprocess(preprocess.CLIP, SIZE)], None, 16, "pixels"),
    "crop of any size": (lambda: [preprocess.Preprocess(CROPPED, SIZE)], None, 20, "pixels"),
    "resizing": (lambda: [keras.layers.Resizing(SIZE, SIZE), keras.layers.Rescaling(1 / 255)], None, 16, "pixels"),
}


@pytest.mark.parametrize("kind", READY)
def test_a_model_gets_the_inputs_that_it_takes(folder, kind):
    """Pixels if it normalizes them, in the size that its own resizing leaves as it is."""
    before, input_size, size, taken = READY[kind]
    inner = small()
    if kind == "resizing":
        inner.preprocessing = preprocess.Preprocessing(mean=0.0, std=1.0)
    elif kind != "rescaling":
        inner.preprocessing = preprocess.CLIP
    model = served(inner, *before(), size=input_size)
    data = image_folder(folder, model=model, shuffle=False, batch_size=22)
    inputs, labels = data[0]
    assert data.image_size == (size, size)
    pixels = np.stack([data._images.plain(n) for n in range(22)]).astype("float32")
    expected = pixels if taken == "pixels" else preprocess.CLIP.normalize(pixels)
    np.testing.assert_allclose(inputs, expected, atol=1e-4)
    quiet(model, (inputs, labels))
    wrong = inputs / 255 - 0.5 if taken == "pixels" else pixels
    remedy = "give it pixels in" if taken == "pixels" else "Normalize pixels"
    with pytest.warns(UserWarning, match=remedy):
        check(model, (wrong, labels))


def test_other_preprocessing():
    model = small()
    model.preprocessing = preprocess.Preprocessing(mean=preprocess.IMAGENET.mean, std=preprocess.IMAGENET.std)
    pixels = np.concatenate([PIXELS, np.full_like(PIXELS[:1], 1), np.full_like(PIXELS[:1], -1)])
    quiet(model, model.preprocessing.normalize(pixels * 127.5 + 127.5))
    with pytest.warns(UserWarning, match="from -1 to 1.*from -2.12 to 2.64"):
        check(model, pixels)
    with pytest.raises(ValueError, match="not finite"):
        check(model, PIXELS * np.inf)


@pytest.mark.parametrize(
    ("labels", "loss", "message"),
    [
        (np.array(["cat", "dog"])[LABELS % 2], None, "Labels must be numbers. Received: <U3"),
        (LABELS + 1, None, "3 outputs .*from 0 to 2.*from 1 to 3"),
        (LABELS - 1, None, "from -1 to 1"),
        (LABELS + 0.5, None, "from 0.5 to 2.5"),
        (np.eye(3)[LABELS] * np.nan, None, "Some labels are not finite"),
        (np.eye(4)[LABELS], None, r"\(20, 4\) .* 3 outputs"),
        (np.eye(3)[LABELS], "sparse_categorical_crossentropy", "takes class numbers. Received: one-hot"),
        (LABELS, keras.losses.CategoricalCrossentropy(), r"one-hot labels \(n, 3\).*numbers"),
    ],
)
def test_labels_that_do_not_fit(model, labels, loss, message):
    with pytest.raises(ValueError, match=message):
        check(model, (PIXELS, labels), loss=loss)


def test_one_label_for_several_vectors_does_not_fit():
    tokens = small(classes=3, include_top=False, pooling=None)
    with pytest.raises(ValueError, match=r"several vectors.*\(None, \d+, 8\)"):
        check(tokens, (PIXELS, LABELS))
    quiet(tokens, (PIXELS, LABELS), loss="mean_squared_error")


def test_labels_of_one_output():
    model = small(classes=1)
    quiet(model, (PIXELS, LABELS % 2))
    with pytest.raises(ValueError, match="from 0 to 1.*from 0 to 2"):
        check(model, (PIXELS, LABELS))


def test_unbalanced_and_unshuffled_classes(folder, model):
    many = np.repeat(PIXELS, 3, axis=0)
    labels = np.array([0, 2] * 2 + [1] * 56)
    with pytest.warns(UserWarning, match="class_weight="):
        check(model, (many, labels))
    with pytest.warns(UserWarning, match="images"):
        check(model, (many, np.repeat([0, 1], [32, 28])))


def test_a_generator_is_left_alone(model):
    stream = iter([(PIXELS, LABELS)])
    with pytest.warns(UserWarning, match="generator.*not checked"):
        check(model, stream)
    assert next(stream)[0] is PIXELS


def test_an_empty_dataset(model):
    with pytest.raises(ValueError, match="The dataset is empty"):
        check(model, [])


@pytest.mark.only_on("tensorflow", reason="tf.data needs TensorFlow")
def test_tf_data_is_checked(model):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((PIXELS, LABELS)).batch(8)
    quiet(model, data)
    with pytest.raises(ValueError, match="from 1 to 3"):
        check(model, data.map(lambda x, y: (x, y + 1)))
    with pytest.raises(ValueError, match="dataset"):
        check(model, data.unbatch())
    around = keras.Sequential([keras.Input(model.input_shape[1:]), model])
    with pytest.raises(ValueError, match="dataset"):
        check(around, data.map(lambda x, y: (x, tf.one_hot(y, 3))).unbatch())
    with pytest.raises(TypeError, match="dataset"):
        check(model, data.map(lambda x, y: {"image": x, "label": y}))
    quiet(model, data.map(lambda x, y: ({model.inputs[0].name: x}, y)))
    with pytest.raises(ValueError, match="channels come first"):
        check(model, data.map(lambda x, y: (tf.transpose(x, (0, 3, 1, 2)), y)))
    ragged = tf.ragged.stack([PIXELS[0], PIXELS[1, 1:]])
    for use in (model, lambda images: check(model, (images, LABELS[:2]))):
        with pytest.raises(TypeError, match="RaggedTensor"):
            use(ragged)


@pytest.mark.core
@pytest.mark.only_on("torch", reason="DataLoader needs PyTorch")
def test_a_dataloader_is_checked(model):
    import torch

    data = torch.utils.data.TensorDataset(torch.tensor(PIXELS), torch.tensor(LABELS + 1))
    with pytest.raises(ValueError, match="from 1 to 3"):
        check(model, torch.utils.data.DataLoader(data, batch_size=20))


@pytest.mark.parametrize("hidden", [".git", ".ipynb_checkpoints", "__MACOSX"])
@pytest.mark.parametrize("place", [".", "ant", "ant/more"])
def test_hidden_folders_are_skipped(hidden, place, folder):
    before = listing.images_in(folder)
    save(folder / place / hidden / "deep" / "x.png", np.random.default_rng(0))
    assert listing.images_in(folder) == before
    assert listing.images_in(folder / place / hidden)  # the given folder itself may be hidden

"""One image as a model takes it, and a model in the workers of an engine: in any process, and every row."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from support import ROOT, tiny_model

from vit_keras import training, vit
from vit_keras.preprocess import GOOGLE, Preprocessing

CROPS = training.Augmentation(crop=0.3, three_augment=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten small images, and a file that is none."""
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for n in range(10):
        pixels = Image.fromarray(rng.integers(0, 256, (6, 8, 3), "uint8"))
        pixels.resize((64, 48), Image.Resampling.BICUBIC).save(folder / f"{n}.jpg")
    (folder / "broken.jpg").write_bytes(b"this is no image")
    return folder


@pytest.fixture(scope="module")
def tiny():
    model = tiny_model(scale=0.3)
    model.preprocessing = Preprocessing(image_size=32, mean=0.4, std=0.3, crop=0.9, interpolation="bicubic")
    return model


@pytest.fixture
def one_thread():
    """PyTorch on one thread: several share a product between them, which may round otherwise from row to row."""
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(threads)


def test_without_augmentation_it_is_what_the_model_takes(folder, tiny):
    prepared, path = training.sample(tiny), folder / "0.jpg"
    np.testing.assert_array_equal(prepared(path.read_bytes()), tiny.preprocess(path)[0])
    np.testing.assert_array_equal(prepared(str(path), np.random.default_rng(0)), tiny.preprocess(path)[0])


def test_the_seed_decides_what_is_drawn(folder, tiny):
    prepared, content = training.sample(tiny, CROPS), (folder / "0.jpg").read_bytes()
    first = prepared(content, 7)
    assert first.dtype == np.float32 and first.shape == (32, 32, 3)
    np.testing.assert_array_equal(prepared(folder / "0.jpg", np.random.default_rng(7)), first)
    assert np.abs(prepared(content, 8) - first).max() > 0.1
    assert GOOGLE.range_warning((first * 0.3 + 0.4) * 2 - 1) is None
    with pytest.raises(ValueError, match="needs rng"):
        prepared(content)


def test_it_draws_what_a_folder_of_images_draws(folder, tiny, tmp_path):
    for n in range(2):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "image.jpg").write_bytes((folder / f"{n}.jpg").read_bytes())
    data = training.image_folder(tmp_path, model=tiny, augmentation=CROPS, batch_size=2, shuffle=False, progress=False)
    ((images, _),) = data
    prepared = training.sample(tiny, CROPS)
    for n, path in enumerate(data.paths):
        drawn = prepared(path, np.random.default_rng([data.seed, 0, 1, n]))  # as `ImageFolder` seeds it
        np.testing.assert_allclose(drawn, images[n], atol=1e-6)


def test_another_process_gives_the_same_without_a_backend(folder, tiny, tmp_path):
    (tmp_path / "sample.pickle").write_bytes(pickle.dumps(training.sample(tiny, CROPS)))
    program = (
        "import pickle, sys, numpy as np\n"
        "sample = pickle.load(open('sample.pickle', 'rb'))\n"
        "np.save('drawn.npy', sample(open(sys.argv[1], 'rb').read(), 3))\n"
        "print(sorted({'keras', 'tensorflow', 'jax', 'torch'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}", folder / "1.jpg"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    np.testing.assert_array_equal(np.load(tmp_path / "drawn.npy"), training.sample(tiny, CROPS)(folder / "1.jpg", 3))


def test_what_needs_a_batch_is_refused(tiny):
    with pytest.raises(ValueError, match="random_erasing, mixup:"):
        training.sample(tiny, training.Augmentation(random_erasing=0.1, mixup=0.2))
    with pytest.raises(ValueError, match="Pass image_size"):
        training.sample()


@pytest.mark.any_backend
def test_every_row_comes_back_in_its_place(folder, tiny):
    paths = np.array([str(folder / name) for name in ("3.jpg", "broken.jpg", "1.jpg", "nothing.jpg", "2.jpg")])
    some = np.array([(folder / "3.jpg").read_bytes(), None], object)
    missing = training.Embedder(tiny, batch_size=2)({"bytes": some})
    assert missing["error"][0] == "" != missing["error"][1] and np.isnan(missing["features"][1]).all()
    rows = training.Embedder(tiny, batch_size=2)({"path": paths, "number": np.arange(5)})
    assert [*rows] == ["path", "number", "features", "error"]
    assert [bool(error) for error in rows["error"]] == [False, True, False, True, False]
    assert np.isnan(rows["features"][[1, 3]]).all()
    expected = training.embed(tiny, [*paths[[0, 2, 4]]], progress=False)
    np.testing.assert_allclose(rows["features"][[0, 2, 4]], expected, atol=1e-5)


@pytest.mark.any_backend
def test_features_do_not_depend_on_the_batch(folder, tiny, one_thread):
    contents = np.array([(folder / f"{n}.jpg").read_bytes() for n in range(10)], dtype=object)
    embedder, sizes = training.Embedder(tiny, batch_size=4), []
    run = embedder._run
    embedder._run = lambda images: sizes.append(len(images)) or run(images)
    together = embedder({"bytes": contents})
    assert [*together] == ["features", "error"]
    alone = [embedder({"bytes": contents[n : n + 1]})["features"][0] for n in range(10)]
    assert np.stack(alone).tobytes() == together["features"].tobytes()
    assert sizes == [4] * 13
    first, second = (training.Embedder("vit_cifar10", batch_size=4) for _ in range(2))  # two workers
    found = [first({"bytes": contents})["features"], second({"bytes": contents[::-1]})["features"][::-1]]
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.any_backend
def test_predictions(folder, tiny):
    paths = np.array([str(folder / f"{n}.jpg") for n in range(3)])
    rows = training.Embedder(tiny, "predictions")({"path": paths})
    np.testing.assert_allclose(rows["predictions"], tiny.predict(tiny.preprocess([*paths]), verbose=0), atol=1e-5)
    nothing = training.Embedder(tiny, "predictions")({"bytes": np.array([b"", b"x"], dtype=object)})
    assert nothing["predictions"].shape == (2, 3) and all(nothing["error"])


def test_an_embedder_refuses_what_it_cannot_do(tiny):
    with pytest.raises(ValueError, match="outputs"):
        training.Embedder(tiny, "logits")
    with pytest.raises(ValueError, match="batch_size"):
        training.Embedder(tiny, batch_size=0)
    any_size = vit.build_model(None, 8, 1, 16, 2, "any", 32, classes=3, position_grid=(4, 4))
    with pytest.raises(ValueError, match="pass image_size"):
        training.Embedder(any_size)
    rows = training.Embedder(any_size, image_size=40)({"bytes": np.array([b""], dtype=object)})
    assert rows["features"].shape == (1, 16)

"""Features are the same whatever the images come from, are computed once, and a probe of them is the optimum."""

import functools
import os

import keras
import numpy as np
import pytest
from PIL import Image
from support import tiny_model

import vit_keras
from vit_keras import feature_maps
from vit_keras.training.embeddings import Probe, cache, embed, features, knn, linear_probe, ridge_probe, writers

# Passes of the same float32 model over batches that were cut elsewhere; features are about 1.
SAME = {"atol": 1e-5, "rtol": 1e-5}


make = functools.partial(tiny_model, image_size=16, mlp_dim=16, scale=0.3)


def photos(count=10):
    return np.random.default_rng(1).integers(0, 256, (count, 16, 16, 3), "uint8")


def clouds(count=300, classes=3, width=8, spread=1.0):
    """Features of classes that overlap, of unlike scales and far from zero."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % classes
    found = random.normal(size=(classes, width))[labels] + spread * random.normal(size=(count, width))
    return (found * np.geomspace(0.01, 100, width) + 3).astype("float32"), labels


class Batches(keras.utils.PyDataset):
    """Batches of four, of what the model takes, with labels."""

    def __init__(self, images, labels):
        super().__init__()
        self.images, self.labels = images, labels

    def __len__(self):
        return -(-len(self.images) // 4)

    def __getitem__(self, n):
        return self.images[4 * n : 4 * n + 4], self.labels[4 * n : 4 * n + 4]


class Folder:
    """What an `ImageFolder` has."""

    def __init__(self, paths, labels):
        self.paths, self.labels = paths, labels


@pytest.fixture(scope="module")
def model():
    return make()


@pytest.fixture
def folder(tmp_path):
    """Ten images in two folders, and two files that are none."""
    for n, pixels in enumerate(photos()):
        path = tmp_path / "photos" / ("cat", "dog")[n // 5] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (tmp_path / "photos" / "notes.txt").write_text("none")
    (tmp_path / "photos" / ".hidden.png").write_text("none")
    return tmp_path / "photos"


# --- embed ------------------------------------------------------------------------------------------------------


two_heads = pytest.param({"distillation_token": True, "pooling": "token+dist"}, marks=pytest.mark.core, id="two heads")


@pytest.mark.parametrize("options", [two_heads, pytest.param({}, marks=pytest.mark.slow)])
def test_a_probe_in_the_head_is_the_probe(options):
    model, random = make(**options), np.random.default_rng(0)
    probe = Probe(random.normal(size=(16, 3)).astype("float32"), random.normal(size=3).astype("float32"), l2=1.0)
    found = embed(model, photos(5), batch_size=2, progress=False)
    assert found.shape == (5, 16)
    assert found.dtype == np.float32
    probe.apply_to(model)
    logits = model.predict(model.preprocess(photos(5)), verbose=0)
    np.testing.assert_allclose(probe.logits(found), logits, atol=1e-4)  # of values about 5, summed in another order


def test_whatever_the_images_come_from(model, folder):
    images, inputs, labels = photos(), model.preprocess(photos()), np.arange(10) % 3
    paths = sorted(folder.rglob("[0-9]*.png"))
    expected = embed(model, images, progress=False)
    same = {
        "folder": folder,
        "path as text": str(folder),
        "ImageFolder": Folder(paths, labels),
        "list of paths": paths,
        "iterator of images": (Image.fromarray(image) for image in images),
        "batch that is prepared": inputs,
        "pair of arrays": (inputs, labels),
        "batches": [inputs[:6], inputs[6:]],
        "batches of pixels": iter([(images[:6], labels[:6]), (images[6:], labels[6:])]),
        "PyDataset": Batches(inputs, labels),
        "tensors": [keras.ops.convert_to_tensor(inputs)],
    }
    for name, each in same.items():
        np.testing.assert_allclose(embed(model, each, batch_size=3, progress=False), expected, **SAME, err_msg=name)
    assert np.abs(expected[0] - expected[1]).max() > 0.01  # they are not all the same
    one = embed(model, paths[1], progress=False)
    np.testing.assert_allclose(one, expected[1:2], **SAME)


@pytest.mark.only_on("tensorflow", reason="needs TensorFlow")
def test_tf_data(model):
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices((photos(), np.arange(10))).shuffle(10, seed=0).batch(4)
    found, labels = embed(model, data, return_labels=True, progress=False)
    assert sorted(labels) == list(range(10))
    np.testing.assert_allclose(found, embed(model, photos(), progress=False)[labels], **SAME)


def test_labels_come_with_the_features(model, folder):
    paths = sorted(folder.rglob("[0-9]*.png"))

    def labels(images):
        return embed(model, images, return_labels=True, batch_size=4, progress=False)[1]

    assert list(labels(folder)) == ["cat"] * 5 + ["dog"] * 5
    assert list(labels(Folder(paths, range(10)))) == list(range(10))
    assert list(labels(Batches(model.preprocess(photos()), np.arange(10)))) == list(range(10))
    assert labels(paths) is None


def test_which_layer():
    model = make(pooling="gap", registers=2)
    images, inputs = photos(3), model.preprocess(photos(3))
    tokens = embed(model, images, layer="tokens", progress=False)
    assert tokens.shape == (3, 6, 16)
    np.testing.assert_allclose(tokens[:, 2:].mean(axis=1), embed(model, images, progress=False), **SAME)
    logits = embed(model, images, layer="head", progress=False)
    np.testing.assert_allclose(logits, model.predict(inputs, verbose=0), **SAME)
    with pytest.raises(ValueError, match="'neck'.*'tokens', .*'embedding'"):
        embed(model, images, layer="neck")
    one, two = feature_maps(model, -1), feature_maps(model, [0], prefix=True)
    np.testing.assert_allclose(embed(one, images, progress=False).reshape(3, 4, 16), tokens[:, 2:], **SAME)
    with pytest.raises(ValueError, match="has 2 outputs"):
        embed(two, images)


def test_one_vector_of_the_tokens_of_a_model_around_the_vit():
    backbone, tokens = make(pooling=None, include_top=False), keras.Input((5, 16))
    mean = keras.Model(tokens, keras.layers.GlobalAveragePooling1D()(tokens[:, 1:]))
    inner = keras.Sequential([keras.Input((16, 16, 3)), backbone, mean])
    expected = embed(backbone, photos(), progress=False)
    assert expected.shape == (10, 5, 16)
    for model in (inner, keras.Sequential([keras.Input((16, 16, 3)), inner, keras.layers.Dense(3)])):
        np.testing.assert_allclose(embed(model, photos(), progress=False), expected[:, 1:].mean(axis=1), **SAME)
    np.testing.assert_array_equal(embed(model, photos(), layer="tokens", progress=False), expected)
    cropped = keras.Sequential([keras.Input((16, 16, 3)), backbone, keras.layers.Cropping1D((1, 0))])
    growing = keras.Sequential([keras.Input((16, 16, 3)), cropped])
    assert embed(growing, photos(), progress=False).shape == expected.shape
    growing.add(keras.layers.GlobalAveragePooling1D())
    np.testing.assert_allclose(embed(growing, photos(), progress=False), expected[:, 1:].mean(axis=1), **SAME)


def test_a_headless_and_a_nested_model_and_one_of_any_size():
    headless, images = make(include_top=False), photos(3)
    expected = headless.predict(headless.preprocess(images), verbose=0)
    np.testing.assert_allclose(embed(headless, images, progress=False), expected, **SAME)
    nested = keras.Sequential(
        [keras.Input((None, None, 3)), vit_keras.preprocessing_layer(headless), headless, keras.layers.Dense(4)]
    )
    np.testing.assert_allclose(embed(nested, images, progress=False), expected, **SAME)
    kernel, bias = np.ones((16, 4), "float32"), np.arange(4, dtype="float32")
    Probe(kernel, bias, l2=1.0).apply_to(nested)
    np.testing.assert_allclose(nested.predict(images, verbose=0), expected @ kernel + bias, atol=1e-4)
    any_size = make(image_size=None, position_grid=(2, 2))
    assert embed(any_size, images, image_size=(24, 32), layer="tokens", progress=False).shape == (3, 13, 16)
    with pytest.raises(ValueError, match=r"\(8, 8\) .*\(30, 1\)"):
        embed(any_size, [np.zeros((30, 1, 3), "uint8")], progress=False)
    with pytest.raises(ValueError, match=".16, 16. .*image_size=32"):
        embed(headless, images, image_size=32)


@pytest.mark.parametrize(
    "images, error, message",
    [
        ([], ValueError, "no images"),
        ("nowhere", FileNotFoundError, "nowhere"),
        ([("a.png", 1)], TypeError, "Received as x: str"),
        ([{"x": np.zeros((2, 16, 16, 3))}], TypeError, "Received as x: dict"),
        (7, TypeError, "Received: 7"),
        (np.zeros((16, 16, 3), "uint8"), TypeError, r"Pass \[image\]"),
        (np.zeros((2, 8, 8, 3), "float32"), ValueError, r"16, 16, 3\).*\(2, 8, 8, 3\)"),
    ],
)
def test_mistakes(model, images, error, message):
    with pytest.raises(error, match=message):
        embed(model, images, progress=False)


def test_more_mistakes(model, folder, tmp_path):
    with pytest.raises(ValueError, match="batch_size"):
        embed(model, folder, batch_size=0)
    with pytest.raises(ValueError, match=r"\.npy, \.npz, \.parquet"):
        embed(model, folder, output="features.csv")
    with pytest.warns(UserWarning, match="from 0 to 255") as said:
        embed(model, photos().astype("float32"), progress=False)
    assert len([each for each in said if each.category is UserWarning]) == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images in"):
        embed(model, tmp_path / "empty")


# --- files ------------------------------------------------------------------------------------------------------


def test_files(model, folder, tmp_path):
    expected = embed(model, folder, progress=False)
    options = {"batch_size": 3, "progress": False}
    assert embed(model, folder, output=tmp_path / "f.npy", **options) == tmp_path / "f.npy"
    np.testing.assert_allclose(np.load(tmp_path / "f.npy"), expected, **SAME)
    with np.load(embed(model, folder, output=tmp_path / "f.npz", **options)) as file:
        np.testing.assert_allclose(file["features"], expected, **SAME)
        assert list(file["labels"]) == ["cat"] * 5 + ["dog"] * 5
        assert [os.path.basename(path) for path in file["paths"]] == [f"{n}.png" for n in range(10)]
    tokens = embed(model, folder, output=tmp_path / "t.npy", layer="tokens", **options)
    assert np.load(tokens, mmap_mode="r").shape == (10, 5, 16)


def test_parquet(model, folder, tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(writers, "_ROW_GROUP", 4)
    for layer in (None, "tokens"):
        path = embed(model, folder, output=tmp_path / "f.parquet", batch_size=2, layer=layer, progress=False)
        table = parquet.read_table(path).to_pydict()
        assert list(table) == ["path", "label", "features"]
        assert table["label"] == ["cat"] * 5 + ["dog"] * 5
        assert table["path"][9] == str(folder / "dog" / "9.png")
        np.testing.assert_allclose(table["features"], embed(model, folder, layer=layer, progress=False), **SAME)
        assert parquet.ParquetFile(path).num_row_groups == 3
    path = embed(model, photos(), output=tmp_path / "f.parquet", progress=False)
    assert list(parquet.read_table(path).to_pydict()) == ["features"]


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_damaged_images_are_left_out_if_that_is_asked_for(model, folder, tmp_path, batch_size):
    whole = embed(model, folder, return_labels=True, progress=False)
    for name in ("a.png", "9b.png"):
        (folder / "dog" / name).write_bytes((folder / "dog" / "9.png").read_bytes()[:60])
    options = {"errors": "skip", "batch_size": batch_size, "progress": False}
    with pytest.warns(UserWarning, match="2 damaged: .*9b.png.*a.png"):
        found, labels = embed(model, folder, return_labels=True, **options)
    np.testing.assert_allclose(found, whole[0], atol=1e-5)  # other batches, other sums
    np.testing.assert_array_equal(labels, whole[1])
    with pytest.warns(UserWarning, match="left out"):
        embed(model, folder, output=tmp_path / "seen.npz", **options)
    with np.load(tmp_path / "seen.npz") as file:
        assert len(file["paths"]) == len(file["features"]) == len(found)
        assert not any(path.endswith(("a.png", "9b.png")) for path in file["paths"])
    with pytest.raises(ValueError, match="a.png"):
        embed(model, [folder / "dog" / "a.png"], **options)
    with pytest.raises(ValueError, match="errors"):
        embed(model, folder, errors="ignore")


def test_labels_that_are_text_are_kept_as_text(model, tmp_path):
    data = [(photos(2), np.array([b"cat", b"dog"], object)), (photos(1), np.array(["owl"], object))]
    embed(model, data, output=tmp_path / "seen.npz", progress=False)
    with np.load(tmp_path / "seen.npz") as file:
        assert file["labels"].tolist() == ["cat", "dog", "owl"]
    _, numbers = embed(model, [(photos(2), np.array([1, 0], object))], return_labels=True, progress=False)
    assert numbers.tolist() == [1, 0]


def test_a_damaged_image_is_named_and_leaves_no_file(model, folder, tmp_path):
    (folder / "dog" / "damaged.png").write_bytes((folder / "dog" / "9.png").read_bytes()[:60])
    with pytest.raises(ValueError, match="damaged.png"):
        embed(model, folder, output=tmp_path / "f.npy", batch_size=2, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


# --- the cache --------------------------------------------------------------------------------------------------


@pytest.fixture
def passes(monkeypatch):
    """How often features were computed."""
    calls, compute = [], cache.embed
    monkeypatch.setattr(cache, "embed", lambda *args, **options: calls.append(args) or compute(*args, **options))
    return calls


def test_features_are_computed_once(folder, passes):
    found = features(make(), folder, progress=False)
    assert isinstance(found, np.memmap)
    np.testing.assert_allclose(found, embed(make(), folder, progress=False), **SAME)
    again = make()
    again.trainable = False
    features(again, str(folder))
    paths = sorted(folder.rglob("[0-9]*.png"))
    features(make(), paths)
    features(make(), Folder(paths, range(10)))
    assert len(passes) == 1


def test_features_are_never_out_of_date(folder, passes):
    def compute(model=None, data=folder, **options):
        """Features, which must not have been at hand."""
        before = len(passes)
        found = features(model or make(), data, progress=False, **options)
        assert len(passes) == before + 1
        return found

    expected = compute()
    assert np.abs(expected - compute(make(seed=1))).max() > 0.01
    compute(make(mlp_activation="relu"))
    compute(make(epsilon=0.1))
    other_pixels = make()
    other_pixels.preprocessing = other_pixels.preprocessing.replace(mean=0.4)
    compute(other_pixels)
    compute(layer="tokens")
    features(make(classes=5), folder)  # the weights of this seed before the head are the same
    before = len(passes)
    Image.fromarray(photos()[::-1][0]).save(folder / "cat" / "0.png")
    os.utime(folder / "cat" / "0.png", ns=(1, 1))
    assert np.abs(compute() - expected).max() > 0.01
    assert len(passes) == before + 1
    (folder / "cat" / "0.png").unlink()
    assert compute().shape == (9, 16)
    array = photos()
    compute(data=array)
    array[0, 0, 0, 0] ^= 1
    compute(data=array)


def test_what_cannot_be_known_again_is_not_kept(model):
    with pytest.raises(TypeError, match="Received: generator. embed"):
        features(model, (image for image in photos()))
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        features(model, ["nowhere.png"])


# --- probes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l2", [1e-2, *(pytest.param(l2, marks=pytest.mark.slow) for l2 in (1e-4, 1.0))])
def test_probe_is_the_optimum(l2):
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = clouds()
    standard = (x - x.mean(axis=0)) / x.std(axis=0)
    reference = linear_model.LogisticRegression(C=1 / (len(x) * l2), tol=1e-10, max_iter=10_000).fit(standard, y)
    logits = linear_probe(x, y, l2=l2).logits(x)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    # The loss is at its minimum to 1e-8, which in a valley of curvature l2 leaves sqrt(2e-8 / l2) = 0.014 at most.
    np.testing.assert_allclose(probabilities, reference.predict_proba(standard), atol=5e-3)


def test_the_weight_decay_is_chosen():
    x, y = clouds(count=90, width=60, spread=3.0)

    def loss(probe):
        logits = probe.logits(x[60:])
        return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(30), y[60:]])

    chosen = linear_probe(x[:60], y[:60])
    assert 1e-3 < chosen.l2 <= 1.0
    assert loss(linear_probe(x[:60], y[:60], l2=1e-5)) > 1.5 * loss(chosen)  # it matters here


@pytest.mark.parametrize("labels", [[[1, 1], [0, 0], [1, 0], [0, 1]], [[3.5, 1.0], [4, 2], [5, 3], [6, 4]]])
def test_several_labels_and_numbers_are_not_classes(labels):
    x = np.eye(4)
    for fit in (linear_probe, lambda x, y: knn(x, y, x, k=1)):
        with pytest.raises(ValueError, match="must be one-hot"):
            fit(x, labels)


@pytest.mark.parametrize(("count", "width"), [(90, 60), (60, 150)], ids=["more images", "more features"])
def test_ridge_probe_is_the_one_of_scikit_learn(count, width):
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = clouds(count=count, width=width, spread=3.0)
    found, standard = ridge_probe(x, y), (x - x.mean(axis=0)) / x.std(axis=0)
    decays = np.array([10.0 ** (n / 2) for n in range(-6, 7)]) * len(x)
    reference = linear_model.RidgeCV(decays).fit(standard, np.eye(3)[y])
    assert found.l2 == pytest.approx(reference.alpha_ / len(x))
    np.testing.assert_allclose(found.logits(x), reference.predict(standard), atol=1e-5)  # theirs are float64
    for targets in (np.stack([y == 0, y > 0, x[:, 0] > 0], axis=1), x[:, :1] * 100 + 7):  # labels, and numbers
        reference = linear_model.Ridge(0.1 * len(x)).fit(standard, targets.astype("float64"))
        found, wanted = ridge_probe(x, targets, l2=0.1), reference.predict(standard).reshape(targets.shape)
        np.testing.assert_allclose(found.logits(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"labels": [1, 1, 1, 1]}, "the same labels for all"),
        ({"labels": [0, 1, 2, 3], "classes": 3}, "0 … 3"),
        ({"labels": [[0, 1], [1, 0], [0, 0]]}, r"\(4, outputs\).*\(3, 2\)"),
        ({"labels": [[0], [1], [0], [np.nan]]}, "not finite"),
        ({"features": np.full((4, 2), np.nan)}, "not finite"),
        ({"l2": 0}, "l2 must be"),
    ],
)
def test_ridge_probe_refuses(change, message):
    given = {"features": np.eye(4, 2), "labels": [0, 1, 1, 0], **change}
    with pytest.raises(ValueError, match=message):
        ridge_probe(given.pop("features"), given.pop("labels"), **given)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"features": np.zeros((4, 2, 3))}, r"\(n, features\).*\(4, 2, 3\)"),
        ({"features": np.full((4, 3), np.nan)}, "not finite"),
        ({"labels": [0, 1]}, "4 integers"),
        ({"labels": ["cat", "dog", "cat", "dog"]}, "np.unique"),
        ({"labels": [0, 0, 0, 0]}, "two classes or more"),
        ({"classes": 2, "labels": [0, 1, 2, 1]}, "Labels of 2 classes must be 0 … 1"),
        ({"l2": "some"}, "l2 must be a positive number"),
        ({"l2": 0}, "l2 must be a positive number"),
    ],
)
def test_mistakes_with_probes(options, message):
    options = {"features": np.eye(4, 3), "labels": [0, 1, 0, 1], **options}
    with pytest.raises(ValueError, match=message):
        linear_probe(options.pop("features"), options.pop("labels"), **options)


def test_a_probe_that_does_not_fit_is_refused(model):
    x, y = clouds()
    with pytest.raises(ValueError, match=r"\(8, 3\).*\(16, 3\)"):
        linear_probe(x, y).apply_to(model)
    with pytest.raises(ValueError, match="Build it with classes=3"):
        linear_probe(x, y).apply_to(make(include_top=False))
    fits = Probe(np.zeros((16, 3), "float32"), np.zeros(3, "float32"), l2=1.0)
    for change in (lambda head: head.enable_lora(2), lambda head: head.quantize("int8")):
        changed = make()
        change(changed.get_layer("head"))
        with pytest.raises(ValueError, match="before the quantization"):
            fits.apply_to(changed)


def test_knn_votes_as_dino():
    x, y = clouds(count=60, spread=2.0)
    queries = clouds(count=300, spread=2.0)[0][60:]
    expected = []
    for query in queries.astype("float64"):
        similarity = x @ query / np.linalg.norm(x, axis=1) / np.linalg.norm(query)
        votes = np.zeros(3)
        for n in np.argsort(-similarity)[:7]:
            votes[y[n]] += np.exp(similarity[n] / 0.07)
        expected.append(votes.argmax())
    np.testing.assert_array_equal(knn(x, y, queries, k=7), expected)
    np.testing.assert_array_equal(knn(x, y, x, k=1), y)
    assert knn(x, y, queries[:0]).shape == (0,)
    np.testing.assert_array_equal(knn(x, y, queries, k=7, temperature=1e-4), knn(x, y, queries, k=1))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"k": 61}, "from 1 to the number of features, 60"),
        ({"temperature": 0}, "positive"),
        ({"queries": [[1.0]]}, "(m, 8)"),
    ],
)
def test_mistakes_with_knn(options, message):
    x, y = clouds(count=60)
    with pytest.raises(ValueError, match=message):
        knn(x, y, **{"queries": x, **options})

"""Evaluations and embeddings are what the model itself computes, whatever stands around its ViT."""

import functools

import keras
import numpy as np
import pytest
from PIL import Image
from support import tiny_model

import vit_keras
from vit_keras.anatomy import name_classes, predictions
from vit_keras.preprocess import CLIP
from vit_keras.training.embeddings import embed
from vit_keras.training.evaluation import evaluate

layers = keras.layers


make = functools.partial(tiny_model, patch_size=16, mlp_dim=16, scale=0.3)


def sequential(*parts, size=32):
    return keras.Sequential([keras.Input((size, size, 3)), *parts])


def operations(model):
    image = keras.Input((32, 32, 3))
    return keras.Model(image, model(image / 127.5 - 1))


def minus_one_to_one(pixels, model):
    return pixels[None] / np.float32(127.5) - 1


def as_its_own(pixels, model):
    return model.preprocess(pixels)


def with_mean_of_clip(pixels, model):
    return CLIP.replace(image_size=None, crop=None).normalize(pixels)[None]


def resized_inside(pixels, model):
    return keras.ops.convert_to_numpy(vit_keras.preprocessing_layer(model)(pixels[None].astype("float32")))


rescaling = {"scale": 1 / 127.5, "offset": -1}
# name: the model around a ViT, what reaches the ViT by hand, what the logits are multiplied by, whether of any size
MODELS = {
    "plain": (lambda m: m, as_its_own, 1, False),
    "Rescaling": (lambda m: sequential(layers.Rescaling(**rescaling), m), minus_one_to_one, 1, False),
    "Preprocess": (lambda m: sequential(vit_keras.preprocessing_layer(m), m, size=None), resized_inside, 1, True),
    "operations": (operations, minus_one_to_one, 1, False),
    "augmentation, CLIP": (lambda m: sequential(layers.RandomFlip(), m), with_mean_of_clip, 1, False),
    "nested twice": (
        lambda m: sequential(sequential(layers.RandomFlip(), layers.Rescaling(**rescaling), m), layers.Dropout(0.5)),
        minus_one_to_one,
        1,
        False,
    ),
    "Softmax last": (lambda m: sequential(m, layers.Softmax()), as_its_own, 1, False),
    "Activation last": (lambda m: sequential(m, layers.Activation("softmax")), as_its_own, 1, False),
    "logits times 3": (lambda m: sequential(m, layers.Rescaling(3.0)), as_its_own, 3, False),
}
MARKS = {"Preprocess": pytest.mark.core, "Activation last": pytest.mark.slow, "operations": pytest.mark.core}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Pictures of the model's size, and of different sizes: {whether of different sizes: (folder, pixels by path)}."""
    found, random = {}, np.random.default_rng(0)
    for any_size in (False, True):
        folder, pixels = tmp_path_factory.mktemp("photos"), {}
        for n in range(7):
            size = (32 + 5 * n, 48 - 3 * n) if any_size else (32, 32)
            path = folder / "abc"[n % 3] / f"{n}.png"
            path.parent.mkdir(exist_ok=True)
            noise = random.normal(random.integers(0, 256, 3), 40, (*size, 3))
            pixels[path] = np.clip(noise, 0, 255).astype("uint8")
            Image.fromarray(pixels[path]).save(path)
        found[any_size] = folder, pixels
    return found


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in MODELS])
@pytest.mark.compiles_long
def test_whatever_stands_around_the_vit(folders, name):
    """Exact to the rounding of float32 sums over other batches: values are about 1."""
    around, enter, scale, any_size = MODELS[name]
    inner = make()
    inner.preprocessing = CLIP.replace(image_size=32, crop=None) if "CLIP" in name else inner.preprocessing
    model, (folder, pixels) = around(inner), folders[any_size]
    head_input = keras.Model(inner.input, inner.get_layer("head").input)
    reaching = {path: enter(image, inner) for path, image in pixels.items()}
    logits = {path: scale * inner.predict(image, verbose=0)[0] for path, image in reaching.items()}
    expected = {path: np.exp(values) / np.exp(values).sum() for path, values in logits.items()}
    seen = {path: keras.ops.convert_to_numpy(head_input(image, training=False))[0] for path, image in reaching.items()}

    found = evaluate(model, folder, batch_size=3, progress=False)
    by_hand = np.array([expected[folder / path] for path in found.paths])
    np.testing.assert_allclose(found.probabilities, by_hand, atol=2e-5)
    assert by_hand.std(axis=0).max() > 0.005  # the pixels matter
    assert [found.class_names[k] for k in found.labels] == [path[0] for path in found.paths]
    in_order = np.array([seen[path] for path in sorted(seen)])
    np.testing.assert_allclose(embed(model, folder, batch_size=3, progress=False), in_order, atol=2e-5, rtol=1e-5)


def test_what_is_no_classifier(folders):
    headless, (folder, _) = make(include_top=False), folders[False]
    with pytest.raises(ValueError, match="no head.* 16 features"):
        evaluate(headless, folder)
    with pytest.raises(TypeError, match=r"images .*model\.evaluate"):
        evaluate(make(), [(np.zeros((2, 32, 32, 3)), np.zeros(2))])
    two = keras.Model(headless.input, [layers.Dense(3)(headless.output), layers.Dense(2)(headless.output)])
    with pytest.raises(ValueError, match="has 2 outputs"):
        evaluate(two, folder)
    inputs = headless.preprocess([folder / "a" / "0.png"])
    expected = headless.predict(inputs, verbose=0)
    for model in (headless, two):
        np.testing.assert_allclose(embed(model, [folder / "a" / "0.png"], progress=False), expected, atol=2e-5)


def test_errors_are_raised_unless_they_are_to_be_skipped(folders, tmp_path):
    for n, name in enumerate("abc"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (32, 32), (n, 99, 200)).save(tmp_path / name / "0.png")
    (tmp_path / "b" / "damaged.png").write_bytes((tmp_path / "b" / "0.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"damaged\.png"):
        evaluate(make(), tmp_path, progress=False)
    with pytest.warns(UserWarning, match=r"damaged\.png"):
        found = evaluate(make(), tmp_path, errors="skip", progress=False)
    assert found.paths == ("a/0.png", "b/0.png", "c/0.png")


def test_it_goes_by_the_names_of_classes(folders, tmp_path):
    """Some of the classes, in another order, by one of their names."""
    model, (folder, _) = make(), folders[False]
    expected = evaluate(model, folder, progress=False)
    model.labels = ("navy, b", "lawn", "a, alpha")
    for name in "ab":
        (tmp_path / name).symlink_to(folder / name)
    found = evaluate(model, tmp_path, progress=False)
    assert found.class_names == model.labels and set(found.labels) == {0, 2}
    theirs = dict(zip(expected.paths, expected.probabilities))
    np.testing.assert_allclose(found.probabilities, [theirs[path] for path in found.paths], atol=1e-5)
    (tmp_path / "horse").symlink_to(folder / "b")
    with pytest.raises(ValueError, match="'horse'"):
        evaluate(model, tmp_path, progress=False)


def test_what_is_refused(folders, tmp_path):
    folder, _ = folders[False]
    with pytest.raises(FileNotFoundError, match=r"b/99\.png"):
        evaluate(make(), folder, only=["b/1.png", "b/99.png"], progress=False)
    (tmp_path / "history.json").write_text("{}")
    with pytest.raises(ValueError, match="history.json.*split.json"):
        evaluate(make(), folder, only=tmp_path / "history.json", progress=False)
    with pytest.raises(ValueError, match="7 classes .* 3: 'a'"):
        evaluate(make(classes=7), folder, progress=False)
    with pytest.raises(ValueError, match="output"):
        evaluate(make(include_top=False, pooling=None), folder, progress=False)
    with pytest.raises(FileNotFoundError, match="none"):
        evaluate(tmp_path / "none.keras", folder)
    broken = make()
    broken.get_layer("head").bias.assign([0, -np.inf, 0])  # never predicted, and its probability is 0
    assert evaluate(broken, folder, progress=False).accuracy <= 2 / 3
    broken.get_layer("head").bias.assign(np.full(3, np.nan))
    with pytest.raises(ValueError, match="not finite numbers"):
        evaluate(broken, folder, progress=False)
    with pytest.raises(ValueError, match="'raise'.*'skip'"):
        evaluate(make(), folder, errors="ignore")


# --- tables -------------------------------------------------------------------------------------------------------

TASKS = {  # the task, the names of the outputs, the columns of the labels, options
    "single": (("ant", "bee", "cow"), {"label": ["cow", "ant", "bee", "ant"]}, {}),
    "named columns": (("bee", "ant"), {"ant": [0, 1, 1, 0], "bee": [1, 1, 0, 0]}, {}),
    "separated": (
        ("ant", "bee", "cow"),
        {"tags": ["cow|ant", "", "bee", "ant"]},
        {"label_column": "tags", "separator": "|"},
    ),
    "regression": (("height", "age"), {"age": [3.5, 1, 2, 4], "height": [1.5, 2, 3, 4]}, {}),
    "ordinal": (("mild", "medium", "hot"), {"taste": ["hot", "mild", "mild", "medium"]}, {"label_column": "taste"}),
}


def table_of(folder, labels):
    for n in range(4):
        pixels = np.random.default_rng(n).integers(0, 256, (32, 32, 3), "uint8")
        Image.fromarray(pixels).save(folder / f"p{n}.png")
    return {"image": [f"p{n}" for n in range(4)], **labels}


@pytest.mark.parametrize("kind", TASKS)
def test_a_table_of_every_task(kind, tmp_path):
    pytest.importorskip("sklearn")
    names, labels, options = TASKS[kind]
    task = {"named columns": "multi", "separated": "multi"}.get(kind, kind)
    model = make(classes=1 if task == "ordinal" else len(names))
    name_classes(model, names, task)
    found = evaluate(model, table_of(tmp_path, labels), images_dir=tmp_path, **options)
    outputs = predictions(model, model.predict(model.preprocess([tmp_path / f"p{n}.png" for n in range(4)]), verbose=0))
    np.testing.assert_allclose(found.raw, outputs, atol=1e-5)  # float32, another batch
    truth = {
        "single": [2, 0, 1, 0],
        "named columns": [[1, 0], [1, 1], [0, 1], [0, 0]],
        "separated": [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 0, 0]],
        "regression": [[1.5, 3.5], [2, 1], [3, 2], [4, 4]],
        "ordinal": [[2], [0], [0], [1]],
    }
    assert found.task == task and found.class_names == names and found.labels.tolist() == truth[kind]
    assert found.paths == ("p0.png", "p1.png", "p2.png", "p3.png")


def test_rows_of_a_table_that_are_left_out(tmp_path):
    model = make()
    model.labels = ("ant", "bee", "cow")
    table = table_of(tmp_path, {"label": ["ant"] * 4})
    table["image"][2] = "gone"
    (tmp_path / "p3.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="'gone'"):
        evaluate(model, table, images_dir=tmp_path)
    with pytest.warns(UserWarning, match="left out"):
        assert evaluate(model, table, images_dir=tmp_path, errors="skip").paths == ("p0.png", "p1.png")
    with pytest.warns(UserWarning, match="Images"):
        assert evaluate(model, table, images_dir=tmp_path, errors="skip", only=["p1"]).paths == ("p1.png",)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ({"label": ["ant", "ape", "bee", "cow"]}, {}, "no class 'ape'|'ape'"),
        ({"kind": ["ant", "bee", "cow", "ant"]}, {}, "no column 'label'.*label_column="),
        ({"label": ["ant"] * 4}, {"image_column": "id"}, "no column 'id'"),
    ],
)
def test_a_table_that_does_not_fit_the_model(labels, options, message, tmp_path):
    model = make()
    model.labels = ("ant", "bee", "cow")
    with pytest.raises(ValueError, match=message):
        evaluate(model, table_of(tmp_path, labels), images_dir=tmp_path, **options)


def test_other_columns_than_the_models(tmp_path):
    model = make(classes=2)
    name_classes(model, ("ant", "bee"), "multi")
    table = table_of(tmp_path, {"ant": [0, 1, 1, 0], "cow": [1, 1, 0, 0]})
    with pytest.raises(ValueError, match="no column 'bee'"):
        evaluate(model, table, images_dir=tmp_path)
    with pytest.raises(ValueError, match="'ant', 'bee'.*'ant', 'cow'"):
        evaluate(model, table, images_dir=tmp_path, label_column=["ant", "cow"])
    one = make(classes=1)
    name_classes(one, ("age",), "regression")
    assert evaluate(one, table, images_dir=tmp_path, label_column="cow").per_class[0]["name"] == "age"
    with pytest.raises(ValueError, match="'multi'.*a table"):
        evaluate(model, tmp_path.parent)
